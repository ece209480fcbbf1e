"""The programs of a pod: starting and stopping them, and what their ends mean.

One program runs, one may be prepared beside it, and those that were replaced are stopping. Each is started as a process
group of its own. It may be a shell or another wrapper, and start the one that trains: see processes.py.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import shutil
import signal
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elastic_tfjob.runtime import processes, protocol
from elastic_tfjob.runtime.forking import Forks
from elastic_tfjob.runtime.stderr_pipe import StderrPipe

# -- CPU priority of a program that is prepared beside one that trains -------------------------------------------------
# Of two processes that want the same core, the one that trains goes first. Only what can be undone is done: a process
# that has lowered its priority by `nice` may raise it again only with CAP_SYS_NICE or a high RLIMIT_NICE, which
# containers seldom have. Any process may take the policy SCHED_BATCH and leave it again: the kernel then does not
# interrupt others for it when it wakes up. What the difference is: docs/designs/rescale.md.

NICER = 5
"""How much lower: the program that trains gets three quarters of a core that both want."""
_CAP_SYS_NICE = 23
_THREAD_PASSES = 3


def lower_priority(pid: int) -> str:
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


def restore_priority(pid: int, how: str) -> bool:
    """Undo what `lower` did, which gave `how`, to a process and all that it has started; whether nothing of it is left.
    A priority that the program has given threads of its own stays."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    lowered = min(own + NICER, 19) if how == "nice" else own
    for _ in range(_THREAD_PASSES):  # a thread that was not seen yet may have begun another one
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


# Whether the program that trains has constructed ElasticCheckpoint, as far as that can be seen from outside it.
#
# The program says so itself (hello.json). What it will never do nobody says, so that is concluded: it has used
# TensorFlow for a while, and worked or waited since, and has not even imported the hook. A conclusion; a late hello
# ends it.
#
# That TensorFlow's library is in its memory says nothing: it is there from the first moments of the import on, which
# took 70 s and 17 s of CPU on a busy machine. TensorFlow's threads are there from its first operation on, but only 2.21
# names them (2.15 and 2.20 do not). So the end of the imports that the program's file begins with counts as well:
# the interpreter that the program leaves behind tells it (forking.py).

PROC = Path("/proc")
TENSORFLOW_S, TENSORFLOW_CPU_S = 20.0, 2.0
"""A program that has had TensorFlow for so long, and for so much CPU time, has imported what it imports."""
ANY_S, ANY_CPU_S = 300.0, 20.0
"""The same for one that is not seen to use TensorFlow: a shell may install packages before it starts it."""
IMPORTED_S = 300.0
"""A program that has imported the hook constructs it when its model is built and its servers have come."""
IDLE_S, IDLE_CPU_S = 9.0, 0.1
"""One that uses less than this in such a time does not import anything: it waits."""
_THREADS = b"tf_"
"""So the names of TensorFlow's threads begin."""


@dataclass(frozen=True)
class ProgramSample:
    """A program at a time: CPU seconds that it has used so far, and whether it is known to have TensorFlow."""

    at: float
    cpu_s: float
    tensorflow: bool


class HookDetection:
    """Looks at one program, whose process group is `pid`, since `began` (a time.monotonic())."""

    def __init__(self, pid: int, began: float) -> None:
        self.pid, self.began = pid, began
        self._first: ProgramSample | None = None  # with TensorFlow
        self._looks: deque[ProgramSample] = deque(maxlen=8)

    def look(self, now: float, imported: bool) -> None:
        """To be called every few seconds while it is not known. `imported`: it is known that TensorFlow is."""
        cpu_s, runs = _group(self.pid)
        look = ProgramSample(now, cpu_s, imported or runs)
        self._looks.append(look)
        if look.tensorflow and self._first is None:
            self._first = look

    def says(self, hello: bool, imported: bool) -> bool | None:
        """True, false or not known (yet), by what the program said and was seen to do."""
        if hello or not self._looks:
            return True if hello else None
        now = self._looks[-1]
        if imported:
            return False if now.at - self.began >= IMPORTED_S else None
        before = next((look for look in reversed(self._looks) if now.at - look.at >= IDLE_S), None)
        waits = before is not None and now.cpu_s - before.cpu_s < IDLE_CPU_S
        first = self._first
        if first is not None and now.at - first.at >= TENSORFLOW_S:
            return False if waits or now.cpu_s - first.cpu_s >= TENSORFLOW_CPU_S else None
        return False if now.at - self.began >= ANY_S and (waits or now.cpu_s >= ANY_CPU_S) else None


