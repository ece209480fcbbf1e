"""Crowded nodes, and moves from them to idle CPU. Decided by the CPU that jobs use, not by what they request.

CpuLoad knows the use per node and the CPU time that each job still needs; Balance moves replicas.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import fsum
from typing import Final

from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.room import nodes_of
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.shared_cpu import usable_types
from elastic_tfjob.scheduling.snapshot import CHIEF, Job, Node, Snapshot

__all__ = ["CROWDED", "Balance", "CpuLoad", "JobLoad", "cpu_load_index"]

CROWDED: Final = 0.85
"""The part of a node's CPU in use from which its jobs slow each other down. Below 1, since kubelet, exporters and
throttling take about a tenth."""
CALM: Final = 0.75
"""The part of a node's CPU in use down to which a node stays crowded once CPU is lent there."""
FULL: Final = 0.75
"""A replica that uses less than this part of its CPU could not use more. A replica that is limited by its CPU uses nine
tenths of it at most, since nodes keep some CPU for themselves."""
LEAST_LEFT_S: Final = 1.0
"""The least CPU seconds that a job is assumed to have left."""


@dataclass(frozen=True, slots=True)
class JobLoad:
    """`replica_m`: millicores that one replica uses, by type; empty: unknown. `nodes`: millicores that the job uses, by
    node. `step_cpu_s`: CPU seconds per step; 0: unknown. `heaviest`: the type whose replicas use most; other types may
    only wait for it, so their use says nothing about what the job could use. `spare`: whether those replicas use
    clearly less than they hold, so they could not use more. `lent`: millicores beyond the requests, by node."""

    job: Job
    replica_m: Mapping[str, int]
    nodes: Mapping[str, int]
    step_cpu_s: float
    heaviest: str
    spare: bool
    lent: Mapping[str, int]

    @property
    def used_m(self) -> int:
        """Millicores that all its replicas use."""
        return sum(self.nodes.values())

    @property
    def largest(self) -> float:
        """The part of the job's work that one of its heaviest replicas does."""
        return self.replica_m[self.heaviest] / self.used_m if self.used_m else 1.0

    def left_cpu_s(self, now: float) -> float | None:
        """CPU seconds until the end of the job. A job of unknown length is expected to run as long again as it has run.
        None: unknown."""
        job, total = self.job, self.job.spec.total_steps
        if total is not None and self.step_cpu_s > 0:
            return max(LEAST_LEFT_S, (total - job.steps_at(now)) * self.step_cpu_s)
        if total is None and self.nodes:
            ran_s = job.executed_s + max(0.0, now - job.since_s)
            return max(LEAST_LEFT_S, ran_s * self.used_m / 1000)
        return None


