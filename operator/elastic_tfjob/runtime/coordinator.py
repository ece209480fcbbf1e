"""A chief whose training would wait for ever is ended, so that its container is started again and goes on.

TensorFlow's ClusterCoordinator has a thread for each worker. Where a parameter server is lost while a worker is away (a
node that had both, for instance), that thread fails on a check of its own, "There is no inflight closures to
mark_failed", and nobody hears of the lost parameter server: `join()` never returns (seen with TensorFlow 2.21).
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from typing import Any

THREADS = "WorkerClosureProcessingLoop-"
"""What TensorFlow calls them."""
_FAILED = 1
"""As a program ends that does not catch the error of a lost parameter server."""


@functools.cache  # the hook of the first call would be called by the second one's
def end_with_its_threads() -> None:
    """From now on this process ends where one of those threads does by an error, which is printed as before. Other
    threads are none of its business. Once is enough."""
    before = threading.excepthook

    def hook(arguments: Any) -> None:
        before(arguments)
        thread = arguments.thread
        if thread is None or not thread.name.startswith(THREADS) or arguments.exc_type is SystemExit:
            return
        print(
            "elastic-tfjob: a parameter server was lost while a worker was away, of which TensorFlow's coordinator "
            "does not tell the program. It ends, to go on from its last checkpoint.",
            file=sys.stderr,
        )
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(_FAILED)

    threading.excepthook = hook
