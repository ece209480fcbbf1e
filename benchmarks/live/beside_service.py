"""Runs of jobs beside a model server whose nodes may be lent, under one operator after the other.

A kind cluster of four workers (e2e/kind-loans.yaml): two for training, two of the pool `inference`. There a TensorFlow
model server (manifests/samples/inference.yaml) has as many replicas as a curve of requests asks for: the driver plays
the autoscaler. A load generator beside the control plane sends the requests of the curve, whoever answers (open loop).
Where nothing is lent, node selectors hold jobs to the nodes for training.

What is measured besides completion times is seen from outside, by watches of the API server, what programs print, and
the load generator (lending.py says what each figure is): only whether stops are told goes by the operator's own words,
its events. Nothing is tried again.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

import yaml
from rich.console import Console
from rich.table import Table

from harness import cluster as kind
from harness import deploy, images
from harness.api import Api, Object
from harness.background import background
from harness.cluster import Cluster
from harness.training import PREFIX
from live.lending import Figures, figures
from live.measure import alone, measure, operator, warm
from live.observe import observing
from live.results import Goals, Key, Run, Runs, judged, plot
from live.results import table as jct_table
from live.scenario import Arrival, Scenario, ScenarioError, parse
from live.service import NAMESPACE, Service, as_before, read_service, serving
from result_table import result_table

__all__ = [
    "How",
    "Results",
    "Scenarios",
    "compare",
    "placed",
    "read",
    "read_scenarios",
    "table",
    "write",
]

Scenarios = Mapping[str, tuple[Scenario, Service]]

REPORT_EVERY: Final = 5
"""Steps between a program's reports: what a stop costs is known to so many."""
console = Console(width=None if Console().is_terminal else 150)


@dataclass(frozen=True, slots=True)
class How:
    """`lending`: the operators under which nodes are lent. `killed_every_s`: those which are killed so often."""

    lending: Sequence[str]
    killed_every_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Placed(Arrival):
    """A job whose manifest says where it may run, by whether nodes are lent."""

    lends: bool = False

    def manifest(self, namespace: str, due_s: float | None = None) -> Object:
        made = Arrival.manifest(self, namespace, due_s)
        loanable = made["metadata"]["annotations"].get(f"{PREFIX}loanable") == "true"
        for replicas in made["spec"]["tfReplicaSpecs"].values():
            pod = replicas["template"]["spec"]
            if not self.lends:
                pod["nodeSelector"] = {f"{PREFIX}pool": "training"}
            elif loanable:
                pod["priorityClassName"] = "elastic-tfjob-loanable"
            for container in pod["containers"]:
                words = [word for word in container["command"] if not word.startswith("--report-every=")]
                container["command"] = [*words, f"--report-every={REPORT_EVERY}"]
        return made


def placed(scenario: Scenario, *, lends: bool) -> Scenario:
    """The scenario as an operator gets it."""
    jobs = [
        Placed(**{each.name: getattr(job, each.name) for each in fields(Arrival)}, lends=lends) for job in scenario.jobs
    ]
    return replace(scenario, jobs=tuple(jobs))


def read_scenarios(folder: Path) -> dict[str, tuple[Scenario, Service]]:
    """The files of a folder: jobs (scenario.py), and the service beside them. Raises ScenarioError."""
    found = {}
    for path in sorted(folder.glob("*.yaml")):
        raw = yaml.safe_load(path.read_text())
        if not isinstance(raw, dict):
            raise ScenarioError(f"{path}: an object is needed")
        service = read_service(raw.pop("service", None), str(path))
        found[path.stem] = parse(raw, str(path)), service
    return found


@dataclass(slots=True)
class Results:
    """All runs, and what was seen of loans and the service in each."""

    runs: Runs = field(default_factory=Runs)
    loans: dict[Key, Figures] = field(default_factory=dict)

    def add(self, run: Run, loans: Figures) -> None:
        self.runs.add(run)
        self.loans[run.scenario, run.operator, run.run] = loans

    def of(self, scenario: str, operator: str) -> list[Figures]:
        """In the order of the runs."""
        return [self.loans[key] for key in sorted(self.loans) if key[:2] == (scenario, operator)]

    def jct_mean_s(self, scenario: str, operator: str) -> float:
        found = self.runs.of(scenario, operator)
        return sum(run.jct_mean_s for run in found) / len(found)


def read(path: Path) -> Results:
    """What earlier calls measured; nothing where there is no file."""
    found = Results()
    raw = json.loads(path.read_text()) if path.exists() else {"runs": ()}
    found.runs.alone.update(raw.get("alone", {}))
    for each in raw["runs"]:
        found.add(Run.parse(each), Figures(**each["loans"]))
    return found


