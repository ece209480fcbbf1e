"""The digits with TF1's MonitoredTrainingSession and without this project's hook: an example program for a TFJob of
parameter servers and workers, like most programs written for the v1 training-operator. It needs no chief.

A resize recreates all pods (`recreate`). The session saves to the job's checkpoint-dir every few seconds and resumes
from there; the steps since the last save are repeated. Every worker prints one JSON object per line.
"""

import argparse
import json
import os
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow.compat.v1 as tf

BATCH_SIZE, RATE = 32, 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000, help="total training steps of all workers")
    parser.add_argument("--report-every", type=int, default=100, metavar="STEPS", help="steps between two reports")
    parser.add_argument(
        "--checkpoint-every", type=float, default=2.0, metavar="SECONDS", help="seconds between checkpoints"
    )
    parser.add_argument(
        "--at-most", type=float, default=0.0, metavar="STEPS", help="maximum steps per second; 0: no limit"
    )
    options = parser.parse_args()

    tf.disable_eager_execution()
    config = json.loads(os.environ["TF_CONFIG"])
    kind, index = config["task"]["type"], config["task"]["index"]
    cluster = tf.train.ClusterSpec(config["cluster"])
    server = tf.train.Server(cluster, job_name=kind, task_index=index)
    if kind == "ps":
        server.join()
    leads = kind == "chief" or (index == 0 and "chief" not in config["cluster"])

    table = np.loadtxt(Path(__file__).with_name("digits.csv.gz"), delimiter=",", dtype=np.float32)
    with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device=f"/job:{kind}/task:{index}")):
        step = tf.train.get_or_create_global_step()
        weights = tf.get_variable("weights", (64, 10), initializer=tf.zeros_initializer())
        bias = tf.get_variable("bias", (10,), initializer=tf.zeros_initializer())
        batch = tf.gather(tf.constant(table), tf.random.uniform((BATCH_SIZE,), maxval=len(table), dtype=tf.int32))
        logits = tf.matmul(batch[:, :-1] / 16, weights) + bias
        labels = tf.cast(batch[:, -1], tf.int32)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        train = tf.train.GradientDescentOptimizer(RATE).minimize(loss, global_step=step)
    session = tf.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=leads,
        checkpoint_dir=os.environ["ELASTIC_TFJOB_CHECKPOINT_DIR"],
        save_checkpoint_secs=options.checkpoint_every,
        hooks=[tf.train.StopAtStepHook(last_step=options.steps)],
    )
    told = None
    with session:
        resumed_at = int(session.run(step))
        while not session.should_stop():
            begin = time.monotonic()
            _, done, now = session.run([train, step, loss])
            if told is None or done >= told + options.report_every:  # the other workers make steps, too
                told = done
                report = {"step": int(done), "steps": options.steps, "resumed_at": resumed_at}
                print(json.dumps({**report, "loss": round(float(now), 4)}), flush=True)
            if options.at_most:
                time.sleep(max(0.0, begin + 1 / options.at_most - time.monotonic()))


if __name__ == "__main__":
    main()
