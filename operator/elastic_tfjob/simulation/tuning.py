"""Tunes a profile's parameters for a workload by coordinate descent from the defaults, for `simulate --tune`.

The parameters are chosen on one part of the workload and reported on another part, which was not used for the choice.
Coordinate descent is sufficient because a run takes seconds and the parameters hardly depend on each other.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

import click

from elastic_tfjob.scheduling.profiles import ProfileParameters
from elastic_tfjob.simulation.result import RunResult
from elastic_tfjob.simulation.runner import RunSpec
from elastic_tfjob.simulation.summary import Summary, beside_the_first, print_runs, summarise
from elastic_tfjob.simulation.workload import WorkloadJob

__all__ = [
    "GOALS",
    "Evaluate",
    "Goal",
    "ParameterTrial",
    "Parts",
    "cost",
    "differences",
    "halves",
    "tunable",
    "tune",
    "tune_and_report",
    "variants",
]

Goal = Literal["mean", "p95", "deadlines"]
GOALS: Final[tuple[Goal, ...]] = get_args(Goal)
Evaluate = Callable[[Sequence[ProfileParameters]], Sequence[float]]
"""A function that returns the cost of each parameter set on the whole tuning part."""

LEFT: Final = frozenset(
    {
        *("place", "on_change", "oracle", "lend", "reclaim", "repack", "sample_points", "weights"),
        *("pause_s", "rescale_pause_s", "prepare_cpu_s", "prepare_kept_cpu_s", "move_s"),
    }
)
"""Parameters that are not tuned. They describe what the cluster allows, what is known, or the measured cost of a
change, and not how the profile decides."""
TIMES: Final = (0.25, 0.5, 2.0, 4.0)
FROM_ZERO: Final = (0.05, 0.1, 0.2)
SECONDS_FROM_ZERO: Final = (15.0, 60.0, 300.0)
LEAST: Final = 0.005
"""The smallest relative decrease of the cost that counts as an improvement. Smaller differences are chance."""
SWEEPS: Final = 2


@dataclass(frozen=True, slots=True)
class ParameterTrial:
    """One value tried for a parameter. `kept`: the value became part of the best parameters so far."""

    parameter: str
    value: Any
    cost: float
    kept: bool = False


def tunable(parameters: ProfileParameters, given: Collection[str] = ()) -> list[str]:
    """The names of the parameters that can be tuned, without those that the user has `given`."""
    fields = type(parameters).model_fields
    return [name for name in fields if name not in LEFT and name not in given and variants(parameters, name)]


def variants(parameters: ProfileParameters, name: str) -> list[tuple[Any, ProfileParameters]]:
    """The other values to try for one parameter, each with the resulting parameters: multiples of a number, the other
    choices of an enumeration, the opposite of a boolean. Values that the profile rejects are omitted."""
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
) -> Iterator[tuple[ProfileParameters, list[ParameterTrial]]]:
    """Yields, after each parameter, the best parameters so far and the trials of this parameter. It stops after two
    sweeps, or after one sweep without an improvement."""
    (best,) = evaluate([parameters])
    for _ in range(SWEEPS):
        found = False
        for name in names:
            tried = variants(parameters, name)
            if not tried:
                continue
            costs = evaluate([each for _, each in tried])
            trials = [ParameterTrial(name, value, cost) for (value, _), cost in zip(tried, costs, strict=True)]
            k = min(range(len(costs)), key=lambda k: costs[k])
            if costs[k] < best * (1 - least):
                best, parameters, found = costs[k], tried[k][1], True
                trials[k] = replace(trials[k], kept=True)
            yield parameters, trials
        if not found:
            return


def cost(summary: Summary, goal: Goal) -> float:
    """The cost to minimise: seconds of completion time, or the share of deadlines missed (with the mean completion time
    as tie-breaker). Infinite if a job does not finish. Raises ValueError for goal `deadlines` if no job has a
    deadline."""
    mean = summary.avg_jct_s
    if mean is None or summary.finished < summary.jobs:
        return inf
    if goal == "mean":
        return mean
    if goal == "p95":
        return summary.p95_jct_s or inf
    if summary.deadline_met is None:
        raise ValueError("no job of this workload has a deadline; use --tune-for mean or p95")
    # One missed deadline per thousand jobs outweighs any difference in completion time.
    return 1 - summary.deadline_met + 1e-3 * mean / (mean + 86_400)


def halves(jobs: Sequence[WorkloadJob]) -> tuple[tuple[WorkloadJob, ...], tuple[WorkloadJob, ...]]:
    """The first half of a workload by arrival time, for tuning, and the second half, for reporting. Raises ValueError
    for fewer than 4 jobs."""
    if len(jobs) < 4:
        raise ValueError(
            "--tune needs at least 4 jobs, one half to tune on and the other to compare on; the workload has "
            f"{len(jobs)}"
        )
    ordered = sorted(jobs, key=lambda job: job.submit_s)
    middle = len(ordered) // 2
    return tuple(ordered[:middle]), tuple(ordered[middle:])


def differences(before: ProfileParameters, after: ProfileParameters) -> Mapping[str, Any]:
    """The changed parameters and their new values, by name."""
    return {name: value for name, value in after.model_dump().items() if value != getattr(before, name)}


# -- `simulate --tune` -------------------------------------------------------------------------------------------------
# Runs the trials, prints each one, and reports the chosen parameters on the held-out part.

Runs = Callable[[Sequence[RunSpec]], Sequence[RunResult]]
"""A function that runs all specs. After an interrupt it returns fewer results, or partial ones."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The runs for tuning and the runs for reporting. `words` describes the division of the workload."""

    tuned_on: Sequence[RunSpec]
    held_out: Sequence[RunSpec]
    words: str


