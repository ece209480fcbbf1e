"""A launcher whose command is not the program but starts it: shells, scripts, `timeout`, sessions of their own. Signals
reach the program once, the container waits for it, and no rescale leaves an older one behind."""

import contextlib
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from elastic_tfjob.runtime import processes
from harness.controlplane import free_port

from .pods import Pod, until
from .programs import SERVER, TRAINER, tf_config

SAVES = """
import os, signal, sys, time

times = []

def note(number, frame):
    times.append(number)

for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, note)
print("up", os.getpid(), flush=True)
while not times:
    time.sleep(0.01)
print("saves", flush=True)
time.sleep(1.0)
print("saved, signals:", len(times), flush=True)
sys.exit(0)
"""
"""Takes a second to save when it is told to end, and says how often it was."""
HELLO = """
import os
from pathlib import Path
from elastic_tfjob.runtime import protocol
generation = protocol.generation_directory(Path(os.environ[protocol.DIRECTORY]), int(os.environ[protocol.GENERATION]))
protocol.write(generation / protocol.HELLO, {"pid": os.getpid()})
"""
SUPERVISOR = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, {program!r}]))"

COMMANDS = {
    "a shell": 'sh -c "cd / && {python}; echo after"',
    "a shell in a shell": "sh -c 'bash -c \"{python}; true\"; true'",
    "a shell that ignores it": "bash -c 'trap \"\" TERM; {python}; true'",
    "a shell with a trap that waits for the command": "bash -c 'trap \"echo trapped\" TERM; {python}; true'",
    "dash with such a trap": "dash -c 'trap \"echo trapped\" TERM; {python}; true'",
    "a shell that passes it on": "bash -c 'trap \"kill -TERM \\$!\" TERM; {python} & wait $!; wait $!'",
    "one that passes it on and ends": "bash -c 'trap \"kill -TERM \\$!\" TERM; {python} & wait $!'",
    "a background": "sh -c '{python} & wait'",
    "job control": "bash -c 'set -m; {python}; true'",
    "a session of its own": "sh -c 'setsid -w {python}; true'",
    "an orphan in a session of its own": "sh -c 'setsid --fork {python}; sleep 600; true'",
    "nice": "nice -n 1 {python}",
    "timeout": "timeout 600 {python}",
    "timeout of a shell": "timeout 600 sh -c '{python}; true'",
    "a log by tee": "sh -c '{python} 2>&1 | tee -a {log}'",
    "a log by tee of bash": "bash -c 'set -o pipefail; {python} 2>&1 | tee -a {log} | cat; true'",
    "a log by substitution": "bash -c '{python} > >(tee -a {log}); true'",
    "its input from a pipe": "sh -c 'yes | {python}; true'",
    "an interpreter": f"{sys.executable} {{supervisor}}",
}
DEFERS = ["a shell that passes it on", "job control"]


@pytest.fixture
def wrapped(tmp_path: Path) -> Iterator[Callable[..., Pod]]:
    """A pod whose command is one of COMMANDS (or a text like those), for a program of this source."""
    pods: list[Pod] = []

    def make(command: str, source: str, **environment: str) -> Pod:
        program, supervisor = tmp_path / "program.py", tmp_path / "supervisor.py"
        program.write_text(source)
        supervisor.write_text(SUPERVISOR.format(program=str(program)))
        text = COMMANDS.get(command, command)
        words = shlex.split(
            text.format(python=f"{sys.executable} {program}", log=tmp_path / "log", supervisor=supervisor)
        )
        pods.append(Pod(tmp_path / f"pod{len(pods)}", words, {"TF_CONFIG": tf_config("chief"), **environment}))
        return pods[-1]

    yield make
    for pod in pods:
        left = programs(pod)
        pod.stop()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def programs(pod: Pod) -> dict[int, int]:
    """Generation by number of the processes that have this pod's directory in their environment."""
    found = {}
    for pid in processes.running():
        environment = processes._environment(pid)
        if f"ELASTIC_TFJOB_DIR={pod.shared}".encode() in environment:
            numbers = [each.split(b"=")[1] for each in environment if each.startswith(b"ELASTIC_TFJOB_GENERATION=")]
            if numbers:
                found[pid] = int(numbers[0])
    return found


