"""The command `elastic-tfjob train-policy`, which trains the policy of profile `dl2` in simulation."""

import sys
import time
from collections.abc import Collection
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from elastic_tfjob.learning.episodes import TEACHERS, Method, draw
from elastic_tfjob.learning.recorded import LEAST_JOBS, ContinuedTraining
from elastic_tfjob.learning.recorded import follow as follow_experience
from elastic_tfjob.learning.training import (
    METHODS,
    SCALES,
    Evolution,
    TrainingPlan,
    TrainingState,
    begin,
    compare,
    draw_curve,
    load,
    save,
    train,
)
from elastic_tfjob.param_types import Amount, OneOf, OutputFile
from elastic_tfjob.scheduling.profiles.dl2.network import JOB_FEATURES, SIZE_FEATURES, as_bytes
from elastic_tfjob.simulation.interrupts import Interrupt, stopping
from elastic_tfjob.simulation.speed_models.ps import MODELS

MAX_SEEDS = 100_000


def default_of(name: str) -> str:
    """The default of this setting for each method that has it, for --help."""
    values = {kind.name: field.default for kind in METHODS.values() for field in fields(kind) if field.name == name}
    return "Default: " + ", ".join(f"{value} ({method})" for method, value in values.items()) + "."


@click.command()
@click.argument("output", type=OutputFile())
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    default=0,
    show_default=True,
    help="Seed of the initial weights and of the random changes.",
)
@click.option(
    "--method",
    type=OneOf(list(METHODS)),
    default=Evolution.name,
    show_default=True,
    help="Learning method: evolution strategies, or actor-critic with replay as in the DL2 paper.",
)
@click.option(
    "--iterations", type=click.IntRange(0, 100_000), default=60, show_default=True, help="Number of iterations."
)
@click.option("--episodes", type=click.IntRange(1, 1000), help=f"Workloads per iteration. {default_of('episodes')}")
@click.option("--rate", type=Amount(100), help=f"Learning rate. {default_of('rate')}")
@click.option(
    "--pairs",
    type=click.IntRange(1, 1000),
    help=f"Random changes of the weights per iteration, each tried with both signs. {default_of('pairs')}",
)
@click.option(
    "--part",
    type=OneOf(list(SCALES)),
    help=f"Weights to train: only those of the features of job and round (job), or all. {default_of('part')}",
)
@click.option(
    "--replay",
    type=click.IntRange(1, 100),
    help=f"Number of latest iterations whose decisions are learned from. {default_of('replay')}",
)
@click.option(
    "--explore",
    type=Amount(1),
    help=f"Probability of a corrective action for a job with ten times more PS than workers, or the reverse. "
    f"{default_of('explore')}",
)
@click.option("--entropy", type=Amount(10), help=f"Weight of the entropy bonus. {default_of('entropy')}")
@click.option(
    "--discount", type=Amount(1), help=f"Discount factor of the rewards in later time slots. {default_of('discount')}"
)
@click.option(
    "--critic/--no-critic",
    default=None,
    help=f"Baseline of the rewards: a critic network, or the mean reward. {default_of('critic')}",
)
@click.option(
    "--teacher",
    type=OneOf(["none", *TEACHERS]),
    default="none",
    show_default=True,
    help="Profile whose decisions are learned first. none: start with a network that prefers the best "
    "gain per replica.",
)
@click.option(
    "--passes",
    type=click.IntRange(1, 10_000),
    default=30,
    show_default=True,
    help="Passes over the teacher's decisions.",
)
@click.option(
    "--train-seeds",
    type=click.IntRange(1, MAX_SEEDS),
    default=200,
    show_default=True,
    help="Number of workloads to train on.",
)
@click.option(
    "--select-seeds",
    type=click.IntRange(1, MAX_SEEDS),
    default=12,
    show_default=True,
    help="Number of workloads to choose the best weights on.",
)
@click.option(
    "--test-seeds",
    type=click.IntRange(0, MAX_SEEDS),
    default=20,
    show_default=True,
    help="Number of workloads for the final comparison.",
)
@click.option("--without", default="", help="Comma-separated features that the network does not see.")
@click.option(
    "--models", default="", help=f"Comma-separated models of the jobs to train on. Default: all of {', '.join(MODELS)}."
)
@click.option(
    "--follow",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory that the operator's --experience writes. Keep training on live jobs, and update OUTPUT.",
)
@click.option(
    "--jobs-per-update",
    type=click.IntRange(1, 100_000),
    default=LEAST_JOBS,
    show_default=True,
    help="With --follow: number of new jobs before the next update.",
)
@click.option(
    "--wait-idle",
    type=Amount(86_400),
    default=0.0,
    show_default=True,
    help="With --follow: most seconds that an update waits, in all, while more processes run than the node has cores.",
)
@click.option(
    "--updates",
    type=click.IntRange(0, 100_000),
    default=0,
    help="With --follow: number of updates after which the command ends. 0 (the default): it never ends.",
)
@click.option(
    "--resume", is_flag=True, help="Continue the training in OUTPUT.state; --iterations may be larger than before."
)
@click.option("--plot", type=OutputFile(), help="SVG file to write with a plot of the training.")
def train_policy(
    *,
    output: Path,
    seed: int,
    method: str,
    iterations: int,
    teacher: str,
    passes: int,
    train_seeds: int,
    select_seeds: int,
    test_seeds: int,
    without: str,
    models: str,
    follow: Path | None,
    jobs_per_update: int,
    wait_idle: float,
    updates: int,
    resume: bool,
    plot: Path | None,
    **settings: Any,
) -> None:
    """Train the policy of profile dl2 in simulation, and write its weights to OUTPUT (.npz).

    Each workload (jobs, cluster, load and speeds) is drawn by a seed. The weights are trained on the workloads of
    --train-seeds. OUTPUT gets the weights that are best on those of --select-seeds. The final comparison with other
    profiles uses those of --test-seeds. OUTPUT.state has the state after each iteration; --resume continues from it,
    with the same result as a training without an interruption.

    \b
    Examples:
      elastic-tfjob train-policy weights.npz --seed 1 --plot training.svg
      elastic-tfjob simulate scenario.yaml --profile dl2 --set dl2.weights=weights.npz
      elastic-tfjob train-policy weights.npz --method actor-critic --teacher drf --iterations 300
      elastic-tfjob train-policy weights.npz --follow experience --iterations 20

    With --follow, training starts with the weights in OUTPUT, or with the shipped ones. An update replaces OUTPUT only
    if the new weights are not worse than OUTPUT (without OUTPUT: than profile hull), both on held-back live jobs and on
    as many other workloads as --select-seeds. If later live jobs show that they are worse, the earlier weights are
    restored. OUTPUT.updates.jsonl has a line for each update.
    """
    chosen = method_of(method, {name: value for name, value in settings.items() if value is not None})
    names = listed(models, MODELS, "--models", "model")
    hidden = listed(without, (*SIZE_FEATURES, *JOB_FEATURES), "--without", "feature")
    plan = TrainingPlan(
        seed=seed,
        iterations=iterations,
        teacher="" if teacher == "none" else teacher,
        passes=passes,
        train=train_seeds,
        select=select_seeds,
        models=names,
        without=hidden,
        method=chosen,
    )
    if follow is not None:
        if resume or plot is not None or plan.teacher:
            raise click.BadParameter("cannot be combined with --resume, --plot or --teacher", param_hint="--follow")
        _follow(ContinuedTraining(follow, output, plan, jobs_per_update, wait_s=wait_idle), updates)
        return
    kept = output.with_name(output.name + ".state")
    console = Console(stderr=True)
    try:
        state = resumed(kept, plan) if resume else begin(plan)
        with stopping() as stop:
            state = _run(state, kept, console, stop)
            output.write_bytes(as_bytes(state.network, _trained(state)))
            if plot is not None:
                draw_curve(state, plot)
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(
        f"{output}: the best weights of {state.iteration} iterations; mean completion time {_change(state):+.1f} % on "
        "the select seeds"
    )
    if state.iteration < plan.iterations:
        click.echo("Interrupted. Use --resume to continue.", err=True)
        raise SystemExit(stop.exit_status)
    if test_seeds:
        found = compare(state.network, [draw("test", k, plan.models) for k in range(test_seeds)])
        click.echo(f"Mean completion time on {test_seeds} test seeds:")
        for rival, ratio in found.items():
            click.echo(f"  {100 * ratio:+.1f} % compared with {rival}")


