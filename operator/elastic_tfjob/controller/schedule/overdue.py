"""Stop the jobs that are still on a recalled node when its grace is over, whatever the profile. Pure."""

from dataclasses import dataclass

from elastic_tfjob.scheduling.profile import Lend
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.round import Round


@dataclass(frozen=True, slots=True)
class StopOverdue:
    """The profile's own Lend, and after it the stops. A stop asks for a checkpoint first, and has a deadline of its own
    (rescale.stop_timeout_s), after which the job's pods are deleted without one. `leaving`: keys of jobs with pods on
    these nodes, also of those that are to go on elsewhere and only prepare to."""

    lend_as: Lend
    nodes: frozenset[str]
    leaving: frozenset[str] = frozenset()

    def lend(self, round_: Round) -> None:
        self.lend_as.lend(round_)
        for job in (*round_.running_in_order(), *round_.rescaling()):
            held = round_.placement(job)
            leaves = bool(held) and job.phase == "rescaling" and job.key in self.leaving
            if leaves or any(not self.nodes.isdisjoint(names) for names in held.values()):
                round_.stop(job, Reason("node-returns"), "reclaim")
