"""Greedy filling over all jobs at once.

DRF and Optimus both give one unit after the other to the job that comes first by some key, where a job's next key
depends on its own size only. So a job's sizes form a ladder known beforehand, each rung with its key, and the whole
filling is one merge of ladders: take the rungs by key, grant them until something does not fit. That is done on arrays.
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
from elastic_tfjob.scheduling.toolkit.open_jobs import Climb, OpenJobs, Terms

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
OnFull = Literal["next", "stop"]

BATCH: Final = 1024
"""So many rungs are sorted at a time, at least."""
MOST: Final = 2**61
"""What a step counts with at most, and a little more than is free at most: it fits nowhere. Sums of steps wrap at 2^63,
and before they do so one is above all that is free: where the first one stands that does not fit is right."""


@dataclass(frozen=True, slots=True)
class Ladder:
    """A job's sizes from its minimum up; `keys` never fall from rung to rung, `demand` is what each step adds."""

    sizes: Sequence[Counts]
    keys: Floats
    demand: NDArray[np.int64]


class Ladders(OpenJobs[Ladder]):
    """The open jobs with their ladders, these also as arrays: job after job, and rung after rung."""

    def __init__(self, order: Order, terms: Terms, climb: Climb[Ladder], total: Resources) -> None:
        super().__init__(order, terms, climb, total)
        self._know()

    @property
    def lengths(self) -> Ints:
        """How many rungs each job has."""
        return np.array(self._lengths, dtype=np.int64)

    @property
    def keys(self) -> Floats:
        """Of every rung."""
        return np.array(self._keys, dtype=np.float64)

    @property
    def demand(self) -> Ints:
        """Of every rung, by resource."""
        return np.array(self._demand, dtype=np.int64).reshape(-1, len(NOTHING))

    def steps_left(self, now: float) -> Floats:
        """Of every job; 1 where the whole is not known."""
        total, steps, per_s, at = np.array(self._work, dtype=np.float64).reshape(-1, 4).T
        since = now - at
        left = total - (steps + per_s * np.where(since > 0, since, 0.0))
        return np.where(total == 0, 1.0, np.where(left > 0, left, 0.0))

    def _know(self) -> None:
        super()._know()
        self._lengths = array("q", (len(each.sizes) for each in self.known))
        self._keys, self._demand, self._work = array("d"), array("q"), array("d")
        for ladder, job in zip(self.known, self.jobs, strict=True):
            self._keys.frombytes(ladder.keys.tobytes())
            self._demand.frombytes(ladder.demand.tobytes())
            self._work.extend(work(job))

    def _removed(self, k: int) -> None:
        super()._removed(k)
        first = sum(self._lengths[:k])
        rungs, width = slice(first, first + self._lengths.pop(k)), len(NOTHING)
        del self._keys[rungs], self._work[4 * k : 4 * k + 4]
        del self._demand[width * rungs.start : width * rungs.stop]

    def _inserted(self, k: int, job: Job) -> None:
        super()._inserted(k, job)
        ladder, first = self.known[k], sum(self._lengths[:k])
        at, width = slice(first, first), len(NOTHING)
        self._lengths.insert(k, len(ladder.sizes))
        self._keys[at] = array("d", ladder.keys.tobytes())
        self._demand[width * first : width * first] = array("q", ladder.demand.tobytes())
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


def fill(ladders: Ladders, keys: Floats, free: Resources, on_full: OnFull) -> list[int]:
    """How many rungs each job gets. `keys` has one key per rung, ladder after ladder; equal keys go by job, then rung.

    A rung that does not fit ends its job's climb (`next`) or everything (`stop`).
    """
    lengths, demand = ladders.lengths, np.minimum(ladders.demand, MOST)
    granted = np.zeros(len(lengths), dtype=np.int64)
    job = np.repeat(np.arange(len(lengths)), lengths)
    rung = np.arange(len(job)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
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
        # What does not fit alone never will, and no later rung of that job either.
        first = np.full(len(lengths), np.iinfo(np.int64).max)
        for rungs in (batch, later):
            too_much = rungs[np.any(demand[rungs] > left, axis=1)]
            np.minimum.at(first, job[too_much], rung[too_much])
        batch, later = (rungs[rung[rungs] < first[job[rungs]]] for rungs in (batch, later))
    found: list[int] = granted.tolist()
    return found


def lowest(keys: Floats, rungs: Ints, n: int) -> tuple[Ints, Ints]:
    """About `n` of these rungs with the lowest keys, in order, and the others: most of them are never reached."""
    if len(rungs) > n:
        each = keys[rungs]
        among = each <= np.partition(each, n)[n]
        if among.any():  # a key that is no number is above all
            rungs, others = rungs[among], rungs[~among]
            return rungs[np.argsort(keys[rungs], kind="stable")], others
    return rungs[np.argsort(keys[rungs], kind="stable")], rungs[:0]
