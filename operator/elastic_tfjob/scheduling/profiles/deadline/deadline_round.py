"""DeadlineRound: the jobs of one round, with the knowledge about each job and the size that it gets; and the parameters
of the profile."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import Final, Literal

from pydantic import Field

from elastic_tfjob.api.reading import MAX_ENTRIES
from elastic_tfjob.scheduling.core import ElasticParameters, Seconds
from elastic_tfjob.scheduling.forecasts import work_left
from elastic_tfjob.scheduling.places import PlaceName
from elastic_tfjob.scheduling.profiles.deadline.curves import Curve, curve_cache
from elastic_tfjob.scheduling.profiles.deadline.timeline import Booking, Need, Timeline
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import NOTHING, Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Counts, Job
from elastic_tfjob.scheduling.steps.open_jobs import OpenJobs, unsized, usable_total
from elastic_tfjob.scheduling.steps.repair import repair_candidates
from elastic_tfjob.scheduling.steps.sizes import ChangeCosts, candidates

__all__ = ["DeadlineRound", "DeadlineSettings", "JobCase", "settled"]

# -- The parameters of deadline ----------------------------------------------------------------------------------------


class DeadlineSettings(ElasticParameters):
    """The parameters; see DeadlineParameters."""

    place: PlaceName = Field(
        "pack-apart",
        description="rule that places replicas on nodes; count: totals only",
    )
    min_gain: float = Field(0.1, ge=0, lt=1, description="least relative gain in speed for which a running job grows")
    sample_points: int = Field(
        0, ge=0, le=MAX_ENTRIES, description="sizes measured before a job starts (simulation without oracle)"
    )
    pause_s: Seconds = Field(1.0, description="expected pause of a start or resize, in seconds")
    prepare_cpu_s: Seconds = Field(
        12.0,
        description="CPU-seconds to start one process of a larger size; meanwhile the job trains at half its speed",
    )
    sizes: Literal["all", "front", "doublings"] = Field(
        "all",
        description="sizes of a job: all worker counts, or with PS the path of the best next step; front: also all "
        "sizes that are faster than each cheaper one; doublings: the least size times a power of two",
    )
    probe_share: float = Field(
        0.1, ge=0, le=1, description="part of the cluster for jobs of unknown speed, each at its least size"
    )
    settle_s: Seconds = Field(30.0, description="seconds after a first start before the job's speed is used")
    keep_promises: bool = Field(
        False, description="a running job that can meet its deadline is never given up for another job"
    )
    exchanges: int = Field(3, ge=0, le=64, description="jobs that a round tries to exchange for one that does not fit")
    keep: float = Field(
        10.0,
        ge=0,
        le=1000,
        description="weight of capacity that a running job has, relative to the same for another job",
    )
    speed_power: float = Field(
        1.0,
        gt=0,
        le=1,
        description="exponent of speed for capacity beyond deadlines; below 1, more jobs get a share",
    )
    left_power: float = Field(
        1.0,
        ge=0,
        le=1,
        description="exponent of the time left for capacity beyond deadlines; 1: shortest first, 0: all alike",
    )
    ageing: bool = Field(True, description="older jobs count more for capacity beyond deadlines")
    start: Literal["least", "declared"] = Field("least", description="first size of a job of unknown speed, if it fits")
    lend_cpu: bool = Field(True, description="idle CPU of nodes is lent in place, as under kips")
    most_planned: int = Field(
        400, ge=1, le=MAX_ENTRIES * 100, description="most waiting jobs, and most running jobs, that one round plans"
    )


BEST_EFFORT: Final = Reason("best-effort")


@dataclass(slots=True)
class JobCase:
    """One job of a round. `current`: the row of its curve that it has; 0 if it holds nothing, or has a size outside the
    curve. `row`: the row that it gets now, at most `most`. `booking`: the capacity reserved so that it meets its
    deadline. `why`: the reason for its change or its waiting. `kept`: its size, outside the curve, does not change.
    `beyond`: the resources that it holds now beyond the reserved capacity."""

    job: Job
    curve: Curve
    need: Need
    current: int
    row: int = 0
    booking: Booking | None = None
    probe: bool = False
    why: Reason = BEST_EFFORT
    most: int | None = None
    kept: bool = False
    beyond: Resources = NOTHING

    @property
    def timed(self) -> bool:
        """Whether the job has a deadline and its speed and work are known."""
        return self.need.by_s < inf and self.curve.known and self.need.steps_left < inf

    @property
    def wanted(self) -> Counts | None:
        """The size that the job gets; None: nothing."""
        return self.curve.sizes[self.row - 1] if self.row else None

    @property
    def changes(self) -> bool:
        """Whether the job's size changes."""
        return self.row != self.current or (not self.current and bool(self.job.placement))


