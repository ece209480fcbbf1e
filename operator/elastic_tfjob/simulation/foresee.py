"""What becomes of the jobs of a live cluster, if nothing comes but what is there: `foresee` simulates it forward.

`python -m elastic_tfjob.simulation.foresee` does so in a process of its own, for an operator that must go on meanwhile:
it reads pickled Worlds from its parent, and writes their Courses as JSON.
"""

import os
import pickle
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import orjson

from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profiles import ProfileParameters, build
from elastic_tfjob.scheduling.snapshot import Job, Node
from elastic_tfjob.simulation.costs import Costs
from elastic_tfjob.simulation.engine import Simulation
from elastic_tfjob.simulation.present import present
from elastic_tfjob.simulation.speed_models.fixed import FixedSpeedModel
from elastic_tfjob.speed.history import History

__all__ = ["Course", "Fate", "World", "courses_of", "foresee", "packed"]

COSTS: Final = Costs(rescale_s=1.0, boot_cpu_s=12.0)
"""A program of TensorFlow takes 12 s of CPU to start, and a switch to another size stops training for a second: as in
the simulations that are compared with live runs (docs/simulation.md)."""

# As the operator's loop: where a decision moves with the clock, there is a round at least so often.
_INTERVAL_S: Final = 15.0
_MEMORY_BYTES: Final = 512 << 20
_NICE: Final = 10


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
    # As live: a job whose size changes is not placed anew.
    profile = replace(made, repack=False, interval_s=made.interval_s or (_INTERVAL_S if made.drifts else 0.0))
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


def packed(worlds: Sequence[World], cpu_s: float) -> bytes:
    """What the process is to read: it may spend `cpu_s` on each."""
    return pickle.dumps((list(worlds), cpu_s), protocol=pickle.HIGHEST_PROTOCOL)


def courses_of(answer: bytes) -> list[Course]:
    """What the process wrote."""
    return [
        Course({key: Fate(**fate) for key, fate in each["fates"].items()}, each["until_s"])
        for each in orjson.loads(answer)
    ]


def main() -> None:
    """Read, simulate, write; with little memory and behind whoever else wants CPU."""
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
    worlds, cpu_s = pickle.loads(sys.stdin.buffer.read())  # of its parent, who has the same rights
    sys.stdout.buffer.write(orjson.dumps([foresee(world, cpu_s) for world in worlds]))


if __name__ == "__main__":
    main()
