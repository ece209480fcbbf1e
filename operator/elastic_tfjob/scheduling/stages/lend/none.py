"""No borrowing."""

from dataclasses import dataclass

from elastic_tfjob.scheduling.plan import Loan
from elastic_tfjob.scheduling.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class NoLoans:
    def lend(self, snapshot: Snapshot) -> tuple[Loan, ...]:
        return ()
