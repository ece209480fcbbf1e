"""CPU of crowded nodes by remaining work: requests are weights, and who is to end first holds most."""

from collections.abc import Mapping
from math import fsum

from elastic_tfjob.scheduling.profiles.specon.settings import Settings
from elastic_tfjob.scheduling.reasons import Fact, Reason
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Job
from elastic_tfjob.scheduling.toolkit.cpu_load import CpuLoad, cpu_load_view

__all__ = ["Weights", "take_back"]

KEEP = 0.1
"""One job goes before another that holds more CPU only where it ends earlier by this part of what they need; CPU that
would change by no more than this part stays. So what is measured anew all the time does not change what pods hold."""
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
    that need as long alone as the cluster does for all are critical and go before the others.
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
        critical = {key for key, cpu_s in left.items() if most_m and 1000 * cpu_s / most_m >= critical_s}
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
            lent_m = {key: load.jobs[key].lent_m for key in jobs}
            keys = _in_order([key for key in jobs if key in critical], ends, needs_s, lent_m)
            keys += _in_order([key for key in jobs if key not in critical], ends, needs_s, lent_m)
            self._share(round_, name, [jobs[key] for key in keys], held)
            for rank, key in enumerate(keys, 1):
                facts: dict[str, Fact] = {"rank": rank, "of": len(keys), "node": name}
                if key in critical:
                    facts["critical"] = 1
                places.setdefault(key, Reason("cpu-rank", facts))
        for key, types in held.items():
            job = round_.job(key)
            cpu = {type_: tuple(each) for type_, each in types.items() if set(each) != {job.spec.requested_cpu(type_)}}
            if cpu:
                round_.grant(job, cpu, places[key])

    def _share(self, round_: Round, name: str, jobs: list[Job], held: dict[str, dict[str, list[int]]]) -> None:
        """Share what is free of the node among replicas there, jobs in order."""
        room, settings = round_.room, self.settings
        i = room.index.get(name)
        if i is None:
            return
        replicas = [
            (job, type_, k, request)
            for job in jobs
            if job.spec.resizable and not job.spec.fixed_cpu and job.phase == "running"
            for type_, names in job.placement.items()
            if (request := job.spec.requested_cpu(type_))
            for k, there in enumerate(names)
            if there == name
        ]
        free = room.cpu[i]
        if len(replicas) < 2 or free <= 0:
            return
        least = settings.floor * room.usable[i].cpu / len(replicas)
        floors = [max(0, _rounded(least - request)) for _, _, _, request in replicas]
        rest = free - sum(floors)
        if rest <= 0:
            return
        taken = 0
        for (job, type_, k, request), floor in zip(replicas, floors, strict=True):
            more = floor + _rounded(rest * settings.ahead)
            has = job.cpu.get(type_, ())
            before = has[k] if k < len(has) else request
            if abs(before - request - more) <= KEEP * before and floor <= before - request <= floor + rest:
                more = before - request
            rest -= more - floor
            taken += more
            types = held.setdefault(job.spec.key, {})
            each = types.get(type_)
            if each is None:
                each = types[type_] = [request] * len(job.placement[type_])
            each[k] = request + more
        room.take_cpu(i, taken)


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


def _stays(round_: Round, job: Job) -> bool:
    """Whether it is where it was: one that this round moves gets what it requests until it is there."""
    return round_.placement(job) == job.placement
