"""CPU that replicas hold, and a speed that follows it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from elastic_tfjob.scheduling.shared_cpu import usable_cpu
from elastic_tfjob.scheduling.snapshot import Cpu, JobSpec, Placement, ReplicaGroup

Cores = Mapping[str, Sequence[float]]
"""CPUs that each replica holds, or can use in its turn, by type."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Steps per second, and by type the mean part of the CPU they can use that its replicas use."""

    steps_per_s: float
    use: Mapping[str, float]


@runtime_checkable
class CpuBound(Protocol):
    """A TrueSpeed that depends on the CPU that replicas can use in their turns."""

    def pace(self, cores: Cores) -> Pace: ...


def cores_held(groups: Sequence[ReplicaGroup], placement: Placement, cpu: Cpu) -> dict[str, list[float]]:
    """CPUs of each replica in `placement`: what `cpu` says, else what it requests."""
    return usable_cores(groups, placement, cpu, shared=False)


def usable_cores(
    groups: Sequence[ReplicaGroup], placement: Placement, cpu: Cpu, *, shared: bool
) -> dict[str, list[float]]:
    """CPUs that each replica can use in its turn: what it holds, or where `shared` what its job does on its node."""
    usable = usable_cpu(groups, placement, cpu, shared=shared)
    return {type_: [millicores / 1000 for millicores in each] for type_, each in usable.items()}


def used_of_held(
    spec: JobSpec, cpu_demand: float | None, placement: Placement, cpu: Cpu, part: float
) -> dict[str, float]:
    """By type, CPU used over CPU held of a job whose containers share their nodes' CPUs, and which works at this part
    of its undisturbed rate. A type that requests no CPU holds none: it is missing."""
    use = {}
    for type_, each in cores_held(spec.groups, placement, cpu).items():
        if all(each):
            can = cpu_demand if cpu_demand is not None else spec.requested_cpu(type_) / 1000
            use[type_] = len(each) * can * part / sum(each)
    return use
