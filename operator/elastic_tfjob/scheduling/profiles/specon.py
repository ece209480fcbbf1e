"""specon: on crowded nodes the jobs with the least remaining work get most CPU, and replicas move to idle CPU. It can
also run SpeCon as published.

SpeCon (Mao et al., arXiv 2010.11307) moves jobs whose loss has converged away from those whose loss falls fast. See
docs/designs/specon.md.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from math import fsum, inf
from typing import Final, Literal

from pydantic import Field

from elastic_tfjob.scheduling.core import ProfileParameters, Seconds, Stages, needs
from elastic_tfjob.scheduling.orders import Fifo
from elastic_tfjob.scheduling.places import PlaceName
from elastic_tfjob.scheduling.reasons import Fact, Reason
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Job
from elastic_tfjob.scheduling.steps.crowding import Balance, CpuLoad, JobLoad, cpu_load_index
from elastic_tfjob.scheduling.steps.declared_size import FixedSize
from elastic_tfjob.scheduling.steps.repair import repair_late

__all__ = ["Class", "Migrate", "SpeconParameters", "SpeconSettings", "Weights", "classify", "take_back"]

# -- SpeCon's classes of jobs, from the growth of their loss: progressing, watched, converged --------------------------

Class = Literal["progressing", "watched", "converged"]

WATCHED: Final = "watched"
"""Name in a job's memory: the number of readings at the first slow one."""
CONVERGED: Final = "converged"
"""Name in a job's memory; the value 1 means that the next reading was slow, too."""


def classify(round_: Round, job: Job, alpha: float) -> Class:
    """The class of a job by its present loss. After a slow reading a progressing job is watched, and after a second one
    in a row it is converged; a reading that is not slow makes it progressing again. Only changes are stored. A job
    whose loss is unknown or not finite is progressing."""
    memory, growth = round_.memory(job), job.loss
    part = growth.of_peak if growth.state == "finite" else None
    if part is None or part >= alpha:
        round_.remember(job, WATCHED, None)
        round_.remember(job, CONVERGED, None)
        return "progressing"
    since = memory.get(WATCHED)
    if since is None:
        round_.remember(job, WATCHED, growth.readings)
        return "watched"
    if CONVERGED in memory:
        return "converged"
    if growth.readings <= since:
        return "watched"
    round_.remember(job, CONVERGED, 1)
    return "converged"


# -- SpeCon's speculative migration, as published: converged jobs make room for progressing ones -----------------------


@dataclass(frozen=True, slots=True)
class Migrate:
    """From the node with the most jobs that has converged and progressing ones, the slowest converged job moves to the
    node with the fewest progressing jobs, if that has fewer jobs. At most one move per `period_s`, and one per job."""

    alpha: float
    period_s: float

    def __call__(self, round_: Round) -> None:
        running = round_.running_in_order()
        classes = {job.key: classify(round_, job, self.alpha) for job in running}
        for key, target in round_.changes.items():
            # A resumed job has an earlier loss: its class is stored now, as the next plan would.
            if target.nodes and key not in classes:
                classify(round_, round_.job(key), self.alpha)
        last = max((job.since_s for job in running if job.migrations), default=-inf)
        if round_.now - last < self.period_s:
            return
        there: dict[str, dict[str, Job]] = {name: {} for name in round_.nodes}
        for job in running:
            for names in round_.placement(job).values():
                for name in names:
                    there.setdefault(name, {})[job.key] = job
        for source in sorted(there, key=lambda name: (-len(there[name]), name)):
            if self._leave(round_, source, there, classes):
                return

    def _leave(self, round_: Round, source: str, there: dict[str, dict[str, Job]], classes: dict[str, Class]) -> bool:
        jobs = there[source].values()
        if all(classes[job.key] != "progressing" for job in jobs):
            return False
        slow = [job for job in jobs if classes[job.key] == "converged" and not job.migrations and job.spec.movable]
        for job in sorted(slow, key=lambda job: (job.loss.of_peak or 0.0, job.key)):
            if job.phase != "running" or round_.placement(job) != job.placement:
                continue
            targets = [name for name in round_.nodes if len(there[name]) + 1 < len(there[source])]
            targets.sort(
                key=lambda name: (
                    sum(classes[key] == "progressing" for key in there[name]),
                    len(there[name]),
                    name,
                )
            )
            if any(_move(round_, job, source, target) for target in targets):
                return True
        return False


