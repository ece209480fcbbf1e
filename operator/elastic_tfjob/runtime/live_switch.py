"""The launcher's side of a switch in mode `live`: the running program is told its new workers, and answers.

The program changes its workers while it trains (live_changes.py), so no other program is prepared. Its answer is the
point of no return: what a restarted container continues with is written before the request, and only renamed after the
answer. A container that ends in between continues with the old workers, which all still run.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

from elastic_tfjob.runtime import protocol

MOST_S = 30.0
"""The program may take this long to reach the added workers. Training continues meanwhile."""
ANSWER_S = 15.0
"""The program's answer may come this long after that: it sees a request between two steps."""
BACK_S = 45.0
"""The program may take this long to return to its workers: a change that is under way ends before it."""


class LiveSwitch:
    """One request to the program in `folder`: to have the workers of a coming generation.

    `committed`: the file of what a restarted container continues with, `content` its content for the coming generation.
    `workers`: their addresses. `before`: the running generation and the addresses of its workers. `limit_s`: seconds
    that the program has, at most MOST_S. `now_s`: monotonic time. Raises OSError if the request cannot be written; then
    nothing has changed.
    """

    def __init__(
        self,
        folder: Path,
        committed: Path,
        content: dict[str, Any],
        workers: list[str],
        *,
        before: tuple[int, list[str]],
        limit_s: float,
        now_s: float,
    ) -> None:
        self.content = content
        self._folder, self._committed, self._before = folder, committed, before
        self._limit_s = min(limit_s, MOST_S)
        self._deadline_s = now_s + self._limit_s + ANSWER_S
        self._why = ""  # it is given up
        self._id = ""
        self._staged = protocol.stage(committed, content)
        try:
            self._request(content["generation"], workers)
        except BaseException:
            os.unlink(self._staged)
            raise

    def _request(self, generation: int, workers: list[str]) -> None:
        number = f"{generation}-{time.time_ns()}"
        request = {"id": number, "generation": generation, "workers": workers, "limit_s": self._limit_s}
        protocol.write(self._folder / protocol.WORKERS, request)
        self._id = number

    def poll(self, now_s: float) -> str | None:
        """None while the program has not answered; empty if it has the new workers; else why it keeps the old ones."""
        answer = protocol.read(self._folder / protocol.CHANGED)
        if answer is not None and answer.get("id") == self._id:
            return self._why or ("" if answer.get("ok") else str(answer.get("why") or "refused"))
        if now_s < self._deadline_s:
            return None
        if self._why:
            return f"{self._why}; the program did not answer"
        self.give_up("the program did not answer in time", now_s)
        return None

    def give_up(self, why: str, now_s: float) -> None:
        """Ask the program for the workers of the running generation again, unless it has answered already."""
        if self._why or (now_s < self._deadline_s and self.poll(now_s) is not None):
            return
        with contextlib.suppress(OSError):  # tried again: the program may still make the change, and answer that
            self._request(*self._before)
            self._why, self._deadline_s = why, now_s + BACK_S

    def commit(self) -> None:
        """Let a restarted container continue with the new workers."""
        with contextlib.suppress(OSError):
            os.replace(self._staged, self._committed)

    def discard(self) -> None:
        """The switch is refused. A request that the program has not answered stays: it asks for the present workers."""
        with contextlib.suppress(OSError):
            os.unlink(self._staged)
