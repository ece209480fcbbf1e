"""The processes of one program, by /proc, and which of them a signal is sent to.

The process that the launcher starts need not be the program: `sh -c "cd x && python train.py"` starts that as a child,
and a shell that a signal ends passes nothing on. What it leaves behind becomes the launcher's child (a subreaper),
whatever its process group or session is.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from elastic_tfjob.runtime import protocol

PROC = Path("/proc")
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "busybox", "zsh", "ksh", "ksh93", "mksh"})


@dataclass(frozen=True)
class Process:
    """A process that has not ended. `started`: clock ticks since the machine's start, so that a number that is used
    again is another process."""

    pid: int
    parent: int
    group: int
    started: int


def running() -> dict[int, Process]:
    """All processes that this one sees, without those that have ended and wait for their parent, by number."""
    found = {}
    for name in os.listdir(PROC):
        if name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended
                # The second field, a name in parentheses, may hold anything.
                fields = (PROC / name / "stat").read_bytes().rpartition(b") ")[2].split()
                if fields[0] not in (b"Z", b"X"):
                    pid = int(name)
                    found[pid] = Process(pid, int(fields[1]), int(fields[2]), int(fields[19]))
    return found


def of_program(pid: int, generation: int, others: Collection[int]) -> list[Process]:
    """The process `pid`, which this one has started as a process group, and all that it has started, parents first.

    A child of this process (an orphan) belongs to it by its group or, where it has left that, by the generation in the
    environment that it was started with. `others` are children of this process that are known to be something else.
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
    """The roots and all that they have started, each once, parents first."""
    children: dict[int, list[Process]] = {}
    for each in found.values():
        children.setdefault(each.parent, []).append(each)
    members = dict.fromkeys(roots)
    todo = list(members)
    for each in todo:  # which grows
        new = [child for child in children.get(each.pid, []) if child not in members]
        members.update(dict.fromkeys(new))
        todo += new
    return todo


def reached(members: Iterable[Process], roots: Collection[int], number: int) -> list[Process]:
    """Which of a program's processes a signal is sent to, so that each gets it once: the `roots`, and what is behind a
    process that passes nothing on, that is one that ignores the signal, or a shell that waits for a command and runs
    its trap after that. What is behind a process that handles the signal is left to that one; what is behind a process
    that the signal ends loses its parent, and is a root when this is asked again.

    A process that only reads what another one writes (`| tee log`) ends after that one, and is left out till then.
    """
    members = list(members)
    fed = _fed(members)
    found = [each for each in members if each.pid in roots and each.pid not in fed]
    for each in found:  # which grows
        below = [child for child in members if child.parent == each.pid and child.pid not in fed]
        if below and not is_python(each.pid):
            if ignores(each.pid, number):
                found += below
            elif handles(each.pid, number) and _executable(each.pid) in _SHELLS:
                # What a shell starts in the background ignores these, and its trap does not wait for that.
                found += [
                    child
                    for child in below
                    if not ignores(child.pid, signal.SIGINT) and not ignores(child.pid, signal.SIGQUIT)
                ]
    return found


def ignores(pid: int, number: int) -> bool:
    """Whether a signal changes nothing in a process; true if it has ended."""
    return _has(pid, number, "SigIgn") is not False


def handles(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, or waits for it."""
    return bool(_has(pid, number, "SigCgt", "SigBlk"))


def is_python(pid: int) -> bool:
    """Whether a process runs a Python interpreter."""
    return _executable(pid).startswith(("python", "pypy"))


def _has(pid: int, number: int, *masks: str) -> bool | None:
    """Whether a signal is in one of a process's masks; None if it has ended."""
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
    """Those whose standard input is a pipe that another one writes its output to."""
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