def _move(round_: Round, job: Job, source: str, target: str) -> bool:
    """Move all replicas of the job that are on node `source`."""
    reason = Reason("converged", {"source": source, "target": target})
    there = [(t, k) for t, names in job.placement.items() for k, name in enumerate(names) if name == source]
    moved = [round_.move(job, role, target, reason) for role in there]
    return any(moved)


# -- The parameters of specon ------------------------------------------------------------------------------------------


class SpeconSettings(ProfileParameters):
    """The parameters; see SpeconParameters."""

    place: PlaceName = Field("spread", description="rule that places replicas on nodes; count: totals only")
    interval_s: Seconds = Field(10.0, description="most seconds between two rounds; 0: a round only after a change")
    published: bool = Field(False, description="SpeCon as published: converging jobs move away, and nothing else")
    alpha: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="published: a loss is slow if it falls slower than this part of its fastest fall",
    )
    period_s: Seconds = Field(30.0, description="published: least time between two moves")
    moves: int = Field(2, ge=0, le=100, description="most moves of one job; published: always 1")
    times: float = Field(
        4.0, ge=0, le=1000, description="a move must save this times its cost, and leave as much training to do"
    )
    move_s: Seconds = Field(15.0, description="expected cost of a move, in seconds of training")
    idle: float = Field(0.25, gt=0, le=1, description="least idle part of the CPU of a move's target node")
    floor: float = Field(
        0.2, ge=0, le=1, description="part of an equal share of a crowded node's CPU that each job keeps"
    )
    ahead: float = Field(
        0.75,
        gt=0,
        lt=1,
        description="part of the spare CPU that the first job gets; the next job gets the same part of what remains",
    )
    critical: float = Field(
        1.3,
        ge=0,
        le=1000,
        description="a job goes first if its own remaining time is this times the cluster's for all jobs; 0: off",
    )


# -- CPU of crowded nodes by remaining work: requests are weights, and the job that ends first holds most --------------

KEEP = 0.1
"""A job goes before another job that holds more CPU only if it ends earlier by this fraction of the time that they
need. CPU that would change by no more than this fraction stays. So new measurements alone do not change the CPU of
pods."""
GUEST = 0.5
"""The fraction of an equal share for a job with only its chief or PS on a node, which use less CPU than a worker."""
STEP_M = 10
"""CPU is given in multiples of this number of millicores."""


def take_back(round_: Round) -> None:
    """Count CPU beyond requests as free, since it was only lent."""
    load: CpuLoad = round_.snapshot.index("cpu load", cpu_load_index)
    for key in load.lent():
        job = round_.job(key)
        if job.phase == "running" and round_.cpu(job):
            round_.assign(job, round_.placement(job), Reason("cpu-as-requested"))


