"""Greedy filling over all jobs at once.

DRF and Optimus both give one unit after the other to the job that comes first by some key, where a job's next key
depends on its own size only. So a job's sizes form a ladder known beforehand, each rung with its key, and the whole
filling is one merge of ladders: sort all rungs by key, grant them until something does not fit. That is done on arrays.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import Counts, Job, Node, Snapshot

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
OnFull = Literal["next", "stop"]


@dataclass(frozen=True, slots=True)
class Ladder:
    """A job's sizes from its minimum up; `keys` never fall from rung to rung, `demand` is what each step adds."""

    sizes: Sequence[Counts]
    keys: Floats
    demand: NDArray[np.int64]


L = TypeVar("L")


class Ladders(Generic[L]):
    """A view that keeps what `climb` says of every job (and the cluster's totals) while its spec and speed stay."""

    def __init__(self, climb: Callable[[Job, Resources], L], total: Resources) -> None:
        self._climb, self._total = climb, total
        self._kept: dict[str, L] = {}

    def change(self, before: Job | None, after: Job | None, now: float) -> None:
        if before is not None and (after is None or before.spec is not after.spec or before.speed is not after.speed):
            self._kept.pop(before.spec.key, None)

    def change_nodes(self, nodes: Mapping[str, Node]) -> bool:
        return False

    def of(self, job: Job) -> L:
        ladder = self._kept.get(job.spec.key)
        if ladder is None:
            ladder = self._kept[job.spec.key] = self._climb(job, self._total)
        return ladder


def ladders_view(climb: Callable[[Job, Resources], L], total: Resources) -> Callable[[Snapshot], Ladders[L]]:
    return lambda snapshot: Ladders(climb, total)


def fill(ladders: Sequence[Ladder], keys: Floats, free: Resources, on_full: OnFull) -> Ints:
    """How many rungs each job gets. `keys` has one key per rung, ladder after ladder; equal keys go by job, then rung.

    A rung that does not fit ends its job's climb (`next`) or everything (`stop`).
    """
    lengths = np.array([len(ladder.sizes) for ladder in ladders], dtype=np.int64)
    granted = np.zeros(len(ladders), dtype=np.int64)
    if not len(lengths):
        return granted
    job = np.repeat(np.arange(len(ladders)), lengths)
    rung = np.arange(len(job)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    order = np.argsort(keys, kind="stable")
    job, rung = job[order], rung[order]
    demand = np.concatenate([ladder.demand for ladder in ladders])[order]
    left = np.array(free, dtype=np.int64)
    while len(job):
        over = np.any(np.cumsum(demand, axis=0) > left, axis=1)
        stuck = int(np.argmax(over)) if over.any() else len(job)
        granted += np.bincount(job[:stuck], minlength=len(ladders))
        left = left - demand[:stuck].sum(axis=0)
        if stuck == len(job) or on_full == "stop":
            break
        job, rung, demand = job[stuck:], rung[stuck:], demand[stuck:]
        # What does not fit alone never will, and no later rung of that job either.
        too_much = np.any(demand > left, axis=1)
        first = np.full(len(ladders), np.iinfo(np.int64).max)
        np.minimum.at(first, job[too_much], rung[too_much])
        stays = rung < first[job]
        job, rung, demand = job[stays], rung[stays], demand[stays]
    return granted
