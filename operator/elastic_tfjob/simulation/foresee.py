"""Forecasts of start and finish times for the jobs of a live cluster: a simulation from its current state, in which no
further job arrives."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from elastic_tfjob.scheduling.forecasts import duration_left, prediction_of, work_left
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profile import LIVE_INTERVAL_S
from elastic_tfjob.scheduling.profiles import ProfileParameters, build
from elastic_tfjob.scheduling.snapshot import UNPLACED, Counts, Job, Node, Placement, counts_of
from elastic_tfjob.scheduling.steps.sizes import LIVE_PAUSE_S
from elastic_tfjob.simulation.engine import Simulation, SimulationInput
from elastic_tfjob.simulation.live_job import Costs, LiveJob
from elastic_tfjob.simulation.result import JobRecord
from elastic_tfjob.simulation.speed_models.base import FIXED, FixedTrueSpeed, TrueSpeed
from elastic_tfjob.simulation.speed_models.cpu import Boot, Cores, CpuBound, Pace
from elastic_tfjob.simulation.workload import WorkloadJob
from elastic_tfjob.speed.history import History, Past
from elastic_tfjob.speed.optimus import OnlineSpeed
from elastic_tfjob.speed.prediction import Prediction, Source

__all__ = ["COSTS", "Fate", "ForecastRun", "World", "foresee", "present"]

# -- Conversion of a live Snapshot's jobs to simulated jobs ------------------------------------------------------------
# The simulation assumes that the prediction for each job comes true.
#
# It is the prediction that profiles and deadline checks use (forecasts.py), frozen at the time of the Snapshot. The
# simulation therefore shows the consequences of what the operator knows, and nothing beyond that.


@dataclass(frozen=True, slots=True)
class PredictedSpeed:
    """The predicted speed at each size. `total_steps` is infinite if it is unknown."""

    total_steps: float
    prediction: Prediction

    def rate(self, placement: Placement) -> float:
        return self.steps_per_s(counts_of(placement))

    def steps_per_s(self, counts: Counts) -> float:
        found = self.prediction.at(counts)
        return found.steps_per_s if found is not None else 0.0


@dataclass(frozen=True, slots=True)
class PredictedCpuSpeed(PredictedSpeed):
    """The predicted speed of a job whose replicas all request CPU. The speed follows the CPU that the replicas can use;
    the CPU time of a step is, for each replica type, the same as now."""

    def pace(self, cores: Cores) -> Pace:
        known = self.prediction
        counts = {type_: len(each) for type_, each in cores.items()}
        can = {type_: round(1000 * sum(each) / len(each), 6) for type_, each in cores.items() if each}
        found = known.at(counts, {type_: round(1000 * min(each), 6) for type_, each in cores.items() if each})
        rate = found.steps_per_s if found is not None else 0.0
        use = {}
        if known.steps_per_s > 0:
            for type_, millicores in can.items():
                if millicores and (used := known.use.get(type_)) is not None:
                    step = used * known.usable.get(type_, 0.0) * known.counts.get(type_, 0) / known.steps_per_s
                    use[type_] = min(1.0, step * rate / (millicores * counts[type_]))
        return Pace(rate, use)


def present(job: Job, now: float, past: Past | None = None) -> tuple[LiveJob, Source | None]:
    """A Snapshot's job at `now` as a simulated job, and the source from which its end is known. `past`: measurements of
    similar finished jobs. A source of None means that its end is unknown: it never finishes and keeps what plans leave
    it."""
    spec, steps = job.spec, job.steps_at(now)
    speed, source = _speed(job, now, steps, past)
    live = LiveJob(
        work=WorkloadJob(spec.key, now, spec.groups),
        spec=spec,
        true_speed=speed,
        record=JobRecord(
            spec.key,
            spec.arrival_s,
            spec.deadline_s,
            start_s=job.since_s if job.placement or job.stops else None,
            executed_s=job.executed_s,
            preemptions=job.stops,
            migrations=job.migrations,
        ),
        factor=1.0,
        speed=job.speed,
        placement=job.placement,
        steps=steps,
        observed_s=max(now, job.observed_s) if job.placement else now,
        since_s=job.since_s,
        service=job.service,
        rescaled_s=job.rescaled_s,
        stopped_s=job.stopped_s,
        resumed_s=job.resumed_s,
        cpu_held=job.cpu,
        use=job.cpu_use,
        warm_start=job.warm_start,
        live_workers=job.live_workers,
        cpu_limited=job.cpu_limited,
        cpu_shared=job.cpu_shared,
        loss=job.loss,
        memory=job.memory,
        prepare_s=job.prepare_s,
    )
    if isinstance(job.speed, OnlineSpeed):
        live.seen, live.seen_under = dict(job.speed.measured), dict(job.speed.conditions)
    if isinstance(speed, CpuBound):
        live.bound = speed
        if job.phase == "rescaling" and not job.steps_per_s:  # its first program is just starting
            live.boot = Boot(UNPLACED, {}, 0.0, now, now)
    return live, source


def _speed(job: Job, now: float, steps: float, past: Past | None) -> tuple[TrueSpeed, Source | None]:
    """The job's speed from the same sources as forecast(): speed and remaining work if known, else the duration."""
    spec, prediction = job.spec, prediction_of(job, past)
    rate, left = prediction.at(job.counts or spec.declared), work_left(job, now, past)
    # A CPU weight does not determine a speed.
    by_cpu = job.cpu_limited and all(group.request.cpu_millicores for group in spec.groups)

    def predicted(total: float) -> TrueSpeed:
        return PredictedCpuSpeed(total, prediction) if by_cpu else PredictedSpeed(total, prediction)

    if rate is not None and rate.steps_per_s > 0 and left is not None:
        return predicted(steps + left[0]), rate.source
    if (lasts := duration_left(job, now, past)) is not None:
        if left is not None and lasts[0] > 0:
            return FixedTrueSpeed(steps + left[0], left[0] / lasts[0]), lasts[2]
        per_s = job.steps_per_s or 1.0
        return FixedTrueSpeed(steps + lasts[0] * per_s, per_s), lasts[2]
    if rate is not None and rate.steps_per_s > 0:
        return predicted(inf), None
    return FixedTrueSpeed(inf, 0.0), None


