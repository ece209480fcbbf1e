"""Prediction: how fast a job will be at any size and with any CPU, and how certain that is.

The best source is used: a measurement at that size, preferably with the CPU that workers will hold; then the fit over
measurements (optimus.py); then the more certain one of the law of utilisation from the present size (model.py) and of
finished jobs of the same model (history.py); last a prior: twice the workers and PSs are 2^0.8 times as fast.

The law takes no account of what workers cost each other, so it is a bound. What is expected is that by the terms of
Optimus' formula (Peng et al., EuroSys'18, section 3.2: a/w + b + c w/p): each worker takes the whole model from the PSs
and brings it back, so that their work goes with the number of workers; and of a worker's own work one part is split
among workers, and the other is the same at each number of them. How much is which is not known: half is counted as
split. Time in which nothing computes is taken to stay: it is longer with more workers where it is the network's, and
shorter where it is CPU that a replica cannot use.

What was measured outweighs the law. A larger size that was slower, with CPU like now, tells of the sizes on the way to
it and beyond it, too: the law is raised to the power that fits there. Where that was with other CPU than now, the law
is believed for one replica more and for no larger step: that is a probe. So it is where pods whose CPU use is not known
run beside the job (`unseen`), until any other size was measured, which then tells the power.

The errors of each source are one standard deviation, relative. tests/unit/simulation/test_forecasts.py holds them
against what the simulator's jobs really do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log, log2
from typing import Final, Literal

from elastic_tfjob.speed.history import ALIKE, Past, Size
from elastic_tfjob.speed.model import Speed, speedup
from elastic_tfjob.speed.optimus import OnlineSpeed

__all__ = ["PRIOR_EXPONENT", "Prediction", "Rate", "Source"]

Source = Literal["measured", "fitted", "told", "utilisation", "history", "estimated", "prior"]
"""Where a speed is from. `told`: by the simulator's oracle; `estimated`: from the duration that a user expects."""

PRIOR_EXPONENT: Final = 0.8
LEAST_SLOWER: Final = 0.05
"""A larger size was slower by so much at least. Less is noise: speeds are remembered to two digits."""
LEAST_CHANGE: Final = 0.1
"""Logarithm of the law of utilisation from which on a measured size shows how much of the law is true."""
MEASURED_ERROR: Final = 0.05
UTILISATION_ERROR: Final = 0.25
"""The least of the law of utilisation."""
ESTIMATED_ERROR: Final = 0.4
PRIOR_ERROR: Final = 0.5
"""Of each doubling or halving of workers, or of PSs; no less for a part of one."""

