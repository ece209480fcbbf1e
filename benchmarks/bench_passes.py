"""How long each step that grows with a job's replicas takes: those that hold the event loop, and those of the scheduler
that a thread does meanwhile.

    PYTHONPATH=tests python benchmarks/bench_passes.py

A pass holds the loop while it decides, and while one object is rendered; between objects the loop is free. Times are of
the CPU: what else the machine does counts little.
"""

import argparse
import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import orjson

from elastic_tfjob.controller.job.decision import Create, Decision, Observed, ReconcileSettings, SendCommand
from elastic_tfjob.controller.job.reconcile import reconcile
from elastic_tfjob.controller.kube.reports import Reports
from elastic_tfjob.controller.model.annotations import STATE_ANNOTATION, TARGET_ANNOTATION
from elastic_tfjob.controller.model.cluster import KubeNode
from elastic_tfjob.controller.model.command import abridged
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.owned_objects import Service
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.quantities import CpuAsked
from elastic_tfjob.controller.model.reports import Report
from elastic_tfjob.controller.model.settings import Configuration, StatusPolling
from elastic_tfjob.controller.model.state import Next, StoredState
from elastic_tfjob.controller.model.target import Counts, Target
from elastic_tfjob.controller.planning.job_view import view_of
from elastic_tfjob.controller.planning.round import assemble
from elastic_tfjob.controller.planning.targets import decide
from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.profiles import build
from elastic_tfjob.scheduling.resources import Resources
from unit.build import NOW, job, pod, replicas, services
from unit.pretend import COMMAND, ELASTIC

RUNS = 3


def observe(workers: int, generation: int | None, coming: int = 0) -> tuple[TFJob, tuple[Pod, ...]]:
    """A job and its running pods; of a generation that it was rescaled to, or (None) plain. `coming`: it is on its way
    to so many workers."""
    container = {"name": "tensorflow", "image": "t", "command": COMMAND, "resources": {"requests": {"cpu": "100m"}}}
    types = {
        "PS": replicas(1, "OnFailure", containers=[container]),
        "Worker": replicas(workers, "OnFailure", containers=[container]),
    }
    counts = {"PS": 1, "Worker": workers}
    annotations = {}
    if generation is not None:
        state = StoredState("Stable", generation, replicas=counts, nodes=nodes_of(counts), cpu=cpu_of(counts))
        target = Target(generation, counts, nodes_of(counts), cpu_of(counts), declared=counts)
        if coming:
            size = {"PS": 1, "Worker": coming}
            going = Next(generation + 1, 1, "overlap", size, counts, nodes_of(size), cpu_of(size), "more room")
            state = replace(state, phase="Preparing", next=going)
            target = Target(generation + 1, size, nodes_of(size), cpu_of(size), declared=counts)
        annotations = {**ELASTIC, STATE_ANNOTATION: state.to_json(), TARGET_ANNOTATION: target.to_json()}
    found = job(types, annotations=annotations, status={})
    pods = tuple(
        replace(
            pod(name, index),
            cpu=CpuAsked(110, 0),
            requests=Resources(110, pods=1),
            node=node,
            exporter=True,
            ip="10.0.0.1",
        )
        for name, nodes in nodes_of(counts).items()
        for index, node in enumerate(nodes)
    )
    return found, pods


def nodes_of(counts: Counts) -> dict[str, tuple[str, ...]]:
    """Where replicas are: a node has fifty."""
    return {name: tuple(f"node-{index // 50}.example.com" for index in range(count)) for name, count in counts.items()}


def cpu_of(counts: Counts) -> dict[str, tuple[int, ...]]:
    """What replicas were lent."""
    return {name: (110,) * count for name, count in counts.items()}


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """The shortest of some runs, in milliseconds, and the last result."""
    best = float("inf")
    for _ in range(RUNS):
        begun = time.thread_time()
        result = action()
        best = min(best, time.thread_time() - begun)
    return 1000 * best, result


def rendering(decision: Decision) -> tuple[float, float]:
    """Milliseconds to render what is to be created: the longest of one, and of all."""
    times = []
    for action in decision.actions:
        if isinstance(action, Create):
            begun = time.thread_time()
            action.body  # noqa: B018
            times.append(1000 * (time.thread_time() - begun))
    return max(times, default=0.0), sum(times)


def report_of(pod: Pod, generation: int = 3) -> Report:
    """What the launcher of a pod that trains says."""
    answer = {
        "at": 100.0,
        "generation": generation,
        "launcher": True,
        "modes": ["overlap", "spare"],
        "step": 100 + len(pod.name),
        "steps_per_s": 10.0,
        "first_step_at": 1.0,
        "last_step_at": 100.0,
        "cpu": {"at": 100.0, "usage_s": 90.0, "limit_cores": 1.0, "use_cores": 0.9},
    }
    return Report.parse(orjson.dumps(answer), 100.0)


