"""Processes that serve until SIGTERM: the TensorFlow server of a parameter server or worker, and the exporter.

Both import this file first, so it imports next to nothing.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import Any

CHIEF_S = 20.0
"""A server runs for at most this time after its own SIGTERM, for the chief's last checkpoint; less than the usual grace
period of 30 s."""


class Sigterm:
    """SIGTERM in a program with threads: it no longer ends the process, and `wait` reports it in any thread. To be
    constructed in the main thread.

    The kernel may deliver a signal to any thread, but Python runs the handler in the main thread only. A main thread
    that waits for a lock or a socket is not woken then, and the program seems to ignore the signal. The descriptor of
    `signal.set_wakeup_fd` is written to in whichever thread got the signal.
    """

    def __init__(self) -> None:
        self._read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.signal(signal.SIGTERM, lambda *_: None)  # Python writes only for signals that have a handler
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)

    def wait(self, seconds: float | None = None) -> bool:
        """Whether SIGTERM came within this time (None: no limit). May return False early, after another signal."""
        if not select.select([self._read_end], [], [], seconds)[0]:
            return False
        return signal.SIGTERM in os.read(self._read_end, 4096)


def serve(cluster: Any, job_name: str, task_index: int, chief: str = "chief") -> None:
    """Run a `tf.distribute.Server` until SIGTERM. Does not return.

    `cluster`: a tf.train.ClusterSpec. `job_name`, `task_index`: this replica in it. `chief`: the job name of the chief.

    When a whole job ends, all its replicas get SIGTERM at once, and the chief still needs the variables for its last
    checkpoint. So the server continues while the chief's port is open, at most CHIEF_S seconds, and then exits with
    143, like a program that SIGTERM has ended. Raises what TensorFlow raises if the server cannot be started.
    """
    import tensorflow as tf  # noqa: PLC0415

    from elastic_tfjob.runtime import preload, protocol, variable_server  # noqa: PLC0415

    sigterm = Sigterm()
    server = tf.distribute.Server(cluster, job_name=job_name, task_index=task_index)
    with contextlib.suppress(Exception):  # else values are handed over in files
        if job_name == "ps":
            variable_server.register()
    preload.report_imports()
    protocol.restore_stderr()
    print(f"{job_name} {task_index} serves at {server.target}", flush=True)
    serve_until_ended(sigterm, cluster.task_address(chief, 0))


def serve_until_ended(sigterm: Sigterm, chief: str) -> None:
    """Wait for SIGTERM, then as long as the chief's address is open, at most CHIEF_S seconds, and exit with 143."""
    # The address is resolved early: a pod that is being deleted has no name any more.
    host, port = chief.rsplit(":", 1)
    address = None
    while not sigterm.wait(1.0 if address is None else None):
        if address is None:
            address = _resolve(host, int(port))
    # Where this generation is replaced by another one, its chief does not save: the launcher ends this process after a
    # few seconds.
    until = time.monotonic() + CHIEF_S
    while address is not None and time.monotonic() < until and _open(address):
        time.sleep(0.1)
    os._exit(143)


def _resolve(host: str, port: int) -> Any:
    import socket  # noqa: PLC0415

    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        return None


def _open(address: Any) -> bool:
    import socket  # noqa: PLC0415

    family, kind, protocol, _, where = address
    with socket.socket(family, kind, protocol) as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(where) == 0
