"""Prediction: the expected speed of a job at any size and with any CPU, with its relative error.

All profiles, forecasts and deadline checks use this one model. A Gaussian process (belief.py) corrects an expected
curve by everything that was measured: the job's own speeds, those of finished jobs of the same model, and the duration
that its user expects. Every measurement also says how much CPU a replica could use then. The curve is the first of
these that is known:

- the fit of Optimus' formula (optimus.py) to the job's own speeds;
- the law of utilisation from the present size (model.py);
- the prior: doubling workers and PSs gives 2^0.8 times the speed.

The law ignores the costs that workers cause for each other, so it is an upper bound. The curve applies it to the terms
of Optimus' formula (Peng et al., EuroSys'18, section 3.2: a/w + b + c w/p). Each worker gets the whole model from the
PSs and sends it back, so the PSs' work is proportional to the number of workers. One part of a worker's own work is
divided among workers, the other part is the same for any number of workers. The proportion is unknown; half is counted
as divided. Time in which no replica computes is assumed constant: it would be longer with more workers if it is network
time, and shorter if it is CPU that a replica cannot use.

Errors are relative, one standard deviation. `make bench-elastic-mix` compares them with the true speeds of simulated
jobs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import exp, log, log2
from typing import Final, Literal

import numpy as np
from propcache.api import cached_property

from elastic_tfjob.speed.belief import Belief, Evidence, Floats, Mean, Scales, belief_of
from elastic_tfjob.speed.history import Conditions, Past, Size, alike
from elastic_tfjob.speed.model import Speed, speedup
from elastic_tfjob.speed.optimus import OnlineSpeed

__all__ = ["MEASURED_ERROR", "PRIOR_EXPONENT", "Gain", "Prediction", "Rate", "Source", "size_of"]

Source = Literal["measured", "interpolated", "fitted", "oracle", "utilisation", "history", "estimated", "prior"]
"""The source of a speed. `interpolated`: between sizes that the job has run at; `oracle`: the simulator's oracle;
`estimated`: the duration that a user expects."""

PRIOR_EXPONENT: Final = 0.8
PRIOR_CPU: Final = (0.5, 0.2)
"""The exponents of the CPU that a worker and a PS can use, where their use is not known."""
MEASURED_ERROR: Final = 0.03
"""The relative error of a measured speed. Speeds are stored with two digits."""
WEIGHT_ERROR: Final = 0.25
"""The relative error where CPU is a weight, which does not say how much a replica gets."""
ESTIMATED_ERROR: Final = 0.4
"""The relative error of the duration that a user expects."""
LESSONS_USED: Final = 3
"""The number of finished jobs of the model that are used, the last ones."""

# The scales of the belief, per doubling of workers, of PSs, and of the CPU that a worker, a PS and the chief can use.
# They are tuned on seeds 1 to 4 of the common mix (benchmarks/mix_workload.py).
OF_LAW: Final = Scales((0.15, 0.15, 0.1, 0.1, 0.1), 0.2)
OF_PRIOR: Final = Scales((0.6, 0.6, 0.2, 0.2, 0.2), 0.3)
CHIEFS: Final = ("Chief", "Master")

Point = tuple[float, float, float, float, float]

Counts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Rate:
    """A speed in steps per second, with its relative error (one standard deviation) and source."""

    steps_per_s: float
    relative_error: float
    source: Source

    def times(self, factor: float, error: float = 0.0) -> "Rate":
        """The rate multiplied by `factor`. The factor's error is added to the rate's own error."""
        return Rate(self.steps_per_s * factor, (self.relative_error**2 + error**2) ** 0.5, self.source)


@dataclass(frozen=True, slots=True)
class Gain:
    """A factor on the speed, and the standard deviation of its logarithm."""

    expected: float
    error: float = 0.0

    def at(self, deviations: float) -> float:
        """The factor so many standard deviations above the expected one."""
        return self.expected * exp(deviations * self.error)


NO_GAIN: Final = Gain(1.0)


@dataclass(frozen=True)
class Prediction:
    """The knowledge about one job's speed.

    `counts`: the current replicas per type, and `steps_per_s` the speed there (0: none yet). `use`: the fraction of the
    CPU that it can use (`usable`, millicores of one replica by type) that each type uses. `speed`: the measurements, or
    the true speed if the policy has the oracle. `past`: the lessons of jobs of the same model. `estimate`: a size, and
    the speed there that follows from the user's expected duration. `accelerator`: the speed of the slowest accelerator
    that the job runs on, relative to the usual one. Not `limited`: CPU is a weight, which does not determine how much a
    replica gets, as that depends on the demand of other jobs on the node.
    """

    counts: Counts
    steps_per_s: float = 0.0
    use: Mapping[str, float] = field(default_factory=dict)
    usable: Mapping[str, float] = field(default_factory=dict)
    speed: Speed | None = None
    past: Past | None = None
    estimate: tuple[Counts, float] | None = None
    accelerator: float = 1.0
    limited: bool = True

    def gain(
        self, counts: Counts, usable: Mapping[str, float] | None = None, usable_now: Mapping[str, float] | None = None
    ) -> "Gain":
        """Steps per second at `counts` with the CPU `usable` over those at the present size with `usable_now` (missing:
        the present CPU)."""
        if self.steps_per_s <= 0:
            return NO_GAIN
        if (known := self._oracle(counts)) is not None:
            now = self._oracle(self.counts)
            return Gain(known / now) if now else NO_GAIN
        if self._belief is None:
            return NO_GAIN
        there, here = self._point(counts, usable), self._point(self.counts, usable_now)
        mean, covariance = self._belief.at(np.array([there, here]))
        error = max(0.0, covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]) ** 0.5
        return Gain(exp(float(mean[0] - mean[1])), error)

    def at(
        self, counts: Counts, usable: Mapping[str, float] | None = None, accelerator: float | None = None
    ) -> Rate | None:
        """The speed with these replicas, each with `usable` CPU by type (missing: the present one), on accelerators of
        this speed (None: as now). None: nothing is known. If CPU is a weight, another weight is expected to give the
        same speed, with the error WEIGHT_ERROR."""
        if not self.limited and usable and any(usable.get(t, each) != each for t, each in self.usable.items()):
            same = self.at(counts, None, accelerator)
            return same.times(1.0, WEIGHT_ERROR) if same is not None else None
        rate = self._told(counts, usable) if self._has_oracle else self._believed(counts, usable)
        then = self.accelerator if accelerator is None else accelerator
        if rate is None or then == self.accelerator or not self.accelerator:
            return rate
        return rate.times(then / self.accelerator)

    # ---- the oracle of a simulation

    @property
    def _has_oracle(self) -> bool:
        return self.speed is not None and not isinstance(self.speed, OnlineSpeed)

    def _oracle(self, counts: Counts) -> float | None:
        """The true speed; None without the oracle, or if the oracle does not know the size."""
        return self.speed.steps_per_s(counts) if self.speed is not None and self._has_oracle else None

    def _told(self, counts: Counts, usable: Mapping[str, float] | None) -> Rate | None:
        there, now = self._oracle(counts), self._oracle(self.counts) if self.steps_per_s > 0 else None
        if not there:
            return None
        if not now:
            return Rate(there, 0.0, "oracle")
        more = {t: usable[t] / each for t, each in self.usable.items() if each and t in usable} if usable else {}
        factor = speedup(self.use, more) if any(abs(each - 1) > 1e-9 for each in more.values()) else 1.0
        if size_of(counts) == size_of(self.counts):
            there = now
        return Rate(self.steps_per_s * there / now * factor, MEASURED_ERROR, "oracle" if factor == 1 else "utilisation")

    # ---- the belief

    def _believed(self, counts: Counts, usable: Mapping[str, float] | None) -> Rate | None:
        point = self._point(counts, usable)
        if self.steps_per_s > 0 and not any(point):
            return Rate(self.steps_per_s, max(MEASURED_ERROR, self._spread), "measured")
        if self._belief is None:
            return None
        mean, covariance = self._belief.at(np.array([point]))
        error = (max(0.0, float(covariance[0, 0])) + self._spread**2) ** 0.5
        return Rate(exp(float(mean[0])), max(error, MEASURED_ERROR), self._source(size_of(counts), point))

    def _point(self, counts: Counts, usable: Mapping[str, float] | None) -> Point:
        found = {**self.usable, **(usable or {})}
        chief = next((found[type_] for type_ in CHIEFS if type_ in found), 0.0)
        return self._of(size_of(counts), found.get("Worker", 0.0), found.get("PS", 0.0), chief)

    def _of(self, size: Size, worker: float, ps: float, chief: float = 0.0) -> Point:
        """The coordinates of a size and the millicores that a worker, a PS and the chief can use (0: as now), from the
        present size and CPU."""
        (servers, workers), now = size_of(self.counts), self.usable
        return (
            log2(max(1, size[1]) / max(1, workers)),
            log2(max(1, size[0]) / max(1, servers)),
            _doublings(worker, now.get("Worker", 0.0)),
            _doublings(ps, now.get("PS", 0.0)),
            _doublings(chief, next((now[type_] for type_ in CHIEFS if type_ in now), 0.0)),
        )

    @cached_property
    def _measured(self) -> Mapping[Size, tuple[float, Conditions]]:
        """The job's own speeds, with the present one."""
        found: dict[Size, tuple[float, Conditions]] = {}
        if isinstance(self.speed, OnlineSpeed):
            conditions = self.speed.conditions
            found = {size: (rate, conditions.get(size, Conditions())) for size, rate in self.speed.measured.items()}
        if self.steps_per_s > 0:
            here = size_of(self.counts)
            spread = found[here][1].spread if here in found else 0.0
            found[here] = self.steps_per_s, Conditions.of(self.usable, spread)
        return found

    @cached_property
    def _spread(self) -> float:
        """How much the job's speed changes by itself: the root mean square over its sizes, else over those of the last
        job of its model."""
        found = [under.spread for _, under in self._measured.values() if under.spread]
        if not found and self.past is not None and self.past.lessons:
            found = [under.spread for under in self.past.lessons[-1].conditions.values() if under.spread]
        return (sum(each**2 for each in found) / len(found)) ** 0.5 if found else 0.0

    @cached_property
    def _belief(self) -> Belief | None:
        points: list[Point] = []
        logs: list[float] = []
        noise: list[float] = []
        jobs: list[int] = []
        for job, size, rate, under in self._sightings():
            point = self._of(size, under.worker_millicores, under.ps_millicores)
            points.append((*point[:4], point[3]))  # the chief usually shares a node with a PS
            logs.append(log(rate))
            noise.append((under.spread**2 + MEASURED_ERROR**2) ** 0.5)
            jobs.append(job)
        if not points:
            return None
        mean, scales = self._curve
        evidence = Evidence(np.array(points), np.array(logs), np.array(noise), np.array(jobs, dtype=np.int64))
        return belief_of(evidence, mean, scales)

    @cached_property
    def _has_servers(self) -> bool:
        return any(size[0] for _, size, _, _ in self._sightings())

    def _sightings(self) -> Iterator[tuple[int, Size, float, Conditions]]:
        """What was measured: the number of the job (0: this one), the size, the speed and its conditions."""
        for size, (rate, under) in self._measured.items():
            yield 0, size, rate, under
        for k, lesson in enumerate(self.past.lessons[-LESSONS_USED:] if self.past is not None else (), 1):
            for size, rate in lesson.rates.items():
                yield k, size, rate, lesson.conditions.get(size, Conditions())
        if self.estimate is not None and self.estimate[1] > 0:
            yield 0, size_of(self.estimate[0]), self.estimate[1], Conditions(spread=ESTIMATED_ERROR)

    @cached_property
    def _curve(self) -> tuple[Mean, Scales]:
        """The expected logarithm of speed by point, and how far the truth deviates from it."""
        speed = self.speed
        if isinstance(speed, OnlineSpeed) and speed.fit is not None and speed.fit.confident:
            fit, (ps, workers) = speed.fit, size_of(self.counts)

            def fitted(points: Floats) -> Floats:
                w, p = (np.rint(max(n, 1) * 2 ** points[:, k]).astype(np.int64) for n, k in ((workers, 0), (ps, 1)))
                rates = fit.predict_all(p if self._has_servers else np.zeros_like(p), w)
                only_cpu = points.copy()
                only_cpu[:, :2] = 0.0
                return np.log(np.maximum(rates, 1e-12)) + self._law(only_cpu)

            return fitted, OF_LAW.times(max(fit.residual, MEASURED_ERROR) / OF_LAW.shape[0] / 2)
        if self.steps_per_s > 0 and any(self.use.values()):
            return self._law, OF_LAW
        return self._prior, OF_PRIOR

    def _law(self, points: Floats) -> Floats:
        """The logarithm of the factor by which the law of utilisation expects the speed to change."""
        workers, servers, worker_cpu, ps_cpu, chief_cpu = 2**points.T
        more = {"Worker": 2 * workers / (1 + workers) * worker_cpu, "PS": servers / workers * ps_cpu}
        more |= dict.fromkeys(CHIEFS, chief_cpu)
        if not any(self.use.values()):
            return np.zeros(len(points))
        then = [use / more[type_] if type_ in more else np.full(len(points), use) for type_, use in self.use.items()]
        together = sum(self.use.values())
        if together <= 1:
            return -np.log(1 - together + sum(then))
        found: Floats = log(max(self.use.values())) - np.log(np.maximum.reduce(then))
        return found

    def _prior(self, points: Floats) -> Floats:
        workers, servers, worker_cpu, ps_cpu, _ = points.T
        doublings = (workers + servers) / 2 if self._has_servers else workers
        found: Floats = log(2) * (PRIOR_EXPONENT * doublings + PRIOR_CPU[0] * worker_cpu + PRIOR_CPU[1] * ps_cpu)
        return found

    def _source(self, size: Size, point: Point) -> Source:
        """What a speed is mainly known from."""
        own = self._measured
        if size in own and alike(own[size][1], Conditions(*self._millicores(point))):
            return "measured"
        if isinstance(self.speed, OnlineSpeed) and self.speed.fit is not None and self.speed.fit.confident:
            return "fitted"
        if len(own) > 1 and _between(size, own):
            return "interpolated"
        if self.past is not None and size in self.past.sizes:
            return "history"
        if self.steps_per_s > 0 and any(self.use.values()):
            return "utilisation"
        if not own and self.past is None and self.estimate is not None and size == size_of(self.estimate[0]):
            return "estimated"
        return "prior"

    def _millicores(self, point: Point) -> tuple[float, float]:
        return self.usable.get("Worker", 0.0) * 2 ** point[2], self.usable.get("PS", 0.0) * 2 ** point[3]


def size_of(counts: Counts) -> Size:
    """(PSs, workers)."""
    return counts.get("PS", 0), counts.get("Worker", 0)


def _doublings(n: float, of: float) -> float:
    """The logarithm to base 2 of n / of; 0 where either is not known."""
    return log2(n / of) if n > 0 and of > 0 else 0.0


def _between(size: Size, sizes: Mapping[Size, object]) -> bool:
    """Whether the size lies within the smallest and the largest of these, by PSs and by workers."""
    return all(min(each[k] for each in sizes) <= size[k] <= max(each[k] for each in sizes) for k in (0, 1))
