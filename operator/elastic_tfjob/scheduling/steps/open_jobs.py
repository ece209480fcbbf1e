"""Open jobs: those that a round may change, in order, kept from round to round with what a profile knows about each.

Therefore a round in which one job changed need not find out again, for all other jobs, whether they may change and
which sizes they have."""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from elastic_tfjob.scheduling.queue import Entry, JobQueue, in_cooldown
from elastic_tfjob.scheduling.resources import NOTHING, Resources, total_of
from elastic_tfjob.scheduling.room import FreeCapacity
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.rules import Order
from elastic_tfjob.scheduling.snapshot import Counts, Job, JobSpec, Node, Placement, Snapshot

__all__ = [
    "NO_ROW",
    "Claims",
    "OpenJobs",
    "Sized",
    "SizesOf",
    "Terms",
    "Unsized",
    "claims_of",
    "excluded_nodes",
    "open_jobs",
    "reachable_total",
    "unsized",
    "usable_total",
]


NO_ROW: Final = -1
"""The row of a running job whose size is not among its known sizes."""


class Sized(Protocol):
    """What a profile knows about a job: the sizes that it may get, each once."""

    @property
    def sizes(self) -> Sequence[Counts]: ...


K = TypeVar("K", bound=Sized)
V = TypeVar("V", bound="OpenJobs[Any]")
SizesOf = Callable[[Job, Resources], K]
"""What is known about a job in a cluster with these totals."""


@dataclass(frozen=True, slots=True)
class Unsized:
    """The empty knowledge about a job, for steps that need no sizes."""

    sizes: tuple[Counts, ...] = ()


UNSIZED: Final = Unsized()


def unsized(job: Job, total: Resources) -> Unsized:
    """The function `sizes_of` of steps that need no sizes."""
    return UNSIZED


@dataclass(frozen=True, slots=True)
class Terms:
    """When a job is open. `resizes`: running jobs may get another size; else they keep all or are stopped. `fixed`:
    with `resizes`, a job that cannot be resized and has its declared size is open, too: it may be stopped. `waiting`:
    whether waiting jobs are included."""

    stop_cooldown_s: float
    cooldown_s: float = 0.0
    resizes: bool = True
    waiting: bool = True
    fixed: bool = False

    def ever(self, job: Job) -> bool:
        """Whether the job is open, or becomes so by the clock alone."""
        if job.phase == "rescaling":
            return False
        if not job.placement or not job.spec.stoppable:
            return not job.placement
        return job.spec.resizable or not self.resizes or (self.fixed and job.counts == job.spec.declared)

    def open(self, job: Job, now: float) -> bool:
        """Whether the job is open. The clock alone never closes it again."""
        if not self.ever(job) or in_cooldown(job, self.stop_cooldown_s, now):
            return False
        return not job.placement or not self.resizes or now - job.rescaled_s >= self.cooldown_s


