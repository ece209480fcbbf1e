"""The jobs that a round may change, first to serve first, kept from round to round with what a profile knows of each.

A round in which one job changed does not ask all the others again whether they may change, what their sizes are, or
which of these they have.
"""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from elastic_tfjob.scheduling.queue import Entry, JobQueue, cools
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
    "nodes_outside",
    "open_jobs",
    "reachable_total",
    "unsized",
    "usable_total",
]


# -- Nodes where no job may run: their taints, as a control plane's, are tolerated by none -----------------------------
# What they have is no part of what jobs share.

Kind = tuple[object, ...]
"""All that says where a job may run."""


class Constrained:
    """A view of the kinds of constraints that jobs have: how many have each, and one of them. So it knows which nodes
    no job may use."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.kinds: dict[Kind, tuple[int, JobSpec]] = {}
        self._nodes: list[Node] | None = None
        self._outside: Set[int] = frozenset()
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

    def outside(self, room: FreeCapacity) -> tuple[Set[int], Resources]:
        """The nodes where none of the Snapshot's jobs may run, and what these have for jobs. Looked for anew where the
        nodes are others, or the kinds of constraints."""
        if self._nodes is not room.nodes:
            self._nodes, self._outside = room.nodes, self._find_outside(room)
            self._has = total_of(room.usable[i] for i in self._outside)
        return self._outside, self._has

    def _find_outside(self, room: FreeCapacity) -> Set[int]:
        outside = set(range(len(room.nodes)))
        for _, spec in self.kinds.values():
            allowed = room.allowed(spec)
            if allowed is None:
                return frozenset()
            outside -= allowed
        return outside


def usable_total(round_: Round) -> Resources:
    """What nodes where at least one of the Snapshot's jobs may run have for jobs, whoever holds it now."""
    return round_.room.total.minus(_outside(round_)[1])


def nodes_outside(round_: Round) -> Set[int]:
    """The nodes where none of the Snapshot's jobs may run."""
    return _outside(round_)[0]


def _outside(round_: Round) -> tuple[Set[int], Resources]:
    room = round_.room
    if not room.admission.tainted or room.totals_only:
        return frozenset(), NOTHING
    return round_.snapshot.view("constrained", lambda snapshot: Constrained(snapshot.jobs.values())).outside(room)


def _kind(spec: JobSpec) -> Kind:
    return spec.constraints, spec.loanable, spec.constraints_by_type


NO_ROW: Final = -1
"""A running job whose size is none of those that are known of it."""


class Sized(Protocol):
    """What is known of a job: the sizes that it may get, each once."""

    @property
    def sizes(self) -> Sequence[Counts]: ...


K = TypeVar("K", bound=Sized)
V = TypeVar("V", bound="OpenJobs[Any]")
SizesOf = Callable[[Job, Resources], K]
"""What is known of a job in a cluster with these totals."""


@dataclass(frozen=True, slots=True)
class Unsized:
    """Of a job whose sizes nobody asks for."""

    sizes: tuple[Counts, ...] = ()


UNSIZED: Final = Unsized()


def unsized(job: Job, total: Resources) -> Unsized:
    """What is known of each where a profile keeps nothing of its jobs here."""
    return UNSIZED


@dataclass(frozen=True, slots=True)
class Terms:
    """When a job is open. `resizes`: a running one is given other sizes, else all or nothing; `fixed`: or, where it
    cannot be resized and has its declared size, nothing. `waiting`: whether those that wait are looked at, too."""

    stop_cooldown_s: float
    cooldown_s: float = 0.0
    resizes: bool = True
    waiting: bool = True
    fixed: bool = False

    def ever(self, job: Job) -> bool:
        """Whether the clock alone may open it."""
        if job.phase == "rescaling":
            return False
        if not job.placement or not job.spec.stoppable:
            return not job.placement
        return job.spec.resizable or not self.resizes or (self.fixed and job.counts == job.spec.declared)

    def open(self, job: Job, now: float) -> bool:
        """Once it is, the clock does not close it."""
        if not self.ever(job) or cools(job, self.stop_cooldown_s, now):
            return False
        return not job.placement or not self.resizes or now - job.rescaled_s >= self.cooldown_s


class OpenJobs(JobQueue, Generic[K]):
    """A view of the open jobs, in order. `known` has what `sizes_of` says of each (by its spec, its speed and the
    totals of the cluster), and `rows` which of these sizes it has: 1 for the first, 0 for nothing, else NO_ROW.
    """

    def __init__(self, order: Order, terms: Terms, sizes_of: SizesOf[K], total: Resources) -> None:
        super().__init__(order, running=False)
        self.jobs: list[Job] = []
        self.known: list[K] = []
        self.rows: list[int] = []
        self.held = NOTHING
        """What open jobs hold."""
        self.aside: dict[str, Job] = {}
        """Jobs that hold something and are not open."""
        self.others = NOTHING
        """What these hold."""
        self.later: dict[str, Job] = {}
        """Jobs that the clock may open."""
        self._terms, self._sizes_of, self._total = terms, sizes_of, total
        self._kept: dict[str, K] = {}

    @property
    def entries(self) -> list[Entry]:
        return self.lists.get(None, [])

    def place(self, key: str) -> int | None:
        """Where in the order this job is; None where it is not open."""
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
        """Go on to this moment, in a cluster with these totals."""
        self.at(now)
        for job in list(self.later.values()):
            self.change(job, job, now)
        if total != self._total:
            self._total = total
            self._kept.clear()
            self._know()

    def _know(self) -> None:
        """Ask anew what is known of all."""
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
    """Which of its sizes the job has."""
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
    """The open jobs as the round began, as a view of this kind. The same `owner` must always mean the same
    `sizes_of`."""
    order, total = round_.rules.order, usable_total(round_)

    def build(snapshot: Snapshot) -> V:
        view = kind(order, terms, sizes_of, total)
        view.fill(snapshot)
        return view

    view = round_.snapshot.view(("open", kind, order, terms, owner), build)
    view.stand(round_.now, total)
    return view


# -- What is free in all, where jobs may run, and what they claim of it ------------------------------------------------


class Claims(OpenJobs[Unsized]):
    """The open jobs with what each claims of what there is for all: what it holds, but no more than it declares, and
    less where it was robbed of nodes; and the sum."""

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
    """What is free on nodes where at least one of the Snapshot's jobs may run."""
    room = round_.room
    total = room.free_total
    for i in nodes_outside(round_):
        total = total.minus(room.free(i))
    return total


def claims_of(round_: Round, jobs: Claims) -> tuple[Sequence[Resources], Resources]:
    """What each of these jobs claims as the round stands, and the sum. Its replicas on nodes that are gone, or where no
    job may run any more, do not count: they would leave nothing to anybody."""
    room, outside = round_.room, nodes_outside(round_)
    if room.holds_elsewhere or any(room.free(i) != room.usable[i] for i in outside):
        there = {name for name, i in room.index.items() if i not in outside}
        differ = {k: _within(round_.placement(job), there) for k, job in enumerate(jobs.jobs)}
    else:  # as nearly always: none is there
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
