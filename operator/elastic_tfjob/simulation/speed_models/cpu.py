"""CPU that replicas hold, and a speed that follows it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from elastic_tfjob.scheduling.snapshot import Cpu, Placement, ReplicaGroup

Cores = Mapping[str, Sequence[float]]
"""CPUs that each replica holds, by type."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Steps per second, and by type the mean part of the CPU they hold that its replicas use."""

    steps_per_s: float
    use: Mapping[str, float]


@runtime_checkable
class CpuBound(Protocol):
    """A TrueSpeed that depends on the CPU that replicas hold."""

    def pace(self, cores: Cores) -> Pace: ...


def cores_held(groups: Sequence[ReplicaGroup], placement: Placement, cpu: Cpu) -> dict[str, list[float]]:
    """CPUs of each replica in `placement`: what `cpu` says, else what it requests."""
    cores = {}
    for group in groups:
        n = len(placement.get(group.type, ()))
        if n:
            each = cpu.get(group.type, (group.request.cpu,) * n)
            cores[group.type] = [held / 1000 for held in each[:n]]
    return cores
