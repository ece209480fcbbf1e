"""The processes of one program, read from /proc: which of them get a signal, and their CPU priority.

The process that the launcher starts need not be the training program: `sh -c "cd x && python train.py"` starts that as
a child, and a shell does not forward a signal that ends it. Orphans become children of the launcher (a subreaper),
whatever their process group or session is.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from elastic_tfjob.runtime import protocol

PROC = Path("/proc")
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "busybox", "zsh", "ksh", "ksh93", "mksh"})


@dataclass(frozen=True)
class Process:
    """A process that has not ended. `started_ticks`: clock ticks between the machine's boot and the start of the
    process; it tells apart two processes that had the same id."""

    pid: int
    parent: int
    group: int
    started_ticks: int


def running() -> dict[int, Process]:
    """All visible processes by id, without zombies."""
    found = {}
    for name in os.listdir(PROC):
        if name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):  # the process has ended
                # The second field, a name in parentheses, may contain any character.
                fields = (PROC / name / "stat").read_bytes().rpartition(b") ")[2].split()
                if fields[0] not in (b"Z", b"X"):
                    pid = int(name)
                    found[pid] = Process(pid, int(fields[1]), int(fields[2]), int(fields[19]))
    return found


def of_program(pid: int, generation: int, others: Collection[int]) -> list[Process]:
    """The process `pid`, which this process started as a process group, and its descendants, parents first.

    An orphan (a child of this process) belongs to the program if it is in the program's group or, after it left the
    group, if its environment at its start names the generation. `others`: children of this process that belong to
    other programs.
    """
    found = running()
    mark = f"{protocol.GENERATION}={generation}".encode()
    own = [
        each
        for each in found.values()
        if each.parent == os.getpid()
        and each.pid not in {pid, *others}
        and (each.group == pid or mark in _environment(each.pid))
    ]
    return below(found, [found[pid], *own] if pid in found else own)


def below(found: dict[int, Process], roots: Iterable[Process]) -> list[Process]:
    """The roots and their descendants, each once, parents first."""
    children: dict[int, list[Process]] = {}
    for each in found.values():
        children.setdefault(each.parent, []).append(each)
    members = dict.fromkeys(roots)
    todo = list(members)
    for each in todo:  # the list grows meanwhile
        new = [child for child in children.get(each.pid, []) if child not in members]
        members.update(dict.fromkeys(new))
        todo += new
    return todo


def reached(members: Iterable[Process], roots: Collection[int], number: int) -> list[Process]:
    """The processes of a program to which a signal must be sent so that each process gets it once.

    These are the `roots`, and the children of a process that does not forward the signal: one that ignores it, or a
    shell, which waits for its command and runs its trap afterwards. A process that handles the signal is expected to
    end its own children. The children of a process that the signal ends become orphans, and are roots in the next call.

    A process that only reads another one's output (`| tee log`) ends after that one, and is left out until then.
    """
    members = list(members)
    fed = _fed(members)
    found = [each for each in members if each.pid in roots and each.pid not in fed]
    for each in found:  # the list grows meanwhile
        below = [child for child in members if child.parent == each.pid and child.pid not in fed]
        if below and not is_python(each.pid):
            if ignores(each.pid, number):
                found += below
            elif handles(each.pid, number) and _executable(each.pid) in _SHELLS:
                # A shell's background commands ignore these two signals, and its trap does not wait for them.
                found += [
                    child
                    for child in below
                    if not ignores(child.pid, signal.SIGINT) and not ignores(child.pid, signal.SIGQUIT)
                ]
    return found


def ignores(pid: int, number: int) -> bool:
    """Whether a process ignores a signal; true if it has ended."""
    return _has(pid, number, "SigIgn") is not False


def handles(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, or blocks it."""
    return bool(_has(pid, number, "SigCgt", "SigBlk"))


def is_python(pid: int) -> bool:
    """Whether a process runs a Python interpreter."""
    return _executable(pid).startswith(("python", "pypy"))


def _has(pid: int, number: int, *masks: str) -> bool | None:
    """Whether a signal is in one of a process's masks; None if the process has ended."""
    with contextlib.suppress(OSError, ValueError):
        lines = (line.partition(":") for line in (PROC / str(pid) / "status").read_text(errors="replace").splitlines())
        bits = [int(value, 16) for name, _, value in lines if name in masks]
        return any(each >> (number - 1) & 1 for each in bits)
    return None


