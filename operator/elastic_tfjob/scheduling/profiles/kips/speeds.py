"""How fast a job would be at other sizes."""

from dataclasses import dataclass

from elastic_tfjob.scheduling.profiles.kips.busy import Use
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Counts, Job
from elastic_tfjob.speed.optimus import OnlineSpeed
from elastic_tfjob.speed.utilisation import speedup

ALIKE = 0.9
"""Speeds tell of sizes if they were measured with the same CPU, give or take a tenth."""


@dataclass(frozen=True, slots=True)
class Growth:
    """A job's speed at other sizes relative to the present one: as measured, else as fitted, else from its CPU use.

    `steps_per_s` and `cpu` (millicores of a worker, in the mean) are of the present size.
    """

    job: Job
    use: Use
    steps_per_s: float
    cpu: float
    min_gain: float

    def factor(self, counts: Counts) -> float:
        """Steps per second at `counts`, relative to those at the present size."""
        size = (counts.get(PS, 0), counts.get(WORKER, 0))
        held = self.job.counts
        speed = self.job.speed
        if isinstance(speed, OnlineSpeed):
            seen = speed.measured.get(size)
            if seen is not None:
                ratio, cpu = seen / self.steps_per_s, speed.cpu.get(size, self.cpu)
                # With less CPU than it would have now, a poor speed says nothing about that size; nor a good one with
                # more.
                if cpu <= self.cpu / ALIKE if ratio >= 1 + self.min_gain else cpu >= self.cpu * ALIKE:
                    return ratio
            if speed.fit is not None and speed.fit.confident:
                here = speed.fit.predict(held.get(PS, 0), held.get(WORKER, 0))
                if here > 0:
                    return speed.fit.predict(*size) / here
        elif speed is not None:
            here, there = speed.steps_per_s(held) or 0.0, speed.steps_per_s(counts)
            if here > 0 and there is not None:
                return there / here
        return speedup(self.use, {t: n / held[t] for t, n in counts.items() if held.get(t)})
