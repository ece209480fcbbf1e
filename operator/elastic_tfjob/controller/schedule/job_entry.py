"""What the scheduling loop knows of each job: a record from when the job is first seen until it is gone."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from elastic_tfjob.controller.model.job import Key
from elastic_tfjob.controller.planning.core_job import Pair, RejectedNodes
from elastic_tfjob.controller.planning.job_view import JobView
from elastic_tfjob.scheduling.reasons import Code

__all__ = ["JobEntry", "Quarantine", "RefusedSize"]

# A job that failed is tried again after the first delay, then after twice as long, and so on.
_FIRST_DELAY_S: Final = 30.0
_MAX_DELAY_S: Final = 3600.0


@dataclass(slots=True)
class Quarantine:
    """Nothing is decided for a job until then (monotonic seconds). The record stays for `delay_s` longer: if the job
    fails again in that time, the next delay is twice as long."""

    delay_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class RefusedSize:
    """A size that a job could not get. It is not written again before `until_s` (Unix time)."""

    generation: int
    replicas: Mapping[str, int]
    delay_s: float
    until_s: float


@dataclass(slots=True, eq=False)
class JobEntry:
    """One job. `view`: its last description; None: it has to be described again.

    `planned`: the last round's plan has it. `not_tried`: the last search for failing jobs had no time for it.
    `overtaken`: a round has decided again while the job's target was being written. `reasoned_at_s`: Unix time when a
    target that differs in its reason only was last written. `notices_sent`: uid of the job that was told that it is
    neither stopped nor moved, and for which reasons. `checkpoints`: namespace and place of its checkpoints.
    """

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
        """Whether time alone may change the job's description."""
        return bool(self.rejected_nodes) or (self.view is not None and self.view.may_change)

    def quarantined(self, now: float) -> bool:
        """Whether nothing is decided for the job at this time (monotonic seconds)."""
        return self.quarantine is not None and now < self.quarantine.until_s

    def retried(self, now: float) -> bool:
        """Whether the job was quarantined, and is decided for again."""
        return self.quarantine is not None and now >= self.quarantine.until_s

    def failed(self, now: float) -> None:
        """Quarantine the job; for twice as long as the last time."""
        known = self.quarantine
        delay_s = _FIRST_DELAY_S if known is None else min(2 * known.delay_s, _MAX_DELAY_S)
        self.quarantine = Quarantine(delay_s, now + delay_s)

    def worked(self, now: float) -> None:
        """Note that the last plan has the job, which ends its quarantine some time later."""
        self.planned = True
        if self.quarantine is not None and now > self.quarantine.until_s + self.quarantine.delay_s:
            self.quarantine = None
