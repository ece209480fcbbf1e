"""One profile for a whole cluster: it composes the steps of deadline, kips, specon and the loans of aryl in one round.

By precedence: nodes that other pools want go back; sizes that jobs must have; deadlines; who gains most; who waits; CPU
of crowded nodes by remaining work; idle CPU to who uses all it has. See docs/designs/elastic.md.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final, Literal

from pydantic import Field

from elastic_tfjob.api.reading import MAX_ENTRIES
from elastic_tfjob.scheduling.core import SHARE_CPU, ElasticParameters, Seconds, Stages, needs
from elastic_tfjob.scheduling.lend import Reclaim
from elastic_tfjob.scheduling.places import PlaceName
from elastic_tfjob.scheduling.profile import Profile, Step
from elastic_tfjob.scheduling.profiles.deadline import DeadlineParameters, EarliestDeadline
from elastic_tfjob.scheduling.profiles.deadline.deadline_round import DeadlineRound, JobCase
from elastic_tfjob.scheduling.profiles.deadline.plan import carry_out, guarantee_deadlines, probe
from elastic_tfjob.scheduling.profiles.kips import (
    AS_DECLARED,
    Adjustment,
    IdleFirst,
    KipsParameters,
    admit,
    go_back,
    grow,
    growth,
    guarantee,
    relieve,
    rested,
)
from elastic_tfjob.scheduling.profiles.specon import SpeconParameters, Weights
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import NOTHING
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.rules import OrderKey
from elastic_tfjob.scheduling.snapshot import Counts, Job
from elastic_tfjob.scheduling.steps.cpu_in_place import (
    boot,
    count_as_free,
    give_back_idle,
    give_back_used,
    grant,
    keep_for_leaving,
    raise_busy,
)
from elastic_tfjob.scheduling.steps.crowding import Balance, CpuLoad, cpu_load_view
from elastic_tfjob.scheduling.steps.open_jobs import usable_total
from elastic_tfjob.scheduling.steps.repair import sharing
from elastic_tfjob.scheduling.steps.sizes import movable
from elastic_tfjob.speed.optimus import OnlineSpeed

__all__ = [
    "EarliestDeadlineToCome",
    "ElasticProfileParameters",
    "ElasticSettings",
    "PlannedJobs",
    "Resizing",
    "grow_unplanned",
    "leave_ranked",
    "plan",
    "planned",
    "restore",
    "told",
]

# -- Which waiting job first -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EarliestDeadlineToCome:
    """By deadline; one that has passed counts no more, or whoever sets a deadline of a second would be first for ever.
    A round is due when a first start has settled."""

    settle_s: float
    drift: float = 0.0

    def key(self, job: Job, now: float) -> OrderKey:
        by = job.spec.deadline_s
        return (by if by is not None and by > now else inf,)

    def next_jump_s(self, job: Job, now: float) -> float | None:
        settled, by = EarliestDeadline(self.settle_s).next_jump_s(job, now), job.spec.deadline_s
        times = [at for at in (settled, by) if at is not None and now < at < inf]
        return min(times, default=None)


# -- The jobs whose sizes are planned together -------------------------------------------------------------------------
# Those with deadlines, and those whose speed at other sizes is known.

MEASURED: Final = 5
"""Speeds measured at so many sizes tell those at others: as many as Optimus' formula has coefficients, and one."""


def told(job: Job) -> bool:
    """Whether its speed at other sizes is known, other than from CPU use. The others grow by how busy their replicas
    are: what a program shows while it runs says more than speeds measured with other CPU."""
    if isinstance(job.speed, OnlineSpeed):
        return bool(job.placement) and not job.cpu_use and len(job.speed.measured) >= MEASURED
    return job.speed is not None


def planned(job: Job, now: float) -> bool:
    """Whether the job's size is planned: not for a deadline that has passed."""
    by = job.spec.deadline_s
    return told(job) or (by is not None and by > now and job.spec.total_steps is not None)


@dataclass(frozen=True, slots=True)
class PlannedJobs:
    """Which jobs a round has planned, by their keys; `least`: the least sizes of those that may give what they have
    beyond."""

    keys: Set[str] = frozenset()
    least: Mapping[str, Counts] = field(default_factory=dict)


def plan(round_: Round, *, settings: DeadlineParameters) -> PlannedJobs:
    """Deadlines first, then who gains most. Jobs whose size is not planned stay as they are, unless with the room of
    those that run more deadlines are met, or fewer jobs have to stop."""

    def free(job: Job) -> bool:
        """Not one that has gone back from a larger size, and keeps the one that was faster for a while."""
        return told(job) or not job.placement or rested(job, round_)

    outlook = _promised(DeadlineRound(round_, settings, lambda job: planned(job, round_.now) and free(job)))
    stops = keep_running(outlook)
    late = any(case.why.code == "deadline-no-room" for case in outlook.cases)
    if outlook.left_out and (stops or late):
        whole = _promised(
            DeadlineRound(round_, settings, lambda job: (planned(job, round_.now) or bool(job.placement)) and free(job))
        )
        more, fewer = _met(whole, outlook) - _met(outlook, outlook), stops - keep_running(whole)
        if more > 0 or (not more and fewer > 0):
            outlook = whole
    if not outlook.cases and not outlook.unfit:
        return PlannedJobs()
    least = {case.job.key: case.wanted or {} for case in outlook.cases if _by_use(case)}
    keep_size(outlook)
    carry_out(outlook)
    return PlannedJobs(frozenset(case.job.key for case in outlook.cases), least)


