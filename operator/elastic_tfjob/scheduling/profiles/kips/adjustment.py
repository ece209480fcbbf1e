"""What the steps of one round share."""

from elastic_tfjob.scheduling.profiles.kips.donors import IdleFirst
from elastic_tfjob.scheduling.profiles.kips.settings import Settings
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Job
from elastic_tfjob.scheduling.toolkit.cpu_in_place import CpuInPlace
from elastic_tfjob.scheduling.toolkit.taking import Taking


class Adjustment(CpuInPlace):
    """`blocked`: the first waiting job that could not start now, but could on an empty cluster."""

    def __init__(self, round_: Round, settings: Settings, donors: IdleFirst | None = None) -> None:
        super().__init__(round_, settings.cpu_rule)
        self.settings = settings
        self.costs = settings.costs
        self.taking = Taking(round_, donors or IdleFirst(round_, settings))
        self.blocked = ""

    def worth(self, job: Job, saved: float) -> bool:
        """Whether a rescale costs less than the part `saved` of the time that the job has left."""
        return self.costs.worth(job, saved, self.round.now)
