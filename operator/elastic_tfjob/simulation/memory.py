"""The memory of parameter servers: what they use, when the kernel kills one, and when a limit is raised before that.

What is used follows from the steps done, so a job that is back at its checkpoint uses what it used there. Between two
changes of a job's speed all moments are therefore known beforehand, and no clock ticks. The rule is the operator's
(scheduling/memory_limit.py), and it sees the figures that a launcher would report of this use.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor, inf, isclose
from typing import Any, Final, NamedTuple

from elastic_tfjob.scheduling.memory_limit import (
    AGAIN_S,
    GIVE_UP_S,
    NO_ROOM_S,
    MemoryFigures,
    MemoryRule,
    after_kill,
    fits,
    raised,
    short,
)
from elastic_tfjob.scheduling.plan import Assignment
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.room import FreeCapacity
from elastic_tfjob.scheduling.snapshot import OUTGROWN, PS, Job, JobSpec, Node, Placement, ReplicaGroup
from elastic_tfjob.simulation.result import JobRecord
from elastic_tfjob.simulation.speed_models.base import TrueSpeed
from elastic_tfjob.simulation.workload import MemoryGrowth, WorkloadJob

__all__ = ["IN_FORCE", "OPERATORS", "Figures", "LimitRules"]

IN_FORCE: Final = 0
KILL: Final = 1
RAISE: Final = 2
"""What happens next: a raised limit comes into force, the kernel kills, or the rule raises the limit or the number of
parameter servers."""

MOST_KILLS: Final = 6
"""A job that is killed more often at one limit fails: each time it is back where it uses more than that. This is the
`backoffLimit` of a Kubernetes Job by default."""

POLL_S: Final = 5.0
"""Seconds between two reports of a launcher."""
IN_FORCE_S: Final = 5.0
"""Seconds from a report until the limit that it calls for is in force."""
SAVE_S: Final = 60.0
"""A job that will be killed, and cannot have more, saves so many seconds before."""
WINDOW_S: Final = 180.0
LATELY_S: Final = 9.0
"""A launcher reports the growth over the last WINDOW_S, and that of late (runtime/memory_use.py)."""


class Figures(NamedTuple):
    """What a launcher reports: see MemoryFigures."""

    highest_bytes: int | None
    growth_bytes_per_s: float | None
    growth_of_late_bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class LimitRules:
    """How limits follow the use of memory: by default as in the operator. A benchmark compares other rules."""

    rule: MemoryRule = field(default_factory=MemoryRule)
    fits: Callable[[MemoryRule, int, MemoryFigures], bool] = fits
    raised: Callable[[MemoryRule, int, MemoryFigures, int], int] = raised
    short: Callable[[MemoryRule, int, MemoryFigures], bool] = short
    after_kill: Callable[[MemoryRule, int, int], int] = after_kill


OPERATORS: Final = LimitRules()


@dataclass(slots=True)
class PsMemory:
    """The memory of one parameter server of a job; all of them are alike, and hold more where there are fewer than
    `group` declares. `limit` is what each asks for (bytes), which plans count, and `in_force` what the kernel goes by.
    `raised_s`: when it was raised last; `next_look_s`: when the kubelets try a raise that is not in force yet;
    `again_s`: when there may be raises again. `kills`: those since the limit in force changed. `replicas`: the present
    number of parameter servers, and `least` the number among which memory has to be divided. Use is counted up to
    `counted_s`, when the job had done `counted_steps`."""

    growth: MemoryGrowth
    declared_steps_per_s: float
    """The speed at the declared size, by which growth per hour is growth per step."""
    group: ReplicaGroup
    limit: int
    in_force: int
    replicas: int
    least: int = 0
    raised_s: float = -inf
    again_s: float = -inf
    next_look_s: float = -inf
    deferred: bool = False
    """Whether a node has had no room for the raise."""
    silent: bool = False
    """Whether nothing is reported, so that only kills tell of the use."""
    kills: int = 0
    counted_s: float = 0.0
    counted_steps: float = 0.0

    @classmethod
    def of(cls, work: WorkloadJob, speed: TrueSpeed) -> "PsMemory | None":
        """None: the use of the job is not simulated. Raises ValueError where the speed model has no speed for it."""
        group = next((group for group in work.groups if group.type == PS), None)
        if work.memory is None or group is None:
            return None
        rate = speed.steps_per_s({each.type: each.count for each in work.groups})
        if not rate:
            raise ValueError(f"job {work.key}: its memory grows, but the speed model has no speed at its declared size")
        limit = group.request.memory_bytes
        return cls(work.memory, rate, group, limit, limit, group.count)

    # ---- how much is used

    @property
    def _share(self) -> float:
        return self.group.count / self.replicas

    @property
    def _first(self) -> float:
        return self._share * self.growth.first

    @property
    def _per_step(self) -> float:
        return self._share * self.growth.per_h / 3600 / self.declared_steps_per_s

    @property
    def _jump(self) -> float:
        return self._share * self.growth.jump

    @property
    def _jump_step(self) -> float:
        return self.growth.jump_s * self.declared_steps_per_s if self.growth.jump else inf

    def used(self, steps: float) -> float:
        """Bytes in use after so many steps."""
        return self._first + self._per_step * steps + (self._jump if steps >= self._jump_step else 0.0)

    def count(self, record: JobRecord, steps: float, now: float) -> None:
        """Record what all parameter servers asked for and used since the last time."""
        passed, before = now - self.counted_s, self.counted_steps
        if passed > 0:
            mean = self._first + self._per_step * (before + steps) / 2
            if steps > max(before, self._jump_step):
                mean += self._jump * (steps - max(before, self._jump_step)) / (steps - before)
            elif before >= self._jump_step:
                mean += self._jump
            record.ps_held_byte_s += self.replicas * passed * self.limit
            record.ps_used_byte_s += self.replicas * passed * mean
        self.counted_s, self.counted_steps = now, steps

    def figures(self, steps: float, steps_per_s: float, *, jumps: bool = True) -> Figures:
        """What is reported while the job trains at this speed. `jumps`: a jump a short while ago counts as growth."""
        steady = self._per_step * steps_per_s
        age_s = (steps - self._jump_step) / steps_per_s if jumps and steps_per_s else -1.0

        # The mean of the window's second half less that of the first, by the time between them; of late, the rise.
        half_s = WINDOW_S / 2
        growth = steady + self._jump * max(0.0, min(age_s, WINDOW_S - age_s)) / half_s / half_s
        of_late = steady + (self._jump / LATELY_S if 0 <= age_s < LATELY_S else 0.0)
        return Figures(round(self.used(steps)), growth, of_late)

    # ---- what happens next

    def next_event(
        self, rules: LimitRules, steps: float, steps_per_s: float, since_s: float, total_steps: float
    ) -> tuple[float, int] | None:
        """When the next thing happens, and what, if the job trains from `since_s` on at this speed. None: nothing."""
        found = [(max(self.next_look_s, self.counted_s), IN_FORCE)] if self.in_force < self.limit else []
        if steps_per_s > 0:
            kill_s = since_s + max(0.0, self._killed_at_step - steps) / steps_per_s
            end_s = min(kill_s, since_s + max(0.0, total_steps - steps) / steps_per_s)
            if kill_s == end_s:
                found.append((kill_s, KILL))
            if (raise_s := self._raise_s(rules, steps, steps_per_s, since_s, end_s)) is not None:
                found.append((raise_s, RAISE))
        return min(found, default=None)

    @property
    def _killed_at_step(self) -> float:
        def reaches(room: float) -> float:
            if room < 0:
                return 0.0
            return room / self._per_step if self._per_step else inf

        room = self.in_force - self._first
        return min(reaches(room), max(self._jump_step, reaches(room - self._jump)))

    def _raise_s(
        self, rules: LimitRules, steps: float, steps_per_s: float, since_s: float, end_s: float
    ) -> float | None:
        """The first report from `since_s` to `end_s` by which the limit is raised, or the number of replicas."""
        divides = max(self.least, self.replicas) == self.replicas < self.group.maximum
        if self.silent or self.growth.most is None or not (self.limit < self.growth.most or divides):
            return None

        def unfit(k: int, *, jumps: bool = True) -> bool:
            use = self.figures(steps + steps_per_s * (POLL_S * k - since_s), steps_per_s, jumps=jumps)
            if self.most(POLL_S * k) > self.limit:
                return not rules.fits(rules.rule, self.limit, use)
            return divides and rules.short(rules.rule, self.limit, use)

        polls = range(ceil(since_s / POLL_S), floor(end_s / POLL_S) + 1)
        # Without what a jump seems to grow for a while, the use only rises, and one search finds the first report.
        k = polls.start + bisect_left(polls, True, key=lambda k: unfit(k, jumps=False))
        jump_s = since_s + (self._jump_step - steps) / steps_per_s
        if jump_s + WINDOW_S >= since_s and jump_s < inf:
            after = range(max(polls.start, ceil(jump_s / POLL_S)), min(k, ceil((jump_s + WINDOW_S) / POLL_S)))
            k = next((each for each in after if unfit(each)), k)
        return POLL_S * k if k < polls.stop else None

    # ---- limits

    def most(self, now: float) -> int:
        """The bytes up to which the limit may be raised now."""
        return self.limit if self.growth.most is None or now < self.again_s else max(self.limit, self.growth.most)

    def starts(self, now: float) -> None:
        """New pods have the limit that is asked for."""
        self._take_effect()
        self.counted_s = now

    def forecast_exceeds(self, rules: LimitRules, steps: float, steps_per_s: float, now: float) -> None:
        """Raise the limit, or if that may not be, the number of parameter servers."""
        if (most := self.most(now)) > self.limit:
            self.limit = rules.raised(rules.rule, self.limit, self.figures(steps, steps_per_s), most)
            self.raised_s, self.next_look_s, self.deferred = now, now + IN_FORCE_S, False
        else:
            self.least = self.replicas + 1

    def killed(self, rules: LimitRules, steps: float, now: float) -> float:
        """The limit after a kill, which comes into force with the restart. Returns the most seconds of training that
        are lost: a kill by growth is foreseen."""
        self.kills += 1
        most, before = self.most(now), self.limit
        self.limit = rules.after_kill(rules.rule, before, most)
        if self.limit > before:
            self.raised_s = now
        known = self.growth.most is not None and not self.silent
        foreseen = known and most == before and not isclose(steps, self._jump_step)
        return SAVE_S if foreseen else inf

    def look(self, lacking: Sequence[str], now: float) -> tuple[str, ...]:
        """The kubelets try a raise: it is in force unless nodes lack room. Returns the nodes that replicas leave, as
        they have lacked room for a while."""
        if not lacking:
            self._take_effect()
            return ()
        if now - self.raised_s >= GIVE_UP_S:
            self.limit, self.again_s, self.deferred = self.in_force, now + AGAIN_S, False
            return ()
        leave, self.deferred, self.next_look_s = self.deferred, True, now + NO_ROOM_S
        return tuple(lacking) if leave else ()

    def _take_effect(self) -> None:
        if self.in_force < self.limit:
            self.in_force, self.kills, self.deferred = self.limit, 0, False


# -- What plans see ----------------------------------------------------------------------------------------------------


def with_memory(spec: JobSpec, memory: PsMemory) -> JobSpec:
    """The spec with what its parameter servers ask for, and the number among which memory has to be divided."""
    request = memory.group.request._replace(memory_bytes=memory.limit)
    least, count = max(memory.group.minimum, memory.least), max(memory.group.count, memory.least)
    asks = replace(memory.group, request=request, minimum=least, count=count)
    return replace(spec, groups=tuple(asks if group.type == PS else group for group in spec.groups))


def lacking_nodes(counted: JobSpec, limit: int, placement: Placement, room: FreeCapacity) -> list[str]:
    """The nodes of parameter servers that have no room for this limit, where `room` counts what `counted` asks for."""
    group = counted.group(PS)
    more = limit - group.request.memory_bytes if group is not None else 0
    there = Counter(placement.get(PS, ()))
    return [
        name for name, n in there.items() if (i := room.index.get(name)) is not None and room.memory_bytes[i] < more * n
    ]


def leaving(job: Job, names: Collection[str]) -> Job:
    """The job as a plan sees it whose parameter servers shall leave these nodes."""
    marked = tuple(f"{name}{OUTGROWN}" if name in names else name for name in job.placement[PS])
    return replace(job, placement={**job.placement, PS: marked})


def stays_taken(node: Node, job: Job, in_force: int) -> Node:
    """The node without what these parameter servers hold until they have left."""
    group = job.spec.group(PS)
    assert group is not None
    taken, cpu = Resources(), job.cpu.get(PS, (group.request.cpu_millicores,) * len(job.placement[PS]))
    for name, millicores in zip(job.placement[PS], cpu, strict=True):
        if name == node.name:
            taken = taken.plus(group.request._replace(cpu_millicores=millicores, memory_bytes=in_force))
    return replace(node, free=node.free.minus(taken).positive())


def on_real_nodes(target: Assignment) -> Assignment:
    """The target with the names of nodes that there are: a replica for which no other node has room stays."""
    nodes = {type_: tuple(name.removesuffix(OUTGROWN) for name in names) for type_, names in target.nodes.items()}
    return replace(target, nodes=nodes)


# -- What is told ------------------------------------------------------------------------------------------------------


def memory_numbers(records: Sequence[JobRecord]) -> dict[str, Any]:
    """The numbers of a summary; empty where no use of memory was simulated."""
    if not (used := sum(r.ps_used_byte_s for r in records)):
        return {}
    return {
        "memory_kills": sum(r.memory_kills for r in records),
        "memory_raises": sum(r.memory_raises for r in records),
        "memory_failed": sum(r.memory_failed for r in records),
        "memory_held_by_used": sum(r.ps_held_byte_s for r in records) / used,
    }
