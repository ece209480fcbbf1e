"""Programs that are forked from an interpreter that has imported what they import: as without it, whatever they do."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from elastic_tfjob.runtime import cgroup, forkserver, preload, programs, protocol
from elastic_tfjob.runtime.hook_detection import ANY_S, TENSORFLOW_S
from elastic_tfjob.runtime.launcher import HUNG_S, STATUS_S, Launcher
from elastic_tfjob.runtime.programs import Child

from .pods import PYTHON, Pod, until
from .programs import tf_config

SLOW = """
import os, time
time.sleep(0.4)
imported_in = os.getpid()
"""
"""A package that takes long to import, and tells where that was."""

FIRST = """
import os
import slow
if os.environ["ELASTIC_TFJOB_GENERATION"] == "0" and os.environ.get("FIRST_WAITS"):
    import signal
    while True: signal.pause()
"""
"""What each program begins with; the first generation of those whose second one is looked at does no more."""

EVERYTHING = """
import atexit, faulthandler, gc, locale, resource, sys, threading, warnings
from pathlib import Path
main = sys.modules["__main__"]
print(sorted(set(vars(main)) - {"signal"}), main.__name__, main.__file__ if hasattr(main, "__file__") else None)
print(main.__doc__, main.__package__, main.__spec__ and main.__spec__.name, type(main.__loader__))
print(sys.argv, sys.orig_argv if hasattr(sys, "orig_argv") else None, sys.flags, sys.executable, sys._xoptions)
print(sys.path, [str(each) for each in sys.meta_path], [str(each) for each in sys.path_hooks], sys.prefix)
print(os.getcwd(), sorted((k, v) for k, v in os.environ.items() if k not in NOT_COMPARED))
print(sorted(os.listdir("/proc/self/fd")), os.getpgid(0) == os.getpid(), oct(os.umask(0o22)))
print([signal.getsignal(n) for n in signal.valid_signals()], signal.pthread_sigmask(signal.SIG_BLOCK, []))
print([line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(("SigBlk", "SigCgt"))])
print(Path("/proc/self/comm").read_text(), threading.active_count(), threading.current_thread().name)
print(faulthandler.is_enabled(), warnings.filters, sys.warnoptions, locale.setlocale(locale.LC_ALL))
for stream in sys.stdin, sys.stdout, sys.stderr:
    print(stream.name, stream.mode, stream.encoding, stream.errors, stream.line_buffering, stream.write_through)
