"""elastic: one profile for a whole cluster, composed of the steps of deadline, kips, specon and the loans of aryl.

In order of precedence: the return of nodes to pools that want them; sizes that jobs must have; deadlines; replicas for
the jobs that gain most speed; waiting jobs; CPU of crowded nodes by remaining work; idle CPU for jobs that use all of
their own. See docs/designs/elastic.md.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from math import inf
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from elastic_tfjob.api.reading import MAX_ENTRIES, document
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
    grow,
    growth,
    growth_backoff_over,
    guarantee,
    relieve,
    return_to_faster_size,
    take_ordered_room,
)
from elastic_tfjob.scheduling.profiles.specon import SpeconParameters, Weights
from elastic_tfjob.scheduling.queue import entry
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import NOTHING, Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.rules import Order, OrderKey
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
from elastic_tfjob.scheduling.steps.crowding import Balance, CpuLoad, cpu_load_index
from elastic_tfjob.scheduling.steps.open_jobs import usable_total
from elastic_tfjob.scheduling.steps.repair import sharing
from elastic_tfjob.scheduling.steps.sizes import movable
from elastic_tfjob.scheduling.steps.teams import Reclaim as TeamReclaim
from elastic_tfjob.scheduling.steps.teams import TeamRules, Teams, TeamTerms, begin_teams, teams_of
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
    "speed_known",
]

# -- The order of jobs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EarliestDeadlineToCome(Order):
    """Jobs in the order of their deadlines. A deadline that has passed is ignored; otherwise a job with a deadline of
    one second would stay first forever. A round is due when a first start has settled."""

    settle_s: float

    def key(self, job: Job, now: float) -> OrderKey:
        by = job.spec.deadline_s
        return (by if by is not None and by > now else inf,)

    def next_jump_s(self, job: Job, now: float) -> float | None:
        settled, by = EarliestDeadline(self.settle_s).next_jump_s(job, now), job.spec.deadline_s
        times = [at for at in (settled, by) if at is not None and now < at < inf]
        return min(times, default=None)


# -- Planned jobs: those with deadlines, and those whose speed at other sizes is known ---------------------------------

MEASURED: Final = 5
"""The number of measured sizes from which on the speed at other sizes counts as known: the number of coefficients of
Optimus' formula."""


def speed_known(job: Job) -> bool:
    """Whether the job's speed at other sizes is known from a source other than CPU use. The remaining jobs grow by CPU
    use, because the behaviour of the running program is more reliable than speeds measured with a different CPU
    share."""
    if isinstance(job.speed, OnlineSpeed):
        return bool(job.placement) and not job.cpu_use and len(job.speed.measured) >= MEASURED
    return job.speed is not None


def planned(job: Job, now: float) -> bool:
    """Whether the job's size is planned. A deadline that has passed does not count."""
    by = job.spec.deadline_s
    return speed_known(job) or (by is not None and by > now and job.spec.total_steps is not None)


@dataclass(frozen=True, slots=True)
class PlannedJobs:
    """The keys of the jobs that a round has planned; `least`: the least sizes of planned jobs that may give
    replicas."""

    keys: Set[str] = frozenset()
    least: Mapping[str, Counts] = field(default_factory=dict)


def plan(
    round_: Round,
    *,
    settings: DeadlineParameters,
    among: Callable[[Job], bool] = lambda job: True,
    spare: Resources | None = None,
) -> PlannedJobs:
    """Plan deadlines first, then replicas for the jobs that gain most speed. Jobs that are not planned do not change,
    unless more deadlines are met or fewer jobs are stopped with their resources. `among`: which jobs may change;
    `spare`: as for DeadlineRound."""

    def free(job: Job) -> bool:
        """Whether the job may change. A job in growth backoff keeps the size that was faster."""
        return among(job) and (speed_known(job) or not job.placement or growth_backoff_over(job, round_))

    deadline_round = _promised(
        DeadlineRound(round_, settings, lambda job: planned(job, round_.now) and free(job), spare)
    )
    stops = keep_running(deadline_round)
    late = any(job_case.why.code == "deadline-no-room" for job_case in deadline_round.cases)
    if deadline_round.left_out and (stops or late):
        whole = _promised(
            DeadlineRound(
                round_, settings, lambda job: (planned(job, round_.now) or bool(job.placement)) and free(job), spare
            )
        )
        more, fewer = _met(whole, deadline_round) - _met(deadline_round, deadline_round), stops - keep_running(whole)
        if more > 0 or (not more and fewer > 0):
            deadline_round = whole
    if not deadline_round.cases and not deadline_round.unfit:
        return PlannedJobs()
    least = {job_case.job.key: job_case.wanted or {} for job_case in deadline_round.cases if _by_use(job_case)}
    keep_size(deadline_round)
    carry_out(deadline_round)
    return PlannedJobs(frozenset(job_case.job.key for job_case in deadline_round.cases), least)


