"""CPU priority of a program that is prepared beside one that trains.

Of two processes that want the same core, the one that trains goes first. Only what can be undone is done: a process
that has lowered its priority by `nice` may raise it again only with CAP_SYS_NICE or a high RLIMIT_NICE, which
containers seldom have. Any process may take the policy SCHED_BATCH and leave it again: the kernel then does not
interrupt others for it when it wakes up. What the difference is: docs/designs/rescale.md.
"""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

NICER = 5
"""How much lower: the program that trains gets three quarters of a core that both want."""
_CAP_SYS_NICE = 23
_PASSES = 3


def lower(pid: int) -> str:
    """Lower the priority of a process that has been started just now, and has one thread: what it starts is of the
    same priority. Gives how: `nice`, `batch`, or nothing where neither is allowed."""
    with contextlib.suppress(OSError):
        if os.sched_getscheduler(0) != os.SCHED_OTHER:
            return ""
        os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))
        own = os.getpriority(os.PRIO_PROCESS, 0)
        if not _may_raise(own):
            return "batch"
        os.setpriority(os.PRIO_PROCESS, pid, min(own + NICER, 19))
        return "nice"
    return ""


def restore(pid: int, how: str) -> bool:
    """Undo what `lower` did, which gave `how`, to a process and all that it has started; whether nothing of it is left.
    A priority that the program has given threads of its own stays."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    lowered = min(own + NICER, 19) if how == "nice" else own
    for _ in range(_PASSES):  # a thread that was not seen yet may have begun another one
        low = [each for each in _threads(pid) if _is_low(each, own, lowered)]
        if not low:
            return True
        for each in low:
            with contextlib.suppress(OSError):
                os.sched_setscheduler(each, os.SCHED_OTHER, os.sched_param(0))
            with contextlib.suppress(OSError):
                if os.getpriority(os.PRIO_PROCESS, each) == lowered != own:
                    os.setpriority(os.PRIO_PROCESS, each, own)
    return not any(_is_low(each, own, lowered) for each in _threads(pid))


def _is_low(thread: int, own: int, lowered: int) -> bool:
    try:
        if os.sched_getscheduler(thread) == os.SCHED_BATCH:
            return True
        return os.getpriority(os.PRIO_PROCESS, thread) == lowered != own
    except OSError:  # it has ended
        return False


def _threads(pid: int) -> list[int]:
    """Of a process and of its descendants, as far as the kernel says who these are."""
    found, todo = [], [pid]
    while todo:
        folder = f"/proc/{todo.pop()}/task"
        with contextlib.suppress(OSError):
            for thread in os.listdir(folder):
                found.append(int(thread))
                with contextlib.suppress(OSError):
                    todo += map(int, Path(f"{folder}/{thread}/children").read_text().split())
    return found


def _may_raise(to: int) -> bool:
    """Whether this process may raise the priority of one of its own again."""
    if resource.getrlimit(resource.RLIMIT_NICE)[0] >= 20 - to:
        return True
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = Path("/proc/self/status").read_text()
        return bool(int(status.partition("CapEff:")[2].split()[0], 16) >> _CAP_SYS_NICE & 1)
    return False