print(resource.getrlimit(resource.RLIMIT_NOFILE), gc.isenabled(), gc.get_threshold())
print(sys.excepthook is sys.__excepthook__, sys.gettrace(), sys.getprofile(), "sitecustomize" in sys.modules)
atexit.register(print, "at the end")
"""
NOT_COMPARED = {"PYTHONPATH", "FIRST_WAITS", "ELASTIC_TFJOB_OPEN", "LINES", "COLUMNS"}

BODIES = {
    "everything": f"import signal\nNOT_COMPARED = {NOT_COMPARED}\n" + EVERYTHING,
    "exit code": "raise SystemExit(42)",
    "exit text": "import sys; sys.exit('the end')",
    "exit at once": "print('out', flush=True); os._exit(3)",
    "not flushed": "print('out', end='')",
    "traceback": "def f():\n    raise ValueError('the reason')\nf()",
    "syntax": "x = ",
    "signal": "import signal; os.kill(os.getpid(), signal.SIGTERM)",
    "segment": "import ctypes; ctypes.string_at(0)",
    "broken pipe": "import signal; print(signal.getsignal(signal.SIGPIPE)); os.write(1, b'x')",
    "interrupted": "import signal; signal.raise_signal(signal.SIGINT)",
    "handler": "import signal, sys; signal.signal(15, lambda *_: sys.exit(9)); os.kill(os.getpid(), 15)",
    "atexit": "import atexit\natexit.register(print, 'last')\natexit.register(print, 'first')\nraise KeyError(1)",
    "warning": "import warnings; warnings.warn('old', DeprecationWarning)",
    "subprocess": "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import sys; print(sys.path)'])",
    "spawned": (
        "import multiprocessing\n"
        "def f(x): return x + 1\n"
        "if __name__ == '__main__':\n    print(multiprocessing.get_context('spawn').Pool(1).map(f, [1, 2]))"
    ),
    "child": "pid = os.fork()\nif pid == 0: os._exit(7)\nprint(os.waitpid(pid, 0)[1])",
    "exec": "import sys; os.execv(sys.executable, [sys.executable, '-c', 'import sys; print(sys.argv); sys.exit(6)'])",
    "closes files": "os.closerange(3, 500); print('out')",
    "closes all": "os.closerange(0, 500); os._exit(5)",
    "threads": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()",
    "modules": "import sys\nfor n in [n for n in sys.modules if n.startswith('elastic')]: del sys.modules[n]\nprint(1)",
    "own argv": "import sys; sys.argv[:] = ['other']; open('/proc/self/comm', 'w').write('mine'); print(sys.argv)",
    "session": "os.setsid() if os.getpid() != os.getpgid(0) else print('leads'); print(1)",
    "stdin": "import sys; print(repr(sys.stdin.read()))",
    "asyncio": "import asyncio\nasync def f(): return 5\nprint(asyncio.run(f()))",
    "unraisable": "class A:\n    def __del__(self): raise ValueError('x')\na = A(); del a; print(1)",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "slow.py").write_text(SLOW)
    return tmp_path


@pytest.fixture
def pods() -> Iterator[list[Pod]]:
    made: list[Pod] = []
    yield made
    for each in made:
        each.stop()


def start(pod: Pod) -> dict[str, Any]:
    return (protocol.read(pod.shared / protocol.LAUNCHER) or {}).get("start") or {"way": None, "why": None}


def interpreters(pod: Pod, package: str = "slow") -> list[int]:
    """The interpreters to fork from that there have been so far. The launcher notes one when it has it; its status is
    for a moment that of the one before."""
    return [int(pid) for pid in re.findall(rf"interpreter with {package} started as (\d+)", pod.log)]


def alone(command: list[str], pod: Pod, environment: Mapping[str, str]) -> tuple[int, str]:
    """Exit code and output of a program that is started as the launcher starts it, but by nobody."""
    path = f"{pod.launcher}:{pod.environment['PYTHONPATH']}"
    variables = {
        **os.environ,
        **pod.environment,
        "ELASTIC_TFJOB_DIR": str(pod.shared),
        "ELASTIC_TFJOB_COMMAND": str(pod.command_file),
        **environment,
        "PYTHONPATH": path,
    }
    with open(pod.directory / "alone", "wb") as output:
        done = subprocess.run(
            command, env=variables, stdout=output, stderr=output, process_group=0, check=False, stdin=subprocess.DEVNULL
        )
    code = done.returncode if done.returncode >= 0 else 128 - done.returncode
    return code, (pod.directory / "alone").read_text()


def flags(name: str) -> list[str]:
    return {"warning": ["-W", "error"], "segment": ["-X", "faulthandler"], "not flushed": ["-u"]}.get(name, [])


AT_ONCE = ("everything", "exit code", "traceback", "syntax", "interrupted", "exec", "subprocess", "spawned")
"""Of these the first generation is looked at, too: the program that leaves the interpreter behind."""
OFTEN = ("everything", "exit code", "traceback", "signal", "threads", "subprocess", "exec", "asyncio", "not flushed")
"""What most programs do; all else is in `make test-all`."""


@pytest.mark.parametrize(
    ("body", "generation"),
    [
        ("everything", 0),
        *(pytest.param(body, 0, marks=pytest.mark.thorough) for body in AT_ONCE[1:]),
        *((body, 1) for body in OFTEN),
        *(pytest.param(body, 1, marks=pytest.mark.thorough) for body in BODIES if body not in (*OFTEN, "syntax")),
    ],
)
def test_side_by_side(folder: Path, pods: list[Pod], body: str, generation: int) -> None:
    """All that can be seen is as in a process of its own, in the program that leaves an interpreter behind and in the
    one that is forked from it."""
    program = folder / "program.py"
    program.write_text(f'"""A program."""\n{FIRST}\n{BODIES[body]}\n')
    command = [PYTHON, *flags(body), str(program), "--a", "b c", "ü"]
    compare(folder, pods, command, generation)


@pytest.mark.parametrize(
    ("kind", "generation"),
    [
        pytest.param("package", 0, marks=pytest.mark.thorough),
        pytest.param("code", 0, marks=pytest.mark.thorough),
        *((k, 1) for k in ("module", "package", "code", "options", "relative", "link")),
    ],
)
def test_side_by_side_by_command_line(
    folder: Path, pods: list[Pod], kind: str, generation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f'"""A program."""\n{FIRST}\n{BODIES["everything"]}\n'
    there = folder / "there"
    (there / "inside").mkdir(parents=True)
    for path in (there / "program.py", there / "inside" / "program.py"):
        path.write_text(source)
    (there / "inside" / "__init__.py").touch()
    (there / "link.py").symlink_to(there / "inside" / "program.py")
    monkeypatch.chdir(there)
    command = {
        "module": ["-m", "program", "x"],
        "package": ["-u", "-m", "inside.program"],
        "code": ["-c", source, "x", "-y"],
        "options": ["-X", "dev", "-Wdefault", "-O", "-B", "-q", "program.py"],
        "relative": ["inside/program.py"],
        "link": ["link.py", "-v"],
    }[kind]
    compare(folder, pods, [PYTHON, *command], generation)


def same(output: str) -> str:
    """Without addresses in memory."""
    return re.sub("0x[0-9a-f]{6,}", "0x", output)


def _config_of(generation: int) -> str:
    """A server whose port stays would go on."""
    return tf_config("ps", port=2222 + generation % 2)


def compare(folder: Path, pods: list[Pod], command: list[str], generation: int) -> None:
    variables = {"PYTHONPATH": str(folder / "site-packages"), "TF_CONFIG": tf_config("ps")}
    waits = {"FIRST_WAITS": "1"} if generation else {}
    pod = Pod(folder / "pod", command, {**variables, **waits})
    pods.append(pod)
    config = _config_of(generation)
    code, output = alone(command, pod, {"ELASTIC_TFJOB_GENERATION": str(generation), "TF_CONFIG": config})
    standard_input = os.dup(0)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    try:
        pod.start()
    finally:
        os.dup2(standard_input, 0)
        os.close(standard_input)
    if generation:
        until("there is an interpreter to fork from", lambda: start(pod)["way"] == "fork")
        pod.command("run", 1, tf_config=config)
    assert pod.wait() == code
    assert same(pod.output) == same(output)
    if generation:
        assert "generation 1 was forked" in pod.log


# -- programs that a fork may not agree with -----------------------------------------------------------------------


MakeForked = Callable[..., Pod]


@pytest.fixture
def forked(folder: Path, pods: list[Pod]) -> MakeForked:
    """A pod whose first generation has begun; `ready`: and has left an interpreter to fork from."""

    def make(source: str, *, command: list[str] | None = None, ready: bool = True, **environment: str) -> Pod:
        (folder / "program.py").write_text(source)
        variables = {"PYTHONPATH": str(folder / "site-packages"), "TF_CONFIG": tf_config("ps"), **environment}
        pod = Pod(folder / "pod", command or [PYTHON, str(folder / "program.py")], variables)
        pods.append(pod)
        pod.start()
        if ready:
            until("there is an interpreter to fork from", lambda: start(pod)["way"] == "fork")
        return pod

    return make


PRINTS = (
    FIRST
    + """
