"""The fork server: an interpreter that has imported what the program imports, and from which later generations fork.

It starts beside a program and costs no import of its own. The launcher starts the program's own command line with a
`sitecustomize` of this package, which Python imports before the program. That module does the imports at the top of the
program's file (preload.py), forks, and returns: the started process becomes the program, the fork stays where it is and
sleeps. To start a generation it forks again, and that process continues into the program as if it had just been
started: the same command line, `__main__` and standard streams, all set up by the interpreter itself.

None of the program's code has run in the sleeping process, so no program can harm it: threads, files, modules and
signal handlers of one generation do not reach the next one. Where a process has imported what the program would not
have (the program's folder has a module of the same name), or an import failed, it restarts itself by exec.

Only the first start of a pod imports. Where there is no fork server, each program is started as without this module,
and `Forks.why` gives the reason.

Messages go over a socket: the length in 4 bytes, then JSON. A request carries file descriptors: the gate, over which
the forked process reports its process id and waits, and its standard error if that is a pipe.

The user's interpreter imports this file before the program, in any Python from 3.9 on. So it imports next to nothing;
the launcher's side imports the rest where it needs it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from elastic_tfjob.runtime import preload, protocol

if TYPE_CHECKING:
    import socket

VARIABLE = "ELASTIC_TFJOB_FORK"
"""Its value tells a process how to leave a fork server behind: the JSON that `begin` reads. start/sitecustomize.py must
not fail in any Python, so it repeats the name."""
SOCKET_DESCRIPTOR = 201
"""The fork server's end of the socket."""
OWN_STDERR = 200
"""The descriptor of the container's standard error in a program whose own standard error is a pipe (programs.py). A
program does not get this number by itself."""
IGNORED_BY_PYTHON = [signal.SIGPIPE, signal.SIGXFSZ]
"""Python ignores these signals. A process that the launcher starts would inherit that, so it is undone there."""

LEAST_LIMIT_BYTES = 1 << 30
"""A container with a lower memory limit has no fork server: about 100 MB are its own."""
MOST_OWN_BYTES = 120 << 20
"""Memory that only the fork server has, at most (measured with TensorFlow 2.21: 24 to 64 MB)."""
WORTH_S = 0.3
"""Imports that take less than this are not worth a process."""
ANSWER_S = 10.0
"""Time for a fork, after which the program is started as a process of its own. On a busy machine both take long, and a
process of its own imports everything again."""
WHY_CHARACTERS = 200
NAME = "tfjob-forks"
"""The fork server's name in a list of processes."""
_MESSAGE_BYTES = 1 << 16


# -- The launcher's side -----------------------------------------------------------------------------------------------


