"""Whether the program that trains has constructed ElasticCheckpoint, as far as that can be seen from outside it.

The program says so itself (hello.json). What it will never do nobody says, so that is concluded: it has used TensorFlow
for a while, and worked or waited since, and has not even imported the hook. A conclusion; a late hello ends it.

That TensorFlow's library is in its memory says nothing: it is from the first moments of the import on, which took 70 s
and 17 s of CPU on a busy machine. Threads of TensorFlow's there are from its first operation on, but only TensorFlow
2.21 names them (2.15 and 2.20 do not). So the end of the imports that the program's file begins with counts as well:
the interpreter that the program leaves behind tells it (forking.py).
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from elastic_tfjob.runtime import processes

PROC = Path("/proc")
TENSORFLOW_S, TENSORFLOW_CPU_S = 20.0, 2.0
"""A program that has had TensorFlow for so long, and for so much CPU time, has imported what it imports."""
ANY_S, ANY_CPU_S = 300.0, 20.0
"""The same for one that is not seen to use TensorFlow: a shell may install packages before it starts it."""
IMPORTED_S = 300.0
"""A program that has imported the hook constructs it when its model is built and its servers have come."""
IDLE_S, IDLE_CPU_S = 9.0, 0.1
"""One that uses less than this in such a time does not import anything: it waits."""
_THREADS = b"tf_"
"""So the names of TensorFlow's threads begin."""


@dataclass(frozen=True)
class Look:
    """A program at a time: CPU seconds that it has used so far, and whether it is known to have TensorFlow."""

    at: float
    cpu_s: float
    tensorflow: bool


class Hook:
    """Looks at one program, whose process group is `pid`, since `began` (a time.monotonic())."""

    def __init__(self, pid: int, began: float) -> None:
        self.pid, self.began = pid, began
        self._first: Look | None = None  # with TensorFlow
        self._looks: deque[Look] = deque(maxlen=8)

    def look(self, now: float, imported: bool) -> None:
        """To be called every few seconds while it is not known. `imported`: it is known that TensorFlow is."""
        cpu_s, runs = _group(self.pid)
        look = Look(now, cpu_s, imported or runs)
        self._looks.append(look)
        if look.tensorflow and self._first is None:
            self._first = look

    def says(self, hello: bool, imported: bool) -> bool | None:
        """True, false or not known (yet), by what the program said and was seen to do."""
        if hello or not self._looks:
            return True if hello else None
        now = self._looks[-1]
        if imported:
            return False if now.at - self.began >= IMPORTED_S else None
        before = next((look for look in reversed(self._looks) if now.at - look.at >= IDLE_S), None)
        waits = before is not None and now.cpu_s - before.cpu_s < IDLE_CPU_S
        first = self._first
        if first is not None and now.at - first.at >= TENSORFLOW_S:
            return False if waits or now.cpu_s - first.cpu_s >= TENSORFLOW_CPU_S else None
        return False if now.at - self.began >= ANY_S and (waits or now.cpu_s >= ANY_CPU_S) else None


def _group(pid: int) -> tuple[float, bool]:
    """CPU seconds of a program's processes and of what they waited for, and whether TensorFlow's threads run in one."""
    ticks, tensorflow = 0, False
    found = processes.running()
    for each in processes.below(found, [each for each in found.values() if pid in (each.pid, each.group)]):
        folder = PROC / str(each.pid)
        try:
            fields = (folder / "stat").read_bytes().rpartition(b") ")[2].split()
            ticks += sum(map(int, fields[11:15]))
            tensorflow = tensorflow or any(
                each.read_bytes().startswith(_THREADS) for each in folder.glob("task/*/comm")
            )
        except (OSError, ValueError, IndexError):  # it has ended, or may not be looked at
            continue
    return ticks / os.sysconf("SC_CLK_TCK"), tensorflow
