"""Appends each round's Snapshot and plan to files on a volume, as training data for `train-policy --follow`.

No round depends on these files: an error here is logged and counted, and has no other effect.
"""

import asyncio
import os
import time
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from elastic_tfjob.controller.kube import metrics
from elastic_tfjob.controller.kube.startup import on_volume
from elastic_tfjob.controller.kube.supervise import excerpt
from elastic_tfjob.scheduling.experience import as_line
from elastic_tfjob.scheduling.plan import Plan

__all__ = ["ExperienceLog"]

log = structlog.get_logger(__name__)

SPACING_S: Final = 5.0
"""Minimum seconds between two lines."""
SLOT_S: Final = 60.0
"""Seconds between two lines if the profile has no interval and no job is new."""
MOST_BYTES: Final = 16 << 20
"""Size in bytes after which a file is closed and a new one started."""
KEPT: Final = 3
"""Number of closed files to keep."""
LOGGED_EVERY_S: Final = 300.0
"""Minimum seconds between two warnings about failed writes."""


class ExperienceLog:
    """Writes lines to `experience.jsonl` in a directory. With an empty directory name it writes nothing."""

    def __init__(self, directory: str) -> None:
        self._path = Path(directory) / "experience.jsonl" if directory else None
        self._written_at = self._logged_at = float("-inf")
        self._known: frozenset[str] = frozenset()
        self._writing = False

    def note(self, plan: Plan | None, interval_s: float) -> None:
        """Writes this plan and its Snapshot if a line is due: once per `interval_s` (if 0, per SLOT_S), and soon after
        a job was created. The caller does not wait for the write. While a line is being written, others are skipped."""
        now = time.monotonic()
        passed_s = now - self._written_at
        if self._path is None or plan is None or self._writing or passed_s < SPACING_S:
            return
        jobs = plan.snapshot.jobs
        if not jobs or (passed_s < (interval_s or SLOT_S) and jobs.keys() <= self._known):
            return
        self._written_at, self._known, self._writing = now, frozenset(jobs), True
        on_volume(partial(_append, self._path, plan, interval_s)).add_done_callback(self._written)

    def _written(self, future: asyncio.Future[None]) -> None:
        self._writing = False
        error = None if future.cancelled() else future.exception()
        metrics.EXPERIENCE.labels("written" if error is None else "failed").inc()
        if error is not None and time.monotonic() - self._logged_at >= LOGGED_EVERY_S:
            self._logged_at = time.monotonic()
            log.warning("experience not written", file=str(self._path), error=excerpt(error))


def _append(path: Path, plan: Plan, interval_s: float) -> None:
    line = as_line(plan, interval_s)
    if path.exists() and path.stat().st_size > MOST_BYTES:
        for k in range(KEPT, 0, -1):
            older = path.with_name(f"experience.{k - 1}.jsonl") if k > 1 else path
            if older.exists():
                os.replace(older, path.with_name(f"experience.{k}.jsonl"))
    with path.open("a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # the previous line is incomplete
                line = "\n" + line
        file.write(f"{line}\n".encode())
