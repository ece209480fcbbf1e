"""CPU in place: idle CPU of nodes, lent to replicas there beyond their requests. Loans of nodes are in `lend`.

The steps of one round share a CpuInPlace. They run in this order: `count_as_free`, `keep_for_leaving`,
`give_back_used`, `raise_busy`, `boot`, `give_back_idle`, `grant`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import NamedTuple

from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.shared_cpu import use_in_turn
from elastic_tfjob.scheduling.snapshot import EVALUATOR, UNPLACED, Cpu, Job, Node, Snapshot, counts_of
from elastic_tfjob.scheduling.steps.repair import repair_candidates

__all__ = [
    "BusyJobs",
    "CpuInPlace",
    "CpuRule",
    "Use",
    "adjustable",
    "adjusts",
    "boot",
    "busy_index",
    "count_as_free",
    "give_back_idle",
    "give_back_used",
    "grant",
    "keep_for_leaving",
    "millicores",
    "raise_busy",
]


class Claim(NamedTuple):
    """A replica that can use up to `want_millicores` on its node."""

    job: Job
    type: str
    replica: int
    want_millicores: int


@dataclass(frozen=True, slots=True)
class CpuRule:
    """`busy`: CPU used / held from which replicas lack CPU; `idle`: below which they leave CPU idle. `cpu_growth`: the
    most that a replica's CPU is raised at once, times what it holds. `min_idle`: idle CPU is lent from this part of a
    node's CPU on."""

    busy: float = 0.8
    idle: float = 0.3
    cpu_growth: float = 4.0
    min_idle: float = 0.05


class CpuInPlace:
    """What the steps of one round share. `lent`: running jobs that held more CPU than they request when the round
    began. `short`: busy jobs that got less CPU than they can use. `ranked`: keys of jobs that get their CPU by another
    rule, and none here."""

    def __init__(self, round_: Round, rule: CpuRule) -> None:
        self.round = round_
        self.rule = rule
        self.grants = Grants(round_)
        snapshot = round_.snapshot
        seen = snapshot.index(("busy", rule.busy), busy_index(rule.busy))
        self.busy, self.silent = seen.uses, seen.silent
        jobs = map(round_.job, snapshot.index("repair candidates", repair_candidates).lent)
        self.lent = [job for job in jobs if job.phase == "running" and round_.placement(job)]
        self.short: list[Job] = []
        self.ranked: set[str] = set()

    def resized(self) -> list[Job]:
        """Jobs that this round starts or resizes."""
        jobs = self.round.snapshot.jobs
        return [
            job
            for key, target in self.round.changes.items()
            if not (job := jobs[key]).placement or counts_of(target.nodes) != job.counts
        ]


def count_as_free(lending: CpuInPlace) -> None:
    """Count CPU beyond requests as free: it was only lent."""
    round_ = lending.round
    for job in lending.lent:
        if round_.cpu(job):
            round_.assign(job, round_.placement(job), Reason("cpu-as-requested"))


def keep_for_leaving(lending: CpuInPlace) -> None:
    """Leaving replicas hold the CPU that they request until new ones run, so that CPU is not lent yet. Without new
    replicas it need not be kept: those that stay get more CPU only once the new size runs."""
    round_ = lending.round
    room = round_.room
    for job in lending.resized():
        now = round_.placement(job)
        if all(len(names) <= len(job.placement.get(type_, ())) for type_, names in now.items()):
            continue
        for type_, names in job.placement.items():
            for name in names[len(now.get(type_, ())) :]:
                i = room.index.get(name)
                if i is not None:
                    room.take_cpu(i, min(room.cpu_millicores[i], job.spec.requested_cpu(type_)))


def give_back_used(lending: CpuInPlace) -> None:
    """Give replicas the CPU that they had, without what they leave idle."""
    lending.grants.water_fill(claim for job in lending.lent for claim in _had(lending, job, trim=True))


