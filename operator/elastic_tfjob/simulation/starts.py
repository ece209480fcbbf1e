"""What is forecast of each job under the plan that starts it first."""

from collections.abc import Mapping

from elastic_tfjob.scheduling.forecasts import forecast
from elastic_tfjob.scheduling.plan import Target
from elastic_tfjob.scheduling.snapshot import Job, Node, Snapshot
from elastic_tfjob.simulation.outcome import JobRecord
from elastic_tfjob.speed.history import History


class Starts:
    """Of one run. They are noted while it lasts and forecast after it, so that its CPU time is without that."""

    def __init__(self) -> None:
        self._noted: list[tuple[JobRecord, Job, Target, float, History]] = []

    def note(self, record: JobRecord, snapshot: Snapshot, key: str, target: Target) -> None:
        self._noted.append((record, snapshot.jobs[key], target, snapshot.now, snapshot.history))

    def forecast(self, nodes: Mapping[str, Node]) -> None:
        for record, job, target, now, history in self._noted:
            past = history.past(job.spec.scope, job.spec.model)
            record.forecast = forecast(job, now, placement=target.nodes, cpu=target.cpu, past=past, nodes=nodes)
