"""The conditions under which a job's speed is measured: the CPU that its pods can use. As text in annotations and in
the history. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from elastic_tfjob.api.reading import MAX_MILLICORES, Fields, describe
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.scheduling.resources import NOTHING
from elastic_tfjob.scheduling.shared_cpu import slowest_usable, takes_turns
from elastic_tfjob.scheduling.snapshot import ReplicaGroup
from elastic_tfjob.speed.history import MOST_SPREAD, Conditions

__all__ = ["conditions_of", "cpu_shared", "present_conditions", "read_conditions", "written_conditions"]


def cpu_shared(trainers: Iterable[Pod]) -> bool:
    """Whether each training container may use all CPU that the job's training containers hold on its node, and at least
    one may use more than it holds itself. `trainers`: without evaluators, which compute at the same time as other
    replicas."""
    pods, there = list(trainers), Counter[str]()
    for pod in pods:
        there[pod.node] += pod.cpu.request_millicores
    beyond = any(pod.cpu.limit_millicores > pod.cpu.request_millicores for pod in pods)
    return beyond and all(pod.cpu.limit_millicores >= there[pod.node] for pod in pods)


def present_conditions(pods: Mapping[str, Sequence[Pod]]) -> Conditions:
    """The conditions of a speed that is measured with these pods, by replica type: the CPU of training containers."""
    groups = [ReplicaGroup(type_, NOTHING, 0, 0, 0) for type_ in pods]
    placement = {type_: tuple(pod.node for pod in each) for type_, each in pods.items()}
    cpu = {type_: tuple(pod.cpu.request_millicores for pod in each) for type_, each in pods.items()}
    shared = cpu_shared(pod for type_, each in pods.items() if takes_turns(type_) for pod in each)
    return Conditions.of(slowest_usable(groups, placement, cpu, shared=shared))


def written_conditions(found: Conditions) -> list[float]:
    """As stored: the millicores of a worker and of a PS, and the spread."""
    return [round(found.worker_millicores), round(found.ps_millicores), float(f"{found.spread:.2g}")]


def read_conditions(sizes: Fields, size: str) -> Conditions:
    """Reads what `written_conditions` returned. Raises ValueError for anything else."""
    return conditions_of(sizes.items(size, 3), sizes.place(size))


def conditions_of(values: Sequence[object], place: str) -> Conditions:
    """Reads untrusted values, which stand at `place`; see `read_conditions`."""
    most = (MAX_MILLICORES, MAX_MILLICORES, MOST_SPREAD)
    numbers = [float(each) for each in values if isinstance(each, int | float) and not isinstance(each, bool)]
    if not len(numbers) == len(values) == 3 or any(
        not 0 <= each <= limit for each, limit in zip(numbers, most, strict=True)
    ):
        raise ValueError(
            f"{place}: {describe(values)} is not [worker millicores, PS millicores, spread], at most {list(most)}"
        )
    return Conditions(*numbers)
