"""SpeCon's classes of jobs, from the growth of their loss: progressing, watched, converged."""

from typing import Final, Literal

from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Job

__all__ = ["Class", "classify"]

Class = Literal["progressing", "watched", "converged"]

WATCHED: Final = "watched"
"""In a job's memory: how many readings there were when it was watched first."""
CONVERGED: Final = "converged"
"""In a job's memory, 1: the reading after that was slow, too."""


def classify(round_: Round, job: Job, alpha: float) -> Class:
    """The class of a job, after what its loss says now: a slow reading has a progressing job watched, and the next one
    in a row has it converged; one that is not slow has it progressing again. Only what changes is remembered. A job
    whose loss is not known, or is no number now, is progressing.
    """
    memory, growth = round_.memory(job), job.loss
    part = growth.of_peak if growth.state == "finite" else None
    if part is None or part >= alpha:
        round_.remember(job, WATCHED, None)
        round_.remember(job, CONVERGED, None)
        return "progressing"
    since = memory.get(WATCHED)
    if since is None:
        round_.remember(job, WATCHED, growth.readings)
        return "watched"
    if CONVERGED in memory:
        return "converged"
    if growth.readings <= since:
        return "watched"
    round_.remember(job, CONVERGED, 1)
    return "converged"