def show(workers: int, where: str, what: str, took_ms: float, more: str = "") -> None:
    """One line."""
    print(f"{workers:5} workers, {where:6} {took_ms:7.1f} ms  {what}{more}", flush=True)


def passes(workers: int) -> None:
    """The passes of the reconcile loop."""
    settings = ReconcileSettings(image="operator:1")
    found, pods = observe(workers, None)
    seen = services({"PS": 1, "Worker": workers})
    took, first = timed(lambda: reconcile(Observed(found, NOW), settings))
    longest, everything = rendering(first)
    more = f", then {len(first.actions)} objects of {longest:.2f} ms at most, {everything:.0f} in all"
    show(workers, "loop", "first pass", took, more)
    took, _ = timed(lambda: reconcile(Observed(found, NOW, pods, seen), settings))
    show(workers, "loop", "idle pass of a plain job", took)
    reports = {each.name: report_of(each) for each in pods}
    for coming in (0, workers - 1):
        what = f"on the way to {coming}" if coming else "rescaled"
        rescaled, _ = observe(workers, 3, coming)
        look = partial(_look, rescaled, seen, reports, settings)
        took, decision = timed(partial(look, pods))
        show(workers, "loop", f"{what}, all to be told", took, f", {len(decision.actions)} actions")
        heard = pods
        while told := {each.name: each.command for each in decision.actions if isinstance(each, SendCommand)}:
            heard = tuple(
                replace(each, command=abridged(told[each.name])) if each.name in told else each for each in heard
            )
            decision = look(heard)
        took, decision = timed(partial(look, heard))
        show(workers, "loop", f"{what}, all told", took, f", {len(decision.actions)} actions")


def _look(
    found: TFJob,
    seen: tuple[Service, ...],
    reports: Mapping[str, Report],
    settings: ReconcileSettings,
    pods: tuple[Pod, ...],
) -> Decision:
    return reconcile(Observed(found, NOW, pods, seen, reports=reports), settings)


def scheduling(workers: int) -> None:
    """What the scheduler does for one job whose pods have changed."""
    found, pods = observe(workers, 3)
    reports = {each.name: report_of(each) for each in pods}
    nodes = {
        name: KubeNode(
            name, name, 1, Resources(64_000, 2**40, 0, pods=110), {"kubernetes.io/hostname": name}, (), ready=True
        )
        for names in nodes_of({"PS": 1, "Worker": workers}).values()
        for name in names
    }
    describe = partial(view_of, found, pods, nodes=nodes, now=NOW, reports=reports)
    took, first = timed(describe)
    show(workers, "thread", "its description", took)
    took, described = timed(partial(describe, before=first))
    show(workers, "thread", "its description once more", took)
    assert described.job is not None
    took, snapshot = timed(partial(assemble, [described], nodes, (), 200.0))
    show(workers, "thread", "the snapshot", took)
    profile = build("kips", Configuration(profile="kips").parameters)
    took, plan = timed(partial(schedule, snapshot, replace(profile, repack=False)))
    show(workers, "thread", "the plan", took)
    took, _ = timed(partial(decide, plan, {described.job.key: described}))
    show(workers, "thread", "its target", took)
    target = found.annotations[TARGET_ANNOTATION]
    read = Target.parse(target)
    assert read is not None
    took, _ = timed(read.to_json)
    show(workers, "loop", "a target written", took, f", {len(target)} bytes")


async def listening(workers: int) -> None:
    """What comes from pods."""
    _, pods = observe(workers, 3)
    raw = orjson.dumps({"at": 100.0, "generation": 3, "modes": ["overlap"], "step": 5})
    took, _ = timed(partial(Report.parse, raw, 100.0))
    show(workers, "loop", "one report read", took)
    reports = Reports(_nobody, lambda _: pods, lambda _: None, StatusPolling)
    took, _ = timed(partial(reports.pods_changed, ("ns", "j")))
    show(workers, "loop", "a change of one pod, for whom to ask", took)
    took, _ = timed(partial(reports.of_job, ("ns", "j")))
    show(workers, "loop", "all reports of the job", took)


async def _nobody(_: Pod) -> bytes:
    raise TimeoutError


def main() -> None:
    """Print a line for each step and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[200, 999, 1999])
    for workers in parser.parse_args().workers:
        passes(workers)
        scheduling(workers)
        asyncio.run(listening(workers))


if __name__ == "__main__":
    main()
