"""Runs of a scenario on the kind cluster, under one operator after the other. Nothing is tried again: a job that fails
or does not end counts as what it is, and is named.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Final

from kubernetes.utils.quantity import parse_quantity
from rich.console import Console

from harness import cluster as kind
from harness import deploy, images, learning
from harness.api import Api, ApiError, Object, pods, tfjobs
from harness.cluster import Cluster
from harness.progress import Problem, step
from live.results import Job, Key, Run, Runs, plot, table, write
from live.scenario import Arrival, Scenario

__all__ = ["allocated_cores", "alone", "bench", "measure", "operator", "take_in", "warm"]

console = Console(width=None if Console().is_terminal else 150)
SAY_EVERY_S: Final = 15.0
BOUND_S: Final = 60.0
"""So long a job that is to start on a certain node may take until its pods are there."""
SEEN_S: Final = 1.0
"""Until an operator has seen a change of a node."""
TAINT: Final = {"key": "elastic-tfjob/bench", "effect": "NoSchedule"}


def bench(
    title: str,
    scenarios: Mapping[str, Scenario],
    operators: Sequence[str],
    times: int,
    *,
    runs: Runs,
    output: Path,
    save: Callable[[Path, Runs], None] = write,
    beside: Callable[[Cluster, str], AbstractContextManager[None]] = lambda *_: nullcontext(),
) -> None:
    """Measure all runs that `runs` does not have yet, `save` to `output` after each, print the table,
    and draw the plot beside it. An operator is installed once for all its runs, and `beside` is there meanwhile."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that it cleans up
    missing = [
        (name, mode, k)
        for mode in operators
        for k in range(1, times + 1)
        for name in scenarios
        if mode in scenarios[name].operators and (name, mode, k) not in runs.runs
    ]
    if missing:
        cluster = kind.ensure("scarce")
        trainer = images.trainer()
        cluster.load(trainer)
        warm(cluster, trainer)
        for mode in operators:
            if due := [(name, k) for name, each, k in missing if each == mode]:
                with operator(cluster, mode, _config(scenarios.values(), mode)), beside(cluster, mode):
                    for name, k in due:
                        _one(cluster, (name, mode, k), scenarios[name], runs)
                        save(output, runs)
    console.print(table(title, runs, list(scenarios), operators))
    output.with_suffix(".svg").write_text(plot(runs, list(scenarios), operators))
    console.print(f"written: {output}, {output.with_suffix('.svg')}")


def _config(scenarios: Iterable[Scenario], mode: str) -> dict[str, object]:
    """What the scenarios together say of an operator."""
    return {key: value for scenario in scenarios for key, value in scenario.config.get(mode, {}).items()}


def alone(cluster: Cluster, key: Key, scenario: Scenario, runs: Runs) -> None:
    """Measure how long jobs take alone where deadlines are parts of that, under the operator that runs now, and note it
    in `runs`. Exits where one does not finish."""
    name, mode, _ = key
    for job in scenario.needs_alone:
        if job.shape not in runs.alone:
            console.print(f"{name}: {job.shape}, alone, under {mode}")
            single = replace(scenario, jobs=(replace(job, at_s=0.0, deadline=None, max_worker=job.worker),))
            done = asyncio.run(measure(cluster, (f"{name}-alone", mode, 0), single, {}))
            if done.unfinished:
                sys.exit(f"{name}: alone, {job.name} has not finished, so its deadline is not known")
            runs.alone[job.shape] = done.jobs[job.name].jct_s


def _one(cluster: Cluster, key: Key, scenario: Scenario, runs: Runs) -> None:
    name, mode, number = key
    alone(cluster, key, scenario, runs)
    console.print(f"{name} under {mode}, run {number}: {scenario.title}")
    run = asyncio.run(measure(cluster, key, scenario, runs.alone))
    runs.add(run)
    met = "" if run.met is None else f", {run.met[0]} of {run.met[1]} in time"
    console.print(
        f"  mean JCT {run.jct_mean_s:.0f} s, max {run.jct_max_s:.0f} s, CPU used {run.utilisation:.0%}{met}"
        + (f"; not finished: {', '.join(run.unfinished)}" if run.unfinished else "")
    )


async def measure(cluster: Cluster, key: Key, scenario: Scenario, alone: Mapping[str, float]) -> Run:
    """Submit the scenario's jobs at their times and wait for their end, or for the time limit."""
    name, mode, number = key
    due = {arrival.name: arrival.due_s(alone) for arrival in scenario.jobs}
    async with Api(cluster.kubeconfig) as api, _namespace(api, f"bench-{name}-{mode}") as namespace:
        created: dict[str, float] = {}
        done: dict[str, float] = {}
        jobs = {arrival.name: Job(0.0, False, deadline_s=due[arrival.name]) for arrival in scenario.jobs}
        cluster.cap(1000 * scenario.period_ms)
        used, begin = cluster.cpu_seconds(), time.monotonic()

        workers, placing = cluster.workers(), asyncio.Lock()

        async def submit(arrival: Arrival) -> None:
            await asyncio.sleep(max(0.0, begin + arrival.at_s - time.monotonic()))
            manifest = arrival.manifest(namespace, due[arrival.name])
            if arrival.node is None:
                await _create(api, namespace, manifest)
                created[arrival.name] = time.monotonic()
                return
            async with placing, _only(api, workers, arrival.node):
                await _create(api, namespace, manifest)
                created[arrival.name] = time.monotonic()
                await _bound(api, namespace, manifest, workers[arrival.node])

        arrivals = [asyncio.create_task(submit(arrival)) for arrival in scenario.jobs]
        said = looked = begin
        allocated = 0.0
        while len(done) < len(jobs) and time.monotonic() - begin < scenario.limit_s:
            await asyncio.sleep(1.0)
            for task in arrivals:
                if task.done():
                    task.result()
            running, cores = await _look(api, namespace, jobs, done)
            now = time.monotonic()
            allocated, looked = allocated + cores * (now - looked), now
            if now - said > SAY_EVERY_S:
                said = now
                console.print(
                    f"  {name}, {mode}: {len(done)}/{len(jobs)} ended, {running} pods run, {said - begin:.0f} s"
                )
        for task in arrivals:
            task.cancel()
        end = max(done.values()) if len(done) == len(jobs) else time.monotonic()
        spent = cluster.cpu_seconds() - used
        if lifted := cluster.cap(1000 * scenario.period_ms):
            console.print(f"  {name}, {mode}: {', '.join(lifted)} lost the cap on CPU meanwhile: the run says little")
        for each, job in jobs.items():
            job.finished = each in done and not job.failed
            job.jct_s = round(done.get(each, end) - created.get(each, end), 1)
    return Run(
        name,
        mode,
        number,
        jobs,
        makespan_s=round(end - begin, 1),
        utilisation=round(spent / (cluster.allocatable_cores() * (end - begin)), 3),
        allocated_cpu_used=round(spent / allocated, 3) if allocated > 0 else None,
    )


