"""Which parameters of a profile do best on a workload: one parameter after the other, from its defaults. Pure.

What is tried is measured on one part of the workload, and what is found is shown on another part, which nothing was
chosen on. Coordinate descent is enough where a run takes seconds and parameters hardly depend on each other.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final, Literal, get_args, get_origin

from elastic_tfjob.scheduling.profiles import ProfileParameters
from elastic_tfjob.simulation.summary import Summary
from elastic_tfjob.simulation.workload import WorkloadJob

__all__ = ["GOALS", "Evaluate", "Goal", "Trial", "cost", "differences", "halves", "tunable", "tune", "variants"]

Goal = Literal["mean", "p95", "deadlines"]
GOALS: Final[tuple[Goal, ...]] = get_args(Goal)
Evaluate = Callable[[Sequence[ProfileParameters]], Sequence[float]]
"""The costs of these parameters, each on all of the part that is tuned on."""

LEFT: Final = frozenset(
    {
        *("place", "on_change", "oracle", "lend", "reclaim", "repack", "sample_points", "weights"),
        *("pause_s", "rescale_pause_s", "prepare_cpu_s", "prepare_kept_cpu_s", "move_s"),
    }
)
"""Parameters that say what a cluster allows, what is known, and what a change costs, which is measured; not how to
decide."""
TIMES: Final = (0.25, 0.5, 2.0, 4.0)
FROM_ZERO: Final = (0.05, 0.1, 0.2)
SECONDS_FROM_ZERO: Final = (15.0, 60.0, 300.0)
LEAST: Final = 0.005
"""A change has to make the cost smaller by this part: less than that is chance."""
SWEEPS: Final = 2


@dataclass(frozen=True, slots=True)
class Trial:
    """One thing that was tried. `kept`: it is part of what is chosen, as far as that goes."""

    parameter: str
    value: Any
    cost: float
    kept: bool = False


def tunable(parameters: ProfileParameters, given: Collection[str] = ()) -> list[str]:
    """The parameters that can be tuned, but those that somebody has `given`."""
    fields = type(parameters).model_fields
    return [name for name in fields if name not in LEFT and name not in given and variants(parameters, name)]


def variants(parameters: ProfileParameters, name: str) -> list[tuple[Any, ProfileParameters]]:
    """What to try of one parameter beside what it has, and the parameters with that: multiples of a number, the other
    words, true for false. Values that the profile refuses are left out."""
    now, kind = getattr(parameters, name), type(parameters).model_fields[name].annotation
    tried: Sequence[Any] = ()
    if isinstance(now, bool):
        tried = (not now,)
    elif get_origin(kind) is Literal:
        tried = get_args(kind)
    elif isinstance(now, int):
        tried = sorted({max(0, now - 1), now + 1, 2 * now, 4 * now})
    elif isinstance(now, float):
        zero = SECONDS_FROM_ZERO if name.endswith("_s") else FROM_ZERO
        tried = [now * times for times in TIMES] if now else zero
    said, found = parameters.model_dump(), list[tuple[Any, ProfileParameters]]()
    for value in tried:
        if value != now:
            with suppress(ValueError):
                found.append((value, type(parameters).model_validate({**said, name: value})))
    return found


def tune(
    parameters: ProfileParameters, names: Sequence[str], evaluate: Evaluate, least: float = LEAST
) -> Iterator[tuple[ProfileParameters, list[Trial]]]:
    """After each parameter that was looked at: what is best so far, and what was tried of it. It ends after two sweeps,
    or one in which nothing was found."""
    (best,) = evaluate([parameters])
    for _ in range(SWEEPS):
        found = False
        for name in names:
            tried = variants(parameters, name)
            if not tried:
                continue
            costs = evaluate([each for _, each in tried])
            trials = [Trial(name, value, cost) for (value, _), cost in zip(tried, costs, strict=True)]
            k = min(range(len(costs)), key=lambda k: costs[k])
            if costs[k] < best * (1 - least):
                best, parameters, found = costs[k], tried[k][1], True
                trials[k] = replace(trials[k], kept=True)
            yield parameters, trials
        if not found:
            return


def cost(summary: Summary, goal: Goal) -> float:
    """What is to be small: seconds, or the part of deadlines that are missed (and of two that are alike the one with
    the shorter mean). Infinite where a job does not finish."""
    mean = summary.avg_jct_s
    if mean is None or summary.finished < summary.jobs:
        return inf
    if goal == "mean":
        return mean
    if goal == "p95":
        return summary.p95_jct_s or inf
    if summary.deadline_met is None:
        raise ValueError("no job of this workload has a deadline: tune for mean or p95")
    # A job in a thousand that misses its deadline weighs more than any completion time.
    return 1 - summary.deadline_met + 1e-3 * mean / (mean + 86_400)


def halves(jobs: Sequence[WorkloadJob]) -> tuple[tuple[WorkloadJob, ...], tuple[WorkloadJob, ...]]:
    """The first half of a workload by time of arrival, to tune on, and the second, to report on. Raises ValueError
    where there are too few jobs for that."""
    if len(jobs) < 4:
        raise ValueError(f"{len(jobs)} jobs are too few to tune on one half and report on the other: 4 are needed")
    ordered = sorted(jobs, key=lambda job: job.submit_s)
    middle = len(ordered) // 2
    return tuple(ordered[:middle]), tuple(ordered[middle:])


def differences(before: ProfileParameters, after: ProfileParameters) -> Mapping[str, Any]:
    """What was changed, by name."""
    return {name: value for name, value in after.model_dump().items() if value != getattr(before, name)}
