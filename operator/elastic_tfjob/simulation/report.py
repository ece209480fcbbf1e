"""The report page, one self-contained HTML file: summary table, JCT (job completion time) distributions, queue length
and utilisation over time, and a Gantt chart of the jobs on each node."""

import html
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np

from elastic_tfjob.scheduling.room import ANY_NODE
from elastic_tfjob.simulation.result import Compared, RunResult, Sample
from elastic_tfjob.simulation.runner import RunSpec
from elastic_tfjob.simulation.summary import Summary, most_at_a_time, over_time

CDF_POINTS = 300
TIME_BINS = 500
GANTT_INTERVALS = 12_000
"""The number of bars drawn per run; the longest ones are chosen. More bars would only slow the page down."""

Series = list[tuple[float, float]]


def write_report(
    path: Path, title: str, specs: Sequence[RunSpec], outcomes: Sequence[RunResult], summaries: Sequence[Summary]
) -> None:
    """Write the page. The same runs give the same bytes, because the page omits the CPU time that the runs took."""
    template = (files("elastic_tfjob.simulation") / "report.html").read_text()
    several = len({s.seed for s in summaries}) > 1
    runs = [
        run_data(spec, outcome, f"{outcome.profile} seed {outcome.seed}" if several else outcome.profile)
        for spec, outcome in zip(specs, outcomes, strict=False)
    ]
    data = json.dumps({"runs": runs}, separators=(",", ":")).replace("</", "<\\/")
    page = (
        template.replace("{{title}}", html.escape(title))
        .replace("{{table}}", table(summaries, [run["name"] for run in runs]))
        .replace("{{data}}", data)
    )
    path.write_text(page)


def run_data(spec: RunSpec, outcome: RunResult, name: str) -> dict[str, object]:
    """The data that the page draws for one run. Times are hours since the first submission."""
    first = outcome.first_s
    jcts = np.array(sorted(r.jct_s for r in outcome.records if r.jct_s is not None))
    cdf: Series = []
    if len(jcts):
        shares = np.linspace(0, 1, min(CDF_POINTS, len(jcts)))
        cdf = [(round(float(np.quantile(jcts, q)), 1), round(float(q), 4)) for q in shares]
    # With an autoscaler these are percentages of the largest cluster.
    accelerators = most_at_a_time(outcome.lives, lambda life: life.capacity.accelerators)
    accelerators = accelerators or outcome.accelerator_capacity or 1
    cpu = most_at_a_time(outcome.lives, lambda life: life.capacity.cpu_millicores)
    cpu = cpu or outcome.cpu_capacity_millicores or 1
    samples, end = outcome.samples, outcome.last_s
    nodes = [node.name for node in spec.inputs.nodes]
    if spec.inputs.inference is not None:
        nodes += [node.name for node in spec.inputs.inference.build()]
    nodes += [name for change in spec.inputs.node_changes if (name := change.name) not in nodes]
    nodes += [life.name for life in outcome.lives if life.name not in nodes]
    position = {node: i for i, node in enumerate(nodes)}
    placed = [i for i in outcome.intervals if i.node in position]
    longest = sorted(placed, key=lambda i: (i.start_s - i.end_s, i.node, i.start_s))[:GANTT_INTERVALS]
    return {
        "name": name,
        "cdf": cdf,
        "waiting": binned(samples, first, end, [float(s.waiting) for s in samples]),
        "running": binned(samples, first, end, [float(s.running) for s in samples]),
        "gpu": binned(samples, first, end, [100 * s.accelerators / accelerators for s in samples]),
        "cpu": binned(samples, first, end, [100 * s.cpu_millicores / cpu for s in samples]),
        "size": _steps([(hours(at - first), n) for at, n in over_time(outcome.lives)]),
        "calibration": errors_cdf(outcome.compared),
        "nodes": nodes,
        "gantt": [
            (position[i.node], hours(i.start_s - first), hours(i.end_s - first), i.key, i.replicas)
            for i in sorted(longest, key=lambda i: (i.node, i.start_s, i.key))
        ],
        "left_out": len(placed) - len(longest),
        "count_only": any(i.node == ANY_NODE for i in outcome.intervals),
    }