class OpenJobs(JobQueue, Generic[K]):
    """An index of the open jobs, in order. `known` has the result of `sizes_of` for each (from its spec, its speed and
    the totals of the cluster), and `rows` which of these sizes the job has: 1 for the first, 0 for nothing, else
    NO_ROW."""

    def __init__(self, order: Order, terms: Terms, sizes_of: SizesOf[K], total: Resources) -> None:
        super().__init__(order, running=False)
        self.jobs: list[Job] = []
        self.known: list[K] = []
        self.rows: list[int] = []
        self.held = NOTHING
        """What open jobs hold."""
        self.aside: dict[str, Job] = {}
        """Jobs that hold resources and are not open."""
        self.others = NOTHING
        """What jobs `aside` hold."""
        self.later: dict[str, Job] = {}
        """Jobs that become open by the clock alone."""
        self._terms, self._sizes_of, self._total = terms, sizes_of, total
        self._kept: dict[str, K] = {}

    @property
    def entries(self) -> list[Entry]:
        return self.lists.get(None, [])

    def place(self, key: str) -> int | None:
        """The job's place in the order; None where it is not open."""
        entry = self._entries.get(key)
        return None if entry is None else bisect_left(self.entries, entry[1])

    def change(self, before: Job | None, after: Job | None, now: float) -> None:
        if before is not None:
            self._forget(before, after)
        super().change(before, after, now)
        if after is not None and after.spec.key not in self._entries:
            self._set_aside(after)

    def change_nodes(self, nodes: Mapping[str, Node]) -> bool:
        return True

    def _set_aside(self, job: Job) -> None:
        if job.placement:
            self.aside[job.spec.key] = job
            self.others = self.others.plus(job.holds)
        if self._terms.ever(job) and (job.placement or self._terms.waiting):
            self.later[job.spec.key] = job

    def _forget(self, before: Job, after: Job | None) -> None:
        key = before.spec.key
        if key not in self._entries:
            self.later.pop(key, None)
            if self.aside.pop(key, None) is not None:
                self.others = self.others.minus(before.holds)
        if after is None or before.spec is not after.spec or before.speed is not after.speed:
            self._kept.pop(key, None)

    def stand(self, now: float, total: Resources) -> None:
        """Update to this moment and these totals."""
        self.at(now)
        for job in list(self.later.values()):
            self.change(job, job, now)
        if total != self._total:
            self._total = total
            self._kept.clear()
            self._know()

    def _know(self) -> None:
        """Compute `known` and `rows` again for all jobs."""
        self.known = [self._of(job) for job in self.jobs]
        self.rows = [row(known, job) for known, job in zip(self.known, self.jobs, strict=True)]

    def _belongs(self, job: Job, now: float) -> bool:
        return (self._terms.waiting or bool(job.placement)) and self._terms.open(job, now)

    def _kind(self, job: Job) -> None:
        return None

    def _removed(self, k: int) -> None:
        job = self.jobs.pop(k)
        del self.known[k], self.rows[k]
        if job.placement:
            self.held = self.held.minus(job.holds)

    def _inserted(self, k: int, job: Job) -> None:
        known = self._of(job)
        self.jobs.insert(k, job)
        self.known.insert(k, known)
        self.rows.insert(k, row(known, job))
        if job.placement:
            self.held = self.held.plus(job.holds)

    def _replaced(self, entry: Entry, job: Job) -> None:
        k = bisect_left(self.entries, entry)
        self._removed(k)
        self._inserted(k, job)

    def _of(self, job: Job) -> K:
        known = self._kept.get(job.spec.key)
        if known is None:
            known = self._kept[job.spec.key] = self._sizes_of(job, self._total)
        return known

    def fill(self, snapshot: Snapshot) -> "OpenJobs[K]":
        super().fill(snapshot)
        self.jobs = [self._entries[entry[4]][2] for entry in self.entries]
        self._know()
        for job in self.jobs:
            if job.placement:
                self.held = self.held.plus(job.holds)
        for key, job in snapshot.jobs.items():
            if key not in self._entries:
                self._set_aside(job)
        return self


def row(known: Sized, job: Job) -> int:
    """Which of its sizes the job has; see OpenJobs."""
    if not job.placement:
        return 0
    try:
        return known.sizes.index(job.counts) + 1
    except ValueError:
        return NO_ROW


def open_jobs(
    round_: Round,
    kind: Callable[[Order, Terms, SizesOf[K], Resources], V],
    terms: Terms,
    sizes_of: SizesOf[K],
    owner: Hashable = None,
) -> V:
    """The open jobs as the round began, in an index of this kind. The same `owner` must always mean the same
    `sizes_of`."""
    order, total = round_.rules.order, usable_total(round_)

    def build(snapshot: Snapshot) -> V:
        index = kind(order, terms, sizes_of, total)
        index.fill(snapshot)
        return index

    index = round_.snapshot.index(("open", kind, order, terms, owner), build)
    index.stand(round_.now, total)
    return index


# -- Excluded nodes: those where no job may run, such as a control plane's ---------------------------------------------

Kind = tuple[object, ...]
"""The part of a JobSpec that determines where the job may run."""