COSTS: Final = Costs(rescale_s=1.0, boot_cpu_s=12.0, live_pause_s=LIVE_PAUSE_S)
"""A TensorFlow program takes 12 s of CPU to start, and a resize stops training for 1 s. The simulations that are
compared with live runs use the same values (docs/simulation.md)."""


@dataclass(frozen=True, slots=True)
class World:
    """A cluster at `now` (seconds on its jobs' clock), with the profile that schedules it."""

    now: float
    nodes: Mapping[str, Node]
    jobs: Mapping[str, Job]
    history: History
    profile: str
    parameters: ProfileParameters


@dataclass(frozen=True, slots=True)
class Fate:
    """The forecast for one job: its first start (None: it has started already, or never does) and its end (None:
    unknown, or never). `source`: what the end is known from; None: the job's duration is unknown."""

    start_s: float | None
    finish_s: float | None
    source: str | None


@dataclass(frozen=True, slots=True)
class ForecastRun:
    """The forecasts for all jobs, by key. `until_s`: the simulated time at which the CPU time ran out; nothing after it
    is known. None: the simulation reached its end."""

    fates: Mapping[str, Fate]
    until_s: float | None = None


class _OutOfTime(Exception):
    pass


def foresee(world: World, cpu_s: float) -> ForecastRun:
    """Simulate the cluster forward. It takes at most `cpu_s` seconds of CPU time plus one scheduling round."""
    made = build(world.profile, world.parameters)
    # As in a live cluster, a resized job keeps the places of its remaining replicas. If the profile's decisions change
    # with time alone, there is a round at least every LIVE_INTERVAL_S.
    profile = replace(made, repack=False, interval_s=made.interval_s or (LIVE_INTERVAL_S if made.drifts else 0.0))
    begin = time.process_time()

    def check(_: Plan) -> None:
        if time.process_time() - begin > cpu_s:
            raise _OutOfTime

    jobs = sorted(world.jobs.values(), key=lambda job: (job.spec.arrival_s, job.key))
    found = [present(job, world.now, world.history.past(job.spec.scope, job.spec.model)) for job in jobs]
    sources = {live.spec.key: source for live, source in found}
    had_begun = {live.spec.key for live, _ in found if live.record.start_s is not None}
    simulation = Simulation(
        SimulationInput((), tuple(world.nodes.values()), FIXED, costs=COSTS),
        profile,
        present=[live for live, _ in found],
        start_s=world.now,
        history=world.history,
        check=check,
    )
    until_s = None
    try:
        simulation.run()
    except _OutOfTime:
        until_s = simulation.snapshot.now
    return ForecastRun(
        {
            record.key: Fate(None if record.key in had_begun else record.start_s, record.finish_s, sources[record.key])
            for record in simulation.outcome.records
        },
        until_s,
    )
