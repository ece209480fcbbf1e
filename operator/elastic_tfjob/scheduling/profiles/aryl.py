"""Aryl (arXiv 2202.07896, published as Lyra): nodes borrowed from an inference pool, and elastic jobs that use spare
capacity.

In each round waiting jobs start with their minimum (first phase). Then replicas beyond the minimum, called flexible, go
to the jobs where they save most time (second phase). Flexible replicas leave again when a waiting job needs their
room."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Final, Literal

from pydantic import Field

from elastic_tfjob.scheduling.core import CostParameters, Seconds, Stages, needs
from elastic_tfjob.scheduling.lend import Reclaim
from elastic_tfjob.scheduling.orders import AgedShortestFirst, Fifo
from elastic_tfjob.scheduling.places import Apart, PlaceName
from elastic_tfjob.scheduling.plan import Assignment
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import NOTHING, Resources
from elastic_tfjob.scheduling.room import FreeCapacity
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.rules import Need, Order
from elastic_tfjob.scheduling.snapshot import (
    UNPLACED,
    WORKER,
    Counts,
    Job,
    JobSpec,
    Node,
    Placement,
    PlacementKey,
    ReplicaGroup,
    Snapshot,
    counts_of,
)
from elastic_tfjob.scheduling.steps.declared_size import lacks
from elastic_tfjob.scheduling.steps.sizes import ChangeCosts, largest, movable

__all__ = [
    "ArylParameters",
    "FlexibleReplicas",
    "Item",
    "TwoPhases",
    "admit",
    "allot",
    "flexible_replicas_index",
    "give_back",
    "grow",
    "left_s",
]

Item = tuple[float, float]
"""(weight, value): the additional cost of this many more replicas, and the time that they save. Both are above 0;
weights rise within a group."""


# -- Flexible replicas: those beyond a job's minimum, which leave without a stop ---------------------------------------


class FlexibleReplicas:
    """An index of what flexible replicas hold per node and job, and of the running elastic jobs by placement key. A
    round updates it by `hold`, and undoes that at its end by `restore`."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.on: dict[str, dict[str, Resources]] = {}
        """What flexible replicas hold, by node and job."""
        self.total: dict[str, Resources] = {}
        """What the flexible replicas of all jobs hold together, by node."""
        self.elastic: dict[PlacementKey, dict[str, None]] = {}
        """The keys of the running jobs whose size may change, by placement key."""
        self._of: dict[str, Placement] = {}
        self._changed: dict[str, Job] = {}
        for job in jobs:
            self.change(None, job, 0.0)

    def change(self, before: Job | None, after: Job | None, now: float) -> None:
        if before is not None and after is not None:
            same = before.placement == after.placement and before.spec is after.spec and before.phase == after.phase
            if same:
                return
        if before is not None:
            self._drop(before.spec)
        if after is not None and after.spec.elastic and after.placement and after.phase == "running":
            self._take(after.spec, after.placement)

    def change_nodes(self, nodes: Mapping[str, Node]) -> bool:
        return True

    def hold(self, job: Job, placement: Placement) -> None:
        """Set the job's placement for the rest of this round."""
        if not job.spec.elastic:
            return
        self._changed.setdefault(job.spec.key, job)
        self._drop(job.spec)
        if placement:
            self._take(job.spec, placement)

    def restore(self) -> None:
        """Restore the state of the Snapshot."""
        for job in self._changed.values():
            self._drop(job.spec)
            self.change(None, job, 0.0)
        self._changed.clear()

    def _take(self, spec: JobSpec, placement: Placement) -> None:
        tail = {type_: names[spec.minimum.get(type_, 0) :] for type_, names in placement.items()}
        self._of[spec.key] = tail
        self.elastic.setdefault(spec.placement_key, {})[spec.key] = None
        self._book(spec, tail, 1)

    def _drop(self, spec: JobSpec) -> None:
        tail = self._of.pop(spec.key, None)
        if tail is None:
            return
        alike = self.elastic[spec.placement_key]
        del alike[spec.key]
        if not alike:
            del self.elastic[spec.placement_key]
        self._book(spec, tail, -1)

    def _book(self, spec: JobSpec, tail: Placement, sign: int) -> None:
        for type_, names in tail.items():
            group = spec.group(type_)
            if group is None:
                continue
            for name in set(names):
                held = group.request.times(sign * names.count(name))
                there = self.on.setdefault(name, {})
                there[spec.key] = there.get(spec.key, NOTHING).plus(held)
                if there[spec.key] == NOTHING:
                    del there[spec.key]
                if there:
                    self.total[name] = self.total.get(name, NOTHING).plus(held)
                else:
                    del self.on[name]
                    self.total.pop(name, None)


