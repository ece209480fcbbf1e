"""Preemption: room for a job from replicas that other jobs can spare, a few at a time, all or nothing."""

from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import Protocol

from elastic_tfjob.scheduling.plan import Assignment
from elastic_tfjob.scheduling.reasons import Reason, added
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Counts, Job, JobSpec, Node, PlacementKey, counts_of
from elastic_tfjob.scheduling.steps.sizes import some_fewer

Rank = tuple[float, ...]


class Donors(Protocol):
    """Which jobs give replicas, and in which order. `needed`: also declared replicas, down to the job's minimum."""

    def gives(self, donor: Job, needed: bool) -> bool:
        """Whether the job can give replicas now. Called for jobs that start in this round, and for running jobs above
        their minimum."""
        ...

    def floor(self, donor: Job, needed: bool) -> Counts:
        """The smallest size to which the job may shrink."""
        ...

    def rank(self, donor: Job) -> Rank:
        """The job with the smallest rank gives first. Computed again after each replica."""
        ...

    def facts(self, donor: Job) -> Mapping[str, float]:
        """Further facts of the reason why this job gives."""
        ...

    def serves(self, donor: Job, fewer: Counts, job: Job) -> bool:
        """Whether the donor may shrink to `fewer` for this job."""
        ...


class AboveMinimum:
    """An index of the running jobs above their minimum, so that a round need not look at the others."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.keys: dict[str, None] = {}
        for job in jobs:
            self.change(None, job, 0.0)

    def change(self, before: Job | None, after: Job | None, now: float) -> None:
        if before is not None:
            self.keys.pop(before.spec.key, None)
        if after is not None and after.placement and after.phase == "running" and after.spec.elastic:
            least = after.spec.minimum
            if any(len(names) > least.get(type_, 0) for type_, names in after.placement.items()):
                self.keys[after.spec.key] = None

    def change_nodes(self, nodes: Mapping[str, Node]) -> bool:
        return True


class Preemption:
    """The donors of one round."""

    def __init__(self, round_: Round, donors: Donors) -> None:
        self._round = round_
        self._donors = donors
        self._known: dict[bool, tuple[list[tuple[Rank, str]], Resources]] = {}
        """By `needed`: a heap of donors, and an upper bound of what could become free."""
        self._in_vain: dict[str, list[tuple[JobSpec, bool]]] = {}
        """By namespace where teams share the cluster: there, jobs of another one may take from other jobs."""
        self._holdable: dict[tuple[PlacementKey, tuple[str, ...]], bool] = {}

    def take(self, job: Job, demand: Counts, why: Reason, attempt: Callable[[], bool], *, needed: bool) -> bool:
        """Take replicas from other jobs, a few at a time, until `attempt` succeeds; all or nothing.

        Replicas taken from nodes that the job does not use are given back.
        """
        round_, donors = self._round, self._donors
        known = self._known.get(needed)
        if known is None:
            known = self._known[needed] = self._find(needed)
        heap, usable_capacity = known
        asks = job.spec.minimum_demand if demand is job.spec.minimum else job.spec.demand(demand)
        if not heap or not asks.within(usable_capacity) or not self._could_hold(job.spec, demand):
            return False
        mark, before = round_.room.mark(), dict[str, Assignment | None]()
        passed_over: list[tuple[Rank, str]] = []
        while heap:
            rank, key = heappop(heap)
            donor = round_.job(key)
            if donor is job:
                passed_over.append((rank, key))
                continue
            fewer = some_fewer(counts_of(round_.placement(donor)), donors.floor(donor, needed))
            if fewer is None:
                continue
            if not donors.serves(donor, fewer, job):
                passed_over.append((rank, key))
                continue
            had = round_.changes.get(key)
            # A donor that is placed again as a whole may find no nodes even for fewer; asking it again would not end.
            if not round_.resize(donor, fewer, added(why, **donors.facts(donor))):
                passed_over.append((rank, key))
                continue
            before.setdefault(key, had)
            if attempt():
                self._give_back(before, round_.placement(job).values())
                for entry in (*passed_over, *((donors.rank(round_.job(k)), k) for k in before)):
                    heappush(heap, entry)
                self.started(job)
                return True
            heappush(heap, (donors.rank(donor), key))
        round_.undo(mark, before)
        self._known.clear()
        return False

    def started(self, job: Job) -> None:
        """A job that has just started can give, too."""
        for needed, (heap, _) in self._known.items():
            if self._donors.gives(job, needed):
                heappush(heap, (self._donors.rank(job), job.key))

    def failed(self, spec: JobSpec, *, needed: bool) -> None:
        """Store that preemption found no room for this waiting job, whatever was taken."""
        self._in_vain.setdefault(self._scope(spec), []).append((spec, needed))

    def in_vain(self, spec: JobSpec, *, needed: bool) -> bool:
        """Whether preemption has failed for a waiting job that needs no more and may take no less than this one. What
        could become free only shrinks while waiting jobs start, so it would fail again."""
        return any(
            spec.priority <= failed.priority and needed <= took_needed and needs_all_of(spec, failed)
            for failed, took_needed in self._in_vain.get(self._scope(spec), ())
        )

    def _scope(self, spec: JobSpec) -> str:
        return spec.scope if self._round.quota is not None else ""

    def _could_hold(self, spec: JobSpec, demand: Counts) -> bool:
        """Whether some node without our jobs would hold a replica of each type."""
        types = tuple(group.type for group in spec.groups if demand.get(group.type))
        known = self._holdable.get((spec.placement_key, types))
        if known is None:
            room = self._round.room
            known = all(room.largest_empty_fit(group.request) for group in spec.groups if group.type in types)
            self._holdable[spec.placement_key, types] = known
        return known

    def _find(self, needed: bool) -> tuple[list[tuple[Rank, str]], Resources]:
        """Includes jobs that start in this round: giving now is better than shrinking in the next round."""
        round_, donors = self._round, self._donors
        starting = (job for key in round_.changes if not (job := round_.job(key)).placement)
        heap, usable_capacity = list[tuple[Rank, str]](), round_.room.free_total
        above = round_.snapshot.index("above minimum", lambda snapshot: AboveMinimum(snapshot.jobs.values()))
        for donor in (*map(round_.job, above.keys), *starting):
            if donors.gives(donor, needed):
                held, floor = counts_of(round_.placement(donor)), donors.floor(donor, needed)
                usable_capacity = usable_capacity.plus(donor.spec.demand(held)).minus(donor.spec.demand(floor))
                heap.append((donors.rank(donor), donor.key))
        heapify(heap)
        return heap, usable_capacity

    def _give_back(self, before: Mapping[str, Assignment | None], used: Iterable[tuple[str, ...]]) -> None:
        matter = {name for names in used for name in names}
        for key, target in before.items():
            donor = self._round.job(key)
            had = target.nodes if target is not None else donor.placement
            has = self._round.placement(donor)
            if matter.isdisjoint(name for t, names in had.items() for name in names[len(has.get(t, ())) :]):
                if target is not None:
                    self._round.assign(donor, had, target.reason, target.cause)
                else:
                    self._round.assign(donor, had, Reason("keeps"))


def needs_all_of(spec: JobSpec, other: JobSpec) -> bool:
    """Whether `other` fits wherever `spec` fits at its minimum."""
    if (spec.constraints, spec.constraints_by_type, spec.loanable) != (
        other.constraints,
        other.constraints_by_type,
        other.loanable,
    ):
        return False
    return all(
        (group := spec.group(least.type)) is not None
        and spec.minimum[group.type] >= other.minimum[group.type]
        and least.request.within(group.request)
        for least in other.groups
    )
