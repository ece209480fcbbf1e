"""History: what finished jobs teach about later ones, which is their length and their speed at each size.

Jobs are grouped by scope (live: the namespace) and name (the model, else the stem of the job's name). Lessons of one
scope are never used for another; else a tenant could slow down its neighbours, or spy on them.
Everything is bounded, and the oldest goes first: lessons per name, names per scope, names in all, and sizes.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from math import exp, isfinite, log
from statistics import median
from typing import Final

__all__ = ["LESSONS", "NAMES", "SCOPES_NAMES", "SIZES", "History", "Lesson", "Past", "stem"]

LESSONS: Final = 8
"""Finished jobs of one name that are remembered."""
NAMES: Final = 32
"""Names of one scope that are remembered."""
SCOPES_NAMES: Final = 1024
"""Names of all scopes together that are remembered."""
SIZES: Final = 16
"""Sizes of one job whose speeds are remembered."""
ALIKE: Final = 0.9
"""Speeds tell of sizes if they were measured with the same CPU, give or take a tenth."""
SPREAD: Final = 0.1
"""The least relative error (one standard deviation) of what other jobs showed."""
ONE_SEEN: Final = 0.25
"""That error where only one other job has shown it."""
OTHER_CPU: Final = 0.5
"""That error where it was shown with other CPU than is asked for."""

Size = tuple[int, int]
"""(PSs, workers)."""

_TAIL: Final = re.compile(r"[-_.]?(?:[0-9]+|(?=[a-z]*[0-9])[a-z0-9]{4,10})$")


def stem(name: str) -> str:
    """A job's name without what tells its runs apart: trailing numbers, and what looks like a hash (4 to 10 letters and
    digits with a digit among them, after a separator). `digits-7` and `digits-x4f2k` have the stem `digits`."""
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
    """One finished job. `steps` it took in all, `duration_s` in which it held replicas; steps per second by (PSs,
    workers), and the millicores that a worker had then, where that is known. `id` tells it from others."""

    id: str
    steps: float | None = None
    duration_s: float | None = None
    rates: Mapping[Size, float] = field(default_factory=dict)
    cpu: Mapping[Size, float] = field(default_factory=dict)

    def bounded(self) -> "Lesson":
        """With what can be believed, and no more sizes than are remembered: the last ones."""
        rates = {s: r for s, r in self.rates.items() if isfinite(r) and r > 0 and s[1] > 0}
        rates = dict(islice(rates.items(), max(0, len(rates) - SIZES), None))
        cpu = {s: c for s, c in self.cpu.items() if s in rates and isfinite(c) and c > 0}
        return Lesson(self.id, _positive(self.steps), _positive(self.duration_s), rates, cpu)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value, and its relative error: one standard deviation."""

    value: float
    relative_error: float


@dataclass(frozen=True, slots=True)
class Past:
    """What the finished jobs of one name taught, the oldest first."""

    lessons: tuple[Lesson, ...]

    @property
    def steps(self) -> Estimate | None:
        """Steps of a whole job."""
        return _estimate([each.steps for each in self.lessons if each.steps is not None])

    @property
    def duration_s(self) -> Estimate | None:
        """Seconds for which a whole job held replicas."""
        return _estimate([each.duration_s for each in self.lessons if each.duration_s is not None])

    @property
    def sizes(self) -> set[Size]:
        """Those whose speed is known."""
        return {size for each in self.lessons for size in each.rates}

    def rate(self, size: Size, cpu: float | None = None) -> Estimate | None:
        """Steps per second at this size; of those that were measured with about `cpu` millicores a worker, if any."""
        seen = [(each.rates[size], each.cpu.get(size)) for each in self.lessons if size in each.rates]
        if not cpu:
            return _estimate([rate for rate, _ in seen])
        alike = [rate for rate, held in seen if held is None or ALIKE <= held / cpu <= 1 / ALIKE]
        if alike:
            return _estimate(alike)
        found = _estimate([rate for rate, _ in seen])
        return None if found is None else Estimate(found.value, max(found.relative_error, OTHER_CPU))


@dataclass(frozen=True, slots=True)
class History:
    """What finished jobs taught, by scope and name. A value: `learned` gives the next one."""

    _pasts: Mapping[str, Mapping[str, Past]] = field(default_factory=dict)

    def past(self, scope: str, name: str) -> Past | None:
        """What this scope's jobs of this name taught."""
        names = self._pasts.get(scope)
        return names.get(name) if names is not None and name else None

    def learned(self, scope: str, name: str, lesson: Lesson) -> "History":
        """With one more lesson (`bounded` before, if others wrote it); itself where it says nothing or is known."""
        names = self._pasts.get(scope, {})
        known = names[name].lessons if name in names else ()
        says = lesson.steps is not None or lesson.duration_s is not None or lesson.rates
        if not name or not says or any(each.id == lesson.id for each in known):
            return self
        # What was learned last stands last: the first name of a scope is the one that nobody has run for longest.
        others = {each: past for each, past in names.items() if each != name}
        others[name] = Past((*known, lesson)[-LESSONS:])
        if len(others) > NAMES:
            del others[next(iter(others))]
        pasts = {**self._pasts, scope: others}
        if len(others) > len(names) and sum(map(len, pasts.values())) > SCOPES_NAMES:
            # The scope with most names gives one up, so that none can push out what others learned.
            largest = max(pasts, key=lambda each: (len(pasts[each]), each))
            oldest = next(iter(pasts[largest]))
            pasts[largest] = {each: past for each, past in pasts[largest].items() if each != oldest}
        return History(pasts)

    def knows(self, scope: str, name: str, id_: str) -> bool:
        """Whether this job's lesson is in it."""
        past = self.past(scope, name)
        return past is not None and any(lesson.id == id_ for lesson in past.lessons)

    def items(self) -> Iterator[tuple[str, str, Past]]:
        """Scope, name and what is known, the oldest of a scope first."""
        for scope, names in self._pasts.items():
            for name, past in names.items():
                yield scope, name, past

    def __len__(self) -> int:
        return sum(map(len, self._pasts.values()))


def _positive(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) and value > 0 else None


def _estimate(values: Iterable[float]) -> Estimate | None:
    """Their median; the error by how far they lie apart, as of a lognormal distribution."""
    seen = list(values)
    if not seen:
        return None
    if len(seen) == 1:
        return Estimate(seen[0], ONE_SEEN)
    logs = [log(value) for value in seen]
    mean = sum(logs) / len(logs)
    sigma = (sum((each - mean) ** 2 for each in logs) / (len(logs) - 1)) ** 0.5
    return Estimate(median(seen), max(SPREAD, exp(min(sigma, 5.0)) - 1))
