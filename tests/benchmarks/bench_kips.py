"""Benchmark: job completion times on a cluster whose CPU is real, beside the Go training-operator (make bench-kips).

A kind cluster of three workers that together offer the machine's cores less what the control plane needs (e2e/
kind-scarce.yaml), so that CPU limits make jobs wait for each other as on a full cluster. Jobs are TFJobs on parameter
servers that train handwritten digits with real TensorFlow. Each scenario is a list of jobs with arrival times, the same
manifests for each of

- go: the Go training-operator v1.8.1 and the default scheduler: replicas and CPU as declared, to the end;
- fixed: this operator under its profile `fixed`, which does as upstream does;
- kips: this operator under its profile `kips`: replicas of a job side by side, all or none of them, and workers, PS and
  CPU adjusted while they train.

Operators run beside the control plane, where they take nothing from the jobs. A job's completion time (JCT) runs from
its creation to its condition Succeeded, seen here. A job that is not finished after 15 minutes counts with the time it
has waited until then, which is a lower bound, and is named. CPU utilisation is what the pods of the workers
used (their cgroups, sidecars and what is gone included) over what the workers offer, from the first arrival to the end
of the last job.
"""

from __future__ import annotations

import asyncio
import json
import signal
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from harness import cluster as kind
from harness import deploy, images
from harness.api import Api, ApiError, Object, pods, tfjobs
from harness.cluster import Cluster
from harness.progress import step
from harness.training import training

console = Console(width=None if Console().is_terminal else 140)
SAY_EVERY_S = 15.0
MODES = ("go", "fixed", "kips")
CONFIG_MAP = "elastic-tfjob-operator"
TOLERANCE = 0.03
"""A scenario or job is a loser if it is slower than under Go by more than this."""
LIMIT_S = 900.0
BATCH = 2048
"""Images a step: so many that a step is work for the worker, not for the chief that hands it out."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job: seconds after the scenario's start, replicas by type, millicores of each, steps to train, bounds."""

    at_s: float
    name: str
    steps: int
    worker: int = 1
    ps: int = 1
    cpu_m: dict[str, int] = field(default_factory=dict)
    max_worker: int = 3

    def manifest(self, namespace: str) -> Object:
        bounds = {"min-workers": "1", "max-workers": str(self.max_worker), "total-steps": str(self.steps)}
        return training(
            self.name,
            replicas={"Chief": 1, "PS": self.ps, "Worker": self.worker},
            cpu_m=self.cpu_m,
            arguments=[f"--steps={self.steps}", f"--batch-size={BATCH}", "--report-every=50"],
            annotations=bounds,
            folder=f"{namespace}/{self.name}",
        )


@dataclass(frozen=True, slots=True)
class Scenario:
    title: str
    jobs: tuple[Arrival, ...]


_SMALL = {"Chief": 60, "PS": 60, "Worker": 60}
_MIDDLE = {"Chief": 50, "PS": 50, "Worker": 100}
# The small replicas fit anywhere, a worker only on a node of its own: chief and PSs, spread as the default scheduler
# spreads them, leave no node for the workers. Only where the Go operator happens to create the workers first (the order
# of types is random there) does the job start.
_BIG = {"Chief": 60, "PS": 60, "Worker": 450}

SCENARIOS = {
    "idle": Scenario(
        "small jobs on an idle cluster",
        tuple(Arrival(20.0 * i, f"idle-{i}", steps=500, cpu_m=_SMALL) for i in range(2)),
    ),
    "burst": Scenario(
        "eight jobs at once, more than fit",
        tuple(Arrival(1.0 * i, f"burst-{i}", steps=300, cpu_m=_MIDDLE) for i in range(8)),
    ),
    "deadlock": Scenario(
        "jobs whose small replicas, spread out, leave no node for their workers",
        tuple(Arrival(2.0 * i, f"big-{i}", steps=500, worker=2, ps=2, cpu_m=_BIG, max_worker=2) for i in range(2)),
    ),
    "mixed": Scenario(
        "short and long, small and large, over a minute",
        (
            Arrival(0, "long-small", steps=600, cpu_m=_SMALL),
            Arrival(5, "large", steps=800, worker=2, cpu_m=_MIDDLE),
            Arrival(20, "short-a", steps=200, cpu_m=_SMALL),
            Arrival(40, "short-b", steps=200, cpu_m=_SMALL),
            Arrival(60, "middle", steps=400, worker=2, cpu_m=_MIDDLE),
        ),
    ),
}


