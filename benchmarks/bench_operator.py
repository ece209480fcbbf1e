"""Benchmark: how soon TFJobs run, and what the operator costs, beside the Go training-operator (make bench-operator).

Every run has its own control plane (etcd, kube-apiserver, kube-controller-manager, kube-scheduler with its client
limits raised, all real) and fake KWOK nodes, so pods are scheduled and become Running but nothing trains. The benchmark
creates all TFJobs (1 PS + 2 workers) at once and watches. Times are taken here, when a watch event arrives, because
timestamps inside objects have a resolution of one second.

The *floor* is the same load with no operator: the benchmark itself creates the pods and services of each job. No
operator can be sooner than that on the same machine; what is left over it is the operator's own delay.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from harness import kwok, operators
from harness.api import CORE, Api, Object, pods, services, tfjobs
from harness.controlplane import ControlPlane

NAMESPACE = "default"
JOBS_PER_NAMESPACE = 100
"""kube-scheduler compares each pod with all Services of its namespace: 30,000 in one take it half an hour."""
NODES = 100
REPLICAS = {"ps": 1, "worker": 2}
PODS_PER_JOB = sum(REPLICAS.values())
SCHEDULER_QPS = 1000.0
# Without those that write two objects for every service and change of its pods: they serve kube-proxy, of which there
# is none, and where Kubernetes shares the machine with the operator they would be a large part of what is measured.
CONTROLLERS = "*,-endpoints-controller,-endpointslice-controller,-endpointslice-mirroring-controller"
# The control plane, not the operators, may trade memory for less garbage collection.
ENVIRONMENT = {"GOGC": "400", "GOMEMLIMIT": "6GiB"}
OPERATORS: dict[str, tuple[operators.Name, list[str]]] = {
    "ours": ("ours", []),
    "go": ("upstream", []),
    "go-8": ("upstream", ["--controller-threads=8"]),
    "go-unlimited": ("upstream", ["--controller-threads=8"]),
}
PROGRAMS = {"go-unlimited": "training-operator-unlimited"}
"""Those that are not the operator's own program."""
SAY_EVERY_S = 15.0  # where lines cannot be rewritten

# Columns must not be squeezed where the width is unknown (CI, a file).
console = Console(width=None if Console().is_terminal else 140)


@dataclass(slots=True)
class Run:
    """One operator under one load. Seconds, and MB of 10^6 bytes; see the table's caption for what each is.
    `requests`: of ours, by method, how many it made till all jobs ran."""

    operator: str
    jobs: int
    all_running_s: float
    p50_s: float
    p99_s: float
    cpu_s: float
    peak_rss_mb: float
    timed_out: bool = False  # then the times are lower bounds
    running: int = 0
    p99_by_stage_s: dict[str, float] = field(default_factory=dict)
    machine_cpu_s: dict[str, float] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Scale:
    """What a loaded operator costs when nothing happens, and how soon one decides again after kill -9."""

    jobs: int
    rss_mb: float
    events_cpu_percent: float  # of one core, in a minute after the load: up to 50 events a second are still written
    idle_cpu_percent: float = 0.0  # of one core, once it has started again and nothing happens
    restart_ready_s: float = 0.0  # start of the process to /readyz 200
    restart_new_job_s: float = 0.0  # start of the process to a job submitted meanwhile having its pods
    restart_peak_rss_mb: float = 0.0
    takeover_new_job_s: float = 0.0  # kill -9 of the leader to a job submitted then having its pods, made by a standby


@dataclass(slots=True)
class Large:
    """One job of many replicas. `other_job_s`: from the creation of a job of another namespace, submitted while the
    large one's pods are made, to its pods; `lag_s`: of the operator's looks at its own event loop, ten times a second,
    how many found it late by at most so many seconds, ours alone."""

    operator: str
    replicas: int
    all_pods_s: float  # creation to the last pod seen
    all_running_s: float
    other_job_s: float
    cpu_s: float
    peak_rss_mb: float
    timed_out: bool = False
    lag_s: dict[str, int] = field(default_factory=dict)


