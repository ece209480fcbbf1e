"""The program's side of a switch in mode `live`: its launcher names the workers, and the hook changes them.

    launcher        writes workers.json
    reporting thread                     starts the change ............ answers in changed.json
    main thread                                            makes it, between two steps

The answer is written when the workers that left may end. A later request counts instead of an earlier one: a change
that is not made yet is given up, one that is made is followed by the next.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any, Callable

from elastic_tfjob.runtime import protocol
from elastic_tfjob.runtime.progress import Progress

__all__ = ["LiveChanges"]

_MOST_S = 60.0
"""The longest limit that a request may have."""


class LiveChanges:
    """`workers`: the LiveWorkers of the program. `folder`: its generation's. `why_not`: returns why the program is not
    to be changed; empty if it may be. `changed`: called in the main thread when workers have joined or left, with their
    number."""

    def __init__(
        self, workers: Any, folder: Path, progress: Progress, why_not: Callable[[], str], changed: Callable[[int], None]
    ) -> None:
        self._workers, self._folder, self._progress = workers, folder, progress
        self._why_not, self._changed = why_not, changed
        self._reported: str | None = None
        self._seen: object = None  # the id of the last request
        self._request: dict[str, Any] | None = None  # that is not answered
        self._started = False

    def refuse(self, why: str) -> None:
        """From now on the program is not to be changed."""
        self._why_not = lambda: why

    # -- the reporting thread ------------------------------------------------------------------------------------------

    def watch(self) -> bool:
        """Take one step towards the launcher's request; returns whether `at_step` has something to do."""
        self._report()
        request = protocol.read(self._folder / protocol.WORKERS)
        if request is not None and request.get("id") != self._seen:
            self._seen, self._request, self._started = request.get("id"), request, False
        if self._request is not None:
            self._follow(self._request)
        return bool(self._workers.ready)

    def _report(self) -> None:
        why = self._why_not() or self._workers.unable()
        if why != self._reported:
            with contextlib.suppress(OSError):
                protocol.write(self._folder / protocol.LIVE, {"able": not why, "why": why})
                self._reported = why

    def _follow(self, request: dict[str, Any]) -> None:
        workers, generation = request.get("workers"), request.get("generation")
        if not isinstance(workers, list) or not isinstance(generation, int):
            self._answer(request, "the request is not valid")
            return
        if not self._started:
            if not self._workers.cancel() and self._workers.outcome is None:
                return  # the change before this one is made, and not over
            if set(workers) == set(self._workers.addresses()):
                self._answer(request, "")
                return
            if why := self._why_not():
                self._answer(request, why)
                return
            self._progress.begin_change()
            limit = request.get("limit_s")
            self._workers.start(workers, min(float(limit), _MOST_S) if isinstance(limit, (int, float)) else _MOST_S)
            self._started = True
        if (outcome := self._workers.outcome) is not None:
            done, why = outcome
            self._answer(request, "" if done else why or "refused")

    def _answer(self, request: dict[str, Any], why: str) -> None:
        """Tell the launcher; from then on the program is of the new generation, unless it says `why` not."""
        answer = {"id": request.get("id"), "ok": not why, "why": why, "at": time.time()}
        try:
            protocol.write(self._folder / protocol.CHANGED, answer)
        except OSError:  # tried again; the launcher has a limit
            return
        self._request = None
        if not why and request["generation"] != self._progress.generation:
            self._progress.continue_as(request["generation"])

    # -- the main thread -----------------------------------------------------------------------------------------------

    def at_step(self) -> None:
        """Make the change, with nothing in flight."""
        if self._workers.ready and (count := self._workers.apply()):
            self._changed(count)