@dataclass(slots=True)
class Job:
    jct_s: float
    finished: bool
    pods_seen: int  # most pods that ran at once
    rescales: int = 0


@dataclass(slots=True)
class Run:
    """One scenario under one mode; seconds, and the share of the offered CPU that was used."""

    scenario: str
    mode: str
    jct_mean_s: float
    jct_max_s: float
    makespan_s: float
    utilisation: float
    jobs: dict[str, Job]

    @property
    def unfinished(self) -> list[str]:
        return [name for name, job in self.jobs.items() if not job.finished]


# -- one run


async def measure(cluster: Cluster, scenario: str, mode: str) -> Run:
    """Submit the scenario's jobs at their times and wait for their end, or for the time limit."""
    plan = SCENARIOS[scenario]
    async with Api(cluster.kubeconfig) as api, _namespace(api, f"kips-{scenario}-{mode}") as namespace:
        created: dict[str, float] = {}
        done: dict[str, float] = {}
        jobs = {arrival.name: Job(0.0, False, 0) for arrival in plan.jobs}
        used, begin = cluster.cpu_seconds(), time.monotonic()

        async def submit(arrival: Arrival) -> None:
            await asyncio.sleep(max(0.0, begin + arrival.at_s - time.monotonic()))
            await _create(api, namespace, arrival.manifest(namespace))
            created[arrival.name] = time.monotonic()

        arrivals = [asyncio.create_task(submit(arrival)) for arrival in plan.jobs]
        said = begin
        while len(done) < len(jobs) and time.monotonic() - begin < LIMIT_S:
            await asyncio.sleep(1.0)
            for task in arrivals:
                if task.done():
                    task.result()
            running = await _look(api, namespace, jobs, done)
            if time.monotonic() - said > SAY_EVERY_S:
                said = time.monotonic()
                console.print(
                    f"  {scenario}, {mode}: {len(done)}/{len(jobs)} finished, {running} pods run, {said - begin:.0f} s"
                )
        end = max(done.values()) if len(done) == len(jobs) else time.monotonic()
        spent = cluster.cpu_seconds() - used
        for name, job in jobs.items():
            job.finished = name in done
            job.jct_s = round(done.get(name, end) - created[name], 1)
    times = [job.jct_s for job in jobs.values()]
    utilisation = spent / (cluster.allocatable_cores() * (end - begin))
    return Run(
        scenario,
        mode,
        jct_mean_s=round(statistics.mean(times), 1),
        jct_max_s=max(times),
        makespan_s=round(end - begin, 1),
        utilisation=round(utilisation, 3),
        jobs=jobs,
    )


async def _look(api: Api, namespace: str, jobs: dict[str, Job], done: dict[str, float]) -> int:
    """Bring `jobs` and `done` up to date; the number of running pods."""
    now = time.monotonic()
    for item in (await api.items(tfjobs(namespace)))[0]:
        name = item["metadata"]["name"]
        state = json.loads(item["metadata"].get("annotations", {}).get("elastic.kubeflow.org/state", "{}"))
        jobs[name].rescales = state.get("rescales", 0)
        for condition in item.get("status", {}).get("conditions", ()):
            if condition["status"] == "True" and condition["type"] == "Failed":
                raise click.ClickException(f"{namespace}/{name} failed: {condition['message']}")
            if condition["status"] == "True" and condition["type"] == "Succeeded":
                done.setdefault(name, now)
    running: dict[str, int] = {}
    for item in (await api.items(pods(namespace)))[0]:
        if item["status"].get("phase") == "Running":
            job = item["metadata"]["labels"]["training.kubeflow.org/job-name"]
            running[job] = running.get(job, 0) + 1
    for name, count in running.items():
        jobs[name].pods_seen = max(jobs[name].pods_seen, count)
    return sum(running.values())


