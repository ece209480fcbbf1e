"""A chief ends where a thread of TensorFlow's coordinator has, in a process of its own."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from elastic_tfjob.runtime.coordinator_threads import THREADS

LOSE_A_THREAD = """
import sys, threading
from elastic_tfjob.runtime.coordinator_threads import end_with_coordinator_threads

def lose():
    raise AssertionError("There is no inflight closures to mark_failed.")

end_with_coordinator_threads()
end_with_coordinator_threads()
print("training")
thread = threading.Thread(target=lose, name=sys.argv[1], daemon=True)
thread.start()
thread.join()
threading.Event().wait(float(sys.argv[2]))
"""


def _run(thread: str, waits_s: float) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", LOSE_A_THREAD, thread, str(waits_s)]
    return subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)


def test_a_chief_that_would_wait_for_ever_ends() -> None:
    ended = _run(THREADS + "0", 3600)
    assert ended.returncode == 1
    assert ended.stdout == "training\n"  # what was printed is not lost
    assert ended.stderr.count("There is no inflight closures to mark_failed.") == 1
    assert ended.stderr.count("a parameter server was lost while a worker was away") == 1


def test_the_threads_of_others_may_end() -> None:
    ended = _run("the program's own", 0)
    assert ended.returncode == 0
    assert "parameter server" not in ended.stderr


def test_tensorflow_calls_its_threads_so() -> None:
    tensorflow = find_spec("tensorflow")
    if tensorflow is None or not tensorflow.submodule_search_locations:
        pytest.fail("TensorFlow is not installed")
    source = Path(tensorflow.submodule_search_locations[0], "python/distribute/coordinator/cluster_coordinator.py")
    assert f'name="{THREADS}' in source.read_text()
