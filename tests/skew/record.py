"""Record what this version of the operator, launcher and exporter write: tests/skew/recorded/*.json.

    PYTHONPATH=tests python -m skew.record

To be run when a version is released; `commit` in each file is that version, which tests/skew/test_skew.py runs beside
the present one. What it wrote is what every later version must go on from. Until then it is f0f8241, the first commit
that passes over keys that it does not know: in a clone at that commit, with this file and world.py copied into its
tests/skew, run this with PYTHONPATH=operator:tests.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pod.pods import Pod, until
from pod.programs import TRAINER, tf_config

from . import world

FOLDER = Path(__file__).with_name("recorded")


def launchers() -> dict[str, Any]:
    """What a chief's launcher, its program and the exporter say while it is rescaled: files, and the answer."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "train.py"
        program.write_text(TRAINER)
        pod = Pod(Path(folder) / "pod", [sys.executable, program], {"TF_CONFIG": tf_config("chief")})

        def take(name: str) -> None:
            files = {file.name: json.loads(file.read_text()) for file in sorted(pod.shared.glob("*.json"))}
            found[name] = {"files": files, "status": pod.status}

        try:
            pod.start()
            until("it can be rescaled", lambda: pod.status["modes"])
            take("running")
            pod.command("prepare", 1, tf_config=tf_config("chief", port=2223), mode="overlap", timeout_s=30.0)
            until("prepared", lambda: (pod.status["prepared"] or {}).get("state") == "ready")
            take("prepared")
            pod.command("switch", 1, tf_config=tf_config("chief", port=2223), mode="overlap", timeout_s=30.0)
            until("switched", lambda: pod.status["generation"] == 1)
            take("switched")
        finally:
            pod.stop()
    return found


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    last_change = ["git", "log", "-1", "--format=%H", "--", "operator"]
    commit = subprocess.run(last_change, capture_output=True, text=True, check=True).stdout.strip()
    for name, job in world.situations().items():
        _write(name, {"commit": commit, **world.record(job)})
    _write("launcher", {"commit": commit, **launchers()})


def _write(name: str, content: Any) -> None:
    (FOLDER / f"{name}.json").write_text(json.dumps(content, indent=1, sort_keys=False) + "\n")


if __name__ == "__main__":
    main()