def _group(pid: int) -> tuple[float, bool]:
    """CPU seconds of a program's processes and of what they waited for, and whether TensorFlow's threads run in one."""
    ticks, tensorflow = 0, False
    found = processes.running()
    for each in processes.below(found, [each for each in found.values() if pid in (each.pid, each.group)]):
        folder = PROC / str(each.pid)
        try:
            fields = (folder / "stat").read_bytes().rpartition(b") ")[2].split()
            ticks += sum(map(int, fields[11:15]))
            tensorflow = tensorflow or any(
                each.read_bytes().startswith(_THREADS) for each in folder.glob("task/*/comm")
            )
        except (OSError, ValueError, IndexError):  # it has ended, or may not be looked at
            continue
    return ticks / os.sysconf("SC_CLK_TCK"), tensorflow


ARCHIVE = str(Path(__file__).absolute().parents[2])
"""What holds the package `elastic_tfjob`: launcher.pyz, or a directory."""
DEVICES = Path("/dev")
EARLY_S = 60.0
"""A program that fails so soon may have failed because packages had been imported for it."""
TERM_S = 5.0
"""How long a program that is replaced has between SIGTERM and SIGKILL."""
PASSED_ON_S = 5.0
"""A process that a wrapper left behind, and which may have had the signal from that wrapper, gets it after so long."""
CRASHES = frozenset(
    128 + number for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)
)
"""Exit codes of a program that native code has ended. TensorFlow does that by chance, too: with 2.21 a chief that was
prepared ended with SIGSEGV (seen once)."""
_ENDS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2})
"""What ends a program that does not handle it; an image may name each as its signal to stop."""
_LOG_LIMIT, _PASSES = 1 << 20, 5


@dataclass
class Ending:
    """A program that has been told to end. `trainer`: the process that uses ElasticCheckpoint, 0 if none is known.
    `wraps`: the process that was started is not the one that trains, as far as can be seen. `parents`: by process, who
    started it. `told`: who got the signal, and whether it had a handler for it. `until`: when what is left of it is not
    waited for any more."""

    number: int
    trainer: int
    wraps: bool
    parents: dict[tuple[int, int], int] = field(default_factory=dict)
    told: dict[int, bool] = field(default_factory=dict)
    over_at: float | None = None  # the process that was started has ended
    until: float = math.inf

    def may_have_passed_on(self, process: processes.Process) -> bool:
        """Whether one that started a process, or started what did, had the signal and a handler for it."""
        before = {pid: parent for (pid, _), parent in self.parents.items()}
        pid, above = process.pid, []
        while pid in before and pid not in above:
            above.append(pid)
            pid = before[pid]
        return any(self.told.get(each, False) for each in above[1:])


@dataclass
class Child:
    """A program of one generation, with all that it starts (its process group)."""

    generation: int
    tf_config: str | None
    mode: str = "overlap"
    pid: int = 0
    started: bool = True  # False: a spare that has not been given the user's program
    state: str = "starting"
    why: str = ""
    kill_at: float | None = None
    over: bool = False  # the process that was started has ended
    stderr: StderrPipe | None = None
    hook: HookDetection | None = None
    forked: bool = False
    began: float = 0.0  # when it was started, by the monotonic clock
    lowered: str = ""  # how its priority was lowered while it is prepared
    in_doubt: bool = False  # started because the same, forked, had ended early
    ending: Ending | None = None

    @property
    def task(self) -> protocol.Task:
        return protocol.Task.of(self.tf_config)


