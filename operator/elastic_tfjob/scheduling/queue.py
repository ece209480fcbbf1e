"""Queues of jobs in a profile's order, kept from round to round."""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from math import inf, nextafter

from elastic_tfjob.scheduling.rules import Order, OrderKey
from elastic_tfjob.scheduling.snapshot import Job, Node, Snapshot

Entry = tuple[float, OrderKey, float, int, str]
"""(-priority, key, arrival, sequence, name): unique per job, smallest first."""


def entry(order: Order, job: Job, now: float) -> Entry:
    spec = job.spec
    return (-spec.priority, order.key(job, now), spec.arrival_s, spec.sequence, spec.key)


def in_cooldown(job: Job, cooldown_s: float, now: float) -> bool:
    """Whether it is too early to resume a stopped job, or to stop a resumed one."""
    return bool(job.stops) and (job.resumed_s if job.placement else job.stopped_s) + cooldown_s - now > 0


class JobQueue:
    """The waiting jobs, in one sorted list per placement key (if one does not fit, no later one of its list does), or
    the running jobs in one list. Keys follow changes of jobs and, through a heap of jumps, the clock.
    """

    def __init__(self, order: Order, running: bool) -> None:
        self.order = order
        self.running = running
        self.lists: dict[Hashable, list[Entry]] = {}
        self._entries: dict[str, tuple[Hashable, Entry, Job]] = {}
        self._jumps: list[tuple[float, str, int]] = []
        self._now = -inf

    def __len__(self) -> int:
        return len(self._entries)

    def change(self, before: Job | None, after: Job | None, now: float) -> None:
        known = self._entries.get(before.spec.key) if before is not None else None
        if after is None or not self._belongs(after, now):
            if known is not None:
                self._remove(known[1][4])
        elif known is None:
            self._insert(after, now)
        elif known[:2] == (self._kind(after), entry(self.order, after, now)):
            self._entries[after.spec.key] = (*known[:2], after)
            self._push_jump(after, now)
            self._replaced(known[1], after)
        else:
            self._remove(after.spec.key)
            self._insert(after, now)

    def change_nodes(self, nodes: Mapping[str, Node]) -> bool:
        return True

    def at(self, now: float) -> "JobQueue":
        """This queue with its keys updated to now."""
        if now < self._now:
            for _, _, job in list(self._entries.values()):
                self.change(job, job, now)
        self._now = now
        while self._jumps and self._jumps[0][0] <= now:
            at, key, identity = heappop(self._jumps)
            known = self._entries.get(key)
            if known is not None and id(known[2]) == identity:
                self._remove(key)
                self._insert(known[2], now)
                if at == now:  # a key may hold for this instant only, such as that of a job that sinks just now
                    heappush(self._jumps, (nextafter(now, inf), key, identity))
        return self

    def _belongs(self, job: Job, now: float) -> bool:
        return job.phase != "rescaling" and bool(job.placement) == self.running

    def _kind(self, job: Job) -> Hashable:
        """The key of the job's list."""
        return None if self.running else job.spec.placement_key

    def _removed(self, k: int) -> None:
        """Called after the entry at this place of its list was removed."""

    def _inserted(self, k: int, job: Job) -> None:
        """Called after an entry was inserted at this place of its list."""

    def _replaced(self, entry: Entry, job: Job) -> None:
        """Called after a job changed and kept its place."""

    def _remove(self, key: str) -> None:
        kind, old, _ = self._entries.pop(key)
        entries = self.lists[kind]
        k = bisect_left(entries, old)
        del entries[k]
        if not entries:
            del self.lists[kind]
        self._removed(k)

    def _insert(self, job: Job, now: float) -> None:
        kind = self._kind(job)
        new = entry(self.order, job, now)
        self._entries[job.spec.key] = kind, new, job
        entries = self.lists.setdefault(kind, [])
        k = bisect_left(entries, new)
        entries.insert(k, new)
        self._push_jump(job, now)
        self._inserted(k, job)

    def _push_jump(self, job: Job, now: float) -> None:
        at = self.order.next_jump_s(job, now)
        if at is not None and at > now:
            heappush(self._jumps, (at, job.spec.key, id(job)))

    def fill(self, snapshot: Snapshot) -> "JobQueue":
        now = self._now = snapshot.now
        for job in snapshot.jobs.values():
            if self._belongs(job, now):
                kind = self._kind(job)
                new = entry(self.order, job, now)
                self._entries[job.spec.key] = kind, new, job
                self.lists.setdefault(kind, []).append(new)
                self._push_jump(job, now)
        for entries in self.lists.values():
            entries.sort()
        return self


class WaitingJobs:
    """All waiting jobs in one order; `drop` skips the remaining jobs with the placement key of the last one.

    `lead` is added to the first part of their keys, to compare them with keys of running jobs.
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
        """The next entry, with the lead."""
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


def queue_index(order: Order, running: bool) -> Callable[[Snapshot], JobQueue]:
    return lambda snapshot: JobQueue(order, running).fill(snapshot)
