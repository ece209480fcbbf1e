"""Jobs whose parameter server needs more memory than its template says."""

from harness.jobs import Object
from harness.training import training

# Beside the program in the chief: so many variables of so many MiB more on the parameter server, with a pause between
# two of them.
GROWS = """
import os, threading, time
from elastic_tfjob.runtime import elastic

COUNT, MIB, PAUSE_S = (int(each) for each in os.environ["GROWS"].split())

def grow(strategy):
    import tensorflow as tf
    time.sleep(10)
    kept = []
    for _ in range(COUNT):
        with strategy.scope():
            kept.append(tf.Variable(tf.zeros([MIB * 2**18])))
        time.sleep(PAUSE_S)
    time.sleep(3600)

original = elastic.ElasticCheckpoint.resume

def resume(self, *args, **kwargs):
    import gc
    import tensorflow as tf
    step = original(self, *args, **kwargs)
    (strategy,) = [each for each in gc.get_objects() if type(each) is tf.distribute.ParameterServerStrategy]
    threading.Thread(target=grow, args=(strategy,), daemon=True).start()
    return step

elastic.ElasticCheckpoint.resume = resume
"""
LIMIT = "384Mi"
PROGRAM: Object = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "grows"},
    "data": {"sitecustomize.py": GROWS},
}
"""What growing jobs mount."""


def growing(name: str, folder: str, grows: str, limit: str = LIMIT, **annotations: str) -> Object:
    """A job with PROGRAM, whose parameter server has this limit. `grows`: "60 20 1" is 60 variables of 20 MiB, one each
    second. `folder`: below /checkpoints."""
    arguments = ["--steps=100000", "--report-every=10", "--checkpoint-every=10", "--at-most=20"]
    replicas = {"Chief": 1, "PS": 1, "Worker": 1}
    job: Object = training(name, replicas=replicas, arguments=arguments, annotations=annotations, folder=folder)
    types = job["spec"]["tfReplicaSpecs"]
    chief = types["Chief"]["template"]["spec"]
    chief["volumes"].append({"name": "grows", "configMap": {"name": "grows"}})
    chief["containers"][0]["volumeMounts"].append({"name": "grows", "mountPath": "/grows"})
    chief["containers"][0]["env"] += [{"name": "PYTHONPATH", "value": "/grows"}, {"name": "GROWS", "value": grows}]
    server = types["PS"]["template"]["spec"]["containers"][0]
    server["resources"]["requests"]["memory"] = server["resources"]["limits"]["memory"] = limit
    return job
