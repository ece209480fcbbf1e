"""Room for who must have it, and for who waits."""

from itertools import takewhile
from operator import itemgetter

from elastic_tfjob.scheduling.placements import lacking
from elastic_tfjob.scheduling.plan import BEHIND
from elastic_tfjob.scheduling.profiles.kips.adjustment import Adjustment
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import NOTHING, Resources, total_of
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import WORKER, Counts, Job, JobSpec, Placement, counts_of
from elastic_tfjob.scheduling.toolkit.refusal import lacks
from elastic_tfjob.scheduling.toolkit.repair import repair_reason
from elastic_tfjob.scheduling.toolkit.sizes import Downward, largest, movable

AS_DECLARED, GIVEN_ROOM, LEAVES_NODE = Reason("as-declared"), Reason("given-room"), Reason("leaves-node")


def relieve(adjustment: Adjustment) -> None:
    """Where nodes hold more than they have (a shrink that another job counted on was refused), shrink there."""
    round_ = adjustment.round
    room = round_.room
    over = {node.name: i for i, node in enumerate(room.nodes) if room.cpu[i] < 0 or room.memory[i] < 0}
    if not over:
        return
    for job in round_.rescaling():  # it may be about to leave
        for names in job.placement.values():
            for name in names:
                over.pop(name, None)
    # By node the jobs whose last worker is there, with their places in the order.
    last: dict[str, list[tuple[int, Job]]] = {}
    for place, job in enumerate(round_.running_in_order()):
        if (name := _last_node(job, round_)) in over:
            last.setdefault(name, []).append((place, job))
    for name, i in over.items():
        for place, job in sorted(last.get(name, ()), key=itemgetter(0)):
            while (short := Resources(-room.cpu[i], -room.memory[i]).positive()) != NOTHING:
                held = round_.placement(job)
                # With the first one it gives all CPU back that was lent to it: what is short then is less.
                n = min(_last_there(job, held, name), 1 if round_.cpu(job) else _needed(job, short))
                if not n or not movable(job, round_):
                    break
                fewer = {**counts_of(held), WORKER: len(held[WORKER]) - n}
                round_.resize(job, fewer, Reason("node-full", {"node": name}))
            if (then := _last_node(job, round_)) in over and then != name:
                last.setdefault(then, []).append((place, job))


def _last_node(job: Job, round_: Round) -> str:
    """Where its last worker is; empty where it has none."""
    return round_.placement(job).get(WORKER, ("",))[-1]


def _last_there(job: Job, held: Placement, name: str) -> int:
    """How many of its last workers are on this node and may be taken from it."""
    if not job.spec.elastic:
        return 0
    flexible = held.get(WORKER, ())[job.spec.minimum.get(WORKER, 0) :]
    return sum(1 for _ in takewhile(name.__eq__, reversed(flexible)))


def _needed(job: Job, short: Resources) -> int:
    """How many of its workers make up for what is short; 0 where they request nothing of it."""
    group = job.spec.group(WORKER)
    parts = zip(short, group.request, strict=True) if group is not None else ()
    return max((-(-part // each) for part, each in parts if each), default=0)


def guarantee(adjustment: Adjustment) -> None:
    """Make room for sizes that running jobs must have, and that `repair` found no room for."""
    round_ = adjustment.round
    for key, counts in round_.unmet.items():
        job = round_.job(key)
        why, cause = repair_reason(job, round_.snapshot.nodes)
        adjustment.taking.take(
            job,
            lacking(job.placement, counts) or counts,
            Reason("makes-room", {"job": job.key, "by": job.spec.asked}),
            lambda job=job, counts=counts, why=why, cause=cause: round_.repair(  # type: ignore[misc]
                job, counts, why, cause
            ),
            needed=True,
        )


def admit(adjustment: Adjustment) -> None:
    """Start waiting jobs in order, at their declared size if it fits, else at the largest below; if not even the
    minimum fits, on room that is taken from others."""
    round_ = adjustment.round
    queue = round_.waiting()
    for entry in queue:
        job = round_.job(entry[4])
        if round_.placement(job):
            continue  # an earlier step of this round has started it
        if not job.placement and round_.cools(job):  # one that holds something was stopped in this round, and goes on
            round_.refuse(job, BEHIND)
            continue
        if _start(adjustment, job):
            continue
        round_.refuse(job, lacks(job, round_))
        if not adjustment.blocked and ever_fits(round_, job.spec):
            adjustment.blocked = job.key
        queue.drop()


def _start(adjustment: Adjustment, job: Job) -> bool:
    round_, taking = adjustment.round, adjustment.taking
    left = bool(job.placement)  # a node, in this round
    declared = job.counts if left else job.spec.declared

    def start(counts: Counts) -> bool:
        why = AS_DECLARED if counts == declared else Reason("less-room", {"declared": declared})
        return round_.start(job, counts, LEAVES_NODE if left else why)

    if not nowhere(round_, job.spec) and largest(round_, job, Downward(job, declared), start) >= 0:
        taking.started(job)
        return True
    least = job.spec.minimum
    waited = 0.0 if left else round_.now - max(job.spec.arrival_s, job.since_s)
    impatient = left or waited >= adjustment.settings.patience_s
    if taking.in_vain(job.spec, needed=impatient):
        return False
    if taking.take(
        job,
        least,
        Reason("makes-room", {"job": job.key, "waits_s": waited}),
        lambda: round_.start(job, least, LEAVES_NODE if left else GIVEN_ROOM),
        needed=impatient,
    ):
        return True
    taking.failed(job.spec, needed=impatient)
    return False


def nowhere(round_: Round, spec: JobSpec) -> bool:
    """Whether surely no node holds one replica of a type that the job must have, whatever its size."""
    least = spec.minimum
    return any(least[group.type] and round_.room.none_holds(group.request) for group in spec.groups)


def ever_fits(round_: Round, spec: JobSpec) -> bool:
    """Whether the totals of the nodes where it may run hold the job's minimum."""
    room = round_.room
    allowed = room.allowed(spec)
    total = total_of(room.usable if allowed is None else (room.usable[i] for i in allowed))
    return spec.demand(spec.minimum).within(total)