class CpuLoad:
    """An index of the running jobs by the CPU that they use.

    A node is crowded where its jobs together use nearly all CPU that other pods leave: then weights and moves matter.
    Jobs that share their CPU use all of it by design, and no more; a node with only such jobs is not crowded. A node's
    use is unknown while the use of one of its jobs is.
    """

    def __init__(self, jobs: Iterable[Job], nodes: Mapping[str, Node]) -> None:
        self.jobs: dict[str, JobLoad] = {}
        self.there: dict[str, dict[str, None]] = {}
        """Keys of the jobs on a node."""
        self._usable = {name: node.free.cpu for name, node in nodes.items()}
        self._used: dict[str, int] = {}
        self._silent: dict[str, int] = {}
        """By node: the number of jobs whose use is not known."""
        self._lent: dict[str, int] = {}
        """By node: the number of jobs that hold more CPU there than they request."""
        self._unsettled: dict[str, int] = {}
        """By node: the number of jobs whose measured use may result from earlier weights."""
        self._by_weight: dict[str, int] = {}
        """By node: the number of jobs whose replicas do not share the CPU that they hold."""
        self._holders: set[str] = set()
        self._spare: set[str] = set()
        """Keys of the jobs whose heaviest replicas use less than they hold."""
        self._replicas_m: Counter[int] = Counter()
        """By millicores: the number of replica types, over all jobs, whose replicas use this much."""
        self._crowded: list[str] | None = None
        """The crowded nodes as last computed; None if something has changed since."""
        self._left: tuple[float, dict[str, float]] | None = None
        """The last result of `left_cpu_s`, with the time for which it was computed."""
        for job in jobs:
            self._count(job, 1)

    def change(self, before: Job | None, after: Job | None, now: float) -> None:
        if before is not None:
            self._count(before, -1)
        if after is not None:
            self._count(after, 1)

    def change_nodes(self, nodes: Mapping[str, Node]) -> bool:
        self._usable, self._crowded = {name: node.free.cpu for name, node in nodes.items()}, None
        return True

    def _count(self, job: Job, sign: int) -> None:
        if not job.placement:
            return
        key, self._left, self._crowded = job.spec.key, None, None
        if sign > 0:
            load = self.jobs[key] = _load(job)
        else:
            load = self.jobs.pop(key)
        if load.spare:
            (self._spare.add if sign > 0 else self._spare.discard)(key)
        for used in load.replica_m.values():
            self._replicas_m[used] += sign
            if not self._replicas_m[used]:
                del self._replicas_m[used]
        if job.cpu:
            (self._holders.add if sign > 0 else self._holders.discard)(key)
        for name in nodes_of(job.placement):
            if sign > 0:
                self.there.setdefault(name, {})[key] = None
            else:
                del self.there[name][key]
                if not self.there[name]:
                    del self.there[name]
            if load.nodes:
                self._used[name] = self._used.get(name, 0) + sign * load.nodes[name]
            else:
                self._silent[name] = self._silent.get(name, 0) + sign
            if load.lent.get(name):
                self._lent[name] = self._lent.get(name, 0) + sign
            if not job.cpu_shared:
                self._by_weight[name] = self._by_weight.get(name, 0) + sign
            if not job.cpu_settled:
                self._unsettled[name] = self._unsettled.get(name, 0) + sign

    # ---- looking

    def settled(self, name: str) -> bool:
        """Whether the use of all jobs on a node results from their present weights."""
        return not self._unsettled.get(name)

    def known(self, name: str) -> bool:
        """Whether the CPU use of all jobs on a node is known."""
        return not self._silent.get(name)

    def idle_m(self, name: str) -> int:
        """Idle millicores of a node."""
        return max(0, self._usable.get(name, 0) - self._used.get(name, 0))

    def usable_m(self, name: str) -> int:
        return self._usable.get(name, 0)

    def lent(self) -> list[str]:
        """Jobs that hold more CPU than they request, by name."""
        return sorted(self._holders)

    def crowded(self) -> list[str]:
        """Crowded nodes by name; without nodes whose jobs use no CPU."""
        if self._crowded is None:
            many = (name for name, keys in self.there.items() if len(keys) > 1 and self._by_weight.get(name))
            self._crowded = sorted(name for name in many if self._full(name))
        return self._crowded

    def _full(self, name: str) -> bool:
        used, usable, lent = self._used.get(name, 0), self._usable.get(name), self._lent.get(name)
        if lent and (self._unsettled.get(name) or not self.known(name)):
            # The measured use is from earlier weights or from before a job left, so it does not show yet whether the
            # present weights are needed.
            return True
        least = CALM if lent else CROWDED
        return used > 0 and usable is not None and used >= least * usable

    @property
    def usable_total_m(self) -> int:
        return sum(self._usable.values())

    def can_use_m(self) -> int:
        """Millicores that a replica is expected to use if it can: as much as the busiest one. Where all replicas are
        limited by others, a whole node."""
        most = max(self._usable.values(), default=0)
        return min(max(self._replicas_m, default=0), most) if self._unhindered() else most

    def _unhindered(self) -> bool:
        """Whether the busiest replicas of some job use all that they can: they use less than they hold, or are on nodes
        that are clearly not full; and its other replicas are on such nodes or beside them."""
        calm = {name for name in self.there if self._calm(name)}
        there = (self.jobs[key] for name in calm for key in self.there[name])
        if any(calm.issuperset(load.nodes) for load in there if load.heaviest):
            return True
        spare = (self.jobs[key] for key in self._spare)
        return any(calm.issuperset(load.nodes.keys() - set(load.job.placement[load.heaviest])) for load in spare)

    def _calm(self, name: str) -> bool:
        """Whether the use of a node is known, and at the present weights clearly less than all of its CPU is in use."""
        used, usable = self._used.get(name, 0), self._usable.get(name, 0)
        return self.known(name) and self.settled(name) and used <= CALM * usable

    def left_cpu_s(self, now: float) -> dict[str, float]:
        """CPU seconds of remaining work per job; for a job where it is unknown, the mean of the other jobs."""
        if self._left is None or self._left[0] != now:
            left_by_job = {key: load.left_cpu_s(now) for key, load in self.jobs.items()}
            known = [left for left in left_by_job.values() if left is not None]
            mean = fsum(known) / len(known) if known else LEAST_LEFT_S
            self._left = now, {key: mean if left is None else left for key, left in left_by_job.items()}
        return self._left[1]


def cpu_load_index(snapshot: Snapshot) -> CpuLoad:
    return CpuLoad(snapshot.jobs.values(), snapshot.nodes)


def _lent(job: Job) -> dict[str, int]:
    lent: dict[str, int] = {}
    for type_, millicores in job.cpu.items():
        request = job.spec.requested_cpu(type_)
        for name, each in zip(job.placement.get(type_, ()), millicores, strict=False):
            lent[name] = lent.get(name, 0) + each - request
    return lent


