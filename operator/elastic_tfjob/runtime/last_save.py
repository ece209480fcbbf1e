"""The checkpoint that the operator asks for before it ends a pod: the program saves, and stands still from then on.

The request is the one of a switch (save.json), so programs need know nothing of it. Where a save fails the program
trains on, and is asked again after a while: whether the pod ends without a checkpoint is the operator's decision.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from elastic_tfjob.runtime import protocol

AGAIN_S = 10.0
"""After a save that failed."""
STANDS_S = 600.0
"""So long a program that has saved stands still for the end of its pod. Where no operator is there to end it, it trains
on for as long, and is asked again."""


class LastSave:
    """`said` is what the exporter tells of it: `request`, `state` (`saving`, `saved`, `refused`), `why`, `step`."""

    def __init__(self) -> None:
        self.said: dict[str, Any] | None = None
        self._id = ""
        self._again_at = 0.0
        self._saved_at = 0.0

    @property
    def waits(self) -> bool:
        """Whether the program has been asked and has not answered yet."""
        return self.said is not None and self.said["state"] == "saving"

    def ask(self, folder: Path, request: int, now: float) -> None:
        """Ask the program whose folder this is, once for each request, and take in its answer. Raises OSError."""
        said = self.said
        again = said is not None and said["state"] == "refused" and now >= self._again_at
        if said is None or said["request"] != request or again:
            self._id = f"stop-{request}-{time.time_ns()}"
            protocol.write(folder / protocol.SAVE, {"id": self._id, "generation": request})
            self.said = _said(request, "saving")
        elif said["state"] == "saving":
            answer = protocol.read(folder / protocol.SAVED)
            if answer is None or answer.get("id") != self._id:
                return
            if answer.get("ok"):
                self.said = _said(request, "saved", step=answer.get("step"))
                self._saved_at = now
            else:
                self.withdraw(folder)
                self.said = _said(request, "refused", why=str(answer.get("why") or "failed"))
                self._again_at = now + AGAIN_S
        elif said["state"] == "saved" and now - self._saved_at >= STANDS_S:
            self.withdraw(folder)
            self.said = _said(request, "refused", why=f"its pod was not ended for {STANDS_S:.0f} s, so it trains on")
            self._again_at = now + STANDS_S

    def withdraw(self, folder: Path) -> None:
        """Let the program go on."""
        self.said = None
        with contextlib.suppress(OSError):
            (folder / protocol.SAVE).unlink()


def _said(request: int, state: str, *, why: str = "", step: object = None) -> dict[str, Any]:
    return {"request": request, "state": state, "why": why, "step": step}