# -- what a process cost


def cpu_s(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int, line: str) -> float:
    """`VmHWM` (peak) or `VmRSS` (now) of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(row.split()[1]) for row in status.splitlines() if row.startswith(f"{line}:")) * 1024 / 1e6


# -- the load


def tfjob(name: str, namespace: str = NAMESPACE, workers: int = REPLICAS["worker"]) -> Object:
    replica = {"template": kwok.pod_template()}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "runPolicy": {"cleanPodPolicy": "None"},
            "tfReplicaSpecs": {
                "PS": {"replicas": REPLICAS["ps"], **replica},
                "Worker": {"replicas": workers, **replica},
            },
        },
    }


def _labels(job: str, kind: str, index: int) -> dict[str, str]:
    prefix = "training.kubeflow.org"
    return {f"{prefix}/job-name": job, f"{prefix}/replica-type": kind, f"{prefix}/replica-index": str(index)}


async def create_replicas(api: Api, namespace: str, job: str) -> None:
    """What an operator would create for a job: the floor's part."""
    for kind, count in REPLICAS.items():
        for index in range(count):
            labels = _labels(job, kind, index)
            meta = {"name": f"{job}-{kind}-{index}", "labels": labels}
            await api.create(pods(namespace), {"metadata": meta, **kwok.pod_template()})
            ports = [{"name": "tfjob-port", "port": 2222}]
            await api.create(
                services(namespace),
                {"metadata": meta, "spec": {"clusterIP": "None", "selector": labels, "ports": ports}},
            )


# -- what is seen


class Observer:
    """First times (of the monotonic clock) at which each job and pod was seen in each state."""

    def __init__(self) -> None:
        self.created: dict[str, float] = {}
        self.running: dict[str, float] = {}
        self.pod_job: dict[str, str] = {}
        self.pod_added: dict[str, float] = {}
        self.pod_bound: dict[str, float] = {}
        self.pod_running: dict[str, float] = {}
        self.worker_running: dict[str, float] = {}  # by job: its first worker

    def see_job(self, item: Object) -> None:
        name = item["metadata"]["name"]
        if name not in self.running:
            for condition in item.get("status", {}).get("conditions", ()):
                if condition["type"] == "Running" and condition["status"] == "True":
                    self.running[name] = time.monotonic()

    def see_pod(self, item: Object) -> None:
        now, name, labels = time.monotonic(), item["metadata"]["name"], item["metadata"].get("labels", {})
        job = labels.get("training.kubeflow.org/job-name")
        if job is None:
            return
        self.pod_job[name] = job
        self.pod_added.setdefault(name, now)
        if item["spec"].get("nodeName"):
            self.pod_bound.setdefault(name, now)
        if item.get("status", {}).get("phase") == "Running":
            self.pod_running.setdefault(name, now)
            if labels["training.kubeflow.org/replica-type"] == "worker":
                self.worker_running.setdefault(job, now)

    @contextlib.asynccontextmanager
    async def watching(self, api: Api) -> AsyncIterator[None]:
        async def follow(collection: str, see: Callable[[Object], None]) -> None:
            async for kind, item in api.watch(collection):
                if kind != "DELETED":
                    see(item)

        tasks = [
            asyncio.create_task(follow(tfjobs(), self.see_job)),
            asyncio.create_task(follow(pods(), self.see_pod)),
        ]
        try:
            yield
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()

    def stages(self) -> dict[str, float]:
        """p99 seconds of each step from a job's creation to its Running condition, in their order.

        pods: job created -> each of its pods seen (the operator); bound: -> on a node (kube-scheduler); started: ->
        phase Running (KWOK); status: the job's first worker Running -> its condition Running (the operator).
        """
        return {
            "pods": _p99([t - self.created[self.pod_job[p]] for p, t in self.pod_added.items()]),
            "bound": _p99([t - self.pod_added[p] for p, t in self.pod_bound.items()]),
            "started": _p99([t - self.pod_bound[p] for p, t in self.pod_running.items()]),
            "status": _p99([t - self.worker_running[j] for j, t in self.running.items() if j in self.worker_running]),
        }