def _met(outlook: DeadlineRound, of: DeadlineRound) -> int:
    """How many of the jobs of one outlook meet their deadlines by another."""
    keys = {case.job.key for case in of.cases}
    return sum(case.booking is not None for case in outlook.cases if case.job.key in keys)


def _by_use(case: JobCase) -> bool:
    return not case.probe and not told(case.job)


def _promised(outlook: DeadlineRound) -> DeadlineRound:
    probe(outlook)
    guarantee_deadlines(outlook)
    return outlook


def keep_running(outlook: DeadlineRound) -> int:
    """A job that runs keeps at least its least size, where deadlines leave room: nobody is stopped for a gain. Returns
    how many are stopped."""
    room, held, stops = outlook.room_now(), NOTHING, 0
    for case in outlook.cases:
        if case.row or not case.job.placement:
            continue
        demand = case.job.spec.demand(case.curve.sizes[0])
        if demand.within(room):
            room, held = room.minus(demand), held.plus(demand)
            case.row = 1
        else:
            stops += 1
    outlook.timeline.hold(held, 0.0)
    return stops


def keep_size(outlook: DeadlineRound) -> None:
    """A job whose speed elsewhere is expected only, not told, keeps the size that it has, or starts at the declared
    one, where there is room. It does not grow for that expectation: it grows by how busy its replicas are."""
    for case in outlook.cases:
        if not _by_use(case):
            continue
        job, curve = case.job, case.curve
        sizes, room = curve.sizes, outlook.room_now()
        promised = job.spec.demand(sizes[case.row - 1]) if case.row else NOTHING
        if job.placement and not case.current:
            beyond = job.holds.minus(promised).positive()
            if job.steps_per_s >= curve.plain.rates[case.row] and beyond.within(room):
                case.kept, case.beyond = True, beyond
                outlook.timeline.hold(beyond, 0.0)
            continue
        row = max(case.row, case.current if job.placement else _declared(case))
        beyond = job.spec.demand(sizes[row - 1]).minus(promised) if row else NOTHING
        if beyond.within(room):
            case.row, case.beyond = row, beyond
            outlook.timeline.hold(beyond, 0.0)
        case.most = case.row


def _declared(case: JobCase) -> int:
    """The largest size of the curve up to the declared one."""
    most = sum(case.job.spec.declared.values())
    return max((k for k, size in enumerate(case.curve.sizes, 1) if sum(size.values()) <= most), default=0)


# -- The parameters of elastic -----------------------------------------------------------------------------------------


class ElasticSettings(ElasticParameters):
    """What may be set; see ElasticProfileParameters."""

    place: PlaceName = Field("pack-apart", description="which nodes replicas go to; count looks at totals only")
    interval_s: Seconds = Field(15.0, description="longest time between two rounds; 0: only when something changes")
    cooldown_s: Seconds = Field(30.0, description="least time between two rescales of one job")
    min_gain: float = Field(0.1, ge=0, lt=1, description="least relative gain in speed for which a running job grows")
    sample_points: int = Field(
        0, ge=0, le=MAX_ENTRIES, description="sizes measured before a job starts (simulation without oracle)"
    )
    lend: Literal["none", "offered"] = Field("offered", description="borrow nodes that the inference pool offers")
    reclaim: Reclaim = Field(
        "search",
        description="with lend, which nodes go back: the first; or those without jobs, then those whose jobs can "
        "shrink, then by least preemption cost, fewest jobs, a search for the fewest stops, or at random",
    )
    pause_s: Seconds = Field(1.0, description="what a start or a change of size is expected to stop training for")
    settle_s: Seconds = Field(30.0, description="a first start is left alone so long before its speed is believed")
    keep: float = Field(
        1.0, ge=0, le=1000, description="how much more what a running job has is worth to it than the same to another"
    )
    speed_power: float = Field(
        0.5,
        gt=0,
        le=1,
        description="beside deadlines, speed counts to this power: below 1 more jobs get some of the rest",
    )
    left_power: float = Field(
        0.25,
        ge=0,
        le=1,
        description="beside deadlines, the time left counts to this power: 1 shortest first, 0 all alike",
    )
    share_cpu: bool = Field(True, description=SHARE_CPU)
    moves: int = Field(2, ge=0, le=100, description="most moves of one job from crowded nodes to idle CPU")


# -- The jobs that give and grow by how busy their replicas are, as under kips -----------------------------------------
# Their speed at other sizes is not told.