def _executable(pid: int) -> str:
    try:
        return os.path.basename(os.readlink(PROC / str(pid) / "exe")).partition(" ")[0]
    except OSError:
        return ""


def _environment(pid: int) -> list[bytes]:
    try:
        return (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _fed(members: Iterable[Process]) -> set[int]:
    """The processes whose standard input is a pipe that another of these processes writes to."""
    reads: dict[int, str] = {}
    writers: dict[str, set[int]] = {}
    for each in members:
        for number in (0, 1, 2):
            with contextlib.suppress(OSError):
                file = os.readlink(PROC / str(each.pid) / "fd" / str(number))
                if file.startswith("pipe:") and number:
                    writers.setdefault(file, set()).add(each.pid)
                elif file.startswith("pipe:"):
                    reads[each.pid] = file
    return {pid for pid, file in reads.items() if writers.get(file, set()) - {pid}}


def cpu_s(pid: int) -> float | None:
    """CPU seconds used by a process and by the children that it has waited for; None if it has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = (PROC / str(pid) / "stat").read_bytes().rpartition(b") ")[2].split()
        return round(sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK"), 3)
    return None


# -- CPU priority of a prepared program --------------------------------------------------------------------------------
# The running program goes before the prepared one where both want the same core. Only what can be undone is done: a
# process that lowered its priority by `nice` may raise it again only with CAP_SYS_NICE or a high RLIMIT_NICE, which
# containers seldom have. Any process may enter the policy SCHED_BATCH and leave it again; the kernel then does not
# preempt others when the process wakes up. The effect of each is measured in docs/designs/rescale.md.

NICE_STEP = 5
"""Added to the nice value: the running program then gets three quarters of a core that both want."""
_CAP_SYS_NICE = 23
_THREAD_PASSES = 3


def lower_priority(pid: int) -> str:
    """Lower the priority of a process that has just been started and has one thread; its descendants inherit it.
    Returns how: `nice`, `batch`, or an empty text where neither is allowed."""
    with contextlib.suppress(OSError):
        if os.sched_getscheduler(0) != os.SCHED_OTHER:
            return ""
        os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))
        own = os.getpriority(os.PRIO_PROCESS, 0)
        if not may_raise_priority(own):
            return "batch"
        os.setpriority(os.PRIO_PROCESS, pid, min(own + NICE_STEP, 19))
        return "nice"
    return ""


def restore_priority(pid: int, how: str) -> bool:
    """Undo `lower_priority`, which returned `how`, for a process and its descendants. Returns whether all of them have
    this process's priority again. A priority that the program set for its own threads is kept."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    lowered = min(own + NICE_STEP, 19) if how == "nice" else own
    for _ in range(_THREAD_PASSES):  # a thread that was not listed yet may have started another one
        low = [each for each in threads(pid) if _is_low(each, own, lowered)]
        if not low:
            return True
        for each in low:
            with contextlib.suppress(OSError):
                os.sched_setscheduler(each, os.SCHED_OTHER, os.sched_param(0))
            with contextlib.suppress(OSError):
                if os.getpriority(os.PRIO_PROCESS, each) == lowered != own:
                    os.setpriority(os.PRIO_PROCESS, each, own)
    return not any(_is_low(each, own, lowered) for each in threads(pid))


def threads(pid: int) -> list[int]:
    """Thread ids of a process and of its descendants, as far as the kernel lists them."""
    found, todo = [], [pid]
    while todo:
        folder = PROC / str(todo.pop()) / "task"
        with contextlib.suppress(OSError):
            for thread in os.listdir(folder):
                found.append(int(thread))
                with contextlib.suppress(OSError):
                    todo += map(int, (folder / thread / "children").read_text().split())
    return found


def may_raise_priority(to: int) -> bool:
    """Whether this process may set the nice value of one of its own processes back to `to`."""
    if resource.getrlimit(resource.RLIMIT_NICE)[0] >= 20 - to:
        return True
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = (PROC / "self" / "status").read_text()
        return bool(int(status.partition("CapEff:")[2].split()[0], 16) >> _CAP_SYS_NICE & 1)
    return False


def _is_low(thread: int, own: int, lowered: int) -> bool:
    try:
        if os.sched_getscheduler(thread) == os.SCHED_BATCH:
            return True
        return os.getpriority(os.PRIO_PROCESS, thread) == lowered != own
    except OSError:  # the thread has ended
        return False