import sys, time
print(os.environ["ELASTIC_TFJOB_GENERATION"], "forked" if slow.imported_in != os.getpid() else "own", flush=True)
time.sleep(600)
"""
)


def runs(pod: Pod, generation: int, how: str) -> None:
    if generation:
        pod.command("run", generation, tf_config=_config_of(generation))
    # For an interpreter that does not answer the launcher waits ANSWER_S.
    until(f"generation {generation} runs", lambda: f"{generation} {how}\n" in pod.output, 60 + forkserver.ANSWER_S)


def test_generations_are_forked_from_the_imports_of_the_first_one(forked: MakeForked) -> None:
    pod = forked(PRINTS)
    runs(pod, 0, "own")  # the interpreter is there before
    for generation in (1, 2, 3):
        runs(pod, generation, "forked")
    assert pod.output.splitlines() == ["0 own", "1 forked", "2 forked", "3 forked"]
    assert start(pod) == {"way": "fork", "why": "", "packages": ["slow"]}
    pod.signal(signal.SIGTERM)
    assert pod.wait() == 143
    (stays,) = interpreters(pod)
    until("the interpreter ends with the launcher", lambda: not Path(f"/proc/{stays}").exists())


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_without_the_interpreter_a_program_is_started_by_exec(forked: MakeForked, how: str) -> None:
    pod = forked(PRINTS)
    runs(pod, 0, "own")
    (stays,) = interpreters(pod)
    os.kill(stays, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    runs(pod, 1, "own")
    if how == "stopped":
        os.kill(stays, signal.SIGCONT)  # what it forks now must not run
    until("there is another", lambda: len(interpreters(pod)) == 2 and start(pod)["way"] == "fork")
    runs(pod, 2, "forked")
    assert sorted(pod.output.splitlines()) == ["0 own", "1 own", "2 forked"]


def test_a_changed_program_is_started_by_exec(forked: MakeForked, folder: Path) -> None:
    pod = forked(PRINTS)
    runs(pod, 0, "own")  # it has read its file
    changed = PRINTS.replace("import slow", "import json\nos.environ['TF_NEW'] = '1'\nimport slow")
    (folder / "program.py").write_text(changed)
    runs(pod, 1, "own")
    until("there is another", lambda: len(interpreters(pod)) == 2 and start(pod)["way"] == "fork")
    runs(pod, 2, "forked")


@pytest.mark.parametrize(
    ("command", "why"),
    [
        pytest.param(["sh", "-c", f"exec {PYTHON} program.py"], "the command is not python", id="shell"),
        pytest.param(
            [PYTHON, "-E", "program.py"], "keeps the launcher's module from being loaded", id="environment ignored"
        ),
        pytest.param([PYTHON, "-", "x"], "has no script", id="standard input"),
    ],
)
def test_a_program_that_cannot_be_forked_is_started_by_exec(
    forked: MakeForked, folder: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], why: str
) -> None:
    monkeypatch.chdir(folder)
    source = "import os, time; print(os.environ['ELASTIC_TFJOB_GENERATION'], flush=True); time.sleep(600)"
    pod = forked(source, command=command, ready=False)
    until("it says why", lambda: why in (start(pod)["why"] or ""))
    assert start(pod)["way"] == "exec"
    if "-" not in command:
        until("it runs", lambda: pod.output == "0\n")
        pod.command("run", 1, tf_config=_config_of(1))
        until("the next one runs", lambda: pod.output == "0\n1\n")


@pytest.mark.parametrize(
    ("package", "why"),
    [
        ("import threading\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()", "start threads"),
        ("os.chdir('/')", "changed the working directory"),
        ("raise SystemExit(0) if os.environ.get('ELASTIC_TFJOB_GENERATION') == '9' else ValueError", "ValueError"),
        ("import helper", "has a module helper"),
    ],
)
def test_packages_that_cannot_be_shared(forked: MakeForked, folder: Path, package: str, why: str) -> None:
    """The program imports them itself, as without all this."""
    (folder / "site-packages" / "slow.py").write_text(SLOW + package)
    (folder / "site-packages" / "helper.py").write_text("where = 'site-packages'")
    (folder / "helper.py").write_text("where = 'own'")
    source = "import slow\nprint(slow.helper.where if hasattr(slow, 'helper') else 1, slow.imported_in, os.getcwd())"
    source = "import os\n" + source + "\nimport time; time.sleep(600)"
    pod = forked(source, ready=False)
    until("it says why", lambda: why in (start(pod)["why"] or ""))
    if why == "ValueError":
        assert pod.wait() == 1
        assert pod.output.count("Traceback") == 1
    elif "helper" in why:
        until("it runs", lambda: pod.output.startswith("own "))
    else:
        until("it runs", lambda: pod.output.startswith("1 "))


NEEDS_ITS_OWN = """
import os
import slow
import sys, time
from pathlib import Path
from elastic_tfjob.runtime import protocol
if slow.imported_in != os.getpid():
    sys.exit("I am a fork")
