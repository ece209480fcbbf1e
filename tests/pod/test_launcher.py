"""The launcher with real child processes: every transition, and that a job's result is as without it."""

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import elastic_tfjob.runtime
from elastic_tfjob.runtime import protocol
from harness.controlplane import free_port

from .pods import Pod, until
from .programs import SERVER, TRAINER, tf_config

MakePod = Callable[..., Pod]
CHIEF = tf_config("chief")


@pytest.fixture
def chief(make_pod: MakePod) -> Callable[..., Pod]:
    """A chief whose program trains; `told` says how generations misbehave."""

    def start(told: dict[int, str] | None = None) -> Pod:
        environment = {f"TOLD_{generation}": what for generation, what in (told or {}).items()}
        pod = make_pod(TRAINER, environment={"TF_CONFIG": CHIEF, **environment}).start()
        until("it trains", lambda: "generation 0 trains" in pod.output or (told and 0 in told))
        return pod

    return start


def prepare(pod: Pod, generation: int = 1, *, state: str = "ready") -> None:
    pod.command("prepare", generation, mode="overlap", tf_config=tf_config("chief", port=3000 + generation))
    until(
        f"generation {generation} is {state}",
        lambda: (
            (pod.status["prepared"] or {}).get("generation") == generation and pod.status["prepared"]["state"] == state
        ),
    )


def switch(pod: Pod, generation: int = 1, *, state: str, **more: object) -> dict:
    pod.command("switch", generation, mode="overlap", tf_config=tf_config("chief", port=3000 + generation), **more)
    return until(
        f"the switch is {state}",
        lambda: pod.status["switch"] if (pod.status["switch"] or {}).get("state") == state else None,
    )


