"""Real TensorFlow trains under the operator, and the job's life is what upstream's would be."""

import time

import numpy as np
import pytest
import yaml
from rich.console import Console

from harness import binaries
from harness.cluster import Cluster
from harness.demo import run_job
from harness.jobs import TRAINER, Jobs
from harness.training import training


def some_minutes() -> int:
    """Steps of the sample: 3,000 on a fast machine, where fewer are done before giving room to the second job would
    pay; on one that needs four times the CPU for a batch they would take a quarter of an hour. 1,300 took a minute, and
    were too few."""
    images, weights = np.ones((8192, 64), np.float32), np.ones((64, 1024), np.float32)
    begin = time.process_time()
    for _ in range(20):
        images @ weights
    return int(np.clip(1800 / (time.process_time() - begin), 2400, 3000))


@pytest.mark.timeout(1800)  # longer than the demo's patience
def test_the_sample_trains_digits_to_95_percent(cluster: Cluster) -> None:
    job, seen = run_job(cluster, Console(soft_wrap=True), steps=some_minutes())
    assert seen.state == "Succeeded"
    assert seen.reports[-1]["step"] == seen.reports[-1]["steps"]
    assert seen.reports[-1]["accuracy"] >= 0.95
    assert not [each for each in seen.rescales if each["lost_steps"]]
    sizes = [each["after"]["Worker"] - each["before"]["Worker"] for each in seen.rescales]
    assert sizes[0] > 0, "it grows into the idle cluster"
    assert min(sizes) < 0, "it gives room to the second job"
    assert len(set(seen.nodes.values()) - {""}) >= 1
    assert [c["type"] for c in job["status"]["conditions"]] == ["Created", "Running", "Succeeded"]
    assert job["status"]["completionTime"] >= job["status"]["startTime"]
    assert job["status"]["replicaStatuses"]["Chief"]["succeeded"] == 1


@pytest.mark.thorough  # conformance has its objects; the sample trains
@pytest.mark.beside
def test_upstreams_dist_mnist_example_runs_as_it_is_written(jobs: Jobs) -> None:
    """2 PS, 4 workers, no chief: worker 0 is. Only the image is another, which holds the same kind of program."""
    upstream = binaries.module_dir("training-operator", "github.com/kubeflow/training-operator")
    text = (upstream / "examples/tensorflow/dist-mnist/tf_job_mnist.yaml").read_text()
    image = "kubeflow/tf-dist-mnist-test:latest"
    assert text.count(image) == 2
    jobs.apply(text.replace(image, TRAINER))
    name = yaml.safe_load(text)["metadata"]["name"]
    jobs.wait_for(name, "Succeeded", seconds=400)
    replicas = [f"{name}-{kind}-{index}" for kind, count in (("ps", 2), ("worker", 4)) for index in range(count)]
    # upstream's default cleanPodPolicy is None: what still serves is left alone
    assert sorted(jobs.pods(name)) == replicas
    assert '"step": 2000' in jobs.kubectl("logs", f"{name}-worker-0")


@pytest.mark.thorough  # changes only with the image
@pytest.mark.beside
def test_the_trainer_image_has_keras_3_and_tf_keras(jobs: Jobs) -> None:
    """Both are packages of their own beside TensorFlow; the first use of one that is missing would fail."""
    program = "import keras, tf_keras; assert (keras.__version__[0], tf_keras.__version__[0]) == ('3', '2')"
    jobs.apply(training("kerases", replicas={"Worker": 1}, servers=("python", "-c", program)))
    jobs.wait_for("kerases", "Succeeded", seconds=300)
