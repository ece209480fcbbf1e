"""Orders nodes from an autoscaler for jobs that wait, or run below their declared size.

An autoscaler adds a node for a pod that fits nowhere. A job that waits for its nodes has no pods, so without orders
nothing is ever added for it. The core says which replicas find no room; where they run it decides later, as ever, when
the new nodes are there. Growth beyond the declared size orders nothing.
"""

from collections.abc import Iterator

from elastic_tfjob.scheduling.reasons import added
from elastic_tfjob.scheduling.room import lacking
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Counts, Job, OrderRules, counts_of

__all__ = ["has_failed", "lacks", "order_nodes", "without_room"]


def order_nodes(round_: Round) -> None:
    """Find the jobs without room for their size: first those without any replica, then running ones, both in the
    profile's order. What still fits on the present nodes is set aside for that job: a later round starts it there. For
    the others, nodes that were given up are taken back; if these do not help either, the job orders what it lacks."""
    rules, place = round_.snapshot.cluster_rules, round_.rules.place
    if place.totals_only or (rules.orders is None and rules.compaction is None):
        return
    for job in round_.running_in_order():
        if cpu := round_.cpu(job):  # it is only lent
            round_.room.book_cpu(job.spec, round_.placement(job), cpu, -1)
    missing: list[tuple[Job, Counts]] = []
    for job in without_room(round_):
        wanted = lacks(round_, job)
        if (
            wanted
            and job.key not in round_.content
            and _allowed(round_, job, wanted)
            and place.place(job.spec, wanted, round_.room, round_.placement(job)) is None
        ):
            missing.append((job, wanted))
    if missing and round_.given_up:
        given_up = set(round_.given_up)
        round_.set_given_up(())
        still = [
            each
            for each in missing
            if place.place(each[0].spec, each[1], round_.room, round_.placement(each[0])) is None
        ]
        if len(still) == len(missing):
            round_.set_given_up(given_up)
        missing = still
        round_.lacks_room = not round_.given_up
    round_.lacks_room |= any(not has_failed(round_, job) for job, _ in missing)
    if rules.orders is not None:
        _order(round_, rules.orders, missing)


def _order(round_: Round, rules: OrderRules, missing: list[tuple[Job, Counts]]) -> None:
    """Order within the limits of the rules. A job whose order exceeds a limit is passed over, since a smaller one may
    fit within it. If it waits, its reason names the limit."""
    pods = cpu_millicores = 0
    for job, wanted in missing:
        if job.key in rules.failed:
            continue
        more_pods, more_cpu = _size(job, wanted)
        full = bool(rules.jobs) and len(round_.orders) >= rules.jobs
        if not (limit := "jobs" if full else _exceeded(rules, pods + more_pods, cpu_millicores + more_cpu)):
            pods, cpu_millicores = pods + more_pods, cpu_millicores + more_cpu
            round_.orders[job.key] = wanted
        elif not job.placement and job.key not in round_.changes:
            round_.refuse(job, added(round_.refusals.get(job.key, round_.held_back), order_limit=limit))


def without_room(round_: Round) -> Iterator[Job]:
    """The jobs that have nothing at this point of the round, then those that have something, in the profile's order."""
    found = {entry[4]: round_.job(entry[4]) for entry in round_.waiting()}
    found |= {job.key: job for job in round_.running_in_order() if job.key not in found}
    yield from (job for job in found.values() if not round_.placement(job))
    yield from (job for job in found.values() if round_.placement(job))


def has_failed(round_: Round, job: Job) -> bool:
    """Whether no autoscaler has filled the job's last order, and it is too early for the next; or its order alone would
    exceed a limit."""
    rules = round_.snapshot.cluster_rules.orders
    return rules is not None and (job.key in rules.failed or bool(_exceeded(rules, *_size(job, lacks(round_, job)))))


def _size(job: Job, wanted: Counts) -> tuple[int, int]:
    """The pods of an order, and the millicores that they request."""
    return sum(wanted.values()), job.spec.demand(wanted).cpu_millicores


def _exceeded(rules: OrderRules, pods: int, cpu_millicores: int) -> str:
    """The limit that orders of this size would exceed; empty: none."""
    return "pods" if 0 < rules.pods < pods else "cpu" if 0 < rules.cpu_millicores < cpu_millicores else ""


def lacks(round_: Round, job: Job) -> Counts:
    """The replicas that a job lacks of the size that it may order; empty: none. A replica on a lost node is lacking: it
    found no room elsewhere."""
    rules = round_.snapshot.cluster_rules.orders
    size = job.spec.minimum if rules is not None and rules.size == "smallest" else job.spec.declared
    there = {t: tuple(name for name in names if name in round_.nodes) for t, names in round_.placement(job).items()}
    return lacking(there, size)


def _allowed(round_: Round, job: Job, more: Counts) -> bool:
    """Whether the job's team may have these replicas, too."""
    if round_.quota is None:
        return True
    held = counts_of(round_.placement(job))
    return round_.quota.allows(job, {type_: held.get(type_, 0) + more.get(type_, 0) for type_ in {**held, **more}})