class DeadlineRound:
    """The jobs of a round as `cases` in the order of deadlines. `total`: the resources of the cluster; `timeline`:
    their free part over time, without the resources of jobs that cannot be changed now and of `left_out` jobs, which
    `plans` excludes. `spare`: what is free for these jobs beside their own; None: all that other jobs do not hold."""

    def __init__(
        self,
        round_: Round,
        settings: DeadlineSettings,
        plans: Callable[[Job], bool] | None = None,
        spare: Resources | None = None,
    ) -> None:
        self.round, self.settings = round_, settings
        now, snapshot = round_.now, round_.snapshot
        open_, free = candidates(round_, OpenJobs, unsized, None, fixed=plans is None)
        # The first `most_planned` running jobs share their resources; other running jobs do not change.
        free = free.minus(open_.held).plus(_taken_back(round_, open_.aside)) if spare is None else spare
        self.total = usable_total(round_)
        curves = snapshot.index(("deadline curves", settings.sizes), curve_cache(settings.sizes))
        self.cases: list[JobCase] = []
        self.unfit: list[Job] = []
        self.left_out: list[Job] = []
        looked = {True: 0, False: 0}
        for job in open_.jobs:
            if plans is not None and not plans(job):
                self.left_out.append(job)
                continue
            running = bool(job.placement)
            looked[running] += 1
            if looked[running] > settings.most_planned:
                if looked[not running] > settings.most_planned:
                    break
                continue
            # Of CPU in place, `spare` counts what is lent as free.
            held = job.holds if spare is None else job.spec.demand(job.counts)
            if running:
                free = free.plus(held)
            past = snapshot.past(job.spec)
            curve, current = curves.of(job, self.total, past, settled(job, now, settings.settle_s))
            if curve is None:
                if running:
                    free = free.minus(held)
                else:
                    self.unfit.append(job)
                continue
            left = work_left(job, now, past)
            steps = left[0] if left is not None and isfinite(left[0]) else inf
            by = job.spec.deadline_s
            by_s = by - now if by is not None and isfinite(by) else inf
            delay = max(0.0, job.observed_s - now) if running else 0.0
            start_s = (
                ChangeCosts(settings.pause_s, settings.prepare_cpu_s).starting_as_requested_s(job) if current else 0.0
            )
            need = Need(steps, by_s, delay, settings.pause_s, current, start_s)
            job_case = JobCase(job, curve, need, current, probe=self._probe(job, curve))
            self.cases.append(job_case)
        self.probing = self._fixed_probes(open_.aside)
        self.free = free.positive()
        self.timeline = Timeline(self.free, [job_case.need.by_s for job_case in self.cases if job_case.timed])

    def _probe(self, job: Job, curve: Curve) -> bool:
        """Whether the job must run so that its speed becomes known. A stopped job has already run."""
        return not curve.known and (bool(job.placement) or job.steps <= 0)

    def _fixed_probes(self, aside: Mapping[str, Job]) -> float:
        """The share of the cluster held by jobs that cannot be stopped and have just started."""
        fixed = [aside[job.key] for job in self.round.running_in_order() if job.key in aside] if aside else []
        now, settle_s = self.round.now, self.settings.settle_s
        fresh = [job for job in fixed if job.steps_per_s <= 0 or not settled(job, now, settle_s)]
        return sum(job.holds.dominant_share(self.total) for job in fresh)

    def first_row(self, job_case: JobCase, room: Resources) -> int:
        """The initial size of a job with unknown speed: the smallest one, or the largest one up to the declared size
        that fits."""
        if self.settings.start == "least":
            return 1
        spec, sizes = job_case.job.spec, job_case.curve.sizes
        most = sum(spec.declared.values())
        fitting = (
            k for k, size in enumerate(sizes, 1) if sum(size.values()) <= most and spec.demand(size).within(room)
        )
        return max(fitting, default=1)

    def lower(self, job_case: JobCase, row: int) -> None:
        """Give a job less than the capacity reserved for it now, as no nodes have room for that."""
        if job_case.booking is not None:
            self.timeline.release(job_case.booking)
            job_case.booking = None
            self.timeline.hold(job_case.beyond, 0.0, -1)
            job_case.beyond = NOTHING
        elif job_case.row:
            self.timeline.hold(job_case.job.spec.demand(job_case.curve.sizes[job_case.row - 1]), 0.0, -1)
        if not row and job_case.job.placement:
            job_case.kept = True
            self.timeline.hold(job_case.job.holds, 0.0)
        elif row:
            self.timeline.hold(job_case.job.spec.demand(job_case.curve.sizes[row - 1]), 0.0)
        job_case.row = row

    def room_now(self) -> Resources:
        """The resources that are free now and not reserved for now."""
        return Resources(*(int(part + 1e-6) for part in self.timeline.free[:, 0])).positive()


def _taken_back(round_: Round, aside: Mapping[str, Job]) -> Resources:
    """The CPU beyond their requests that was lent to jobs which keep their sizes. It counts as free in this round."""
    lent = round_.snapshot.index("repair candidates", repair_candidates).lent
    jobs = [aside[key] for key in lent if key in aside]
    return Resources(sum(job.spec.extra_cpu(job.cpu) - job.spec.extra_cpu(round_.cpu(job)) for job in jobs))


def settled(job: Job, now: float, settle_s: float) -> bool:
    """Whether the speed of a running job is reliable. The first steps after a start are slower and do not count."""
    return job.speed is not None or job.rescaled_s >= job.since_s or now - job.since_s >= settle_s
