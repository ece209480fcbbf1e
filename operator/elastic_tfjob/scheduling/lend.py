"""No borrowing."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.room import nodes_of
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Counts, Job, Placement, counts_of

__all__ = ["RULES", "Guest", "Rule", "Vacated", "vacate"]


@dataclass(frozen=True, slots=True)
class NoLoans:
    def lend(self, round_: Round) -> None:
        return


# -- Which of the nodes that a pool lent go back to it, and which jobs shrink for that ---------------------------------

Rule = Literal["cost", "fewest", "search", "random"]
"""Which node goes back where all that are left have a job that must be stopped. `cost`: the one with the least server
preemption cost (Aryl, arXiv 2202.07896): a job counts one over the number of lent nodes that it would have to leave, so
that each job costs one in all. `fewest`: the one with the fewest jobs. `search`: what stops the fewest jobs in all of
`cost`, `fewest`, and the one whose stops clear the most nodes each. `random`: any."""
RULES: Final[tuple[Rule, ...]] = ("cost", "fewest", "search", "random")


@dataclass(frozen=True, slots=True)
class Guest:
    """A job with replicas on lent nodes. `minimum`: the replicas per type that it can be brought down to, which are
    all it has where it cannot be resized. `stops`: how often it was stopped before."""

    key: str
    placement: Placement
    minimum: Counts
    stoppable: bool = True
    stops: int = 0


@dataclass(frozen=True, slots=True)
class Vacated:
    """`nodes` that go back, and the `sizes` that jobs are brought to; other jobs on these nodes are `stopped`."""

    nodes: tuple[str, ...]
    sizes: dict[str, Counts]
    stopped: tuple[str, ...]


def vacate(
    named: Iterable[str], lent: Sequence[str], guests: Iterable[Guest], wanted: int, rule: Rule, *, seed: str = ""
) -> Vacated:
    """Choose `wanted` of the nodes `lent`, those `named` first, in this order: nodes without jobs, nodes whose jobs can
    do with fewer replicas (the fewest replicas first), and then by `rule`; ties go to the node whose jobs were stopped
    least often, then to the first. Replicas leave from the highest index, so a job shrinks to below the first replica
    that is on the node. Fewer nodes are chosen where the jobs of the others cannot be stopped. `seed` is for `random`.
    """
    known, asked = tuple(guests), frozenset(named)
    if rule == "search":
        plans = [_vacated(_Moving(lent, known), asked, wanted, rule, seed) for rule in ("cost", "fewest", "clears")]
        most = max(len(plan.nodes) for plan in plans)
        before = {guest.key: guest.stops for guest in known}
        return min(
            (plan for plan in plans if len(plan.nodes) == most),
            key=lambda plan: (len(plan.stopped), sum(before[key] for key in plan.stopped)),
        )
    return _vacated(_Moving(lent, known), asked, wanted, rule, seed)


def _vacated(moving: "_Moving", asked: frozenset[str], wanted: int, rule: str, seed: str) -> Vacated:
    chosen: list[str] = []
    draw = random.Random(seed)
    while len(chosen) < wanted and (free := [name for name in moving.left if moving.can_leave(name)]):
        node = _next(moving, [name for name in free if name in asked] or free, rule, draw, wanted - len(chosen))
        moving.leave(node)
        chosen.append(node)
    return Vacated(tuple(chosen), moving.sizes, tuple(moving.stopped))


def _next(moving: "_Moving", nodes: Sequence[str], rule: str, draw: random.Random, wanted: int) -> str:
    without_stop = [node for node in nodes if not moving.to_stop(node)]
    if without_stop:
        return min(without_stop, key=moving.lost)
    if rule == "random":
        return draw.choice(nodes)
    value: Callable[[str], float] = {
        "cost": moving.cost,
        "fewest": lambda node: float(len(moving.to_stop(node))),
        "clears": lambda node: len(moving.to_stop(node)) / min(wanted, moving.cleared(node)),
    }[rule]
    return min(nodes, key=lambda node: (value(node), moving.stopped_before(node)))


class _Moving:
    """The lent nodes that are left, and what their jobs hold as more of them go."""

    def __init__(self, lent: Sequence[str], guests: Iterable[Guest]) -> None:
        self.left: dict[str, dict[str, Guest]] = {name: {} for name in lent}
        """By node, in the given order, the jobs that have replicas there."""
        self.sizes: dict[str, Counts] = {}
        self.stopped: list[str] = []
        self._needs: dict[str, int] = {}
        """By job, how many lent nodes it cannot do without."""
        for guest in guests:
            for node in nodes_of(guest.placement):
                if node in self.left:
                    self.left[node][guest.key] = guest
                    if self._below(guest, node) is None:
                        self._needs[guest.key] = self._needs.get(guest.key, 0) + 1

    def can_leave(self, node: str) -> bool:
        return all(guest.stoppable for guest in self.to_stop(node))

    def to_stop(self, node: str) -> list[Guest]:
        """Its jobs that cannot do without it."""
        return [guest for guest in self.left[node].values() if self._below(guest, node) is None]

    def lost(self, node: str) -> int:
        """How many replicas go with it, where no job has to be stopped."""
        return sum(
            sum(self._counts(guest).values()) - sum((self._below(guest, node) or {}).values())
            for guest in self.left[node].values()
        )

    def cost(self, node: str) -> float:
        return sum(1 / self._needs.get(guest.key, 1) for guest in self.to_stop(node))

    def cleared(self, node: str) -> int:
        """How many nodes nobody has to be stopped for any more, once this one's jobs are."""
        stopped = {guest.key for guest in self.to_stop(node)}
        beside = {name for guest in self.to_stop(node) for name in nodes_of(guest.placement) if name in self.left}
        return sum(all(guest.key in stopped for guest in self.to_stop(name)) for name in beside)

    def stopped_before(self, node: str) -> int:
        return sum(guest.stops for guest in self.to_stop(node))

    def leave(self, node: str) -> None:
        """Stop the jobs that cannot do without the node, and shrink the others."""
        for guest in self.to_stop(node):
            self.stopped.append(guest.key)
            self.sizes.pop(guest.key, None)
            for there in self.left.values():
                there.pop(guest.key, None)
        for guest in list(self.left[node].values()):
            smaller = self._below(guest, node)
            assert smaller is not None
            self.sizes[guest.key] = smaller
            still = nodes_of({t: names[: smaller.get(t, 0)] for t, names in guest.placement.items()})
            for name, there in self.left.items():
                if name not in still:
                    there.pop(guest.key, None)
        del self.left[node]

    def _counts(self, guest: Guest) -> Counts:
        return self.sizes.get(guest.key) or counts_of(guest.placement)

    def _below(self, guest: Guest, node: str) -> Counts | None:
        """The largest size without this node; None where that is below the minimum."""
        smaller = {}
        for type_, count in self._counts(guest).items():
            names = guest.placement[type_][:count]
            kept = names.index(node) if node in names else count
            if kept < count and kept < guest.minimum.get(type_, 0):
                return None
            smaller[type_] = kept
        return smaller if any(smaller.values()) else None