def _met(deadline_round: DeadlineRound, of: DeadlineRound) -> int:
    """How many jobs of `of` meet their deadlines in `deadline_round`."""
    keys = {job_case.job.key for job_case in of.cases}
    return sum(job_case.booking is not None for job_case in deadline_round.cases if job_case.job.key in keys)


def _by_use(job_case: JobCase) -> bool:
    return not job_case.probe and not speed_known(job_case.job)


def _promised(deadline_round: DeadlineRound) -> DeadlineRound:
    probe(deadline_round)
    guarantee_deadlines(deadline_round)
    return deadline_round


def keep_running(deadline_round: DeadlineRound) -> int:
    """Let running jobs keep at least their smallest size if deadlines leave capacity for it, so that no job is stopped
    for a gain in speed. Returns the number of stopped jobs."""
    room, held, stops = deadline_round.room_now(), NOTHING, 0
    for job_case in deadline_round.cases:
        if job_case.row or not job_case.job.placement:
            continue
        demand = job_case.job.spec.demand(job_case.curve.sizes[0])
        if demand.within(room):
            room, held = room.minus(demand), held.plus(demand)
            job_case.row = 1
        else:
            stops += 1
    deadline_round.timeline.hold(held, 0.0)
    return stops


def keep_size(deadline_round: DeadlineRound) -> None:
    """Let jobs whose speed at other sizes is only expected keep their size, or start at the declared one, if it fits.
    They grow by CPU use, not by the expected speed."""
    for job_case in deadline_round.cases:
        if not _by_use(job_case):
            continue
        job, curve = job_case.job, job_case.curve
        sizes, room = curve.sizes, deadline_round.room_now()
        promised = job.spec.demand(sizes[job_case.row - 1]) if job_case.row else NOTHING
        if job.placement and not job_case.current:
            beyond = job.holds.minus(promised).positive()
            if job.steps_per_s >= curve.plain.rates[job_case.row] and beyond.within(room):
                job_case.kept, job_case.beyond = True, beyond
                deadline_round.timeline.hold(beyond, 0.0)
            continue
        row = max(job_case.row, job_case.current if job.placement else _declared(job_case))
        beyond = job.spec.demand(sizes[row - 1]).minus(promised) if row else NOTHING
        if beyond.within(room):
            job_case.row, job_case.beyond = row, beyond
            deadline_round.timeline.hold(beyond, 0.0)
        job_case.most = job_case.row


def _declared(job_case: JobCase) -> int:
    """The largest size of the curve up to the declared one."""
    most = sum(job_case.job.spec.declared.values())
    return max((k for k, size in enumerate(job_case.curve.sizes, 1) if sum(size.values()) <= most), default=0)


# -- Teams: each plans with its own jobs, and with what is free for it -------------------------------------------------


def plan_team(resizing: "Resizing", teams: Teams, team: str, share: float, settings: DeadlineParameters) -> None:
    """Plan the jobs of one team that this round has not changed, with at most this share of the cluster."""
    round_ = resizing.round
    rules, done = teams.rules, resizing.donors.planned

    def own(job: Job) -> bool:
        return rules.team(job) == team and round_.placement(job) == job.placement

    if any(planned(job, round_.now) and own(job) for job in round_.snapshot.jobs.values()):
        found = plan(round_, settings=settings, among=own, spare=teams.spare(team, share))
        resizing.donors.planned = PlannedJobs(done.keys | found.keys, {**done.least, **found.least})