class Forks:
    """The fork server of one command line, if there is one. `archive`: the path of launcher.pyz. `gpu`: whether the
    container has a GPU. `disabled`: why there must be none; empty if there may be one."""

    def __init__(self, command: Sequence[str], archive: str, *, gpu: bool, disabled: str = "") -> None:
        self._command, self._archive = list(command), archive
        self._disabled = (disabled or self._impossible(gpu))[:WHY_CHARACTERS]
        self._channel: socket.socket | None = None
        self._data = b""
        self._suspicion = self._closed_why = ""
        self._exact = False
        self.pid = 0
        self.packages: list[str] = []
        self.variables: dict[str, str] = {}
        self.reported_imports: dict[str, Any] = {}
        """What the last generation wrote about its imports (protocol.IMPORTS), not validated."""

    def _impossible(self, gpu: bool) -> str:
        import resource  # noqa: PLC0415

        from elastic_tfjob.runtime import cgroup  # noqa: PLC0415

        program, why = preload.program_of(self._command)
        if program is None:
            return why
        if not os.path.isfile(self._archive):
            return "the launcher is not a zip archive, so the program's interpreter cannot import it"
        if gpu:
            return "the container has a GPU, whose state cannot be forked"
        limit = cgroup.usage().get("limit_bytes")
        if limit is not None and limit < LEAST_LIMIT_BYTES:
            return (
                f"the container's memory limit is {limit >> 20} MiB; at least {LEAST_LIMIT_BYTES >> 20} MiB are needed"
            )
        if resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= SOCKET_DESCRIPTOR:
            return f"the limit of open files must be above {SOCKET_DESCRIPTOR}"
        return ""

    @property
    def ready(self) -> bool:
        return bool(self.pid)

    def has_imported(self, package: str) -> bool:
        """Whether the program that left the fork server behind, and so each fork, has imported the package."""
        return self.ready and package in self.packages

    @property
    def why(self) -> str:
        """Why the next program will not be forked; empty if it will."""
        if self.ready:
            return ""
        pending = (
            "the interpreter to fork from is not ready"
            if self._channel is not None
            else "there is no interpreter to fork from yet"
        )
        return (self._disabled or self._suspicion or self._closed_why or pending)[:WHY_CHARACTERS]

    def report(self) -> dict[str, Any]:
        """How the next program will be started, as in launcher.json."""
        way = "fork" if self.ready else "exec"
        return {"way": way, "why": self.why, "packages": self.packages[:8] if self.ready else []}

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], stderr: int | None, signal_mask: set[Any]
    ) -> tuple[int, bool]:
        """Start a program; `stderr`: the write end of a pipe that its standard error goes to, None: the container's
        log. Returns its process id, and whether it was forked. Raises OSError if it cannot be started."""
        usable = list(command) == self._command and not self._disabled and not self._suspicion
        if usable and self.ready and not self._is_outdated():
            try:
                return self._fork(environment, stderr), True
            except (OSError, ValueError) as error:
                self.close(f"the fork failed: {error}")
        if usable:
            with contextlib.suppress(OSError):  # the environment may be too large with the added variables
                return self._spawn_first(command, environment, stderr, signal_mask), False
            self.close("the command cannot start with the environment variables of the fork server")
        return _spawn(command, environment, stderr_actions(stderr), signal_mask), False

    def _is_outdated(self) -> bool:
        """Whether the program has since set variables for its libraries to values other than those guessed when the
        fork server imported them."""
        if self._exact:
            return False
        reported = preload.valid_variables(self.reported_imports.get("environment"))
        changed = sorted(name for name in reported if reported[name] != self.variables.get(name)) if reported else []
        if changed:
            self.close(f"{changed[0]} had another value when the packages were imported")
        return bool(changed)

    def _spawn_first(
        self, command: Sequence[str], environment: Mapping[str, str], stderr: int | None, signal_mask: set[Any]
    ) -> int:
        """Start a process of its own that leaves a fork server behind."""
        import socket  # noqa: PLC0415

        self.close(self._closed_why)
        path = environment.get("PYTHONPATH")
        setup = {
            "fd": SOCKET_DESCRIPTOR,
            "path": path,
            "command": self._command,
            "packages": preload.valid_packages(self.reported_imports.get("packages")),
            "variables": preload.valid_variables(self.reported_imports.get("environment")),
        }
        start = os.path.join(self._archive, "elastic_tfjob", "runtime", "start")
        added = {VARIABLE: json.dumps(setup), "PYTHONPATH": f"{start}:{path}" if path else start}
        here, there = socket.socketpair()
        try:
            actions = [*stderr_actions(stderr), (os.POSIX_SPAWN_DUP2, there.fileno(), SOCKET_DESCRIPTOR)]
            pid = _spawn(command, {**environment, **added}, actions, signal_mask)
        except BaseException:
            here.close()
            raise
        finally:
            there.close()
        here.setblocking(False)
        self._channel, self._closed_why = here, ""
        return pid

    def _fork(self, environment: Mapping[str, str], stderr: int | None) -> int:
        """Ask the fork server for a process; returns its id. Raises OSError or ValueError, and then no program has
        been started."""
        import socket  # noqa: PLC0415

        assert self._channel is not None
        deadline_s = time.monotonic() + ANSWER_S
        here, there = socket.socketpair()
        with here:
            with there:
                request = json.dumps({"environment": dict(environment)}).encode()
                files = [there.fileno(), *([stderr] if stderr is not None else [])]
                self._channel.settimeout(ANSWER_S)
                try:
                    socket.send_fds(self._channel, [len(request).to_bytes(4, "big")], files)
                    self._channel.sendall(request)
                finally:
                    self._channel.setblocking(False)
            answer, data = None, b""
            while answer is None:
                here.settimeout(max(deadline_s - time.monotonic(), 0.001))
                part = here.recv(1 << 16)
                if not part:
                    raise OSError("it ended")
                data += part
                answer, data = _first_message(data)
            if "refused" in answer:
                raise OSError(str(answer["refused"])[:WHY_CHARACTERS])
            if answer.get("parent") != os.getpid() or not isinstance(answer.get("pid"), int):
                raise OSError("the forked process is not a child of the launcher")
            here.send(b"1")
            return int(answer["pid"])

    def poll(self) -> str:
        """Read what the fork server has reported; returns a line for the log if there is news."""
        if self._channel is None:
            return ""
        try:
            part = self._channel.recv(_MESSAGE_BYTES)
        except BlockingIOError:
            return ""
        except OSError:
            part = b""
        self._data += part
        try:
            message, self._data = _first_message(self._data)
        except ValueError as error:
            message, part = {"refused": str(error)}, b""
        if message is not None and message.get("ready") is True and isinstance(message.get("pid"), int):
            self.pid, self._exact = message["pid"], message.get("exact") is True
            self.packages = preload.valid_packages(message.get("packages"))
            self.variables = preload.valid_variables(message.get("variables"))
            return f"interpreter with {', '.join(self.packages)} started as {self.pid}: later generations are forked"
        if message is not None or not part:
            why = str((message or {}).get("refused") or "the interpreter to fork from has ended")
            self.close(why[:WHY_CHARACTERS])
            return f"later generations are not forked: {self.why}"
        return ""

    def close(self, why: str) -> None:
        """End the fork server. The next program is started as a process of its own, and may leave a new one behind."""
        if self._channel is not None:
            self._channel.close()
        self._channel, self._data, self.pid, self._closed_why = None, b"", 0, why

    def disable(self, why: str) -> None:
        """End the fork server for good."""
        self.close(why)
        self._disabled = why[:WHY_CHARACTERS]

    def make_room(self, used_bytes: int | None, limit_bytes: int | None) -> None:
        """End the fork server for good where the container could hold two programs without it, but not with it."""
        if not (self.ready and used_bytes and limit_bytes):
            return
        if 2 * used_bytes > limit_bytes >= 2 * (used_bytes - MOST_OWN_BYTES):
            self.disable("the container's memory is too small for two programs and the interpreter to fork from")

    # A program that may not work when it is forked

    @property
    def suspected(self) -> bool:
        return bool(self._suspicion)

    def suspect(self, why: str) -> None:
        """A forked program ended before it was of use: start it again as a process of its own."""
        self.close(why)
        self._suspicion = why[:WHY_CHARACTERS]

    def resolve_suspicion(self, *, works_without_fork: bool) -> None:
        """Record how the suspected program did as a process of its own. If it works, there are no more forks; if it
        ends again, forks are not the reason."""
        if self._suspicion and works_without_fork:
            self._disabled = self._suspicion
        self._suspicion = ""


