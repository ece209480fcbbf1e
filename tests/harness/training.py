"""TFJobs that train for real, as manifests, and what their programs report."""

import bisect
import json
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from harness.cluster import Cluster
from harness.jobs import TRAINER, Jobs, Object

PREFIX = "elastic.kubeflow.org/"
CHECKPOINTS = "/checkpoints"
"""Where the nodes have the folder that they share (e2e/kind.yaml), and where the jobs see it."""

SERVER = """
import os
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
tf.distribute.Server(resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id).join()
"""
"""What TensorFlow's tutorial on parameter servers has workers and PS run. It has no handler of SIGTERM, so that as the
first process of a container it lives through its whole grace period."""


def training(
    name: str,
    *,
    replicas: Mapping[str, int],
    arguments: Sequence[str] = (),
    annotations: Mapping[str, str] | None = None,
    cpu_m: int | Mapping[str, int] | None = None,
    cpu_limits: bool = True,
    memory: str = "2Gi",
    folder: str = "",
    grace_s: int | None = None,
    servers: Sequence[str] | None = None,
    program: str = "digits.py",
) -> Object:
    """A TFJob of one of the example programs (trainer_images/digits).

    replicas: by type, such as {"Chief": 1, "PS": 1, "Worker": 2}. annotations: without their prefix.
    cpu_m: request and limit in millicores, of each replica or by type; None: 100m requested, no limit.
    cpu_limits: whether cpu_m is a limit, too; else replicas share what their node has, by their requests as weights.
    folder: of the shared checkpoint volume, below /checkpoints; empty: no volume and no checkpoints.
    program: its file. servers: the command of PS and workers, where it is not that program.
    """
    marks = {PREFIX + key: value for key, value in (annotations or {}).items()}
    if folder:
        marks.setdefault(f"{PREFIX}checkpoint-dir", f"{CHECKPOINTS}/{folder}")
    types = {}
    for kind, count in replicas.items():
        share = cpu_m if cpu_m is None or isinstance(cpu_m, int) else cpu_m[kind]
        own = servers is None or kind in ("Chief", "Master")
        container: Object = {
            "name": "tensorflow",
            "image": TRAINER,
            "command": ["python", f"/app/{program}", *arguments] if own else list(servers or ()),
            "resources": {
                "requests": {"cpu": f"{share or 100}m", "memory": "300Mi"},
                "limits": {"memory": memory, **({"cpu": f"{share}m"} if share and cpu_limits else {})},
            },
        }
        pod: Object = {"containers": [container]}
        if folder:
            # The launcher tells the program by the same variable; without it the program has to be told here.
            container["env"] = [{"name": "ELASTIC_TFJOB_CHECKPOINT_DIR", "value": f"{CHECKPOINTS}/{folder}"}]
            container["volumeMounts"] = [{"name": "checkpoints", "mountPath": CHECKPOINTS}]
            pod["volumes"] = [{"name": "checkpoints", "hostPath": {"path": CHECKPOINTS, "type": "Directory"}}]
        if grace_s is not None:
            pod["terminationGracePeriodSeconds"] = grace_s
        types[kind] = {"replicas": count, "restartPolicy": "OnFailure", "template": {"spec": pod}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": name, "annotations": marks},
        "spec": {"runPolicy": {"cleanPodPolicy": "Running"}, "tfReplicaSpecs": types},
    }


def said(jobs: Jobs, name: str, annotation: str) -> dict[str, Any]:
    """What the operator says of a job in one of its annotations, such as `state`; empty while it says nothing."""
    return _read(jobs.get("tfjob", name)["metadata"].get("annotations", {}), annotation)


def _read(annotations: Mapping[str, str], annotation: str) -> dict[str, Any]:
    text = annotations.get(f"{PREFIX}{annotation}")
    return dict(json.loads(text)) if text else {}