def planned_teams(round_: Round, teams: Teams) -> list[str]:
    """The teams that have jobs to plan, the one with the least share per weight first."""
    found = {teams.rules.team(job) for job in round_.snapshot.jobs.values() if planned(job, round_.now)}
    return [team for team in teams.in_order() if team in found] if found else []


def raise_to_share(resizing: "Resizing") -> None:
    """Bring running jobs to their declared size while their team has less than it deserves."""
    teams, round_ = resizing.teams, resizing.round
    if teams is None:
        return

    def small(job: Job) -> bool:
        held, declared = job.counts, job.spec.declared
        if all(n >= declared.get(type_, 0) for type_, n in held.items()) or round_.placement(job) != job.placement:
            return False
        idle = bool(job.cpu_use) and job.key not in resizing.busy
        return not idle and movable(job, round_) and growth_backoff_over(job, round_)

    def attempt(job: Job, within: bool) -> bool:
        return within and teams.give(job, lambda counts: round_.resize(job, counts, AS_DECLARED))

    found = [(entry(round_.rules.order, job, round_.now), job) for job in round_.running_in_order() if small(job)]
    teams.in_share_order(found, attempt)


# -- The parameters of elastic -----------------------------------------------------------------------------------------


MAX_TEAMS: Final = 100
"""The most teams that are named."""
Part = Annotated[float, Field(ge=0, le=1)]
Namespace = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]


class TeamTermsParameters(BaseModel):
    """What one team has."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    weight: float = Field(1.0, ge=0.001, le=1000, description="its part of what teams share, relative to other teams")
    guarantee: Part = Field(0.0, description="dominant share of the cluster that it gets whenever it asks for it")
    limit: Part = Field(1.0, description="dominant share of the cluster that it gets at most")
    namespaces: tuple[Namespace, ...] = Field(
        (), max_length=MAX_TEAMS, description="its namespaces; empty: the one with the name of the team"
    )

    @model_validator(mode="after")
    def _ordered(self) -> "TeamTermsParameters":
        if self.limit < self.guarantee:
            raise ValueError(f"limit, {self.limit:g}, must be at least the guarantee, {self.guarantee:g}")
        return self


class TeamParameters(BaseModel):
    """Teams that share the cluster. A namespace that no team has is a team of its own, with weight 1."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reclaim: TeamReclaim = Field(
        "shrink",
        description="how a team gets what it deserves from others: their jobs shrink, or also stop, or it waits (none)",
    )
    over_priority: bool = Field(False, description="shares come before the priorities of jobs")
    named: dict[Namespace, TeamTermsParameters] = Field(
        default_factory=dict, max_length=MAX_TEAMS, description="the terms of teams, by the name of the team"
    )

    @model_validator(mode="after")
    def _add_up(self) -> "TeamParameters":
        if (total := sum(terms.guarantee for terms in self.named.values())) > 1 + 1e-9:
            raise ValueError(f"the guarantees of named add up to {total:g} of the cluster; allowed: at most 1")
        owners: dict[str, str] = {}
        for team, terms in self.named.items():
            for namespace in terms.namespaces or (team,):
                if (other := owners.setdefault(namespace, team)) != team:
                    raise ValueError(f"namespace {namespace} is in the teams {other} and {team}; allowed: one team")
        return self

    def __hash__(self) -> int:  # parameters of profiles are hashed, and a mapping is not
        return hash(self.model_dump_json())

    @property
    def rules(self) -> TeamRules:
        terms = {name: TeamTerms(each.weight, each.guarantee, each.limit) for name, each in self.named.items()}
        members = {namespace: name for name, each in self.named.items() for namespace in each.namespaces}
        return TeamRules(terms, members, self.reclaim, self.over_priority)