def raise_busy(lending: CpuInPlace) -> None:
    """Give more CPU to replicas that use all of theirs."""
    round_, grants = lending.round, lending.grants
    claims = {job.key: list(_wants_more(lending, job)) for job in adjustable(lending)}
    grants.water_fill((claim for each in claims.values() for claim in each), lending.rule.min_idle)
    lending.short = [
        round_.job(key)
        for key, each in claims.items()
        if not each or any(grants.held(c.job, c.type, c.replica) < c.want_millicores for c in each)
    ]


def boot(lending: CpuInPlace) -> None:
    """Give idle CPU of their nodes to replicas that start, equally: starting a program is limited by CPU."""
    resized = lending.resized()
    for job in resized:
        lending.grants.withdraw(job)
    lending.grants.water_fill(_starting(lending, resized), lending.rule.min_idle)


def give_back_idle(lending: CpuInPlace) -> None:
    """Give CPU that is still idle to the replicas that had it."""
    lending.grants.water_fill(claim for job in lending.lent for claim in _had(lending, job, trim=False))


def grant(lending: CpuInPlace) -> None:
    """Write all lent CPU into the plan."""
    for job in {job.key: job for job in (*lending.lent, *lending.grants.jobs.values())}.values():
        cpu = lending.grants.cpu(job)
        lending.round.grant(job, cpu, _reason(lending, job, cpu))


def millicores(amount: float) -> int:
    """Whole millicores; 0 where the amount is not finite."""
    return int(amount) if isfinite(amount) else 0


def adjusts(lending: CpuInPlace, job: Job) -> bool:
    """Whether the CPU of the job's replicas may change, and this round has not changed the job."""
    stays = lending.round.placement(job) == job.placement
    return job.phase == "running" and job.spec.resizable and stays and job.key not in lending.ranked


def adjustable(lending: CpuInPlace) -> Iterator[Job]:
    """Busy jobs that this round has not changed."""
    return (job for key in lending.busy if adjusts(lending, job := lending.round.job(key)))


def _had(lending: CpuInPlace, job: Job, *, trim: bool) -> Iterator[Claim]:
    """The CPU that the job's replicas held, where they stay; with `trim` without what they leave idle."""
    rule, placement = lending.rule, lending.round.placement(job)
    # Where a job shares its CPU, one type uses what another leaves idle.
    shared = sum(use_in_turn(job).values()) if job.cpu_shared and job.cpu_use else None
    for type_, each in job.cpu.items():
        group, use = job.spec.group(type_), job.cpu_use.get(type_) if shared is None else shared
        now, before = placement.get(type_, ()), job.placement.get(type_, ())
        if group is None:
            continue
        for k, held in enumerate(each[: len(now)]):
            if now[k] == before[k]:
                want = held
                if trim and use is not None and use < rule.idle:
                    used = millicores(held * use / ((rule.idle + rule.busy) / 2))
                    want = max(group.request.cpu_millicores, used)
                yield Claim(job, type_, k, min(want, held))


def _wants_more(lending: CpuInPlace, job: Job) -> Iterator[Claim]:
    """The claims of a busy job for more CPU. Types at their limit may use several times what they hold. If no type is
    at its limit, types take turns: a step is then shortest if the CPU of each type is proportional to the square root
    of its work, and the busiest type may use several times its request."""
    rule = lending.rule
    if job.spec.fixed_cpu:
        return
    uses = use_in_turn(job)
    limits = [type_ for type_, use in uses.items() if use >= rule.busy]
    for type_ in limits:
        for k in range(len(job.placement.get(type_, ()))):
            yield Claim(job, type_, k, millicores(lending.grants.held(job, type_, k) * rule.cpu_growth))
    if limits or sum(uses.values()) < rule.busy:
        return
    replicas = {type_: n for type_, n in job.counts.items() if n and type_ in job.cpu_use}
    work = {type_: job.cpu_use[type_] * job.held_cpu(type_) / n for type_, n in replicas.items()}
    most = max(work.values(), default=0.0) or 1.0  # replicas without CPU of their own have no work
    for type_, n in replicas.items():
        part = work[type_] / most
        root = sqrt(part) if part > 0 else 0.0
        want = millicores(job.spec.requested_cpu(type_) * rule.cpu_growth * root)
        for k in range(n):
            yield Claim(job, type_, k, want)