def _first_message(data: bytes) -> tuple[dict[str, Any] | None, bytes]:
    """The first message if it is complete, and the bytes after it. Raises ValueError if it is not a message."""
    if len(data) < 4:
        return None, data
    size = int.from_bytes(data[:4], "big")
    if size > _MESSAGE_BYTES:
        raise ValueError(f"a message of {size} bytes from the interpreter; at most {_MESSAGE_BYTES} are allowed")
    if len(data) < 4 + size:
        return None, data
    content = json.loads(data[4 : 4 + size])
    if not isinstance(content, dict):
        raise ValueError("a message from the interpreter is not a JSON object")
    return content, data[4 + size :]


def stderr_actions(stderr: int | None) -> list[tuple[int, int, int]]:
    """The `file_actions` of posix_spawn for a program whose standard error is this pipe."""
    return [] if stderr is None else [(os.POSIX_SPAWN_DUP2, 2, OWN_STDERR), (os.POSIX_SPAWN_DUP2, stderr, 2)]


def _spawn(
    command: Sequence[str], environment: Mapping[str, str], actions: Sequence[Any], signal_mask: set[Any]
) -> int:
    """Raises OSError."""
    return os.posix_spawnp(
        command[0],
        list(command),
        environment,
        file_actions=actions,
        setpgroup=0,
        setsigmask=signal_mask,
        setsigdef=IGNORED_BY_PYTHON,
    )


