"""Benchmark: how long training stops when a running job changes its size (make bench-rescale).

Real kind cluster, real TensorFlow on parameter servers. One job trains without end and is changed again and again: one
worker more, one less, one PS more, one less. Modes:

- live, overlap, spare, recreate: this operator (profile `fixed`, a person asks by the annotation
  `target-workers`/`-ps`); with live, PS change by overlap; overlap-durable is overlap with `durable-switch`, whose
  values go through files;
- suspend-resume, delete-resubmit: what users do under the Go training-operator v1.8.1, at the API's speed: suspend,
  wait until the pods are gone, edit the replicas, resume; or delete, wait, submit anew. With the default grace period
  of 30 s, and with one of 3 s (`-grace3`). PS and workers run TensorFlow's tutorial server, which has no handler of
  SIGTERM; the chief saves when it gets one, so no step is lost. `-sigterm` has servers that end when they are told.

*Downtime* is from the last step before to the first step after, as the training program reports them: it prints a
line every few steps, and a line's time is when it was printed. *Lost* are steps trained twice. *Rate while* is
the rate from the request until the last step before, against that of the six seconds before the request. The rest of
the cost, such as `training_lost_s`, is defined in harness/rescale_cost.py.

With `--program` the job is one of a kind of training programs instead, and the operator chooses how to rescale it:
rescale_programs.py.

The three `processes-` modes need no cluster: pods are processes of this machine and commands are written at once.
`overlap-exec` has no forks; `restart` (all programs end, then all start with the new size) is today's ways without what
Kubernetes adds.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

import rescale_programs
from harness import cluster as kind
from harness import deploy, images
from harness.cluster import Cluster
from harness.jobs import Object, until
from harness.progress import CommandFailed
from harness.rescale_cost import Rescale, summary
from harness.training import PREFIX, SERVER, training
from rescale_processes import WAYS, measure_processes
from rescale_programs import KINDS
from result_table import result_table
from trainee import DIGITS, ENDLESS, NAME, UNEVALUATED, Trainee, followed, place, trains

T = TypeVar("T")
console = Console(width=None if Console().is_terminal else 140)
CONFIG_MAP = "elastic-tfjob-operator"
DURABLE = "-durable"
OURS = ("live", "overlap", f"overlap{DURABLE}", "spare", "recreate")
TODAY = (
    "suspend-resume",
    "delete-resubmit",
    "suspend-resume-grace3",
    "delete-resubmit-grace3",
    "suspend-resume-sigterm",
)
MODES = (*OURS, *TODAY, *WAYS)
PREPARES = (*OURS, *WAYS[:2])


@dataclass(frozen=True, slots=True)
class Model:
    """Arguments of the digits program, and the numbers of PS and workers that it changes between."""

    arguments: tuple[str, ...]
    ps: tuple[int, int]
    worker: tuple[int, int]
    memory: str


MODELS = {
    "digits": Model(DIGITS, (1, 2), (2, 3), "2Gi"),
    # 128 MB of variables, sharded over the PS
    "large": Model(("--report-every=1", UNEVALUATED, "--embedding-mb=128"), (2, 3), (2, 3), "3Gi"),
    # 1 GB of them; not measured unless asked for
    "huge": Model(("--report-every=1", UNEVALUATED, "--embedding-mb=1024"), (3, 4), (2, 3), "6Gi"),
}
PACED = ("--report-every=1", "--at-most=40")
"""Steps per second that leave the nodes CPU to spare. The others train as fast as the machine allows."""
MODELS |= {
    f"{name}-paced": Model((*MODELS[name].arguments, *PACED), MODELS[name].ps, MODELS[name].worker, MODELS[name].memory)
    for name in ("digits", "large")
}
USUAL = ("digits", "large")


# -- the subject


@dataclass(slots=True)
class Subject(Trainee):
    """The job that is changed, how, and its size."""

    model: Model
    mode: str
    size: dict[str, int]

    def manifest(self) -> Object:
        today = self.mode not in OURS
        bounds: dict[str, str] = {}
        if not today:
            bounds = {"rescale": self.mode.removesuffix(DURABLE)}
            if self.mode.endswith(DURABLE):
                bounds["durable-switch"] = "true"
            for key, (low, high) in (("ps", self.model.ps), ("workers", self.model.worker)):
                bounds |= {f"min-{key}": str(low), f"max-{key}": str(high)}
        ignore = today and not self.mode.endswith("-sigterm")
        return training(
            NAME,
            replicas={"Chief": 1, **self.size},
            arguments=(f"--steps={ENDLESS}", *self.model.arguments),
            annotations=bounds,
            folder=self.jobs.namespace,
            memory=self.model.memory,
            grace_s=3 if self.mode.endswith("-grace3") else None,
            servers=("python", "-c", SERVER) if ignore else None,
        )

    def submit(self) -> None:
        until(self._admitted, 120, lambda: "not admitted by the webhook")

    def _admitted(self) -> bool:
        try:
            self.jobs.apply(self.manifest())
        except CommandFailed as error:
            if "webhook" not in str(error):
                raise
            return False
        return True

    def patch(self, patch: Object) -> None:
        self.jobs.kubectl("patch", "tfjob", NAME, "--type=merge", "--patch", json.dumps(patch))

    def change(self, kind_of: str, count: int) -> None:
        """Ask for the new size as the mode does; returns when there is nothing more to ask."""
        self.size[kind_of] = count
        if self.mode in OURS:
            key = "workers" if kind_of == "Worker" else "ps"
            self.jobs.kubectl("annotate", "tfjob", NAME, f"{PREFIX}target-{key}={count}", "--overwrite")
        elif self.mode.startswith("suspend"):
            self.patch({"spec": {"runPolicy": {"suspend": True}}})
            self._until_no_pods()
            resized = {kind_of: {"replicas": count}}
            self.patch({"spec": {"runPolicy": {"suspend": False}, "tfReplicaSpecs": resized}})
        else:
            self.jobs.kubectl("delete", "tfjob", NAME)
            self._until_no_pods()
            self.submit()

    def _until_no_pods(self) -> None:
        until(lambda: not self.jobs.pods(NAME), 120, lambda: "pods do not go away")


def rescale(subject: Subject, kind_of: str, count: int) -> Rescale:
    """One change, from the request to the first steps after it."""
    before = subject.size[kind_of]
    return subject.measured(
        lambda: subject.change(kind_of, count),
        f"{kind_of} {before}->{count}",
        grows=count > before,
        follows=subject.mode in OURS,
        parts=subject.mode.startswith(("live", "overlap")),
    )


def measure(cluster: Cluster, mode: str, name: str, times: int, said: Callable[[Rescale], None]) -> list[Rescale]:
    """`times` changes each way, of workers and PS; each is told as soon as it is measured."""
    model = MODELS[name]
    changes = [("Worker", model.worker[1]), ("PS", model.ps[1]), ("Worker", model.worker[0]), ("PS", model.ps[0])]
    results: list[Rescale] = []
    with (
        place(cluster, f"rescale-{mode}-{name}") as (jobs, folder),
        followed(jobs) as (lines, annotations),
    ):
        subject = Subject(jobs, lines, annotations, model, mode, {"PS": model.ps[0], "Worker": model.worker[0]})
        subject.submit()
        trains(lines, folder)
        for kind_of, count in changes * times:
            results.append(rescale(subject, kind_of, count))
            said(results[-1])
    return results


@contextmanager
def operator(cluster: Cluster, mode: str, profile: str = "fixed") -> Iterator[None]:
    """The operator that `mode` needs, alone on the cluster; ours has this profile."""
    if mode in OURS:
        deploy.install(cluster, images.operator())
        deploy.wait_ready(cluster)
        patch = json.dumps({"data": {"config.yaml": json.dumps({"profile": profile})}})
        cluster.kubectl("-n", deploy.NAMESPACE, "patch", "configmap", CONFIG_MAP, "--type=merge", "--patch", patch)
        yield
        return
    if cluster.kubectl("-n", deploy.NAMESPACE, "get", deploy.DEPLOYMENT, "--ignore-not-found").strip():
        cluster.kubectl("-n", deploy.NAMESPACE, "scale", deploy.DEPLOYMENT, "--replicas=0")
        cluster.kubectl("-n", deploy.NAMESPACE, "rollout", "status", deploy.DEPLOYMENT, "--timeout=120s")
    with deploy.go_operator(cluster):
        yield


# -- what comes of it

Results = dict[str, dict[str, dict[str, Any]]]


def stored(output: Path) -> dict[str, Any]:
    """What has been measured so far: `modes`, by mode and model, and `programs`, by kind."""
    return {"modes": {}, "programs": {}} | (json.loads(output.read_text()) if output.exists() else {})


def merge(output: Path, keys: tuple[str, ...], result: dict[str, Any]) -> None:
    """Add to what earlier calls measured, under these keys, each within the one before."""
    found = place_in = stored(output)
    for key in keys[:-1]:
        place_in = place_in.setdefault(key, {})
    place_in[keys[-1]] = result
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(found, indent=1) + "\n")


def _median(result: dict[str, Any], key: str, digits: int = 1) -> str:
    return f"{result[key]['p50']:.{digits}f}" if key in result else ""


def _rows(result: dict[str, Any]) -> Iterator[tuple[str, bool, dict[str, Any]]]:
    """Each replica type, whether it grows, and what that costs."""
    for kind_of, of_kind in (result.get("kinds") or {"": result}).items():
        for name in ("grow", "shrink"):
            if name in of_kind:
                yield kind_of, name == "grow", of_kind[name]


def report(modes: Results, measured: dict[tuple[str, str], list[Rescale]]) -> None:
    columns = ("model", "mode", "change", "n", "p50 s", "p90 s", "program s", "steps lost")
    figures = ("prepare s", "CPU-s kept/added", "worst gap s", "training lost s", "rate while")
    table = result_table("Training stops for so long when a job changes its size", (*columns, *figures), words=3)
    for model in MODELS:
        for mode in modes:
            if (result := modes.get(mode, {}).get(model)) is None:
                continue
            for kind_of, grows, part in _rows(result):
                own = [each for each in measured.get((mode, model), []) if each.change.startswith(kind_of)]
                rates = [each.rate_while / each.rate_before for each in own if each.rate_before and each.grows is grows]
                table.add_row(
                    model,
                    mode,
                    f"{kind_of} {'more' if grows else 'less'}",
                    str(part["n"]),
                    f"{part['p50_s']:.2f}",
                    f"{part['p90_s']:.2f}",
                    _median(part.get("parts_s", {}), "program", 2),
                    str(part["lost_steps"]),
                    _median(part, "prepare_s"),
                    f"{_median(part, 'prepare_cpu_s')}/{_median(part, 'prepare_cpu_added_s')}".strip("/"),
                    _median(part, "worst_gap_s"),
                    _median(part, "training_lost_s"),
                    f"{statistics.median(rates):.0%}" if rates and mode in PREPARES else "",
                )
        table.add_section()
    console.print(table)
    for (mode, model), own in measured.items():
        parts: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for each in own:
            for name, seconds in each.parts_s.items():
                parts[each.change.partition(" ")[0]][name].append(seconds)
        for kind_of, of_kind in parts.items():
            medians = ", ".join(f"{name} {statistics.median(values):.2f} s" for name, values in of_kind.items())
            console.print(f"{mode}, {model}, {kind_of}: {medians} (medians)")


def one(
    output: Path,
    keys: tuple[str, ...],
    total: int,
    do: Callable[[Callable[[T], None]], object],
    summarised: Callable[[list[T]], dict[str, Any]],
) -> list[T]:
    """What `do` measures: each change is told and added to the file, under `keys`, as soon as it is there."""
    title, begin, done = ", ".join(keys[1:]), time.monotonic(), list[T]()

    def tell(each: T) -> None:
        done.append(each)
        merge(output, keys, summarised(done))
        console.print(f"  {title}: {len(done)}/{total}, {each}, {time.monotonic() - begin:.0f} s so far")

    console.print(f"{title} …")
    try:
        do(tell)
    except AssertionError as error:  # the others can be measured still
        console.print(f"  ✗ {error}")
    return done


def ready() -> Cluster:
    """The kind cluster, with the trainer's image."""
    cluster = kind.ensure()
    cluster.load(images.trainer())
    return cluster


