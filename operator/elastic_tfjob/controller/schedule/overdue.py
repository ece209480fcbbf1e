"""Stop the jobs that are still on a recalled node when its grace is over, whatever the profile. Pure."""

from dataclasses import dataclass

from elastic_tfjob.scheduling.profile import Lend
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.round import Round


@dataclass(frozen=True, slots=True)
class StopOverdue:
    """The profile's own Lend, and after it the stops. A stop asks for a checkpoint first, and has a deadline of its own
    (rescale.stop_timeout_s), after which the job's pods are deleted without one."""

    lend_as: Lend
    nodes: frozenset[str]

    def lend(self, round_: Round) -> None:
        self.lend_as.lend(round_)
        for job in (*round_.running_in_order(), *round_.rescaling()):
            if any(not self.nodes.isdisjoint(names) for names in round_.placement(job).values()):
                round_.stop(job, Reason("node-returns"), "reclaim")
