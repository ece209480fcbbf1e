"""Prediction: the expected speed of a job at any size and with any CPU, with its relative error.

The best available source is used: a measurement at that size, preferably with the CPU that workers will hold; then the
fit over measurements (optimus.py); then the more certain one of two sources, the law of utilisation from the present
size (model.py) and finished jobs of the same model (history.py); last a prior: doubling workers and PSs gives 2^0.8
times the speed.

The law ignores the costs that workers cause for each other, so it is an upper bound. The expected speed applies it to
the terms of Optimus' formula (Peng et al., EuroSys'18, section 3.2: a/w + b + c w/p). Each worker gets the whole model
from the PSs and sends it back, so the PSs' work is proportional to the number of workers. One part of a worker's own
work is divided among workers, the other part is the same for any number of workers. The proportion is unknown; half is
counted as divided. Time in which no replica computes is assumed constant: it would be longer with more workers if it is
network time, and shorter if it is CPU that a replica cannot use.

Measurements outweigh the law. A larger size that was slower with similar CPU also informs about the sizes between and
beyond: the law is raised to the power that fits this measurement. If the CPU was different, the law is believed for one
additional replica only, as a probe. The same holds if pods with unknown CPU use run beside the job (`unseen`), until
any other size has been measured, which then determines the power.

The error of each source is relative and one standard deviation. tests/unit/simulation/test_forecasts.py compares these
errors with the true speeds of simulated jobs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log, log2
from typing import Final, Literal

from elastic_tfjob.speed.history import ALIKE, Past, Size
from elastic_tfjob.speed.model import Speed, speedup
from elastic_tfjob.speed.optimus import OnlineSpeed

__all__ = ["PRIOR_EXPONENT", "Prediction", "Rate", "Source"]

Source = Literal["measured", "fitted", "oracle", "utilisation", "history", "estimated", "prior"]
"""The source of a speed. `oracle`: the simulator's oracle; `estimated`: the duration that a user expects."""

