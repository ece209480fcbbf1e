"""The PyPI SDK of the training-operator works unchanged."""

import os
import shutil
from pathlib import Path

import pytest

from harness.jobs import TRAINER, Jobs, until
from harness.progress import run

SCRIPT = Path(__file__).with_name("sdk_client.py")


@pytest.mark.thorough  # the SDK uses the API that conformance holds
@pytest.mark.beside
def test_the_training_client_creates_waits_reads_logs_and_deletes(jobs: Jobs) -> None:
    uv = os.environ.get("UV") or shutil.which("uv")
    assert uv, "uv runs the script in its own environment: `make e2e`, or put uv in PATH"
    said = run(
        [uv, "run", "--quiet", "--locked", "--script", SCRIPT, jobs.namespace, TRAINER],
        env={"KUBECONFIG": str(jobs.cluster.kubeconfig)},
    )
    assert "deleted" in said
    until(lambda: not jobs.get("tfjobs")["items"], 120, lambda: "the job is still there")
