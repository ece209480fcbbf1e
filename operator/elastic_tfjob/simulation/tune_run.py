"""`simulate --tune`: runs what is tried, tells it as it goes, and shows the result on the part that was held out."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click

from elastic_tfjob.scheduling.profiles import ProfileParameters
from elastic_tfjob.simulation.outcome import Outcome
from elastic_tfjob.simulation.runner import RunSpec
from elastic_tfjob.simulation.summary import Summary, beside_the_first, summarise
from elastic_tfjob.simulation.tables import print_runs
from elastic_tfjob.simulation.tuning import Goal, Trial, cost, differences, tunable, tune

__all__ = ["Parts", "tune_and_report"]

Runs = Callable[[Sequence[RunSpec]], Sequence[Outcome]]
"""Runs them all; fewer outcomes, or partial ones, where it was interrupted."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Runs to tune on, and runs to report on; `words` say how the workload was divided."""

    tuned_on: Sequence[RunSpec]
    held_out: Sequence[RunSpec]
    words: str


def tune_and_report(
    parts: Parts, given: Collection[str], goal: Goal, run: Runs, json_file: Path | None = None
) -> ProfileParameters:
    """Tune the profile of the runs, but what was `given`. Prints what was tried and what it comes to; returns what was
    chosen. Raises KeyboardInterrupt where the runs were stopped, after it has told the best so far; the JSON file then
    has an empty `held_out`."""
    name, first = parts.tuned_on[0].profile, parts.tuned_on[0].parameters
    names = tunable(first, given)
    if not names:
        raise ValueError(f"{name} has no parameters that can be tuned, beside those that are given")
    click.echo(f"{parts.words}. Tuned: {', '.join(names)}; what is to be small: {goal}.")

    def evaluate(tried: Sequence[ProfileParameters]) -> list[float]:
        specs = parts.tuned_on
        return _costs(_summaries(_outcomes(specs, tried, run), specs), len(specs), goal)

    chosen, trials = first, list[Trial]()
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
        click.echo(f"Nothing was better than {name} as it is.")
        return
    click.echo("Chosen: " + " ".join(f"--set {name}.{key}={_word(value)}" for key, value in changed.items()))
    inside = ", ".join(f"{key}: {_word(value)}" for key, value in changed.items())
    click.echo(f"In the operator's config.yaml: profiles: {{{name}: {{{inside}}}}}")


def _compare(
    parts: Parts, before: ProfileParameters, after: ProfileParameters, goal: Goal, run: Runs
) -> list[dict[str, object]]:
    """Prints, and returns, how the part that was held out does with what the profile had, and with what was chosen."""
    name = parts.held_out[0].profile
    two = [before, after] if before != after else [before]
    outcomes, runs = _outcomes(parts.held_out, two, run), len(parts.held_out)
    held = beside_the_first(_summaries(outcomes, parts.held_out), outcomes)
    rows = [replace(each, profile=f"{name}, {'tuned' if k >= runs else 'as it was'}") for k, each in enumerate(held)]
    click.echo("On what was held out:")
    print_runs(rows, runs > 1)
    costs = _costs(held, runs, goal)
    if len(two) > 1:
        better = costs[1] < costs[0]
        click.echo(
            f"Held out, {goal}: {_cost(costs[0], goal)} -> {_cost(costs[1], goal)}. "
            + ("Tuning holds there." if better else "Tuning does not hold there: leave the profile as it was.")
        )
    return [each.as_dict() for each in rows]


def _outcomes(specs: Sequence[RunSpec], tried: Sequence[ProfileParameters], run: Runs) -> Sequence[Outcome]:
    """Of the runs with the first that is tried, then of those with the next."""
    asked = [replace(spec, parameters=parameters) for parameters in tried for spec in specs]
    outcomes = run(asked)
    if len(outcomes) < len(asked) or any(outcome.partial for outcome in outcomes):
        raise KeyboardInterrupt
    return outcomes


def _summaries(outcomes: Sequence[Outcome], specs: Sequence[RunSpec]) -> list[Summary]:
    jobs = [len(spec.jobs) for spec in specs]
    return [summarise(outcome, jobs[k % len(jobs)]) for k, outcome in enumerate(outcomes)]


def _costs(summaries: Sequence[Summary], runs: int, goal: Goal) -> list[float]:
    """The mean of each so many runs."""
    costs = [cost(each, goal) for each in summaries]
    return [sum(costs[k : k + runs]) / runs for k in range(0, len(costs), runs)]


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _cost(value: float, goal: Goal) -> str:
    return f"{value:,.0f} s" if goal != "deadlines" else f"{100 * value:.1f} % missed"
