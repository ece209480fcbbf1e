"""History: measurements of finished jobs (number of steps, duration, speed at each size), used for later similar jobs.

Jobs are grouped by scope (in a live cluster, the namespace) and name (the model, else the stem of the job's name).
Lessons of one scope are never used for another one; otherwise a tenant could slow down its neighbours, or spy on them.
All numbers are bounded, and the oldest entries are dropped first: lessons per name, names per scope, names in all,
sizes per lesson.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from math import exp, isfinite, log
from statistics import median
from typing import Final

__all__ = [
    "LESSONS",
    "NAMES",
    "SCOPES_NAMES",
    "SIZES",
    "Conditions",
    "History",
    "Lesson",
    "Past",
    "Size",
    "alike",
    "sighted",
    "stem",
]

LESSONS: Final = 8
"""The number of finished jobs stored per name."""
NAMES: Final = 32
"""The number of names stored per scope."""
SCOPES_NAMES: Final = 1024
"""The number of names stored for all scopes together."""
SIZES: Final = 16
"""The number of sizes per job whose speeds are stored."""
ALIKE: Final = 0.9
"""Speeds are comparable if they were measured with the same CPU, within about 10 %."""
SPREAD: Final = 0.1
"""The minimum relative error (one standard deviation) of an estimate from other jobs."""
ONE_SEEN: Final = 0.25
"""The relative error of an estimate from only one other job."""
NEW_WEIGHT: Final = 0.3
"""The weight of the last change of a speed at one size in its spread."""
MOST_SPREAD: Final = 2.0

Size = tuple[int, int]
"""(PSs, workers)."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Under which a speed was measured: the millicores that one worker and one PS could use (the slowest one; 0: not
    known), and the relative `spread` of the speeds seen there, one standard deviation. Neighbours whose use is not seen
    and CPU that the host takes away widen the spread."""

    worker_millicores: float = 0.0
    ps_millicores: float = 0.0
    spread: float = 0.0

    @classmethod
    def of(cls, usable: Mapping[str, float], spread: float = 0.0) -> "Conditions":
        """The conditions with this usable CPU, millicores of the slowest replica by type."""
        return cls(usable.get("Worker", 0.0), usable.get("PS", 0.0), spread)


def alike(a: Conditions, b: Conditions) -> bool:
    """Whether speeds under these conditions are comparable."""
    pairs = ((a.worker_millicores, b.worker_millicores), (a.ps_millicores, b.ps_millicores))
    return all(not (x and y) or ALIKE <= x / y <= 1 / ALIKE for x, y in pairs)


def sighted(before: tuple[float, Conditions] | None, rate: float, now: Conditions) -> Conditions:
    """The conditions of a new speed at a size. The spread follows the changes of the speed under comparable
    conditions."""
    if before is None or before[0] <= 0 or not alike(before[1], now):
        return now
    change = log(rate / before[0])
    spread = ((1 - NEW_WEIGHT) * before[1].spread ** 2 + NEW_WEIGHT * change**2 / 2) ** 0.5
    return Conditions(now.worker_millicores, now.ps_millicores, min(spread, MOST_SPREAD))


_TAIL: Final = re.compile(r"[-_.]?(?:[0-9]+|(?=[a-z]*[0-9])[a-z0-9]{4,10})$")


def stem(name: str) -> str:
    """A job's name without the suffix that distinguishes its runs: trailing numbers, or something like a hash (4 to 10
    letters and digits with at least one digit, after a separator). `digits-7` and `digits-x4f2k` have the stem
    `digits`."""
    found = name
    while (shorter := _shorter(found)) and shorter != found:
        found = shorter
    return found


def _shorter(name: str) -> str:
    bare = name.rstrip("0123456789")
    if bare != name:
        return bare.rstrip("-_.")
    cut = max(name.rfind(separator) for separator in "-_.")
    return name[:cut].rstrip("-_.") if cut > 0 and _TAIL.fullmatch(name[cut:]) else name


@dataclass(frozen=True, slots=True)
class Lesson:
    """The measurements of one finished job: its number of `steps`, the seconds `duration_s` during which it held
    replicas, its steps per second by (PSs, workers), and the `conditions` of these measurements, if known. `id`
    identifies the job."""

    id: str
    steps: float | None = None
    duration_s: float | None = None
    rates: Mapping[Size, float] = field(default_factory=dict)
    conditions: Mapping[Size, Conditions] = field(default_factory=dict)

    def bounded(self) -> "Lesson":
        """The lesson without implausible values, and with only the last SIZES sizes."""
        rates = {s: r for s, r in self.rates.items() if isfinite(r) and r > 0 and s[1] > 0}
        rates = dict(islice(rates.items(), max(0, len(rates) - SIZES), None))
        known = {s: _plausible(c) for s, c in self.conditions.items() if s in rates}
        return Lesson(self.id, _positive(self.steps), _positive(self.duration_s), rates, known)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value, and its relative error (one standard deviation)."""

    value: float
    relative_error: float


