"""What becomes of the jobs of a live cluster, if nothing comes but what is there: it is simulated forward."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profile import LIVE_INTERVAL_S
from elastic_tfjob.scheduling.profiles import ProfileParameters, build
from elastic_tfjob.scheduling.snapshot import Job, Node
from elastic_tfjob.simulation.costs import Costs
from elastic_tfjob.simulation.engine import Simulation
from elastic_tfjob.simulation.present import present
from elastic_tfjob.simulation.speed_models.fixed import FixedSpeedModel
from elastic_tfjob.speed.history import History

__all__ = ["COSTS", "Course", "Fate", "World", "foresee"]

COSTS: Final = Costs(rescale_s=1.0, boot_cpu_s=12.0)
"""A program of TensorFlow takes 12 s of CPU to start, and a switch to another size stops training for a second: as in
the simulations that are compared with live runs (docs/simulation.md)."""


@dataclass(frozen=True, slots=True)
class World:
    """A cluster at `now` (seconds on its jobs' clock), and who decides for it."""

    now: float
    nodes: Mapping[str, Node]
    jobs: Mapping[str, Job]
    history: History
    profile: str
    parameters: ProfileParameters


@dataclass(frozen=True, slots=True)
class Fate:
    """Of one job: when it starts for the first time (None: it has, or never does) and when it ends (None: not known, or
    never). `source`: what its end is known from; None: nobody knows how long it takes."""

    start_s: float | None
    finish_s: float | None
    source: str | None


@dataclass(frozen=True, slots=True)
class Course:
    """What becomes of all jobs, by their keys. `until_s`: of what comes after it nothing is known, as there was no time
    to look any further; None: all of it was foreseen."""

    fates: Mapping[str, Fate]
    until_s: float | None = None


class _OutOfTime(Exception):
    pass


def foresee(world: World, cpu_s: float) -> Course:
    """What becomes of the jobs. It takes so much CPU time, and one round of the core more at the most."""
    made = build(world.profile, world.parameters)
    # As live: a job whose size changes is not placed anew, and where a decision moves with the clock, there is a round
    # at least so often.
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
        (),
        world.nodes.values(),
        FixedSpeedModel(),  # of jobs that come later, of which there are none
        profile,
        costs=COSTS,
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
    return Course(
        {
            record.key: Fate(None if record.key in had_begun else record.start_s, record.finish_s, sources[record.key])
            for record in simulation.outcome.records
        },
        until_s,
    )