generation = int(os.environ["ELASTIC_TFJOB_GENERATION"])
folder = protocol.generation_directory(Path(os.environ["ELASTIC_TFJOB_DIR"]), generation)
protocol.write(folder / protocol.HELLO, {})
protocol.write(folder / protocol.READY, {})
while True: time.sleep(0.1)
"""


def test_a_program_that_fails_when_forked_is_started_by_exec(forked: MakeForked) -> None:
    pod = forked(NEEDS_ITS_OWN, TF_CONFIG=tf_config("chief"))
    until("it can be rescaled", lambda: pod.status["modes"])
    pod.command("prepare", 1, mode="overlap", tf_config=tf_config("chief"))
    until("it is ready", lambda: (pod.status["prepared"] or {}).get("state") == "ready")
    assert "[generation 1] I am a fork" in pod.output
    assert start(pod)["way"] == "exec"
    assert "I am a fork" in start(pod)["why"], "and it is told"
    pod.command("run", 0, tf_config=tf_config("chief"))
    until("it is gone", lambda: pod.status["prepared"] is None)
    pod.command("prepare", 2, mode="overlap", tf_config=tf_config("chief"))
    until("it is ready", lambda: (pod.status["prepared"] or {}).get("state") == "ready")
    assert pod.output.count("I am a fork") == 1, "it was asked once"


def test_a_program_that_hangs_when_forked_is_started_by_exec(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "3600"], start_new_session=True) as hangs:
        launcher = Launcher(["python3", "x.py"], tmp_path, None, tf_config("chief"))
        prepared = Child(1, tf_config("chief"), pid=hangs.pid, forked=True, started_at_s=100.0)
        launcher.programs.prepared = prepared
        launcher._watch_prepared(100.0 + HUNG_S)
        assert launcher.programs.prepared is prepared
        assert not launcher.programs.forks.suspected
        launcher._watch_prepared(101.0 + HUNG_S)
        assert launcher.programs.prepared is None
        assert launcher.programs.forks.suspected, "the next one is no fork"
        assert launcher.programs.stopping == [prepared]
        assert hangs.wait(60) == -signal.SIGKILL


def test_a_forked_program_with_a_checkpoint_is_not_taken_for_hung(tmp_path: Path) -> None:
    launcher = Launcher(["python3", "x.py"], tmp_path, None, tf_config("chief"))
    launcher.programs.prepared = Child(1, tf_config("chief"), pid=1 << 30, forked=True, started_at_s=100.0)
    folder = protocol.generation_directory(tmp_path, 1)
    folder.mkdir(parents=True)
    protocol.write(folder / protocol.HELLO, {})
    launcher._watch_prepared(1000.0)
    assert launcher.programs.prepared is not None


def test_a_program_that_imports_tensorflow_but_not_the_hook_does_not_use_it(folder: Path, forked: MakeForked) -> None:
    """TensorFlow before 2.21 names no threads by which its use could be seen."""
    (folder / "site-packages" / "tensorflow.py").write_text(SLOW)
    pod = forked("import tensorflow\nimport time\nwhile True: time.sleep(1)", TF_CONFIG=tf_config("chief"))
    until("the launcher knows what is imported", lambda: interpreters(pod, "tensorflow"))
    began = time.monotonic()
    until("it is concluded", lambda: pod.status["hook"] is False, ANY_S - 60)
    assert time.monotonic() - began >= TENSORFLOW_S - STATUS_S


@pytest.mark.parametrize(
    ("names", "found"), [([], False), (["nvidiactl"], False), (["nvidia0"], True), (["nvidia3"], True), (["kfd"], True)]
)
def test_gpus_are_seen_by_their_devices(
    names: list[str], found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in names:
        (tmp_path / name).touch()
    monkeypatch.setattr(programs, "DEVICES", tmp_path)
    assert programs.has_gpu() == found


def test_a_program_that_fails_forked_and_by_exec_has_failed(forked: MakeForked) -> None:
    source = NEEDS_ITS_OWN.replace("if slow", 'if os.environ["ELASTIC_TFJOB_GENERATION"] == "1" or slow')
    pod = forked(source, TF_CONFIG=tf_config("chief"))
    until("it can be rescaled", lambda: pod.status["modes"])
    pod.command("prepare", 1, mode="overlap", tf_config=tf_config("chief"))
    until("it has failed", lambda: (pod.status["prepared"] or {}).get("state") == "failed")
    assert pod.status["prepared"]["why"] == "the program ended with exit code 1: I am a fork"
    assert pod.log.count("generation 1 was forked") == 1
    assert pod.status["generation"] == 0


def test_after_an_early_failure_the_next_container_imports_nothing_ahead(forked: MakeForked) -> None:
    source = (
        "import os\nimport slow\nimport sys, time\n"
        "while not os.path.exists(os.environ['ELASTIC_TFJOB_DIR'] + '/end'): time.sleep(0.01)\n"
        "print(os.getpid())\nsys.exit(4)"
    )
    pod = forked(source)
    end = pod.shared / "end"
    end.touch()
    assert pod.wait() == 4
    end.unlink()
    pod.start()
    until("it says why", lambda: "ended with exit code 4" in (start(pod)["why"] or ""))
    end.touch()
    assert pod.wait() == 4
    end.unlink()
    pod.start()
    until("once", lambda: start(pod)["way"] == "fork")


LATE = """
def main():
    import os
    if int(os.environ["ELASTIC_TFJOB_GENERATION"]) >= 2: os.environ["TF_LATE"] = "2"
    os.environ.setdefault("TF_LATE", "1")
    import large, time
    from elastic_tfjob.runtime import preload
    preload.report_imports()
    print(os.environ["ELASTIC_TFJOB_GENERATION"], large.imported_with, large.imported_in == os.getpid(), flush=True)
    time.sleep(600)