Counts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Rate:
    """Steps per second; the relative error is one standard deviation."""

    steps_per_s: float
    relative_error: float
    source: Source

    def times(self, factor: float, error: float = 0.0) -> "Rate":
        """So many times as fast, with the error of that factor beside its own."""
        return Rate(self.steps_per_s * factor, (self.relative_error**2 + error**2) ** 0.5, self.source)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is known of one job's speed.

    `counts`: replicas per type that it has now, and `steps_per_s` there (0: none yet). `use`: the part of their CPU
    that the types use. `held`: millicores of a replica by type, in the mean, now; for a job that holds nothing, what it
    requests. `speed`: what it showed at other sizes, or the truth where a policy is told. `past`: what jobs of the same
    name showed. `estimate`: a size, and the speed that the user's words come to there. `accelerator`: speed of the
    slowest accelerator that it runs on, 1 is the usual one. A size that was measured with other CPU tells only that it
    is not better, or not worse, than by `min_gain`. Not `limited`: CPU is a weight, which says nothing of how much a
    replica gets, as that depends on what others on the node want. `unseen`: pods whose CPU use is not known run on its
    nodes.
    """

    counts: Counts
    steps_per_s: float = 0.0
    use: Mapping[str, float] = field(default_factory=dict)
    held: Mapping[str, float] = field(default_factory=dict)
    speed: Speed | None = None
    past: Past | None = None
    estimate: tuple[Counts, float] | None = None
    accelerator: float = 1.0
    min_gain: float = 0.0
    limited: bool = True
    unseen: bool = False

    def factor(self, counts: Counts) -> float:
        """Steps per second at `counts` relative to those now, from the job itself alone; 1 where it shows nothing."""
        known = self._own_factor(counts)
        return known[0] if known is not None else 1.0

    def at(
        self,
        counts: Counts,
        cpu: Mapping[str, float] | None = None,
        accelerator: float | None = None,
        worker: float | None = None,
    ) -> Rate | None:
        """The speed with these replicas, each with `cpu` millicores by type (missing: what it holds now), on
        accelerators of this speed (None: as now). `worker`: the millicores that a worker will hold, where that is known
        and what was measured with as much speaks; where replicas share CPU, `cpu` goes by what they can use. None:
        nothing is known. With another weight the job is expected to be as fast as with the one that it has, with the
        least error of the law of utilisation."""
        if not self.limited and cpu and any(cpu.get(t, held) != held for t, held in self.held.items()):
            same = self.at(counts, None, accelerator, worker)
            return same.times(1.0, UTILISATION_ERROR) if same is not None else None
        then = accelerator if accelerator is not None else self.accelerator
        running = self.steps_per_s > 0
        rate = self._running(counts, cpu or {}, worker) if running else self._elsewhere(counts, cpu or {})
        if rate is None or then == self.accelerator or not self.accelerator:
            return rate
        return rate.times(then / self.accelerator)

    def _running(self, counts: Counts, cpu: Mapping[str, float], holds: float | None) -> Rate:
        """From the speed at the present size."""
        now = Rate(self.steps_per_s, MEASURED_ERROR, "measured")
        more_cpu = {t: cpu[t] / held for t, held in self.held.items() if held and cpu.get(t, held) != held}
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
        size, worker = size_of(counts), self.held.get("Worker")
        if self.past is not None:
            here, there = self.past.rate(size_of(self.counts), worker), self.past.rate(size, cpu.get("Worker", worker))
            if here is not None and there is not None:
                error = (here.relative_error**2 + there.relative_error**2) ** 0.5
                found.append(Rate(self.steps_per_s * there.value / here.value, error, "history"))
        if found:
            return min(found, key=lambda rate: rate.relative_error)
        return _scaled(now, size_of(self.counts), size)

    def _elsewhere(self, counts: Counts, cpu: Mapping[str, float]) -> Rate | None:
        """Of a job that does not train now."""
        size, speed, worker = size_of(counts), self.speed, cpu.get("Worker", self.held.get("Worker"))
        measured: Mapping[Size, float] = {}
        if isinstance(speed, OnlineSpeed):
            measured = speed.measured
            if size in measured:
                return Rate(measured[size], MEASURED_ERROR, "measured")
            if speed.fit is not None and speed.fit.confident and (rate := speed.fit.predict(*size)) > 0:
                return Rate(rate, max(speed.fit.residual, MEASURED_ERROR), "fitted")
        elif speed is not None and (told := speed.steps_per_s(counts)):
            return Rate(told, 0.0, "told")
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
        """The factor, where it is from and its error; None where CPU use is not known and nothing else either."""
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
                return there / now, "told", MEASURED_ERROR
        if not any(self.use.values()) or any(self.use.get(t) and not n for t, n in counts.items()):
            return None
        law, power = self._law(counts)
        return law ** (1.0 if power is None else power), "utilisation", UTILISATION_ERROR

    def _law(self, counts: Counts, more_cpu: Mapping[str, float] | None = None) -> tuple[float, float | None]:
        """The law of utilisation, with `more_cpu` times the CPU for each replica of a type, and the power of it that is
        true for this job; None: that is not known, so where the law is weak it goes one step far."""
        shown = self._shown(size_of(counts))
        more = self._more(counts if shown is not None else self._probed(counts))
        return speedup(self.use, {t: n * (more_cpu or {}).get(t, 1.0) for t, n in more.items()}), shown

    def _likely(self, counts: Counts, more_cpu: Mapping[str, float]) -> float:
        """What is expected where the law says what is possible."""
        more = self._more(self._probed(counts))
        workers = more.get("Worker", 1.0)
        for type_, n in more.items():
            if type_ == "Worker":
                more[type_] = 2 * n / (1 + n)
            elif type_ == "PS" and workers:
                more[type_] = n / workers
        return speedup(self.use, {t: n * more_cpu.get(t, 1.0) for t, n in more.items()})

    def _probed(self, counts: Counts) -> Counts:
        """As far towards these as the law is believed."""
        disproved = isinstance(self.speed, OnlineSpeed) and self._slower(self.speed)
        if not (self.unseen or disproved):
            return counts
        return {t: min(n, self.counts.get(t, 0) + 1) for t, n in counts.items()}

    def _measured_with(self, size: Size, holds: float) -> Rate | None:
        """What was measured at that size, if workers held about as much CPU then."""
        speed = self.speed
        if not isinstance(speed, OnlineSpeed) or not (held := speed.cpu.get(size)) or not holds:
            return None
        if size not in speed.measured or not ALIKE <= held / holds <= 1 / ALIKE:
            return None
        return Rate(speed.measured[size], MEASURED_ERROR, "measured")

    def _alike(self, speed: OnlineSpeed, size: Size) -> bool:
        """Whether the speed that was measured at a size is what the job would have there now."""
        here = self.held.get("Worker", 0.0)
        cpu = speed.cpu.get(size, here)
        # A good speed with more CPU than a worker holds now says nothing about that size, nor a poor one with so much
        # less that the job would be slower here, too.
        good = speed.measured[size] / self.steps_per_s >= 1 + self.min_gain
        return cpu <= here / ALIKE if good else self._enough(size, cpu, here)

    def _shown(self, size: Size) -> float | None:
        """The power of the law of utilisation that fits what was measured, at the size nearest to `size` that shows it:
        a larger one that was slower; beside `unseen` pods any. At most 1, as the law is a bound, and at least -1. None:
        none does."""
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
        """The larger sizes that were slower than this one, and would have been with as much CPU as it has: a speed
        grows in proportion to CPU at most."""
        ps, workers = now = size_of(self.counts)
        here, found = self.held.get("Worker", 0.0), []
        for size, rate in speed.measured.items():
            if size != now and size[0] >= ps and size[1] >= workers:
                there = speed.cpu.get(size, here) * size[1]
                at_most = rate * max(1.0, here * workers / there) if there else rate
                if at_most * (1 + LEAST_SLOWER) < self.steps_per_s:
                    found.append(size)
        return found

    def _law_at(self, size: Size) -> float:
        then = {t: n for t, n in (("PS", size[0]), ("Worker", size[1])) if n and self.counts.get(t)}
        return speedup(self.use, self._more(then))

    def _enough(self, size: Size, cpu: float, here: float) -> bool:
        """Whether workers at a size had CPU enough for it to be known by that, beside `here` millicores of each now: as
        much each, or so much that the job would be as fast here with it; or, of a larger size, as much together, since
        replicas that are added get what they request."""
        now = size_of(self.counts)[1]
        if cpu >= here * ALIKE or (size[1] > now and cpu * size[1] >= here * now * ALIKE):
            return True
        return "Worker" in self.use and cpu > 0 and speedup(self.use, {"Worker": cpu / here}) >= ALIKE

    def _more(self, counts: Counts) -> dict[str, float]:
        return {t: n / self.counts[t] for t, n in counts.items() if self.counts.get(t)}


def size_of(counts: Counts) -> Size:
    """(PSs, workers)."""
    return counts.get("PS", 0), counts.get("Worker", 0)


def _nearest(sizes: Mapping[Size, float], size: Size) -> Size:
    return min(sizes, key=lambda s: (abs(s[0] - size[0]) + abs(s[1] - size[1]), s))


def _scaled(rate: Rate, known: Size, size: Size) -> Rate:
    """From one size to another by the prior: by the geometric mean of workers and PSs, where there are PSs."""
    if size == known:
        return rate
    workers, servers = max(1, size[1]) / max(1, known[1]), max(1, size[0]) / max(1, known[0])
    times = (workers * servers) ** 0.5 if known[0] else workers
    scaled = rate.times(times**PRIOR_EXPONENT, PRIOR_ERROR * max(1.0, abs(log2(workers)) + abs(log2(servers))))
    return Rate(scaled.steps_per_s, scaled.relative_error, "prior")
