"""Aryl's first phase: base demands in order, on what is free and on what flexible replicas give up."""

from elastic_tfjob.scheduling.plan import Target
from elastic_tfjob.scheduling.profiles.aryl.grow import left_s
from elastic_tfjob.scheduling.profiles.aryl.tails import Tails
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import NOTHING
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import UNPLACED, Job, JobSpec, ReplicaGroup, counts_of
from elastic_tfjob.scheduling.stages.place.apart import Apart
from elastic_tfjob.scheduling.toolkit.cost import ChangeCosts
from elastic_tfjob.scheduling.toolkit.refusal import lacks
from elastic_tfjob.scheduling.toolkit.sizes import movable

__all__ = ["admit"]


def admit(round_: Round, tails: Tails, costs: ChangeCosts, *, backfill: bool, shrinks: bool) -> set[str]:
    """Start waiting jobs, first to serve first: with `shrinks` with their minimum, and one that finds no room gets that
    of flexible replicas; else with their declared size. Without `backfill` the first that finds none holds back all
    behind it; with it only one that has waited too long does, if the cluster could hold it at all. Gives the keys of
    those that were shrunk."""
    queue, donors = round_.waiting(), set[str]()
    for entry in queue:
        job = round_.job(entry[4])
        if round_.placement(job):
            continue  # an earlier pass of this round has started it
        if round_.start(job, job.spec.minimum if shrinks else job.spec.declared, Reason("fits")):
            tails.hold(job, round_.placement(job))
            continue
        if shrinks and not round_.cools(job) and (gave := _make_room(round_, tails, job, costs)):
            donors |= gave
            continue
        round_.refuse(job, lacks(job, round_))
        if round_.cools(job):
            continue
        aged = any(part < 0 for part in entry[1][:1])
        if not backfill or (aged and _could_fit(round_, job.spec)):
            round_.held_back = Reason("waits-behind", {"job": job.key})
            break
        queue.drop()
    return donors


def _make_room(round_: Round, tails: Tails, job: Job, costs: ChangeCosts) -> set[str]:
    """Start a job on room that flexible replicas give up: of one kind of nodes, and as few of them as can be. Gives the
    keys of those that shrank; none where that is of no use."""
    spec, room = job.spec, round_.room
    if not tails.total:
        return set()
    group = max(spec.groups, key=lambda g: (g.request.accelerators, g.request.cpu))
    place = round_.profile.place if isinstance(round_.profile.place, Apart) else Apart()
    for where in place.wheres(spec, room, UNPLACED):
        nodes = _to_clear(round_, tails, job, group, allowed=where[group.type], costs=costs)
        if not nodes:
            continue
        mark, before = room.mark(), dict[str, Target | None]()
        reason = Reason("makes-room", {"job": job.key, "waits_s": round_.now - job.since_s})
        for name in nodes:
            for key in sorted(tails.on.get(name, ())):
                donor = round_.job(key)
                if not _gives(round_, donor, job, costs):
                    continue
                before.setdefault(key, round_.changes.get(key))
                _leave(round_, donor, name, reason)
                tails.hold(donor, round_.placement(donor))
        if round_.start(job, spec.minimum, Reason("given-room")):
            tails.hold(job, round_.placement(job))
            return set(before)
        round_.undo(mark, before)
        for key in before:
            tails.hold(round_.job(key), round_.placement(round_.job(key)))
    return set()


def _to_clear(
    round_: Round, tails: Tails, job: Job, group: ReplicaGroup, *, allowed: frozenset[int] | None, costs: ChangeCosts
) -> list[str]:
    """The nodes to take flexible replicas from, so that the job's minimum of this group has room; none where even all
    of them would not do. Those first that give most replicas room for the least that leaves."""
    room, request = round_.room, group.request
    donations: list[tuple[float, int, str, int]] = []
    wanted, more = job.spec.minimum.get(group.type, 0), 0
    for name, most in tails.total.items():
        i = room.index.get(name)
        if i is None or (allowed is not None and i not in allowed):
            continue
        if room.accelerators[i] + most.accelerators < request.accelerators:
            continue
        flexible = NOTHING
        for key, held in tails.on[name].items():
            if _gives(round_, round_.job(key), job, costs):
                flexible = flexible.plus(held)
        gained = room.fit(i, request, flexible.times(-1)) - room.fit(i, request)
        if gained > 0:
            share = flexible.dominant_share(room.capacity[i])
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


def _gives(round_: Round, donor: Job, job: Job, costs: ChangeCosts) -> bool:
    """One that ends sooner than it would have shrunk does not: its room is free by then."""
    lower = donor.spec.priority <= job.spec.priority
    ends_s = left_s(donor, donor.counts, round_.now)
    return lower and movable(donor, round_) and ends_s > costs.rescale_s(donor)


def _leave(round_: Round, donor: Job, name: str, reason: Reason) -> None:
    """Take the donor's flexible replicas on this node, and so those of higher indices."""
    held = round_.placement(donor)
    counts = dict(counts_of(held))
    for type_, names in held.items():
        least = donor.spec.minimum.get(type_, 0)
        flexible = [k for k in range(least, len(names)) if names[k] == name]
        if flexible:
            counts[type_] = flexible[0]
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

    return round_.shared(("could fit", spec.shape), count)
