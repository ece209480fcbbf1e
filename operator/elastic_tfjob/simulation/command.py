"""The command `elastic-tfjob simulate`: its options, and the runs that it starts and reports."""

import csv
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from elastic_tfjob.api.reading import MAX_DURATION_S, MAX_MILLICORES, MAX_POD_BYTES
from elastic_tfjob.api.scenario import MAX_GPUS_PER_NODE, MAX_NODES, MAX_SCENARIO_JOBS, Scenario
from elastic_tfjob.param_types import Amount, OneOf, OutputFile
from elastic_tfjob.scheduling.places import PLACES, PlaceName
from elastic_tfjob.scheduling.profiles import ProfileParameters, all_profiles, build, installed_profiles, parse_profile
from elastic_tfjob.scheduling.steps.teams import TeamRules
from elastic_tfjob.simulation.autoscaler import check_templates
from elastic_tfjob.simulation.engine import SimulationInput
from elastic_tfjob.simulation.formats import FORMATS, GIB, BadRow, WorkloadError, made_elastic, read_csv
from elastic_tfjob.simulation.interrupts import Interrupt, stopping
from elastic_tfjob.simulation.live_job import Costs, Noise
from elastic_tfjob.simulation.memory import PsMemory
from elastic_tfjob.simulation.noise_options import noise_options
from elastic_tfjob.simulation.report import write_report
from elastic_tfjob.simulation.result import RunResult
from elastic_tfjob.simulation.runner import ProcessDied, RunsFailed, RunSpec, beside_alone, run_all, uniform_cluster
from elastic_tfjob.simulation.scenario import generate, node_changes, own_pool, read_pool, read_scenario
from elastic_tfjob.simulation.speed_models.catalogue import DEFAULT_SPEED_MODEL, SPEED_MODELS, speed_model_named
from elastic_tfjob.simulation.speed_models.cpu import CpuBound
from elastic_tfjob.simulation.speed_models.elasticflow import elasticflow
from elastic_tfjob.simulation.summary import (
    COLUMNS,
    Summary,
    beside_the_first,
    job_rows,
    least_mean_jct_s,
    print_catalogue,
    print_runs,
    print_teams,
    summarise,
)
from elastic_tfjob.simulation.teams import teams_in
from elastic_tfjob.simulation.tuning import GOALS, Goal, Parts, halves, tune_and_report
from elastic_tfjob.simulation.workload import WorkloadJob

__all__ = ["SECONDS", "boot_cpu_s", "restart_tiers"]