def method_of(name: str, settings: dict[str, Any]) -> Method:
    """The method `name` with these settings, which are values of its fields."""
    known = {field.name for field in fields(METHODS[name])}
    if foreign := [f"--{setting}" for setting in settings if setting not in known]:
        raise click.BadParameter(f"cannot be combined with {', '.join(foreign)}", param_hint=f"--method {name}")
    return METHODS[name](**settings)


def listed(text: str, known: Collection[str], option: str, what: str) -> tuple[str, ...]:
    """The names in this comma-separated list. Raises BadParameter for an unknown name."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if unknown := [name for name in names if name not in known]:
        raise click.BadParameter(f"unknown {what} {', '.join(unknown)}; allowed: {', '.join(known)}", param_hint=option)
    return names


def _follow(course: ContinuedTraining, updates: int) -> None:
    """Print the result of each update, until an interrupt or the given number of updates."""
    made, waits = 0, False
    with stopping() as stop:
        try:
            with stop.interrupting():
                for update in follow_experience(course):
                    if update is not None:
                        click.echo(f"{update}")
                        made, waits = made + 1, False
                        if made == updates:
                            return
                        continue
                    if not waits:
                        click.echo(f"Waiting for jobs in {course.experience}", err=True)
                    waits = True
                    time.sleep(course.poll_s)
        except (OSError, ValueError) as error:
            raise click.ClickException(str(error)) from error
        except KeyboardInterrupt:
            raise SystemExit(stop.exit_status) from None


def resumed(path: Path, plan: TrainingPlan) -> TrainingState:
    """The state in this file, to be resumed with this plan. Raises ValueError if the plans differ in more than their
    number of iterations."""
    if not path.exists():
        raise ValueError(f"--resume: {path} does not exist")
    state = load(path)
    if replace(state.plan, iterations=plan.iterations) != plan:
        raise ValueError(f"--resume: {path} was started with other options; only --iterations may change")
    return replace(state, plan=plan)


def _change(state: TrainingState) -> float:
    """The change of the completion times on the select seeds since the start of the training, in percent."""
    return 100 * float(np.expm1(state.best_cost - (state.history[0][2] or 0.0)))


def _trained(state: TrainingState) -> dict[str, Any]:
    """The description of the training that is stored in the weights file, for people."""
    plan = asdict(state.plan)
    plan["method"]["name"] = state.plan.method.name
    return {"plan": plan, "iterations": state.iteration, "percent_on_select_seeds": _change(state)}


def _run(begun: TrainingState, kept: Path, console: Console, stop: Interrupt) -> TrainingState:
    """Train until the end of the plan or an interrupt."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[best]}"),
    )
    state = begun
    save(state, kept)
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(state.plan.method.name, total=state.plan.iterations, completed=state.iteration, best="")
        try:
            with stop.interrupting():
                for state in train(begun):
                    save(state, kept)
                    bar.update(task, completed=state.iteration, best=f"{_change(state):+.1f} % on the select seeds")
        except KeyboardInterrupt:
            pass
    return state