def _starting(lending: CpuInPlace, resized: Iterable[Job]) -> Iterator[Claim]:
    """The claims of jobs that start, change their size or have not made a step yet: importing and tracing use all
    available CPU. Jobs that hold CPU by another rule keep that CPU."""
    round_ = lending.round
    silent = [round_.job(key) for key in lending.silent if key not in lending.ranked]
    for job in {job.key: job for job in (*resized, *silent)}.values():
        if not job.spec.resizable or job.spec.fixed_cpu or job.phase == "rescaling":
            continue
        for type_, names in round_.placement(job).items():
            want = millicores(job.spec.requested_cpu(type_) * lending.rule.cpu_growth)
            for k in range(len(names)):
                yield Claim(job, type_, k, want)


def _reason(lending: CpuInPlace, job: Job, cpu: Cpu) -> Reason:
    had: dict[str, int] = {}
    has: dict[str, int] = {}
    for type_, names in lending.round.placement(job).items():
        asked = (job.spec.requested_cpu(type_),) * len(names)
        before, after = sum(job.cpu.get(type_, asked)), sum(cpu.get(type_, asked))
        if before != after:
            had[type_], has[type_] = before, after
    return Reason("cpu", {"had": had, "has": has, "use": {t: use for t, use in job.cpu_use.items() if t in has}})


# -- Grants: what replicas hold beyond their requests while a round decides --------------------------------------------


class Grants:
    """What replicas hold beyond their requests while a round decides. It is taken from the Round's FreeCapacity at
    once.

    CPU goes where it gains most. At equal use the replica with the least CPU gains most from the next millicore, so the
    lowest replicas of a node are raised together (water filling).
    """

    def __init__(self, round_: Round) -> None:
        self._round = round_
        self._extra: dict[tuple[str, str, int], int] = {}
        self.jobs: dict[str, Job] = {}

    def held(self, job: Job, type_: str, index: int) -> int:
        group = job.spec.group(type_)
        assert group is not None
        return group.request.cpu_millicores + self._extra.get((job.key, type_, index), 0)

    def water_fill(self, claims: Iterable[Claim], least: float = 0.0) -> None:
        """Fill the claims from idle CPU of their nodes, where at least the part `least` of the node's CPU is idle."""
        room, per_node = self._round.room, dict[int, list[Claim]]()
        job, placement = None, UNPLACED
        for claim in claims:
            if claim.job is not job:  # claims of one job are adjacent
                job, placement = claim.job, self._round.placement(claim.job)
            names = placement.get(claim.type, ())
            at = room.index.get(names[claim.replica]) if claim.replica < len(names) else None
            if at is not None and room.cpu_millicores[at] > 0:
                per_node.setdefault(at, []).append(claim)
        for at, there in per_node.items():
            if room.cpu_millicores[at] < least * room.usable[at].cpu_millicores:
                continue
            held = [self.held(c.job, c.type, c.replica) for c in there]
            level = water_fill(room.cpu_millicores[at], held, [c.want_millicores for c in there])
            room.take_cpu(at, sum(level) - sum(held))
            for claim, before, after in zip(there, held, level, strict=True):
                if after > before:
                    key = (claim.job.key, claim.type, claim.replica)
                    self._extra[key] = self._extra.get(key, 0) + after - before
                    self.jobs[claim.job.key] = claim.job

    def withdraw(self, job: Job) -> None:
        """Take back all CPU that is lent to a job whose first replicas stay where they are."""
        if self.jobs.pop(job.key, None) is None:
            return
        placement, room = self._round.placement(job), self._round.room
        for type_, names in placement.items():
            for k, name in enumerate(names):
                extra = self._extra.pop((job.key, type_, k), 0)
                if extra:
                    room.take_cpu(room.index[name], -extra)

    def cpu(self, job: Job) -> Cpu:
        """The CPU of the job's replicas, for types of which any has more than it requests."""
        result = {}
        for type_, names in self._round.placement(job).items():
            each = tuple(self.held(job, type_, k) for k in range(len(names)))
            if any((job.key, type_, k) in self._extra for k in range(len(names))):
                result[type_] = each
        return result