class Weights:
    """On a crowded node each job gets a floor, and then CPU in order: most for the first job, less for the next.

    Jobs are ordered by their end under equal shares, so earlier arrival and less remaining work come first. A job that
    moved to the node counts as arriving at that moment, and its end is computed as on a node of at least average load,
    so that the jobs already there lose little. Critical jobs, which alone need as long as the cluster needs for all
    jobs, precede the rest. First of all come jobs with only a chief or PS on the node: it needs little CPU, and while
    it waits, the CPU of its workers' nodes is idle.
    """

    def __init__(self, settings: SpeconSettings) -> None:
        self.settings = settings

    def __call__(self, round_: Round) -> None:
        load: CpuLoad = round_.snapshot.index("cpu load", cpu_load_index)
        crowded = load.crowded()
        if not crowded:
            return
        left = load.left_cpu_s(round_.now)
        all_s = 1000 * fsum(left.values()) / max(1, load.usable_total_millicores)
        most_millicores = load.can_use_millicores()
        critical_s = self.settings.critical * all_s if self.settings.critical else float("inf")
        alone_s = (
            {key: 1000 * cpu_s * load.jobs[key].largest / most_millicores for key, cpu_s in left.items()}
            if most_millicores
            else {}
        )
        critical = {key for key, seconds in alone_s.items() if seconds >= critical_s}
        mean = len(load.jobs) / max(1, len(round_.nodes))
        held: dict[str, dict[str, list[int]]] = {}
        places: dict[str, Reason] = {}
        for name in crowded:
            jobs = {key: job for key in load.there[name] if _stays(round_, job := round_.job(key))}
            own = sum(not job.migrations for job in jobs.values())
            moved, usable_millicores = max(own + 1, mean), max(1, load.usable_millicores(name))
            needs_s = {
                key: 1000 * left[key] / usable_millicores * (moved if job.migrations else own)
                for key, job in jobs.items()
            }
            ends = {key: job.since_s + needs_s[key] for key, job in jobs.items()}
            lent_millicores = {key: load.jobs[key].lent_millicores.get(name, 0) for key in jobs}
            guests = {key for key in jobs if _works_elsewhere(load.jobs[key], name)}
            keys: list[str] = []
            # The measured CPU use is from before the last change of weights or jobs, so it does not show whether the
            # current weights are right.
            running = [key for key, job in jobs.items() if job.phase == "running"]
            keeps = all(lent_millicores[key] for key in running) and not (load.settled(name) and load.known(name))
            for chosen in (guests, critical - guests, jobs.keys() - critical - guests):
                keys += _in_order([key for key in jobs if key in chosen], ends, needs_s, lent_millicores)
            if keeps:
                keys.sort(key=lambda key: -lent_millicores[key])
            self._share(round_, name, [load.jobs[key] for key in keys], guests, held, keeps=keeps)
            for rank, key in enumerate(keys, 1):
                facts: dict[str, Fact] = {"rank": rank, "of": len(keys), "node": name}
                if key in guests:
                    facts["elsewhere"] = 1
                elif key in critical:
                    facts["critical"] = 1
                places.setdefault(key, Reason("cpu-rank", facts))
        for key, types in held.items():
            job = round_.job(key)
            cpu = {type_: tuple(each) for type_, each in types.items() if set(each) != {job.spec.requested_cpu(type_)}}
            if cpu:
                round_.grant(job, cpu, places[key])

    def _share(
        self,
        round_: Round,
        name: str,
        loads: list[JobLoad],
        guests: Set[str],
        held: dict[str, dict[str, list[int]]],
        *,
        keeps: bool,
    ) -> None:
        """Divide the node's free CPU among its jobs, in order; `guests` get GUEST of an equal share. Within a job CPU
        is divided by the replicas' CPU use, so that a mostly idle chief or PS gets no large weight. `keeps`: jobs keep
        their CPU if it is still available."""
        room, settings = round_.room, self.settings
        i = room.index.get(name)
        if i is None:
            return
        there = [(load, replicas) for load in loads if (replicas := _replicas(load.job, name))]
        free = room.cpu_millicores[i]
        if len(there) < 2 or free <= 0:
            return
        equal = room.usable[i].cpu_millicores / len(there)
        least = settings.floor * equal
        requests = [sum(request for _, _, request in replicas) for _, replicas in there]
        floors = [max(0, _rounded(least - request)) for request in requests]
        spare_millicores = free - sum(floors)
        if spare_millicores <= 0:
            return
        taken = 0
        now = [[_holds(load.job, type_, k, own) - own for type_, k, own in replicas] for load, replicas in there]
        keeps = keeps and sum(map(sum, now)) <= free
        for (load, replicas), request, floor, before in zip(there, requests, floors, now, strict=True):
            job = load.job
            part = spare_millicores * settings.ahead
            if job.spec.key in guests:
                part = min(part, max(0.0, GUEST * equal - request - floor))
            more = _split(floor + _rounded(part), [load.replica_millicores.get(t, 0) for t, _, _ in replicas])
            near = all(
                abs(a - b) <= KEEP * (sum(before) + request)
                for a, b in zip((*more, sum(more)), (*before, sum(before)), strict=True)
            )
            if keeps or (near and floor <= sum(before) <= floor + spare_millicores):
                more = before
            spare_millicores -= sum(more) - floor
            taken += sum(more)
            types = held.setdefault(job.spec.key, {})
            for (type_, k, own), lent in zip(replicas, more, strict=True):
                if type_ not in types:
                    types[type_] = [own] * len(job.placement[type_])
                types[type_][k] = own + lent
        room.take_cpu(i, taken)