async def _look(api: Api, namespace: str, jobs: dict[str, Job], done: dict[str, float]) -> tuple[int, float]:
    """Bring `jobs` and `done` up to date; the number of running pods, and the cores that they request."""
    now = time.monotonic()
    for item in (await api.items(tfjobs(namespace)))[0]:
        take_in(item, jobs, done, now)
    found = [item for item in (await api.items(pods(namespace)))[0] if item["status"].get("phase") == "Running"]
    running: dict[str, int] = {}
    for item in found:
        job = item["metadata"]["labels"]["training.kubeflow.org/job-name"]
        running[job] = running.get(job, 0) + 1
    for name, count in running.items():
        jobs[name].pods_seen = max(jobs[name].pods_seen, count)
    return len(found), sum(map(allocated_cores, found))


def take_in(item: Object, jobs: dict[str, Job], done: dict[str, float], now: float) -> None:
    """What a TFJob says of its end and its changes of size."""
    name = item["metadata"]["name"]
    state = json.loads(item["metadata"].get("annotations", {}).get("elastic.kubeflow.org/state", "{}"))
    jobs[name].rescales = state.get("rescales", 0)
    for condition in item.get("status", {}).get("conditions", ()):
        if condition["status"] == "True" and condition["type"] in ("Failed", "Succeeded"):
            done.setdefault(name, now)
            if condition["type"] == "Failed":
                jobs[name].failed = condition.get("message", "") or "failed"


def allocated_cores(pod: Object) -> float:
    """The CPU that a pod's containers request, as they are now."""
    asked = (each.get("resources", {}).get("requests", {}).get("cpu", "0") for each in pod["spec"]["containers"])
    return float(sum(parse_quantity(cpu) for cpu in asked))


@asynccontextmanager
async def _only(api: Api, workers: Sequence[str], index: int) -> AsyncIterator[None]:
    """New pods go to one of the workers: the others have a taint. They are not cordoned, since this operator moves jobs
    away from a cordoned node."""

    async def taint(name: str, taints: list[Object]) -> None:
        await api.merge(f"/api/v1/nodes/{name}", {"spec": {"taints": taints or None}})

    try:
        for k, name in enumerate(workers):
            await taint(name, [] if k == index else [TAINT])
        await asyncio.sleep(SEEN_S)
        yield
    finally:
        for name in workers:
            await taint(name, [])


async def _bound(api: Api, namespace: str, manifest: Object, node: str) -> None:
    """Wait until all pods of a job are bound to the node. Raises Problem if they are not in time, or elsewhere."""
    name, types = manifest["metadata"]["name"], manifest["spec"]["tfReplicaSpecs"]
    wanted, deadline = sum(each["replicas"] for each in types.values()), time.monotonic() + BOUND_S
    where: list[str] = []
    while len(where) < wanted and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
        found = (await api.items(pods(namespace), labelSelector=f"training.kubeflow.org/job-name={name}"))[0]
        where = [item["spec"]["nodeName"] for item in found if "nodeName" in item["spec"]]
    if where != [node] * wanted:
        raise Problem(f"{name} was to start with {wanted} pods on {node}; they are on {where} after {BOUND_S:.0f} s")


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


@contextmanager
def operator(cluster: Cluster, mode: str, config: Mapping[str, object] | None = None) -> Iterator[None]:
    """The operator of `mode` on the cluster, alone: the Go one, or this one with that profile and `config`."""
    if mode == "go":
        if cluster.kubectl("-n", deploy.NAMESPACE, "get", deploy.DEPLOYMENT, "--ignore-not-found").strip():
            cluster.kubectl("-n", deploy.NAMESPACE, "scale", deploy.DEPLOYMENT, "--replicas=0")
            cluster.kubectl("-n", deploy.NAMESPACE, "rollout", "status", deploy.DEPLOYMENT, "--timeout=120s")
        with deploy.go_operator(cluster):
            deploy.move_to_control_plane(cluster, deploy.GO_DEPLOYMENT)
            yield
        return
    components = ["loans"] if config and "pools" in config else []
    if mode == "dl2":
        learning.volume(cluster)
        components.append("learning")
    deploy.install(cluster, images.operator(), components)
    deploy.move_to_control_plane(cluster, deploy.DEPLOYMENT)
    deploy.configure(cluster, json.dumps({"profile": mode, **(config or {})}))
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
