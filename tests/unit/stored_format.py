"""What version 0.1.0 of the operator stores of a job, in each phase: tests/unit/data/stored-0.1.0.json.

PYTHONPATH=tests python -m unit.stored_format > tests/unit/data/stored-0.1.0.json

Before 0.1.0 is released this records it anew; from then on the file stays, as what every later version has to go on
from, and the next version gets one of its own.
"""

import json
from collections.abc import Callable
from typing import Any

from elastic_tfjob.api.annotations import OPERATOR_ANNOTATIONS, PREFIX
from elastic_tfjob.controller.job.decision import ReconcileSettings
from elastic_tfjob.controller.model.annotations import TARGET_ANNOTATION
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.scheduling.reasons import Reason

from .build import UID
from .pretend import ELASTIC, Cluster

SIZE = {"Chief": 1, "PS": 1, "Worker": 2}
_NODES = {"Chief": ("any",), "PS": ("any",), "Worker": ("any", "any")}


def _aim(job: Cluster, generation: int, replicas: dict[str, int], **more: Any) -> None:
    target = Target(generation, {**SIZE, **replicas} if replicas else {}, declared=SIZE, **{"reason": "wanted", **more})
    job.annotations[TARGET_ANNOTATION] = target.to_json(UID)


def _running(**said: str) -> Cluster:
    """A job that trains at its declared size."""
    annotations = {**ELASTIC, f"{PREFIX}total-steps": "100000", **{PREFIX + name: text for name, text in said.items()}}
    job = Cluster(annotations, dict(SIZE), ReconcileSettings(image="operator:1", wait_for_target=True))
    _aim(job, 0, SIZE, expects=9.5)
    job.run(6)
    return job


def _waiting() -> Cluster:
    job = Cluster(dict(ELASTIC), dict(SIZE), ReconcileSettings(image="operator:1", wait_for_target=True))
    _aim(job, 0, {}, reason=Reason("short", {"cpu": 400, "cpu_free": 100}), memory={"las.forgiven": 1.0})
    job.run(3)
    return job


def _preparing(rounds: int = 0) -> Cluster:
    job = _running()
    _aim(job, 1, {"Worker": 3}, cause="asked", cpu={"Worker": (100, 200, 200)})
    job.until("Preparing")
    job.run(rounds)
    return job


def _checkpointing() -> Cluster:
    job = _running()
    job.launchers["j-chief-0"].saves = "never"
    _aim(job, 1, {"Worker": 3})
    job.until("Checkpointing")
    job.run(2)
    return job


def _switching() -> Cluster:
    job = _running()
    _aim(job, 1, {"Worker": 3, "PS": 2})
    job.until("Switching")
    return job


def _rolling_back(rounds: int = 0) -> Cluster:
    job = _running()
    job.launchers["j-ps-0"].builds = False
    _aim(job, 1, {"Worker": 3})
    job.until("RollingBack")
    job.run(rounds)
    return job


def _recreating() -> Cluster:
    job = _running(rescale="recreate")
    _aim(job, 1, {"Worker": 3})
    job.until("Recreating")
    job.reconcile()
    return job


def _again() -> Cluster:
    """One that has changed its size twice, and whose speed was compared with what was expected."""
    job = _running()
    _aim(job, 1, {"Worker": 3}, cause="asked", expects=11.5)
    job.run(20)
    job.steps_per_s = 12.0
    job.run(20, seconds=10.0)
    _aim(job, 2, {"Worker": 1, "PS": 2})
    job.run(20)
    return job


def _moved(*, there: bool) -> Cluster:
    """One with a worker on its way to another node, or there."""
    job = _running()
    _aim(job, 1, SIZE, nodes={**_NODES, "Worker": ("any", "elsewhere")})
    job.run(30) if there else job.until("Preparing")
    return job


def _stopped(phase: str, saves: str, rounds: int) -> Cluster:
    """One that a plan stops: its checkpoint is being written, its pods end, or it waits."""
    job = _running()
    job.launchers["j-chief-0"].saves = saves
    _aim(job, 1, {}, reason="another one comes first", cause="preempt")
    job.until(phase)
    job.run(rounds)
    return job


SITUATIONS: dict[str, Callable[[], Cluster]] = {
    "stable": _running,
    "waiting": _waiting,
    "preparing": _preparing,
    "preparing, told": lambda: _preparing(2),
    "checkpointing": _checkpointing,
    "switching": _switching,
    "rolling back": _rolling_back,
    "refused": lambda: _rolling_back(20),
    "recreating": _recreating,
    "generation 2": _again,
    "moving": lambda: _moved(there=False),
    "moved": lambda: _moved(there=True),
    "saving": lambda: _stopped("Recreating", "never", 2),
    "ending": lambda: _stopped("Recreating", "well", 4),
    "stopped": lambda: _stopped("Waiting", "well", 0),
}


def stored(job: Cluster) -> dict[str, Any]:
    """The operator's own annotations of the job, and the commands of its pods."""
    own = {
        name: job.annotations[PREFIX + name]
        for name in sorted(OPERATOR_ANNOTATIONS)
        if PREFIX + name in job.annotations
    }
    return {**own, "commands": {name: pod.command for name, pod in sorted(job.pods.items()) if pod.command}}


if __name__ == "__main__":
    print(json.dumps({name: stored(make()) for name, make in SITUATIONS.items()}, indent=1))
