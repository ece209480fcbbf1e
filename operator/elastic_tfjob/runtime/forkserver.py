"""An interpreter that has imported what the program imports, and from which later generations are forked.

It comes about beside a program, and costs no import of its own: the launcher starts the program's own command line with
a `sitecustomize` of ours, which Python imports before it looks at the program. That does what the program begins with
(preload.py), forks, and goes on: the process that was started is the program, the fork stays where it is and
sleeps. Asked for a generation, it forks again, and that one goes on into the program, as if it had just been started:
the same command line, `__main__`, standard streams, all by the interpreter's own hand.

Nothing of the program has run in what sleeps, so no program can harm it: threads, files, modules, signal handlers of
one generation are not the next one's. Where a process has imported what the program would not have (a module of the
same name is in its folder) or an import failed, it begins anew as what it is, by exec.

The launcher's end: forking.py. Over a socket, each message its length in 4 bytes and JSON; a request comes with file
descriptors: the gate, at which the forked process says who it is and waits, and its standard error if that is a pipe.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from typing import Any, NoReturn

from elastic_tfjob.runtime import preload, protocol

# -- What the launcher and the interpreter that programs are forked from must agree on ---------------------------------
# Forking.py, forkserver.py.
#
# Both are imported before the user's program by any Python from 3.9 on, so this imports next to nothing.

VARIABLE = "ELASTIC_TFJOB_FORK"
"""What the launcher tells a process that is to leave an interpreter behind: JSON of the keys of `forkserver.begin`.
start/sitecustomize.py, which must not fail in any Python, has the name once more."""
DESCRIPTOR = 201
"""The end of the socket by which that interpreter is asked for forks."""
OWN_STDERR = 200
"""The descriptor by which a program has the container's standard error, where its own is a pipe (stderr_pipe.py). None
that it would get itself."""
IGNORED = [signal.SIGPIPE, signal.SIGXFSZ]
"""By Python, which runs the launcher, and so by all that it starts unless that is undone."""


WORTH_S = 0.3
"""What was imported in less is not worth a process."""
MAX_MESSAGE = 1 << 24
NAME = "tfjob-forks"
"""What such a process is called in a list of processes."""


def begin(folder: str) -> None:
    """In the process that the launcher started, before its program begins: once in the program that was started, and
    once in each that is forked later, this returns, and all is as if it had never run."""
    try:
        told = json.loads(os.environ.pop(VARIABLE))
        if told["path"] is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = told["path"]
    except (ValueError, KeyError, TypeError):
        return
    sys.path[:] = [each for each in sys.path if each != folder]
    sys.path_importer_cache.pop(folder, None)
    os.set_inheritable(told["fd"], False)
    program, _ = preload.program_of(told["command"])
    if program is None or sys.implementation.name != "cpython":
        _say(told["fd"], {"refused": "this is another Python than CPython"}, close=True)
        return
    for name in ("sitecustomize", "usercustomize"):
        if preload.has_custom(name):
            _say(told["fd"], {"refused": f"the image has a {name} of its own"}, close=True)
            return
    _begin(told, program)


def _begin(told: dict[str, Any], program: preload.Program) -> None:
    launched, folder = dict(os.environ), os.getcwd()
    todo = preload.steps(program)
    exact = any(step.kind == "import" for step in todo)
    if not exact:
        todo += [preload.Step("default", name, value) for name, value in told["variables"].items()]
        todo += [
            preload.Step("import", name) for name in told["packages"] if not preload.has_module(program.folder, name)
        ]
    before, began, early = set(sys.modules), time.monotonic(), {}
    why = ""
    try:
        if any(step.kind == "import" for step in todo):
            preload.run(todo)
        early = preload.read_early(os.environ)
    except KeyboardInterrupt:  # as the program would be
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException as error:
        why = f"importing what it begins with failed: {type(error).__name__}"
    seconds = time.monotonic() - began
    _replace_environment(launched)
    hidden = [name for name in {each.partition(".")[0] for each in set(sys.modules) - before} if _hides(program, name)]
    if hidden:
        why = f"its folder has a module {sorted(hidden)[0][:100]}, of which the interpreter imported another"
    if not why and os.getcwd() != folder:
        why = "an import has changed the working directory"
    if why:
        _say(told["fd"], {"refused": why}, close=True)
        _anew(told["command"])
    if not any(step.kind == "import" for step in todo):
        why = "it is not known yet what the program imports"
    elif seconds < WORTH_S:
        why = f"all that it begins with is imported in {seconds:.2f} s"
    elif _python_threads():
        why = "importing leaves threads"
    if why:
        _say(told["fd"], {"refused": why}, close=True)
        return
    ready = {
        "ready": True,
        "seconds": seconds,
        "exact": exact,
        "variables": early,
        "packages": sorted({name.partition(".")[0] for kind, name, _ in todo if kind == "import"})[
            : preload.MAX_PACKAGES
        ],
    }
    _leave(told["fd"], ready, program, todo)


def _hides(program: preload.Program, name: str) -> bool:
    """Whether the program would import a module by this name from its own folder."""
    found = getattr(sys.modules.get(name), "__file__", None)
    return isinstance(found, str) and preload.has_module(program.folder, name, other_than=found)


def _leave(channel: int, ready: dict[str, Any], program: preload.Program, todo: list[preload.Step]) -> None:
    """Fork the interpreter that stays; returns in the program, and later in each that is forked from it."""
    sys.stdout.flush()
    sys.stderr.flush()
    _wait(_fork())  # those of libraries that know of forks end their threads at one, and make them anew when needed
    if len(os.listdir("/proc/self/task")) > 1:
        _say(channel, {"refused": "importing leaves threads"}, close=True)
        return
    import gc  # noqa: PLC0415

    gc.collect()
    gc.freeze()  # else each collection would write to, and so copy, what is shared
    between = _fork()
    if between:
        os.close(channel)
        _wait(between)
        return
    if _fork():  # an orphan is the launcher's own child
        os._exit(0)
    try:
        os.setpgid(0, 0)
        if os.environ.pop(protocol.STDERR, None):
            os.dup2(OWN_STDERR, 2)
            os.close(OWN_STDERR)
        name = _rename(NAME)
        _say(channel, {**ready, "pid": os.getpid()})
        _serve(channel, program, todo, name)
    except BaseException:
        os._exit(1)


def _serve(channel: int, program: preload.Program, todo: list[preload.Step], name: str) -> None:
    """Sleep, fork when asked. Returns in what was forked; ends with the launcher."""
    import socket  # noqa: PLC0415

    connection = socket.socket(fileno=channel)
    while True:
        request, files = _receive(connection, socket)
        gate = files[0]
        if preload.steps(program) != todo and any(step.kind == "import" for step in preload.steps(program)):
            _say(gate, {"refused": "what the program begins with has changed"})
            os._exit(0)
        between = _fork()
        if between:
            _wait(between)
            for file in files:
                os.close(file)
            continue
        parent = os.getpid()
        if _fork():
            os._exit(0)
        connection.close()
        _become(request, files, parent, name)
        return


def _become(request: dict[str, Any], files: list[int], parent: int, name: str) -> None:
    """What the launcher's posix_spawn does for a program that is started, and what is new in every interpreter."""
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
    _say(gate, {"pid": os.getpid(), "parent": os.getppid()})
    if os.read(gate, 1) != b"1":  # the launcher has not waited for it
        os._exit(0)
    os.close(gate)
    numbers = sys.modules.get("numpy.random")
    if numbers is not None:  # Python's own generator does so by itself
        numbers.seed()


