"""The program that has given its values to the next one in memory stays until it has saved them, beside training."""

from __future__ import annotations

import contextlib
from pathlib import Path

from elastic_tfjob.runtime import protocol
from elastic_tfjob.runtime.programs import Child

LIMIT_S = 900.0
"""The program is stopped after this time, whether it has saved or not."""
ENDED_S = 60.0
"""If the next program ends with an error, the container ends at most this long after it: the program that leaves has
the newest values."""


class LeavingProgram:
    """`child`: the program. `folder`: its generation's. `next_folder`: that of the program which has its values.
    `now_s`: monotonic time."""

    def __init__(self, child: Child, folder: Path, next_folder: Path, now_s: float) -> None:
        self.child, self._folder, self._next = child, folder, next_folder
        self._until_s = now_s + LIMIT_S
        self._ended = False

    def is_done(self, now_s: float, code: int | None) -> bool:
        """Whether the program is needed no more. `code`: with which the next program has ended, None while it runs."""
        if (self._folder / protocol.KEPT).exists() or code == 0 or (code is not None and self._next_has_saved()):
            return True
        if code is not None and not self._ended:
            self._ended, self._until_s = True, min(self._until_s, now_s + ENDED_S)
            self._say(self._next / protocol.TAKEN, f"the program ended with exit code {code}")
        why = "it ended" if self.child.exited else "it took too long" if now_s >= self._until_s else ""
        if why:
            self._say(self._folder / protocol.KEPT, f"the program before has not saved them: {why}")
        return bool(why)

    def _next_has_saved(self) -> bool:
        """Whether the next program has saved a checkpoint itself. One that is told to end while it takes the values
        has not."""
        saved = (protocol.read(self._folder.parent / protocol.PROGRESS) or {}).get("checkpoint")
        generation = saved.get("generation") if isinstance(saved, dict) else None
        return isinstance(generation, int) and generation > self.child.generation

    def _say(self, path: Path, why: str) -> None:
        """Write for a program that cannot."""
        if not path.exists():
            with contextlib.suppress(OSError):
                protocol.write(path, {"ok": False, "why": why})