class Unplanned(IdleFirst):
    """Who waits gets replicas of jobs that were not planned: what the others have was weighed already. Of these, jobs
    whose speed elsewhere is not told give what they have beyond what their deadline needs."""

    planned = PlannedJobs()

    def gives(self, donor: Job, needed: bool) -> bool:
        weighed = donor.key in self.planned.keys and donor.key not in self.planned.least
        return not weighed and super().gives(donor, needed)

    def floor(self, donor: Job, needed: bool) -> Counts:
        floor, least = super().floor(donor, needed), self.planned.least.get(donor.key)
        return floor if least is None else {type_: max(n, least.get(type_, 0)) for type_, n in floor.items()}


class Resizing(Adjustment):
    """What the steps of kips share, with other donors."""

    def __init__(self, round_: Round, settings: KipsParameters) -> None:
        self.donors = Unplanned(round_, settings)
        super().__init__(round_, settings, self.donors)


def restore(resizing: Resizing) -> None:
    """A busy job that has less than it declares gets that: what is free, else what others leave idle or have beyond
    what they declare. So nobody stays small for having started on a full cluster."""
    if resizing.blocked:
        return
    round_ = resizing.round
    for job in sorted(resizing.short, key=lambda job: (job.spec.arrival_s, job.spec.sequence)):
        held, declared = job.counts, job.spec.declared
        wanted = {type_: max(n, declared.get(type_, 0)) for type_, n in held.items()}
        if wanted == held or round_.placement(job) != job.placement or told(job):
            continue
        if not (movable(job, round_) and rested(job, round_)):
            continue
        if _pays(resizing, job, wanted) and not round_.resize(job, wanted, AS_DECLARED):
            resizing.taking.take(
                job,
                {type_: n - held[type_] for type_, n in wanted.items()},
                Reason("makes-room", {"job": job.key, "has": held}),
                lambda job=job, wanted=wanted: round_.resize(job, wanted, AS_DECLARED),  # type: ignore[misc]
                needed=False,
            )


def _pays(resizing: Resizing, job: Job, counts: Counts) -> bool:
    """Whether what it gets makes it faster, for what it takes, as growth has to."""
    settings, total = resizing.settings, usable_total(resizing.round)
    faster = growth(resizing, job).factor(counts)
    held = job.spec.demand(job.counts).dominant_share(total)
    more = job.spec.demand(counts).dominant_share(total) / held - 1 if held else 0.0
    gains = faster - 1 >= max(settings.min_gain, settings.min_efficiency * more)
    return gains and resizing.worth(job, 1 - 1 / faster)


def leave_ranked(adjustment: Adjustment) -> None:
    """Jobs that hold CPU by their rank on a crowded node keep that."""
    round_ = adjustment.round
    load: CpuLoad = round_.snapshot.view("cpu load", cpu_load_view)
    there = {key: round_.job(key) for name in load.crowded() for key in load.there[name]}
    adjustment.ranked = {key for key, job in there.items() if round_.cpu(job)}
    adjustment.lent = [job for job in adjustment.lent if job.key not in adjustment.ranked]


def grow_unplanned(adjustment: Adjustment) -> None:
    """As `grow` of kips, for those that `restore` left as they were."""
    round_ = adjustment.round
    adjustment.short = [job for job in adjustment.short if not told(job) and round_.placement(job) == job.placement]
    grow(adjustment)


BEFORE = (count_as_free, relieve, guarantee)
WAITING = (go_back, admit)
CPU = (leave_ranked, keep_for_leaving, give_back_used, raise_busy, restore, grow_unplanned, boot, give_back_idle, grant)


class ElasticProfileParameters(ElasticSettings):
    """All of them: deadlines, then who gains most; CPU in place, moves, and nodes on loan."""

    def stages(self) -> Stages:
        planning = DeadlineParameters(
            place=self.place,
            min_gain=self.min_gain,
            pause_s=self.pause_s,
            settle_s=self.settle_s,
            keep=self.keep,
            sizes="front",
            start="declared",
            probe_share=1.0,
            speed_power=self.speed_power,
            left_power=self.left_power,
            ageing=False,
        )
        lending = KipsParameters(place=self.place, min_gain=self.min_gain, rescale_pause_s=self.pause_s)
        crowded = SpeconParameters(place=self.place, moves=self.moves)

        def plan_sizes(resizing: Resizing) -> None:
            resizing.donors.planned = plan(resizing.round, settings=planning)

        def adjusting(step: Callable[[Resizing], None]) -> Step:
            return sharing(step, ("elastic", self), lambda round_: Resizing(round_, lending))

        steps: tuple[Step, ...] = (
            *map(adjusting, BEFORE),
            adjusting(plan_sizes),
            *map(adjusting, WAITING),
            Balance(crowded.moves, crowded.times, crowded.move_s, crowded.idle),
            Weights(crowded),
            *map(adjusting, CPU),
        )
        told = needs("deadline", "speed", "duration", "service", "use", "history")
        done = needs("stop", "move", "cpu")
        order = EarliestDeadlineToCome(self.settle_s)
        return Stages(order, steps, told | done, drifts=True, shares_cpu=self.share_cpu)

    def profile(self, name: str) -> Profile:
        # As for deadline: the steps themselves see to the least gain.
        return replace(super().profile(name), min_gain=0.0)
