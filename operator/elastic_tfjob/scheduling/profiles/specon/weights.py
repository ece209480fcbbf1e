"""CPU of crowded nodes by remaining work: requests are weights, and who is to end first holds most."""

from collections.abc import Mapping, Set
from math import fsum

from elastic_tfjob.scheduling.profiles.specon.settings import Settings
from elastic_tfjob.scheduling.reasons import Fact, Reason
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Job
from elastic_tfjob.scheduling.toolkit.cpu_load import CpuLoad, JobLoad, cpu_load_view

__all__ = ["Weights", "take_back"]

KEEP = 0.1
"""One job goes before another that holds more CPU only where it ends earlier by this part of what they need; CPU that
would change by no more than this part stays. So what is measured anew all the time does not change what pods hold."""
GUEST = 0.5
"""Part of an equal share for a job that has only its chief or PS on a node: they use less than a worker does."""
STEP_M = 10
"""CPU is given in multiples of this, in millicores."""


def take_back(round_: Round) -> None:
    """CPU beyond requests counts as free: it was only lent."""
    load: CpuLoad = round_.snapshot.view("cpu load", cpu_load_view)
    for key in load.lent():
        job = round_.job(key)
        if job.phase == "running" and round_.cpu(job):
            round_.assign(job, round_.placement(job), Reason("cpu-as-requested"))


class Weights:
    """Gives each job on a crowded node a floor, and the rest in order: most to the first, less to the next.

    The order is that of the ends under equal shares: who came first, and has least left. A job that moved here counts
    from then on, as if the node were as full as nodes are in the mean, so that those that were here lose little. Jobs
    that need as long alone as the cluster does for all are critical and go before the others. Before all go jobs that
    have only a chief or PS here: it needs little, and while it waits, the CPU of their workers' nodes is idle.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def __call__(self, round_: Round) -> None:
        load: CpuLoad = round_.snapshot.view("cpu load", cpu_load_view)
        crowded = load.crowded()
        if not crowded:
            return
        left = load.left_cpu_s(round_.now)
        all_s = 1000 * fsum(left.values()) / max(1, load.usable_total_m)
        most_m = load.can_use_m()
        critical_s = self.settings.critical * all_s if self.settings.critical else float("inf")
        alone_s = {key: 1000 * cpu_s * load.jobs[key].largest / most_m for key, cpu_s in left.items()} if most_m else {}
        critical = {key for key, seconds in alone_s.items() if seconds >= critical_s}
        mean = len(load.jobs) / max(1, len(round_.nodes))
        held: dict[str, dict[str, list[int]]] = {}
        places: dict[str, Reason] = {}
        for name in crowded:
            jobs = {key: job for key in load.there[name] if _stays(round_, job := round_.job(key))}
            own = sum(not job.migrations for job in jobs.values())
            moved, usable_m = max(own + 1, mean), max(1, load.usable_m(name))
            needs_s = {
                key: 1000 * left[key] / usable_m * (moved if job.migrations else own) for key, job in jobs.items()
            }
            ends = {key: job.since_s + needs_s[key] for key, job in jobs.items()}
            lent_m = {key: load.jobs[key].lent.get(name, 0) for key in jobs}
            guests = {key for key in jobs if _works_elsewhere(load.jobs[key], name)}
            keys: list[str] = []
            # What they use is still of other weights, or of one more job: it says nothing of whether these are right.
            running = [key for key, job in jobs.items() if job.phase == "running"]
            keeps = all(lent_m[key] for key in running) and not (load.settled(name) and load.known(name))
            for chosen in (guests, critical - guests, jobs.keys() - critical - guests):
                keys += _in_order([key for key in jobs if key in chosen], ends, needs_s, lent_m)
            if keeps:
                keys.sort(key=lambda key: -lent_m[key])
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
        """Share what is free of the node among the jobs there, in order; `guests` among them get GUEST of an equal
        share. Within a job by what its replicas use, so that what the first gets is not the weight of a chief or
        PS that has little to do. `keeps`: they keep what they have, if it is still there."""
        room, settings = round_.room, self.settings
        i = room.index.get(name)
        if i is None:
            return
        there = [(load, replicas) for load in loads if (replicas := _replicas(load.job, name))]
        free = room.cpu[i]
        if len(there) < 2 or free <= 0:
            return
        equal = room.usable[i].cpu / len(there)
        least = settings.floor * equal
        requests = [sum(request for _, _, request in replicas) for _, replicas in there]
        floors = [max(0, _rounded(least - request)) for request in requests]
        rest = free - sum(floors)
        if rest <= 0:
            return
        taken = 0
        now = [[_holds(load.job, type_, k, own) - own for type_, k, own in replicas] for load, replicas in there]
        keeps = keeps and sum(map(sum, now)) <= free
        for (load, replicas), request, floor, before in zip(there, requests, floors, now, strict=True):
            job = load.job
            part = rest * settings.ahead
            if job.spec.key in guests:
                part = min(part, max(0.0, GUEST * equal - request - floor))
            more = _split(floor + _rounded(part), [load.replica_m.get(t, 0) for t, _, _ in replicas])
            near = all(
                abs(a - b) <= KEEP * (sum(before) + request)
                for a, b in zip((*more, sum(more)), (*before, sum(before)), strict=True)
            )
            if keeps or (near and floor <= sum(before) <= floor + rest):
                more = before
            rest -= sum(more) - floor
            taken += sum(more)
            types = held.setdefault(job.spec.key, {})
            for (type_, k, own), lent in zip(replicas, more, strict=True):
                if type_ not in types:
                    types[type_] = [own] * len(job.placement[type_])
                types[type_][k] = own + lent
        room.take_cpu(i, taken)


def _replicas(job: Job, name: str) -> list[tuple[str, int, int]]:
    """Type, index and requested millicores of a job's replicas on a node that may hold other CPU."""
    if not job.spec.resizable or job.spec.fixed_cpu or job.phase != "running":
        return []
    return [
        (type_, k, request)
        for type_, names in job.placement.items()
        if (request := job.spec.requested_cpu(type_))
        for k, there in enumerate(names)
        if there == name
    ]