async def _create(api: Api, namespace: str, manifest: Object) -> None:
    """Create a job. The Go operator's webhook refuses until its certificate has spread."""
    deadline = time.monotonic() + 120
    while True:
        try:
            await api.create(tfjobs(namespace), manifest)
            return
        except ApiError as error:
            if "webhook" not in str(error) or time.monotonic() > deadline:
                raise
        await asyncio.sleep(1.0)


@asynccontextmanager
async def _namespace(api: Api, name: str) -> AsyncIterator[str]:
    """A namespace for one run, with a folder for its checkpoints; gone, with its pods, before the next begins."""
    name = f"{name}-{int(time.time()) % 100_000}"
    kind.shared_folder(name)
    await api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    try:
        yield name
    finally:
        # Pods first, and not graciously: servers that ignore SIGTERM would hold up the next run.
        for item in (await api.items(tfjobs(name)))[0]:
            await api.delete(f"{tfjobs(name)}/{item['metadata']['name']}")
        for item in (await api.items(pods(name)))[0]:
            try:
                await api.delete(f"{pods(name)}/{item['metadata']['name']}", grace_period_s=1)
            except ApiError as error:
                if error.status != 404:
                    raise
        await api.delete(f"/api/v1/namespaces/{name}")
        while (await api.items(pods(name)))[0]:
            await asyncio.sleep(1.0)


# -- operators


@contextmanager
def operator(cluster: Cluster, mode: str) -> Iterator[None]:
    """The operator of `mode` on the cluster, alone."""
    if mode == "go":
        if cluster.kubectl("-n", deploy.NAMESPACE, "get", deploy.DEPLOYMENT, "--ignore-not-found").strip():
            cluster.kubectl("-n", deploy.NAMESPACE, "scale", deploy.DEPLOYMENT, "--replicas=0")
            cluster.kubectl("-n", deploy.NAMESPACE, "rollout", "status", deploy.DEPLOYMENT, "--timeout=120s")
        with deploy.go_operator(cluster):
            deploy.move_to_control_plane(cluster, deploy.GO_DEPLOYMENT)
            yield
        return
    deploy.install(cluster, images.operator())
    deploy.move_to_control_plane(cluster, deploy.DEPLOYMENT)
    patch = json.dumps({"data": {"config.yaml": json.dumps({"profile": mode})}})
    cluster.kubectl("-n", deploy.NAMESPACE, "patch", "configmap", CONFIG_MAP, "--type=merge", "--patch", patch)
    yield


def warm(cluster: Cluster, image: str) -> None:
    """Each worker runs the image's TensorFlow once: else the first scenario alone pays for reading it from the disk."""
    starting = {f"warm-{node}": node for node in cluster.workers()}
    with step("importing TensorFlow once on each worker"):
        for pod, node in starting.items():
            where = json.dumps({"spec": {"nodeName": node}})
            run = ("run", pod, f"--image={image}", "--restart=Never", f"--overrides={where}", "--command", "--")
            cluster.kubectl(*run, "python", "-c", "import tensorflow")
        done = "--for=jsonpath={.status.phase}=Succeeded"
        cluster.kubectl("wait", done, "--timeout=300s", *(f"pod/{pod}" for pod in starting))
    cluster.kubectl("delete", "pod", *starting)


# -- what comes of it


def versus(run: Run, runs: dict[tuple[str, str], Run]) -> float | None:
    """Mean JCT against Go's in the same scenario: -0.4 is 40 % lower. None: Go was not measured."""
    go = runs.get((run.scenario, "go"))
    return run.jct_mean_s / go.jct_mean_s - 1 if go else None


def losers(run: Run, runs: dict[tuple[str, str], Run]) -> list[str]:
    """Jobs that take longer than under Go by more than the tolerance."""
    go = runs.get((run.scenario, "go"))
    if go is None or run.mode == "go":
        return []
    return [name for name, job in run.jobs.items() if job.jct_s > go.jobs[name].jct_s * (1 + TOLERANCE)]