def measure_programs(programs: list[str], rescales: int, output: Path) -> None:
    cluster = ready()
    for name in programs:
        total = rescales * len(KINDS[name].round())
        do = partial(rescale_programs.measure, cluster, name, rescales)
        with operator(cluster, OURS[0], KINDS[name].profile):
            one(output, ("programs", name), total, do, partial(rescale_programs.results, name))


def measure_modes(
    modes: list[str], models: list[str], rescales: int, output: Path
) -> dict[tuple[str, str], list[Rescale]]:
    """What this call has measured, by mode and model."""
    measured: dict[tuple[str, str], list[Rescale]] = {}

    def each(mode: str, model: str, times: int, do: Callable[[Callable[[Rescale], None]], object]) -> None:
        measured[mode, model] = one(output, ("modes", mode, model), 4 * times, do, summary)

    for way, name in itertools.product([mode for mode in modes if mode in WAYS], models):
        model = MODELS[name]
        sizes = {"worker": model.worker, "ps": model.ps}
        each(way, name, rescales, partial(measure_processes, way, model.arguments, sizes, rescales))
    cluster = None
    for family in (OURS, TODAY):
        wanted = [mode for mode in modes if mode in family]
        if not wanted:
            continue
        cluster = cluster or ready()
        with operator(cluster, wanted[0]):
            for mode, name in itertools.product(wanted, models):
                times = rescales if mode.startswith(("live", "overlap")) else max(1, rescales // 5)
                each(mode, name, times, partial(measure, cluster, mode, name, times))
    return measured


def _names(allowed: tuple[str, ...]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    def parse(_: click.Context, __: click.Parameter, value: str) -> list[str]:
        names = list(allowed) if value == "all" else [name for name in value.split(",") if name]
        if unknown := [name for name in names if name not in allowed]:
            raise click.BadParameter(f"unknown: {', '.join(unknown)}; choose from {', '.join(allowed)}")
        return names

    return parse


@click.command()
@click.option("--modes", default=",".join((*OURS, *TODAY)), show_default=True, callback=_names(MODES))
@click.option(
    "--models",
    default=",".join(USUAL),
    show_default=True,
    callback=_names(tuple(MODELS)),
    help=f"Of {', '.join(MODELS)}.",
)
@click.option(
    "--rescales",
    default=10,
    show_default=True,
    help="Changes each way, of workers and of PS (so four times as many) with overlap; the other modes, whose times "
    "hardly vary, get a fifth of them. Of programs: each way that there is.",
)
@click.option(
    "--program",
    "programs",
    default="",
    callback=_names(tuple(KINDS)),
    help=f"Kinds of training programs, instead of modes and models: of {', '.join(KINDS)}, or all.",
)
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/bench/rescale.json"), show_default=True)
def main(*, modes: list[str], models: list[str], rescales: int, programs: list[str], output: Path) -> None:
    """Measure how long training stops when a running TFJob gets more or fewer workers or parameter servers.

    Results of earlier calls in --output are kept, so parts can be run one by one. Run it on an idle machine.

    \b
    Example:
      bench_rescale.py --modes overlap --models digits --rescales 2
      bench_rescale.py --modes processes-overlap,processes-restart --models digits --rescales 2
      bench_rescale.py --program keras-3,monitored-session --rescales 2
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that it cleans up
    if programs:
        measure_programs(programs, rescales, output)
        console.print(rescale_programs.table(stored(output)["programs"]))
    else:
        measured = measure_modes(modes, models, rescales, output)
        report(stored(output)["modes"], measured)
    console.print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; written: {output}")


if __name__ == "__main__":
    sys.exit(main())
