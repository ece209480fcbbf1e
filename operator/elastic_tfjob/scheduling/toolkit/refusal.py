"""Why a job does not fit, in words."""

from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Job
from elastic_tfjob.scheduling.toolkit.reachable import reachable_total

GIB = 1024**3


def lacks(job: Job, round_: Round) -> str:
    """What is short for the job's declared size: a total, or room on single nodes."""
    want, free = job.spec.demand(job.spec.declared), reachable_total(round_)
    short = []
    if want.accelerators > free.accelerators:
        short.append(f"{want.accelerators} accelerators, {free.accelerators} free")
    if want.cpu > free.cpu:
        short.append(f"{want.cpu / 1000:g} CPU, {free.cpu / 1000:g} free")
    if want.memory > free.memory:
        short.append(f"{want.memory / GIB:.1f} GiB, {free.memory / GIB:.1f} GiB free")
    if want.pods > free.pods:
        short.append(f"{want.pods} pods, {free.pods} free")
    if want.storage > free.storage:
        short.append(f"{want.storage / GIB:.1f} GiB of ephemeral storage, {free.storage / GIB:.1f} GiB free")
    if short:
        return "needs " + "; ".join(short)
    return "enough is free in total, but not on the nodes that may run it"
