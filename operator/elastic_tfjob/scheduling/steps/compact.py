"""Empties nodes, one at a time, so that an autoscaler removes them.

An autoscaler removes a node that no pod needs. Jobs would keep each node, since they spread over all of them and grow
into what is free. So where no job lacks room, one node is given up: replicas beyond the declared size go, the others
move to room elsewhere. Both pause a job for as long as a rescale, and cost no step. Growth uses what is left on the
nodes that stay.
"""

from collections.abc import Iterator, Mapping

from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.room import replicas_per_node
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Counts, Job, Node, Placement
from elastic_tfjob.scheduling.steps.order_nodes import has_failed, lacks, without_room

__all__ = ["give_up_node"]

SOON_S = 300.0
"""A job that ends sooner is not moved: its node will be empty by then."""


def give_up_node(round_: Round) -> None:
    """Give up all empty autoscaled nodes, or else the one whose replicas cost least to move for its price, if every
    job keeps room for its declared size. Without such a node nothing changes."""
    rules = round_.snapshot.cluster_rules.compaction
    if rules is None or not rules.due or round_.rules.place.totals_only:
        return
    autoscaled = [node for node in round_.nodes.values() if node.autoscaled and not node.given_up]
    spare = len(autoscaled) - rules.headroom
    if spare <= 0:
        return
    undo = round_.savepoint()
    if round_.rules.adjusts_cpu:
        _give_back_lent_cpu(round_)
    kept = _room_for_declared_sizes(round_)
    if kept is not None:
        on = _jobs_by_node(round_)
        free = [node for node in autoscaled if node.name not in on and _is_free(round_, node.name)]
        idle = [node.name for node in sorted(free, key=lambda node: -_price(node))[:spare]]
        if idle:
            round_.set_given_up(round_.given_up.union(idle))
        elif not any(_empty(round_, name, on[name]) for name in _by_cost(round_, autoscaled, on)):
            kept = None
    if kept is None:
        undo()
        return
    for job, placement in kept:
        round_.room.give(job.spec, placement)


def _give_back_lent_cpu(round_: Round) -> None:
    """Count CPU beyond requests as free, since it is only lent. The profile's steps lend it anew."""
    for job in round_.running_in_order():
        if round_.cpu(job) and job.spec.resizable:
            round_.assign(job, round_.placement(job), Reason("cpu-as-requested"))


def _room_for_declared_sizes(round_: Round) -> list[tuple[Job, Placement]] | None:
    """Takes room for what jobs lack of the sizes that they may order; None: some of it does not fit."""
    kept = []
    for job in without_room(round_):
        if wanted := lacks(round_, job):
            placement = round_.rules.place.place(job.spec, wanted, round_.room, round_.placement(job))
            if placement is not None:
                kept.append((job, placement))
            elif not has_failed(round_, job):
                return None
    return kept


def _jobs_by_node(round_: Round) -> dict[str, dict[str, Counts]]:
    """By node and job, the replicas there, before this round and by its changes."""
    found: dict[str, dict[str, Counts]] = {}
    for job in round_.snapshot.jobs.values():
        for placement in {id(each): each for each in (job.placement, round_.placement(job))}.values():
            for type_, name, n in replicas_per_node(placement):
                of_job = found.setdefault(name, {})
                of_job[job.key] = {**of_job.get(job.key, {}), type_: n}
    return found


def _is_free(round_: Round, name: str) -> bool:
    """Whether nothing is taken on a node, also not for a job that lacks replicas."""
    i = round_.room.index.get(name)
    return i is not None and round_.room.free(i) == round_.room.usable[i]


def _by_cost(round_: Round, nodes: list[Node], on: Mapping[str, Mapping[str, Counts]]) -> Iterator[str]:
    """The nodes that all replicas can leave, by replicas to move for the price; those of leaders last, because the move
    of a leader pauses training for a checkpoint."""
    costs = []
    for node in nodes:
        there = on.get(node.name, {})
        jobs = [round_.job(key) for key in there]
        if not there or not all(_may_leave(round_, job) for job in jobs):
            continue
        leaders = sum(round_.placement(job).get(job.spec.leader, ("",))[0] == node.name for job in jobs)
        moves = sum(sum(_moving(job, there[job.key]).values()) for job in jobs)
        price = _price(node)
        costs.append((leaders, moves / price, -price, node.name))
    return (name for *_, name in sorted(costs))


def _price(node: Node) -> float:
    """By which nodes are compared: proportional to CPU if it is not known."""
    return node.price or node.capacity.cpu_millicores or 1


def _may_leave(round_: Round, job: Job) -> bool:
    """Whether a job may change now, and it is worth it."""
    left_s = job.remaining_s(round_.now)
    return (
        job.phase == "running"
        and job.spec.movable
        and round_.placement(job) == job.placement
        and (left_s is None or left_s > SOON_S)
    )


def _surplus(job: Job) -> dict[str, int]:
    """The replicas beyond the declared size, which cost nothing to give up."""
    if not job.spec.resizable:
        return {}
    return {type_: n - job.spec.declared.get(type_, 0) for type_, n in job.counts.items()}


def _moving(job: Job, there: Counts) -> dict[str, int]:
    """Of the replicas on a node, those that have to move."""
    surplus = _surplus(job)
    return {type_: max(0, n - max(0, surplus.get(type_, 0))) for type_, n in there.items()}


def _empty(round_: Round, name: str, there: Mapping[str, Counts]) -> bool:
    """Give a node up; False, and nothing has changed, if its replicas find no room elsewhere. Where they need it, other
    jobs give up growth, the largest first."""
    undo = round_.savepoint()
    round_.set_given_up({*round_.given_up, name})
    growth = sorted(
        (job for job in round_.running_in_order() if job.key not in there and _has_growth(round_, job)),
        key=lambda job: sum(max(0, n) for n in _surplus(job).values()),
    )
    why = Reason("leaves-to-autoscaler", {"node": name})
    for job in sorted((round_.job(key) for key in there), key=lambda job: -job.spec.demand(there[job.key])[0]):
        left = {type_: n - (there[job.key].get(type_, 0) - m) for type_, n, m in _sizes(job, there[job.key])}
        while not round_.set_size(job, left, why, "compact", leaves=frozenset((name,))):
            if not growth:
                undo()
                return False
            donor = growth.pop()
            fewer = {type_: n - max(0, _surplus(donor).get(type_, 0)) for type_, n in donor.counts.items()}
            round_.resize(donor, fewer, why, "compact")
    return True


def _sizes(job: Job, there: Counts) -> Iterator[tuple[str, int, int]]:
    """By type the job's replicas, and how many of those on the node have to move."""
    moving = _moving(job, there)
    return ((type_, n, moving.get(type_, 0)) for type_, n in job.counts.items() if n)


def _has_growth(round_: Round, job: Job) -> bool:
    return (
        job.phase == "running" and round_.placement(job) == job.placement and any(n > 0 for n in _surplus(job).values())
    )
