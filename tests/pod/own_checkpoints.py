"""A program that reads its size once, when it starts, and writes TensorFlow's own checkpoints: none of our hooks."""

import json
import os
import time

import tensorflow as tf

config = json.loads(os.environ["TF_CONFIG"])
workers, chief = len(config["cluster"]["worker"]), config["task"]["index"] == 0
weight, step = tf.Variable(0.0), tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(weight=weight, step=step)
manager = tf.train.CheckpointManager(checkpoint, os.environ["ELASTIC_TFJOB_CHECKPOINT_DIR"], max_to_keep=2)
manager.restore_or_initialize()
first = int(step)
while True:
    weight.assign_add(0.1 * (1.0 - weight))
    done = int(step.assign_add(1))
    if done % 20 == 0 and chief:
        manager.save()
        print(json.dumps({"step": done, "resumed_at": first, "workers": workers}), flush=True)
    time.sleep(0.02)