def _replicas(job: Job, name: str) -> list[tuple[str, int, int]]:
    """Type, index and requested millicores of a job's replicas on a node; empty if the job's CPU may not change."""
    if not job.spec.resizable or job.spec.fixed_cpu or job.phase != "running":
        return []
    return [
        (type_, k, request)
        for type_, names in job.placement.items()
        if (request := job.spec.requested_cpu(type_))
        for k, there in enumerate(names)
        if there == name
    ]


def _holds(job: Job, type_: str, k: int, request_millicores: int) -> int:
    has = job.cpu.get(type_, ())
    return has[k] if k < len(has) else request_millicores


def _split(millicores: int, uses: list[int]) -> list[int]:
    """Distribute millicores in proportion to the replicas' CPU use, in multiples of STEP_M; evenly if the use is
    unknown. The remainder goes to the replica that uses most."""
    total = sum(uses)
    parts = [_rounded(millicores * use / total if total else millicores / len(uses)) for use in uses]
    parts[uses.index(max(uses))] += millicores - sum(parts)
    return parts


def _rounded(millicores: float) -> int:
    return int(millicores) // STEP_M * STEP_M


def _in_order(
    keys: list[str], ends: Mapping[str, float], needs_s: Mapping[str, float], lent_millicores: Mapping[str, int]
) -> list[str]:
    """Sort jobs by their end under equal shares. Two jobs keep their order by held CPU (`lent_millicores`), unless the
    opposite order is better by the fraction KEEP of the time that they need."""
    ordered: list[str] = []
    for key in sorted(keys, key=lambda key: (-lent_millicores[key], ends[key], key)):
        k = len(ordered)
        while k and ends[key] + _slack_s(key, ordered[k - 1], needs_s, lent_millicores) < ends[ordered[k - 1]]:
            k -= 1
        ordered.insert(k, key)
    return ordered


def _slack_s(key: str, other: str, needs_s: Mapping[str, float], lent_millicores: Mapping[str, int]) -> float:
    """Seconds by which a job must end earlier to go before another one that holds more."""
    return KEEP * max(needs_s[key], needs_s[other]) if lent_millicores[other] > lent_millicores[key] else 0.0


def _works_elsewhere(load: JobLoad, name: str) -> bool:
    """Whether none of the job's busiest replicas is on this node."""
    return bool(load.heaviest) and name not in load.job.placement[load.heaviest]


def _stays(round_: Round, job: Job) -> bool:
    """Whether the job is not moved in this round: a moved job gets the CPU that it requests until it is there."""
    return round_.placement(job) == job.placement


class SpeconParameters(SpeconSettings):
    """Shares the CPU of crowded nodes by remaining work, and moves replicas to idle CPU; or SpeCon as published."""

    def stages(self) -> Stages:
        start = FixedSize(backfill=True)
        if self.published:
            return Stages(Fifo(), (start, Migrate(self.alpha, self.period_s)), needs("loss", "move"), drifts=True)
        balance = Balance(self.moves, self.times, self.move_s, self.idle)
        steps = (take_back, repair_late, start, balance, Weights(self))
        return Stages(Fifo(), steps, needs("cpu", "use", "service", "move"), drifts=True)