def write(path: Path, results: Results) -> None:
    """All of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = [
        {**results.runs.runs[key].as_dict(), "loans": asdict(results.loans[key])} for key in sorted(results.loans)
    ]
    path.write_text(json.dumps({"runs": rows, "alone": results.runs.alone}, indent=1) + "\n")


def table(results: Results, scenario: str, operators: Sequence[str]) -> Table:
    """A row for each operator, over its runs."""
    columns = (
        *("operator", "runs", "queue mean s", "JCT mean s", "lent s", "recalls", "longest s", "stops, untold"),
        *("lost at most s", "requests", "failed", "slow", "no replica", "p99 s", "longest without a node s"),
    )
    made = result_table(f"{scenario}: jobs, loans and the model server", columns)
    for mode in operators:
        if found := results.of(scenario, mode):
            lost = [each for run in found for each in run.lost_s if each is not None]
            recalls = [each for run in found for each in run.recall_s]
            latencies = [run.latency_p99_s for run in found if run.latency_p99_s is not None]
            made.add_row(
                mode,
                str(len(found)),
                f"{sum(run.queue_mean_s for run in found) / len(found):.0f}",
                f"{results.jct_mean_s(scenario, mode):.0f}",
                f"{sum(run.loaned_s for run in found) / len(found):.0f}",
                str(len(recalls)),
                f"{max(recalls):.1f}" if recalls else "",
                f"{sum(sum(run.preempted.values()) for run in found)}, {sum(run.untold for run in found)}",
                f"{max(lost):.0f}" if lost else "",
                str(sum(run.requests for run in found)),
                str(sum(run.failed for run in found)),
                str(sum(run.slow for run in found)),
                str(sum(run.unserved for run in found)),
                f"{max(latencies):.2f}" if latencies else "",
                f"{max(each for run in found for each in run.pending_s):.1f}"
                if any(r.pending_s for r in found)
                else "",
            )
    return made


def compare(
    scenarios: Scenarios,
    operators: Sequence[str],
    times: int,
    *,
    how: How,
    reached: Callable[[Results, str], Goals],
    output: Path,
) -> None:
    """Measure all runs that `output` does not have yet, write them to it after each, and print the tables. `reached`:
    the goals of a scenario, none where runs that they need are missing."""
    results = read(output)
    wanted = [(name, mode, k) for mode in operators for name in scenarios for k in range(1, times + 1)]
    if missing := [key for key in wanted if key not in results.loans]:
        _measure(scenarios, missing, how, results, output)
    console.print(jct_table("Completion times", results.runs, list(scenarios), operators))
    for name in scenarios:
        console.print(table(results, name, operators))
    output.with_suffix(".svg").write_text(plot(results.runs, list(scenarios), operators))
    console.print(f"written: {output}, {output.with_suffix('.svg')}")
    for name in scenarios:
        if goals := reached(results, name):
            console.print(judged(name, goals))


def _measure(scenarios: Scenarios, missing: Sequence[Key], how: How, results: Results, output: Path) -> None:
    """An operator is installed once for all its runs of a scenario."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that it cleans up
    cluster = kind.ensure("loans")
    trainer, image = images.trainer(), images.operator()
    cluster.load(trainer)
    cluster.load(image, everywhere=True)  # it has aiohttp, which the load generator needs
    warm(cluster, trainer)
    for name, mode in dict.fromkeys((name, mode) for name, mode, _ in missing):
        plain, service = scenarios[name]
        scenario = placed(plain, lends=mode in how.lending)
        what = scenario, service, how.killed_every_s.get(mode)
        with operator(cluster, mode, scenario.config.get(mode)):
            for key in (key for key in missing if key[:2] == (name, mode)):
                alone(cluster, key, placed(plain, lends=False), results.runs)
                console.print(f"{name} under {mode}, run {key[2]}: {scenario.title}")
                run, loans = asyncio.run(_one(cluster, key, what, image, results.runs.alone))
                results.add(run, loans)
                write(output, results)
                met = "" if run.met is None else f"{run.met[0]} of {run.met[1]} deadlines, "
                console.print(
                    f"  mean JCT {run.jct_mean_s:.0f} s, queue {loans.queue_mean_s:.0f} s, {met}"
                    f"recalls {loans.recall_s}, {loans.failed} of {loans.requests} requests failed"
                    + (f"; not finished: {', '.join(run.unfinished)}" if run.unfinished else "")
                )


async def _one(
    cluster: Cluster, key: Key, what: tuple[Scenario, Service, float | None], image: str, alone_s: Mapping[str, float]
) -> tuple[Run, Figures]:
    scenario, service, killed_every_s = what
    async with Api(cluster.kubeconfig) as api:
        await as_before(api)
        async with (
            observing(cluster, api, NAMESPACE) as seen,
            serving(cluster, api, service, image) as requests,
            background(_kill(cluster, killed_every_s)),
        ):
            run = await measure(cluster, key, scenario, alone_s)
    return run, figures(seen, requests, time.time())


async def _kill(cluster: Cluster, every_s: float | None) -> None:
    """Kill the operator's pod each `every_s` seconds from now on. None: leave it alone."""
    while every_s is not None:
        await asyncio.sleep(every_s)
        await asyncio.to_thread(deploy.kill_operator, cluster)