def flexible_replicas_index(snapshot: Snapshot) -> FlexibleReplicas:
    return FlexibleReplicas(snapshot.jobs.values())


# -- First phase: start waiting jobs, also on room that flexible replicas give up --------------------------------------


def admit(round_: Round, flexible: FlexibleReplicas, costs: ChangeCosts, *, backfill: bool, shrinks: bool) -> set[str]:
    """Start waiting jobs in order. With `shrinks` they start with their minimum, and a job that finds no room takes the
    room of flexible replicas; otherwise they start with their declared size. Without `backfill` the first job that
    finds no room holds back all later jobs; with it, only a job that has waited too long does, and only if the cluster
    could hold it at all. Returns the keys of the jobs that shrank."""
    queue, donors = round_.waiting(), set[str]()
    for entry in queue:
        job = round_.job(entry[4])
        if round_.placement(job):
            continue  # an earlier pass of this round has started it
        if round_.start(job, job.spec.minimum if shrinks else job.spec.declared, Reason("fits")):
            flexible.hold(job, round_.placement(job))
            continue
        if shrinks and not round_.in_cooldown(job) and (donors_used := _make_room(round_, flexible, job, costs)):
            donors |= donors_used
            continue
        round_.refuse(job, lacks(job, round_))
        if round_.in_cooldown(job):
            continue
        aged = any(part < 0 for part in entry[1][:1])
        if not backfill or (aged and _could_fit(round_, job.spec)):
            round_.held_back = Reason("waits-behind", {"job": job.key})
            break
        queue.drop()
    return donors


def _make_room(round_: Round, flexible: FlexibleReplicas, job: Job, costs: ChangeCosts) -> set[str]:
    """Start a job in room that flexible replicas give up: on one kind of nodes (own or borrowed), and with as few of
    these replicas removed as possible. Returns the keys of the jobs that shrank; none if the job cannot start in this
    way."""
    spec, room = job.spec, round_.room
    if not flexible.total:
        return set()
    group = max(spec.groups, key=lambda g: (g.request.accelerators, g.request.cpu_millicores))
    place = round_.rules.place if isinstance(round_.rules.place, Apart) else Apart()
    for where in place.wheres(spec, room, UNPLACED):
        nodes = _to_clear(round_, flexible, job, group, allowed=where[group.type], costs=costs)
        if not nodes:
            continue
        mark, before = room.mark(), dict[str, Assignment | None]()
        reason = Reason("makes-room", {"job": job.key, "waits_s": round_.now - job.since_s})
        for name in nodes:
            for key in sorted(flexible.on.get(name, ())):
                donor = round_.job(key)
                if not _may_give(round_, donor, job, costs):
                    continue
                before.setdefault(key, round_.changes.get(key))
                _leave(round_, donor, name, reason)
                flexible.hold(donor, round_.placement(donor))
        if round_.start(job, spec.minimum, Reason("given-room")):
            flexible.hold(job, round_.placement(job))
            return set(before)
        round_.undo(mark, before)
        for key in before:
            flexible.hold(round_.job(key), round_.placement(round_.job(key)))
    return set()