def tune_and_report(
    parts: Parts, given: Collection[str], goal: Goal, run: Runs, json_file: Path | None = None
) -> ProfileParameters:
    """Tune the parameters of the runs' profile, except those `given`. Prints the trials and the result, and returns the
    chosen parameters. If the runs were interrupted, it prints the best parameters so far and raises KeyboardInterrupt;
    the JSON file then has an empty `held_out`. Raises ValueError if there is no parameter to tune."""
    name, first = parts.tuned_on[0].profile, parts.tuned_on[0].parameters
    names = tunable(first, given)
    if not names:
        raise ValueError(f"--tune: profile {name} has no parameter left to tune")
    click.echo(f"{parts.words}. Parameters: {', '.join(names)}. Minimised: {goal}.")

    def evaluate(tried: Sequence[ProfileParameters]) -> list[float]:
        specs = parts.tuned_on
        return _costs(_summaries(_outcomes(specs, tried, run), specs), len(specs), goal)

    chosen, trials = first, list[ParameterTrial]()
    try:
        for best, tried in tune(first, names, evaluate):
            chosen = best
            trials += tried
            shown = ", ".join(f"{_word(t.value)}: {_cost(t.cost, goal)}{' kept' if t.kept else ''}" for t in tried)
            click.echo(f"  {name}.{tried[0].parameter}  {shown}")
        interrupted = None
    except KeyboardInterrupt as stopped:
        interrupted = stopped
    held = list[dict[str, object]]()
    try:
        _tell(name, differences(first, chosen))
        if interrupted is not None:
            raise interrupted
        held = _compare(parts, first, chosen, goal, run)
    finally:
        if json_file:
            content: dict[str, object] = {"profile": name, "goal": goal, "parts": parts.words}
            content |= {"chosen": dict(differences(first, chosen)), "trials": [asdict(trial) for trial in trials]}
            json_file.write_text(json.dumps({**content, "held_out": held}, indent=2) + "\n")
    return chosen


def _tell(name: str, changed: Mapping[str, object]) -> None:
    if not changed:
        click.echo(f"No tried value improves {name}.")
        return
    click.echo("Chosen: " + " ".join(f"--set {name}.{key}={_word(value)}" for key, value in changed.items()))
    inside = ", ".join(f"{key}: {_word(value)}" for key, value in changed.items())
    click.echo(f"In the operator's config.yaml: profiles: {{{name}: {{{inside}}}}}")


def _compare(
    parts: Parts, before: ProfileParameters, after: ProfileParameters, goal: Goal, run: Runs
) -> list[dict[str, object]]:
    """Prints and returns the results on the held-out part, with the original and with the chosen parameters."""
    name = parts.held_out[0].profile
    two = [before, after] if before != after else [before]
    outcomes, runs = _outcomes(parts.held_out, two, run), len(parts.held_out)
    held = beside_the_first(_summaries(outcomes, parts.held_out), outcomes)
    rows = [replace(each, profile=f"{name}, {'tuned' if k >= runs else 'before'}") for k, each in enumerate(held)]
    click.echo("Comparison on the second part:")
    print_runs(rows, runs > 1)
    costs = _costs(held, runs, goal)
    if len(two) > 1:
        better = costs[1] < costs[0]
        click.echo(
            f"Second part, {goal}: {_cost(costs[0], goal)} -> {_cost(costs[1], goal)}. "
            + (
                "The tuned parameters are better there, too."
                if better
                else "The tuned parameters are no better there: keep the old ones."
            )
        )
    return [each.as_dict() for each in rows]


def _outcomes(specs: Sequence[RunSpec], tried: Sequence[ProfileParameters], run: Runs) -> Sequence[RunResult]:
    """The results of all runs with the first parameters, then with the second ones, and so on. Raises KeyboardInterrupt
    if a result is missing or partial."""
    asked = [replace(spec, parameters=parameters) for parameters in tried for spec in specs]
    outcomes = run(asked)
    if len(outcomes) < len(asked) or any(outcome.partial for outcome in outcomes):
        raise KeyboardInterrupt
    return outcomes


def _summaries(outcomes: Sequence[RunResult], specs: Sequence[RunSpec]) -> list[Summary]:
    jobs = [len(spec.inputs.jobs) for spec in specs]
    return [summarise(outcome, jobs[k % len(jobs)]) for k, outcome in enumerate(outcomes)]


def _costs(summaries: Sequence[Summary], runs: int, goal: Goal) -> list[float]:
    """The mean cost of each group of `runs` consecutive summaries."""
    costs = [cost(each, goal) for each in summaries]
    return [sum(costs[k : k + runs]) / runs for k in range(0, len(costs), runs)]


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _cost(value: float, goal: Goal) -> str:
    return f"{value:,.0f} s" if goal != "deadlines" else f"{100 * value:.1f} % missed"
