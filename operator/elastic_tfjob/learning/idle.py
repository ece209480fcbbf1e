"""Lets a training wait while the jobs on its node need the CPU."""

import os
import time
from typing import Final

__all__ = ["node_is_busy", "wait_for_idle_cpu"]

CHECK_S: Final = 5.0


def node_is_busy() -> bool:
    """Whether more processes than the node has cores ran or wanted to run in the last minute. In a container, too, both
    numbers are the node's."""
    return os.getloadavg()[0] > (os.cpu_count() or 1)


def wait_for_idle_cpu(most_s: float) -> float:
    """Wait while the node is busy, for at most `most_s` seconds. Returns the seconds waited."""
    waited_s = 0.0
    while waited_s < most_s and node_is_busy():
        time.sleep(min(CHECK_S, most_s - waited_s))
        waited_s += CHECK_S
    return max(0.0, min(waited_s, most_s))