def _to_clear(
    round_: Round,
    flexible: FlexibleReplicas,
    job: Job,
    group: ReplicaGroup,
    *,
    allowed: frozenset[int] | None,
    costs: ChangeCosts,
) -> list[str]:
    """The nodes from which to remove flexible replicas so that the job's minimum of this group has room; none if even
    all such nodes would not suffice. Nodes with the smallest share of resources given up per replica that gets room
    come first."""
    room, request = round_.room, group.request
    donations: list[tuple[float, int, str, int]] = []
    wanted, more = job.spec.minimum.get(group.type, 0), 0
    for name, most in flexible.total.items():
        i = room.index.get(name)
        if i is None or (allowed is not None and i not in allowed):
            continue
        if room.accelerators[i] + most.accelerators < request.accelerators:
            continue
        given = NOTHING
        for key, held in flexible.on[name].items():
            if _may_give(round_, round_.job(key), job, costs):
                given = given.plus(held)
        gained = room.fit(i, request, given.times(-1)) - room.fit(i, request)
        if gained > 0:
            share = given.dominant_share(room.capacity[i])
            donations.append((share / gained, i, name, gained))
            more += gained
    if not more:
        return []
    missing = wanted
    if wanted > 1:
        there = range(len(room.nodes)) if allowed is None else allowed
        missing = wanted - min(wanted, sum(room.fit(i, request) for i in there if room.holds(i, request)))
    if more < missing:
        return []
    chosen: list[str] = []
    for _, _, name, gained in sorted(donations):
        if missing <= 0:
            break
        chosen.append(name)
        missing -= gained
    return chosen


def _may_give(round_: Round, donor: Job, job: Job, costs: ChangeCosts) -> bool:
    """Whether the donor gives up flexible replicas for the job. A donor that ends sooner than it would have shrunk does
    not: its room is free by then."""
    lower = donor.spec.priority <= job.spec.priority
    ends_s = left_s(donor, donor.counts, round_.now)
    return lower and movable(donor, round_) and ends_s > costs.rescale_s(donor)


def _leave(round_: Round, donor: Job, name: str, reason: Reason) -> None:
    """Remove the donor's flexible replicas on this node, and with them its replicas of higher indices."""
    held = round_.placement(donor)
    counts = dict(counts_of(held))
    for type_, names in held.items():
        least = donor.spec.minimum.get(type_, 0)
        on_node = [k for k in range(least, len(names)) if names[k] == name]
        if on_node:
            counts[type_] = on_node[0]
    if counts != counts_of(held):
        round_.resize(donor, counts, reason)


def _could_fit(round_: Round, spec: JobSpec) -> bool:
    """Whether our own nodes would hold the job if nothing else ran there."""
    room = round_.room

    def count() -> bool:
        for group in spec.groups:
            allowed = room.admission.own(spec, group.type)
            there = range(len(room.nodes)) if allowed is None else allowed
            if sum(room.fit_empty(i, group.request) for i in there) < spec.minimum.get(group.type, 0):
                return False
        return True

    return round_.shared(("could fit", spec.placement_key), count)


# -- Second phase: what is left goes to flexible replicas, where they save most time -----------------------------------


DAY_S: Final = 86400.0


def grow(round_: Round, flexible: FlexibleReplicas, costs: ChangeCosts) -> None:
    """Give more workers to jobs whose size may change now. No job shrinks here: a running job keeps its replicas until
    another job waits for them, so that sizes do not change with the clock alone."""
    place = round_.rules.place if isinstance(round_.rules.place, Apart) else Apart()
    in_vain: set[str] = set()
    progress = True
    while progress:
        progress = False
        growing = [job for job in _that_find_room(round_, place, flexible) if job.key not in in_vain]
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
                flexible.hold(job, round_.placement(job))
            # A job that found no nodes may find some after other jobs have grown. So passes are repeated until no job
            # grows.
            in_vain = set() if grown else in_vain | {job.key for job, _ in tried}
            progress = progress or bool(tried)


def give_back(round_: Round, flexible: FlexibleReplicas, donors: Set[str]) -> None:
    """Let donors keep replicas whose room is not needed after all, on their present nodes."""
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
        flexible.hold(job, held)


def _grow_to(round_: Round, job: Job, sizes: Sequence[Counts], costs: ChangeCosts) -> bool:
    """Grow the job to the largest of these sizes that finds nodes; a running job only if that pays for the rescale."""
    held = counts_of(round_.placement(job))
    falling = sizes[::-1]

    def too_little(k: int) -> bool:
        gain = _gain(job, held, falling[k])
        saved = 1 - 1 / (1 + gain)
        return gain < round_.rules.min_gain or left_s(job, held, round_.now) * saved <= costs.rescale_s(
            job, saved, falling[k]
        )

    number = bisect_left(range(len(falling)), True, key=too_little) if job.placement else len(falling)
    return largest(round_, job, falling, lambda counts: round_.resize(job, counts, Reason("time-saved")), number) >= 0


