"""Borrow whatever is offered, and give back what is wanted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Counts, Job, counts_of
from elastic_tfjob.scheduling.stages.lend.vacate import Guest, Rule, vacate

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
    shrinks = "resize" in round_.profile.needs and not round_.profile.repack
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
