"""Greedy filling over all jobs at once.

DRF and Optimus both give one unit after the other to the job that comes first by some key, where a job's next key
depends on its own size only. So the increments by which a job grows are known beforehand, each with its key, and the
whole filling is one merge: take increments by key, grant them until something does not fit. That is done on arrays.
"""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from elastic_tfjob.scheduling.profile import Order
from elastic_tfjob.scheduling.queue import Entry
from elastic_tfjob.scheduling.resources import NOTHING, Resources
from elastic_tfjob.scheduling.snapshot import Counts, Job
from elastic_tfjob.scheduling.toolkit.open_jobs import OpenJobs, SizesOf, Terms

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
OnFull = Literal["next", "stop"]

BATCH: Final = 1024
"""So many increments are sorted at a time, at least."""
MOST: Final = 2**61
"""What a step counts with at most, and a little more than is free at most: it fits nowhere. Sums of steps wrap at 2^63,
and before they do so one is above all that is free: where the first one stands that does not fit is right."""


@dataclass(frozen=True, slots=True)
class Increments:
    """The increments of one job: its `sizes` from the minimum up, the key of each, which never falls, and what each
    adds (`demand`)."""

    sizes: Sequence[Counts]
    keys: Floats
    demand: NDArray[np.int64]


class OpenIncrements(OpenJobs[Increments]):
    """The open jobs with their increments, these also as arrays: job after job, and increment after increment."""

    def __init__(self, order: Order, terms: Terms, sizes_of: SizesOf[Increments], total: Resources) -> None:
        super().__init__(order, terms, sizes_of, total)
        self._know()

    @property
    def lengths(self) -> Ints:
        """How many increments each job has."""
        return np.array(self._lengths, dtype=np.int64)

    @property
    def keys(self) -> Floats:
        """Of every increment."""
        return np.array(self._keys, dtype=np.float64)

    @property
    def demand(self) -> Ints:
        """Of every increment, by resource."""
        return np.array(self._demand, dtype=np.int64).reshape(-1, len(NOTHING))

    def steps_left(self, now: float) -> Floats:
        """Of every job; 1 where the whole is not known."""
        total, steps, per_s, at = np.array(self._work, dtype=np.float64).reshape(-1, 4).T
        since = now - at
        left = total - (steps + per_s * np.where(since > 0, since, 0.0))
        return np.where(total == 0, 1.0, np.where(left > 0, left, 0.0))

    def _know(self) -> None:
        super()._know()
        self._lengths = array("q", (len(increments.sizes) for increments in self.known))
        self._keys, self._demand, self._work = array("d"), array("q"), array("d")
        for increments, job in zip(self.known, self.jobs, strict=True):
            self._keys.frombytes(increments.keys.tobytes())
            self._demand.frombytes(increments.demand.tobytes())
            self._work.extend(work(job))

    def _removed(self, k: int) -> None:
        super()._removed(k)
        first = sum(self._lengths[:k])
        its, width = slice(first, first + self._lengths.pop(k)), len(NOTHING)
        del self._keys[its], self._work[4 * k : 4 * k + 4]
        del self._demand[width * its.start : width * its.stop]

    def _inserted(self, k: int, job: Job) -> None:
        super()._inserted(k, job)
        increments, first = self.known[k], sum(self._lengths[:k])
        at, width = slice(first, first), len(NOTHING)
        self._lengths.insert(k, len(increments.sizes))
        self._keys[at] = array("d", increments.keys.tobytes())
        self._demand[width * first : width * first] = array("q", increments.demand.tobytes())
        self._work[4 * k : 4 * k] = array("d", work(job))

    def _replaced(self, entry: Entry, job: Job) -> None:
        k = bisect_left(self.entries, entry)
        if self._of(job) is not self.known[k]:
            super()._replaced(entry, job)
            return
        OpenJobs._removed(self, k)
        OpenJobs._inserted(self, k, job)
        self._work[4 * k : 4 * k + 4] = array("d", work(job))


def work(job: Job) -> tuple[float, float, float, float]:
    """Steps in all (0: not known), and what of them is done: so many, and so many more a second from then on."""
    return job.spec.total_steps or 0.0, job.steps, job.steps_per_s, job.observed_s


def fill(jobs: OpenIncrements, keys: Floats, free: Resources, on_full: OnFull) -> list[int]:
    """How many increments each job gets. `keys` has one key per increment, job after job; equal keys go by job, then by
    increment.

    One that does not fit ends its job's growth (`next`) or everything (`stop`).
    """
    lengths, demand = jobs.lengths, np.minimum(jobs.demand, MOST)
    granted = np.zeros(len(lengths), dtype=np.int64)
    job = np.repeat(np.arange(len(lengths)), lengths)
    nth = np.arange(len(job)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    left = np.array([min(part, MOST - 1) for part in free], dtype=np.int64)
    batch, later = np.arange(0), np.arange(len(job))
    while len(batch) or len(later):
        if not len(batch):
            batch, later = lowest(keys, later, max(BATCH, len(lengths)))
        over = np.any(np.cumsum(demand[batch], axis=0) > left, axis=1)
        stuck = int(np.argmax(over)) if over.any() else len(batch)
        fits, batch = batch[:stuck], batch[stuck:]
        granted += np.bincount(job[fits], minlength=len(lengths))
        left = left - demand[fits].sum(axis=0)
        if not len(batch):
            continue
        if on_full == "stop":
            break
        # What does not fit alone never will, and no later one of that job either.
        first = np.full(len(lengths), np.iinfo(np.int64).max)
        for some in (batch, later):
            too_much = some[np.any(demand[some] > left, axis=1)]
            np.minimum.at(first, job[too_much], nth[too_much])
        batch, later = (some[nth[some] < first[job[some]]] for some in (batch, later))
    per_job: list[int] = granted.tolist()
    return per_job


def lowest(keys: Floats, increments: Ints, n: int) -> tuple[Ints, Ints]:
    """About `n` of these increments with the lowest keys, in order, and the others: most of them are never reached."""
    if len(increments) > n:
        candidates = keys[increments]
        among = candidates <= np.partition(candidates, n)[n]
        if among.any():  # a key that is no number is above all
            increments, others = increments[among], increments[~among]
            return increments[np.argsort(keys[increments], kind="stable")], others
    return increments[np.argsort(keys[increments], kind="stable")], increments[:0]
