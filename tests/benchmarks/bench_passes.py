"""How long one pass over a large job holds the event loop: its first, an idle one, and one of a job that was rescaled.

    PYTHONPATH=tests python tests/benchmarks/bench_passes.py

A pass holds the loop while it decides, and while one object is rendered; between objects the loop is free.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from elastic_tfjob.controller.decision import Create, Decision, Observed, Settings, Tell
from elastic_tfjob.controller.elastic import STATE_ANNOTATION, TARGET_ANNOTATION, State, Target
from elastic_tfjob.controller.observed import Job, Pod
from elastic_tfjob.controller.reconcile import reconcile
from unit.build import NOW, job, pod, replicas, services
from unit.pretend import COMMAND, ELASTIC

RUNS = 3


def observe(workers: int, generation: int | None) -> tuple[Job, tuple[Pod, ...]]:
    """A job and its running pods; of a generation that it was rescaled to, or (None) plain."""
    container = {"name": "tensorflow", "image": "t", "command": COMMAND, "resources": {"requests": {"cpu": "100m"}}}
    types = {
        "PS": replicas(1, "OnFailure", containers=[container]),
        "Worker": replicas(workers, "OnFailure", containers=[container]),
    }
    counts = {"PS": 1, "Worker": workers}
    annotations = {}
    if generation is not None:
        state = State("Stable", generation, replicas=counts)
        target = Target(generation, counts, declared=counts)
        annotations = {**ELASTIC, STATE_ANNOTATION: state.to_json(), TARGET_ANNOTATION: target.to_json()}
    found = job(types, annotations=annotations, status={})
    pods = tuple(replace(pod(name, index), cpu=(100, 0)) for name, count in counts.items() for index in range(count))
    return found, pods


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """The shortest of some runs, in milliseconds, and the last result."""
    best = float("inf")
    for _ in range(RUNS):
        begun = time.perf_counter()
        result = action()
        best = min(best, time.perf_counter() - begun)
    return 1000 * best, result


def rendering(decision: Decision) -> tuple[float, float]:
    """Milliseconds to render what is to be created: the longest of one, and of all."""
    times = []
    for action in decision.actions:
        if isinstance(action, Create):
            begun = time.perf_counter()
            action.body  # noqa: B018
            times.append(1000 * (time.perf_counter() - begun))
    return max(times, default=0.0), sum(times)


def main() -> None:
    """Print a line for each kind of pass and size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[200, 999, 1999])
    for workers in parser.parse_args().workers:
        settings = Settings(image="operator:1")
        found, pods = observe(workers, None)
        seen = services({"PS": 1, "Worker": workers})
        took, first = timed(lambda: reconcile(Observed(found, NOW), settings))  # noqa: B023
        longest, everything = rendering(first)
        made = len(first.actions)
        print(
            f"{workers} first pass: {took:.1f} ms, then {made} objects, each {longest:.2f} ms at most, {everything:.0f}"
        )
        took, _ = timed(lambda: reconcile(Observed(found, NOW, pods, seen), settings))  # noqa: B023
        print(f"{workers} idle pass: {took:.1f} ms")
        rescaled, _ = observe(workers, 3)
        took, decision = timed(lambda: reconcile(Observed(rescaled, NOW, pods, seen), settings))  # noqa: B023
        print(f"{workers} rescaled, all to be told: {took:.1f} ms, {len(decision.actions)} actions")
        heard = pods
        while told := {each.name: each.command for each in decision.actions if isinstance(each, Tell)}:
            heard = tuple(replace(each, command=told.get(each.name, each.command)) for each in heard)
            decision = reconcile(Observed(rescaled, NOW, heard, seen), settings)
        took, decision = timed(lambda: reconcile(Observed(rescaled, NOW, heard, seen), settings))  # noqa: B023
        print(f"{workers} rescaled, all told: {took:.1f} ms, {len(decision.actions)} actions")


if __name__ == "__main__":
    main()
