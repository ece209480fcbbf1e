"""Loans: when a profile borrows nodes of another pool, and which of them it gives back."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.room import nodes_of
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Counts, Job, Placement, counts_of

__all__ = ["RULES", "Guest", "Rule", "Vacated", "vacate"]

Rule = Literal["cost", "fewest", "search", "random"]
"""The rule that chooses a node to return if every candidate has a job that must be stopped. `cost`: the node with the
least server preemption cost (Aryl, arXiv 2202.07896): for each of its jobs a node counts one over the number of
borrowed nodes that the job would have to leave, so each job costs one in total. `fewest`: the node with the fewest
jobs. `search`: the plan with the fewest stops among `cost`, `fewest`, and the node whose stops clear the most nodes
each. `random`: any."""
RULES: Final[tuple[Rule, ...]] = ("cost", "fewest", "search", "random")

Reclaim = Literal["first", Rule]
"""Which nodes are returned: the `first` ones, whatever runs on them, which is the plain baseline; otherwise the nodes
that `vacate` chooses."""


@dataclass(frozen=True, slots=True)
class Guest:
    """A job with replicas on borrowed nodes. `minimum`: the fewest replicas per type to which it can shrink; its
    present size if it cannot be resized. `stops`: how often it was stopped before."""

    key: str
    placement: Placement
    minimum: Counts
    stoppable: bool = True
    stops: int = 0


@dataclass(frozen=True, slots=True)
class Vacated:
    """The `nodes` to return, and the `sizes` to which jobs shrink; all other jobs on these nodes are `stopped`."""

    nodes: tuple[str, ...]
    sizes: dict[str, Counts]
    stopped: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BorrowOffered:
    """Borrow all nodes that other pools can spare while a loanable job waits, and return as many as these pools want:
    first the nodes that they request by name, then nodes chosen by `reclaim`. An idle node is kept until its pool wants
    it, so that nodes are not borrowed and returned with every change of the queue."""

    reclaim: Reclaim = "first"

    def __call__(self, round_: Round) -> None:
        borrowed: list[str] = []
        for name, pool in round_.snapshot.pools.items():
            if not pool.wanted and not pool.spare:
                continue
            nodes = [node for node in round_.snapshot.nodes.values() if node.pool == name]
            named = [node.name for node in nodes if node.loan == "reclaiming"]
            lent = named + [node.name for node in nodes if node.loan == "loaned"]
            round_.give_back(self._chosen(round_, named, lent, pool.wanted), Reason("pool-wants"))
            borrowed += [node.name for node in nodes if node.loan == "offered"][: pool.spare]
        if borrowed and any(spec.loanable for spec in round_.distinct_waiting_specs()):
            round_.borrow(borrowed, Reason("offered"))

    def _chosen(self, round_: Round, named: Sequence[str], lent: Sequence[str], wanted: int) -> Sequence[str]:
        """The nodes to return. Jobs that can run with fewer replicas shrink; the other jobs on these nodes are stopped
        when the nodes are returned."""
        if self.reclaim == "first" or not wanted:
            return lent[:wanted]
        seed = f"reclaim-{round_.snapshot.seed}-{round_.now}"
        vacated = vacate(named, lent, guests(round_, frozenset(lent)), wanted, self.reclaim, seed=seed)
        for key, counts in vacated.sizes.items():
            round_.resize(round_.job(key), counts, Reason("node-shrinks"), "repair")
        return vacated.nodes


def guests(round_: Round, lent: frozenset[str]) -> list[Guest]:
    """The jobs on these nodes. They may shrink only under profiles that resize jobs: other profiles would never grow
    them again."""
    shrinks = "resize" in round_.rules.needs and not round_.rules.repack
    running = [(job, shrinks) for job in round_.running_in_order()]
    guests = []
    for job, resized in (*running, *((job, False) for job in round_.rescaling())):
        placement = round_.placement(job)
        if any(not lent.isdisjoint(names) for names in placement.values()):
            counts = counts_of(placement)
            minimum = _smallest(job, counts) if resized and job.spec.resizable else counts
            guests.append(Guest(job.key, placement, minimum, job.spec.stoppable, job.stops))
    return guests


def _smallest(job: Job, counts: Counts) -> Counts:
    return {type_: min(n, job.spec.minimum.get(type_, 0)) for type_, n in counts.items()}


# -- Which nodes go back, and which jobs shrink or stop for that -------------------------------------------------------


def vacate(
    named: Iterable[str], lent: Sequence[str], guests: Iterable[Guest], wanted: int, rule: Rule, *, seed: str = ""
) -> Vacated:
    """Choose `wanted` of the nodes `lent`, those `named` first, in this order: nodes without jobs; nodes whose jobs can
    shrink (the fewest replicas first); then by `rule`. Ties go to the node whose jobs were stopped least often, then to
    the first. Replicas leave from the highest index, so a job shrinks to below its first replica on the node. Nodes
    whose jobs cannot be stopped are not chosen, so there may be fewer. `seed` is for `random`.
    """
    known, asked = tuple(guests), frozenset(named)
    if rule == "search":
        plans = [
            _vacated(_BorrowedNodes(lent, known), asked, wanted, rule, seed) for rule in ("cost", "fewest", "clears")
        ]
        most = max(len(plan.nodes) for plan in plans)
        before = {guest.key: guest.stops for guest in known}
        return min(
            (plan for plan in plans if len(plan.nodes) == most),
            key=lambda plan: (len(plan.stopped), sum(before[key] for key in plan.stopped)),
        )
    return _vacated(_BorrowedNodes(lent, known), asked, wanted, rule, seed)


def _vacated(borrowed: "_BorrowedNodes", asked: frozenset[str], wanted: int, rule: str, seed: str) -> Vacated:
    chosen: list[str] = []
    draw = random.Random(seed)
    while len(chosen) < wanted and (free := [name for name in borrowed.jobs_on if borrowed.can_leave(name)]):
        node = _next(borrowed, [name for name in free if name in asked] or free, rule, draw, wanted - len(chosen))
        borrowed.leave(node)
        chosen.append(node)
    return Vacated(tuple(chosen), borrowed.sizes, tuple(borrowed.stopped))


def _next(borrowed: "_BorrowedNodes", nodes: Sequence[str], rule: str, draw: random.Random, wanted: int) -> str:
    without_stop = [node for node in nodes if not borrowed.to_stop(node)]
    if without_stop:
        return min(without_stop, key=borrowed.lost)
    if rule == "random":
        return draw.choice(nodes)
    value: Callable[[str], float] = {
        "cost": borrowed.cost,
        "fewest": lambda node: float(len(borrowed.to_stop(node))),
        "clears": lambda node: len(borrowed.to_stop(node)) / min(wanted, borrowed.cleared(node)),
    }[rule]
    return min(nodes, key=lambda node: (value(node), borrowed.stopped_before(node)))


class _BorrowedNodes:
    """The borrowed nodes that remain, and what their jobs hold while more nodes are chosen."""

    def __init__(self, lent: Sequence[str], guests: Iterable[Guest]) -> None:
        self.jobs_on: dict[str, dict[str, Guest]] = {name: {} for name in lent}
        """By node, in the given order, the jobs with replicas there."""
        self.sizes: dict[str, Counts] = {}
        self.stopped: list[str] = []
        self._needs: dict[str, int] = {}
        """By job, the number of borrowed nodes that it cannot leave without a stop."""
        for guest in guests:
            for node in nodes_of(guest.placement):
                if node in self.jobs_on:
                    self.jobs_on[node][guest.key] = guest
                    if self._below(guest, node) is None:
                        self._needs[guest.key] = self._needs.get(guest.key, 0) + 1

    def can_leave(self, node: str) -> bool:
        return all(guest.stoppable for guest in self.to_stop(node))

    def to_stop(self, node: str) -> list[Guest]:
        """The jobs that cannot leave this node without a stop."""
        return [guest for guest in self.jobs_on[node].values() if self._below(guest, node) is None]

    def lost(self, node: str) -> int:
        """The number of replicas that leave with the node without the stop of a job."""
        return sum(
            sum(self._counts(guest).values()) - sum((self._below(guest, node) or {}).values())
            for guest in self.jobs_on[node].values()
        )

    def cost(self, node: str) -> float:
        return sum(1 / self._needs.get(guest.key, 1) for guest in self.to_stop(node))

    def cleared(self, node: str) -> int:
        """The number of nodes that need no further stop once this node's jobs are stopped."""
        stopped = {guest.key for guest in self.to_stop(node)}
        beside = {name for guest in self.to_stop(node) for name in nodes_of(guest.placement) if name in self.jobs_on}
        return sum(all(guest.key in stopped for guest in self.to_stop(name)) for name in beside)

    def stopped_before(self, node: str) -> int:
        return sum(guest.stops for guest in self.to_stop(node))

    def leave(self, node: str) -> None:
        """Stop the jobs that cannot leave the node otherwise, and shrink the others."""
        for guest in self.to_stop(node):
            self.stopped.append(guest.key)
            self.sizes.pop(guest.key, None)
            for there in self.jobs_on.values():
                there.pop(guest.key, None)
        for guest in list(self.jobs_on[node].values()):
            smaller = self._below(guest, node)
            assert smaller is not None
            self.sizes[guest.key] = smaller
            still = nodes_of({t: names[: smaller.get(t, 0)] for t, names in guest.placement.items()})
            for name, there in self.jobs_on.items():
                if name not in still:
                    there.pop(guest.key, None)
        del self.jobs_on[node]

    def _counts(self, guest: Guest) -> Counts:
        return self.sizes.get(guest.key) or counts_of(guest.placement)

    def _below(self, guest: Guest, node: str) -> Counts | None:
        """The largest size without replicas on this node; None if that is below the minimum."""
        smaller = {}
        for type_, count in self._counts(guest).items():
            names = guest.placement[type_][:count]
            kept = names.index(node) if node in names else count
            if kept < count and kept < guest.minimum.get(type_, 0):
                return None
            smaller[type_] = kept
        return smaller if any(smaller.values()) else None
