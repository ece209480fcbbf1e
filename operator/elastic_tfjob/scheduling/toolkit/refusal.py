"""Why a job does not fit."""

from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Job
from elastic_tfjob.scheduling.toolkit.reachable import reachable_total


def lacks(job: Job, round_: Round) -> Reason:
    """What is short for the job's declared size: a total, or room on single nodes."""
    want, free = job.spec.declared_demand, reachable_total(round_)
    short: dict[str, int] = {}
    for name, needed, there in zip(Resources._fields, want, free, strict=True):
        if needed > there:
            short |= {name: needed, f"{name}_free": there}
    return Reason("short", short) if short else Reason("no-nodes")
