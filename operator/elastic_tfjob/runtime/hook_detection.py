"""Whether the training program uses ElasticCheckpoint (the hook), concluded from outside the program.

A program that uses it says so (hello.json). A program never announces that it won't use it, so the launcher infers it:
the program has used TensorFlow for a while, has worked or waited since, and has not even imported the hook. A late
hello revises the conclusion.

That TensorFlow's library is mapped proves nothing: it is mapped from the first moments of the import on, which took
70 s and 17 s of CPU on a busy machine. TensorFlow's threads exist from its first operation on, but only 2.21 names them
(2.15 and 2.20 do not). So the end of the imports at the top of the program's file counts as well; the fork server
reports it (forkserver.py).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from elastic_tfjob.runtime import processes

TENSORFLOW_S, TENSORFLOW_CPU_S = 20.0, 2.0
"""A program that has had TensorFlow for this time, and used this much CPU since, has finished its imports."""
ANY_S, ANY_CPU_S = 300.0, 20.0
"""The same for a program that is not seen to use TensorFlow: a shell may install packages before it starts Python."""
IMPORTED_S = 300.0
"""A program that has imported the hook constructs it once its model is built and its servers are up."""
IDLE_S, IDLE_CPU_S = 9.0, 0.1
"""A program that uses less CPU than this in this time does not import anything: it waits."""
_TENSORFLOW_THREAD = b"tf_"
"""The names of TensorFlow's threads begin with this."""


@dataclass(frozen=True)
class ProgramSample:
    """One observation of a program. `at_s`: monotonic time. `cpu_s`: CPU seconds used so far. `tensorflow`: whether the
    program is known to have TensorFlow."""

    at_s: float
    cpu_s: float
    tensorflow: bool


class HookDetection:
    """Observes one program. `pid`: its process group. `started_at_s`: its start by time.monotonic()."""

    def __init__(self, pid: int, started_at_s: float) -> None:
        self.pid, self.started_at_s = pid, started_at_s
        self._first_with_tensorflow: ProgramSample | None = None
        self._samples: deque[ProgramSample] = deque(maxlen=8)

    def sample(self, now_s: float, tensorflow_imported: bool) -> None:
        """Observe the program. Call it every few seconds while `uses_hook` is None. `tensorflow_imported`: the fork
        server reports that TensorFlow has been imported."""
        cpu_s, has_threads = _usage(self.pid)
        self.add(ProgramSample(now_s, cpu_s, tensorflow_imported or has_threads))

    def add(self, sample: ProgramSample) -> None:
        """Take in one observation."""
        self._samples.append(sample)
        if sample.tensorflow and self._first_with_tensorflow is None:
            self._first_with_tensorflow = sample

    def uses_hook(self, hello: bool, imported: bool) -> bool | None:
        """True, False, or None while unknown. `hello`, `imported`: whether the program wrote these files."""
        if hello or not self._samples:
            return True if hello else None
        now = self._samples[-1]
        if imported:
            return False if now.at_s - self.started_at_s >= IMPORTED_S else None
        before = next((each for each in reversed(self._samples) if now.at_s - each.at_s >= IDLE_S), None)
        idle = before is not None and now.cpu_s - before.cpu_s < IDLE_CPU_S
        first = self._first_with_tensorflow
        if first is not None and now.at_s - first.at_s >= TENSORFLOW_S:
            return False if idle or now.cpu_s - first.cpu_s >= TENSORFLOW_CPU_S else None
        return False if now.at_s - self.started_at_s >= ANY_S and (idle or now.cpu_s >= ANY_CPU_S) else None


def _usage(pid: int) -> tuple[float, bool]:
    """CPU seconds of a program's processes and of the children they waited for, and whether one has threads that
    TensorFlow has named."""
    total_s, tensorflow = 0.0, False
    found = processes.running()
    for each in processes.below(found, [each for each in found.values() if pid in (each.pid, each.group)]):
        total_s += processes.cpu_s(each.pid) or 0.0
        tensorflow = tensorflow or _has_tensorflow_threads(each.pid)
    return total_s, tensorflow


def _has_tensorflow_threads(pid: int) -> bool:
    try:
        threads = (processes.PROC / str(pid)).glob("task/*/comm")
        return any(each.read_bytes().startswith(_TENSORFLOW_THREAD) for each in threads)
    except OSError:  # the process has ended, or may not be read
        return False