def errors_cdf(compared: Sequence[Compared]) -> Series:
    """The cumulative distribution of the error of the expected speed: (error in %, share of changes with at most this
    error). Errors above 100 % count as 100 %."""
    if not compared:
        return []
    errors = np.minimum(
        100 * np.abs([each.measured_steps_per_s / each.expected_steps_per_s - 1 for each in compared]), 100
    )
    shares = np.linspace(0, 1, min(CDF_POINTS, len(errors) + 1))
    return [(round(float(np.quantile(errors, q)), 3), round(float(q), 4)) for q in shares]


def _steps(counts: Sequence[tuple[float, int]]) -> Series:
    """The corners of a step function that begins at 0 and has these values from these times on."""
    befores = (0, *(n for _, n in counts))
    return [(at, float(value)) for before, (at, n) in zip(befores, counts, strict=False) for value in (before, n)]


def hours(seconds: float) -> float:
    return round(seconds / 3600, 4)


def binned(samples: Sequence[Sample], first_s: float, end_s: float, values: Sequence[float]) -> Series:
    """The time-weighted mean of a step function in each of TIME_BINS equal intervals."""
    if not samples or end_s <= first_s:
        return []
    edges = np.linspace(first_s, end_s, TIME_BINS + 1)
    times = np.array([s.time_s for s in samples] + [end_s])
    area = np.concatenate([[0.0], np.cumsum(np.array(values) * np.diff(times))])
    at_edges = np.interp(edges, times, area)
    means = np.diff(at_edges) / np.diff(edges)
    return [(hours(float(t - first_s)), round(float(v), 3)) for t, v in zip(edges[:-1], means, strict=True)]


def table(summaries: Sequence[Summary], names: Sequence[object]) -> str:
    """The summary table as HTML. Columns without a value in any run are omitted."""

    def seconds(value: float | None) -> str:
        return "–" if value is None else f"{value:,.0f}"

    def percent(value: float | None) -> str:
        return "–" if value is None else f"{100 * value:.1f}&nbsp;%"

    columns: dict[str, list[str]] = {
        "finished": [f"{s.finished:,} of {s.jobs:,}" for s in summaries],
        "JCT mean": [seconds(s.avg_jct_s) for s in summaries],
        "median": [seconds(s.median_jct_s) for s in summaries],
        "p99": [seconds(s.p99_jct_s) for s in summaries],
        "queue mean": [seconds(s.avg_queue_s) for s in summaries],
        "makespan": [seconds(s.makespan_s) for s in summaries],
        "GPU used": [percent(s.gpu_utilisation) for s in summaries],
        "CPU used": [percent(s.cpu_utilisation) for s in summaries],
        "deadlines met": [percent(s.deadline_met) for s in summaries],
        "forecast error": [percent(s.forecast_error) for s in summaries],
        "rescales": [f"{s.rescales:,}" for s in summaries],
        "preemptions": [f"{s.preemptions:,}" for s in summaries],
        "migrations": [f"{s.migrations:,}" for s in summaries],
        "rounds": [f"{s.rounds:,}" for s in summaries],
        "first step mean": [seconds(s.first_step_s) for s in summaries],
        "node-hours": [seconds(s.node_hours) for s in summaries],
        "cost": ["–" if s.cost is None else f"{s.cost:,.2f}" for s in summaries],
        "cost per job": ["–" if s.cost_per_job is None else f"{s.cost_per_job:,.3f}" for s in summaries],
        "steps lost": [seconds(s.lost_steps) for s in summaries],
        "memory kills": [seconds(s.memory_kills) for s in summaries],
        "memory raises": [seconds(s.memory_raises) for s in summaries],
    }
    columns = {name: cells for name, cells in columns.items() if set(cells) - {"–"}}
    lines = [
        "<thead><tr><th>profile</th>" + "".join(f"<th>{name}</th>" for name in columns) + "</tr></thead>",
        "<tbody>",
    ]
    for name, s, *cells in zip(names, summaries, *columns.values(), strict=True):
        notes = [note for note, said in (("oracle", s.oracle), ("partial", s.partial)) if said]
        marks = "".join(f" <small>{note}</small>" for note in notes)
        values = "".join(f"<td>{cell}</td>" for cell in cells)
        lines.append(f'<tr><th scope="row">{html.escape(str(name))}{marks}</th>{values}</tr>')
    return "\n".join([*lines, "</tbody>"])
