"""Room for a job that finds none: replicas that others can do without, few at a time, all or nothing."""

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
    """Who gives what, and who first. `needed`: also replicas that a job has declared, down to its minimum."""

    def gives(self, donor: Job, needed: bool) -> bool:
        """Whether replicas may be taken from the job as this round stands. Asked of jobs that start in this round and
        of running ones above their minimum."""
        ...

    def floor(self, donor: Job, needed: bool) -> Counts:
        """What is left to it."""
        ...

    def rank(self, donor: Job) -> Rank:
        """Smallest gives first; anew after each replica."""
        ...

    def facts(self, donor: Job) -> Mapping[str, float]:
        """What else is a reason why this one gives, beside what the room is made for."""
        ...


class AboveMinimum:
    """A view of the running jobs that could do with fewer replicas, so that a round does not look at all the others."""

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
    """Who can give while a round decides."""

    def __init__(self, round_: Round, donors: Donors) -> None:
        self._round = round_
        self._donors = donors
        self._known: dict[bool, tuple[list[tuple[Rank, str]], Resources]] = {}
        """Donors by rank, and an upper bound of what could be free; without and with what they need."""
        self._in_vain: list[tuple[JobSpec, bool]] = []
        self._holdable: dict[tuple[PlacementKey, tuple[str, ...]], bool] = {}

    def take(self, job: Job, demand: Counts, why: Reason, attempt: Callable[[], bool], *, needed: bool) -> bool:
        """Take replicas from others, few at a time, until `attempt` succeeds; all or nothing.

        What was taken on nodes that turn out not to matter is given back.
        """
        round_, donors = self._round, self._donors
        known = self._known.get(needed)
        if known is None:
            known = self._known[needed] = self._find(needed)
        heap, reachable = known
        asks = job.spec.minimum_demand if demand is job.spec.minimum else job.spec.demand(demand)
        if not heap or not asks.within(reachable) or not self._could_hold(job.spec, demand):
            return False
        mark, before = round_.room.mark(), dict[str, Assignment | None]()
        passed_over: list[tuple[Rank, str]] = []
        while heap:
            rank, key = heappop(heap)
            donor = round_.job(key)
            if donor is job or donor.spec.priority > job.spec.priority:
                passed_over.append((rank, key))
                continue
            fewer = some_fewer(counts_of(round_.placement(donor)), donors.floor(donor, needed))
            if fewer is None:
                continue
            had = round_.changes.get(key)
            # One that is placed anew as a whole may find no nodes even for fewer: asked again, it would be for ever.
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
        """A job that has just started is one more that can give."""
        for needed, (heap, _) in self._known.items():
            if self._donors.gives(job, needed):
                heappush(heap, (self._donors.rank(job), job.key))

    def failed(self, spec: JobSpec, *, needed: bool) -> None:
        """Remember that even all that could be taken left this waiting job without room."""
        self._in_vain.append((spec, needed))

    def in_vain(self, spec: JobSpec, *, needed: bool) -> bool:
        """Whether taking has failed for a waiting job that asks for no more and may take no less than this one. What
        could be free, with all donors at their least, only shrinks while waiting jobs start: it would fail again."""
        return any(
            spec.priority <= failed.priority and needed <= took_needed and needs_all_of(spec, failed)
            for failed, took_needed in self._in_vain
        )

    def _could_hold(self, spec: JobSpec, demand: Counts) -> bool:
        """Whether some node would hold a replica of each type if nothing of ours were there."""
        types = tuple(group.type for group in spec.groups if demand.get(group.type))
        known = self._holdable.get((spec.shape, types))
        if known is None:
            room = self._round.room
            known = all(room.largest_empty_fit(group.request) for group in spec.groups if group.type in types)
            self._holdable[spec.shape, types] = known
        return known

    def _find(self, needed: bool) -> tuple[list[tuple[Rank, str]], Resources]:
        """Jobs that start in this round can give: better than to be shrunk in the next."""
        round_, donors = self._round, self._donors
        starting = (job for key in round_.changes if not (job := round_.job(key)).placement)
        heap, reachable = list[tuple[Rank, str]](), round_.room.free_total
        above = round_.snapshot.view("above minimum", lambda snapshot: AboveMinimum(snapshot.jobs.values()))
        for donor in (*map(round_.job, above.keys), *starting):
            if donors.gives(donor, needed):
                held, floor = counts_of(round_.placement(donor)), donors.floor(donor, needed)
                reachable = reachable.plus(donor.spec.demand(held)).minus(donor.spec.demand(floor))
                heap.append((donors.rank(donor), donor.key))
        heapify(heap)
        return heap, reachable

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
    """Whether where `spec` fits at its minimum, `other` would, too."""
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
