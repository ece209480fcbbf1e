"""Jobs in the order a profile serves them, kept from round to round."""

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterator
from heapq import heapify, heappop, heapreplace

from elastic_tfjob.scheduling.profile import Order, OrderKey
from elastic_tfjob.scheduling.snapshot import Job, JobSpec, Snapshot

Entry = tuple[float, OrderKey, float, int, str]
"""(-priority, key, arrival, sequence, name): unique per job, smallest first."""


def entry(order: Order, job: Job, now: float) -> Entry:
    spec = job.spec
    return (-spec.priority, order.key(job, now), spec.arrival_s, spec.sequence, spec.key)


def shape(spec: JobSpec) -> Hashable:
    """Jobs of one shape fit, or do not fit, alike."""
    return (spec.groups, spec.constraints, spec.constraints_by_type, spec.loanable)


class Waiting:
    """Waiting jobs, sorted within each shape. If one job of a shape does not fit, none behind it does."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.by_shape: dict[Hashable, list[Entry]] = {}
        self._entry: dict[str, tuple[Hashable, Entry]] = {}

    def change(self, before: Job | None, after: Job | None) -> None:
        if before is not None and before.spec.key in self._entry:
            shape_, old = self._entry.pop(before.spec.key)
            queue = self.by_shape[shape_]
            del queue[bisect_left(queue, old)]
            if not queue:
                del self.by_shape[shape_]
        if after is not None and not after.placement and after.phase == "waiting":
            shape_, new = shape(after.spec), entry(self.order, after, after.observed_s)
            self._entry[after.spec.key] = shape_, new
            insort(self.by_shape.setdefault(shape_, []), new)

    def __len__(self) -> int:
        return len(self._entry)

    def reorder(self, jobs: Callable[[str], Job], now: float) -> None:
        """For orders whose keys move with the clock."""
        for shape_, queue in self.by_shape.items():
            fresh = sorted(entry(self.order, jobs(e[4]), now) for e in queue)
            self.by_shape[shape_] = fresh
            for e in fresh:
                self._entry[e[4]] = shape_, e


class Merge:
    """The waiting jobs of all shapes in one order; `drop` leaves out the rest of the shape last given."""

    def __init__(self, waiting: Waiting) -> None:
        self._heads = [(queue[0], 0, queue) for queue in waiting.by_shape.values()]
        heapify(self._heads)
        self._dropped = False

    def drop(self) -> None:
        self._dropped = True

    def peek(self) -> Entry | None:
        return self._heads[0][0] if self._heads else None

    def advance(self) -> None:
        _, k, queue = self._heads[0]
        if self._dropped or k + 1 >= len(queue):
            heappop(self._heads)
        else:
            heapreplace(self._heads, (queue[k + 1], k + 1, queue))
        self._dropped = False

    def __iter__(self) -> Iterator[Entry]:
        while self._heads:
            yield self._heads[0][0]
            self.advance()


class Running:
    """Jobs that hold something."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}

    def change(self, before: Job | None, after: Job | None) -> None:
        if before is not None:
            self.jobs.pop(before.spec.key, None)
        if after is not None and after.placement:
            self.jobs[after.spec.key] = after


def waiting_view(order: Order) -> Callable[[Snapshot], Waiting]:
    def build(snapshot: Snapshot) -> Waiting:
        waiting = Waiting(order)
        batches: dict[Hashable, list[Entry]] = {}
        for job in snapshot.jobs.values():
            if not job.placement and job.phase == "waiting":
                e, s = entry(order, job, snapshot.now), shape(job.spec)
                waiting._entry[job.spec.key] = s, e
                batches.setdefault(s, []).append(e)
        for queue in batches.values():
            queue.sort()
        waiting.by_shape = batches
        return waiting

    return build


def running_view(snapshot: Snapshot) -> Running:
    running = Running()
    running.jobs = {key: job for key, job in snapshot.jobs.items() if job.placement}
    return running