def water_fill(idle_millicores: int, held: Sequence[int], want: Sequence[int]) -> list[int]:
    """What each holds after `idle_millicores` is distributed: those with the least are raised first, none above its
    want; none gets less than before."""
    if sum(max(0, w - h) for h, w in zip(held, want, strict=True)) <= idle_millicores:
        return [max(h, w) for h, w in zip(held, want, strict=True)]
    low, high = 0, max(want)
    while high - low > 1:  # the highest level for which `idle` suffices
        level = (low + high) // 2
        poured = sum(max(0, min(w, level) - h) for h, w in zip(held, want, strict=True))
        low, high = (level, high) if poured <= idle_millicores else (low, level)
    return [max(h, min(w, low)) for h, w in zip(held, want, strict=True)]


# -- Busy jobs: those that are limited by the CPU of their replicas ----------------------------------------------------

Use = Mapping[str, float]
"""By replica type, CPU used / held."""


class BusyJobs:
    """An index of the running jobs that are limited by the CPU of their replicas, with the use of each type.

    A job is limited if its types together use nearly all their CPU (types that take turns share the time), or nearly
    all that they requested: lent or shared CPU may be more than the program can use."""

    def __init__(self, busy: float, jobs: Iterable[Job]) -> None:
        self.busy = busy
        self.uses: dict[str, Use] = {}
        self.silent: dict[str, None] = {}
        """Running jobs before their first step."""
        for job in jobs:
            self.change(None, job, 0.0)

    def change(self, before: Job | None, after: Job | None, now: float) -> None:
        if before is not None:
            self.uses.pop(before.spec.key, None)
            self.silent.pop(before.spec.key, None)
        if after is None or not after.placement:
            return
        if after.steps_per_s <= 0:
            total = after.spec.total_steps
            if total is None or after.steps < total:  # a job whose steps are done only has to end
                self.silent[after.spec.key] = None
            return
        use = _of_trainers(after, use_in_turn(after))
        if sum(use.values()) < self.busy:
            use = _of_requested(after)
            # Types that share CPU do not limit each other, so one type alone has to use all that it requested.
            if (max(use.values(), default=0.0) if after.cpu_shared else sum(use.values())) < self.busy:
                return
            if after.cpu_shared and (together := sum(use.values())) > 1:  # still they take turns
                use = {type_: u / together for type_, u in use.items()}
        self.uses[after.spec.key] = use

    def change_nodes(self, nodes: Mapping[str, Node]) -> bool:
        return True


def _of_trainers(job: Job, use: Use) -> dict[str, float]:
    return {type_: u for type_, u in use.items() if type_ != EVALUATOR and job.placement.get(type_)}


def _of_requested(job: Job) -> dict[str, float]:
    use = _of_trainers(job, job.cpu_use)
    for type_, u in use.items():
        requested = job.spec.requested_cpu(type_) * len(job.placement[type_])
        use[type_] = min(1.0, u * job.held_cpu(type_) / requested) if requested else u
    return use


def busy_index(busy: float) -> Callable[[Snapshot], BusyJobs]:
    """`busy`: CPU used / held from which replicas lack CPU."""
    return lambda snapshot: BusyJobs(busy, snapshot.jobs.values())