class ProfileName(OneOf):
    """A profile name as a command-line value. For a profile whose package is broken, the error gives the reason."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        for problem in installed_profiles().problems:
            if problem.profile == value:
                return str(problem)
        return super().get_invalid_choice_message(value, ctx)


SECONDS = Amount(MAX_DURATION_S)


def restart_tiers(ctx: click.Context, param: click.Parameter, value: str) -> tuple[tuple[float, float], ...]:
    """Parses `60`, or tiers such as `1:7,8:30,60`: 7 s up to 1 accelerator, 30 s up to 8, 60 s above."""
    tiers = []
    try:
        for part in value.split(","):
            limit, _, seconds = part.rpartition(":")
            tiers.append((float(limit) if limit else math.inf, float(seconds)))
    except ValueError:
        raise click.BadParameter(f"{value!r}: give seconds, or tiers such as 1:7,8:30,60") from None
    if not all(0 <= seconds <= MAX_DURATION_S for _, seconds in tiers):
        raise click.BadParameter(f"{value!r}: seconds must be 0 to {MAX_DURATION_S}")
    limits = [limit for limit, _ in tiers]
    if any(map(math.isnan, limits)) or limits != sorted(set(limits)):
        raise click.BadParameter(f"{value!r}: the limits must increase")
    return tuple(tiers)


def boot_cpu_s(ctx: click.Context, param: click.Parameter, value: str) -> tuple[float, float | None]:
    """Parses `12`, or `12,1`: 12 CPU-seconds for a new replica, 1 CPU-second for a replica that stays."""
    try:
        parts = [float(part) for part in value.split(",")]
    except ValueError:
        parts = []
    if not 1 <= len(parts) <= 2 or not all(0 <= part <= MAX_DURATION_S for part in parts):
        raise click.BadParameter(
            f"{value!r}: give one or two numbers of CPU-seconds from 0 to {MAX_DURATION_S}, such as 12 or 12,1"
        )
    if parts[-1] > parts[0]:
        raise click.BadParameter(f"{value!r}: the second number (for a replica that stays) must not exceed the first")
    return parts[0], parts[1] if len(parts) == 2 else None


MAX_REPLICATIONS = 10_000
MAX_PROCESSES = 1024


def _list(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        _warn_of_broken_profiles()
        print_catalogue()
        ctx.exit()


def _warn_of_broken_profiles() -> None:
    for problem in installed_profiles().problems:
        click.echo(f"Warning: {problem}", err=True)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.argument("workload", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "format_",
    type=OneOf(["auto", *FORMATS, "scenario"]),
    default="auto",
    show_default=True,
    help="Format of WORKLOAD. auto: chosen by its header, or by its ending .yaml.",
)
@click.option(
    "--nodes",
    type=click.IntRange(0, MAX_NODES),
    required=True,
    help="Number of nodes in the training cluster, at the beginning if the scenario has an autoscaler.",
)
@click.option(
    "--gpus-per-node",
    type=click.IntRange(0, MAX_GPUS_PER_NODE),
    default=8,
    show_default=True,
    help="GPUs of each node.",
)
@click.option(
    "--cpus-per-node",
    type=Amount(MAX_MILLICORES / 1000),
    default=64,
    show_default=True,
    help="CPU cores of each node.",
)
@click.option(
    "--memory-per-node",
    type=Amount(MAX_POD_BYTES / GIB),
    default=512,
    show_default=True,
    help="Memory of each node, in GiB.",
)
@click.option(
    "--speed-model",
    type=OneOf(list(SPEED_MODELS)),
    help="Model of the jobs' true speeds. Default: depends on the format.",
)
@click.option(
    "--world",
    type=OneOf(list(SPEED_MODELS)),
    hidden=True,
    deprecated="Use --speed-model. The next release removes --world.",
)
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    required=True,
    type=ProfileName(list(all_profiles())),
    help="Scheduling profile to simulate. Repeat the option to compare profiles.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="PROFILE.PARAM=VALUE",
    help="Value of a profile's parameter (see --list). May be repeated.",
)
@click.option("--place", type=OneOf(get_args(PlaceName)), help="Placement strategy. Default: that of each profile.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the scenario's jobs and of the noise.")
@click.option(
    "--replications",
    type=click.IntRange(1, MAX_REPLICATIONS),
    default=1,
    show_default=True,
    help="Number of runs of each profile; each run has the next seed.",
)
@click.option("--start-pause", type=SECONDS, default=0, help="Seconds from a job's first start to its first step.")
@click.option(
    "--restart-pause",
    callback=restart_tiers,
    default="0",
    help="Seconds from a job's restart after a preemption to its next step. It may depend on the job's accelerators: "
    "1:7,8:30,60 means 7 s for 1, 30 s for up to 8, and 60 s for more.",
)
@click.option("--rescale-pause", type=SECONDS, default=0, help="Seconds that training pauses for a rescale.")
@click.option("--migrate-pause", type=SECONDS, default=0, help="Seconds that training pauses when replicas move.")
@click.option(
    "--checkpoint-interval",
    type=SECONDS,
    default=0,
    help="Seconds between checkpoints. A preempted job loses the steps since its last one. 0: it loses no steps.",
)
@click.option(
    "--boot-cpu",
    metavar="SECONDS[,KEPT]",
    callback=boot_cpu_s,
    default="0",
    show_default=True,
    help="CPU-seconds that a replica needs to start its program. KEPT: the same for a replica that stays in a rescale "
    "and forks its next program. Default of KEPT: SECONDS. Example: 12,1. Only speed model ps-cpu uses this.",
)
@click.option(
    "--live-pause",
    type=SECONDS,
    default=None,
    help="Seconds of pause where only workers change and the program stays. Default: a change like others.",
)
@noise_options
@click.option(
    "--accelerator",
    type=OneOf(["T4", "A100"]),
    help="Use the speeds that ElasticFlow measured on this accelerator. Jobs of a trace become elastic if their model "
    "was measured.",
)
@click.option(
    "--inference-pool",
    metavar="FILE|NAME",
    help="Inference pool that lends nodes to the training cluster: a YAML file, or a predefined name such as aryl.",
)
@click.option(
    "--tune",
    is_flag=True,
    help="Search for better parameters of the profile on the first half of a trace, or on the seeds of a scenario. The "
    "result is compared on the second half, or on as many other seeds. Parameters given by --set are not changed.",
)
@click.option(
    "--tune-for",
    type=OneOf(GOALS),
    default="mean",
    show_default=True,
    help="What --tune minimises: the mean or the 95th percentile of the job completion times, or missed deadlines.",
)
@click.option(
    "--teams-alone",
    is_flag=True,
    help="Also simulate each team alone on its static part of the cluster, and show its mean completion time relative "
    "to that.",
)
@click.option("--skip-bad", is_flag=True, help="Skip the invalid rows of WORKLOAD, and list them.")
@click.option("--json", "json_file", type=OutputFile(), help="JSON file to write with the results.")
@click.option("--html", "html_file", type=OutputFile(), help="HTML file to write with charts of the runs.")
@click.option("--jobs-csv", "csv_file", type=OutputFile(), help="CSV file to write with one row per job.")
@click.option(
    "--jobs", "processes", type=click.IntRange(1, MAX_PROCESSES), help="Number of processes. Default: one per core."
)
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list,
    help="List the profiles with their parameters, the speed models and the formats, and exit.",
)
def simulate(
    *,
    workload: Path,
    format_: str,
    nodes: int,
    gpus_per_node: int,
    cpus_per_node: float,
    memory_per_node: float,
    speed_model: str | None,
    world: str | None,
    profiles: tuple[str, ...],
    settings: tuple[str, ...],
    place: PlaceName | None,
    seed: int,
    replications: int,
    start_pause: float,
    restart_pause: tuple[tuple[float, float], ...],
    rescale_pause: float,
    migrate_pause: float,
    checkpoint_interval: float,
    boot_cpu: tuple[float, float | None],
    live_pause: float | None,
    noise: Noise,
    accelerator: Literal["T4", "A100"] | None,
    inference_pool: str | None,
    tune: bool,
    tune_for: Goal,
    teams_alone: bool,
    skip_bad: bool,
    json_file: Path | None,
    html_file: Path | None,
    csv_file: Path | None,
    processes: int | None,
) -> None:
    """Simulate scheduling policies on WORKLOAD: a trace (CSV, also .gz) or a scenario (YAML).

    \b
    Example:
      elastic-tfjob simulate trace.csv --nodes 48 --profile fifo --profile srtf --place consolidate --html report.html
      elastic-tfjob simulate trace.csv --nodes 20 --profile elastic --tune --speed-model linear
    """
    _warn_of_broken_profiles()
    parameters = {name: _parameters(name, settings, place) for name in dict.fromkeys(profiles)}
    _known_profiles(settings, parameters)
    if tune and (len(parameters) > 1 or html_file or csv_file):
        raise click.UsageError("--tune needs exactly one --profile, and cannot be combined with --html or --jobs-csv")
    try:
        scenario, trace, bad, kind = _load(workload, format_, skip_bad)
        if scenario and scenario.jobs * replications > MAX_SCENARIO_JOBS:
            made = f"{replications} runs of the scenario's {scenario.jobs} jobs"
            raise click.BadParameter(f"{made}; allowed: {MAX_SCENARIO_JOBS} jobs in total", param_hint="--replications")
        named = speed_model or world or (scenario.speed_model if scenario else None) or DEFAULT_SPEED_MODEL[kind]
        model = speed_model_named(named)
        if accelerator is not None:
            model, trace = elasticflow(accelerator), tuple(map(made_elastic, trace))
        scaling = scenario.autoscaling if scenario else None
        if scaling is None and not nodes:
            raise click.BadParameter("0: a cluster needs a node, or a scenario with autoscaling", param_hint="--nodes")
        cluster = uniform_cluster(nodes, gpus_per_node, cpus_per_node, memory_per_node)
        if scenario and scaling:
            check_templates(scaling, scenario.mix)
            _need_nodes(parameters)
            cluster = [replace(node, price=scaling.node_price) for node in cluster]
        costs = Costs(
            start_s=start_pause,
            restart_s=restart_pause,
            rescale_s=rescale_pause,
            migrate_s=migrate_pause,
            checkpoint_interval_s=checkpoint_interval,
            boot_cpu_s=boot_cpu[0],
            boot_kept_cpu_s=boot_cpu[1],
            live_pause_s=live_pause,
        )
        beside, own = read_pool(inference_pool) if inference_pool else None, own_pool(scenario)
        specs = []
        for k in range(replications * (2 if tune and scenario else 1)):
            jobs = generate(scenario, seed + k) if scenario else trace
            jobs = beside.mark(jobs, seed + k) if beside else jobs
            for job in jobs:
                PsMemory.of(job, model.true_speed(job))  # raises an error before the first run: the model lacks a speed
            inputs = SimulationInput(
                jobs,
                cluster,
                model,
                costs,
                noise,
                beside.pool if beside else own,
                node_changes(scenario, cluster) if scenario else (),
                seed + k,
                scaling,
                _terms(parameters.values(), jobs),
            )
            specs += [RunSpec(name, parameters[name], inputs, trace=html_file is not None) for name in parameters]
    except (WorkloadError, ValueError) as e:
        raise click.ClickException(str(e)) from e
    if bad:
        click.echo(f"{len(bad)} invalid row(s) skipped:\n" + "\n".join(f"  {row}" for row in bad), err=True)
    if accelerator is None and any(made_elastic(job) is not job for job in trace or ()):
        click.echo("The jobs keep the sizes in the trace. Use --accelerator T4 or A100 to make them elastic.", err=True)
    try:
        with stopping() as stop:
            if tune:
                given = [setting.partition("=")[0].rpartition(".")[2] for setting in settings]
                given += ["place"] * (place is not None)
                try:
                    tune_and_report(
                        _parts(specs, scenario), given, tune_for, lambda asked: _run(asked, processes, stop), json_file
                    )
                except (RunsFailed, ValueError) as e:
                    raise click.ClickException(str(e)) from e
                return
            failed: RunsFailed | None = None
            try:
                outcomes = _run(specs, processes, stop)
            except RunsFailed as e:
                failed, outcomes = e, e.outcomes
            by_run = {(spec.profile, spec.inputs.seed): spec for spec in specs}
            ended = len(outcomes) + (len(failed.failures) if failed is not None else 0)
            whole = ended == len(specs) and not any(outcome.partial for outcome in outcomes)
            specs = [by_run[outcome.profile, outcome.seed] for outcome in outcomes]  # an interrupt omits some runs
            summaries = _summaries(specs, outcomes)
            if teams_alone and whole:
                summaries = [
                    replace(s, teams=beside_alone(spec, s.teams, lambda asked: _run(asked, processes, stop)))
                    for spec, s in zip(specs, summaries, strict=True)
                ]
            _report(specs, outcomes, summaries, replications > 1)
            if json_file:
                json_file.write_text(json.dumps({"runs": [s.as_dict() for s in summaries]}, indent=2) + "\n")
            if csv_file:
                _write_jobs(csv_file, outcomes)
            if html_file and outcomes:
                write_report(html_file, f"{workload.name} on {nodes} nodes", specs, outcomes, summaries)
    except ProcessDied as e:
        raise click.ClickException(str(e)) from e
    except KeyboardInterrupt:  # only from tuning, which has printed its result so far
        click.echo("Interrupted: the comparison on the second part was not run.", err=True)
        raise SystemExit(stop.exit_status) from None
    for problem in failed.problems if failed is not None else ():
        click.echo(f"Error: {problem}", err=True)
    if not whole:
        click.echo("Interrupted: the results are incomplete.", err=True)
        raise SystemExit(stop.exit_status)
    if failed is not None:
        raise SystemExit(1)


def _terms(parameters: Iterable[ProfileParameters], jobs: Sequence[WorkloadJob]) -> TeamRules | None:
    """The terms by which the results say what each team got: those of the first profile that has teams, else equal
    ones. None: the workload has no teams."""
    found = filter(None, (getattr(each, "teams", None) for each in parameters))
    rules = next((teams.rules for teams in found), TeamRules())
    teams = teams_in([job.key for job in jobs], rules)
    if absent := [name for name in rules.named if name not in teams]:
        there = ", ".join(filter(None, teams)) or "none; jobs get one by the column or the field team"
        click.echo(f"Warning: no job is of the team {', '.join(absent)}; teams of the jobs: {there}", err=True)
    return rules if len(teams) > 1 else None


def _summaries(specs: Sequence[RunSpec], outcomes: Sequence[RunResult]) -> list[Summary]:
    summaries = [summarise(outcome, len(spec.inputs.jobs)) for outcome, spec in zip(outcomes, specs, strict=True)]
    return _with_bounds(beside_the_first(summaries, outcomes), specs)


def _report(specs: Sequence[RunSpec], outcomes: Sequence[RunResult], summaries: Sequence[Summary], seeds: bool) -> None:
    """Print the results of these runs."""
    print_runs(summaries, seeds)
    print_teams(summaries, seeds)
    for summary in summaries:
        failed = summary.memory_failed or 0
        left = summary.jobs - summary.finished - failed
        for n, what in ((left, "never fitted into this cluster"), (failed, "failed after kills for memory")):
            if n and not summary.partial:
                click.echo(f"{summary.profile}: {n} job(s) {what}", err=True)
    for name in _lent_in_vain(specs, outcomes):
        model = specs[0].inputs.speed_model.name
        click.echo(
            f"{name}: its changes of CPU have no effect, because the speed model {model} ignores CPU; "
            " use ps-cpu or cpu-share",
            err=True,
        )


def _lent_in_vain(specs: Sequence[RunSpec], outcomes: Sequence[RunResult]) -> list[str]:
    """Profiles that changed the CPU share of running jobs although the speed model does not depend on CPU."""
    lent = {spec.profile: spec for spec, outcome in zip(specs, outcomes, strict=False) if outcome.changes["cpu"]}
    return [
        name
        for name, spec in lent.items()
        if not (model := spec.inputs.speed_model).contended
        and not isinstance(model.true_speed(spec.inputs.jobs[0]), CpuBound)
    ]


def _with_bounds(summaries: Sequence[Summary], specs: Sequence[RunSpec]) -> list[Summary]:
    """The summaries with the lower bound for the mean JCT, if all jobs have finished. All profiles of a seed have the
    same bound."""
    found: dict[int, float | None] = {}
    for inputs in (spec.inputs for spec in specs):
        pool = inputs.inference
        known = (
            inputs.autoscaling is None
            and not inputs.node_changes
            and not (inputs.noise.speed or inputs.noise.neighbours)
            and (pool is None or pool.accelerator_speed <= 1)
        )
        if known and inputs.seed not in found:
            lent = pool.build() if pool is not None else []
            found[inputs.seed] = least_mean_jct_s(inputs.jobs, [*inputs.nodes, *lent], inputs.speed_model)
    whole = [summary.finished == summary.jobs and not summary.partial for summary in summaries]
    return [
        replace(summary, jct_lower_bound_s=found.get(summary.seed) if all_done else None)
        for summary, all_done in zip(summaries, whole, strict=True)
    ]


def _parts(specs: Sequence[RunSpec], scenario: Scenario | None) -> Parts:
    """The runs for tuning and the held-out runs. Raises ValueError for too few jobs."""
    if scenario is not None:
        middle = len(specs) // 2
        return Parts(specs[:middle], specs[middle:], f"Tuned on {middle} seed(s), compared on {middle} other(s)")
    first, second = zip(*(halves(spec.inputs.jobs) for spec in specs), strict=True)
    return Parts(
        _with_jobs(specs, first),
        _with_jobs(specs, second),
        f"Tuned on the first {len(first[0])} jobs by arrival, compared on the other {len(second[0])}",
    )


def _with_jobs(specs: Sequence[RunSpec], jobs: Sequence[Sequence[WorkloadJob]]) -> list[RunSpec]:
    return [replace(spec, inputs=replace(spec.inputs, jobs=each)) for spec, each in zip(specs, jobs, strict=True)]


def _load(
    path: Path, format_: str, skip_bad: bool
) -> tuple[Scenario | None, tuple[WorkloadJob, ...], list[BadRow], str]:
    if format_ == "scenario" or (format_ == "auto" and path.suffix in (".yaml", ".yml")):
        return read_scenario(path), (), [], "scenario"
    workload, bad = read_csv(path, format_, skip_bad=skip_bad)
    return None, workload.jobs, bad, workload.format


def _parameters(name: str, settings: Sequence[str], place: str | None) -> ProfileParameters:
    chosen: dict[str, Any] = {"place": place} if place else {}
    for setting in settings:
        target, equals, value = setting.partition("=")
        profile, dot, parameter = target.rpartition(".")
        if not (equals and dot):
            raise click.BadParameter(
                f"{setting!r}: write PROFILE.PARAM=VALUE, such as las.promote_knob=2", param_hint="--set"
            )
        if profile == name:
            chosen[parameter] = value
    try:
        parameters = parse_profile(name, chosen)
    except ValueError as e:
        raise click.BadParameter(str(e), param_hint="--set") from e
    try:
        build(name, parameters)  # tells of a profile that cannot be built before the first run
    except ValueError as e:
        raise click.ClickException(str(e)) from e
    return parameters


def _known_profiles(settings: Sequence[str], parameters: dict[str, ProfileParameters]) -> None:
    for setting in settings:
        profile = setting.partition("=")[0].rpartition(".")[0]
        if profile not in parameters:
            raise click.BadParameter(
                f"{setting!r}: profile {profile!r} is not part of this run; allowed: {', '.join(parameters)}",
                param_hint="--set",
            )


def _need_nodes(parameters: dict[str, ProfileParameters]) -> None:
    """Raises ValueError for a profile whose replicas are on no node, so that an autoscaler would never add one."""
    for name, each in parameters.items():
        if PLACES[each.place].totals_only:
            others = ", ".join(other for other, place in PLACES.items() if not place.totals_only)
            raise ValueError(
                f"{name}.place={each.place} uses no nodes, so that autoscaling adds none; allowed: {others}"
            )


def _run(specs: Sequence[RunSpec], processes: int | None, stop: Interrupt) -> list[RunResult]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        named = [(f"{spec.profile} seed {spec.inputs.seed}", len(spec.inputs.jobs)) for spec in specs]
        tasks = [bar.add_task(name, total=jobs, state="waiting", start=False) for name, jobs in named]

        def report(k: int, now: float, done: int, total: int) -> None:
            task = bar.tasks[k]
            if not task.started:
                bar.start_task(tasks[k])
            speed = f"{done / task.elapsed:,.0f} jobs/s" if task.elapsed else ""
            bar.update(
                tasks[k], completed=done, state=f"{done:,}/{total:,} jobs  {now / 86400:.1f} days simulated  {speed}"
            )

        return run_all(specs, report, processes, stop)


def _write_jobs(path: Path, outcomes: Sequence[RunResult]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for outcome in outcomes:
            writer.writerows(job_rows(outcome))
