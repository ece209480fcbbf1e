"""Moves from crowded nodes to idle CPU, where they pay."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum

from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import CHIEF, Job
from elastic_tfjob.scheduling.toolkit.cpu_load import CpuLoad, JobLoad, cpu_load_view

__all__ = ["Balance"]

WORTHWHILE = 1.25
"""A move that makes the replica faster by less than this is none."""
ALIKE = 1.1
"""A job that has its node alone, and more left than this times what another one has, keeps it alone: it would lose."""


@dataclass(frozen=True, slots=True)
class Balance:
    """One replica at a time goes from a crowded node to the node with the most idle CPU, the job with the most left
    first, if what it has left there is `times` what a move costs (`move_s`), and the move saves as much; and only if it
    would end earlier there also when those that are there share that node evenly with it: what is idle may be so for a
    moment, as while a job changes. A node that a single job fills takes one that has about as much left or more, if by
    even shares the move saves that much: one job would hold a whole node, while three share the next.

    A job is moved at most `moves` times. A node gets one replica a round, and the next only when it is known what that
    uses. How much CPU a replica could use is not known: as much as the one that uses most does.
    """

    moves: int
    times: float
    move_s: float
    idle: float
    """The least part of a node's CPU that has to be idle there."""

    def __call__(self, round_: Round) -> None:
        load: CpuLoad = round_.snapshot.view("cpu load", cpu_load_view)
        crowded = load.crowded()
        if not crowded or not self.moves:
            return
        now = round_.now
        targets = [
            name
            for name in round_.nodes
            if load.known(name)
            and load.usable_m(name) > 0
            and (self._idle(load, name) or _has_one(load, name))
            and all(load.jobs[key].job.observed_s <= now for key in load.there.get(name, ()))
        ]
        targets.sort(key=lambda name: (-load.idle_m(name), name))
        left = load.left_cpu_s(now)
        moved: set[str] = set()
        work = {name: _work_cpu_s(load, left, name) for name in {*crowded, *targets}}
        queues = {name: _takes_s(load, fsum(work[name].values()), name) for name in crowded}
        most_m = load.can_use_m()
        for target in targets:
            can_m = min(load.idle_m(target), most_m) if self._idle(load, target) else 0
            beside_cpu_s = fsum(work[target].values()) if _has_one(load, target) else None
            choices = [
                (-left[key], key, name, part, saves_s)
                for name in crowded
                if name != target
                for key in load.there[name]
                if key not in moved and self._may_move(load.jobs[key].job, round_)
                for part in (_part_cpu_s(load.jobs[key], left[key], name),)
                if (saves_s := self._must_save_s(load.jobs[key], part, can_m, queues[name], beside_cpu_s)) is not None
            ]
            for _, key, name, part, saves_s in sorted(choices):
                here_s, there_s = (_shared_s(load, work[each], key, part, each) for each in (name, target))
                if there_s + saves_s > here_s:
                    continue
                if self._move(round_, round_.job(key), name, target, load.jobs[key]):
                    moved.add(key)
                    queues[name] -= _takes_s(load, part, name)
                    work[name][key] -= part
                    work[target][key] = work[target].get(key, 0.0) + part
                    break

    def _idle(self, load: CpuLoad, name: str) -> bool:
        return load.idle_m(name) >= self.idle * load.usable_m(name)

    def _may_move(self, job: Job, round_: Round) -> bool:
        if job.migrations >= self.moves or not job.spec.movable or job.phase != "running":
            return False
        return job.observed_s <= round_.now and round_.placement(job) == job.placement

    def _must_save_s(
        self, load: JobLoad, part_cpu_s: float, can_m: int, queue_s: float, beside_cpu_s: float | None
    ) -> float | None:
        """Seconds that a move has to save by even shares; None: nothing speaks for it. `can_m`: idle millicores that it
        could use there, 0 where too few are idle; `beside_cpu_s`: what the only job there has left, if it is one."""
        uses_m = max(load.replica_m.values(), default=0)
        if uses_m * WORTHWHILE <= can_m and self._pays(part_cpu_s, can_m, queue_s):
            return self.move_s
        if beside_cpu_s is not None and beside_cpu_s <= ALIKE * part_cpu_s:
            return (1 + self.times) * self.move_s
        return None

    def _pays(self, part_cpu_s: float, can_m: int, queue_s: float) -> bool:
        """Whether the replica ends earlier by the move, with a good margin."""
        if not can_m:
            return False
        there_s = 1000 * part_cpu_s / can_m
        return there_s >= self.times * self.move_s and queue_s - there_s >= (1 + self.times) * self.move_s

    def _move(self, round_: Round, job: Job, source: str, target: str, load: JobLoad) -> bool:
        reason = Reason("crowded", {"source": source, "target": target})
        return any(round_.move(job, replica, target, reason) for replica in _there(load, source))


def _has_one(load: CpuLoad, name: str) -> bool:
    return len(load.there.get(name, ())) == 1


def _there(load: JobLoad, name: str) -> list[tuple[str, int]]:
    """A job's replicas on a node: the one that uses most first; a chief last, since all of a job stand still while it
    moves."""
    found = [
        (type_ == CHIEF, -load.replica_m.get(type_, 0), type_, -k)
        for type_, names in load.job.placement.items()
        for k, there in enumerate(names)
        if there == name
    ]
    return [(type_, -k) for _, _, type_, k in sorted(found)]


def _work_cpu_s(load: CpuLoad, left: Mapping[str, float], name: str) -> dict[str, float]:
    """CPU seconds that jobs have left to do on a node."""
    jobs = {key: load.jobs[key] for key in load.there.get(name, ())}
    return {
        key: left[key] * job.nodes.get(name, 0) / job.used_m if job.used_m else left[key] for key, job in jobs.items()
    }


def _shared_s(load: CpuLoad, work: Mapping[str, float], key: str, part_cpu_s: float, name: str) -> float:
    """Seconds until a job's replica is done with its part on a node that it shares evenly with the jobs there."""
    others = fsum(min(cpu_s, part_cpu_s) for other, cpu_s in work.items() if other != key)
    return _takes_s(load, part_cpu_s + others, name)


def _part_cpu_s(load: JobLoad, left_cpu_s: float, name: str) -> float:
    """What a job has left to do in the replica that would move away from a node."""
    type_, _ = _there(load, name)[0]
    return left_cpu_s * load.replica_m.get(type_, 0) / load.used_m if load.used_m else left_cpu_s


def _takes_s(load: CpuLoad, cpu_s: float, name: str) -> float:
    return 1000 * cpu_s / max(1, load.usable_m(name))