@dataclass
class Programs:
    """`program`: the user's command. `tf_config`: generation 0's, from the environment. `command_file`: where the
    operator's commands are. `switch`: the last decision on another generation, which is kept with what runs."""

    program: list[str]
    directory: Path
    command_file: Path | None
    tf_config: str | None
    running: Child | None = None
    prepared: Child | None = None
    stopping: list[Child] = field(default_factory=list)
    switch: dict[str, Any] | None = None
    result: int | None = None  # the exit code of the program that ran; what it left may have to end yet
    ended_by: int | None = None  # the signal that ended this before anything ran
    _forwarded: bool = False  # the program that runs may have been told to end
    _crashed: int | None = None  # the generation that crashed while it was prepared, and was prepared once more

    def __post_init__(self) -> None:
        self._mask: set[Any] = set()
        self._forks = Forks(self.program, ARCHIVE, gpu=has_gpu(), never=self._plain())

    # -- starting ------------------------------------------------------------------------------------------------------

    def _start_running(self, generation: int, tf_config: str | None) -> None:
        child = Child(generation, tf_config, state="running")
        self.running = child
        with contextlib.suppress(OSError):
            self._keep()
        self._spawn(child, self.program, opened=True)

    def _spawn(self, child: Child, command: Sequence[str], *, opened: bool = False) -> None:
        environment = dict(os.environ)
        try:
            folder = self._folder(child)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o755)
            if opened:
                protocol.write(folder / protocol.GO, {"generation": child.generation, "at": time.time()})
        except OSError as error:
            self._log(f"{error}")
        environment[protocol.GENERATION] = str(child.generation)
        if opened:
            environment[protocol.OPEN] = "1"
        if os.path.isfile(ARCHIVE):
            path = environment.get("PYTHONPATH")
            environment["PYTHONPATH"] = f"{ARCHIVE}:{path}" if path else ARCHIVE
        if child.tf_config is not None:
            environment["TF_CONFIG"] = child.tf_config
        with contextlib.suppress(OSError):  # no pipe: then straight to the container's log
            child.stderr = None if opened else StderrPipe(child.generation)
        environment.update(child.stderr.environment if child.stderr else {})
        try:
            self._forks.learnt = protocol.read(self.directory / protocol.IMPORTS) or {}
            child.in_doubt = self._forks.in_doubt
            child.pid, child.forked = self._forks.start(command, environment, child.stderr, self._mask)
        finally:
            if child.stderr is not None:
                child.stderr.begin()
        beside = self.running is not None and self.running is not child
        child.lowered = lower_priority(child.pid) if beside else ""  # a new pod's first program has nobody to yield to
        child.began = time.monotonic()
        child.hook = HookDetection(child.pid, child.began)
        way = "was forked and " if child.forked else ""
        way += f"with low priority ({child.lowered}) " if child.lowered else ""
        self._log(f"generation {child.generation} {way}started as {child.pid}: {' '.join(command[:4])[:200]}")

    # -- ending --------------------------------------------------------------------------------------------------------

    def _stop(self, child: Child, now: float) -> None:
        if child.pid:
            self._end(child, signal.SIGTERM)
            child.kill_at = now + TERM_S
            self.stopping.append(child)

    def _drop_prepared(self) -> None:
        child, self.prepared = self.prepared, None
        if child is not None and child.pid and child.state != "failed":
            self._kill(child)
            self.stopping.append(child)

    def _members(self, child: Child) -> list[processes.Process]:
        known = [each.pid for each in (self.running, self.prepared, *self.stopping) if each is not None]
        others = {self._forks.pid, *known} - {child.pid}
        return processes.of_program(child.pid, child.generation, others) if child.pid else []

    def _kill(self, child: Child | None) -> None:
        """End a program and all that it has started, whatever process groups these are in."""
        if child is None or not child.pid:
            return
        for _ in range(_PASSES):  # one that was not seen yet may have started another one
            members = self._members(child)
            for each in members:
                _send(each.pid, signal.SIGKILL)
            if not members:
                return

    def _end(self, child: Child, number: int) -> None:
        """Tell a program to end: the process that was started, and those behind it that would not hear of it."""
        members = self._members(child)
        known = {each.pid for each in members}
        trainer = (protocol.read(self._folder(child) / protocol.HELLO) or {}).get("pid")
        trainer = trainer if isinstance(trainer, int) and trainer in known else 0
        wraps = trainer != child.pid if trainer else not processes.is_python(child.pid)
        ending = child.ending = child.ending or Ending(number, trainer, wraps)
        ending.number, ending.told = number, {}
        self._pass_on(child, ending, members, number)
        if ending.trainer in known and ending.trainer not in ending.told:  # its handler may run twice
            ending.told[ending.trainer] = True
            _send(ending.trainer, number)

    def _pass_on(self, child: Child, ending: Ending, members: list[processes.Process], number: int) -> None:
        """Send a program's processes a signal that they have not had."""
        for each in members:
            ending.parents.setdefault((each.pid, each.started), each.parent)
        whole = any(each.pid == child.pid for each in members)
        roots = {child.pid} if whole else {each.pid for each in members if each.parent == os.getpid()}
        late = ending.over_at is not None and time.monotonic() - ending.over_at >= PASSED_ON_S
        for each in processes.reached(members, roots, number):
            if each.pid in ending.told:
                continue
            handles = processes.handles(each.pid, number)
            orphan = each.pid in roots and not whole
            if late or not (orphan and handles and ending.may_have_passed_on(each)):
                ending.told[each.pid] = handles
                _send(each.pid, number)

    def _is_left(self, child: Child) -> bool:
        """Whether a program that was told to end goes on in processes of which it was only the wrapper. They get the
        signal when they have lost it; those that ignore it are not waited for, nor for long what is not the one that
        trains. (Where the program was not told, its end is the end of all that it has started.)"""
        ending = child.ending
        if ending is None or not ending.wraps:
            return False
        members = self._members(child)
        if ending.trainer and all(each.pid != ending.trainer for each in members):
            ending.until = min(ending.until, time.monotonic() + TERM_S)
        if time.monotonic() >= ending.until or all(processes.ignores(each.pid, ending.number) for each in members):
            return False
        self._pass_on(child, ending, members, ending.number)
        return True

    def _reap(self) -> int | None:
        """Collect what has ended; the exit code to end with once the running program is among it."""
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
                    each.ending.over_at = time.monotonic()
                    # A Python that the signal has ended had no word in it, so it may have been a wrapper, too.
                    each.ending.wraps |= not each.ending.trainer and os.WIFSIGNALED(status)
            if self.running is not None and pid == self.running.pid:
                self._log(f"generation {self.running.generation} ended with {code}")
                self._note_early_end(self.running, code)
                self.result = code
            elif self.prepared is not None and pid == self.prepared.pid:
                self._kill(self.prepared)
                said = self.prepared.stderr.last() if self.prepared.stderr else ""
                why = f"the program ended with exit code {code}" + (f": {said}" if said else "")
                self._log(f"prepared generation {self.prepared.generation} ended with {code}: {said}")
                if self._is_worth_another(self.prepared, code):
                    if self.prepared.forked:
                        self._forks.doubt(f"forked, {why}")
                    self.prepared = None  # and is prepared again, as without forks
                    continue
                if self.prepared.in_doubt:
                    self._forks.decide(good=False)
                self.prepared.state, self.prepared.why = "failed", why
            else:
                for child in self.stopping:
                    child.over |= child.pid == pid
        for child in [child for child in self.stopping if child.over and not self._is_left(child)]:
            self._kill(child)  # what it started and left
            if not self._members(child):
                self.stopping.remove(child)
        if self.result is None or self.running is None or self._is_left(self.running):
            return None
        return self.result

    def _is_worth_another(self, child: Child, code: int) -> bool:
        """Whether a prepared program that has ended is started again: each that was forked and has not got as far as
        its hook, and once for a generation one that crashed. Where replicas of the coming generation may rely on it (a
        server that is ready), or the running program saves for it, the whole change is to be tried again instead."""
        if child.state == "starting" and child.forked and not self._says_hello(child):
            return True
        if child.state == "ready" and not child.task.chief:
            return False
        saving = self.switch is not None and self.switch["state"] == "saving"
        if code not in CRASHES or self._crashed == child.generation or saving:
            return False
        self._crashed = child.generation
        return True

    def _note_early_end(self, child: Child, code: int) -> None:
        """A program that had packages imported for it, and soon failed: its container's next begins as without that,
        since it may be the reason."""
        if not code or not self._forks.ready or self._forwarded or self._says_hello(child):
            return
        if child.hook is not None and time.monotonic() - child.hook.began < EARLY_S:
            why = f"the program ended with exit code {code} after packages had been imported for it"
            with contextlib.suppress(OSError):
                protocol.write(self.directory / protocol.PLAIN, {"why": why})

    def _forward(self, number: int) -> None:
        if self.running is None or not self.running.pid:
            if number in (signal.SIGTERM, signal.SIGINT):
                # Nothing runs yet: end as a program without handlers does, but not before a replaced one has saved,
                # for which it has as long as the pod has.
                self.ended_by = number
                self._kill(self.prepared)
                for child in self.stopping:
                    child.kill_at = None
            return
        if number in _ENDS:
            self._forwarded = True
            self._end(self.running, number)
        else:
            _send(self.running.pid, number)

    def _drain(self) -> None:
        """What has been said is in the log before this ends."""
        for child in (self.running, self.prepared):
            if child is not None and child.stderr is not None:
                child.stderr.drain()

    # -- files ---------------------------------------------------------------------------------------------------------

    def _folder(self, child: Child) -> Path:
        return protocol.generation_directory(self.directory, child.generation)

    def _plain(self) -> str:
        """Why this container's program is to be started as without preparations: once."""
        path = self.directory / protocol.PLAIN
        why = (protocol.read(path) or {}).get("why")
        with contextlib.suppress(OSError):
            path.unlink()
        return why if isinstance(why, str) else ""

    def _says_hello(self, child: Child) -> bool:
        return (self._folder(child) / protocol.HELLO).exists()

    def _keep(self) -> None:
        assert self.running is not None
        protocol.write(self.directory / protocol.COMMITTED, kept(self.running, self.switch))

    def _log(self, line: str) -> None:
        with contextlib.suppress(OSError):
            log = self.directory / "launcher.log"
            mode = "w" if log.exists() and log.stat().st_size > _LOG_LIMIT else "a"
            with open(log, mode) as file:
                file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')}.{time.time_ns() // 1_000_000 % 1000:03} {line}\n")


def kept(child: Child, switch: dict[str, Any] | None) -> dict[str, Any]:
    """What a restarted container goes on with."""
    return {"generation": child.generation, "tf_config": child.tf_config, "switch": switch}


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def has_gpu() -> bool:
    """Of a container with one GPU of many, the device has the number that it has on the node."""
    return any(DEVICES.glob("nvidia[0-9]*")) or (DEVICES / "kfd").exists()
