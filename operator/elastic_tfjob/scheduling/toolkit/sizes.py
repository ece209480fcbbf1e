"""The sizes beside one that a job has or wants, and when it may change."""

from collections.abc import Callable
from typing import Final, Protocol

from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Counts, Job, JobSpec

EACH_OF: Final = 8
"""So many sizes from one that is wanted downward are each tried."""

MANY: Final = 64
"""A job that could give as many replicas gives more than one at a time."""


class Sizes(Protocol):
    """Sizes of a job, the largest first; some are made only when they are asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, k: int, /) -> Counts: ...


def movable(job: Job, round_: Round) -> bool:
    """Whether the job's size may change now. A waiting job may always start."""
    if job.phase == "rescaling":
        return False
    if not job.placement:
        return True
    return job.spec.resizable and round_.now - job.rescaled_s >= round_.profile.cooldown_s


class Downward:
    """This size, then ever smaller ones down to the minimum."""

    def __init__(self, job: Job, counts: Counts) -> None:
        minimum = job.spec.minimum
        self._counts = counts
        self._least: dict[str, int] = {}
        self._number = 1
        for type_ in (WORKER, PS):
            n = counts.get(type_, 0)
            least = self._least[type_] = min(n, minimum.get(type_, 0))
            self._number = max(self._number, 1 + n - least)

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, k: int, /) -> Counts:
        if not 0 <= k < self._number:
            raise IndexError(f"size {k} of {self._number}")
        if not k:
            return self._counts
        least = self._least
        return {type_: max(least[type_], n - k) if type_ in least else n for type_, n in self._counts.items()}


def largest(round_: Round, job: Job, sizes: Sizes, attempt: Callable[[Counts], bool], number: int | None = None) -> int:
    """Give the job the largest of the first `number` sizes (None: of all) that finds nodes, and tell which; -1 where
    none does. `attempt` gives it a size on the Round, or says that it finds no nodes and leaves the Round as it was.

    The first sizes are each tried. Where there are more, the one to be found is searched for by halving, as if there
    were nodes for all that is smaller than what finds some: a job of thousands of replicas costs some tries, and one
    for which there are no nodes at all one more than a small job.
    """
    number = len(sizes) if number is None else number
    for k in range(min(EACH_OF, number)):
        if attempt(sizes[k]):
            return k
    mark, had = round_.room.mark(), round_.changes.get(job.key)
    too_large, found = EACH_OF - 1, number - 1
    if found <= too_large or not attempt(sizes[found]):
        return -1
    stands = True
    while found - too_large > 1:
        if stands:
            round_.undo(mark, {job.key: had})
        middle = (too_large + found) // 2
        stands = attempt(sizes[middle])
        if stands:
            found = middle
        else:
            too_large = middle
    if not stands:
        attempt(sizes[found])  # it found nodes before, and nothing has changed since
    return found


def bundle_more(spec: JobSpec, counts: Counts) -> Counts | None:
    """One worker and one PS more, as far as their maxima allow; None at the maximum."""
    grown = dict(counts)
    for type_ in (PS, WORKER):
        group = spec.group(type_)
        if group is not None and grown.get(type_, 0) < group.maximum:
            grown[type_] = grown.get(type_, 0) + 1
    return None if grown == counts else grown


def some_fewer(counts: Counts, floor: Counts) -> Counts | None:
    """One worker less, or where there is none to give one PS; None at the floor. Of one that could give very many, a
    small part of them, so that giving all takes some steps and not thousands."""
    for type_ in (WORKER, PS):
        spare = counts.get(type_, 0) - floor.get(type_, 0)
        if spare > 0:
            return {**counts, type_: counts[type_] - 1 - spare // MANY}
    return None
