"""What the steps of one round share."""

from elastic_tfjob.scheduling.profiles.kips.busy import busy_view
from elastic_tfjob.scheduling.profiles.kips.donors import IdleFirst
from elastic_tfjob.scheduling.profiles.kips.settings import Settings
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Job, counts_of
from elastic_tfjob.scheduling.toolkit.cpu_grants import Grants
from elastic_tfjob.scheduling.toolkit.repair import repair_candidates
from elastic_tfjob.scheduling.toolkit.taking import Taking


class Adjustment:
    """`lent`: running jobs that held more CPU than they request when the round began. `short`: busy jobs that got less
    CPU than they could use. `blocked`: the first waiting job that could not start now, but could on an empty cluster.
    `ranked`: keys of jobs that hold CPU by another rule, which are given none here.
    """

    def __init__(self, round_: Round, settings: Settings, donors: IdleFirst | None = None) -> None:
        self.round = round_
        self.settings = settings
        self.costs = settings.costs
        self.grants = Grants(round_)
        self.taking = Taking(round_, donors or IdleFirst(round_, settings))
        snapshot = round_.snapshot
        seen = snapshot.view(("busy", settings), busy_view(settings))
        self.busy, self.silent = seen.uses, seen.silent
        jobs = map(round_.job, snapshot.view("repair candidates", repair_candidates).lent)
        self.lent = [job for job in jobs if job.phase == "running" and round_.placement(job)]
        self.short: list[Job] = []
        self.blocked = ""
        self.ranked: set[str] = set()

    def worth(self, job: Job, saved: float) -> bool:
        """Whether a rescale costs less than the part `saved` of the time that the job has left."""
        return self.costs.worth(job, saved, self.round.now)

    def resized(self) -> list[Job]:
        """Jobs that this round starts, or gives another size."""
        jobs = self.round.snapshot.jobs
        return [
            job
            for key, target in self.round.changes.items()
            if not (job := jobs[key]).placement or counts_of(target.nodes) != job.counts
        ]
