"""The program of docs/elastic.md, as it stands there."""

import json
import os
import re
import subprocess
import textwrap
from pathlib import Path

import pytest

from .jobs import Job
from .pods import PYTHON

pytestmark = pytest.mark.xdist_group("tensorflow-1")

PAGE = Path(__file__).parents[2] / "docs" / "elastic.md"


@pytest.mark.thorough  # three programs with TensorFlow; the page changes seldom
@pytest.mark.timeout(900)
def test_the_program_of_the_docs_trains_to_its_end(tmp_path: Path) -> None:
    block, *_ = re.findall(r"( +)```python\n(.*?)\n\1```", PAGE.read_text(), re.DOTALL)
    program = tmp_path / "train.py"
    source = textwrap.dedent(block[1])
    assert source.count("EPOCHS, BATCH = 300, 32") == 1
    program.write_text(source.replace("EPOCHS, BATCH = 300", "EPOCHS, BATCH = 3"))
    job = Job(tmp_path, program)
    job.configure({"chief": 1, "ps": 1, "worker": 1})
    base = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "ELASTIC_TFJOB_CHECKPOINT_DIR": str(tmp_path / "checkpoints")}
    running = {
        kind: subprocess.Popen([PYTHON, program], env={**base, "TF_CONFIG": config}, stdout=subprocess.PIPE, text=True)
        for (kind, _), config in job.configs.items()
    }
    try:
        told, _ = running["chief"].communicate(timeout=600)
        assert (told, running["chief"].returncode) == ("all 96 steps are done\n", 0)
        marker = json.loads((tmp_path / "checkpoints" / "elastic-96.complete").read_text())
        assert (marker["step"], marker["durable"], marker["data"]["position"]) == (96, True, 3 * 1024)
    finally:
        for process in running.values():
            process.kill()
            process.communicate()
