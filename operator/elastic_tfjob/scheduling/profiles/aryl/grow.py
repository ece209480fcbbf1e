"""Aryl's second phase: what base demands leave goes to flexible replicas, where they save most time."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence, Set
from math import inf
from typing import Final

from elastic_tfjob.scheduling.free_capacity import FreeCapacity
from elastic_tfjob.scheduling.profiles.aryl.knapsack import Item, allot
from elastic_tfjob.scheduling.profiles.aryl.tails import Tails
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import WORKER, Counts, Job, JobSpec, counts_of
from elastic_tfjob.scheduling.stages.place.apart import Apart
from elastic_tfjob.scheduling.toolkit.cost import ChangeCosts
from elastic_tfjob.scheduling.toolkit.sizes import largest, movable

__all__ = ["give_back", "grow", "left_s"]

DAY_S: Final = 86400.0


def grow(round_: Round, tails: Tails, costs: ChangeCosts) -> None:
    """Workers beyond what jobs hold, for those whose size may change now. Nobody gives any up here: what a running job
    has it keeps until somebody waits for it, so that sizes do not follow the clock."""
    place = round_.profile.place if isinstance(round_.profile.place, Apart) else Apart()
    in_vain: set[str] = set()
    progress = True
    while progress:
        progress = False
        growing = [job for job in _that_find_room(round_, place, tails) if job.key not in in_vain]
        choices: dict[bool, list[tuple[Job, list[Counts], list[Item]]]] = {True: [], False: []}
        for job in growing:
            sizes, items = _choices(round_, job)
            if items:
                choices[_uses_accelerators(job)].append((job, sizes, items))
        for accelerators, alike in choices.items():
            if not alike:
                continue
            free = round_.room.free_accelerators if accelerators else round_.room.free_cpu
            chosen = allot([items for _, _, items in alike], float(free))
            tried = [(job, sizes[:k]) for (job, sizes, _), k in zip(alike, chosen, strict=True) if k]
            grown = [job for job, sizes in tried if _grow_to(round_, job, sizes, costs)]
            for job in grown:
                tails.hold(job, round_.placement(job))
            # What found no nodes may once others have theirs; the last pass finds none for anybody.
            in_vain = set() if grown else in_vain | {job.key for job, _ in tried}
            progress = progress or bool(tried)


def give_back(round_: Round, tails: Tails, donors: Set[str]) -> None:
    """Let those that made room keep what is not needed, where it was: a replica stays on its node, or leaves."""
    for key in sorted(donors):
        job, target = round_.job(key), round_.changes.get(key)
        if target is None:
            continue
        held = dict(target.nodes)
        mark = round_.room.mark()
        for type_, names in job.placement.items():
            group = job.spec.group(type_)
            for name in names[len(held.get(type_, ())) :]:
                i = round_.room.index.get(name)
                if group is None or i is None or not round_.room.holds(i, group.request):
                    break
                round_.room.take_replicas(i, group, 1)
                held[type_] = (*held.get(type_, ()), name)
        round_.room.rollback(mark)
        round_.assign(job, held, target.reason, target.cause)
        tails.hold(job, held)


def _grow_to(round_: Round, job: Job, sizes: Sequence[Counts], costs: ChangeCosts) -> bool:
    """The largest of these sizes that finds nodes; of a running job only one that is worth a rescale."""
    held = counts_of(round_.placement(job))
    falling = sizes[::-1]

    def too_little(k: int) -> bool:
        gain = _gain(job, held, falling[k])
        saved = 1 - 1 / (1 + gain)
        return gain < round_.profile.min_gain or left_s(job, held, round_.now) * saved <= costs.rescale_s(job, saved)

    number = bisect_left(range(len(falling)), True, key=too_little) if job.placement else len(falling)
    return largest(round_, job, falling, lambda counts: round_.resize(job, counts, Reason("time-saved")), number) >= 0


def _gain(job: Job, held: Counts, counts: Counts) -> float:
    """How much faster it is expected to be, as a part."""
    before = job.speed.steps_per_s(held) if job.speed is not None else None
    after = job.speed.steps_per_s(counts) if job.speed is not None else None
    if before and after:
        return after / before - 1
    workers = held.get(WORKER, 0)
    return counts.get(WORKER, 0) / workers - 1 if workers else inf


def _uses_accelerators(job: Job) -> bool:
    group = job.spec.group(WORKER)
    return group is not None and group.request.accelerators > 0


def _that_find_room(round_: Round, place: Apart, tails: Tails) -> Iterator[Job]:
    """The jobs whose size may change, and for which some node that they may grow onto holds one worker more; by key."""
    room, holds = round_.room, _HoldsOne(round_.room)
    alike = ((round_.job(next(iter(keys))).spec, keys) for keys in tails.elastic.values())
    keys = [key for spec, keys in alike if holds(spec, room.allowed(spec, WORKER)) for key in keys]
    for job in map(round_.job, sorted(keys)):
        if _may_grow(round_, job) and (
            room.admission.plain  # then all nodes that admit it are of one kind
            or any(holds(job.spec, where[WORKER]) for where in place.wheres(job.spec, room, round_.placement(job)))
        ):
            yield job


class _HoldsOne:
    """Whether one of these nodes holds one worker more of a job: asked once for all that ask for the same, as long as
    nothing is taken or given back."""

    def __init__(self, room: FreeCapacity) -> None:
        self._find = room.best_fit if room.rank == "least-free" else room.first
        self._known: dict[tuple[Resources, frozenset[int] | None], bool] = {}

    def __call__(self, spec: JobSpec, allowed: frozenset[int] | None) -> bool:
        group = spec.group(WORKER)
        if group is None:
            return False
        key = (group.request, allowed)
        if key not in self._known:
            self._known[key] = self._find(*key) is not None
        return self._known[key]


def _may_grow(round_: Round, job: Job) -> bool:
    group, held = job.spec.group(WORKER), round_.placement(job)
    if group is None or not held or len(held.get(WORKER, ())) >= group.maximum or not movable(job, round_):
        return False
    # One that has just made room would move.
    return all(len(names) <= len(held.get(type_, ())) for type_, names in job.placement.items())


def _choices(round_: Round, job: Job) -> tuple[list[Counts], list[Item]]:
    """The sizes above what the job holds, and of each what it takes more and the seconds that it saves."""
    spec, held = job.spec, counts_of(round_.placement(job))
    group = spec.group(WORKER)
    assert group is not None
    each = float(group.request.accelerators or group.request.cpu)
    now = held.get(WORKER, 0)
    left = left_s(job, held, round_.now)
    if each <= 0 or left <= 0:
        return [], []
    rate = job.speed.steps_per_s(held) if job.speed is not None else None
    sizes: list[Counts] = [{**held, WORKER: n} for n in range(now + 1, group.maximum + 1)]
    return sizes, [((size[WORKER] - now) * each, left * (1 - _part(job, rate, size, now))) for size in sizes]


def _part(job: Job, rate: float | None, size: Counts, now: int) -> float:
    """The part of the time that is left which the job still needs at this size. Where its speed there or now (`rate`)
    is not known, speed grows as workers do, as Aryl has it."""
    faster = job.speed.steps_per_s(size) if rate and job.speed is not None else None
    return rate / faster if rate and faster else now / size[WORKER]


def left_s(job: Job, held: Counts, now: float) -> float:
    """Seconds left at this size; of a job of unknown length a day, as if all were alike."""
    left = job.remaining_s(now, held)
    return DAY_S if left is None else max(0.0, left)