PRIOR_EXPONENT: Final = 0.8
LEAST_SLOWER: Final = 0.05
"""The minimum relative difference by which a larger size counts as slower. Less is noise: speeds are stored with two
digits."""
LEAST_CHANGE: Final = 0.1
"""A measured size determines the power of the law of utilisation only if the logarithm of the law is at least this."""
MEASURED_ERROR: Final = 0.05
UTILISATION_ERROR: Final = 0.25
"""The minimum relative error of the law of utilisation."""
ESTIMATED_ERROR: Final = 0.4
PRIOR_ERROR: Final = 0.5
"""The relative error for each doubling or halving of workers or of PSs, and at least this much for a smaller change."""

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
class Prediction:
    """The knowledge about one job's speed.

    `counts`: the current replicas per type, and `steps_per_s` the speed there (0: none yet). `use`: the fraction of
    their CPU that the types use. `held_millicores`: the mean of a replica by type now; for a job that holds nothing,
    its requests. `speed`: the measurements at other sizes, or the true speed if the policy has the oracle. `past`: the
    lessons of jobs of the same name. `estimate`: a size, and the speed there that follows from the user's expected
    duration. `accelerator`: the speed of the slowest accelerator that the job runs on, relative to the usual one. A
    size measured with a different CPU share shows only that it is better, or worse, by at most `min_gain`. Not
    `limited`: CPU is a weight, which does not determine how much a replica gets, as that depends on the demand of other
    jobs on the node. `unseen`: pods with unknown CPU use run on the job's nodes.
    """

    counts: Counts
    steps_per_s: float = 0.0
    use: Mapping[str, float] = field(default_factory=dict)
    held_millicores: Mapping[str, float] = field(default_factory=dict)
    speed: Speed | None = None
    past: Past | None = None
    estimate: tuple[Counts, float] | None = None
    accelerator: float = 1.0
    min_gain: float = 0.0
    limited: bool = True
    unseen: bool = False

    def factor(self, counts: Counts) -> float:
        """Steps per second at `counts` relative to the current ones, from the job's own data alone; 1 without data."""
        known = self._own_factor(counts)
        return known[0] if known is not None else 1.0

    def at(
        self,
        counts: Counts,
        millicores: Mapping[str, float] | None = None,
        accelerator: float | None = None,
        worker_millicores: float | None = None,
    ) -> Rate | None:
        """The speed with these replicas, each with `millicores` by type (missing: the current value), on accelerators
        of this speed (None: as now). `worker_millicores`: what a worker will hold, if known; measurements with as much
        CPU are then used. If replicas share CPU, `millicores` is the CPU that they can use. None: nothing is known. If
        CPU is a weight, another weight is expected to give the same speed, with the minimum error of the law of
        utilisation."""
        if (
            not self.limited
            and millicores
            and any(millicores.get(t, held) != held for t, held in self.held_millicores.items())
        ):
            same = self.at(counts, None, accelerator, worker_millicores)
            return same.times(1.0, UTILISATION_ERROR) if same is not None else None
        then = accelerator if accelerator is not None else self.accelerator
        running = self.steps_per_s > 0
        rate = (
            self._running(counts, millicores or {}, worker_millicores)
            if running
            else self._elsewhere(counts, millicores or {})
        )
        if rate is None or then == self.accelerator or not self.accelerator:
            return rate
        return rate.times(then / self.accelerator)

    def _running(self, counts: Counts, millicores: Mapping[str, float], holds: float | None) -> Rate:
        """The prediction from the speed at the current size."""
        now = Rate(self.steps_per_s, MEASURED_ERROR, "measured")
        more_cpu = {
            t: millicores[t] / held
            for t, held in self.held_millicores.items()
            if held and millicores.get(t, held) != held
        }
        if size_of(counts) == size_of(self.counts):
            return now if not more_cpu else now.times(speedup(self.use, more_cpu), UTILISATION_ERROR)
        if holds is not None and (again := self._measured_with(size_of(counts), holds)) is not None:
            return again
        known = self._own_factor(counts)
        if known is not None and known[1] != "utilisation":
            shown = Rate(self.steps_per_s * known[0], known[2], known[1])
            return shown.times(speedup(self.use, more_cpu), UTILISATION_ERROR) if more_cpu else shown
        found: list[Rate] = []
        if known is not None:
            law, power = self._law(counts, more_cpu)
            error = max(UTILISATION_ERROR, abs(log(law)) / 2)
            factor = self._likely(counts, more_cpu) if power is None else law**power
            found.append(Rate(self.steps_per_s * factor, error, "utilisation"))
        size, worker = size_of(counts), self.held_millicores.get("Worker")
        if self.past is not None:
            here, there = (
                self.past.rate(size_of(self.counts), worker),
                self.past.rate(size, millicores.get("Worker", worker)),
            )
            if here is not None and there is not None:
                error = (here.relative_error**2 + there.relative_error**2) ** 0.5
                found.append(Rate(self.steps_per_s * there.value / here.value, error, "history"))
        if found:
            return min(found, key=lambda rate: rate.relative_error)
        return _scaled(now, size_of(self.counts), size)

    def _elsewhere(self, counts: Counts, millicores: Mapping[str, float]) -> Rate | None:
        """The prediction for a job that does not train now."""
        size, speed, worker = size_of(counts), self.speed, millicores.get("Worker", self.held_millicores.get("Worker"))
        measured: Mapping[Size, float] = {}
        if isinstance(speed, OnlineSpeed):
            measured = speed.measured
            if size in measured:
                return Rate(measured[size], MEASURED_ERROR, "measured")
            if speed.fit is not None and speed.fit.confident and (rate := speed.fit.predict(*size)) > 0:
                return Rate(rate, max(speed.fit.residual, MEASURED_ERROR), "fitted")
        elif speed is not None and (oracle_rate := speed.steps_per_s(counts)):
            return Rate(oracle_rate, 0.0, "oracle")
        if self.past is not None and (shown := self.past.rate(size, worker)) is not None:
            return Rate(shown.value, shown.relative_error, "history")
        if measured:
            near = _nearest(measured, size)
            return _scaled(Rate(measured[near], MEASURED_ERROR, "measured"), near, size)
        if self.past is not None and (sizes := dict.fromkeys(sorted(self.past.sizes), 0.0)):
            near = _nearest(sizes, size)
            shown = self.past.rate(near, worker)
            assert shown is not None
            return _scaled(Rate(shown.value, shown.relative_error, "history"), near, size)
        if self.estimate is not None and self.estimate[1] > 0:
            rate_then = Rate(self.estimate[1], ESTIMATED_ERROR, "estimated")
            return _scaled(rate_then, size_of(self.estimate[0]), size)
        return None

    def _own_factor(self, counts: Counts) -> tuple[float, Source, float] | None:
        """The factor, its source and its error; None if neither CPU use nor anything else is known."""
        size, speed = size_of(counts), self.speed
        if isinstance(speed, OnlineSpeed):
            if size in speed.measured and self._alike(speed, size):
                return speed.measured[size] / self.steps_per_s, "measured", MEASURED_ERROR
            if speed.fit is not None and speed.fit.confident:
                fitted = speed.fit.predict(*size_of(self.counts))
                if fitted > 0:
                    return speed.fit.predict(*size) / fitted, "fitted", max(speed.fit.residual, MEASURED_ERROR)
        elif speed is not None:
            now, there = speed.steps_per_s(self.counts) or 0.0, speed.steps_per_s(counts)
            if now > 0 and there is not None:
                return there / now, "oracle", MEASURED_ERROR
        if not any(self.use.values()) or any(self.use.get(t) and not n for t, n in counts.items()):
            return None
        law, power = self._law(counts)
        return law ** (1.0 if power is None else power), "utilisation", UTILISATION_ERROR

    def _law(self, counts: Counts, more_cpu: Mapping[str, float] | None = None) -> tuple[float, float | None]:
        """The law of utilisation, with `more_cpu` times the CPU for each replica of a type, and the power of it that
        fits this job. None: the power is unknown, so if the law is unreliable, it is applied for one replica only."""
        shown = self._shown(size_of(counts))
        more = self._more(counts if shown is not None else self._probed(counts))
        return speedup(self.use, {t: n * (more_cpu or {}).get(t, 1.0) for t, n in more.items()}), shown

    def _likely(self, counts: Counts, more_cpu: Mapping[str, float]) -> float:
        """The expected factor, for which the law of utilisation gives the upper bound."""
        more = self._more(self._probed(counts))
        workers = more.get("Worker", 1.0)
        for type_, n in more.items():
            if type_ == "Worker":
                more[type_] = 2 * n / (1 + n)
            elif type_ == "PS" and workers:
                more[type_] = n / workers
        return speedup(self.use, {t: n * more_cpu.get(t, 1.0) for t, n in more.items()})

    def _probed(self, counts: Counts) -> Counts:
        """The counts between the current ones and `counts` up to which the law is believed."""
        disproved = isinstance(self.speed, OnlineSpeed) and self._slower(self.speed)
        if not (self.unseen or disproved):
            return counts
        return {t: min(n, self.counts.get(t, 0) + 1) for t, n in counts.items()}

    def _measured_with(self, size: Size, millicores: float) -> Rate | None:
        """The speed measured at this size, if workers held about `millicores` then."""
        speed = self.speed
        if not isinstance(speed, OnlineSpeed) or not (held := speed.worker_millicores.get(size)) or not millicores:
            return None
        if size not in speed.measured or not ALIKE <= held / millicores <= 1 / ALIKE:
            return None
        return Rate(speed.measured[size], MEASURED_ERROR, "measured")

    def _alike(self, speed: OnlineSpeed, size: Size) -> bool:
        """Whether the job would still have the speed that was measured at this size."""
        here = self.held_millicores.get("Worker", 0.0)
        cpu = speed.worker_millicores.get(size, here)
        # A good speed measured with more CPU per worker than now says nothing about the size. Neither does a poor speed
        # measured with so much less CPU that the job would be slower at its current size, too.
        good = speed.measured[size] / self.steps_per_s >= 1 + self.min_gain
        return cpu <= here / ALIKE if good else self._enough(size, cpu, here)

    def _shown(self, size: Size) -> float | None:
        """The power of the law of utilisation that fits the measurement nearest to `size`. Only larger sizes that were
        slower are used; beside `unseen` pods, any size. The power is at most 1, as the law is an upper bound, and at
        least -1. None: there is no such measurement."""
        speed, now = self.speed, size_of(self.counts)
        if not isinstance(speed, OnlineSpeed) or not self.steps_per_s:
            return None
        powers: dict[Size, float] = {}
        for each in speed.measured if self.unseen else self._slower(speed):
            law = self._law_at(each)
            if each != now and abs(log(law)) >= LEAST_CHANGE and self._alike(speed, each):
                power = log(speed.measured[each] / self.steps_per_s) / log(law)
                powers[each] = min(max(power, -1.0), 1.0)
        return powers[_nearest(powers, size)] if powers else None

    def _slower(self, speed: OnlineSpeed) -> list[Size]:
        """The larger sizes that were slower than this one, and would have been slower with the same CPU, given that
        speed is at most proportional to CPU."""
        ps, workers = now = size_of(self.counts)
        here, found = self.held_millicores.get("Worker", 0.0), []
        for size, rate in speed.measured.items():
            if size != now and size[0] >= ps and size[1] >= workers:
                there = speed.worker_millicores.get(size, here) * size[1]
                at_most = rate * max(1.0, here * workers / there) if there else rate
                if at_most * (1 + LEAST_SLOWER) < self.steps_per_s:
                    found.append(size)
        return found

    def _law_at(self, size: Size) -> float:
        then = {t: n for t, n in (("PS", size[0]), ("Worker", size[1])) if n and self.counts.get(t)}
        return speedup(self.use, self._more(then))

    def _enough(self, size: Size, millicores: float, here_millicores: float) -> bool:
        """Whether the workers had enough CPU for the measurement at this size to be valid, compared with
        `here_millicores` per worker now. Enough is as much CPU per worker, or so much that the job would be as fast at
        its current size with it; for a larger size also as much CPU in total, since added replicas get what they
        request."""
        now = size_of(self.counts)[1]
        if millicores >= here_millicores * ALIKE or (
            size[1] > now and millicores * size[1] >= here_millicores * now * ALIKE
        ):
            return True
        return (
            "Worker" in self.use
            and millicores > 0
            and speedup(self.use, {"Worker": millicores / here_millicores}) >= ALIKE
        )

    def _more(self, counts: Counts) -> dict[str, float]:
        return {t: n / self.counts[t] for t, n in counts.items() if self.counts.get(t)}


def size_of(counts: Counts) -> Size:
    """(PSs, workers)."""
    return counts.get("PS", 0), counts.get("Worker", 0)


def _nearest(sizes: Mapping[Size, float], size: Size) -> Size:
    return min(sizes, key=lambda s: (abs(s[0] - size[0]) + abs(s[1] - size[1]), s))


def _scaled(rate: Rate, known: Size, size: Size) -> Rate:
    """The rate scaled from one size to another by the prior: by the number of workers, or with PSs by the geometric
    mean of workers and PSs."""
    if size == known:
        return rate
    workers, servers = max(1, size[1]) / max(1, known[1]), max(1, size[0]) / max(1, known[0])
    times = (workers * servers) ** 0.5 if known[0] else workers
    scaled = rate.times(times**PRIOR_EXPONENT, PRIOR_ERROR * max(1.0, abs(log2(workers)) + abs(log2(servers))))
    return Rate(scaled.steps_per_s, scaled.relative_error, "prior")
