"""The jobs that a round may change, first to serve first, kept from round to round with what a profile knows of each.

A round in which one job changed does not ask all the others again whether they may change, what their sizes are, or
which of these they have.
"""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from elastic_tfjob.scheduling.profile import Order
from elastic_tfjob.scheduling.queue import Entry, JobQueue, cools
from elastic_tfjob.scheduling.resources import NOTHING, Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Counts, Job, Node, Snapshot
from elastic_tfjob.scheduling.toolkit.outside import usable_total

__all__ = ["NO_ROW", "OpenJobs", "Sized", "SizesOf", "Terms", "Unsized", "open_jobs", "unsized"]

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
    order, total = round_.profile.order, usable_total(round_)

    def build(snapshot: Snapshot) -> V:
        view = kind(order, terms, sizes_of, total)
        view.fill(snapshot)
        return view

    view = round_.snapshot.view(("open", kind, order, terms, owner), build)
    view.stand(round_.now, total)
    return view
