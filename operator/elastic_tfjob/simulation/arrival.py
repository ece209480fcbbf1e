"""A job comes: what is true of it, and what its policy is told."""

from random import Random

from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.snapshot import JobSpec
from elastic_tfjob.simulation.costs import Noise
from elastic_tfjob.simulation.live_job import LiveJob
from elastic_tfjob.simulation.outcome import JobRecord
from elastic_tfjob.simulation.speed_models.base import SpeedModel
from elastic_tfjob.simulation.speed_models.cpu import CpuBound
from elastic_tfjob.simulation.workload import WorkloadJob
from elastic_tfjob.speed.history import stem


def arrive(
    work: WorkloadJob,
    sequence: int,
    *,
    speed_model: SpeedModel,
    profile: Profile,
    noise: Noise,
    random: Random,
    now: float,
) -> LiveJob:
    """The job as it waits from `now` on. With the oracle its policy is told true speeds and durations; without, where
    it asks for that, what a few brief runs show. One error goes for the steps and the durations that are told: who
    knows the speeds cannot find it out."""
    true_speed = speed_model.true_speed(work)
    total, oracle = true_speed.total_steps, profile.oracle
    error = lognormal(noise.estimate, random)
    told = total * error
    duration = work.estimated_s
    if oracle:
        rate = true_speed.steps_per_s({group.type: group.count for group in work.groups})
        duration = told / rate if rate else None
    spec = JobSpec(
        key=work.key,
        arrival_s=work.submit_s,
        groups=work.groups,
        sequence=sequence,
        priority=work.priority,
        deadline_s=work.deadline_s,
        total_steps=told,
        duration_s=duration,
        loanable=work.loanable,
        model=work.model or stem(work.key.rpartition("/")[2]),
    )
    live = LiveJob(
        work=work,
        spec=spec,
        true_speed=true_speed,
        record=JobRecord(work.key, work.submit_s, work.deadline_s),
        factor=lognormal(noise.speed, random),
        speed=true_speed if oracle else None,
        observed_s=now,
        since_s=now,
        silent=noise.silent > 0 and random.random() < noise.silent,
    )
    if hasattr(true_speed, "pace") and isinstance(true_speed, CpuBound):  # the first is quick to say no
        live.bound = true_speed
    if not oracle and profile.sample_points and spec.elastic:
        live.measure(profile.sample_points, random)
    return live


def lognormal(sigma: float, random: Random) -> float:
    """A factor whose logarithm has this standard deviation; 1, and nothing drawn, for 0."""
    return random.lognormvariate(0.0, sigma) if sigma > 0 else 1.0
