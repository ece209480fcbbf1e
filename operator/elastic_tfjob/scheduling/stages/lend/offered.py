"""Borrow whatever is offered."""

from dataclasses import dataclass

from elastic_tfjob.scheduling.plan import Loan
from elastic_tfjob.scheduling.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class BorrowOffered:
    """Take every node that the other pool offers while a loanable job waits, and give it back when that pool wants it.
    An idle one is kept until then, so that borrowing does not flap with the queue. Which job to hurt least is not
    weighed: this is the plain baseline.
    """

    def lend(self, snapshot: Snapshot) -> tuple[Loan, ...]:
        foreign = [node for node in snapshot.nodes.values() if node.loan not in ("own", "busy")]
        if not foreign:
            return ()
        wanted = any(job.spec.loanable and not job.placement for job in snapshot.jobs.values())
        loans = []
        for node in foreign:
            if node.loan == "reclaiming":
                loans.append(Loan(node.name, "return", "its own pool needs it"))
            elif node.loan == "offered" and wanted:
                loans.append(Loan(node.name, "borrow", "offered, and a loanable job waits"))
        return tuple(loans)