# -- The interpreter's side --------------------------------------------------------------------------------------------


def begin(folder: str) -> None:
    """Called by sitecustomize in `folder`, before the program. Returns once in the started process and once in each
    later fork, and leaves everything as if it had never been called."""
    try:
        setup = json.loads(os.environ.pop(VARIABLE))
        if setup["path"] is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = setup["path"]
    except (ValueError, KeyError, TypeError):
        return
    sys.path[:] = [each for each in sys.path if each != folder]
    sys.path_importer_cache.pop(folder, None)
    os.set_inheritable(setup["fd"], False)
    program, _ = preload.program_of(setup["command"])
    if program is None or sys.implementation.name != "cpython":
        _send(setup["fd"], {"refused": "the interpreter is not CPython"}, close=True)
        return
    for name in ("sitecustomize", "usercustomize"):
        if preload.has_custom_module(name):
            _send(setup["fd"], {"refused": f"the image has its own module {name}"}, close=True)
            return
    _import_and_fork(setup, program)


def _import_and_fork(setup: dict[str, Any], program: preload.Program) -> None:
    environment_at_start, folder = dict(os.environ), os.getcwd()
    todo = preload.steps(program)
    exact = any(step.kind == "import" for step in todo)
    if not exact:
        todo += [preload.Step("default", name, value) for name, value in setup["variables"].items()]
        todo += [
            preload.Step("import", name) for name in setup["packages"] if not preload.has_module(program.folder, name)
        ]
    modules_before, began_s, early_variables = set(sys.modules), time.monotonic(), {}
    why = ""
    try:
        if any(step.kind == "import" for step in todo):
            preload.run(todo)
        early_variables = preload.library_variables(os.environ)
    except KeyboardInterrupt:  # end as the program would
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException as error:
        why = f"an import at the top of the program failed: {type(error).__name__}"
    seconds = time.monotonic() - began_s
    _replace_environment(environment_at_start)
    imported = {each.partition(".")[0] for each in set(sys.modules) - modules_before}
    hidden = [name for name in imported if _is_hidden_by(program, name)]
    if hidden:
        why = f"the program's folder has a module {sorted(hidden)[0][:100]}, but the interpreter imported another one"
    if not why and os.getcwd() != folder:
        why = "an import has changed the working directory"
    if why:
        _send(setup["fd"], {"refused": why}, close=True)
        _restart(setup["command"])
    if not any(step.kind == "import" for step in todo):
        why = "the program's imports are not known yet"
    elif seconds < WORTH_S:
        why = f"the imports at the top of the program take only {seconds:.2f} s"
    elif _has_python_threads():
        why = "the imports at the top of the program start threads"
    if why:
        _send(setup["fd"], {"refused": why}, close=True)
        return
    ready = {
        "ready": True,
        "seconds": seconds,
        "exact": exact,
        "variables": early_variables,
        "packages": sorted({name.partition(".")[0] for kind, name, _ in todo if kind == "import"})[
            : preload.MAX_PACKAGES
        ],
    }
    _leave_server(setup["fd"], ready, program, todo)


def _is_hidden_by(program: preload.Program, name: str) -> bool:
    """Whether the program would import another module by this name, from its own folder."""
    path = getattr(sys.modules.get(name), "__file__", None)
    return isinstance(path, str) and preload.has_module(program.folder, name, other_than=path)


