"""Ends a chief whose training would hang, so that its container restarts and training continues.

TensorFlow's ClusterCoordinator has a thread for each worker. If a parameter server is lost while a worker is away (a
node that had both, for instance), that thread fails on an assertion, "There is no inflight closures to mark_failed",
and the program never gets the error of the lost parameter server: `join()` never returns (seen with TensorFlow 2.21).
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from typing import Any

THREADS = "WorkerClosureProcessingLoop-"
"""TensorFlow's names of these threads begin with this."""
_FAILED = 1
"""The exit code of a program that does not catch the error of a lost parameter server."""


@functools.cache  # a second hook would call the first one
def end_with_coordinator_threads() -> None:
    """End this process when one of those threads ends with an error, which is printed as before. Other threads are not
    affected. Only the first call has an effect."""
    before = threading.excepthook

    def hook(arguments: Any) -> None:
        before(arguments)
        thread = arguments.thread
        if thread is None or not thread.name.startswith(THREADS) or arguments.exc_type is SystemExit:
            return
        print(
            "elastic-tfjob: a parameter server was lost while a worker was away, and TensorFlow's coordinator does not "
            "report that to the program. The program ends and restarts from its last checkpoint.",
            file=sys.stderr,
        )
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(_FAILED)

    threading.excepthook = hook
