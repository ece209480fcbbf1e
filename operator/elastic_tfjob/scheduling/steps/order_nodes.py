"""Orders nodes from an autoscaler for jobs that wait, or run below their declared size.

An autoscaler adds a node for a pod that fits nowhere. A job that waits for its nodes has no pods, so without orders
nothing is ever added for it. The core says which replicas find no room; where they run it decides later, as ever, when
the new nodes are there. Growth beyond the declared size orders nothing.
"""

from collections.abc import Iterator

from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Counts, Job, OrderRules

__all__ = ["order_nodes"]


def order_nodes(round_: Round) -> None:
    """Order room for what jobs lack of their size: first jobs without any replica, then running ones, both in the
    profile's order, up to the limits of the rules. What still fits on the present nodes is not ordered, and is set
    aside for that job: a later round starts it there. A job whose order exceeds a limit is passed over, since a smaller
    one may fit within it."""
    rules, place = round_.snapshot.cluster_rules.orders, round_.rules.place
    if rules is None or place.totals_only:
        return
    mark = round_.room.mark()
    pods = cpu_millicores = 0
    for job in _without_room(round_):
        if rules.jobs and len(round_.orders) >= rules.jobs:
            break
        if job.key in rules.failed or not (lacks := _lacks(round_, job, rules)):
            continue
        if place.place(job.spec, lacks, round_.room, round_.placement(job)) is not None:
            continue
        more_pods, more_cpu = sum(lacks.values()), job.spec.demand(lacks).cpu_millicores
        if rules.pods and pods + more_pods > rules.pods:
            continue
        if rules.cpu_millicores and cpu_millicores + more_cpu > rules.cpu_millicores:
            continue
        pods, cpu_millicores = pods + more_pods, cpu_millicores + more_cpu
        round_.orders[job.key] = lacks
    round_.room.rollback(mark)


def _without_room(round_: Round) -> Iterator[Job]:
    """The jobs that have nothing after this round, then those that have something."""
    found = {entry[4]: round_.job(entry[4]) for entry in round_.waiting()}
    found |= {job.key: job for job in round_.running_in_order() if job.key not in found}
    yield from (job for job in found.values() if not round_.placement(job))
    yield from (job for job in found.values() if round_.placement(job))


def _lacks(round_: Round, job: Job, rules: OrderRules) -> Counts:
    """The replicas that a job lacks of the size that it may order; empty: none."""
    size = job.spec.minimum if rules.size == "smallest" else job.spec.declared
    held = {type_: len(names) for type_, names in round_.placement(job).items()}
    return {type_: n - held.get(type_, 0) for type_, n in size.items() if n > held.get(type_, 0)}