main()
"""


def said(pod: Pod, line: str) -> bool:
    return f"{line}\n" in pod.output


def left(pod: Pod, count: int) -> bool:
    """Whether there have been so many interpreters, and the last one is there."""
    return len(interpreters(pod, "large")) == count and start(pod)["way"] == "fork"


def test_late_imports_are_known_from_the_previous_generation(forked: MakeForked, folder: Path) -> None:
    package = folder / "site-packages" / "large"
    package.mkdir()
    imports = "".join(f"import large.part{n}\n" for n in range(preload.LARGE))
    (package / "__init__.py").write_text(f"{SLOW}imported_with = os.environ['TF_LATE']\n{imports}")
    for n in range(preload.LARGE):
        (package / f"part{n}.py").touch()
    pod = forked(LATE, ready=False)
    until("it says why", lambda: "not known yet" in (start(pod)["why"] or ""))
    for generation, what in enumerate(("0 1 True", "1 1 True", "2 1 False", "3 2 True", "4 2 False")):
        if generation:
            pod.command("run", generation, tf_config=_config_of(generation))
        until("it runs", partial(said, pod, what))
        if generation in (1, 3):
            until("there is an interpreter", partial(left, pod, (generation + 1) // 2))


def test_reasons_not_to_keep_an_interpreter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    archive = tmp_path / "launcher.pyz"
    archive.touch()

    def why(limit: int | None = None, *, gpu: bool = False, folder: bool = False) -> str:
        monkeypatch.setattr(cgroup, "usage", lambda: {"limit_bytes": limit})
        return forkserver.Forks(["python3", "x.py"], str(tmp_path if folder else archive), gpu=gpu).why

    assert why() == why(limit=1 << 30) == "there is no interpreter to fork from yet"
    assert why(limit=1 << 29) == "the container's memory limit is 512 MiB; at least 1024 MiB are needed"
    assert "GPU" in why(gpu=True)
    assert "archive" in why(folder=True)


def test_the_interpreter_ends_if_memory_is_needed_for_two_programs(tmp_path: Path) -> None:
    own = forkserver.MOST_OWN_BYTES
    for used, limit, goes in ((10 * own, 20 * own, False), (10 * own, 19 * own, True), (10 * own, 17 * own, False)):
        forks = forkserver.Forks(["python3", "x.py"], str(tmp_path), gpu=False)
        forks.pid = 1
        forks.make_room(used, limit)
        assert forks.ready is not goes


@pytest.mark.parametrize(
    "wrote",
    [
        None,
        [],
        {},
        {"packages": "tensorflow"},
        {"packages": [1, None, "a b", "../x"]},
        {"environment": [1]},
        {"environment": {"TF_X": 1, "TF_\0": "", "TF_=": "1", "PATH": "/", "TF_CONFIG": "{}"}},
    ],
)
def test_any_content_written_by_a_program_is_handled(wrote: Any) -> None:
    told = wrote if isinstance(wrote, dict) else {}
    assert preload.valid_packages(told.get("packages")) == []
    assert preload.valid_variables(told.get("environment")) == {}
    assert len(preload.valid_packages([f"a{n}" for n in range(1000)])) == preload.MAX_PACKAGES
    assert len(preload.valid_variables({f"TF_{n}": "" for n in range(1000)})) == preload.MAX_VARIABLES


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (
            "import json, os\nimport pytest as p\nfrom pytest import fixture\nx = 1\nprint()\nimport ruff",
            ["pytest", "pytest"],
        ),
        ("import sys\nsys.path.insert(0, '')\nimport pytest", []),
        ("try:\n    import pytest\nexcept ImportError: pass", []),
        ("import os\nos.environ['TF_X'] = '1'\nimport pytest\nos.environ['TF_Y'] = '1'", ["TF_X", "pytest"]),
        ("import os\nos.environ['TF_X'] = str(1)\nimport pytest", []),
        ("import no_such_module\nimport pytest", []),
        ("from . import x\nimport pytest", []),
        ("from pytest import *", []),
        ("import pytest; x = (", []),
        ("# -*- coding: latin-1 -*-\nimport pytest", ["pytest"]),
        ("\0", []),
    ],
)
def test_imports_at_the_top_of_a_program(source: str, names: list[str]) -> None:
    """As far as nothing is done but importing what is installed, and setting variables."""
    assert [step.name for step in preload.steps(preload.Program("code", source))] == names
