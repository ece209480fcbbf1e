"""Borrow whatever is offered."""

from dataclasses import dataclass

from elastic_tfjob.scheduling.round import Round


@dataclass(frozen=True, slots=True)
class BorrowOffered:
    """Take all nodes that other pools can spare while a loanable job waits, and give back as many as they want: those
    they ask for by name, then the first ones. An idle node is kept until then, so that borrowing does not flap with the
    queue. Which job to hurt least is not weighed: this is the plain baseline.
    """

    def lend(self, round_: Round) -> None:
        returned: list[str] = []
        borrowed: list[str] = []
        for name, pool in round_.snapshot.pools.items():
            if not pool.wanted and not pool.spare:
                continue
            nodes = [node for node in round_.snapshot.nodes.values() if node.pool == name]
            lent = [node.name for state in ("reclaiming", "loaned") for node in nodes if node.loan == state]
            returned += lent[: pool.wanted]
            borrowed += [node.name for node in nodes if node.loan == "offered"][: pool.spare]
        round_.give_back(returned, "its own pool needs it")
        if borrowed and any(spec.loanable for spec in round_.waiting_shapes()):
            round_.borrow(borrowed, "offered, and a loanable job waits")