@pytest.mark.parametrize(
    ("command", "hook"),
    [*((each, False) for each in COMMANDS), *((each, True) for each in (*DEFERS, "an interpreter"))],
)
def test_the_program_behind_a_wrapper_saves_before_the_container_ends(
    wrapped: Callable[..., Pod], command: str, hook: bool
) -> None:
    pod = wrapped(command, HELLO + SAVES if hook else SAVES).start()
    until("it is up", lambda: "up" in pod.output)
    time.sleep(0.1)
    pod.signal(signal.SIGTERM)
    pod.wait()
    assert "saved" in pod.output
    if not hook:
        # `timeout` signals its child, and then its group.
        assert any(f"signals: {count}" in pod.output for count in ((1, 2) if "timeout" in command else (1,)))


# -- what goes wrong in wrappers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "code"),
    [('sh -c "{python}; exit 3"', 143), ("bash -c 'trap \"exit 4\" TERM; {python}'", 4), ("{python}", 0)],
)
def test_the_exit_code_is_that_of_the_wrapper(wrapped: Callable[..., Pod], command: str, code: int) -> None:
    pod = wrapped(command, SAVES).start()
    until("it is up", lambda: "up" in pod.output)
    pod.signal(signal.SIGTERM)
    assert pod.wait() == code
    assert "saved, signals: 1" in pod.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_other_termination_signals_reach_the_program(wrapped: Callable[..., Pod], number: int) -> None:
    pod = wrapped('sh -c "{python}; true"', SAVES).start()
    until("it is up", lambda: "up" in pod.output)
    pod.signal(number)
    assert pod.wait() == 128 + number
    assert "saved" in pod.output


FAMILY = """
import os, signal, subprocess, sys, time
helper = "import os, signal, sys, time; {handler}; print('helper', flush=True); time.sleep(600)"
children = [subprocess.Popen([sys.executable, "-c", helper]) for _ in range(2)]
def end(*_):
    print("alive:", sum(child.poll() is None for child in children), flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("up", flush=True)
while True:
    time.sleep(0.1)
"""


