"""kips: idle capacity is lent to jobs that use all of their own, and is taken back when other jobs need it.

After Jeong and Yu (KIPS KTCCS 11(7), 2022), whose text is not public, and DRAGON (CLOSER'19), the closest published
method."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from heapq import heapify, heappop
from itertools import takewhile
from operator import itemgetter
from typing import Final

from pydantic import Field, model_validator

from elastic_tfjob.api.reading import MAX_ENTRIES
from elastic_tfjob.scheduling.core import SHARE_CPU, CostParameters, Seconds, Stages, needs
from elastic_tfjob.scheduling.forecasts import prediction_of
from elastic_tfjob.scheduling.orders import Fifo
from elastic_tfjob.scheduling.places import PlaceName
from elastic_tfjob.scheduling.plan import BEHIND, Cause
from elastic_tfjob.scheduling.reasons import Fact, Reason
from elastic_tfjob.scheduling.resources import NOTHING, Resources, total_of
from elastic_tfjob.scheduling.room import lacking
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.shared_cpu import slowest_usable
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Counts, Job, JobSpec, Node, Placement, Snapshot, counts_of
from elastic_tfjob.scheduling.steps.cpu_in_place import (
    CpuInPlace,
    CpuRule,
    boot,
    count_as_free,
    give_back_idle,
    give_back_used,
    grant,
    keep_for_leaving,
    raise_busy,
)
from elastic_tfjob.scheduling.steps.declared_size import lacks
from elastic_tfjob.scheduling.steps.preemption import Preemption
from elastic_tfjob.scheduling.steps.repair import repair_reason, sharing
from elastic_tfjob.scheduling.steps.sizes import Downward, largest, movable
from elastic_tfjob.scheduling.steps.teams import teams_of
from elastic_tfjob.speed.history import ALIKE, Conditions, Size
from elastic_tfjob.speed.optimus import OnlineSpeed
from elastic_tfjob.speed.prediction import size_of

__all__ = ["KipsParameters", "growth_backoff_over", "return_to_faster_size"]

# -- The parameters of kips --------------------------------------------------------------------------------------------


class KipsSettings(CostParameters):
    """The parameters; see KipsParameters."""

    place: PlaceName = Field("pack", description="rule that places replicas on nodes; count: totals only")
    interval_s: Seconds = Field(15.0, description="most seconds between two rounds; 0: a round only after a change")
    cooldown_s: Seconds = Field(30.0, description="least seconds between two resizes of one job")
    min_gain: float = Field(0.1, ge=0, lt=1, description="least relative gain in speed for which a running job grows")
    sample_points: int = Field(
        0, ge=0, le=MAX_ENTRIES, description="sizes measured before a job starts (simulation without oracle)"
    )
    busy: float = Field(0.8, gt=0, le=1, description="ratio of used to held CPU from which replicas lack CPU")
    idle: float = Field(0.3, ge=0, lt=1, description="ratio of used to held CPU below which replicas leave CPU idle")
    patience_s: Seconds = Field(
        30.0,
        description="seconds of waiting after which a job may shrink other jobs to their minimum, not only to their "
        "declared size",
    )
    cpu_growth: float = Field(4.0, ge=1, description="largest factor by which a replica's CPU is raised at once")
    min_idle: float = Field(0.05, ge=0, le=1, description="least idle part of a node's CPU that is lent")
    share_cpu: bool = Field(True, description=SHARE_CPU)
    min_efficiency: float = Field(
        0.2,
        ge=0,
        le=1,
        description="least speed gain of one more replica, relative to a gain in proportion to replicas",
    )

    @property
    def cpu_rule(self) -> CpuRule:
        """The rule by which idle CPU is lent."""
        return CpuRule(self.busy, self.idle, self.cpu_growth, self.min_idle)

    @model_validator(mode="after")
    def apart(self) -> "KipsSettings":
        if self.idle >= self.busy:
            raise ValueError(f"idle, {self.idle:g}, must be below busy, {self.busy:g}")
        return self


# -- Donors: jobs that give replicas -----------------------------------------------------------------------------------

IDLE, SURPLUS, NEEDED = range(3)
"""Kinds of donors, in the order in which they give: jobs with idle workers; with more replicas than declared; with more
replicas than the minimum."""


class IdleFirst:
    """The order of donors: jobs with idle workers, then jobs with more replicas than declared. Jobs that need their
    replicas give only if `needed`."""

    def __init__(self, round_: Round, settings: KipsSettings) -> None:
        self._round = round_
        self._settings = settings
        self._costs = settings.costs

    def gives(self, donor: Job, needed: bool) -> bool:
        held = self._round.placement(donor)
        if not donor.spec.elastic or not held:
            return False
        floor = self.floor(donor, needed)
        for type_, names in held.items():
            if len(names) > floor.get(type_, 0):
                break
        else:
            return False
        if not donor.placement:
            return True
        grew = any(len(names) > len(donor.placement.get(t, ())) for t, names in held.items())
        return not grew and movable(donor, self._round) and self._costs.worth(donor, 0.0, self._round.now)

    def floor(self, donor: Job, needed: bool) -> Counts:
        return donor.spec.minimum if needed or self._idles(donor) else donor.spec.declared

    def rank(self, donor: Job) -> tuple[float, ...]:
        """The sort key of a donor: its kind; then jobs whose last worker is not on the node of its PS; then jobs with
        most workers."""
        held = self._round.placement(donor)
        workers, declared = held.get(WORKER, ()), donor.spec.declared.get(WORKER, 0)
        kind = IDLE if self._idles(donor) else SURPLUS if len(workers) > declared else NEEDED
        beside_ps = bool(workers) and workers[-1] in held.get(PS, ())
        least = max(1, donor.spec.minimum.get(WORKER, 0))
        return (kind, beside_ps, -len(workers) / least, -donor.spec.arrival_s, -donor.spec.sequence)

    def facts(self, donor: Job) -> Mapping[str, float]:
        """The ratio of CPU used to CPU held by the workers of a donor with idle workers."""
        return {"idle": donor.cpu_use[WORKER]} if self._idles(donor) else {}

    def serves(self, donor: Job, fewer: Counts, job: Job) -> bool:
        return donor.spec.priority <= job.spec.priority

    def _idles(self, job: Job) -> bool:
        """Whether the job's workers leave CPU idle. Before the first step they wait for their chief, which does not
        count."""
        return job.steps_per_s > 0 and job.cpu_use.get(WORKER, 1.0) < self._settings.idle


# -- The shared state of the steps of one round ------------------------------------------------------------------------


class Adjustment(CpuInPlace):
    """The shared state of one round. `blocked`: the first waiting job that cannot start now, but could on an empty
    cluster."""

    def __init__(self, round_: Round, settings: KipsSettings, donors: IdleFirst | None = None) -> None:
        super().__init__(round_, settings.cpu_rule)
        self.settings = settings
        self.costs = settings.costs
        self.preemption = Preemption(round_, donors or IdleFirst(round_, settings))
        self.blocked = ""
        self.teams = teams_of(round_)

    def worth(self, job: Job, saved: float, counts: Counts) -> bool:
        """Whether a change to `counts` costs less than the fraction `saved` of the job's remaining time."""
        return self.costs.worth(job, saved, self.round.now, counts)


