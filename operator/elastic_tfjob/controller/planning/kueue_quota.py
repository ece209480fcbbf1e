"""Kueue's queues and cohorts, and the quota in them that no Workload has. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from elastic_tfjob.controller.model.job import Key
from elastic_tfjob.controller.model.kueue import Cohort, LocalQueue, PodSetUsage, Queue, Quota, Workload

__all__ = ["FreeQuota", "KueueObjects"]


@dataclass(frozen=True, slots=True)
class KueueObjects:
    """Kueue's objects. `of_job` returns the Workloads of a job, base and growth."""

    of_job: Callable[[Key], Iterable[Workload]]
    queues: Mapping[str, Queue]
    local_queues: Mapping[tuple[str, str], LocalQueue]
    cohorts: Mapping[str, Cohort]

    def queue(self, key: Key, name: str) -> Queue | None:
        """The ClusterQueue that admits Workloads of this job; None: it is unknown or stopped."""
        local = self.local_queues.get((key[0], name))
        found = self.queues.get(local.cluster_queue) if local is not None and local.active else None
        return found if found is not None and found.active else None

    def cluster_queue(self, workload: Workload) -> str:
        """The name of the ClusterQueue that a Workload is in; empty: unknown."""
        local = self.local_queues.get((workload.namespace, workload.queue))
        return local.cluster_queue if local is not None else ""

    def root(self, cohort: str) -> str:
        """The cohort at the top of the tree; a cycle, which Kueue rejects too, ends where it began."""
        seen = {cohort}
        while (known := self.cohorts.get(cohort)) is not None and known.parent and known.parent not in seen:
            cohort = known.parent
            seen.add(cohort)
        return cohort


class FreeQuota:
    """Quota that no Workload has. A tree of cohorts is one pool: Kueue would take back what others borrow of a queue's
    own quota, and growth shall evict no running job. What `take` promises counts as used."""

    def __init__(self, objects: KueueObjects) -> None:
        self._objects = objects
        self._taken: defaultdict[tuple[str, Quota], Decimal] = defaultdict(Decimal)
        self._pools: dict[str, defaultdict[Quota, Decimal]] = {}
        for queue in objects.queues.values():
            if queue.cohort:
                pool = self._pools.setdefault(objects.root(queue.cohort), defaultdict(Decimal))
                _add(pool, queue.nominal)
                _add(pool, queue.used, -1)
        for name, cohort in objects.cohorts.items():
            if (found := self._pools.get(objects.root(name))) is not None:
                _add(found, cohort.nominal)

    def fits(self, queue: Queue, asked: PodSetUsage) -> bool:
        return all(self._left(queue, of) >= amount for of, amount in asked.usage.items() if amount)

    def _left(self, queue: Queue, of: Quota) -> Decimal:
        if of not in queue.nominal:
            return Decimal(-1)
        own = queue.nominal[of] - queue.used.get(of, Decimal(0)) - self._taken[queue.name, of]
        if not queue.cohort:
            return own
        pool = self._pools[self._objects.root(queue.cohort)][of]
        limit = queue.most_borrowed.get(of)
        return pool if limit is None else min(pool, own + limit)

    def take(self, queue: Queue, asked: PodSetUsage) -> None:
        for of, amount in asked.usage.items():
            self._taken[queue.name, of] += amount
            if queue.cohort:
                self._pools[self._objects.root(queue.cohort)][of] -= amount


def _add(pool: defaultdict[Quota, Decimal], amounts: Mapping[Quota, Decimal], times: int = 1) -> None:
    for of, amount in amounts.items():
        pool[of] += times * amount