def _leave_server(channel: int, ready: dict[str, Any], program: preload.Program, todo: list[preload.Step]) -> None:
    """Fork the server. Returns in the program, and later in each fork."""
    sys.stdout.flush()
    sys.stderr.flush()
    _end_or_wait(_fork())  # libraries that handle forks end their threads at one, and restart them when needed
    if len(os.listdir("/proc/self/task")) > 1:
        _send(channel, {"refused": "the imports at the top of the program start threads"}, close=True)
        return
    import gc  # noqa: PLC0415

    gc.collect()
    gc.freeze()  # otherwise each collection would write to shared memory, and so copy it
    between = _fork()
    if between:
        os.close(channel)
        _end_or_wait(between)
        return
    if _fork():  # the orphan becomes the launcher's child
        os._exit(0)
    try:
        os.setpgid(0, 0)
        if os.environ.pop(protocol.STDERR, None):
            os.dup2(OWN_STDERR, 2)
            os.close(OWN_STDERR)
        previous_name = _rename(NAME)
        _send(channel, {**ready, "pid": os.getpid()})
        _serve(channel, program, todo, previous_name)
    except BaseException:
        os._exit(1)


def _serve(channel: int, program: preload.Program, todo: list[preload.Step], name: str) -> None:
    """Sleep, and fork on request. Returns in the forked process; ends with the launcher."""
    import socket  # noqa: PLC0415

    connection = socket.socket(fileno=channel)
    while True:
        request, files = _receive(connection, socket)
        gate = files[0]
        if preload.steps(program) != todo and any(step.kind == "import" for step in preload.steps(program)):
            _send(gate, {"refused": "the imports at the top of the program have changed"})
            os._exit(0)
        between = _fork()
        if between:
            _end_or_wait(between)
            for file in files:
                os.close(file)
            continue
        parent = os.getpid()
        if _fork():
            os._exit(0)
        connection.close()
        _become_program(request, files, parent, name)
        return


def _become_program(request: dict[str, Any], files: list[int], parent: int, name: str) -> None:
    """Do what the launcher's posix_spawn does for a started program, and reset what differs between interpreters."""
    gate = files[0]
    os.setpgid(0, 0)
    _rename(name)
    if len(files) > 1:
        os.dup2(2, OWN_STDERR)
        os.dup2(files[1], 2)
        os.close(files[1])
    _replace_environment(request["environment"])
    while os.getppid() == parent:
        time.sleep(0.0005)
    _send(gate, {"pid": os.getpid(), "parent": os.getppid()})
    if os.read(gate, 1) != b"1":  # the launcher no longer waits for this process
        os._exit(0)
    os.close(gate)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:  # Python's own generator reseeds itself after a fork
        numpy_random.seed()


def _restart(command: list[str]) -> NoReturn:
    """Restart this process by its command line, as an interpreter that has imported nothing."""
    for number in IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    sys.stdout.flush()
    os.execvp(command[0], command)


def _replace_environment(environment: dict[str, str]) -> None:
    for name in [name for name in os.environ if name not in environment]:
        del os.environ[name]
    for name, value in environment.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _has_python_threads() -> bool:
    threading = sys.modules.get("threading")
    return threading is not None and threading.active_count() > 1


def _fork() -> int:
    """Fork without Python's warning about threads."""
    import warnings  # noqa: PLC0415

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


def _end_or_wait(pid: int) -> None:
    """After a fork: end the new process, and wait for that in the other one."""
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _rename(name: str) -> str:
    """Set the name of this process in a list of processes; returns the previous one."""
    before = ""
    with contextlib.suppress(OSError), open("/proc/self/comm", "r+") as file:
        before = file.read().rstrip("\n")
        file.write(name)
    return before


def _send(file: int, message: dict[str, Any], *, close: bool = False) -> None:
    text = json.dumps(message).encode()
    with contextlib.suppress(OSError):
        data = len(text).to_bytes(4, "big") + text
        while data:
            data = data[os.write(file, data) :]
    if close:
        os.close(file)


def _receive(connection: Any, socket: Any) -> tuple[dict[str, Any], list[int]]:
    """The next request with its file descriptors. Ends this process when the launcher has ended."""
    data, files = b"", []
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        part, more, _, _ = socket.recv_fds(connection, 1 << 16, 4)
        files += more
        if not part:
            os._exit(0)
        data += part
    return json.loads(data[4:]), files