# -- Capacity for sizes that running jobs must have, and for waiting jobs ----------------------------------------------

AS_DECLARED, GIVEN_ROOM, LEAVES_NODE = Reason("as-declared"), Reason("given-room"), Reason("leaves-node")


def relieve(adjustment: Adjustment) -> None:
    """Shrink jobs on overcommitted nodes. A node is overcommitted if another job relied on a shrink that was
    refused."""
    round_ = adjustment.round
    room = round_.room
    over = {node.name: i for i, node in enumerate(room.nodes) if room.cpu_millicores[i] < 0 or room.memory_bytes[i] < 0}
    if not over:
        return
    for job in round_.rescaling():  # its replicas may be about to leave
        for names in job.placement.values():
            for name in names:
                over.pop(name, None)
    # For each node the jobs whose last worker is there, with their ranks in the order.
    last: dict[str, list[tuple[int, Job]]] = {}
    for place, job in enumerate(round_.running_in_order()):
        if (name := _last_node(job, round_)) in over:
            last.setdefault(name, []).append((place, job))
    for name, i in over.items():
        for place, job in sorted(last.get(name, ()), key=itemgetter(0)):
            while (short := Resources(-room.cpu_millicores[i], -room.memory_bytes[i]).positive()) != NOTHING:
                held = round_.placement(job)
                # The first resize also returns lent CPU, so less may be short afterwards.
                n = min(_last_there(job, held, name), 1 if round_.cpu(job) else _needed(job, short))
                if not n or not movable(job, round_):
                    break
                fewer = {**counts_of(held), WORKER: len(held[WORKER]) - n}
                round_.resize(job, fewer, Reason("node-full", {"node": name}))
            if (then := _last_node(job, round_)) in over and then != name:
                last.setdefault(then, []).append((place, job))