def _gain(job: Job, held: Counts, counts: Counts) -> float:
    """The expected relative gain in speed."""
    before = job.speed.steps_per_s(held) if job.speed is not None else None
    after = job.speed.steps_per_s(counts) if job.speed is not None else None
    if before and after:
        return after / before - 1
    workers = held.get(WORKER, 0)
    return counts.get(WORKER, 0) / workers - 1 if workers else inf


def _uses_accelerators(job: Job) -> bool:
    group = job.spec.group(WORKER)
    return group is not None and group.request.accelerators > 0


def _that_find_room(round_: Round, place: Apart, flexible: FlexibleReplicas) -> Iterator[Job]:
    """By key, the jobs whose size may change and for which some allowed node has room for one more worker."""
    room, holds = round_.room, _HoldsOne(round_.room)
    alike = ((round_.job(next(iter(keys))).spec, keys) for keys in flexible.elastic.values())
    keys = [key for spec, keys in alike if holds(spec, room.allowed(spec, WORKER)) for key in keys]
    for job in map(round_.job, sorted(keys)):
        if _may_grow(round_, job) and (
            room.admission.plain  # then all nodes admit the same jobs
            or any(holds(job.spec, where[WORKER]) for where in place.wheres(job.spec, room, round_.placement(job)))
        ):
            yield job


class _HoldsOne:
    """Whether one of these nodes has room for one more worker of a job. Cached by request; valid until room changes."""

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
    # A job that has given up replicas in this round does not grow: that would only move these replicas.
    return all(len(names) <= len(held.get(type_, ())) for type_, names in job.placement.items())


def _choices(round_: Round, job: Job) -> tuple[list[Counts], list[Item]]:
    """The sizes above the present one, each with its additional cost and the seconds that it saves."""
    spec, held = job.spec, counts_of(round_.placement(job))
    group = spec.group(WORKER)
    assert group is not None
    each = float(group.request.accelerators or group.request.cpu_millicores)
    now = held.get(WORKER, 0)
    left = left_s(job, held, round_.now)
    if each <= 0 or left <= 0:
        return [], []
    rate = job.speed.steps_per_s(held) if job.speed is not None else None
    sizes: list[Counts] = [{**held, WORKER: n} for n in range(now + 1, group.maximum + 1)]
    return sizes, [((size[WORKER] - now) * each, left * (1 - _part(job, rate, size, now))) for size in sizes]


def _part(job: Job, rate: float | None, size: Counts, now: int) -> float:
    """The time left at this size relative to now. Where the speed there or now (`rate`) is unknown, speed is
    proportional to workers, as in Aryl."""
    faster = job.speed.steps_per_s(size) if rate and job.speed is not None else None
    return rate / faster if rate and faster else now / size[WORKER]


def left_s(job: Job, held: Counts, now: float) -> float:
    """Seconds left at this size; a day for a job of unknown length."""
    left = job.remaining_s(now, held)
    return DAY_S if left is None else max(0.0, left)


# -- The multiple-choice knapsack of the second phase ------------------------------------------------------------------


def allot(groups: Sequence[Sequence[Item]], capacity: float) -> list[int]:
    """The number of items chosen from each group, 0 for none: item k - 1 stands for k replicas.

    Greedy along the concave hull of each group: steps from corner to corner in the order of time saved per weight, as
    long as they fit; the remaining capacity then goes to items between corners. The same steps solve the linear
    relaxation, so the loss is less than the value of the first step that did not fit."""
    edges = []
    for g, items in enumerate(groups):
        points = [(0.0, 0.0), *items]
        for a, b in pairwise(corners(points)):
            weight, value = points[b][0] - points[a][0], points[b][1] - points[a][1]
            edges.append((-value / weight, g, a, b, weight))
    edges.sort()
    chosen, left = [0] * len(groups), capacity
    short = []
    for _, g, a, b, weight in edges:
        if chosen[g] == a and weight <= left:
            chosen[g], left = b, left - weight
        elif chosen[g] == a:
            short.append(g)
    for g in short:
        points = [(0.0, 0.0), *groups[g]]
        at = chosen[g]
        fitting = [k for k in range(at + 1, len(points)) if points[k][0] - points[at][0] <= left]
        best = max(fitting, key=lambda k: points[k][1], default=at)
        if points[best][1] > points[at][1]:
            chosen[g], left = best, left - (points[best][0] - points[at][0])
    return chosen


