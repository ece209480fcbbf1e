"""Training programs with other Pythons and TensorFlows than the locked ones.

    PYTHONPATH=tests python -m harness.versions 3.9/2.15 3.13/2.21

For each Python/TensorFlow, uv makes an environment (cached; it finds the Python on PATH, or downloads one), in which
the programs of trainer_images/digits run under the launcher: rescales with real TensorFlow, and all that can be seen of
a forked program beside one that was not. Results go to build/bench/versions.json after each, and to a table at the end.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness.binaries import CACHE, digest, lock
from harness.progress import CommandFailed, Problem, main, run, say, step

ROOT = Path(__file__).resolve().parents[2]
OUTPUT = ROOT / "build" / "bench" / "versions.json"
DEFAULT = ("3.9/2.15", "3.9/2.20", "3.10/2.17", "3.11/2.16", "3.11/2.18", "3.11/2.19", "3.12/2.16", "3.12/2.21")
"""Each Python with the oldest and the newest TensorFlow that has wheels for it, and each TensorFlow once."""
TESTS = (
    "tests/pod/test_rescale.py",
    "tests/pod/test_forks.py",
    "tests/pod/test_live.py",
    "tests/pod/test_data.py",
    "tests/pod/test_live_workers.py",
    "tests/pod/test_light_server.py",
    "tests/pod/test_hand_over.py",
    "tests/pod/test_variable_server.py",
)


def environment(python: str, tensorflow: str) -> Path:
    """The Python of an environment with that TensorFlow and its tf-keras; newest patch releases."""
    wanted = [f"tensorflow-cpu~={tensorflow}.0", f"tf-keras~={tensorflow}.0", "packaging"]
    folder = CACHE / f"python{python}-tensorflow{tensorflow}-{digest(*wanted)}"
    with lock(folder.name):
        if not (folder / "done").exists():
            uv = os.environ.get("UV") or "uv"
            with step(f"installing Python {python} with TensorFlow {tensorflow}"):
                run([uv, "venv", "--quiet", "--clear", "--python", python, folder])
                # tf-keras asks for the package `tensorflow`, which is what `tensorflow-cpu` holds, with GPU beside.
                run([uv, "pip", "install", "--quiet", "--python", folder / "bin" / "python", wanted[0], wanted[2]])
                run([uv, "pip", "install", "--quiet", "--no-deps", "--python", folder / "bin" / "python", wanted[1]])
            (folder / "done").touch()
    return folder / "bin" / "python"


def outcome(python: Path) -> dict[str, object]:
    """What the tests say of programs that this Python runs, and the pauses that they print."""
    begin = time.monotonic()
    # The tests wait most of their time; handed out one at a time, long ones do not share a process.
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *TESTS, "-rA", "-q", "-n", "4", "--maxschedchunk", "1", "-m", ""],
        cwd=ROOT,
        env={**os.environ, "TRAINER_PYTHON": str(python), "PYTHONPATH": "tests"},
        capture_output=True,
        text=True,
        check=False,
    )
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", ended.stdout, re.MULTILINE)
    passed = len(re.findall(r"^PASSED ", ended.stdout, re.MULTILINE))
    if not passed and not failed:
        raise Problem(f"pytest ended with {ended.returncode}:\n{ended.stdout[-3000:]}{ended.stderr[-3000:]}")
    log = OUTPUT.with_name(f"versions-{python.parents[1].name}.log")
    log.write_text(ended.stdout)
    return {
        "passed": passed,
        "failed": failed,
        "downtime_s": [float(each) for each in re.findall(r"downtime ([\d.]+) s", ended.stdout)],
        "seconds": round(time.monotonic() - begin),
        "log": str(log.relative_to(ROOT)),
    }


@main
def _main() -> None:
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[str, object]] = json.loads(OUTPUT.read_text()) if OUTPUT.exists() else {}
    for each in sys.argv[1:] or DEFAULT:
        if not re.fullmatch(r"3\.\d+/2\.\d+", each):
            raise Problem(f"{each!r} is no Python/TensorFlow: for instance 3.11/2.21")
        try:
            python = environment(*each.split("/"))
        except CommandFailed as error:
            say(f"✗ {error}")
            results[each] = {"passed": 0, "failed": ["not installed"], "downtime_s": []}
            continue
        with step(f"programs of Python/TensorFlow {each}", "5 to 10 min"):
            results[each] = outcome(python)
        OUTPUT.write_text(json.dumps(results, indent=2))
    table = Table("Python", "TensorFlow", "passed", "failed", "pauses, s")
    for each, found in sorted(results.items()):
        failed, pauses = found["failed"], found["downtime_s"]
        assert isinstance(failed, list)
        assert isinstance(pauses, list)
        table.add_row(*each.split("/"), str(found["passed"]), "\n".join(failed) or "0", " ".join(map(str, pauses)))
    Console().print(table)
    if any(results[each]["failed"] for each in sys.argv[1:] or DEFAULT):
        sys.exit(1)


if __name__ == "__main__":
    _main()