def _last_node(job: Job, round_: Round) -> str:
    """The node of the job's last worker; empty without workers."""
    return round_.placement(job).get(WORKER, ("",))[-1]


def _last_there(job: Job, held: Placement, name: str) -> int:
    """The number of the job's last workers that are on this node and may be removed."""
    if not job.spec.elastic:
        return 0
    flexible = held.get(WORKER, ())[job.spec.minimum.get(WORKER, 0) :]
    return sum(1 for _ in takewhile(name.__eq__, reversed(flexible)))


def _needed(job: Job, short: Resources) -> int:
    """The number of the job's workers whose requests cover the shortage; 0 if they request none of these resources."""
    group = job.spec.group(WORKER)
    parts = zip(short, group.request, strict=True) if group is not None else ()
    return max((-(-part // each) for part, each in parts if each), default=0)


def guarantee(adjustment: Adjustment) -> None:
    """Make room for sizes that running jobs must have and for which `repair` found no room: CPU that was lent counts as
    free now, and other jobs give replicas where that is not enough."""
    round_ = adjustment.round
    for key, counts in round_.unmet.items():
        job = round_.job(key)
        why, cause = repair_reason(job, round_.snapshot.nodes)

        def attempt(job: Job = job, counts: Counts = counts, why: Reason = why, cause: Cause = cause) -> bool:
            return round_.set_size(job, counts, why, cause)

        if attempt():
            continue
        adjustment.preemption.take(
            job,
            lacking(job.placement, counts) or counts,
            Reason("makes-room", {"job": job.key, "by": job.spec.asked}),
            attempt,
            needed=True,
        )


def admit(adjustment: Adjustment) -> None:
    """Start waiting jobs in order: at the declared size if it fits, else at the largest smaller size; if not even the
    minimum fits, with room taken from other jobs."""
    round_ = adjustment.round
    queue = round_.waiting()
    if adjustment.teams is not None:
        waiting = [(entry, round_.job(entry[4])) for entry in queue]
        adjustment.teams.in_share_order(waiting, lambda job, within: _admit(adjustment, job, within))
        return
    for entry in queue:
        if not _admit(adjustment, round_.job(entry[4])):
            queue.drop()


def _admit(adjustment: Adjustment, job: Job, within: bool = False) -> bool:
    """Start a waiting job. False: no job that needs the same nodes can start. `within`: its team must have at most what
    it deserves then, and may take that from other teams."""
    round_ = adjustment.round
    if round_.placement(job):
        return True  # an earlier step of this round has started it
    if not job.placement and round_.in_cooldown(
        job
    ):  # a job that still holds resources was stopped in this round and continues
        round_.refuse(job, BEHIND)
        return True
    if within:
        return _start_within_share(adjustment, job)
    if _start(adjustment, job):
        return True
    of_team = None if round_.quota is None else round_.quota.refusal(job)
    round_.refuse(job, of_team or lacks(job, round_))
    limited = of_team is not None and of_team.code == "team-limit"
    if not adjustment.blocked and not limited and ever_fits(round_, job.spec):
        adjustment.blocked = job.key
    return False


def _why(round_: Round, job: Job, counts: Counts, declared: Counts) -> Reason:
    """Why a job starts with this size, one of Downward."""
    if counts == declared:
        return AS_DECLARED
    if round_.quota is not None:
        larger = Downward(job, declared)[max(n - counts.get(type_, 0) for type_, n in declared.items()) - 1]
        if (limit := round_.quota.limits(job, larger)) is not None:
            return limit
    return Reason("less-room", {"declared": declared})


def _start_within_share(adjustment: Adjustment, job: Job) -> bool:
    teams, declared = adjustment.teams, job.spec.declared
    if teams is None or job.placement:
        return False

    def start(counts: Counts) -> bool:
        return adjustment.round.start(job, counts, _why(adjustment.round, job, counts, declared))

    if not teams.give(job, start):
        return False
    adjustment.preemption.started(job)
    teams.started(job)
    return True


def take_ordered_room(adjustment: Adjustment, grows: Callable[[Job], bool] = lambda job: True) -> None:
    """Give running jobs below their declared size that size from free capacity, where they order nodes for it.
    Otherwise a job whose growth is not known to pay would order nodes, and leave them empty. `grows`: jobs that may."""
    round_ = adjustment.round
    if round_.snapshot.cluster_rules.orders is None or adjustment.blocked:
        return
    for job in round_.running_in_order():
        counts = {type_: max(n, job.spec.declared.get(type_, 0)) for type_, n in job.counts.items()}
        if counts == job.counts or round_.placement(job) != job.placement or not grows(job):
            continue
        if not growth_backoff_over(job, round_):
            round_.content.add(job.key)
        elif movable(job, round_):
            round_.resize(job, counts, AS_DECLARED)


def _start(adjustment: Adjustment, job: Job) -> bool:
    round_, preemption = adjustment.round, adjustment.preemption
    left = bool(job.placement)  # a node, in this round
    declared = job.counts if left else job.spec.declared

    def start(counts: Counts) -> bool:
        return round_.start(job, counts, LEAVES_NODE if left else _why(round_, job, counts, declared))

    if not nowhere(round_, job.spec) and largest(round_, job, Downward(job, declared), start) >= 0:
        preemption.started(job)
        return True
    least = job.spec.minimum
    waited = 0.0 if left else round_.now - max(job.spec.arrival_s, job.since_s)
    impatient = left or waited >= adjustment.settings.patience_s
    if preemption.in_vain(job.spec, needed=impatient):
        return False
    if preemption.take(
        job,
        least,
        Reason("makes-room", {"job": job.key, "waits_s": waited}),
        lambda: round_.start(job, least, LEAVES_NODE if left else GIVEN_ROOM),
        needed=impatient,
    ):
        return True
    preemption.failed(job.spec, needed=impatient)
    return False


def nowhere(round_: Round, spec: JobSpec) -> bool:
    """Whether no node has room for one replica of a type that the job must have, as far as this is known without a
    search."""
    least = spec.minimum
    return any(least[group.type] and round_.room.none_holds(group.request) for group in spec.groups)


def ever_fits(round_: Round, spec: JobSpec) -> bool:
    """Whether the job's minimum fits the totals of the nodes where it may run."""
    room = round_.room
    allowed = room.allowed(spec)
    total = total_of(room.usable if allowed is None else (room.usable[i] for i in allowed))
    return spec.demand(spec.minimum).within(total)


# -- Growth backoff: the return from sizes that were slower, and the wait before a job grows again ---------------------

WAIT: Final = "kips.wait_s"
"""Name in a job's memory: the wait before it may grow again, in seconds."""
UNTIL: Final = "kips.until_s"
"""Name in a job's memory: the time until which it may not grow."""
FIRST_WAIT_S: Final = 30.0
"""Half of the first wait in seconds, if there is no cooldown."""
LONGEST_WAIT_S: Final = 3600.0
FASTER: Final = 0.05
"""The relative speed by which a smaller size must be faster. Less is noise: speeds are stored with two digits."""


class Slower:
    """An index of the running jobs that were faster at a smaller size: the speed there, and that size."""

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


def slower_index(snapshot: Snapshot) -> Slower:
    return Slower(snapshot.jobs.values())


def return_to_faster_size(adjustment: Adjustment) -> None:
    """Shrink jobs that were faster at a smaller size, if their workers hold as much CPU as there. The wait before a job
    may grow again doubles each time: changing speeds, as with lent CPU, would let it grow and shrink forever."""
    round_ = adjustment.round
    slower: Slower = round_.snapshot.index("slower", slower_index)
    for key, (rate, (ps, workers)) in list(slower.faster.items()):
        job = round_.job(key)
        # Until the job has trained at its present size, its speed there is only expected.
        if not movable(job, round_) or round_.placement(job) != job.placement or job.observed_s > round_.now:
            continue
        size = _sized(job, ps, workers)
        if not adjustment.worth(job, 1 - job.steps_per_s / rate, size):
            continue
        if round_.resize(job, size, Reason("slower", {"there": rate, "here": job.steps_per_s})):
            last_s = max(FIRST_WAIT_S, round_.rules.cooldown_s, round_.memory(job).get(WAIT, 0.0))
            wait_s = min(2 * last_s, LONGEST_WAIT_S)
            round_.remember(job, WAIT, wait_s)
            round_.remember(job, UNTIL, round_.now + wait_s)


def growth_backoff_over(job: Job, round_: Round) -> bool:
    """Whether the job may grow again. The end of the backoff is bounded, since a tenant may write the job's memory."""
    return not round_.now < round_.memory(job).get(UNTIL, 0.0) <= round_.now + LONGEST_WAIT_S


def _sized(job: Job, ps: int, workers: int) -> Counts:
    return {t: ps if t == PS else workers if t == WORKER else n for t, n in job.counts.items()}


def _faster(job: Job) -> tuple[float, Size] | None:
    """The fastest smaller size that was measured, if it is faster than the present one."""
    if not (job.placement and job.spec.elastic and isinstance(job.speed, OnlineSpeed) and job.steps_per_s > 0):
        return None
    now, known, found = size_of(job.counts), prediction_of(job), None
    for seen in job.speed.measured:
        counts = _sized(job, *seen)
        if seen == now or seen[0] > now[0] or seen[1] > now[1] or job.spec.within_bounds(counts) != counts:
            continue
        # A smaller size may keep all CPU of the present one, but a speed that was measured with more is out of reach.
        then, most = job.speed.conditions.get(seen, Conditions()).worker_millicores, known.usable.get(WORKER, 0.0)
        if then * seen[1] > most * now[1] / ALIKE:
            continue
        there = known.at(counts, {**known.usable, WORKER: then} if then else None)
        if there is not None and there.steps_per_s >= job.steps_per_s * (1 + FASTER):
            found = max(found or (0.0, seen), (there.steps_per_s, seen))
    return found


# -- Growth: replicas for jobs that use all of their CPU ---------------------------------------------------------------

PROBE: Final = 0.5
RISK: Final = 0.84
"""A size is tried if its speed gains enough so many standard deviations (PROBE) above the expected one, and is no
slower than the present size so many (RISK) below it. A trial ends the uncertainty: a size that was slower is not
expected to be faster again. Chosen on seeds 1 to 4 of the common mix, together with `min_efficiency`."""
MOST_TIMES: Final = 2
"""A job has at most so many times its replicas of a type after one round, so that a trial shows enough to decide about
the next step, and costs little if it fails."""

Factor = Callable[[Counts], float]

Unit = tuple[float, str, str, Counts, float]
"""Minus the gain; the job; the type of the additional replica; the size with it; and the relative speed there."""


def grow(adjustment: Adjustment) -> None:
    """Give one worker or PS at a time to the job with the largest gain per cost, while capacity is free and no job
    waits for it."""
    if adjustment.blocked:
        return
    round_ = adjustment.round
    idle: dict[str, int] = {}
    units: list[Unit] = []
    speeds: dict[str, Factor] = {}
    for job in adjustment.short:
        if job.spec.elastic and movable(job, round_) and growth_backoff_over(job, round_):
            speeds[job.key] = growth(adjustment, job)
            units += _units(adjustment, job, job.counts, 1.0, speeds[job.key])
    heapify(units)
    grown: dict[str, tuple[Counts, float]] = {}
    full: set[Hashable] = set()
    while units:
        _, key, type_, counts, factor = heappop(units)
        job, speed = round_.job(key), speeds[key]
        kind = (job.spec.group(type_), job.spec.constraints, job.spec.constraints_by_type)
        if kind in full:
            continue
        if key not in idle:
            idle[key] = round_.room.free_cpu_for(job.spec)
        facts: dict[str, Fact] = {"use": _use(job, counts), "idle_millicores": idle[key], "gain": factor - 1}
        if not round_.resize(job, counts, Reason("busy", facts)):
            full.add(kind)
            continue
        grown[key] = counts, factor
        units = [unit for unit in units if unit[1] != key]  # units of its other types started from the old size
        units += _units(adjustment, job, counts, factor, speed)
        heapify(units)
    for key, (counts, factor) in grown.items():
        job = round_.job(key)
        if factor < 1 + adjustment.settings.min_gain or not adjustment.worth(job, 1 - 1 / factor, counts):
            round_.assign(job, job.placement, Reason("keeps"))


def _units(adjustment: Adjustment, job: Job, held: Counts, factor: float, speed: Factor) -> list[Unit]:
    units: list[Unit] = []
    for type_ in (WORKER, PS):
        group, n = job.spec.group(type_), held.get(type_, 0)
        if group is None or not n or n >= min(group.maximum, MOST_TIMES * job.counts[type_]):
            continue
        counts = {**held, type_: n + 1}
        then = speed(counts)
        gain = then / factor - 1
        if gain * n < adjustment.settings.min_efficiency or not adjustment.worth(job, 1.0, counts):
            continue
        share = group.request.dominant_share(adjustment.round.room.total)
        units.append((-gain / share if share else -gain, job.key, type_, counts, then))
    return units


def growth(adjustment: Adjustment, job: Job) -> Factor:
    """The speed at other sizes over the present one, with the CPU that this round grants the job: that of a trial, or 1
    where a trial is a risk."""
    grants, snapshot = adjustment.grants, adjustment.round.snapshot
    granted = {t: tuple(grants.held(job, t, k) for k in range(len(names))) for t, names in job.placement.items()}
    # The use by which the job counts as busy: of what it requested, if its program cannot use more.
    known = replace(prediction_of(job, snapshot.past(job.spec), snapshot.nodes), use=adjustment.busy[job.key])
    now = slowest_usable(job.spec.groups, job.placement, granted, shared=job.cpu_shared)
    seen = job.speed.conditions if isinstance(job.speed, OnlineSpeed) else {}

    def factor(counts: Counts) -> float:
        # Added replicas may get less CPU than present ones have. What they got the last time is what they will get.
        before = seen.get(size_of(counts))
        then = now if before is None or not before.worker_millicores else {**now, WORKER: before.worker_millicores}
        gain = known.gain(counts, then, now)
        return gain.at(PROBE) if gain.at(-RISK) >= 1 else 1.0

    return factor


def _use(job: Job, counts: Counts) -> dict[str, float]:
    """The ratio of CPU used to CPU held, for the types that grow."""
    grows = (type_ for type_ in (WORKER, PS) if counts.get(type_, 0) > len(job.placement.get(type_, ())))
    return {type_: job.cpu_use[type_] for type_ in grows if type_ in job.cpu_use}


STEPS = (
    count_as_free,
    relieve,
    guarantee,
    return_to_faster_size,
    admit,
    take_ordered_room,
    keep_for_leaving,
    give_back_used,
    raise_busy,
    grow,
    boot,
    give_back_idle,
    grant,
)
"""The steps of the profile, in this order."""


class KipsParameters(KipsSettings):
    """PS/worker affinity and dynamic adjustment (Jeong and Yu, 2022): busy replicas get idle CPU."""

    def stages(self) -> Stages:
        steps = tuple(sharing(step, ("kips", self), lambda round_: Adjustment(round_, self)) for step in STEPS)
        inputs = needs("cpu", "use", "speed", "duration", "service", "history")
        return Stages(Fifo(), steps, inputs, drifts=True, shares_cpu=self.share_cpu)
