"""A training program that starts costs CPU, and one that trains beside it has that much less.

A job that starts waits for its program. One that is rescaled trains on meanwhile, and what it gives up is free for
others only after that.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from elastic_tfjob.scheduling.placements import more_replicas
from elastic_tfjob.scheduling.shared_cpu import takes_turns
from elastic_tfjob.scheduling.snapshot import UNPLACED, Cpu, Placement, ReplicaGroup, counts_of
from elastic_tfjob.simulation.speed_models.cpu import CpuBound, Pace, cores_held, usable_cores

BOOT_CORES = 1.0
"""CPUs that a program can use while it starts: importing and tracing run on one."""


@dataclass(slots=True)
class Boot:
    """A program on its way up: beside the one that trains in `placement`, if any. `part` is what was left at
    `since_s`, of `takes_s` in all with the CPU held now. `version` tells its latest end from those foreseen before."""

    placement: Placement
    cpu: Cpu
    pause_s: float
    not_before_s: float
    since_s: float
    part: float = 1.0
    takes_s: float = 0.0
    version: int = 0


@dataclass(frozen=True, slots=True)
class Training:
    """Steps per second, by type the part of the CPU held that is used, and the CPUs used by all that runs."""

    steps_per_s: float
    use: Mapping[str, float]
    busy: float


@dataclass(frozen=True, slots=True)
class Pool:
    """CPUs that one replica holds, or that those of one node share: by type, with their index."""

    cores: float
    replicas: Sequence[tuple[str, int, float]]
    """Each with what it holds of them."""

    def used(self, use: Mapping[str, float], counts: Mapping[str, int]) -> float:
        """CPUs that the first replicas of each type use of them, so many as `counts` says."""
        return sum(held * use.get(type_, 0.0) for type_, k, held in self.replicas if k < counts.get(type_, 0))


def pools(groups: Sequence[ReplicaGroup], placement: Placement, cpu: Cpu, *, shared: bool) -> list[Pool]:
    """What replicas share, as usable_cpu() has it."""
    found: dict[tuple[str, ...], list[tuple[str, int, float]]] = {}
    for type_, each in cores_held(groups, placement, cpu).items():
        alone = not (shared and takes_turns(type_))
        for k, (name, held) in enumerate(zip(placement[type_], each, strict=False)):
            found.setdefault((type_, str(k)) if alone else (name,), []).append((type_, k, held))
    return [Pool(sum(held for _, _, held in replicas), replicas) for replicas in found.values()]


class Boots:
    """The programs of all jobs that start. `cpu_s` is the CPU time of starting one process, `kept_cpu_s` that of one in
    a replica that stays."""

    def __init__(self, cpu_s: float, kept_cpu_s: float | None = None) -> None:
        self._cpu_s = cpu_s
        self._kept_cpu_s = cpu_s if kept_cpu_s is None else kept_cpu_s
        self._warm = kept_cpu_s is not None
        self._released: dict[str, float] = {}
        """By node: when what leaves it by a rescale is gone."""
        self._version = 0

    def begin(
        self, old: Placement, old_cpu: Cpu, new: Placement, pause_s: float, now: float, *, instead: Boot | None = None
    ) -> Boot:
        """A program in `new` beside the one in `old`; it waits until what leaves its nodes is gone. Where that one was
        still starting, as `instead`, its start was in vain: nothing trains beside the new one."""
        if instead is not None and not instead.placement:
            return Boot(UNPLACED, {}, max(pause_s, instead.pause_s), self.free_s(more_replicas(new, old), now), now)
        return Boot(old, old_cpu, pause_s, self.free_s(more_replicas(new, old), now), now)

    def foresee(
        self,
        boot: Boot,
        *,
        groups: Sequence[ReplicaGroup],
        placement: Placement,
        cpu: Cpu,
        use: Mapping[str, float],
        shared: bool,
        now: float,
    ) -> float:
        """When it is up, with the CPU that it holds from `now` on: `boot` is told, and a new version of it begins."""
        if boot.takes_s:
            boot.part = max(0.0, boot.part - max(0.0, now - boot.since_s) / boot.takes_s)
        boot.since_s = max(now, boot.not_before_s)
        boot.takes_s = self._takes_s(boot, pools(groups, placement, cpu, shared=shared), use)
        at = boot.since_s + boot.part * boot.takes_s
        self._version += 1
        boot.version = self._version
        for name in more_replicas(boot.placement, placement):
            self._released[name] = at
        return at

    def _takes_s(self, boot: Boot, where: Iterable[Pool], use: Mapping[str, float]) -> float:
        """Seconds until the slowest process has started, beside one that trains with at most half of the CPU."""
        takes_s, kept = 0.0, counts_of(boot.placement)
        for pool in where:
            spare = pool.cores - min(pool.used(use, kept), pool.cores / 2)
            cpu_s = sum(self._kept_cpu_s if k < kept.get(t, 0) else self._cpu_s for t, k, _ in pool.replicas)
            most = BOOT_CORES * len(pool.replicas)
            takes_s = max(takes_s, cpu_s / min(spare, most) if spare else inf)
        return takes_s

    def cores(self, boot: Boot, where: Iterable[Pool], use: Mapping[str, float]) -> float:
        """CPUs that the start takes from each replica that trains beside it. With a warm start that is done long before
        the replicas that are added have started, so this is the mean over all that time."""
        if not self._warm:
            return BOOT_CORES
        takes_s = self._takes_s(boot, where, use)
        return min(BOOT_CORES, self._kept_cpu_s / takes_s) if takes_s else 0.0

    def free_s(self, names: Iterable[str], now: float) -> float:
        """When what leaves these nodes by rescales is gone."""
        return max((self._released.get(name, now) for name in names), default=now)

    def gone(self, names: Iterable[str], now: float) -> None:
        """What was to leave these nodes by a rescale is gone at once."""
        self._released |= dict.fromkeys(names, now)


def training(
    bound: CpuBound,
    *,
    factor: float,
    groups: Sequence[ReplicaGroup],
    placement: Placement,
    cpu: Cpu,
    boot: Boot | None,
    boots: Boots,
    shared: bool = False,
) -> Training:
    """How a job of real speed `factor` times `bound` trains in `placement`, or beside `boot` where that began.
    `shared`: its replicas share the CPU that it holds on a node."""
    trains, held_cpu = (placement, cpu) if boot is None else (boot.placement, boot.cpu)
    cores = cores_held(groups, trains, held_cpu)
    usable = usable_cores(groups, trains, held_cpu, shared=True) if shared else cores
    pace = bound.pace(usable) if trains else Pace(0.0, {})
    rate = pace.steps_per_s * factor
    use = {type_: used * _part(usable[type_], cores[type_]) for type_, used in pace.use.items()}
    busy = sum(use.get(type_, 0.0) * sum(each) for type_, each in cores.items())
    if boot is not None:
        starting = cores_held(groups, placement, cpu)
        taken = boots.cores(boot, pools(groups, placement, cpu, shared=shared), use)
        counts = counts_of(trains)
        for pool in pools(groups, trains, held_cpu, shared=shared):
            if pool.cores:
                left = max(pool.cores - taken * len(pool.replicas), pool.cores / 2) / pool.cores
                if (part := pool.used(use, counts) / pool.cores) > left:
                    rate = min(rate, pace.steps_per_s * factor * left / part)
        kept = {type_: len(cores.get(type_, ())) for type_ in starting}
        busy = max(
            busy,
            sum(
                min(held, taken if k < kept[type_] else BOOT_CORES)
                for type_, each in starting.items()
                for k, held in enumerate(each)
            ),
        )
    return Training(rate, use, busy)


def _part(usable: Sequence[float], held: Sequence[float]) -> float:
    return sum(usable) / sum(held) if any(held) else 1.0
