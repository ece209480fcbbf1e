"""What a change of a job costs in a simulation, and how far speeds and estimates stray."""

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds that a job stands still, and what it loses. `restart_s` holds (up to so many accelerators, seconds)
    rising; the last one goes for all larger jobs. `checkpoint_interval_s` 0: a preempted job loses nothing. A move
    loses the training of the last `migrate_lost_s`.

    Where speed follows CPU, `boot_cpu_s` is the CPU time of starting one process of the training program. A job that
    starts waits for it. One that is rescaled trains on meanwhile, with what CPU that leaves, and stands still for
    `rescale_s` only; what it gives up is free for others after that. `boot_kept_cpu_s`: the same for a replica that
    stays, which has imported what the new program imports; None: as for one that is added.
    """

    start_s: float = 0.0
    restart_s: tuple[tuple[float, float], ...] = ((inf, 0.0),)
    rescale_s: float = 0.0
    migrate_s: float = 0.0
    migrate_lost_s: float = 0.0
    checkpoint_interval_s: float = 0.0
    boot_cpu_s: float = 0.0
    boot_kept_cpu_s: float | None = None

    def restart(self, accelerators: int) -> float:
        return next((seconds for limit, seconds in self.restart_s if accelerators <= limit), self.restart_s[-1][1])


@dataclass(frozen=True, slots=True)
class Noise:
    """Standard deviations of the logarithm: of a job's real speed, and of the durations and steps a policy is told.
    `speed_every_s`: seconds after which the speed is drawn anew; 0: it is drawn once per job. `silent`: the part of the
    jobs, 0 to 1, whose programs and exporters report nothing: no step, no speed, no CPU use, no loss."""

    speed: float = 0.0
    speed_every_s: float = 0.0
    estimate: float = 0.0
    silent: float = 0.0
