"""What a parameter server, or a worker beside them, runs: a TensorFlow server until the replica is ended."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from elastic_tfjob.runtime import preload, stderr_pipe
from elastic_tfjob.runtime.sigterm import Sigterm

CHIEF_S = 20.0
"""How long a server outlives its own SIGTERM for the chief's sake; less than the usual grace period of 30 s."""


def serve(cluster: Any, job_name: str, task_index: int, chief: str = "chief") -> None:
    """Start a `tf.distribute.Server` of `cluster` (a tf.train.ClusterSpec) and serve until SIGTERM. Does not return.

    When a whole job is ended, all its replicas get SIGTERM at once, and the chief still needs the variables for its
    last checkpoint: so a server goes on for as long as the chief's port is open, at most CHIEF_S, and then exits with
    143, as a program does that SIGTERM has ended.
    """
    import tensorflow as tf  # noqa: PLC0415

    sigterm = Sigterm()
    server = tf.distribute.Server(cluster, job_name=job_name, task_index=task_index)
    preload.tell()
    stderr_pipe.restore()
    print(f"{job_name} {task_index} serves at {server.target}", flush=True)
    # Looked up now and then, not at the end: a pod that is being deleted has no name any more.
    host, port = cluster.task_address(chief, 0).rsplit(":", 1)
    address = None
    while not sigterm.wait(1.0 if address is None else None):
        if address is None:
            address = _resolve(host, int(port))
    # As a replica that the operator replaces (another generation runs beside) there is no chief that saves: the
    # launcher ends this after a few seconds.
    until = time.monotonic() + CHIEF_S
    while address is not None and time.monotonic() < until and _open(address):
        time.sleep(0.1)
    os._exit(143)


def _resolve(host: str, port: int) -> Any:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        return None


def _open(address: Any) -> bool:
    family, kind, protocol, _, where = address
    with socket.socket(family, kind, protocol) as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(where) == 0