def report(runs: dict[tuple[str, str], Run]) -> None:
    table = Table(title="Job completion times on three workers with real CPU", title_justify="left")
    for column in ("scenario", "mode", "JCT mean s", "vs go", "JCT max s", "makespan s", "CPU used", "vs go"):
        table.add_column(column, justify="left" if column in ("scenario", "mode") else "right")
    table.add_column("not finished; slower than under go")
    for name in SCENARIOS:
        for mode in MODES:
            if (run := runs.get((name, mode))) is None:
                continue
            change, go = versus(run, runs), runs.get((name, "go"))
            least = ">" if run.unfinished else ""
            remarks = [", ".join(run.unfinished)] if run.unfinished else []
            remarks += [f"slower: {', '.join(slow)}"] if (slow := losers(run, runs)) else []
            table.add_row(
                name,
                mode,
                f"{least}{run.jct_mean_s:.0f}",
                "" if change is None or mode == "go" else f"{change:+.0%}",
                f"{least}{run.jct_max_s:.0f}",
                f"{least}{run.makespan_s:.0f}",
                f"{run.utilisation:.0%}",
                "" if go is None or mode == "go" else f"{run.utilisation / go.utilisation - 1:+.0%}",
                "; ".join(remarks),
            )
        table.add_section()
    console.print(table)
    for mode in MODES[1:]:
        changes = [versus(runs[name, mode], runs) for name in SCENARIOS if (name, mode) in runs]
        known = [change for change in changes if change is not None]
        if len(known) == len(SCENARIOS):
            console.print(
                f"{mode}: mean JCT {statistics.mean(known):+.0%} over the scenarios, best {min(known):+.0%}, "
                f"worst {max(known):+.0%}"
            )


def read(output: Path) -> dict[tuple[str, str], Run]:
    """Runs of earlier calls, so that parts can be measured one by one."""
    if not output.exists():
        return {}
    runs = [
        Run(**{**raw, "jobs": {name: Job(**job) for name, job in raw["jobs"].items()}})
        for raw in json.loads(output.read_text())["runs"]
    ]
    return {(run.scenario, run.mode): run for run in runs}


def write(output: Path, runs: dict[tuple[str, str], Run]) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"runs": [asdict(run) for run in runs.values()]}, indent=1) + "\n")


def _some_of(allowed: tuple[str, ...]) -> click.types.ParamType[list[str]]:
    class Some(click.types.ParamType[list[str]]):
        name = "names"

        def convert(
            self, value: str | list[str], param: click.Parameter | None, ctx: click.Context | None
        ) -> list[str]:
            names = value.split(",") if isinstance(value, str) else value
            if unknown := [name for name in names if name not in allowed]:
                self.fail(f"unknown: {', '.join(unknown)}; choose from {', '.join(allowed)}", param, ctx)
            return names

    return Some()


@click.command()
@click.option("--scenarios", type=_some_of(tuple(SCENARIOS)), default=",".join(SCENARIOS), show_default=True)
@click.option("--modes", type=_some_of(MODES), default=",".join(MODES), show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/bench/kips.json"), show_default=True)
def main(*, scenarios: list[str], modes: list[str], output: Path) -> None:
    """Compare job completion times under the Go operator, and under this one with `fixed` and `kips`.

    Run it on an idle machine: the workers offer its cores, less what the control plane needs. All twelve runs take
    about 40 minutes. Results of earlier calls in --output are kept, so parts can be run one by one.

    \b
    Example:
      bench_kips.py --scenarios idle --modes go,kips
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that it cleans up
    runs = read(output)
    cluster = kind.ensure("scarce")
    trainer = images.trainer()
    cluster.load(trainer)
    warm(cluster, trainer)
    for mode in modes:
        with operator(cluster, mode):
            for scenario in scenarios:
                console.print(f"{scenario} under {mode}: {SCENARIOS[scenario].title}")
                run = asyncio.run(measure(cluster, scenario, mode))
                runs[scenario, mode] = run
                write(output, runs)
                console.print(
                    f"  mean JCT {run.jct_mean_s:.0f} s, max {run.jct_max_s:.0f} s, CPU used {run.utilisation:.0%}"
                    + (f"; not finished: {', '.join(run.unfinished)}" if run.unfinished else "")
                )
    report(runs)
    console.print(f"written: {output}")


if __name__ == "__main__":
    sys.exit(main())