@dataclass(frozen=True, slots=True)
class Line:
    """One report of a training program. `at`: Unix time at which the node's container runtime took it."""

    at: float
    pod: str
    content: Mapping[str, Any]

    @property
    def step(self) -> int:
        return int(self.content["step"])

    @property
    def resumed_at(self) -> int:
        """The step that the program went on from when it started."""
        return int(self.content.get("resumed_at", 0))


class _Followed:
    """The lines of a command, which is begun anew when it ends; a context manager. A thread takes them."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._over = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._process is not None:
            self._process.kill()
        self._thread.join(timeout=5)

    def _take(self, text: str) -> None:
        """Called with each line."""
        raise NotImplementedError

    def _follow(self) -> None:
        while not self._over.is_set():
            with subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            ) as self._process:
                for text in self._process.stdout or ():
                    self._take(text)
            self._over.wait(0.5)


class Annotations(_Followed):
    """What the operator says of the TFJob `name` of a namespace in its annotations, followed by one watch; a context
    manager. A look costs nothing: each call of kubectl takes a quarter of a CPU-second from what is measured."""

    def __init__(self, cluster: Cluster, namespace: str, name: str) -> None:
        self._seen: dict[str, str] = {}
        super().__init__(
            cluster.command(
                f"--namespace={namespace}",
                "get",
                "tfjob",
                "--watch",
                f"--field-selector=metadata.name={name}",
                '--output=jsonpath={.metadata.annotations}{"\\n"}',
            )
        )

    def said(self, annotation: str) -> dict[str, Any]:
        """What one of them said last; empty while it says nothing."""
        return _read(self._seen, annotation)

    def _take(self, text: str) -> None:
        if text.startswith("{"):
            self._seen = json.loads(text)


class Lines(_Followed):
    """What the pod `pod` of a namespace reports, followed from one pod of that name to the next; a context manager.
    `beside`: the lines of another pod, to which this one's are added (a chief that moves goes to and fro between two).

    Seconds are the nodes' own, which on kind are those of this machine: no clock is compared with another.
    """

    def __init__(self, cluster: Cluster, namespace: str, pod: str, *, beside: "Lines | None" = None) -> None:
        self.seen: list[Line] = beside.seen if beside is not None else []
        self._pod, self._last = pod, 0.0
        super().__init__(
            cluster.command(
                f"--namespace={namespace}", "logs", "--follow", "--timestamps", "--container=tensorflow", pod
            )
        )

    @property
    def pod(self) -> str:
        """The pod that has reported last."""
        return self.seen[-1].pod if self.seen else self._pod

    def stop(self) -> None:
        """The pod is gone: what it has reported is read to its end, and no other of its name is waited for."""
        self._over.set()

    def after(self, moment: float) -> list[Line]:
        return [line for line in self.seen if line.at > moment]

    def last_step(self) -> int:
        """The newest step that was reported; -1: none yet."""
        return self.seen[-1].step if self.seen else -1

    def _take(self, text: str) -> None:
        stamp, _, rest = text.partition(" ")
        if not rest.startswith("{"):
            return
        try:
            content, at = json.loads(rest), unix(stamp)
        except ValueError:
            return
        # A stream that is attached anew begins with what was seen before.
        if "step" in content and at > self._last:
            self._last = at
            bisect.insort(self.seen, Line(at, self._pod, content), key=lambda line: line.at)


def unix(stamp: str) -> float:
    """Seconds since 1970 of an RFC 3339 time, whose fraction may have nine digits."""
    head, dot, fraction = stamp.removesuffix("Z").partition(".")
    return datetime.fromisoformat(f"{head}+00:00").timestamp() + float(f"0.{fraction}" if dot else 0)


def wait_for_step(lines: Lines, step: int, seconds: float) -> None:
    """Wait until a program has reported `step`."""
    deadline = time.monotonic() + seconds
    while lines.last_step() < step:
        if time.monotonic() > deadline:
            raise AssertionError(f"no step {step} after {seconds:.0f} s: the last was {lines.last_step()}")
        time.sleep(0.2)
