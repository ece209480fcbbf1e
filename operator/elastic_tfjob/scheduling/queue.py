"""Jobs in the order a profile serves them, kept from round to round."""

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from math import inf, nextafter

from elastic_tfjob.scheduling.profile import Order, OrderKey
from elastic_tfjob.scheduling.snapshot import Job, Node, Snapshot

Entry = tuple[float, OrderKey, float, int, str]
"""(-priority, key, arrival, sequence, name): unique per job, smallest first."""


def entry(order: Order, job: Job, now: float) -> Entry:
    spec = job.spec
    return (-spec.priority, order.key(job, now), spec.arrival_s, spec.sequence, spec.key)


class JobQueue:
    """The waiting jobs, sorted within each shape (if one of a shape does not fit, none behind it does), or the
    running ones in one list. Keys follow the jobs' changes and, through a heap of jumps, the clock.
    """

    def __init__(self, order: Order, running: bool) -> None:
        self.order = order
        self.running = running
        self.lists: dict[Hashable, list[Entry]] = {}
        self._entries: dict[str, tuple[Hashable, Entry, Job]] = {}
        self._jumps: list[tuple[float, str, int]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def change(self, before: Job | None, after: Job | None, now: float) -> None:
        if before is not None and before.spec.key in self._entries:
            self._remove(before.spec.key)
        if after is not None and self._belongs(after):
            self._insert(after, now)

    def change_nodes(self, nodes: Mapping[str, Node]) -> bool:
        return True

    def at(self, now: float) -> "JobQueue":
        """Itself, with the keys that have jumped by now put right."""
        while self._jumps and self._jumps[0][0] <= now:
            at, key, identity = heappop(self._jumps)
            found = self._entries.get(key)
            if found is not None and id(found[2]) == identity:
                self._remove(key)
                self._insert(found[2], now)
                if at == now:  # a key may hold for this instant only, such as that of a job that sinks just now
                    heappush(self._jumps, (nextafter(now, inf), key, identity))
        return self

    def _belongs(self, job: Job) -> bool:
        return job.phase != "rescaling" and bool(job.placement) == self.running

    def _remove(self, key: str) -> None:
        shape_, old, _ = self._entries.pop(key)
        entries = self.lists[shape_]
        del entries[bisect_left(entries, old)]
        if not entries:
            del self.lists[shape_]

    def _insert(self, job: Job, now: float) -> None:
        shape_ = None if self.running else job.spec.shape
        new = entry(self.order, job, now)
        self._entries[job.spec.key] = shape_, new, job
        insort(self.lists.setdefault(shape_, []), new)
        self._push_jump(job, now)

    def _push_jump(self, job: Job, now: float) -> None:
        at = self.order.next_jump_s(job, now)
        if at is not None and at > now:
            heappush(self._jumps, (at, job.spec.key, id(job)))

    def fill(self, snapshot: Snapshot) -> "JobQueue":
        now = snapshot.now
        for job in snapshot.jobs.values():
            if self._belongs(job):
                shape_ = None if self.running else job.spec.shape
                new = entry(self.order, job, now)
                self._entries[job.spec.key] = shape_, new, job
                self.lists.setdefault(shape_, []).append(new)
                self._push_jump(job, now)
        for entries in self.lists.values():
            entries.sort()
        return self


class WaitingJobs:
    """The waiting jobs of all shapes in one order; `drop` leaves out the rest of the shape last given.

    `lead` is added to the first part of their keys, to compare them with those of running jobs.
    """

    def __init__(self, waiting: JobQueue, lead: float = 0.0, requeued: Iterable[Entry] = ()) -> None:
        self.lead = lead
        self._heads = [(entries[0], 0, entries) for entries in waiting.lists.values()]
        self._heads += [(entry, 0, [entry]) for entry in requeued]
        heapify(self._heads)
        self._dropped = False

    def drop(self) -> None:
        self._dropped = True

    def peek(self) -> Entry | None:
        """The next one, with the lead."""
        if not self._heads:
            return None
        head = self._heads[0][0]
        if self.lead:
            key = head[1]
            return (head[0], (key[0] + self.lead, *key[1:]), *head[2:])
        return head

    def advance(self) -> None:
        _, k, entries = self._heads[0]
        if self._dropped or k + 1 >= len(entries):
            heappop(self._heads)
        else:
            heapreplace(self._heads, (entries[k + 1], k + 1, entries))
        self._dropped = False

    def __iter__(self) -> Iterator[Entry]:
        while self._heads:
            yield self._heads[0][0]
            self.advance()


def queue_view(order: Order, running: bool) -> Callable[[Snapshot], JobQueue]:
    return lambda snapshot: JobQueue(order, running).fill(snapshot)
