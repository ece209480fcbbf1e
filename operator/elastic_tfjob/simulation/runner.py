"""Runs of several profiles and seeds, on all cores, that can be stopped and still give what is known."""

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.managers import SyncManager
from multiprocessing.synchronize import Event
from queue import Empty, Queue

from elastic_tfjob.scheduling.profiles import ProfileParameters, build
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import Node
from elastic_tfjob.simulation.costs import Costs, Noise
from elastic_tfjob.simulation.engine import Simulation
from elastic_tfjob.simulation.inference import InferencePool
from elastic_tfjob.simulation.node_changes import NodeChange
from elastic_tfjob.simulation.outcome import Outcome
from elastic_tfjob.simulation.speed_models.base import SpeedModel
from elastic_tfjob.simulation.workload import WorkloadJob

POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class RunSpec:
    """Everything one run needs; it can be sent to another process."""

    profile: str
    parameters: ProfileParameters
    seed: int
    jobs: Sequence[WorkloadJob]
    nodes: Sequence[Node]
    speed_model: SpeedModel
    costs: Costs = field(default_factory=Costs)
    noise: Noise = field(default_factory=Noise)
    inference: InferencePool | None = None
    node_changes: Sequence[NodeChange] = ()
    trace: bool = False


Progress = Callable[[int, float, int, int], None]
"""Called with the index of the run, the simulated time, jobs done and jobs in all."""


def uniform_cluster(nodes: int, gpus: int, cpus: float, memory_gib: float) -> list[Node]:
    """`nodes` equal nodes."""
    each = Resources(round(cpus * 1000), round(memory_gib * 1024**3), gpus)
    width = len(str(max(nodes - 1, 0)))
    return [Node(f"node-{i:0{width}}", each, each) for i in range(nodes)]


def run_one(spec: RunSpec, progress: Callable[[float, int, int], None] | None = None) -> Outcome:
    """One run; interrupted (KeyboardInterrupt, also out of `progress`) it returns what is known, marked partial."""
    simulation = Simulation(
        spec.jobs,
        spec.nodes,
        spec.speed_model,
        build(spec.profile, spec.parameters),
        costs=spec.costs,
        noise=spec.noise,
        inference=spec.inference,
        node_changes=spec.node_changes,
        seed=spec.seed,
        trace=spec.trace,
        progress=progress,
    )
    try:
        return simulation.run()
    except KeyboardInterrupt:
        return simulation.outcome


def run_all(specs: Sequence[RunSpec], progress: Progress, workers: int | None = None) -> list[Outcome]:
    """All runs, in the order given. On Ctrl-C those that run return what is known and the others do not begin."""
    workers = min(len(specs), workers or os.cpu_count() or 1)
    if workers <= 1:
        return _run_here(specs, progress)
    context = get_context("spawn")
    with SyncManager(ctx=context) as manager:
        stop: Event = manager.Event()  # type: ignore[assignment]
        reports: Queue[tuple[int, float, int, int]] = manager.Queue()
        with ProcessPoolExecutor(workers, context, _ignore_interrupts) as pool:
            futures = [pool.submit(_run_there, k, spec, stop, reports) for k, spec in enumerate(specs)]
            while not all(future.done() for future in futures):
                try:
                    progress(*reports.get(timeout=POLL_S))
                except Empty:
                    continue
                except KeyboardInterrupt:
                    stop.set()
                    for future in futures:
                        future.cancel()
            return [outcome for future in futures if (outcome := _result(future)) is not None]


def _run_here(specs: Sequence[RunSpec], progress: Progress) -> list[Outcome]:
    outcomes = []
    for k, spec in enumerate(specs):
        outcome = run_one(spec, lambda now, done, total, k=k: progress(k, now, done, total))  # type: ignore[misc]
        outcomes.append(outcome)
        if outcome.partial:
            break
    return outcomes


def _run_there(k: int, spec: RunSpec, stop: Event, reports: "Queue[tuple[int, float, int, int]]") -> Outcome | None:
    if stop.is_set():
        return None

    def report(now: float, done: int, total: int) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        reports.put((k, now, done, total))

    return run_one(spec, report)


def _result(future: "Future[Outcome | None]") -> Outcome | None:
    return None if future.cancelled() else future.result()


def _ignore_interrupts() -> None:
    """Ctrl-C reaches every process of the terminal; the parent alone acts on it and tells the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
