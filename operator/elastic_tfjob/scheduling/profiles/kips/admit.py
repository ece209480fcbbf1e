"""Room for who must have it, and for who waits."""

from elastic_tfjob.scheduling.placements import lacking
from elastic_tfjob.scheduling.plan import BEHIND
from elastic_tfjob.scheduling.profiles.kips.adjustment import Adjustment
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import NOTHING
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import WORKER, Job, JobSpec, counts_of
from elastic_tfjob.scheduling.toolkit.refusal import lacks
from elastic_tfjob.scheduling.toolkit.repair import misfit
from elastic_tfjob.scheduling.toolkit.sizes import downward, movable, one_fewer


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
    for name, i in over.items():
        for entry in round_.running_in_order():
            job = round_.job(entry[4])
            while room.cpu[i] < 0 or room.memory[i] < 0:
                held = round_.placement(job)
                fewer = one_fewer(counts_of(held), job.spec.minimum) if job.spec.elastic else None
                if fewer is None or held.get(WORKER, ("",))[-1] != name or not movable(job, round_):
                    break
                round_.resize(job, fewer, Reason("node-full", {"node": name}))


def guarantee(adjustment: Adjustment) -> None:
    """Make room for sizes that running jobs must have, and that `repair` found no room for."""
    round_ = adjustment.round
    for key, counts in round_.unmet.items():
        job = round_.job(key)
        why, cause = misfit(job, round_.snapshot.nodes)
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
        if round_.cools(job):
            round_.refuse(job, BEHIND)
            continue
        if _start(adjustment, job):
            continue
        round_.refuse(job, lacks(job, round_))
        if not adjustment.blocked and ever_fits(round_, job.spec):
            adjustment.blocked = job.key
        queue.drop()


def _start(adjustment: Adjustment, job: Job) -> bool:
    round_, taking, declared = adjustment.round, adjustment.taking, job.spec.declared
    why = Reason("as-declared")
    for counts in downward(job, declared):
        if round_.start(job, counts, why):
            taking.started(job)
            return True
        why = Reason("less-room", {"declared": declared})
    least = job.spec.minimum
    waited = round_.now - max(job.spec.arrival_s, job.since_s)
    impatient = waited >= adjustment.settings.patience_s
    if taking.in_vain(job.spec, needed=impatient):
        return False
    if taking.take(
        job,
        least,
        Reason("makes-room", {"job": job.key, "waits_s": waited}),
        lambda: round_.start(job, least, Reason("given-room")),
        needed=impatient,
    ):
        return True
    taking.failed(job.spec, needed=impatient)
    return False


def ever_fits(round_: Round, spec: JobSpec) -> bool:
    """Whether the totals of the nodes where it may run hold the job's minimum."""
    room = round_.room
    allowed = room.allowed(spec)
    total = NOTHING
    for i in range(len(room.nodes)) if allowed is None else sorted(allowed):
        total = total.plus(room.usable[i])
    return spec.demand(spec.minimum).within(total)
