"""The scheduling loop's record of each job, from its first observation until the job is deleted."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from elastic_tfjob.controller.model.job import Key
from elastic_tfjob.controller.planning.core_job import Pair, RejectedNodes
from elastic_tfjob.controller.planning.job_view import JobView
from elastic_tfjob.scheduling.reasons import Code

__all__ = ["JobEntry", "Quarantine", "RefusedSize"]

# Seconds until a failed job is tried again: the first time, and at most. The delay doubles each time.
_FIRST_DELAY_S: Final = 30.0
_MAX_DELAY_S: Final = 3600.0


@dataclass(slots=True)
class Quarantine:
    """Nothing is decided for a job before `until_s` (monotonic seconds). The quarantine is remembered for `delay_s`
    longer: if the job fails again in that time, the next delay is twice as long."""

    delay_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class RefusedSize:
    """A size to which a resize failed. It is not written again before `until_s` (Unix time)."""

    generation: int
    replicas: Mapping[str, int]
    delay_s: float
    until_s: float


@dataclass(slots=True, eq=False)
class JobEntry:
    """The record of one job. `view`: its last description; None: it must be described again.

    `planned`: the last round's plan includes the job. `not_tried`: the last search for failing jobs had no time for it.
    `overtaken`: a later round decided for the job while its target was still being written. `reasoned_at_s`: Unix time
    of the last write of a target that differed only in its reason or memory. `notices_sent`: the uid of the job that
    got events about why it is neither stopped nor moved, and the codes of these reasons. `checkpoints`: namespace and
    place of the job's checkpoints."""

    key: Key
    view: JobView | None = None
    rejected_nodes: Mapping[Pair, RejectedNodes] = field(default_factory=dict)
    quarantine: Quarantine | None = None
    planned: bool = False
    not_tried: bool = False
    refused_size: RefusedSize | None = None
    reasoned_at_s: float = 0.0
    overtaken: bool = False
    notices_sent: tuple[str, set[Code]] | None = None
    checkpoints: tuple[str, str] | None = None

    @property
    def managed(self) -> bool:
        """Whether the profile decides for the job."""
        return self.view is not None and self.view.job is not None

    @property
    def may_change(self) -> bool:
        """Whether the job's description may change by time alone."""
        return bool(self.rejected_nodes) or (self.view is not None and self.view.may_change)

    def quarantined(self, now: float) -> bool:
        """Whether the job is in quarantine at `now` (monotonic seconds), so that nothing is decided for it."""
        return self.quarantine is not None and now < self.quarantine.until_s

    def retried(self, now: float) -> bool:
        """Whether the job's quarantine is over, so that the job is tried again."""
        return self.quarantine is not None and now >= self.quarantine.until_s

    def failed(self, now: float) -> None:
        """Quarantines the job, for twice as long as the last time."""
        known = self.quarantine
        delay_s = _FIRST_DELAY_S if known is None else min(2 * known.delay_s, _MAX_DELAY_S)
        self.quarantine = Quarantine(delay_s, now + delay_s)

    def worked(self, now: float) -> None:
        """Notes that the last plan includes the job. If its quarantine is long over, the quarantine is forgotten."""
        self.planned = True
        if self.quarantine is not None and now > self.quarantine.until_s + self.quarantine.delay_s:
            self.quarantine = None
