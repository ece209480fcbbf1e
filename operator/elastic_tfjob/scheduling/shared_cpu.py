"""Shared CPU: on each node, each replica of a job may use all the CPU that the job holds there.

Chief, PS and workers take turns: while one computes, others wait for it. So if each replica is limited to its own CPU,
most of the job's CPU is idle. If the limit is the CPU of all replicas on the node, it is not. Other jobs lose nothing:
requests, which are the weights, do not change. Evaluators take no turns and share nothing.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from elastic_tfjob.scheduling.snapshot import EVALUATOR, Counts, Cpu, Job, Placement, ReplicaGroup

__all__ = [
    "held_by_node",
    "slowest_usable",
    "takes_turns",
    "time_in_turn",
    "usable_at",
    "usable_cpu",
    "usable_types",
    "use_in_turn",
]


def takes_turns(type_: str) -> bool:
    """Whether replicas of this type wait while other types compute."""
    return type_ != EVALUATOR


def held_by_node(requested: Mapping[str, int], placement: Placement, cpu: Cpu) -> dict[str, int]:
    """By node, the millicores of all replicas that take turns: from `cpu`, else what one replica of the type requests.
    Types that are not in `requested` do not count."""
    held: dict[str, int] = {}
    for type_, asked in requested.items():
        if takes_turns(type_):
            each = cpu.get(type_, ())
            for k, name in enumerate(placement.get(type_, ())):
                held[name] = held.get(name, 0) + (each[k] if k < len(each) else asked)
    return held


def usable_cpu(
    groups: Sequence[ReplicaGroup], placement: Placement, cpu: Cpu, *, shared: bool
) -> dict[str, tuple[float, ...]]:
    """Millicores that each replica can use in its type's turn: its own; where CPU is shared, the job's CPU on the node
    divided by the replicas of the type there."""
    held: dict[str, tuple[float, ...]] = {}
    for group in groups:
        if n := len(placement.get(group.type, ())):
            held[group.type] = tuple(cpu.get(group.type, ())[:n]) or (group.request.cpu_millicores,) * n
    if not shared:
        return held
    on_node = held_by_node({group.type: group.request.cpu_millicores for group in groups}, placement, cpu)
    for type_ in held:
        if takes_turns(type_):
            names = placement[type_]
            there = Counter(names)
            held[type_] = tuple(on_node[name] / there[name] for name in names)
    return held


def slowest_usable(groups: Sequence[ReplicaGroup], placement: Placement, cpu: Cpu, *, shared: bool) -> dict[str, float]:
    """By type, the millicores that the replica with the least CPU can use in its type's turn, since the others wait for
    it in each step. A type without replicas has what one requests."""
    found = {group.type: float(group.request.cpu_millicores) for group in groups}
    return found | {t: float(min(each)) for t, each in usable_cpu(groups, placement, cpu, shared=shared).items()}


def usable_at(job: Job, counts: Counts, usable: Mapping[str, float]) -> dict[str, float]:
    """`slowest_usable` at a size whose nodes are not chosen yet, if present replicas have `usable`. An added replica
    may be alone on its node, and then has what it requests."""
    found = dict(usable)
    for type_, n in counts.items():
        if n > len(job.placement.get(type_, ())):
            found[type_] = min(found.get(type_, 0.0), float(job.spec.requested_cpu(type_)))
    return found


def usable_types(job: Job, cpu: Cpu | None = None) -> dict[str, float]:
    """Millicores that all replicas of a type together can use in the type's turn, with the job's present CPU or with
    `cpu`."""
    each = usable_cpu(job.spec.groups, job.placement, job.cpu if cpu is None else cpu, shared=job.cpu_shared)
    return {type_: float(sum(millicores)) for type_, millicores in each.items()}


def use_in_turn(job: Job) -> Mapping[str, float]:
    """By type, CPU used / CPU that its replicas can use. The sum over types that take turns is the part of the time in
    which one of them computes. For a type without CPU, the reported use."""
    if not job.cpu_shared:
        return job.cpu_use
    usable = usable_types(job)
    return {
        type_: use * job.held_cpu(type_) / usable[type_] if usable.get(type_) else use
        for type_, use in job.cpu_use.items()
    }


def time_in_turn(job: Job) -> Mapping[str, float]:
    """By type, the part of the time in which its replicas compute. Where they share CPU, that of the replica that can
    use least, since the others wait for it in each step."""
    if not job.cpu_shared:
        return job.cpu_use
    found: dict[str, float] = {}
    usable = usable_cpu(job.spec.groups, job.placement, job.cpu, shared=True)
    for type_, use in job.cpu_use.items():
        least = min(usable.get(type_, ()), default=0.0)
        found[type_] = min(1.0, use * job.held_cpu(type_) / len(usable[type_]) / least) if least else use
    return found
