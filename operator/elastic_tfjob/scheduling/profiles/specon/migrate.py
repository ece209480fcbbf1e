"""SpeCon's speculative migration, as published: converging jobs make room for those whose loss falls fast."""

from dataclasses import dataclass
from math import inf

from elastic_tfjob.scheduling.profiles.specon.classes import Class, classify
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Job

__all__ = ["Migrate"]


@dataclass(frozen=True, slots=True)
class Migrate:
    """Of the node with the most jobs that has both, the slowest of the converged goes to the node with the fewest
    progressing ones, if that has fewer jobs. One move each `period_s`, and one of each job."""

    alpha: float
    period_s: float

    def __call__(self, round_: Round) -> None:
        running = round_.running_in_order()
        classes = {job.key: classify(round_, job, self.alpha) for job in running}
        for key, target in round_.changes.items():
            # Of one that goes on after a stop it is known what its loss said: the next plan would remember it.
            if target.nodes and key not in classes:
                classify(round_, round_.job(key), self.alpha)
        last = max((job.since_s for job in running if job.migrations), default=-inf)
        if round_.now - last < self.period_s:
            return
        there: dict[str, dict[str, Job]] = {name: {} for name in round_.nodes}
        for job in running:
            for names in round_.placement(job).values():
                for name in names:
                    there.setdefault(name, {})[job.key] = job
        for source in sorted(there, key=lambda name: (-len(there[name]), name)):
            if self._leave(round_, source, there, classes):
                return

    def _leave(self, round_: Round, source: str, there: dict[str, dict[str, Job]], classes: dict[str, Class]) -> bool:
        jobs = there[source].values()
        if all(classes[job.key] != "progressing" for job in jobs):
            return False
        slow = [job for job in jobs if classes[job.key] == "converged" and not job.migrations and job.spec.movable]
        for job in sorted(slow, key=lambda job: (job.loss.of_peak or 0.0, job.key)):
            if job.phase != "running" or round_.placement(job) != job.placement:
                continue
            targets = [name for name in round_.nodes if len(there[name]) + 1 < len(there[source])]
            targets.sort(
                key=lambda name: (
                    sum(classes[key] == "progressing" for key in there[name]),
                    len(there[name]),
                    name,
                )
            )
            if any(_move(round_, job, source, target) for target in targets):
                return True
        return False


def _move(round_: Round, job: Job, source: str, target: str) -> bool:
    """All replicas of the job that are on the node."""
    reason = Reason("converged", {"source": source, "target": target})
    there = [(t, k) for t, names in job.placement.items() for k, name in enumerate(names) if name == source]
    moved = [round_.move(job, role, target, reason) for role in there]
    return any(moved)