@dataclass(frozen=True, slots=True)
class Past:
    """The lessons of the finished jobs of one name, the oldest first."""

    lessons: tuple[Lesson, ...]

    @property
    def steps(self) -> Estimate | None:
        """The number of steps of a whole job."""
        return _estimate([each.steps for each in self.lessons if each.steps is not None])

    @property
    def duration_s(self) -> Estimate | None:
        """The seconds during which a whole job held replicas."""
        return _estimate([each.duration_s for each in self.lessons if each.duration_s is not None])

    @property
    def sizes(self) -> set[Size]:
        """The sizes with a known speed."""
        return {size for each in self.lessons for size in each.rates}


@dataclass(frozen=True, slots=True)
class History:
    """The lessons of finished jobs by scope and name. The value is immutable; `learned` returns the next one."""

    _pasts: Mapping[str, Mapping[str, Past]] = field(default_factory=dict)

    def past(self, scope: str, name: str) -> Past | None:
        """The lessons of this scope's jobs of this name; None if there are none."""
        names = self._pasts.get(scope)
        return names.get(name) if names is not None and name else None

    def learned(self, scope: str, name: str, lesson: Lesson) -> "History":
        """The history with one more lesson, or the same history if the lesson is empty or already known. A lesson from
        an untrusted source must be `bounded` first."""
        names = self._pasts.get(scope, {})
        known = names[name].lessons if name in names else ()
        says = lesson.steps is not None or lesson.duration_s is not None or lesson.rates
        if not name or not says or any(each.id == lesson.id for each in known):
            return self
        # The latest lesson is last, so the first name of a scope is the one without a finished job for the longest
        # time.
        others = {each: past for each, past in names.items() if each != name}
        others[name] = Past((*known, lesson)[-LESSONS:])
        if len(others) > NAMES:
            del others[next(iter(others))]
        pasts = {**self._pasts, scope: others}
        if len(others) > len(names) and sum(map(len, pasts.values())) > SCOPES_NAMES:
            # The scope with the most names loses one, so that no scope can displace the names of other scopes.
            largest = max(pasts, key=lambda each: (len(pasts[each]), each))
            oldest = next(iter(pasts[largest]))
            pasts[largest] = {each: past for each, past in pasts[largest].items() if each != oldest}
        return History(pasts)

    def knows(self, scope: str, name: str, id_: str) -> bool:
        """Whether the history has this job's lesson."""
        past = self.past(scope, name)
        return past is not None and any(lesson.id == id_ for lesson in past.lessons)

    def items(self) -> Iterator[tuple[str, str, Past]]:
        """Scope, name and lessons; within a scope the oldest name comes first."""
        for scope, names in self._pasts.items():
            for name, past in names.items():
                yield scope, name, past

    def __len__(self) -> int:
        return sum(map(len, self._pasts.values()))


def _positive(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) and value > 0 else None


def _plausible(found: Conditions) -> Conditions:
    worker, ps = (
        each if isfinite(each) and each > 0 else 0.0 for each in (found.worker_millicores, found.ps_millicores)
    )
    spread = min(max(found.spread, 0.0), MOST_SPREAD) if isfinite(found.spread) else MOST_SPREAD
    return Conditions(worker, ps, spread)


def _estimate(values: Iterable[float]) -> Estimate | None:
    """The median of the values. The error is their spread as a lognormal distribution."""
    seen = list(values)
    if not seen:
        return None
    if len(seen) == 1:
        return Estimate(seen[0], ONE_SEEN)
    logs = [log(value) for value in seen]
    mean = sum(logs) / len(logs)
    sigma = (sum((each - mean) ** 2 for each in logs) / (len(logs) - 1)) ** 0.5
    return Estimate(median(seen), max(SPREAD, exp(min(sigma, 5.0)) - 1))
