"""What came of decisions: the speed that each change expected, beside the one that the job then had."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from elastic_tfjob.scheduling.causes import Cause
from elastic_tfjob.scheduling.forecasts import expected_rate
from elastic_tfjob.scheduling.plan import Target
from elastic_tfjob.scheduling.snapshot import Job, Node, Snapshot
from elastic_tfjob.simulation.live_job import LiveJob
from elastic_tfjob.simulation.outcome import Compared
from elastic_tfjob.speed.calibration import SETTLED_S, Calibration, calibration
from elastic_tfjob.speed.history import History


@dataclass(slots=True)
class _Stay:
    """A job as a change left it, until the next one. `began_s`: since when it trains there, and with `steps` done;
    None: not yet. `steps_per_s`: in the mean since then; None: it did not train there for long enough."""

    cause: Cause
    job: Job
    target: Target
    now: float
    history: History
    began_s: float | None = None
    steps: float = 0.0
    steps_per_s: float | None = None


class Stays:
    """Of one run. Speeds are measured while it lasts and predicted after it, so that its CPU time is without that."""

    def __init__(self) -> None:
        self._open: dict[str, _Stay] = {}
        self._measured: list[_Stay] = []

    def change(self, live: LiveJob, target: Target, snapshot: Snapshot) -> None:
        """The job is about to be changed to `target`, by a plan for this Snapshot."""
        key, now = live.spec.key, snapshot.now
        self.end(live, now)
        if target.nodes and target.cause is not None:
            self._open[key] = _Stay(target.cause, snapshot.jobs[key], target, now, snapshot.history)

    def trains(self, live: LiveJob) -> None:
        """The job trains as it was changed, from `observed_s` on."""
        stay = self._open.get(live.spec.key)
        if stay is not None and stay.began_s is None:
            stay.began_s, stay.steps = live.observed_s, live.steps

    def end(self, live: LiveJob, now: float) -> None:
        """The job ends, or is about to change."""
        stay = self._open.pop(live.spec.key, None)
        if stay is None or stay.began_s is None or now - stay.began_s < SETTLED_S:
            return
        stay.steps_per_s = (live.steps_at(now) - stay.steps) / (now - stay.began_s)
        self._measured.append(stay)

    def lost(self, live: LiveJob) -> None:
        """The job loses a node: what it does then says nothing about its speed."""
        self._open.pop(live.spec.key, None)

    def compared(self, nodes: Mapping[str, Node]) -> list[Compared]:
        """Each change of which a speed was expected and measured."""
        found = []
        for stay in self._measured:
            past = stay.history.past(stay.job.spec.scope, stay.job.spec.model)
            rate = expected_rate(stay.job, placement=stay.target.nodes, cpu=stay.target.cpu, past=past, nodes=nodes)
            if rate is not None and rate.steps_per_s > 0 and stay.steps_per_s is not None:
                found.append(Compared(stay.cause, rate.source, rate.steps_per_s, stay.steps_per_s))
        return found


def by_cause(compared: Iterable[Compared]) -> dict[str, Calibration]:
    """The calibration of each cause, and of `all` changes."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for each in compared:
        for name in ("all", each.cause):
            ratios[name].append(each.measured / each.expected)
    return {name: calibration(found) for name, found in sorted(ratios.items())}
