"""The programs of a pod: starting them, stopping them, and what an exit means.

One program runs, one may be prepared beside it, and replaced ones are stopping. Each is started as a process group of
its own. The started process may be a shell or another wrapper that starts the training program: see processes.py.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import select
import shutil
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from elastic_tfjob.runtime import processes, protocol
from elastic_tfjob.runtime.forkserver import OWN_STDERR, Forks
from elastic_tfjob.runtime.hook_detection import HookDetection
from elastic_tfjob.runtime.serving import CHIEF_S

ARCHIVE = str(Path(__file__).absolute().parents[2])
"""The path that holds the package `elastic_tfjob`: launcher.pyz, or a directory."""
DEVICES = Path("/dev")
EARLY_S = 60.0
"""A program that fails this soon may have failed because its packages were imported ahead."""
TERM_S = 5.0
"""Time between SIGTERM and SIGKILL for a program that is replaced."""
FORWARDED_S = 5.0
"""An orphan whose wrapper may have forwarded the signal gets it from the launcher after this time."""
CRASHES = frozenset(
    128 + number for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)
)
"""Exit codes of a crash in native code. TensorFlow 2.21 crashes at random, too: a prepared chief ended with SIGSEGV
(seen once)."""
_ENDS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2})
"""Signals that end a program without a handler; an image may name any of them as its stop signal."""
_KILL_PASSES = 5
_LAST_LINES, _LINE_BYTES, _QUOTED_CHARACTERS = 200, 2000, 600
_DRAIN_S = 1.0


# -- Standard error of a prepared program ------------------------------------------------------------------------------


class StderrPipe:
    """Standard error of a prepared program: a pipe to the container's log, which keeps the last lines.

    The running program writes directly to the container's log. A prepared one writes to a pipe; the launcher copies it,
    marks each line with the generation, and keeps the last lines. A program that takes over switches to the container's
    own standard error (`protocol.restore_stderr`); one that never does continues through the pipe. Raises OSError where
    no pipe can be made.
    """

    def __init__(self, generation: int) -> None:
        os.fstat(2)
        if resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= OWN_STDERR:
            raise OSError(f"the limit of open files must be above {OWN_STDERR}")
        self.environment = {protocol.STDERR: str(OWN_STDERR)}
        self._mark = f"[generation {generation}] ".encode()
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._busy = threading.Lock()
        self._read_end, self.write_end = os.pipe()
        self._thread = threading.Thread(target=self._copy, name="stderr", daemon=True)

    def begin(self) -> None:
        """Start copying. To be called once the program has the write end, or could not be started."""
        os.close(self.write_end)
        self._thread.start()

    def unmark(self) -> None:
        """Stop marking lines: the program takes over."""
        self._mark = b""

    def last(self) -> str:
        """The reason for the program's end in one line of at most 600 characters: the exception of the last traceback,
        else the last lines. To be called after the program has ended."""
        self.drain()
        lines = [line for line in list(self._lines) if line.strip()]
        tracebacks = [at for at, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
        if tracebacks:
            exception = [line for line in lines[tracebacks[-1] + 1 :] if not line.startswith((" ", "\t"))]
            if exception:
                return " ".join(exception)[:_QUOTED_CHARACTERS]
        return " | ".join(line.strip() for line in lines[-10:])[-_QUOTED_CHARACTERS:]

    def drain(self) -> None:
        """Wait until everything written so far has been copied, at most one second: the log may be stuck."""
        until, empty = time.monotonic() + _DRAIN_S, False
        while self._thread.is_alive() and time.monotonic() < until:
            # The program's descendants may hold the pipe open: an empty pipe is enough.
            if self._busy.acquire(timeout=_DRAIN_S):
                with contextlib.suppress(OSError, ValueError):  # closed: everything has been read
                    empty = not select.select([self._read_end], [], [], 0)[0]
                self._busy.release()
                if empty:
                    return
            time.sleep(0.005)

    def _copy(self) -> None:
        unfinished = b""  # a line without its end
        data = b"\n"
        while data:
            select.select([self._read_end], [], [])
            with self._busy:
                data = os.read(self._read_end, 1 << 16)
                self._write(data, line_begins=not unfinished)
                *lines, unfinished = (unfinished + data).split(b"\n")
                unfinished = unfinished[-_LINE_BYTES:]
                for line in lines if data else [unfinished]:
                    self._lines.append(line[-_LINE_BYTES:].decode(errors="replace"))
        os.close(self._read_end)

    def _write(self, data: bytes, *, line_begins: bool) -> None:
        mark = self._mark
        if mark and data:
            complete = data.endswith(b"\n")
            data = (mark if line_begins else b"") + (data[:-1] if complete else data).replace(b"\n", b"\n" + mark)
            data += b"\n" if complete else b""
        with contextlib.suppress(OSError):
            while data:
                data = data[os.write(2, data) :]


# -- The checkpoint that the operator asks for before it ends a pod ----------------------------------------------------
# The request is the same file as for a switch (save.json), so a program needs no code for it: it saves and waits. If a
# save fails, the program trains on and is asked again later; whether the pod ends without a checkpoint is the
# operator's decision.

RETRY_SAVE_S = 10.0
"""Time between a failed save and the next request."""
HOLD_S = 600.0
"""A program that has saved waits this long for the end of its pod. If no operator ends it, the program trains on for
the same time, and is asked again."""


class SaveBeforeStop:
    """`report` is what the exporter publishes: `request`, `state` (`saving`, `saved`, `refused`), `why`, `step`."""

    def __init__(self) -> None:
        self.report: dict[str, Any] | None = None
        self._id = ""
        self._soon = 0
        self._retry_at_s = 0.0
        self._saved_at_s = 0.0

    @property
    def is_saving(self) -> bool:
        """Whether the program has been asked and has not answered yet."""
        return self.report is not None and self.report["state"] == "saving"

    def update(self, folder: Path, request: int, now_s: float) -> None:
        """Ask the program of this folder to save, once for each `request`, and read its answer. `now_s`: monotonic
        time. Raises OSError if the request cannot be written."""
        report = self.report
        retry = report is not None and report["state"] == "refused" and now_s >= self._retry_at_s
        if report is None or report["request"] != request or retry:
            self._id = f"stop-{request}-{time.time_ns()}"
            protocol.write(folder / protocol.SAVE, {"id": self._id, "generation": request})
            self.report = _save_report(request, "saving")
        elif report["state"] == "saving":
            answer = protocol.read(folder / protocol.SAVED)
            if answer is None or answer.get("id") != self._id:
                return
            if answer.get("ok"):
                self.report = _save_report(request, "saved", step=answer.get("step"))
                self._saved_at_s = now_s
            else:
                self.withdraw(folder)
                self.report = _save_report(request, "refused", why=str(answer.get("why") or "failed"))
                self._retry_at_s = now_s + RETRY_SAVE_S
        elif report["state"] == "saved" and now_s - self._saved_at_s >= HOLD_S:
            self.withdraw(folder)
            why = f"the pod was not ended within {HOLD_S:.0f} s, so training continued"
            self.report = _save_report(request, "refused", why=why)
            self._retry_at_s = now_s + HOLD_S

    def train_on(self, folder: Path, request: int) -> None:
        """Withdraw a request to save and wait. With a new number in `request`, ask the program of this folder to save
        at its next step."""
        if self.report is not None:
            self.withdraw(folder)
        if request > self._soon:
            self._soon = request
            with contextlib.suppress(OSError):
                protocol.write(folder / protocol.SOON, {"request": request})

    def withdraw(self, folder: Path) -> None:
        """Remove the request, so that the program trains on."""
        self.report = None
        with contextlib.suppress(OSError):
            (folder / protocol.SAVE).unlink()


def _save_report(request: int, state: str, *, why: str = "", step: object = None) -> dict[str, Any]:
    return {"request": request, "state": state, "why": why, "step": step}


# -- Programs ----------------------------------------------------------------------------------------------------------


@dataclass
class Ending:
    """A program that has been told to end. `trainer`: the process that uses ElasticCheckpoint, 0 if unknown. `wraps`:
    the started process appears not to be the training process. `parents`: the parent of each process, by id and start.
    `signalled`: processes that got the signal, and whether each had a handler for it. `exited_at_s`: when the started
    process ended. `wait_until_s`: when the launcher stops waiting for remaining processes. Times: monotonic."""

    signal_number: int
    trainer: int
    wraps: bool
    parents: dict[tuple[int, int], int] = field(default_factory=dict)
    signalled: dict[int, bool] = field(default_factory=dict)
    exited_at_s: float | None = None
    wait_until_s: float = math.inf

    def may_be_forwarded(self, process: processes.Process) -> bool:
        """Whether an ancestor of a process got the signal and handles it, and so may have forwarded it."""
        parent_of = {pid: parent for (pid, _), parent in self.parents.items()}
        pid, ancestry = process.pid, []
        while pid in parent_of and pid not in ancestry:
            ancestry.append(pid)
            pid = parent_of[pid]
        return any(self.signalled.get(each, False) for each in ancestry[1:])


@dataclass
class Child:
    """A program. `generation`: the one that it runs, or is prepared for; `started_as`: the one that it was started for,
    whose folder it has (they differ after a switch in mode `live`). `state`: starting, ready (waits in resume(),
    listens, or waits as a spare), running or failed; `why` explains a failure. Times by time.monotonic()."""

    generation: int
    tf_config: str | None
    mode: str = "overlap"
    pid: int = 0
    has_program: bool = True  # False: a spare that has not been given the user's program
    state: str = "starting"
    why: str = ""
    started_at_s: float = 0.0
    kill_at_s: float | None = None
    exited: bool = False  # the started process has ended
    forked: bool = False
    checks_fork: bool = False  # started as a process of its own because its fork had ended early
    lowered_by: str = ""  # how its priority was lowered while it is prepared
    stderr: StderrPipe | None = None
    hook: HookDetection | None = None
    ending: Ending | None = None
    started_as: int = -1
    before: str = ""  # the folder of the program whose values it may take in memory
    takes_values: bool = False  # it is ready for that
    checkpoint: int | None = None  # the step of the newest one that it saw while it was prepared
    old_chief: dict[str, Any] = field(default_factory=dict)  # how far the chief came in another pod

    def __post_init__(self) -> None:
        self.started_as = self.generation

    @property
    def task(self) -> protocol.Task:
        return protocol.Task.of(self.tf_config)


def opening(child: Child, given: dict[str, Any] | None = None) -> dict[str, Any]:
    """The content of `go.json`. `given`: what the program before gives in memory."""
    return {"generation": child.generation, "at": time.time(), "hand_over": given, "old_chief": child.old_chief}


class Programs:
    """Starts and stops the programs of a pod. `command`: the user's command line. `directory`: the pod's shared
    directory. `log`: writes a line to the launcher's log."""

    def __init__(self, command: Sequence[str], directory: Path, log: Callable[[str], None]) -> None:
        self.command, self.directory, self._log = list(command), directory, log
        self.running: Child | None = None
        self.prepared: Child | None = None
        self.stopping: list[Child] = []
        self.signal_mask: set[Any] = set()
        """The signals that a program starts with blocked."""
        self.ended_by: int | None = None
        """The signal that ended the launcher before any program ran."""
        self.exit_code: int | None = None
        """The exit code of the running program; processes that it left may still be ending."""
        self.forks = Forks(self.command, ARCHIVE, gpu=has_gpu(), disabled=self._read_plain())
        self._end_forwarded: int | None = None  # the signal by which the running program may have been told to end
        self._crashed_generation: int | None = None  # crashed while it was prepared, and was prepared once more

    # -- starting ------------------------------------------------------------------------------------------------------

    def start(self, child: Child, command: Sequence[str] | None = None, *, opened: bool = False) -> None:
        """Start a program, by default the user's command. `opened`: its resume() does not wait. Raises OSError if it
        cannot be started."""
        command = self.command if command is None else command
        environment = dict(os.environ)
        try:
            folder = self.folder(child)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o755)
            if opened:
                protocol.write(folder / protocol.GO, opening(child))
        except OSError as error:
            self._log(f"{error}")
        environment[protocol.GENERATION] = str(child.generation)
        if opened:
            environment[protocol.OPEN] = "1"
        if child.before:
            environment[protocol.BEFORE] = child.before
        if os.path.isfile(ARCHIVE):
            path = environment.get("PYTHONPATH")
            environment["PYTHONPATH"] = f"{ARCHIVE}:{path}" if path else ARCHIVE
        if child.tf_config is not None:
            environment["TF_CONFIG"] = child.tf_config
        with contextlib.suppress(OSError):  # without a pipe it writes directly to the container's log
            child.stderr = None if opened else StderrPipe(child.generation)
        environment.update(child.stderr.environment if child.stderr else {})
        try:
            self.forks.reported_imports = protocol.read(self.directory / protocol.IMPORTS) or {}
            child.checks_fork = self.forks.suspected
            stderr = child.stderr.write_end if child.stderr is not None else None
            child.pid, child.forked = self.forks.start(command, environment, stderr, self.signal_mask)
        finally:
            if child.stderr is not None:
                child.stderr.begin()
        beside = self.running is not None and self.running is not child
        # The first program of a new pod has none beside it that would need the CPU.
        child.lowered_by = processes.lower_priority(child.pid) if beside else ""
        child.started_at_s = time.monotonic()
        child.hook = HookDetection(child.pid, child.started_at_s)
        way = "was forked and " if child.forked else ""
        way += f"with low CPU priority ({child.lowered_by}) " if child.lowered_by else ""
        self._log(f"generation {child.generation} {way}started as {child.pid}: {' '.join(command[:4])[:200]}")

    def restore_priority(self, child: Child) -> None:
        """Give a prepared program its normal CPU priority back."""
        if child.lowered_by and not processes.restore_priority(child.pid, child.lowered_by):
            self._log(f"generation {child.generation} keeps its low CPU priority")
        child.lowered_by = ""

    # -- stopping ------------------------------------------------------------------------------------------------------

    def stop(self, child: Child, now_s: float) -> None:
        """Send a replaced program SIGTERM, and SIGKILL after TERM_S."""
        if child.pid:
            self._signal_end(child, signal.SIGTERM)
            child.kill_at_s = now_s + TERM_S
            if child not in self.stopping:
                self.stopping.append(child)

    def leave(self, now_s: float) -> None:
        """Stop the running program, and run none from then on."""
        child, self.running = self.running, None
        if child is not None:
            self.stop(child, now_s)
        self.ended_by = self._end_forwarded  # the container may be ending already

    def kill_overdue(self, now_s: float) -> None:
        """Kill the stopping programs whose time is up."""
        for child in self.stopping:
            if child.kill_at_s is not None and now_s >= child.kill_at_s:
                self.kill(child)

    def drop_prepared(self) -> None:
        """Kill the prepared program, if there is one."""
        child, self.prepared = self.prepared, None
        if child is not None and child.pid and child.state != "failed":
            self.kill(child)
            self.stopping.append(child)

    def kill(self, child: Child | None) -> None:
        """Kill a program and its descendants, whatever process groups these are in."""
        if child is None or not child.pid:
            return
        for _ in range(_KILL_PASSES):  # a process that was not listed yet may have started another one
            members = self._members(child)
            for each in members:
                _send(each.pid, signal.SIGKILL)
            if not members:
                return

    def forward(self, number: int) -> None:
        """Forward a signal that the launcher got to the running program."""
        if self.running is None or not self.running.pid:
            if number in (signal.SIGTERM, signal.SIGINT):
                # No program runs yet: end as a program without handlers does. A replaced program still saves first; it
                # has the pod's grace period for that.
                self.ended_by = number
                if not self._end_server(number):
                    self.kill(self.prepared)
                for child in self.stopping:
                    child.kill_at_s = None
            return
        if number in _ENDS:
            self._end_forwarded = number
            self._signal_end(self.running, number)
            self._end_server(number)
        else:
            _send(self.running.pid, number)

    def _end_server(self, number: int) -> bool:
        """Tell a prepared server to end; whether there is one. Its chief may train already, though no command has said
        so yet, and saves a last checkpoint of the values in this server."""
        child = self.prepared
        if child is None or not (child.task.serves and child.state == "ready" and child.pid and child.has_program):
            return False
        self._signal_end(child, number)
        child.kill_at_s = time.monotonic() + CHIEF_S
        return True

    def server_ends(self) -> bool:
        """Whether a prepared server that was told to end still runs."""
        child = self.prepared
        return child is not None and child.state == "ready" and time.monotonic() < (child.kill_at_s or 0.0)

    def drain_stderr(self) -> None:
        """Wait until all output of the programs is in the container's log."""
        for child in (self.running, self.prepared):
            if child is not None and child.stderr is not None:
                child.stderr.drain()

    def _members(self, child: Child) -> list[processes.Process]:
        known = [each.pid for each in (self.running, self.prepared, *self.stopping) if each is not None]
        others = {self.forks.pid, *known} - {child.pid}
        return processes.of_program(child.pid, child.started_as, others) if child.pid else []

    def _signal_end(self, child: Child, number: int) -> None:
        """Tell a program to end: the started process, and those behind it to which it would not forward the signal."""
        members = self._members(child)
        known = {each.pid for each in members}
        trainer = (protocol.read(self.folder(child) / protocol.HELLO) or {}).get("pid")
        trainer = trainer if isinstance(trainer, int) and trainer in known else 0
        wraps = trainer != child.pid if trainer else not processes.is_python(child.pid)
        ending = child.ending = child.ending or Ending(number, trainer, wraps)
        ending.signal_number, ending.signalled = number, {}
        self._signal_members(child, ending, members, number)
        if ending.trainer in known and ending.trainer not in ending.signalled:  # its handler may run twice
            ending.signalled[ending.trainer] = True
            _send(ending.trainer, number)

    def _signal_members(self, child: Child, ending: Ending, members: list[processes.Process], number: int) -> None:
        """Send the signal to those of a program's processes that have not had it."""
        for each in members:
            ending.parents.setdefault((each.pid, each.started_ticks), each.parent)
        has_root = any(each.pid == child.pid for each in members)
        roots = {child.pid} if has_root else {each.pid for each in members if each.parent == os.getpid()}
        late = ending.exited_at_s is not None and time.monotonic() - ending.exited_at_s >= FORWARDED_S
        for each in processes.reached(members, roots, number):
            if each.pid in ending.signalled:
                continue
            handles = processes.handles(each.pid, number)
            orphan = each.pid in roots and not has_root
            if late or not (orphan and handles and ending.may_be_forwarded(each)):
                ending.signalled[each.pid] = handles
                _send(each.pid, number)

    def _has_remaining(self, child: Child) -> bool:
        """Whether a program that was signalled to end continues in processes behind a wrapper.

        These get the signal once they have lost the wrapper. The launcher does not wait for processes that ignore it,
        and waits only TERM_S for processes other than the trainer. (If the program was not signalled to end, its end is
        also the end of its descendants.)"""
        ending = child.ending
        if ending is None or not ending.wraps:
            return False
        members, now_s = self._members(child), time.monotonic()
        if ending.trainer and all(each.pid != ending.trainer for each in members):
            ending.wait_until_s = min(ending.wait_until_s, now_s + TERM_S)
        ignored = all(processes.ignores(each.pid, ending.signal_number) for each in members)
        if now_s >= ending.wait_until_s or ignored:
            return False
        self._signal_members(child, ending, members, ending.signal_number)
        return True

    # -- what an exit means --------------------------------------------------------------------------------------------

    def reap(self, *, saving: bool) -> int | None:
        """Collect ended processes. Returns the launcher's exit code once the running program is among them. `saving`:
        the running program saves for the prepared one."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                pid = 0
            if pid == 0:
                break
            code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
            for each in (self.running, *self.stopping):
                if each is not None and each.pid == pid and each.ending is not None:
                    each.ending.exited_at_s = time.monotonic()
                    # A Python process that the signal ended without a handler may have been a wrapper, too.
                    each.ending.wraps |= not each.ending.trainer and os.WIFSIGNALED(status)
            if self.running is not None and pid == self.running.pid:
                self._log(f"generation {self.running.generation} ended with {code}")
                self._note_early_failure(self.running, code)
                self.exit_code = code
            elif self.prepared is not None and pid == self.prepared.pid:
                self._prepared_ended(self.prepared, code, saving=saving)
            else:
                for child in self.stopping:
                    child.exited |= child.pid == pid
        for child in [child for child in self.stopping if child.exited and not self._has_remaining(child)]:
            self.kill(child)  # its remaining descendants
            if not self._members(child):
                self.stopping.remove(child)
        if self.exit_code is None or self.running is None or self._has_remaining(self.running):
            return None
        return self.exit_code

    def _prepared_ended(self, child: Child, code: int, *, saving: bool) -> None:
        self.kill(child)
        output = child.stderr.last() if child.stderr else ""
        why = f"the program ended with exit code {code}" + (f": {output}" if output else "")
        self._log(f"prepared generation {child.generation} ended with {code}: {output}")
        if self._should_retry(child, code, saving=saving):
            if child.forked:
                self.forks.suspect(f"after a fork, {why}")
            self.prepared = None  # it is prepared again, without a fork
            return
        if child.checks_fork:
            self.forks.resolve_suspicion(works_without_fork=False)
        child.state, child.why = "failed", why

    def _should_retry(self, child: Child, code: int, *, saving: bool) -> bool:
        """Whether a prepared program that has ended is started again: a forked one that had not reached its hook, and,
        once for a generation, one that crashed. Where replicas of the coming generation may rely on it (a server that
        is ready), or the running program saves for it, the operator retries the whole change instead."""
        if child.state == "starting" and child.forked and not self.said_hello(child):
            return True
        if child.state == "ready" and not child.task.chief:
            return False
        if code not in CRASHES or self._crashed_generation == child.generation or saving:
            return False
        self._crashed_generation = child.generation
        return True

    def _note_early_failure(self, child: Child, code: int) -> None:
        """Where packages were imported ahead and the program failed soon, those imports may be the reason: the
        container's next program starts without them."""
        if not code or not self.forks.ready or self._end_forwarded or self.said_hello(child):
            return
        if time.monotonic() - child.started_at_s < EARLY_S:
            why = f"the program ended with exit code {code}, perhaps because its packages were imported ahead"
            with contextlib.suppress(OSError):
                protocol.write(self.directory / protocol.PLAIN, {"why": why})

    # -- files ---------------------------------------------------------------------------------------------------------

    def folder(self, child: Child) -> Path:
        """The folder of the generation that the program was started for."""
        return protocol.generation_directory(self.directory, child.started_as)

    def said_hello(self, child: Child) -> bool:
        """Whether the program has constructed ElasticCheckpoint."""
        return (self.folder(child) / protocol.HELLO).exists()

    def _read_plain(self) -> str:
        """Why this container's program must start without imports ahead; empty if it need not. The file is removed, so
        it counts for one start."""
        path = self.directory / protocol.PLAIN
        why = (protocol.read(path) or {}).get("why")
        with contextlib.suppress(OSError):
            path.unlink()
        return why if isinstance(why, str) else ""


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def has_gpu() -> bool:
    """Whether the container has a GPU. One GPU of several has the number that it has on the node."""
    return any(DEVICES.glob("nvidia[0-9]*")) or (DEVICES / "kfd").exists()


def listens(port: int) -> bool:
    """Whether a process of this pod listens on the port."""
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with contextlib.suppress(OSError), socket.socket(family) as probe:
            probe.settimeout(0.2)
            probe.connect((address, port))
            return True
    return False