def _holds(job: Job, type_: str, k: int, request: int) -> int:
    has = job.cpu.get(type_, ())
    return has[k] if k < len(has) else request


def _split(millicores: int, uses: list[int]) -> list[int]:
    """Millicores by what replicas use, in multiples of STEP_M; evenly where that is not known, and what is left by
    rounding to the one that uses most."""
    total = sum(uses)
    parts = [_rounded(millicores * use / total if total else millicores / len(uses)) for use in uses]
    parts[uses.index(max(uses))] += millicores - sum(parts)
    return parts


def _rounded(millicores: float) -> int:
    return int(millicores) // STEP_M * STEP_M


def _in_order(
    keys: list[str], ends: Mapping[str, float], needs_s: Mapping[str, float], lent_m: Mapping[str, int]
) -> list[str]:
    """By the end under equal shares. Two keep the order that they have by the CPU they hold (`lent_m`), unless the
    other way round is better by a part of what they need."""
    ordered: list[str] = []
    for key in sorted(keys, key=lambda key: (-lent_m[key], ends[key], key)):
        k = len(ordered)
        while k and ends[key] + _slack_s(key, ordered[k - 1], needs_s, lent_m) < ends[ordered[k - 1]]:
            k -= 1
        ordered.insert(k, key)
    return ordered


def _slack_s(key: str, other: str, needs_s: Mapping[str, float], lent_m: Mapping[str, int]) -> float:
    """Seconds by which a job has to end earlier to go before the other, who holds more."""
    return KEEP * max(needs_s[key], needs_s[other]) if lent_m[other] > lent_m[key] else 0.0


def _works_elsewhere(load: JobLoad, name: str) -> bool:
    """Whether none of the replicas that use most is on this node."""
    return bool(load.heaviest) and name not in load.job.placement[load.heaviest]


def _stays(round_: Round, job: Job) -> bool:
    """Whether it is where it was: one that this round moves gets what it requests until it is there."""
    return round_.placement(job) == job.placement
