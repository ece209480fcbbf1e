"""The jobs whose sizes are not planned: they give and grow by how busy their replicas are, as under kips."""

from elastic_tfjob.scheduling.profiles.elastic.planned import planned
from elastic_tfjob.scheduling.profiles.kips.adjustment import Adjustment
from elastic_tfjob.scheduling.profiles.kips.donors import IdleFirst
from elastic_tfjob.scheduling.profiles.kips.grow import grow
from elastic_tfjob.scheduling.snapshot import Job
from elastic_tfjob.scheduling.toolkit.cpu_load import CpuLoad, cpu_load_view

__all__ = ["Unplanned", "grow_unplanned", "leave_ranked"]


class Unplanned(IdleFirst):
    """Who waits gets replicas of these jobs alone: what planned ones have was weighed already."""

    def gives(self, donor: Job, needed: bool) -> bool:
        return not planned(donor) and super().gives(donor, needed)


def leave_ranked(adjustment: Adjustment) -> None:
    """Jobs that hold CPU by their rank on a crowded node keep that."""
    round_ = adjustment.round
    load: CpuLoad = round_.snapshot.view("cpu load", cpu_load_view)
    there = {key: round_.job(key) for name in load.crowded() for key in load.there[name]}
    adjustment.ranked = {key for key, job in there.items() if round_.cpu(job)}
    adjustment.lent = [job for job in adjustment.lent if job.key not in adjustment.ranked]


def grow_unplanned(adjustment: Adjustment) -> None:
    """As `grow` of kips."""
    adjustment.short = [job for job in adjustment.short if not planned(job)]
    grow(adjustment)