def children(pod: Pod) -> dict[int, str]:
    """State by id of the launcher's child processes: R, S, Z (a zombie)..."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            _, _, rest = stat.read_text().rpartition(") ")
        except OSError:
            continue
        state, parent = rest.split()[:2]
        if int(parent) == pod.process.pid:
            found[int(stat.parent.name)] = state
    return found


# -- a job's result is as without the launcher ---------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 42])
def test_exit_code_is_the_programs(make_pod: MakePod, code: int) -> None:
    assert make_pod(f"raise SystemExit({code})").start().wait() == code


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, 137), (signal.SIGSEGV, 139), (signal.SIGTERM, 143)])
def test_death_by_signal_shows_as_in_a_container(make_pod: MakePod, number: int, code: int) -> None:
    source = f"import os, signal; signal.signal({number}, 0) if {number} != 9 else 0; os.kill(os.getpid(), {number})"
    assert make_pod(source).start().wait() == code


def test_a_signal_reaches_the_program_and_its_answer_counts(make_pod: MakePod) -> None:
    pod = make_pod(
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\nprint('up', flush=True)\nwhile True: signal.pause()"
    ).start()
    until("it is up", lambda: "up" in pod.output)
    pod.signal(signal.SIGTERM)
    assert pod.wait() == 5


def test_a_program_without_handler_ends_by_the_signal(make_pod: MakePod) -> None:
    pod = make_pod("import time; print('up', flush=True); time.sleep(60)").start()
    until("it is up", lambda: "up" in pod.output)
    pod.signal(signal.SIGTERM)
    assert pod.wait() == 143


def test_program_sees_its_environment_arguments_and_unblocked_signals(make_pod: MakePod) -> None:
    odd = '{"cluster":{},  "task":{"type":"worker","index":0}}'
    source = (
        "import json, os, signal, sys\n"
        "blocked = sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
        "print(json.dumps([os.environ['TF_CONFIG'], sys.argv[1:], blocked]))\nprint('error', file=sys.stderr)"
    )
    pod = make_pod(source, "--a", "b c", environment={"TF_CONFIG": odd}).start()
    assert pod.wait() == 0
    line, error = pod.output.splitlines()  # and nothing of the launcher's
    assert json.loads(line) == [odd, ["--a", "b c"], []]
    assert error == "error"


def test_unknown_program(tmp_path: Path) -> None:
    pod = Pod(tmp_path, ["no-such-program"]).start()
    assert pod.wait() == 127
    assert pod.output == "no-such-program: No such file or directory\n"


def test_without_a_directory_the_program_runs_alone(make_pod: MakePod) -> None:
    pod = make_pod("import os; print(os.getpid()); raise SystemExit(3)", environment={"ELASTIC_TFJOB_DIR": "/no/such"})
    pod.start()
    assert pod.wait() == 3
    assert int(pod.output) == pod.process.pid  # it has become the program


def test_orphans_are_reaped(make_pod: MakePod) -> None:
    source = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    if os.fork() == 0: time.sleep(0.3)\n"  # a grandchild that outlives its parent
        "    os._exit(0)\n"
        "os.wait()\ntime.sleep(60)"
    )
    pod = make_pod(source).start()
    until("the orphan is the launcher's", lambda: len(children(pod)) == 2)
    until("the orphan is gone", lambda: len(children(pod)) == 1)
    assert "Z" not in children(pod).values()


# -- prepare, switch, run ------------------------------------------------------------------------------------------


def test_chief_prepares_saves_and_hands_over(chief: Callable[..., Pod]) -> None:
    pod = chief()
    assert pod.status["generation"] == 0
    until("it can be rescaled", lambda: pod.status["modes"] == ["overlap", "spare"])
    prepare(pod)
    assert pod.status["generation"] == 0, "the old one trains on"
    assert "generation 1 trains" not in pod.output
    decided = switch(pod, state="committed")
    assert decided["generation"] == 1
    until("the new one trains", lambda: "generation 1 trains" in pod.output)
    assert tf_config("chief", port=3001) in pod.output
    until("the old one is gone", lambda: len(children(pod)) == 1)
    assert pod.status["generation"] == 1
    assert pod.status["prepared"] is None
    pod.command("run", 1, tf_config=tf_config("chief", port=3001))
    time.sleep(0.2)
    assert len(children(pod)) == 1, "it runs already"
    protocol.write(pod.shared / "end-1.json", {"code": 9})
    assert pod.wait() == 9


def test_switch_waits_until_the_new_one_is_ready(chief: Callable[..., Pod]) -> None:
    pod = chief()
    switch(pod, state="committed")
    until("the new one trains", lambda: "generation 1 trains" in pod.output)


def test_run_of_the_old_generation_takes_a_preparation_back(chief: Callable[..., Pod]) -> None:
    pod = chief()
    prepare(pod)
    pod.command("run", 0, tf_config=CHIEF)
    until("the prepared one is gone", lambda: len(children(pod)) == 1 and pod.status["prepared"] is None)
    assert pod.status["generation"] == 0
    prepare(pod, 2)
    switch(pod, 2, state="committed")
    until("the newer one trains", lambda: "generation 2 trains" in pod.output)


def test_newer_target_replaces_what_is_prepared(chief: Callable[..., Pod]) -> None:
    pod = chief()
    prepare(pod, 1)
    prepare(pod, 2)
    until("the one before is gone", lambda: len(children(pod)) == 2)
    switch(pod, 2, state="committed")


def test_run_takes_back_a_switch_that_still_saves(chief: Callable[..., Pod]) -> None:
    pod = chief({0: "hang"})
    until("it is up", lambda: "generation 0 trains" in pod.output)
    prepare(pod)
    switch(pod, state="saving")
    pod.command("run", 0, tf_config=CHIEF)
    until("it is refused", lambda: pod.status["switch"]["state"] == "refused")
    assert "took it back" in pod.status["switch"]["why"]
    assert not list(pod.shared.glob("generation-0/save.json"))
    until("the old one is alone", lambda: len(children(pod)) == 1)


def test_run_of_what_is_prepared_saves_first(chief: Callable[..., Pod]) -> None:
    pod = chief({0: "full"})
    until("it is up", lambda: "generation 0 trains" in pod.output)
    prepare(pod)
    pod.command("run", 1, tf_config=tf_config("chief", port=3001))
    until("it is refused", lambda: (pod.status["switch"] or {}).get("state") == "refused")
    assert pod.status["generation"] == 0, "work that is not saved is not given up"
    pod.command("run", 0, tf_config=CHIEF)
    until("the prepared one is gone", lambda: pod.status["prepared"] is None)


def test_save_that_hangs_is_refused(chief: Callable[..., Pod]) -> None:
    pod = chief({0: "hang"})
    until("it is up", lambda: "generation 0 trains" in pod.output)
    prepare(pod)
    assert switch(pod, state="refused", timeout_s=0.3)["why"] == "not saved within 0.3 s"
    time.sleep(0.2)
    assert pod.status["switch"]["state"] == "refused", "the same command is not tried again"
    assert pod.status["generation"] == 0


def test_save_that_fails_is_refused_and_can_be_tried_again(chief: Callable[..., Pod]) -> None:
    pod = chief({0: "full"})
    until("it is up", lambda: "generation 0 trains" in pod.output)
    prepare(pod)
    assert switch(pod, state="refused")["why"] == "checkpoint: disk full"
    pod.command("run", 0, tf_config=CHIEF)
    until("the prepared one is gone", lambda: pod.status["prepared"] is None)
    prepare(pod)
    assert pod.status["switch"] is None
    assert pod.status["generation"] == 0


def test_new_one_that_crashes(chief: Callable[..., Pod]) -> None:
    pod = chief({1: "crash"})
    prepare(pod, state="failed")
    assert pod.status["prepared"]["why"] == "the program ended with exit code 7"
    assert switch(pod, state="refused")["why"] == "the program ended with exit code 7"
    assert pod.process.poll() is None
    assert pod.status["generation"] == 0


def test_new_one_that_crashes_while_the_old_one_saves(chief: Callable[..., Pod]) -> None:
    pod = chief({0: "hang"})
    until("it is up", lambda: "generation 0 trains" in pod.output)
    prepare(pod)
    switch(pod, state="saving")
    (new,) = set(children(pod)) - {first_of(pod)}
    os.kill(new, signal.SIGKILL)
    until("it is refused", lambda: pod.status["switch"]["state"] == "refused")
    assert pod.status["switch"]["why"] == "the program ended with exit code 137"


def test_old_one_that_ends_ends_the_pod(chief: Callable[..., Pod]) -> None:
    pod = chief()
    prepare(pod)
    both = set(children(pod))
    protocol.write(pod.shared / "end-0.json", {"code": 0})
    assert pod.wait() == 0, "a job that has finished has finished"
    until("the prepared one is gone too", lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in both))


def test_program_that_does_not_report_is_never_doubled(chief: Callable[..., Pod]) -> None:
    pod = chief({0: "no hello"})
    until("it runs", lambda: children(pod))
    assert pod.status["modes"] == []
    prepare(pod, state="starting")
    assert "ElasticCheckpoint" in pod.status["prepared"]["why"]
    assert len(children(pod)) == 1


def first_of(pod: Pod) -> int:
    return int((pod.shared / "launcher.log").read_text().split(" started as ")[1].split(":")[0])


def test_generation_that_was_not_prepared_replaces_what_runs(chief: Callable[..., Pod]) -> None:
    pod = chief()
    pod.command("run", 4, tf_config=tf_config("chief", port=3004))
    until("it trains", lambda: "generation 4 trains" in pod.output)
    assert len(children(pod)) == 1
    assert pod.status["generation"] == 4


@pytest.mark.parametrize("text", ["{", '"run"', '{"action": "jump"}', '{"action": "run", "generation": "x"}', "null"])
def test_nonsense_changes_nothing(chief: Callable[..., Pod], text: str) -> None:
    pod = chief()
    pod.command_file.write_text(text)
    until("it is noted", lambda: "not understood" in (pod.shared / "launcher.log").read_text())
    assert pod.status["generation"] == 0
    pod.command("stop")
    time.sleep(0.2)
    assert pod.process.poll() is None
    prepare(pod)


# -- servers -------------------------------------------------------------------------------------------------------


def test_server_is_ready_when_its_port_is_open_and_runs_when_told(make_pod: MakePod) -> None:
    old, new = free_port(), free_port()
    pod = make_pod(SERVER, environment={"TF_CONFIG": tf_config("ps", port=old)}).start()
    until("it serves", lambda: f"serves at {old}" in pod.output)
    config = tf_config("ps", port=new)
    for action in ("prepare", "switch"):  # a server has nothing to save
        pod.command(action, 1, mode="overlap", tf_config=config)
        until("it is ready", lambda: (pod.status["prepared"] or {}).get("state") == "ready")
    assert len(children(pod)) == 2
    pod.command("run", 1, tf_config=config)
    until("the old one is gone", lambda: len(children(pod)) == 1)
    assert pod.status["generation"] == 1
    assert pod.process.poll() is None


def test_stubborn_server_is_killed(make_pod: MakePod) -> None:
    old, new = free_port(), free_port()
    environment = {"TF_CONFIG": tf_config("ps", port=old), "STUBBORN": "1"}
    pod = make_pod(SERVER, environment=environment).start()
    until("it serves", lambda: f"serves at {old}" in pod.output)
    begin = time.monotonic()
    pod.command("run", 2, tf_config=tf_config("ps", port=new))
    until("the new one serves", lambda: f"serves at {new}" in pod.output)
    assert time.monotonic() - begin > 4.5, "it had its time"


def test_new_pod_prepares_and_then_runs(make_pod: MakePod) -> None:
    port = free_port()
    config = tf_config("worker", port=port)
    pod = make_pod(SERVER, environment={"TF_CONFIG": config})
    pod.command("prepare", 3, mode="overlap", tf_config=config)
    pod.start()
    until("it is ready", lambda: (pod.status["prepared"] or {}).get("state") == "ready")
    assert pod.status["generation"] is None
    pod.command("run", 3, tf_config=config)
    until("it runs", lambda: pod.status["generation"] == 3)
    assert pod.output.count("serves") == 1, "the same process"


def test_new_pod_that_is_ended_before_it_runs(make_pod: MakePod) -> None:
    pod = make_pod(TRAINER, environment={"TF_CONFIG": CHIEF})
    pod.command("prepare", 3, mode="overlap", tf_config=CHIEF)
    pod.start()
    until("it is ready", lambda: (pod.status["prepared"] or {}).get("state") == "ready")
    pod.signal(signal.SIGTERM)
    assert pod.wait() == 143


# -- a container that is restarted ---------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["switch", "run", "none"])
def test_restarted_container_goes_on_with_what_was_committed(chief: Callable[..., Pod], command: str) -> None:
    pod = chief()
    prepare(pod)
    switch(pod, state="committed")
    until("it trains", lambda: "generation 1 trains" in pod.output)
    pod.stop()  # as with a container: all that ran in it
    if command == "run":
        pod.command("run", 1, tf_config=tf_config("chief", port=3001))
    elif command == "none":
        pod.command_file.write_text("")
    pod.start()
    until("it trains again", lambda: pod.output.count("generation 1 trains") == 2)
    assert pod.status["switch"]["state"] == "committed"
    assert len(children(pod)) == 1


def test_container_restarted_while_preparing_prepares_again(chief: Callable[..., Pod]) -> None:
    pod = chief()
    prepare(pod)
    pod.stop()
    pod.start()
    until("the old one trains", lambda: pod.output.count("generation 0 trains") == 2)
    # At first its program had not yet said that it reports, so that nothing could be prepared.
    until("the new one is ready", lambda: (pod.status["prepared"] or {}).get("state") == "ready")


# -- what it is made of --------------------------------------------------------------------------------------------


def test_everything_is_python_3_9() -> None:
    for source in Path(elastic_tfjob.runtime.__file__).parent.glob("*.py"):
        ast.parse(source.read_text(), feature_version=(3, 9))


def test_runs_on_python_3_9(make_pod: MakePod) -> None:
    python = shutil.which("python3.9")
    if python is None or subprocess.run([python, "-c", ""], check=False).returncode:
        pytest.skip("no Python 3.9 here")
    pod = make_pod(TRAINER, environment={"TF_CONFIG": CHIEF}, python=python).start()
    until("it trains", lambda: "generation 0 trains" in pod.output)
    prepare(pod)
    switch(pod, state="committed")
    until("the new one trains", lambda: "generation 1 trains" in pod.output)


def test_launcher_is_one_small_file(tmp_path: Path) -> None:
    pod = Pod(tmp_path, [sys.executable, "-c", "import elastic_tfjob.runtime as r; print(r.__file__)"]).start()
    assert pod.wait() == 0
    assert "launcher.pyz" in pod.output, "the program gets the operator's version"
    assert pod.launcher.stat().st_size < 200_000
    assert pod.launcher.stat().st_mode & 0o444 == 0o444