class ElasticSettings(ElasticParameters):
    """The parameters; see ElasticProfileParameters."""

    place: PlaceName = Field("pack-apart", description="rule that places replicas on nodes; count: totals only")
    interval_s: Seconds = Field(15.0, description="most seconds between two rounds; 0: a round only after a change")
    cooldown_s: Seconds = Field(30.0, description="least seconds between two resizes of one job")
    min_gain: float = Field(0.1, ge=0, lt=1, description="least relative gain in speed for which a running job grows")
    sample_points: int = Field(
        0, ge=0, le=MAX_ENTRIES, description="sizes measured before a job starts (simulation without oracle)"
    )
    lend: Literal["none", "offered"] = Field("offered", description="borrow nodes that the inference pool offers")
    reclaim: Reclaim = Field(
        "search",
        description="nodes that return to their pool: the first; otherwise idle nodes, nodes whose jobs can shrink, "
        "then by preemption cost, jobs on the node, a search for the fewest stops, or at random",
    )
    pause_s: Seconds = Field(1.0, description="expected pause of a start or resize, in seconds")
    settle_s: Seconds = Field(30.0, description="seconds after a first start before the job's speed is used")
    keep: float = Field(
        1.0,
        ge=0,
        le=1000,
        description="weight of capacity that a running job has, relative to the same for another job",
    )
    speed_power: float = Field(
        0.5,
        gt=0,
        le=1,
        description="exponent of speed for capacity beyond deadlines; below 1, more jobs get a share",
    )
    left_power: float = Field(
        0.25,
        ge=0,
        le=1,
        description="exponent of the time left for capacity beyond deadlines; 1: shortest first, 0: all alike",
    )
    share_cpu: bool = Field(True, description=SHARE_CPU)
    moves: int = Field(2, ge=0, le=100, description="most moves of one job from crowded nodes to idle CPU")
    teams: TeamParameters | None = Field(
        None, description="weighted shares of the cluster between namespaces (docs/teams.md); {}: all alike"
    )

    @field_validator("teams", mode="before")
    @classmethod
    def _as_text(cls, found: object) -> object:
        """A command line gives an object as text."""
        return document(found) if isinstance(found, str) else found


# -- Jobs that give replicas and grow by their CPU use, as under kips --------------------------------------------------
# Their speed at other sizes is unknown.


class Unplanned(IdleFirst):
    """Waiting jobs get replicas of jobs that were not planned, since planned sizes are already balanced. Jobs whose
    speed at other sizes is only expected give what their deadline does not need."""

    planned = PlannedJobs()

    def gives(self, donor: Job, needed: bool) -> bool:
        weighed = donor.key in self.planned.keys and donor.key not in self.planned.least
        return not weighed and super().gives(donor, needed)

    def serves(self, donor: Job, fewer: Counts, job: Job) -> bool:
        teams = teams_of(self._round)
        return super().serves(donor, fewer, job) if teams is None else teams.may_take(donor, job)

    def floor(self, donor: Job, needed: bool) -> Counts:
        floor, least = super().floor(donor, needed), self.planned.least.get(donor.key)
        return floor if least is None else {type_: max(n, least.get(type_, 0)) for type_, n in floor.items()}


class Resizing(Adjustment):
    """The shared state of the steps of kips, with the donors of `Unplanned`."""

    def __init__(self, round_: Round, settings: KipsParameters) -> None:
        self.donors = Unplanned(round_, settings)
        super().__init__(round_, settings, self.donors)


def restore(resizing: Resizing) -> None:
    """Give busy jobs below their declared size that size, from free capacity or else from idle or surplus replicas of
    other jobs. So no job stays small because it started on a full cluster."""
    if resizing.blocked:
        return
    round_ = resizing.round
    for job in sorted(resizing.short, key=lambda job: (job.spec.arrival_s, job.spec.sequence)):
        held, declared = job.counts, job.spec.declared
        wanted = {type_: max(n, declared.get(type_, 0)) for type_, n in held.items()}
        if wanted == held or round_.placement(job) != job.placement or speed_known(job):
            continue
        if not (movable(job, round_) and growth_backoff_over(job, round_)):
            continue
        if _pays(resizing, job, wanted) and not round_.resize(job, wanted, AS_DECLARED):
            resizing.preemption.take(
                job,
                {type_: n - held[type_] for type_, n in wanted.items()},
                Reason("makes-room", {"job": job.key, "has": held}),
                lambda job=job, wanted=wanted: round_.resize(job, wanted, AS_DECLARED),  # type: ignore[misc]
                needed=False,
            )


