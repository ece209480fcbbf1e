"""All jobs and nodes as one Snapshot. Pure."""

from collections.abc import Iterable, Mapping

from elastic_tfjob.controller.objects.affinity import NAME_FIELD
from elastic_tfjob.controller.objects.cluster import ForeignPod, Node
from elastic_tfjob.controller.objects.loan import without_loaned
from elastic_tfjob.controller.schedule.lending import NOTHING_LENT, Lending
from elastic_tfjob.controller.schedule.scheduled_job import ScheduledJob
from elastic_tfjob.scheduling import snapshot as core
from elastic_tfjob.scheduling.resources import NOTHING, Resources
from elastic_tfjob.speed.history import History

__all__ = ["assemble"]


def assemble(
    scheduled: Iterable[ScheduledJob],
    nodes: Mapping[str, Node],
    foreign: Iterable[ForeignPod],
    now_s: float,
    previous: core.Snapshot | None = None,
    *,
    history: History = core.NOTHING_LEARNED,
    lending: Lending = NOTHING_LENT,
) -> core.Snapshot:
    """The Snapshot; evolved from the previous one where no node changed.

    Of a node at least that is left which the jobs' own pods request there: they run, and the kubelet admits no more
    than the node has. What others ask for beyond it they never get, like a pod whose author has chosen its node, or one
    that was told to grow.
    """
    used = {name: [0] * len(NOTHING) for name in nodes}
    stands = {name: [0] * len(NOTHING) for name in nodes}
    jobs: dict[str, core.Job] = {}
    for each in scheduled:
        if each.job is not None:
            jobs[each.job.key] = each.job
        for name, taken in each.others.items():
            _add(used, name, taken)
        for name, taken in each.stands.items():
            _add(stands, name, taken)
    for pod in foreign:
        _add(used, pod.node, pod.requests)
    free: dict[str, core.Node] = {}
    for name, node in nodes.items():
        capacity = node.allocatable
        left = capacity.minus(Resources(*used[name]))
        left = Resources(*map(min, capacity, map(max, left, stands[name]))).positive()
        labels = {**node.labels, NAME_FIELD: name}
        if (standing := lending.nodes.get(name)) is None:
            free[name] = core.Node(name, capacity, left, labels=labels, taints=node.taints)
        else:  # the operator's own taint keeps away the pool's pods, not loanable jobs
            taints = tuple(without_loaned(node.taints))
            free[name] = core.Node(
                name, capacity, left, standing.pool, labels, taints, standing.accelerator_speed, standing.loan
            )
    if previous is None:
        return core.Snapshot(now_s, free, jobs, pools=lending.pools, history=history)
    return previous.evolve(
        now_s,
        changed=[job for key, job in jobs.items() if previous.jobs.get(key) != job],
        removed=[key for key in previous.jobs if key not in jobs],
        nodes=None if free == previous.nodes else free,
        pools=lending.pools,
        history=history,
    )


def _add(used: dict[str, list[int]], node: str, amount: Resources) -> None:
    if (sums := used.get(node)) is not None:
        for i, part in enumerate(amount):
            sums[i] += part
