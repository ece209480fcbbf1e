"""Even split: the fewest nodes on which a job's PSs and workers spread evenly."""

from dataclasses import dataclass
from itertools import islice

from elastic_tfjob.scheduling.free_capacity import FreeCapacity, Rank
from elastic_tfjob.scheduling.snapshot import Counts, JobSpec, Placement
from elastic_tfjob.scheduling.stages.place.best_fit import BestFit

RANK: Rank = "least-free"


@dataclass(frozen=True, slots=True)
class EvenSplit:
    """Optimus' placement (Peng et al., EuroSys'18, section 4.2, theorem 1): on the k freest nodes, with k as small as
    can be, each holds an equal number of PSs and of workers (to within one). Where no k does, best fit.
    """

    rank: Rank = RANK
    totals_only: bool = False

    def place(self, spec: JobSpec, add: Counts, room: FreeCapacity, beside: Placement) -> Placement | None:
        if not room.fits_total(spec.demand(add)):
            return None
        allowed = room.allowed(spec)
        tasks = sum(add.values())
        freest = list(islice((i for i in room.descending() if allowed is None or i in allowed), tasks))
        for k in range(1, min(tasks, len(freest)) + 1):
            chosen = freest[:k]
            if all(room.holds(i, spec.demand(share(add, j, k))) for j, i in enumerate(chosen)):
                placement: dict[str, tuple[str, ...]] = {}
                for group in spec.groups:
                    names: list[str] = []
                    for j, i in enumerate(chosen):
                        n = share(add, j, k).get(group.type, 0)
                        if n:
                            room.take_replicas(i, group, n)
                            names += [room.nodes[i].name] * n
                    if names:
                        placement[group.type] = tuple(names)
                return placement
        return BestFit().place(spec, add, room, beside)


def share(counts: Counts, j: int, k: int) -> dict[str, int]:
    """The part of the j-th of k nodes; what does not divide goes to the first ones."""
    return {type_: n // k + (j < n % k) for type_, n in counts.items()}