def _pays(resizing: Resizing, job: Job, counts: Counts) -> bool:
    """Whether the gain in speed is worth the cost of the resize, with the same rule as for growth."""
    settings, total = resizing.settings, usable_total(resizing.round)
    faster = growth(resizing, job)(counts)
    held = job.spec.demand(job.counts).dominant_share(total)
    more = job.spec.demand(counts).dominant_share(total) / held - 1 if held else 0.0
    gains = faster - 1 >= max(settings.min_gain, settings.min_efficiency * more)
    return gains and resizing.worth(job, 1 - 1 / faster, counts)


def take_ordered(adjustment: Adjustment) -> None:
    """The step `take_ordered_room` of kips, for jobs whose size is not planned."""
    take_ordered_room(adjustment, lambda job: not speed_known(job))


def leave_ranked(adjustment: Adjustment) -> None:
    """Let jobs keep the CPU that they hold by their rank on a crowded node."""
    round_ = adjustment.round
    load: CpuLoad = round_.snapshot.index("cpu load", cpu_load_index)
    there = {key: round_.job(key) for name in load.crowded() for key in load.there[name]}
    adjustment.ranked = {key for key, job in there.items() if round_.cpu(job)}
    adjustment.lent = [job for job in adjustment.lent if job.key not in adjustment.ranked]


def grow_unplanned(adjustment: Adjustment) -> None:
    """The step `grow` of kips, for jobs that `restore` has not changed."""
    round_ = adjustment.round
    adjustment.short = [
        job for job in adjustment.short if not speed_known(job) and round_.placement(job) == job.placement
    ]
    grow(adjustment)


BEFORE = (count_as_free, relieve, guarantee)
WAITING = (return_to_faster_size, admit, take_ordered)
CPU = (leave_ranked, keep_for_leaving, give_back_used, raise_busy, restore, grow_unplanned, boot, give_back_idle, grant)


class ElasticProfileParameters(ElasticSettings):
    """The rules of `deadline`, `kips`, `specon` and `aryl` together: deadlines first, then the jobs that gain most."""

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
            if (teams := resizing.teams) is None:
                resizing.donors.planned = plan(resizing.round, settings=planning)
                return
            shares = teams.entitled()
            for team in planned_teams(resizing.round, teams):
                plan_team(resizing, teams, team, shares[team], planning)

        def plan_rest(resizing: Resizing) -> None:
            """Let teams use what others leave."""
            if (teams := resizing.teams) is not None and not resizing.blocked:
                for team in planned_teams(resizing.round, teams):
                    plan_team(resizing, teams, team, teams.rules.terms(team).limit, planning)

        def adjusting(step: Callable[[Resizing], None]) -> Step:
            return sharing(step, ("elastic", self), lambda round_: Resizing(round_, lending))

        steps: tuple[Step, ...] = (
            *map(adjusting, BEFORE),
            adjusting(plan_sizes),
            *map(adjusting, (*WAITING, raise_to_share, plan_rest) if self.teams is not None else WAITING),
            Balance(crowded.moves, crowded.times, crowded.move_s, crowded.idle),
            Weights(crowded),
            *map(adjusting, CPU),
        )
        inputs = needs("deadline", "speed", "duration", "service", "use", "history")
        done = needs("stop", "move", "cpu")
        order = EarliestDeadlineToCome(self.settle_s)
        return Stages(order, steps, inputs | done, drifts=True, shares_cpu=self.share_cpu)

    def profile(self, name: str) -> Profile:
        # As for the profile deadline, the steps themselves check the minimum gain.
        rules = None if self.teams is None else self.teams.rules
        begin = None if rules is None else lambda round_: begin_teams(round_, rules)
        return replace(super().profile(name), min_gain=0.0, begin=begin)
