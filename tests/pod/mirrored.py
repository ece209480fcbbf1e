"""A program with a training loop of its own under MultiWorkerMirroredStrategy: softmax regression on the digits."""

import os

import tensorflow as tf
from sklearn.datasets import load_digits

from elastic_tfjob.runtime import ElasticCheckpoint

STEPS, RATE = 1_000_000, 0.05

strategy = tf.distribute.MultiWorkerMirroredStrategy() if "TF_CONFIG" in os.environ else tf.distribute.get_strategy()
with strategy.scope():
    mean = tf.VariableAggregation.MEAN
    weights = tf.Variable(tf.zeros((64, 10)), aggregation=mean)
    bias = tf.Variable(tf.zeros(10), aggregation=mean)
elastic = ElasticCheckpoint(
    tf.train.Checkpoint(weights=weights, bias=bias), total_steps=STEPS, batch_size=64, strategy=strategy
)
images, labels = load_digits(return_X_y=True)
data = tf.data.Dataset.from_tensor_slices(((images / 16).astype("float32"), labels)).shuffle(len(images)).repeat()
batches = iter(strategy.experimental_distribute_dataset(data.batch(elastic.batch_size * strategy.num_replicas_in_sync)))


def descend(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
    with tf.GradientTape() as tape:
        logits = tf.matmul(batch[0], weights) + bias
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(batch[1], logits))
    for variable, gradient in zip((weights, bias), tape.gradient(loss, [weights, bias]), strict=True):
        variable.assign_sub(RATE * gradient)
    return loss


@tf.function  # type: ignore[untyped-decorator]  # TensorFlow has no types
def one_step(batch: object) -> tf.Tensor:
    return strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(descend, (batch,)), axis=None)


step = elastic.resume(warm_up=lambda: one_step(next(batches)))
while step < STEPS:
    loss = one_step(next(batches))
    step += 1
    elastic.step(step, loss=loss, examples=64)
    if step % 50 == 0:
        print(f"step {step} loss {float(loss):.3f}", flush=True)
