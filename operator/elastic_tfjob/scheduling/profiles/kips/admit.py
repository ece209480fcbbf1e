"""Room for who must have it, and for who waits."""

from elastic_tfjob.scheduling.placements import lacking
from elastic_tfjob.scheduling.profiles.kips.adjustment import Adjustment
from elastic_tfjob.scheduling.reasons import describe_change, describe_size
from elastic_tfjob.scheduling.resources import NOTHING
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import WORKER, Job, JobSpec, counts_of
from elastic_tfjob.scheduling.toolkit.refusal import lacks
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
                round_.resize(job, fewer, f"{describe_change(job.counts, fewer)}: {name} has less than its pods hold")


def guarantee(adjustment: Adjustment) -> None:
    """Make room for sizes that running jobs must have, and that `repair` found no room for."""
    round_ = adjustment.round
    for key, counts in round_.unmet.items():
        job = round_.job(key)
        why = job.spec.asked or "its bounds ask for another size"
        adjustment.taking.take(
            job,
            lacking(job.placement, counts) or counts,
            f"makes room for {job.key}: {why}",
            lambda job=job, counts=counts, why=why: round_.repair(  # type: ignore[misc]
                job, counts, f"{describe_change(job.counts, counts)}: {why}"
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
        if round_.cools(job):
            round_.refuse(job, "")
            continue
        if _start(adjustment, job):
            continue
        round_.refuse(job, lacks(job, round_))
        if not adjustment.blocked and ever_fits(round_, job.spec):
            adjustment.blocked = job.key
        queue.drop()


def _start(adjustment: Adjustment, job: Job) -> bool:
    round_, taking, declared = adjustment.round, adjustment.taking, job.spec.declared
    why = "as declared"
    for counts in downward(job, declared):
        if round_.start(job, counts, why):
            taking.started(job)
            return True
        why = f"no room for the declared {describe_size(declared)}"
    least = job.spec.minimum
    waited = round_.now - max(job.spec.arrival_s, job.since_s)
    impatient = waited >= adjustment.settings.patience_s
    if taking.in_vain(job.spec, needed=impatient):
        return False
    if taking.take(
        job,
        least,
        f"makes room for {job.key}, which waits for {waited:.0f} s",
        lambda: round_.start(job, least, "on room that others give back"),
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
