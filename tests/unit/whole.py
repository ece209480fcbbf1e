"""Two Snapshots of the same story, compared whole: every field of every dataclass, down to the last one.

Whatever a field that comes later means: both worlds fill it alike, or the reason why not stands here.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

import pytest

from elastic_tfjob.scheduling.contract import FIELDS
from elastic_tfjob.scheduling.snapshot import Snapshot
from elastic_tfjob.speed.growth import Growth

__all__ = ["differences"]

SETTLES_S: Final = 20.0
"""After so long pods run, launchers have answered and the state is stored."""

APART: Final[Mapping[str, str]] = {
    "JobSpec.arrival_s": "each world has its own clock; all other times are compared from here on",
    "Node.labels[metadata.name]": "the operator adds it for what matches fields; no simulated job has constraints",
    "Job.steps": "compared as steps_at(now), with observed_s, which is when they were heard of or when they changed",
    "Job.observed_s": "see Job.steps",
    "Job.prepare_s": "a simulation knows how long programs take to start only where speed follows CPU (ps-cpu)",
    "OnlineSpeed.conditions": "a simulation keeps the CPU of replicas only where speed follows CPU (ps-cpu)",
}
"""What is not compared, and why."""


def _near(error: float = 0.0, part: float = 0.0) -> Callable[[Any, Any], bool]:
    return lambda one, other: bool(one == pytest.approx(other, abs=error, rel=part))


def _falls_alike(one: Growth, other: Growth) -> bool:
    """Readings are taken at each world's own moments."""
    if one.state != other.state or (one.loss is None) != (other.loss is None):
        return False
    return bool(one.loss == pytest.approx(other.loss, rel=0.1) and one.of_peak == pytest.approx(other.of_peak, abs=0.2))


NEAR: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "Snapshot.now": _near(),
    "Job.since_s": _near(SETTLES_S),
    "Job.rescaled_s": _near(SETTLES_S),
    "Job.stopped_s": _near(SETTLES_S),
    "Job.resumed_s": _near(SETTLES_S),
    "Job.executed_s": _near(SETTLES_S),
    "Job.service": _near(SETTLES_S * 6),
    "OnlineSpeed.measured": _near(part=0.05),  # two digits of a speed are kept live
    "Job.loss": _falls_alike,
}
"""What a change takes a while for, live, or what is measured; the rest is equal."""
CLOCK: Final = {"Snapshot.now", "Job.since_s", "Job.rescaled_s", "Job.stopped_s", "Job.resumed_s"}
"""Points in time: counted from the job's arrival."""


def differences(one: Snapshot, other: Snapshot) -> list[str]:
    """Where they differ, each with both values. There is one job, and both clocks are counted from its arrival."""
    begun = [next(iter(each.jobs.values())).spec.arrival_s for each in (one, other)]
    found = [
        problem
        for name in FIELDS["Snapshot"]
        for problem in _compare(f"Snapshot.{name}", getattr(one, name), getattr(other, name), begun)
    ]
    for key in one.jobs.keys() & other.jobs.keys():
        done = [each.jobs[key].steps_at(each.now) for each in (one, other)]
        # A job trains on while a change is prepared live; each change in the story adds a little to that.
        if done[0] != pytest.approx(done[1], abs=3 * SETTLES_S, rel=0.1):
            found.append(f"Job.steps_at: {done[0]}, {done[1]}")
    return found


def _compare(path: str, one: Any, other: Any, begun: list[float]) -> Iterator[str]:
    if path in APART:
        return
    if path in NEAR:
        pair = (one - begun[0], other - begun[1]) if path in CLOCK else (one, other)
        if not NEAR[path](*pair):
            yield f"{path}: {pair[0]}, {pair[1]}"
    elif is_dataclass(one) and type(one) is type(other):
        for each in fields(one):
            name = f"{type(one).__name__}.{each.name}"
            yield from _compare(name, getattr(one, each.name), getattr(other, each.name), begun)
    elif isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in {**one, **other}:
            yield from _compare(f"{path}[{key}]", one.get(key), other.get(key), begun)
    elif isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        for first, second in zip(one, other, strict=True):
            yield from _compare(path, first, second, begun)
    elif one != other:
        yield f"{path}: {one}, {other}"