@pytest.mark.parametrize("handler", ["pass", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"])
@pytest.mark.parametrize("command", ["{python}", 'sh -c "{python}; true"'])
def test_child_processes_of_the_program_are_not_signalled(
    wrapped: Callable[..., Pod], command: str, handler: str
) -> None:
    """Processes that read its data: without them it could not make the step after which it saves."""
    pod = wrapped(command, FAMILY.replace("{handler}", handler)).start()
    until("all are up", lambda: "up" in pod.output and pod.output.count("helper") == 2)
    begin = time.monotonic()
    pod.signal(signal.SIGTERM)
    pod.wait()
    assert "alive: 2" in pod.output
    assert time.monotonic() - begin < 4, "helpers that ignore the signal are not waited for"


def test_a_program_that_ends_by_itself_ends_the_container(wrapped: Callable[..., Pod]) -> None:
    """Whatever it has left, as without the launcher."""
    pod = wrapped("sh -c '{python} & sleep 0.5; exit 5'", SAVES).start()
    assert pod.wait() == 5
    assert "saves" not in pod.output


# -- rescales ---------------------------------------------------------------------------------------------------------

OUTLIVES = [
    'sh -c "cd / && {python}; true"',
    "bash -c 'set -m; {python}; true'",
    "sh -c 'setsid -w {python}; true'",
    f"{sys.executable} {{supervisor}}",
]
"""Commands whose program is not the process that is started; of some not even in its process group."""
MORE_THAT_OUTLIVE = [pytest.param(OUTLIVES[index], marks=pytest.mark.thorough) for index in (0, 1, 3)]


def only(pod: Pod, generation: int) -> None:
    """Wait until no process of another generation is left."""
    until(f"only generation {generation} is left", lambda: set(programs(pod).values()) == {generation})


def trains(pod: Pod, generation: int) -> bool:
    return f"generation {generation} trains" in pod.output


@pytest.mark.parametrize("command", [OUTLIVES[2], *MORE_THAT_OUTLIVE])
def test_a_switch_leaves_no_second_program(wrapped: Callable[..., Pod], command: str) -> None:
    pod = wrapped(command, TRAINER).start()
    until("it trains", lambda: "generation 0 trains" in pod.output)
    for generation in (1, 2):
        config = tf_config("chief", port=3000 + generation)
        pod.command("prepare", generation, tf_config=config)
        until("it is ready", lambda: (pod.status["prepared"] or {}).get("state") == "ready")
        if generation == 1:
            pod.command("run", 0)  # taken back
            only(pod, 0)
            pod.command("prepare", generation, tf_config=config)
            until("it is ready again", lambda: (pod.status["prepared"] or {}).get("state") == "ready")
        pod.command("switch", generation, tf_config=config)
        until("it trains", partial(trains, pod, generation))
        only(pod, generation)
    assert "goes on" not in pod.output, "what has saved has made no further step"
    assert pod.started.poll() is None


@pytest.mark.parametrize("command", [OUTLIVES[2], *MORE_THAT_OUTLIVE[:2]])
def test_a_prepared_program_that_fails_leaves_nothing(wrapped: Callable[..., Pod], command: str) -> None:
    pod = wrapped(command.replace("; true", ""), TRAINER, TOLD_1="crash").start()
    until("it trains", lambda: "generation 0 trains" in pod.output)
    pod.command("prepare", 1, tf_config=tf_config("chief", port=3001))
    until("it failed", lambda: (pod.status["prepared"] or {}).get("state") == "failed")
    only(pod, 0)


@pytest.mark.parametrize(("command", "stubborn"), [(OUTLIVES[0], True), (OUTLIVES[1], True), (OUTLIVES[2], False)])
def test_a_server_is_replaced(wrapped: Callable[..., Pod], command: str, stubborn: bool) -> None:
    old, new = free_port(), free_port()
    environment = {"STUBBORN": "1"} if stubborn else {}
    pod = wrapped(command, SERVER, **environment, TF_CONFIG=tf_config("ps", port=old)).start()
    until("it serves", lambda: f"serves at {old}" in pod.output)
    pod.command("run", 2, tf_config=tf_config("ps", port=new))
    until("the new one serves", lambda: f"serves at {new}" in pod.output)
    only(pod, 2)


@pytest.mark.parametrize("command", OUTLIVES[::2])
def test_a_program_that_is_replaced_unprepared_saves(wrapped: Callable[..., Pod], command: str) -> None:
    pod = wrapped(command, SAVES).start()
    until("it is up", lambda: "up" in pod.output)
    pod.command("run", 2, tf_config=tf_config("chief", port=3002))
    until("the next is up", lambda: pod.output.count("up") == 2)
    assert "saved" in pod.output
    only(pod, 2)


# -- with the real hook -----------------------------------------------------------------------------------------------

LEARNS = """
import time
import tensorflow as tf
from elastic_tfjob.runtime import ElasticCheckpoint

variable = tf.Variable(0)
elastic = ElasticCheckpoint(tf.train.Checkpoint(variable=variable), every_s=600)
step = elastic.resume()
print("from", step, flush=True)
while True:
    time.sleep(0.002)
    step += 1
    variable.assign(step)
    elastic.step(step)
    if step % 50 == 0:
        print("at", step, flush=True)
"""


@pytest.mark.timeout(900)
@pytest.mark.xdist_group("tensorflow-1")
def test_no_step_is_lost_behind_a_shell(wrapped: Callable[..., Pod], tmp_path: Path) -> None:
    directory = str(tmp_path / "checkpoints")
    pod = wrapped('sh -c "cd / && {python}; true"', LEARNS, ELASTIC_TFJOB_CHECKPOINT_DIR=directory).start()
    until("it trains", lambda: pod.output.count("at ") >= 4, 600)
    until("it has the hook", lambda: pod.status["hook"], 60)
    pod.signal(signal.SIGTERM)
    assert pod.wait(300) == 143
    status, printed = pod.status, int(pod.output.split()[-1])
    assert status["checkpoint"]["step"] == status["step"] >= printed > 0
