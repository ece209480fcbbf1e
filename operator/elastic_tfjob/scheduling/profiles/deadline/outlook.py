"""What the steps of one round share: the jobs it looks at, what is known of each, and what each is to get."""

from dataclasses import dataclass
from math import inf, isfinite

from elastic_tfjob.scheduling.forecasts import work_left
from elastic_tfjob.scheduling.profiles.deadline.curves import Curve, curve_view
from elastic_tfjob.scheduling.profiles.deadline.settings import Settings
from elastic_tfjob.scheduling.profiles.deadline.timeline import Booking, Need, Timeline
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Job
from elastic_tfjob.scheduling.toolkit.apply_sizes import candidates

__all__ = ["Case", "Outlook"]


@dataclass(slots=True)
class Case:
    """One job. `current`: the row of its curve that it has, 0 for nothing or another size. `row`: what it is to get
    now, no larger than `most`. `booking`: what is set aside so that it meets its deadline. `why`: shown with a change,
    or to who waits. `kept`: it stays as it is, at a size that is none of its curve's."""

    job: Job
    curve: Curve
    need: Need
    current: int
    row: int = 0
    booking: Booking | None = None
    probe: bool = False
    why: str = ""
    most: int | None = None
    kept: bool = False

    @property
    def timed(self) -> bool:
        """Whether it has a deadline, and all is known that tells whether it meets that."""
        return self.need.by_s < inf and self.curve.known and self.need.left < inf


class Outlook:
    """`cases` in the order of deadlines. `total`: what the cluster has; `timeline`: what is free of it, without jobs
    that cannot be changed now."""

    def __init__(self, round_: Round, settings: Settings) -> None:
        self.round, self.settings = round_, settings
        now, snapshot = round_.now, round_.snapshot
        jobs, free = candidates(round_)
        self.total = round_.room.total
        curves = snapshot.view(("deadline curves", self.total, settings.sizes), curve_view(self.total, settings.sizes))
        self.cases: list[Case] = []
        self.unfit: list[Job] = []
        looked = {True: 0, False: 0}
        for job in jobs:
            running = bool(job.placement)
            looked[running] += 1
            if looked[running] > settings.most_planned:
                if running:
                    free = free.minus(job.holds)
                continue
            past = snapshot.past(job.spec)
            curve = curves.of(job, past, snapshot.nodes, settled(job, now, settings.settle_s))
            if curve is None:
                if running:
                    free = free.minus(job.holds)
                else:
                    self.unfit.append(job)
                continue
            left = work_left(job, now, past)
            steps = left[0] if left is not None and isfinite(left[0]) else inf
            by = job.spec.deadline_s
            by_s = by - now if by is not None and isfinite(by) else inf
            current = curve.index(job.counts) if running else 0
            delay = max(0.0, job.observed_s - now) if running else 0.0
            need = Need(steps, by_s, delay, settings.pause_s, current)
            self.cases.append(Case(job, curve, need, current, probe=self._probe(job, curve)))
        self.probing = self._fixed_probes(jobs)
        self.free = free.positive()
        self.timeline = Timeline(self.free, [case.need.by_s for case in self.cases if case.timed])

    def _probe(self, job: Job, curve: Curve) -> bool:
        """Whether it has to run for its speed to be known; one that ran and was stopped has shown all that it does."""
        return not curve.known and (bool(job.placement) or job.steps <= 0)

    def _fixed_probes(self, jobs: list[Job]) -> float:
        """Share of the cluster of jobs that cannot be stopped and have just started."""
        open_ = {job.spec.key for job in jobs}
        running = (self.round.job(entry[4]) for entry in self.round.running_in_order())
        fixed = [job for job in running if job.spec.key not in open_]
        now, settle_s = self.round.now, self.settings.settle_s
        fresh = [job for job in fixed if job.steps_per_s <= 0 or not settled(job, now, settle_s)]
        return sum(job.holds.dominant_share(self.total) for job in fresh)

    def lower(self, case: Case, row: int) -> None:
        """Have a job get less than what was set aside for it now: there are no nodes for that."""
        if case.booking is not None:
            self.timeline.release(case.booking)
            case.booking = None
        elif case.row:
            self.timeline.hold(case.job.spec.demand(case.curve.sizes[case.row - 1]), 0.0, -1)
        if not row and case.job.placement:
            case.kept = True
            self.timeline.hold(case.job.holds, 0.0)
        elif row:
            self.timeline.hold(case.job.spec.demand(case.curve.sizes[row - 1]), 0.0)
        case.row = row

    def room_now(self) -> Resources:
        """What is free now beside what is set aside for now."""
        return Resources(*(int(part + 1e-6) for part in self.timeline.free[:, 0])).positive()


def settled(job: Job, now: float, settle_s: float) -> bool:
    """Whether the speed of a running job is believed: not that of the first steps after a start, which are slower."""
    return job.speed is not None or job.rescaled_s >= job.since_s or now - job.since_s >= settle_s