def _p99(values: list[float]) -> float:
    return _percentile(values, 99)


def _percentile(values: list[float], percent: int) -> float:
    if len(values) < 2:
        return round(values[0], 3) if values else 0.0
    return round(statistics.quantiles(values, n=100, method="inclusive")[percent - 1], 3)


# -- progress


class Display:
    """A moving bar on a terminal; a line every so often elsewhere."""

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total = title, total
        self._said = self._begin = time.monotonic()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)

    def __enter__(self) -> Display:
        self._progress.start()
        self._task = self._progress.add_task(self.title, total=self.total, note="")
        if not console.is_terminal:
            console.print(f"{self.title} …")
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, done: int, note: str) -> None:
        self._progress.update(self._task, completed=done, note=note)
        now = time.monotonic()
        if not console.is_terminal and now - self._said >= SAY_EVERY_S:
            self._said = now
            console.print(f"  {self.title}: {done}/{self.total} Running, {note}, {now - self._begin:.0f} s")


# -- one run


@contextlib.asynccontextmanager
async def cluster(directory: Path, crd: operators.Name, jobs: int) -> AsyncIterator[tuple[ControlPlane, Api]]:
    """A fresh control plane with the operator's CRD and, on it, fake nodes that have room for so many jobs."""
    with ControlPlane(
        directory,
        scheduler=True,
        controller_manager=True,
        scheduler_qps=SCHEDULER_QPS,
        controllers=CONTROLLERS,
        environment=ENVIRONMENT,
    ) as plane:
        operators.install(crd, plane.kubeconfig)
        async with (
            Api(plane.kubeconfig) as api,
            kwok.nodes(api, plane.kubeconfig, directory, NODES, cpu=max(64, 2 * jobs * PODS_PER_JOB // NODES)),
        ):
            for i in range(-(-jobs // JOBS_PER_NAMESPACE)):
                await api.create(f"{CORE}/namespaces", {"metadata": {"name": f"load-{i}"}})
            yield plane, api


async def load(api: Api, jobs: int, observer: Observer, title: str, limit_s: float, *, floor: bool = False) -> float:
    """Create the jobs, wait until all are Running or the limit has passed; returns the seconds that took."""
    begin = time.monotonic()
    names = iter([(f"load-{i // JOBS_PER_NAMESPACE}", f"job-{i:05d}") for i in range(jobs)])
    submitted: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    done = observer.worker_running if floor else observer.running

    async def submit() -> None:
        for namespace, name in names:
            observer.created[name] = time.monotonic()
            await api.create(tfjobs(namespace), tfjob(name, namespace))
            submitted.put_nowait((namespace, name))

    async def operate() -> None:
        while True:
            await create_replicas(api, *await submitted.get())

    tasks = [asyncio.create_task(submit()) for _ in range(16)]
    if floor:
        tasks += [asyncio.create_task(operate()) for _ in range(16)]
    with Display(title, jobs) as display:
        while len(done) < jobs and time.monotonic() - begin < limit_s:
            await asyncio.sleep(0.25)
            display.show(len(done), f"{len(observer.pod_bound)}/{jobs * PODS_PER_JOB} pods bound")
            for task in tasks:
                if task.done():
                    task.result()
    for task in tasks:
        task.cancel()
    last = max(done.values(), default=begin) if len(done) == jobs else time.monotonic()
    return last - begin


def summary(name: str, jobs: int, took_s: float, observer: Observer, done: dict[str, float]) -> Run:
    """A Run without its costs. Jobs that never ran count with the time they had waited: a lower bound."""
    end = max([*done.values(), *observer.created.values()]) if len(done) == jobs else time.monotonic()
    waits = [done.get(job, end) - created for job, created in observer.created.items()]
    return Run(
        operator=name,
        jobs=jobs,
        all_running_s=round(took_s, 2),
        p50_s=_percentile(waits, 50),
        p99_s=_percentile(waits, 99),
        cpu_s=0.0,
        peak_rss_mb=0.0,
        timed_out=len(done) < jobs,
        running=len(done),
        p99_by_stage_s=observer.stages(),
    )


async def bench_floor(jobs: int, limit_s: float) -> Run:
    """The same objects with no operator at all."""
    with _directory() as directory:
        async with cluster(directory, "ours", jobs) as (plane, api):
            observer = Observer()
            before = machine(plane)
            async with observer.watching(api):
                took = await load(api, jobs, observer, f"floor, {jobs} jobs", limit_s, floor=True)
            run = summary("floor", jobs, took, observer, observer.worker_running)
            run.machine_cpu_s = spent(plane, before)
            return run


async def bench(name: str, jobs: int, limit_s: float, *, scale: bool = False) -> tuple[Run, Scale | None]:
    """One operator, one load; with `scale` also what follows once all jobs run."""
    program, arguments = OPERATORS[name]
    with _directory() as directory:
        async with cluster(directory, program, jobs) as (plane, api):
            with operators.start(
                program, plane.kubeconfig, directory, arguments=arguments, program=PROGRAMS.get(name)
            ) as operator:
                observer = Observer()
                before = machine(plane)
                async with observer.watching(api):
                    took = await load(api, jobs, observer, f"{name}, {jobs} jobs", limit_s)
                run = summary(name, jobs, took, observer, observer.running)
                run.cpu_s, run.peak_rss_mb = round(cpu_s(operator.pid), 1), round(memory_mb(operator.pid, "VmHWM"), 1)
                run.machine_cpu_s = spent(plane, before)
                run.requests = requests(operator.metrics()) if program == "ours" else {}
                if not scale:
                    return run, None
                rss, busy = await minute(operator.pid)
                operator.kill()
            measured = Scale(jobs, rss, busy)
            await measure_restart(api, plane.kubeconfig, directory, measured)
            return run, measured


async def bench_large(name: str, replicas: int, limit_s: float) -> Large:
    """One job of so many replicas, and a small one in another namespace as soon as a tenth of its pods is there."""
    with _directory() as directory:
        program, arguments = OPERATORS[name]
        async with cluster(directory, program, replicas) as (plane, api):
            other = PROGRAMS.get(name)
            with operators.start(program, plane.kubeconfig, directory, arguments=arguments, program=other) as operator:
                observer, waiting = Observer(), None
                async with observer.watching(api):
                    begin = asked = time.monotonic()
                    await api.create(tfjobs("load-0"), tfjob("large", "load-0", replicas - REPLICAS["ps"]))
                    with Display(f"{name}, one job of {replicas}", replicas) as display:
                        while len(observer.pod_running) < replicas + PODS_PER_JOB:
                            await asyncio.sleep(0.1)
                            if time.monotonic() - begin > limit_s:
                                break
                            display.show(len(observer.pod_running), f"{len(observer.pod_added)} pods made")
                            if waiting is None and len(observer.pod_added) > replicas // 10:
                                asked = time.monotonic()
                                waiting = await new_job(api, "other")
                added, running = (
                    {pod: at for pod, at in seen.items() if observer.pod_job[pod] == "large"}
                    for seen in (observer.pod_added, observer.pod_running)
                )
                return Large(
                    name,
                    replicas,
                    all_pods_s=round(max(added.values(), default=begin) - begin, 2),
                    all_running_s=round(max(running.values(), default=begin) - begin, 2),
                    other_job_s=round(waiting.result() - asked, 2)
                    if waiting is not None and waiting.done()
                    else limit_s,
                    cpu_s=round(cpu_s(operator.pid), 1),
                    peak_rss_mb=round(memory_mb(operator.pid, "VmHWM"), 1),
                    timed_out=len(running) < replicas,
                    lag_s=lag(operator.metrics()) if program == "ours" else {},
                )


def machine(plane: ControlPlane) -> Counter[str]:
    """CPU-seconds of each part of the control plane so far, and of this process, which loads and watches it."""
    return Counter({part: cpu_s(pid) for part, pid in plane.pids().items()} | {"benchmark": cpu_s(os.getpid())})


def spent(plane: ControlPlane, before: Counter[str]) -> dict[str, float]:
    """CPU-seconds of each part since then."""
    return {part: round(total - before[part], 1) for part, total in machine(plane).items()}


def requests(metrics: str) -> dict[str, int]:
    """By method, how many requests the API server has answered."""
    found: Counter[str] = Counter()
    for sample in samples(metrics, "elastic_tfjob_api_requests_total"):
        found[sample.labels["method"]] += int(sample.value)
    return dict(found)


def lag(metrics: str) -> dict[str, int]:
    """By seconds, how many looks found the operator's event loop late by at most so many."""
    return {each.labels["le"]: int(each.value) for each in samples(metrics, "elastic_tfjob_loop_lag_seconds_bucket")}


def samples(metrics: str, name: str) -> list[Sample]:
    """Those of that name of a Prometheus page."""
    return [each for family in text_string_to_metric_families(metrics) for each in family.samples if each.name == name]


async def minute(pid: int) -> tuple[float, float]:
    """Memory in MB, and per cent of a core over a minute in which no job changes."""
    with console.status("settling for 15 s, then a minute in which no job changes"):
        await asyncio.sleep(15)
        cpu, begin = cpu_s(pid), time.monotonic()
        await asyncio.sleep(60)
        return round(memory_mb(pid, "VmRSS"), 1), round(100 * (cpu_s(pid) - cpu) / (time.monotonic() - begin), 2)


async def measure_restart(api: Api, kubeconfig: Path, directory: Path, scale: Scale) -> None:
    """Start ours again after its kill -9, one new job waiting: seconds to ready, and to that job's pods. Then with a
    standby beside it: from the leader's kill -9 to the pods of a job that is new then."""
    elected = ["--leader-elect", f"--leader-election-namespace={NAMESPACE}"]
    with console.status("kill -9, start again, one new job"):
        waiting = await new_job(api, "after-restart")
        begin = time.monotonic()
        with await asyncio.to_thread(operators.start, "ours", kubeconfig, directory, arguments=elected) as leader:
            scale.restart_ready_s = round(time.monotonic() - begin, 2)
            scale.restart_new_job_s = round(await asyncio.wait_for(waiting, 300) - begin, 2)
            scale.restart_peak_rss_mb = round(memory_mb(leader.pid, "VmHWM"), 1)
            _, scale.idle_cpu_percent = await minute(leader.pid)
            other = directory / "standby"
            other.mkdir()
            with await asyncio.to_thread(operators.start, "ours", kubeconfig, other, arguments=elected):
                await asyncio.sleep(15)
                leader.kill()
                begin = time.monotonic()
                waiting = await new_job(api, "after-takeover")
                scale.takeover_new_job_s = round(await asyncio.wait_for(waiting, 300) - begin, 2)


async def new_job(api: Api, name: str) -> asyncio.Task[float]:
    """Create a job; when (on the monotonic clock) it has all its pods."""

    async def last_pod() -> float:
        seen: set[str] = set()
        async for _, pod in api.watch(pods(NAMESPACE), labelSelector=f"training.kubeflow.org/job-name={name}"):
            seen.add(pod["metadata"]["name"])
            if len(seen) == PODS_PER_JOB:
                break
        return time.monotonic()

    await api.create(tfjobs(NAMESPACE), tfjob(name))
    return asyncio.create_task(last_pod())


@contextlib.contextmanager
def _directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bench-operator-") as name:
        yield Path(name)


# -- the report


def sooner(run: Run, runs: list[Run]) -> str:
    """How many times sooner than Go with its defaults all jobs ran; a bound where Go ran out of time."""
    go = next((r for r in runs if r.operator == "go" and r.jobs == run.jobs), None)
    if go is None or run.operator.startswith("go") or run.timed_out:
        return ""
    return f"{'>' if go.timed_out else ''}{go.all_running_s / run.all_running_s:.1f}x"


def report(floors: list[Run], runs: list[Run], scale: list[Scale], large: list[Large]) -> None:
    if floors or runs:
        report_runs(floors, runs)
    if scale:
        report_scale(scale)
    if large:
        report_large(large)


def report_large(large: list[Large]) -> None:
    table = Table(
        title="One job of many replicas",
        caption="Other job: from the creation of a job of another namespace, while the large one's pods are made, to "
        "its pods. Late: how often the operator's event loop was late by more than 50 ms, of all looks at it.",
    )
    for column in ("replicas", "operator", "all pods s", "all run s", "other job s", "CPU s", "peak RSS MB", "late"):
        table.add_column(column, justify="left" if column == "operator" else "right")
    for row in large:
        total = row.lag_s.get("+Inf", 0)
        table.add_row(
            f"{row.replicas:,}",
            row.operator,
            *(f"{'>' if row.timed_out else ''}{seconds:.1f}" for seconds in (row.all_pods_s, row.all_running_s)),
            f"{row.other_job_s:.1f}",
            f"{row.cpu_s:.1f}",
            f"{row.peak_rss_mb:.0f}",
            f"{total - row.lag_s['0.05']} of {total}" if total else "",
        )
    console.print(table)


def report_runs(floors: list[Run], runs: list[Run]) -> None:
    table = Table(
        title="TFJobs (1 PS + 2 workers) on 100 KWOK nodes, created at once",
        caption="p50, p99: from a job's creation to its Running condition. CPU, RSS: of the operator's process, from "
        "its start. Last four: where p99 comes from: pods and status are the operator's, bound the scheduler's, "
        "started KWOK's. > is a lower bound: the run reached its time limit. floor: no operator, the benchmark "
        "creates the pods.",
    )
    for column in ("jobs", "operator", "all Running s", "sooner than go", "p50 s", "p99 s", "CPU s", "peak RSS MB"):
        table.add_column(column, justify="left" if column == "operator" else "right")
    stages = ("pods", "bound", "started", "status")
    for stage in stages:
        table.add_column(f"p99 {stage}", justify="right")
    for run in sorted([*floors, *runs], key=lambda r: (r.jobs, r.operator != "floor")):
        bound = ">" if run.timed_out else ""
        costs = ("", "") if run.operator == "floor" else (f"{run.cpu_s:.1f}", f"{run.peak_rss_mb:.0f}")
        table.add_row(
            f"{run.jobs:,}",
            run.operator + (f" ({run.running:,} Running)" if run.timed_out else ""),
            *(f"{bound}{seconds:.1f}" for seconds in (run.all_running_s,)),
            sooner(run, runs),
            *(f"{bound}{seconds:.1f}" for seconds in (run.p50_s, run.p99_s)),
            *costs,
            *(f"{run.p99_by_stage_s[stage]:.1f}" for stage in stages),
        )
    console.print(table)


def report_scale(scale: list[Scale]) -> None:
    table = Table(
        title="Ours, all jobs Running",
        caption="A new job has all its pods: seconds from the process's start, and from the leader's kill -9 where "
        "a standby takes over.",
    )
    for column in (
        "jobs",
        "RSS MB",
        "CPU % of a core while events are written",
        "idle CPU %",
        "ready after kill -9, s",
        "new job after kill -9, s",
        "peak RSS after it, MB",
        "new job, by a standby, s",
    ):
        table.add_column(column, justify="right")
    for row in scale:
        table.add_row(
            f"{row.jobs:,}",
            f"{row.rss_mb:.0f}",
            f"{row.events_cpu_percent:.1f}",
            f"{row.idle_cpu_percent:.2f}",
            f"{row.restart_ready_s:.1f}",
            f"{row.restart_new_job_s:.1f}",
            f"{row.restart_peak_rss_mb:.0f}",
            f"{row.takeover_new_job_s:.1f}",
        )
    console.print(table)


def write(output: Path, floors: list[Run], runs: list[Run], scale: list[Scale], large: list[Large]) -> None:
    """After every run, so that an interrupted benchmark leaves what it has measured."""
    output.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, Sequence[Run | Scale | Large]] = {
        "runs": runs,
        "floors": floors,
        "scale": scale,
        "large": large,
    }
    text = json.dumps({name: [asdict(row) for row in rows] for name, rows in results.items()}, indent=1)
    output.write_text(text + "\n")


# -- the command


def _numbers(_: click.Context, __: click.Parameter, value: str) -> list[int]:
    try:
        return [int(number) for number in value.replace("_", "").split(",") if number]
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not a list of whole numbers such as 500,2000") from error


def _names(_: click.Context, __: click.Parameter, value: str) -> list[str]:
    names = [name for name in value.split(",") if name]
    if unknown := [name for name in names if name not in OPERATORS]:
        raise click.BadParameter(f"unknown operator {', '.join(unknown)}: choose from {', '.join(OPERATORS)}")
    return names


@click.command()
@click.option(
    "--jobs", default="500,2000", show_default=True, callback=_numbers, help="Loads, in TFJobs; empty for none."
)
@click.option(
    "--operators",
    "names",
    default="ours,go,go-8,go-unlimited",
    show_default=True,
    callback=_names,
    help="ours; go: the Go training-operator v1.8.1 with its defaults; go-8: the same with --controller-threads 8; "
    "go-unlimited: go-8 without its client's limit of 20 requests a second.",
)
@click.option("--scale", default="10000", show_default=True, callback=_numbers, help="Loads for ours alone.")
@click.option("--replicas", default="1000", show_default=True, callback=_numbers, help="Sizes of one single job.")
@click.option("--floor/--no-floor", default=True, show_default=True, help="Also measure each load with no operator.")
@click.option("--limit", default=1200.0, show_default=True, help="Seconds after which a run of --jobs is given up.")
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/bench/operator.json"), show_default=True)
def main(
    *,
    jobs: list[int],
    names: list[str],
    scale: list[int],
    replicas: list[int],
    floor: bool,
    limit: float,
    output: Path,
) -> None:
    """Measure how soon TFJobs run and what the operator costs, beside the Go training-operator.

    Runs take turns, each on its own control plane with 100 fake nodes, so run it on an idle machine: all of Kubernetes
    shares the cores with the operator. The defaults take about 45 minutes on two cores, most of it the Go operator at
    2,000 jobs. Results go to --output after every run, and to a table at the end.

    \b
    Examples:
      bench_operator.py --jobs 500 --operators ours,go --scale '' --replicas ''     about 5 minutes
      bench_operator.py --jobs '' --scale '' --replicas 1000 --operators ours       one job of 1,000 replicas
      bench_operator.py --jobs '' --scale 10000 --replicas ''          ours with 10,000 jobs, 30,000 pods
    """
    floors: list[Run] = []
    runs: list[Run] = []
    scales: list[Scale] = []
    larges: list[Large] = []

    async def all_of_it() -> None:
        for count in jobs:
            if floor:
                floors.append(await bench_floor(count, limit))
            for name in names:
                runs.append((await bench(name, count, limit))[0])
                write(output, floors, runs, scales, larges)
        for count in scale:
            run, measured = await bench("ours", count, max(limit, count * 0.2), scale=True)
            runs.append(run)
            if measured:
                scales.append(measured)
            write(output, floors, runs, scales, larges)
        for name, count in itertools.product(names, replicas):
            larges.append(await bench_large(name, count, limit))
            write(output, floors, runs, scales, larges)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that its processes end with it
    asyncio.run(all_of_it())
    write(output, floors, runs, scales, larges)
    report(floors, runs, scales, larges)
    console.print(f"written: {output}")


if __name__ == "__main__":
    main()
