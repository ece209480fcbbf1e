"""`Model.fit` of Keras 3 with one worker."""

import keras  # type: ignore[import-untyped]
import tensorflow as tf
from sklearn.datasets import load_digits

from elastic_tfjob.runtime import ElasticCheckpoint

images, labels = load_digits(return_X_y=True)
data = tf.data.Dataset.from_tensor_slices(((images / 16).astype("float32"), labels)).repeat().batch(32)
model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)])
model.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
elastic = ElasticCheckpoint(tf.train.Checkpoint(model=model, optimizer=model.optimizer), total_steps=1_000_000)
assert keras.__version__.startswith("3.")
model.fit(data, steps_per_epoch=100, epochs=10_000, verbose=0, callbacks=[elastic.callback()])
