"""Back from sizes that turned out slower, and how long a job then waits before it grows again."""

from collections.abc import Iterable, Mapping
from typing import Final

from elastic_tfjob.scheduling.profiles.kips.adjustment import Adjustment
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Counts, Job, Node, Snapshot
from elastic_tfjob.scheduling.toolkit.sizes import movable
from elastic_tfjob.speed.history import ALIKE, Size
from elastic_tfjob.speed.optimus import OnlineSpeed
from elastic_tfjob.speed.prediction import size_of

__all__ = ["go_back", "rested"]

WAIT: Final = "kips.wait_s"
"""In a job's memory: for how long it did not grow when it went back last."""
UNTIL: Final = "kips.until_s"
"""In a job's memory: until when it does not grow."""
FIRST_WAIT_S: Final = 30.0
"""Half of the first one, where there is no cooldown."""
LONGEST_WAIT_S: Final = 3600.0
FASTER: Final = 0.05
"""A smaller size was faster by so much at least. Less is noise: speeds are remembered to two digits."""


class Slower:
    """A view of the running jobs that were faster at a smaller size: the speed there, and that size."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.faster: dict[str, tuple[float, Size]] = {}
        for job in jobs:
            self.change(None, job, 0.0)

    def change(self, before: Job | None, after: Job | None, now: float) -> None:
        if before is not None:
            self.faster.pop(before.spec.key, None)
        if after is not None and (found := _faster(after)) is not None:
            self.faster[after.spec.key] = found

    def change_nodes(self, nodes: Mapping[str, Node]) -> bool:
        return True


def slower_view(snapshot: Snapshot) -> Slower:
    return Slower(snapshot.jobs.values())


def go_back(adjustment: Adjustment) -> None:
    """A larger size that turned out slower than a smaller one is left again, if its workers hold the CPU that those
    had. Each time the job waits twice as long before it grows again: speeds that come and go, as those of CPU that was
    lent, would have it grow and shrink for ever."""
    round_ = adjustment.round
    slower: Slower = round_.snapshot.view("slower", slower_view)
    for key, (rate, (ps, workers)) in list(slower.faster.items()):
        job = round_.job(key)
        # Its speed is one that it has shown: until it has trained at its size, that is only expected.
        if not movable(job, round_) or round_.placement(job) != job.placement or job.observed_s > round_.now:
            continue
        if not adjustment.worth(job, 1 - job.steps_per_s / rate):
            continue
        if round_.resize(job, _sized(job, ps, workers), Reason("slower", {"there": rate, "here": job.steps_per_s})):
            last_s = max(FIRST_WAIT_S, round_.profile.cooldown_s, round_.memory(job).get(WAIT, 0.0))
            wait_s = min(2 * last_s, LONGEST_WAIT_S)
            round_.remember(job, WAIT, wait_s)
            round_.remember(job, UNTIL, round_.now + wait_s)


def rested(job: Job, round_: Round) -> bool:
    """Whether a job that has gone back may grow again. A tenant may have written what is remembered: it has a bound."""
    return not round_.now < round_.memory(job).get(UNTIL, 0.0) <= round_.now + LONGEST_WAIT_S


def _sized(job: Job, ps: int, workers: int) -> Counts:
    return {t: ps if t == PS else workers if t == WORKER else n for t, n in job.counts.items()}


def _faster(job: Job) -> tuple[float, Size] | None:
    """The fastest of the sizes that are smaller than its own."""
    if not (job.placement and job.spec.elastic and isinstance(job.speed, OnlineSpeed) and job.steps_per_s > 0):
        return None
    size = size_of(job.counts)
    held, cpu = job.held_cpu(WORKER), job.speed.cpu
    found = max(
        (
            (rate, seen)
            for seen, rate in job.speed.measured.items()
            if seen != size
            and seen[0] <= size[0]
            and seen[1] <= size[1]
            and job.spec.within_bounds(counts := _sized(job, *seen)) == counts
            and cpu.get(seen, 0.0) * seen[1] <= held / ALIKE
        ),
        default=None,
    )
    return found if found is not None and found[0] >= job.steps_per_s * (1 + FASTER) else None