def _anew(command: list[str]) -> NoReturn:
    """Begin again in an interpreter that has imported nothing: the same process, by its command line."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_DFL)
    sys.stdout.flush()
    os.execvp(command[0], command)


def _replace_environment(environment: dict[str, str]) -> None:
    for name in [name for name in os.environ if name not in environment]:
        del os.environ[name]
    for name, value in environment.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _python_threads() -> bool:
    threading = sys.modules.get("threading")
    return threading is not None and threading.active_count() > 1


def _fork() -> int:
    """Without the warning that Python gives where there are threads."""
    import warnings  # noqa: PLC0415

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


def _wait(pid: int) -> None:
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _rename(name: str) -> str:
    """What this process is called in a list of processes, and was called before."""
    before = ""
    with contextlib.suppress(OSError), open("/proc/self/comm", "r+") as file:
        before = file.read().rstrip("\n")
        file.write(name)
    return before


def _say(file: int, message: dict[str, Any], *, close: bool = False) -> None:
    text = json.dumps(message).encode()
    with contextlib.suppress(OSError):
        data = len(text).to_bytes(4, "big") + text
        while data:
            data = data[os.write(file, data) :]
    if close:
        os.close(file)


def _receive(connection: Any, socket: Any) -> tuple[dict[str, Any], list[int]]:
    """The next request, with its files. Ends this process with the launcher's."""
    data, files = b"", []
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        part, more, _, _ = socket.recv_fds(connection, 1 << 16, 4)
        files += more
        if not part:
            os._exit(0)
        data += part
    return json.loads(data[4:]), files