class Constrained:
    """An index of the constraints that jobs have: by kind, how many jobs, and one of their specs. From these follow the
    nodes that no job may use."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.kinds: dict[Kind, tuple[int, JobSpec]] = {}
        self._nodes: list[Node] | None = None
        self._excluded: Set[int] = frozenset()
        self._has = NOTHING
        for job in jobs:
            self.change(None, job, 0.0)

    def change(self, before: Job | None, after: Job | None, now: float) -> None:
        if before is not None and after is not None and before.spec is after.spec:
            return
        if before is not None:
            kind = _kind(before.spec)
            count, spec = self.kinds[kind]
            if count == 1:
                del self.kinds[kind]
                self._nodes = None
            else:
                self.kinds[kind] = count - 1, spec
        if after is not None:
            kind = _kind(after.spec)
            if kind not in self.kinds:
                self._nodes = None
            self.kinds[kind] = self.kinds.get(kind, (0, after.spec))[0] + 1, after.spec

    def change_nodes(self, nodes: Mapping[str, Node]) -> bool:
        return True

    def excluded_nodes(self, room: FreeCapacity) -> tuple[Set[int], Resources]:
        """The nodes where no job of the Snapshot may run, and their resources. Computed again when nodes or kinds of
        constraints change."""
        if self._nodes is not room.nodes:
            self._nodes, self._excluded = room.nodes, self._find_excluded(room)
            self._has = total_of(room.usable[i] for i in self._excluded)
        return self._excluded, self._has

    def _find_excluded(self, room: FreeCapacity) -> Set[int]:
        excluded_nodes = set(range(len(room.nodes)))
        for _, spec in self.kinds.values():
            allowed = room.allowed(spec)
            if allowed is None:
                return frozenset()
            excluded_nodes -= allowed
        return excluded_nodes


def usable_total(round_: Round) -> Resources:
    """The resources of all nodes where at least one job of the Snapshot may run, free or not."""
    return round_.room.total.minus(_excluded(round_)[1])


def excluded_nodes(round_: Round) -> Set[int]:
    """The nodes where no job of the Snapshot may run."""
    return _excluded(round_)[0]


def _excluded(round_: Round) -> tuple[Set[int], Resources]:
    room = round_.room
    if not room.admission.tainted or room.totals_only:
        return frozenset(), NOTHING
    return round_.snapshot.index("constrained", lambda snapshot: Constrained(snapshot.jobs.values())).excluded_nodes(
        room
    )


def _kind(spec: JobSpec) -> Kind:
    return spec.constraints, spec.loanable, spec.constraints_by_type


# -- Totals: what is free where jobs may run, and what jobs claim of it ------------------------------------------------


class Claims(OpenJobs[Unsized]):
    """The open jobs with the claim of each, and the sum. A job claims what it holds, at most its declared size, and
    less where nodes are lost."""

    claims: list[Resources]
    total: Resources

    def _know(self) -> None:
        super()._know()
        self.claims = [_claim(job.spec, job.placement) for job in self.jobs]
        self.total = NOTHING
        for claim in self.claims:
            self.total = self.total.plus(claim)

    def _removed(self, k: int) -> None:
        super()._removed(k)
        self.total = self.total.minus(self.claims.pop(k))

    def _inserted(self, k: int, job: Job) -> None:
        super()._inserted(k, job)
        claim = _claim(job.spec, job.placement)
        self.claims.insert(k, claim)
        self.total = self.total.plus(claim)


def reachable_total(round_: Round) -> Resources:
    """What is free on nodes where at least one job of the Snapshot may run."""
    room = round_.room
    total = room.free_total
    for i in excluded_nodes(round_):
        total = total.minus(room.free(i))
    return total


def claims_of(round_: Round, jobs: Claims) -> tuple[Sequence[Resources], Resources]:
    """The claim of each job at this point of the round, and the sum. Replicas on nodes that no longer exist, or where
    no job may run any more, do not count: their end frees nothing."""
    room, excluded = round_.room, excluded_nodes(round_)
    if room.holds_elsewhere or any(room.free(i) != room.usable[i] for i in excluded):
        there = {name for name, i in room.index.items() if i not in excluded}
        differ = {k: _within(round_.placement(job), there) for k, job in enumerate(jobs.jobs)}
    else:  # the usual case: no job has replicas there
        places = ((jobs.place(key), target.nodes) for key, target in round_.changes.items())
        differ = {k: nodes for k, nodes in places if k is not None}
    if not differ:
        return jobs.claims, jobs.total
    claims, total = list(jobs.claims), jobs.total
    for k, placement in differ.items():
        claim = _claim(jobs.jobs[k].spec, placement)
        total = total.minus(claims[k]).plus(claim)
        claims[k] = claim
    return claims, total


def _within(placement: Placement, there: Set[str]) -> Placement:
    return {type_: tuple(name for name in names if name in there) for type_, names in placement.items()}


def _claim(spec: JobSpec, placement: Placement) -> Resources:
    for type_, n in spec.declared.items():
        if len(placement.get(type_, ())) < n:
            return spec.demand({t: min(most, len(placement.get(t, ()))) for t, most in spec.declared.items()})
    return spec.declared_demand