def corners(points: Sequence[Item]) -> list[int]:
    """The indices of the points that are corners of the concave hull above all points, as far as it rises."""
    kept: list[int] = []
    for k, (x, y) in enumerate(points):
        if kept and y <= points[kept[-1]][1]:
            continue
        while len(kept) > 1:
            (ax, ay), (bx, by) = points[kept[-2]], points[kept[-1]]
            if (y - by) * (bx - ax) < (by - ay) * (x - bx):
                break
            kept.pop()
        kept.append(k)
    return kept


# -- The profile -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TwoPhases:
    """Start waiting jobs with their minimum, then give the remaining capacity to flexible replicas. If a start took
    room of flexible replicas, waiting jobs are tried once more, since a job that shrank may have given up more than was
    needed. `scaling` false: no job grows or shrinks. A job whose rescale `costs` more than it brings is not rescaled
    either; Aryl leaves that open."""

    backfill: bool = True
    scaling: bool = True
    costs: ChangeCosts = field(default_factory=ChangeCosts)

    def __call__(self, round_: Round) -> None:
        flexible = round_.snapshot.index("flexible replicas", flexible_replicas_index)
        for job in (round_.job(key) for key in round_.changes):
            flexible.hold(job, round_.placement(job))
        while donors := admit(round_, flexible, self.costs, backfill=self.backfill, shrinks=self.scaling):
            give_back(round_, flexible, donors)
        if self.scaling:
            grow(round_, flexible, self.costs)
        flexible.restore()


class ArylParameters(CostParameters):
    """Aryl: borrows nodes from an inference pool; shortest job first; free capacity goes to elastic jobs."""

    place: PlaceName = Field("apart", description="rule that places replicas on nodes; count: totals only")
    oracle: bool = Field(True, description="the policy gets true durations and speeds (simulation only)")
    lend: Literal["none", "offered"] = Field("offered", description="borrow nodes that the inference pool offers")
    reclaim: Reclaim = Field(
        "search",
        description="nodes that return to their pool: the first; otherwise idle nodes, nodes whose jobs can shrink, "
        "then by preemption cost, jobs on the node, a search for the fewest stops, or at random",
    )
    cooldown_s: Seconds = Field(60.0, description="least seconds between two resizes of one job")
    min_gain: float = Field(0.1, ge=0, lt=1, description="least relative gain in speed for which a running job grows")
    order: Literal["sjf", "fifo"] = Field("sjf", description="shortest job first, or by arrival")
    patience: float = Field(
        10.0,
        ge=1,
        le=1e6,
        description="with sjf, a job goes first after waiting this times its run time (at least a day)",
    )
    backfill: bool = Field(True, description="jobs behind one that does not fit may start")
    scaling: bool = Field(True, description="elastic jobs grow beyond their minimum, and shrink where others wait")

    def _needs(self) -> Iterable[Need]:
        """Without `scaling` no job is resized, not even when a node is returned: it would never grow again."""
        return (need for need in super()._needs() if self.scaling or need != "resize")

    def stages(self) -> Stages:
        order: Order = AgedShortestFirst(patience=self.patience) if self.order == "sjf" else Fifo()
        declared: list[Need] = ["stop"]
        if self.lend == "offered":
            declared.append("loans")
        if self.scaling:
            declared.append("resize")
        if self.order == "sjf" or self.scaling:  # the jobs that grow are chosen by their remaining time
            declared += ["duration", "speed"]
        return Stages(order, (TwoPhases(self.backfill, self.scaling, self.costs),), needs(*declared))