def _load(job: Job) -> JobLoad:
    lent = _lent(job)
    types = [t for t, names in job.placement.items() if names]
    if not types or any(t not in job.cpu_use for t in types):
        return JobLoad(job, {}, {}, 0.0, "", False, lent)
    held = {t: job.held_cpu(t) for t in types}
    replica = {t: round(job.cpu_use[t] * held[t] / len(job.placement[t])) for t in types}
    heaviest = max(types, key=lambda t: replica[t])
    usable = usable_types(job)[heaviest] if job.cpu_shared else held[heaviest]
    spare = job.cpu_settled and replica[heaviest] < FULL * (usable / len(job.placement[heaviest]))
    nodes: dict[str, int] = {}
    for t in types:
        for name in job.placement[t]:
            nodes[name] = nodes.get(name, 0) + replica[t]
    rate = job.steps_per_s
    step_cpu_s = job.step_cpu_s or (sum(nodes.values()) / 1000 / rate if rate > 0 else 0.0)
    return JobLoad(job, replica, nodes, step_cpu_s, heaviest, spare, lent)


# -- Moves from crowded nodes to idle CPU, where they pay --------------------------------------------------------------

WORTHWHILE = 1.25
"""The least speed-up of the replica by a move."""
ALIKE = 1.1
"""A job that has its node alone, and this many times the remaining work of another one, keeps the node alone."""


@dataclass(frozen=True, slots=True)
class Balance:
    """One replica at a time moves from a crowded node to the node with the most idle CPU; the job with the most
    remaining work comes first. Its work there must take `times` what a move costs (`move_s`), and the move must save as
    much. It must also end earlier if that node were shared evenly with the jobs there, since CPU may be idle only for a
    moment. A node that a single job fills takes a job with about as much remaining work or more, if the move saves that
    much by even shares: else one job would hold a whole node while three share the next.

    A job is moved at most `moves` times. A node gets one replica per round, and the next once the use of that is known.
    How much CPU a replica could use is unknown: as much as the busiest one is assumed.
    """

    moves: int
    times: float
    move_s: float
    idle: float
    """The least part of a node's CPU that has to be idle there."""

    def __call__(self, round_: Round) -> None:
        load: CpuLoad = round_.snapshot.index("cpu load", cpu_load_index)
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
        """Seconds that a move must save by even shares; None: no reason for a move. `can_m`: idle millicores that it
        could use there, 0 where too few are idle; `beside_cpu_s`: the remaining work of the only job there, if there is
        just one."""
        uses_m = max(load.replica_m.values(), default=0)
        if uses_m * WORTHWHILE <= can_m and self._pays(part_cpu_s, can_m, queue_s):
            return self.move_s
        if beside_cpu_s is not None and beside_cpu_s <= ALIKE * part_cpu_s:
            return (1 + self.times) * self.move_s
        return None

    def _pays(self, part_cpu_s: float, can_m: int, queue_s: float) -> bool:
        """Whether the replica ends clearly earlier after the move."""
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
    """A job's replicas on a node: the busiest first; a chief last, since all of the job waits while it moves."""
    found = [
        (type_ == CHIEF, -load.replica_m.get(type_, 0), type_, -k)
        for type_, names in load.job.placement.items()
        for k, there in enumerate(names)
        if there == name
    ]
    return [(type_, -k) for _, _, type_, k in sorted(found)]


def _work_cpu_s(load: CpuLoad, left: Mapping[str, float], name: str) -> dict[str, float]:
    """CPU seconds of remaining work per job on a node."""
    jobs = {key: load.jobs[key] for key in load.there.get(name, ())}
    return {
        key: left[key] * job.nodes.get(name, 0) / job.used_m if job.used_m else left[key] for key, job in jobs.items()
    }


def _shared_s(load: CpuLoad, work: Mapping[str, float], key: str, part_cpu_s: float, name: str) -> float:
    """Seconds until a replica ends its work on a node that it shares evenly with the jobs there."""
    others = fsum(min(cpu_s, part_cpu_s) for other, cpu_s in work.items() if other != key)
    return _takes_s(load, part_cpu_s + others, name)


def _part_cpu_s(load: JobLoad, left_cpu_s: float, name: str) -> float:
    """CPU seconds of remaining work of the replica that would move away from a node."""
    type_, _ = _there(load, name)[0]
    return left_cpu_s * load.replica_m.get(type_, 0) / load.used_m if load.used_m else left_cpu_s


def _takes_s(load: CpuLoad, cpu_s: float, name: str) -> float:
    return 1000 * cpu_s / max(1, load.usable_m(name))
