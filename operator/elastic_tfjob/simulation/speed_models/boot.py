"""A training program that starts costs CPU, and one that trains beside it has that much less.

A job that starts waits for its program. One that is rescaled trains on meanwhile, and what it gives up is free for
others only after that.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from elastic_tfjob.scheduling.placements import more_replicas
from elastic_tfjob.scheduling.snapshot import UNPLACED, Cpu, Placement, ReplicaGroup
from elastic_tfjob.simulation.speed_models.cpu import CpuBound, Pace, cores_held

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
        now: float,
    ) -> float:
        """When it is up, with the CPU that it holds from `now` on: `boot` is told, and a new version of it begins."""
        if boot.takes_s:
            boot.part = max(0.0, boot.part - max(0.0, now - boot.since_s) / boot.takes_s)
        boot.since_s = max(now, boot.not_before_s)
        boot.takes_s = self._takes_s(boot, cores_held(groups, placement, cpu), use)
        at = boot.since_s + boot.part * boot.takes_s
        self._version += 1
        boot.version = self._version
        for name in more_replicas(boot.placement, placement):
            self._released[name] = at
        return at

    def _takes_s(self, boot: Boot, cores: Mapping[str, Sequence[float]], use: Mapping[str, float]) -> float:
        """Seconds until the slowest process has started, beside one that trains with at most half of the CPU."""
        takes_s = 0.0
        for type_, each in cores.items():
            kept = len(boot.placement.get(type_, ()))
            for k, held in enumerate(each):
                spare = held - min(held * use.get(type_, 0.0), held / 2) if k < kept else held
                cpu_s = self._kept_cpu_s if k < kept else self._cpu_s
                takes_s = max(takes_s, cpu_s / min(spare, BOOT_CORES) if spare else inf)
        return takes_s

    def cores(self, boot: Boot, cores: Mapping[str, Sequence[float]], use: Mapping[str, float]) -> float:
        """CPUs that the start takes from each replica that trains beside it. With a warm start that is done long before
        the replicas that are added have started, so this is the mean over all that time."""
        if not self._warm:
            return BOOT_CORES
        takes_s = self._takes_s(boot, cores, use)
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
) -> Training:
    """How a job of real speed `factor` times `bound` trains in `placement`, or beside `boot` where that began."""
    trains = placement if boot is None else boot.placement
    cores = cores_held(groups, trains, cpu if boot is None else boot.cpu)
    pace = bound.pace(cores) if trains else Pace(0.0, {})
    rate = pace.steps_per_s * factor
    busy = sum(pace.use.get(type_, 0.0) * sum(each) for type_, each in cores.items())
    if boot is not None:
        starting = cores_held(groups, placement, cpu)
        taken = boots.cores(boot, starting, pace.use)
        for type_, each in cores.items():
            left = min(max(held - taken, held / 2) / held for held in each if held)
            if (use := pace.use.get(type_, 0.0)) > left:
                rate = min(rate, pace.steps_per_s * factor * left / use)
        kept = {type_: len(cores.get(type_, ())) for type_ in starting}
        busy = max(
            busy,
            sum(
                min(held, taken if k < kept[type_] else BOOT_CORES)
                for type_, each in starting.items()
                for k, held in enumerate(each)
            ),
        )
    return Training(rate, pace.use, busy)