# -- Borrow whatever is offered, and give back what is wanted ----------------------------------------------------------

Reclaim = Literal["first", Rule]
"""`first`: the first nodes, whoever runs there; else as `vacate` chooses."""


@dataclass(frozen=True, slots=True)
class BorrowOffered:
    """Take all nodes that other pools can spare while a loanable job waits, and give back as many as they want: those
    they ask for by name, then as `reclaim` says. An idle node is kept until then, so that borrowing does not flap with
    the queue. With `first`, which job to hurt least is not weighed: this is the plain baseline.
    """

    reclaim: Reclaim = "first"

    def lend(self, round_: Round) -> None:
        borrowed: list[str] = []
        for name, pool in round_.snapshot.pools.items():
            if not pool.wanted and not pool.spare:
                continue
            nodes = [node for node in round_.snapshot.nodes.values() if node.pool == name]
            named = [node.name for node in nodes if node.loan == "reclaiming"]
            lent = named + [node.name for node in nodes if node.loan == "loaned"]
            round_.give_back(self._chosen(round_, named, lent, pool.wanted), Reason("pool-wants"))
            borrowed += [node.name for node in nodes if node.loan == "offered"][: pool.spare]
        if borrowed and any(spec.loanable for spec in round_.waiting_shapes()):
            round_.borrow(borrowed, Reason("offered"))

    def _chosen(self, round_: Round, named: Sequence[str], lent: Sequence[str], wanted: int) -> Sequence[str]:
        """The nodes to return. Jobs that can do with fewer replicas are shrunk for that; the others on these nodes are
        stopped when the nodes go."""
        if self.reclaim == "first" or not wanted:
            return lent[:wanted]
        seed = f"reclaim-{round_.snapshot.seed}-{round_.now}"
        vacated = vacate(named, lent, guests(round_, frozenset(lent)), wanted, self.reclaim, seed=seed)
        for key, counts in vacated.sizes.items():
            round_.resize(round_.job(key), counts, Reason("node-shrinks"), "repair")
        return vacated.nodes


def guests(round_: Round, lent: frozenset[str]) -> list[Guest]:
    """The jobs on these nodes. Only profiles that resize jobs shrink them: others would not let them grow again."""
    shrinks = "resize" in round_.rules.needs and not round_.rules.repack
    running = [(job, shrinks) for job in round_.running_in_order()]
    guests = []
    for job, resized in (*running, *((job, False) for job in round_.rescaling())):
        placement = round_.placement(job)
        if any(not lent.isdisjoint(names) for names in placement.values()):
            counts = counts_of(placement)
            minimum = _least(job, counts) if resized and job.spec.resizable else counts
            guests.append(Guest(job.key, placement, minimum, job.spec.stoppable, job.stops))
    return guests


def _least(job: Job, counts: Counts) -> Counts:
    return {type_: min(n, job.spec.minimum.get(type_, 0)) for type_, n in counts.items()}
