"""Moves from crowded nodes to idle CPU, where they pay."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum

from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import CHIEF, Job
from elastic_tfjob.scheduling.toolkit.cpu_load import CpuLoad, cpu_load_view

__all__ = ["Balance"]

WORTHWHILE = 1.25
"""A move that makes the replica faster by less than this is none."""


@dataclass(frozen=True, slots=True)
class Balance:
    """One replica at a time goes from a crowded node to the node with the most idle CPU, the job with the most left
    first, if what it has left there is `times` what a move costs (`move_s`), and the move saves as much.

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
            and load.idle_m(name) >= self.idle * load.usable_m(name) > 0
            and all(load.jobs[key].job.observed_s <= now for key in load.there.get(name, ()))
        ]
        targets.sort(key=lambda name: (-load.idle_m(name), name))
        left = load.left_cpu_s(now)
        moved: set[str] = set()
        queues = {name: fsum(left[key] for key in load.there[name]) for name in crowded}
        most_m = load.can_use_m()
        for target in targets:
            can_m = min(load.idle_m(target), most_m)
            choices = [
                (-left[key], key, name)
                for name in crowded
                for key in load.there[name]
                if key not in moved
                and self._pays(
                    load.jobs[key].job, left[key], queues[name] / max(1, load.usable_m(name)) * 1000, can_m, round_
                )
                and max(load.jobs[key].replica_m.values(), default=0) * WORTHWHILE <= can_m
            ]
            for _, key, name in sorted(choices):
                job = round_.job(key)
                if self._move(round_, job, name, target, load.jobs[key].replica_m):
                    moved.add(key)
                    queues[name] -= left[key]
                    break

    def _pays(self, job: Job, left_cpu_s: float, queue_s: float, can_m: int, round_: Round) -> bool:
        """Whether the job may be moved, and ends earlier by that, with a good margin."""
        if job.migrations >= self.moves or not job.spec.movable or job.phase != "running":
            return False
        if job.observed_s > round_.now or round_.placement(job) != job.placement or not can_m:
            return False
        there_s = 1000 * left_cpu_s / can_m
        return there_s >= self.times * self.move_s and queue_s - there_s >= (1 + self.times) * self.move_s

    def _move(self, round_: Round, job: Job, source: str, target: str, uses: Mapping[str, int]) -> bool:
        """The replica there that uses most; a chief last, since all of a job stand still while it moves."""
        there = [
            (type_ == CHIEF, -uses.get(type_, 0), type_, -k)
            for type_, names in job.placement.items()
            for k, name in enumerate(names)
            if name == source
        ]
        reason = Reason("crowded", {"source": source, "target": target})
        return any(round_.move(job, (type_, -k), target, reason) for _, _, type_, k in sorted(there))
