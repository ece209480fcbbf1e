"""The launcher with real child processes: every transition, and that a job's result is as without it."""

import ast
import contextlib
import errno
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import elastic_tfjob.runtime
from elastic_tfjob.controller.model.pod import LastEnd, last_end
from elastic_tfjob.runtime import forkserver, hook_detection, processes, protocol
from elastic_tfjob.runtime.install import install
from elastic_tfjob.runtime.launcher import Launcher
from elastic_tfjob.runtime.programs import HOLD_S, Child, SaveBeforeStop, StderrPipe
from elastic_tfjob.runtime.protocol import LauncherCommand
from harness.controlplane import free_port

from .pods import Pod, ended_early, until
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
        until("its launcher says so", lambda: pod.status["generation"] == 0)
        return pod

    return start


def test_a_command_is_noticed_at_once(tmp_path: Path) -> None:
    """Else it is heard when the launcher looks next, up to a second later."""
    code = (
        "import os, pathlib, signal, sys\n"
        "from elastic_tfjob.runtime.command_file import CommandFile\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGIO})\n"
        "file = pathlib.Path(sys.argv[1]) / 'command'\n"
        "CommandFile(file, print).watch()\n"
        "for _ in range(2):\n"
        "    file.with_name('..data_tmp').write_text('run')\n"
        "    while signal.sigtimedwait({signal.SIGIO}, 0):\n"
        "        pass\n"
        "    os.replace(file.with_name('..data_tmp'), file)  # as the kubelet does\n"
        "    assert signal.sigtimedwait({signal.SIGIO}, 30)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def prepare(pod: Pod, generation: int = 1, *, state: str = "ready") -> None:
    pod.command("prepare", generation, mode="overlap", tf_config=tf_config("chief", port=3000 + generation))
    until(f"generation {generation} is {state}", lambda: said(pod, "prepared", generation, state))


def said(pod: Pod, what: str, generation: int, state: str) -> dict[str, Any] | None:
    """What the status says of the generation that is prepared, or of the switch to it, if that is its state."""
    found: dict[str, Any] = pod.status[what] or {}
    return found if (found.get("generation"), found.get("state")) == (generation, state) else None


def switch(pod: Pod, generation: int = 1, *, state: str, **more: object) -> dict[str, Any]:
    pod.command("switch", generation, mode="overlap", tf_config=tf_config("chief", port=3000 + generation), **more)
    return until(f"the switch is {state}", lambda: said(pod, "switch", generation, state))


def children(pod: Pod) -> dict[int, str]:
    """State by id of the launcher's child processes: R, S, Z (a zombie)..."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            _, _, rest = stat.read_text().rpartition(") ")
        except OSError:
            continue
        state, parent = rest.split()[:2]
        if int(parent) == pod.started.pid:
            found[int(stat.parent.name)] = state
    return found


# -- a job's result is as without the launcher ---------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 42])
def test_the_exit_code_is_that_of_the_program(make_pod: MakePod, code: int) -> None:
    assert make_pod(f"raise SystemExit({code})").start().wait() == code


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, 137), (signal.SIGSEGV, 139), (signal.SIGTERM, 143)])
def test_death_by_a_signal_gives_the_exit_code_of_a_container(make_pod: MakePod, number: int, code: int) -> None:
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


def test_a_signal_during_the_start_of_the_launcher_is_not_lost(tmp_path: Path) -> None:
    environment = {protocol.DIRECTORY: str(tmp_path)}
    ended = ended_early("elastic_tfjob.runtime.launcher", install(tmp_path), "--", "echo", "ran", **environment)
    assert (ended.returncode, ended.stdout) == (128 + signal.SIGTERM, ""), ended.stderr


def test_program_sees_its_environment_arguments_and_unblocked_signals(make_pod: MakePod) -> None:
    odd = '{"cluster":{},  "task":{"type":"worker","index":0}}'
    source = (
        "import json, os, signal, sys\n"
        "blocked = sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
        "print(json.dumps([os.environ['TF_CONFIG'], sys.argv[1:], blocked]), flush=True)\n"
        "print('error', file=sys.stderr)"
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
    assert int(pod.output) == pod.started.pid  # it has become the program


def test_orphans_are_reaped(make_pod: MakePod) -> None:
    source = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    if os.fork() == 0:\n"  # a grandchild that outlives its parent
        "        while not os.path.exists(os.environ['ELASTIC_TFJOB_DIR'] + '/end'): time.sleep(0.01)\n"
        "    os._exit(0)\n"
        "os.wait()\ntime.sleep(600)"
    )
    pod = make_pod(source).start()
    until("the orphan is the launcher's", lambda: len(children(pod)) == 2)
    (pod.shared / "end").touch()
    until("the orphan is gone", lambda: len(children(pod)) == 1)
    assert "Z" not in children(pod).values()


@pytest.mark.parametrize("directory", [None, "/no/such"])
def test_signals_that_python_ignores_are_not_ignored_by_the_program(tmp_path: Path, directory: str | None) -> None:
    environment = {"ELASTIC_TFJOB_DIR": directory} if directory else {}
    pod = Pod(tmp_path, ["grep", "SigIgn", "/proc/self/status"], environment).start()
    assert pod.wait() == 0
    ignored = int(pod.output.split()[1], 16)
    assert [number for number in (signal.SIGPIPE, signal.SIGXFSZ) if ignored >> (number - 1) & 1] == []


# -- prepare, switch, run ------------------------------------------------------------------------------------------


def test_chief_prepares_saves_and_hands_over(chief: Callable[..., Pod]) -> None:
    pod = chief()
    assert pod.status["generation"] == 0
    until("it can be rescaled", lambda: pod.status["modes"] == ["overlap", "spare", "leave"])
    prepare(pod)
    assert pod.status["generation"] == 0, "the old one trains on"
    assert "generation 1 trains" not in pod.output
    took = pod.status["preparation"]
    assert (took["generation"], took["way"]) == (1, "exec")
    assert 0 < took["cpu_s"] < took["seconds"] + 1, "an interpreter that starts uses some CPU, of one core"
    decided = switch(pod, state="committed")
    assert decided["generation"] == 1
    until("the new one trains", lambda: f"generation 1 trains with {tf_config('chief', port=3001)}\n" in pod.output)
    until("the old one is gone", lambda: len(children(pod)) == 1)
    assert pod.status["generation"] == 1
    assert pod.status["prepared"] is None
    pod.command("run", 1, tf_config=tf_config("chief", port=3001))
    pod.heard("run 1")
    assert len(children(pod)) == 1, "it runs already"
    protocol.write(pod.shared / "end-1.json", {"code": 9})
    assert pod.wait() == 9


def test_a_program_that_saved_before_a_stop_continues_if_the_pod_is_not_ended(tmp_path: Path) -> None:
    """There is no operator, for a long time: it is let go, and asked again after as long."""
    save, asked = SaveBeforeStop(), tmp_path / protocol.SAVE

    def look(now: float) -> str:
        save.update(tmp_path, 7, now)
        assert save.report is not None
        return str(save.report["state"])

    def answer() -> None:
        protocol.write(tmp_path / protocol.SAVED, {"id": json.loads(asked.read_text())["id"], "ok": True, "step": 5})

    assert look(0) == "saving"
    answer()
    assert [look(1), look(HOLD_S)] == ["saved", "saved"]
    assert asked.exists()
    assert look(HOLD_S + 1) == "refused"
    assert save.report is not None
    assert "not ended within 600 s" in save.report["why"]
    assert not asked.exists(), "which is what the program waits for"
    assert look(2 * HOLD_S) == "refused"
    assert look(2 * HOLD_S + 1) == "saving"
    answer()
    assert look(2 * HOLD_S + 2) == "saved"


def test_a_command_to_run_may_ask_for_a_save(chief: Callable[..., Pod]) -> None:
    """A kill for memory is near; training goes on."""
    pod = chief()
    asked = pod.shared / "generation-0" / protocol.SOON
    pod.command("run", 0, tf_config=CHIEF)
    pod.heard("run 0")
    assert not asked.exists()
    for request in (7, 8):
        pod.command("run", 0, tf_config=CHIEF, request=request)
        until("the program is asked", lambda: protocol.read(asked) == {"request": request})  # noqa: B023 - it is waited for here
    assert len(children(pod)) == 1
    assert pod.status["saved"] is None, "nothing waits for it"


def test_a_prepared_program_has_a_low_priority(make_pod: Callable[..., Pod]) -> None:
    """Its threads, and what it starts: until it is ready. Then it is as it would be without that."""
    source = (
        "import os, subprocess, threading, time\n"
        "log = os.path.join(os.environ['ELASTIC_TFJOB_DIR'], 'launcher.log')\n"
        "if os.environ['ELASTIC_TFJOB_GENERATION'] == '1':\n"
        "    while f' started as {os.getpid()}:' not in open(log).read():  # what starts earlier inherits nothing\n"
        "        time.sleep(0.01)\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "if os.environ['ELASTIC_TFJOB_GENERATION'] == '1':\n"
        "    while not os.path.exists(os.path.join(os.environ['ELASTIC_TFJOB_DIR'], 'go-on')):\n"
        "        time.sleep(0.01)\n"
    ) + TRAINER
    pod = make_pod(source, environment={"TF_CONFIG": CHIEF}).start()
    until("it is up", lambda: "generation 0 trains" in pod.output)
    pod.command("prepare", 1, tf_config=tf_config("chief", port=3001))

    def threads() -> list[int]:
        log = re.findall(r"generation 1 .*started as (\d+)", pod.log)
        return processes.threads(int(log[-1])) if log else []

    until("it has threads and a child", lambda: len(threads()) >= 3)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert {os.sched_getscheduler(each) for each in threads()} == {os.SCHED_BATCH}
    low = {os.getpriority(os.PRIO_PROCESS, each) for each in threads()}
    assert low == {min(own + processes.NICE_STEP, 19) if processes.may_raise_priority(own) else own}
    (pod.shared / "go-on").touch()
    until("it is ready", lambda: (pod.status["prepared"] or {}).get("state") == "ready")
    assert {os.sched_getscheduler(each) for each in threads()} == {os.SCHED_OTHER}
    assert {os.getpriority(os.PRIO_PROCESS, each) for each in threads()} == {own}
    running = re.findall(r"generation 0 .*started as (\d+)", pod.log)
    assert {os.sched_getscheduler(each) for each in processes.threads(int(running[0]))} == {os.SCHED_OTHER}


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is to try")
def test_nice_is_not_used_without_the_right_to_undo_it() -> None:
    program = (
        "import os, subprocess, sys\n"
        "os.setgid(65534), os.setuid(65534)\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        "print(processes.lower_priority(child.pid), os.sched_getscheduler(child.pid) == os.SCHED_BATCH,\n"
        "      os.getpriority(os.PRIO_PROCESS, child.pid) == os.getpriority(os.PRIO_PROCESS, 0))\n"
        "os.setpriority(os.PRIO_PROCESS, child.pid, 19)  # as a program may do itself\n"
        "print(processes.restore_priority(child.pid, 'batch'), os.sched_getscheduler(child.pid) == os.SCHED_OTHER,\n"
        "      os.getpriority(os.PRIO_PROCESS, child.pid) == 19)\n"
        "child.kill()\n"
    )
    folder = str(Path(processes.__file__).parents[2])
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {folder!r})\nfrom elastic_tfjob.runtime import processes\n" + program,
        ],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NICE, (0, 0)),
    )
    assert told.stdout.split() == ["batch", "True", "True", "True", "True", "True"]


def test_switch_waits_until_the_new_one_is_ready(chief: Callable[..., Pod]) -> None:
    pod = chief()
    switch(pod, state="committed")
    until("the new one trains", lambda: "generation 1 trains" in pod.output)


def test_run_of_the_old_generation_cancels_a_preparation(chief: Callable[..., Pod]) -> None:
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


def test_run_cancels_a_switch_during_its_save(chief: Callable[..., Pod]) -> None:
    pod = chief({0: "hang"})
    until("it is up", lambda: "generation 0 trains" in pod.output)
    prepare(pod)
    switch(pod, state="saving")
    pod.command("run", 0, tf_config=CHIEF)
    until("it is refused", lambda: pod.status["switch"]["state"] == "refused")
    assert "cancelled it" in pod.status["switch"]["why"]
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
    pod.heard("switch 1")
    assert pod.status["switch"]["state"] == "refused", "the same command is not tried again"
    assert pod.status["generation"] == 0


def test_a_failed_save_refuses_the_switch_and_can_be_retried(chief: Callable[..., Pod]) -> None:
    pod = chief({0: "full"})
    until("it is up", lambda: "generation 0 trains" in pod.output)
    prepare(pod)
    assert switch(pod, state="refused")["why"] == "checkpoint: disk full"
    pod.command("run", 0, tf_config=CHIEF)
    until("the prepared one is gone", lambda: pod.status["prepared"] is None)
    prepare(pod)
    assert pod.status["switch"] is None
    assert pod.status["generation"] == 0


def test_a_prepared_program_that_crashes(chief: Callable[..., Pod]) -> None:
    pod = chief({1: "crash"})
    prepare(pod, state="failed")
    assert pod.status["prepared"]["why"] == "the program ended with exit code 7"
    assert switch(pod, state="refused")["why"] == "the program ended with exit code 7"
    assert pod.started.poll() is None
    assert pod.status["generation"] == 0


def test_a_prepared_program_that_crashes_in_native_code_is_retried_once(chief: Callable[..., Pod]) -> None:
    """As TensorFlow does now and then: a job that keeps its size for that would be a surprise."""
    pod = chief({1: "segfault once"})
    prepare(pod)
    assert (pod.shared / "segfaults").read_text() == "11"
    assert switch(pod, state="committed")["why"] == ""


def test_a_prepared_program_that_crashes_in_native_code_twice_has_failed(chief: Callable[..., Pod]) -> None:
    pod = chief({1: "segfault"})
    prepare(pod, state="failed")
    assert pod.status["prepared"]["why"] == "the program ended with exit code 139"
    assert (pod.shared / "segfaults").read_text() == "11", "it had two tries"
    assert pod.status["generation"] == 0
    assert pod.started.poll() is None


def test_a_waiting_program_that_crashes_in_native_code_is_retried_once(chief: Callable[..., Pod]) -> None:
    pod = chief()
    prepare(pod)
    (new,) = set(children(pod)) - {first_of(pod)}
    os.kill(new, signal.SIGSEGV)
    # The status is that of the first for a moment, which was ready as well.
    until("another is ready", lambda: pod.log.count("generation 1 is ready") == 2 and said(pod, "prepared", 1, "ready"))
    (new,) = set(children(pod)) - {first_of(pod)}
    os.kill(new, signal.SIGSEGV)
    until("it has failed", lambda: said(pod, "prepared", 1, "failed"))
    assert pod.status["prepared"]["why"] == "the program ended with exit code 139"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, 137), (signal.SIGSEGV, 139)])
def test_a_prepared_program_that_crashes_during_the_save(chief: Callable[..., Pod], number: int, code: int) -> None:
    """Also where it would be prepared once more otherwise: the old one stands still for it."""
    pod = chief({0: "hang"})
    until("it is up", lambda: "generation 0 trains" in pod.output)
    prepare(pod)
    switch(pod, state="saving")
    (new,) = set(children(pod)) - {first_of(pod)}
    os.kill(new, number)
    until("it is refused", lambda: pod.status["switch"]["state"] == "refused")
    assert pod.status["switch"]["why"] == f"the program ended with exit code {code}"


def test_the_end_of_the_running_program_ends_the_pod(chief: Callable[..., Pod]) -> None:
    pod = chief()
    prepare(pod)
    both = set(children(pod))
    protocol.write(pod.shared / "end-0.json", {"code": 0})
    assert pod.wait() == 0, "a job that has finished has finished"
    until("the prepared one is gone too", lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in both))


def test_no_second_program_is_started_beside_one_that_does_not_report(chief: Callable[..., Pod]) -> None:
    pod = chief({0: "no hello"})
    until("it runs", lambda: children(pod))
    assert pod.status["modes"] == []
    prepare(pod, state="starting")
    assert "ElasticCheckpoint" in pod.status["prepared"]["why"]
    assert len(children(pod)) == 1


def first_of(pod: Pod) -> int:
    return int(pod.log.split(" started as ")[1].split(":")[0])


def test_an_unprepared_generation_replaces_the_running_program(chief: Callable[..., Pod]) -> None:
    pod = chief()
    pod.command("run", 4, tf_config=tf_config("chief", port=3004))
    until("it trains", lambda: "generation 4 trains" in pod.output)
    assert len(children(pod)) == 1
    until("its launcher says so", lambda: pod.status["generation"] == 4)


@pytest.mark.parametrize("text", ["{", '"run"', '{"action": "jump"}', '{"action": "run", "generation": "x"}', "null"])
def test_an_invalid_command_changes_nothing(chief: Callable[..., Pod], text: str) -> None:
    pod = chief()
    pod.command_file.write_text(text)
    until("it is noted", lambda: "invalid command" in pod.log)
    assert pod.status["generation"] == 0
    pod.command("stop")
    pod.heard("stop 0")
    assert pod.started.poll() is None
    prepare(pod)


def test_the_exception_of_a_prepared_program_is_quoted(chief: Callable[..., Pod]) -> None:
    pod = chief({1: "raise"})
    prepare(pod, state="failed")
    why = pod.status["prepared"]["why"]
    assert why == "the program ended with exit code 1: ValueError: shapes differ: [2] and [3]"
    lines = [line for line in pod.output.splitlines() if "generation 0" not in line]
    assert "[generation 1] words before" in lines
    assert "[generation 1] ValueError: shapes differ:" in lines
    assert all(line.startswith("[generation 1] ") for line in lines), "all that it said shows whose it is"


def test_an_exception_that_is_written_in_parts_is_quoted(chief: Callable[..., Pod]) -> None:
    pod = chief({1: "say"})
    prepare(pod, state="failed")
    assert pod.status["prepared"]["why"] == "the program ended with exit code 1: one line | half a line, and the last"
    assert "[generation 1] one line\n[generation 1] half a line, and the last\n" in pod.output


TALKER = """
import json, os, socket, sys, time
from elastic_tfjob.runtime import protocol
{restore}
config = json.loads(os.environ["TF_CONFIG"])
port = int(config["cluster"]["ps"][0].rsplit(":", 1)[1])
listener = socket.create_server(("127.0.0.1", port))
print("up", os.environ["ELASTIC_TFJOB_GENERATION"], file=sys.stderr, flush=True)
while not os.path.exists(os.environ["ELASTIC_TFJOB_DIR"] + "/talk"):
    time.sleep(0.01)
print("file", os.fstat(2).st_ino, os.environ.get("ELASTIC_TFJOB_STDERR"), file=sys.stderr, flush=True)
os.write(2, b"x" * 500_000 + b" last words\\n")
os._exit(3)
"""


@pytest.mark.parametrize("restore", ["protocol.restore_stderr()", ""])
def test_output_after_a_switch_goes_to_the_log_unchanged(make_pod: MakePod, restore: str) -> None:
    old, new = free_port(), free_port()
    pod = make_pod(TALKER.format(restore=restore), environment={"TF_CONFIG": tf_config("ps", port=old)}).start()
    until("it serves", lambda: "up 0" in pod.output)
    config = tf_config("ps", port=new)
    pod.command("prepare", 1, tf_config=config)
    until("it is ready", lambda: (pod.status["prepared"] or {}).get("state") == "ready")
    until("it has said so", lambda: "up 1" in pod.output)
    assert ("[generation 1] up 1" in pod.output) == (not restore)
    pod.command("run", 1, tf_config=config)
    until("the old one is gone", lambda: pod.status["generation"] == 1 and len(children(pod)) == 1)
    (pod.shared / "talk").touch()
    assert pod.wait() == 3
    *_, told, last = pod.output.splitlines()
    assert last == "x" * 500_000 + " last words"
    log = (pod.directory / "output").stat().st_ino
    assert (told == f"file {log} None") == bool(restore), "the container's own, and no trace of another"


# -- whether the program uses ElasticCheckpoint --------------------------------------------------------------------


def test_a_constructed_hook_is_reported(chief: Callable[..., Pod]) -> None:
    pod = chief()
    until("it is told", lambda: pod.status["hook"])
    assert pod.status["hook"] is True


def test_a_server_has_no_hook(make_pod: MakePod) -> None:
    pod = make_pod(SERVER, environment={"TF_CONFIG": tf_config("ps", port=free_port())}).start()
    until("it says what runs", lambda: pod.status["generation"] == 0)
    assert pod.status["hook"] is None


IMPORTS = """
import mmap, os, time
from pathlib import Path
from typing import Any

library = Path(os.environ["ELASTIC_TFJOB_DIR"]) / "libtensorflow_framework.so.2"
library.write_bytes(bytes(4096))
with open(library, "r+b") as file:
    memory = mmap.mmap(file.fileno(), 4096)
"""
"""What a program looks like that is importing TensorFlow."""

STRANGER = (
    IMPORTS
    + """
import ctypes, threading
from elastic_tfjob.runtime import protocol

def compute():
    ctypes.CDLL(None).prctl(15, b"tf_Compute", 0, 0, 0)  # PR_SET_NAME
    time.sleep(600)

shared = Path(os.environ["ELASTIC_TFJOB_DIR"])
threading.Thread(target=compute, daemon=True).start()  # what it looks like that has used it
(shared / "uses").touch()
while not (shared / "hello").exists():
    time.sleep(0.2)  # else a slow machine takes it for one that works
protocol.write(protocol.generation_directory(shared, 0) / protocol.HELLO, {})
time.sleep(600)
"""
)


@pytest.mark.parametrize("uses", [False, True])
def test_importing_tensorflow_is_not_using_it(make_pod: MakePod, uses: bool) -> None:
    """The import may take a minute, and the hook is often imported after it."""
    pod = make_pod((STRANGER if uses else IMPORTS) + "\n(library.parent / 'uses').touch()\ntime.sleep(600)").start()
    until("it has come so far", (pod.shared / "uses").exists)
    (program,) = children(pod)

    def seen() -> bool:
        return hook_detection._usage(program)[1]

    if uses:
        until("its threads are seen", seen)
    assert seen() is uses


def test_a_missing_hook_is_reported_and_a_late_one_counts(make_pod: MakePod) -> None:
    begin = time.monotonic()
    pod = make_pod(STRANGER, environment={"TF_CONFIG": CHIEF}).start()
    status = until("it runs", lambda: found if (found := pod.status)["generation"] == 0 else None)
    assert status["hook"] is None or time.monotonic() - begin >= hook_detection.TENSORFLOW_S, "nobody knows so soon"
    until("it has had its time", lambda: pod.status["hook"] is False, 300)
    assert time.monotonic() - begin >= hook_detection.TENSORFLOW_S
    (pod.shared / "hello").touch()
    until("late, but it came", lambda: pod.status["hook"] is True)


def looks(*seen: tuple[float, float, bool]) -> hook_detection.HookDetection:
    """A program that began at 0, by what it looked like at each time."""
    watch = hook_detection.HookDetection(0, 0.0)
    for at, cpu_s, tensorflow in seen:
        watch.add(hook_detection.ProgramSample(at, cpu_s, tensorflow))
    return watch


@pytest.mark.parametrize(
    ("seen", "imported", "says"),
    [
        pytest.param([], False, None, id="not looked at"),
        pytest.param([(3, 1, True), (12, 8, True), (21, 15, True)], False, None, id="may import still"),
        pytest.param([(3, 1, True), (15, 8, True), (24, 15, True)], False, False, id="has worked since"),
        pytest.param([(3, 1, True), (15, 1.5, True), (24, 1.5, True)], False, False, id="has waited since"),
        pytest.param([(3, 1, True), (24, 2, True), (45, 3.2, True)], False, False, id="makes few steps a second"),
        pytest.param([(3, 0.1, True), (60, 1.0, True), (70, 1.2, True)], False, None, id="imports on little CPU"),
        pytest.param([(3, 0.1, False), (90, 0.1, False), (100, 0.1, False)], False, None, id="waits to begin"),
        pytest.param([(3, 1, False), (150, 40, False), (160, 45, False)], False, None, id="a shell installs packages"),
        pytest.param([(3, 0.1, False), (291, 0.1, False), (301, 0.1, False)], False, False, id="never begins"),
        pytest.param([(3, 1, True), (15, 8, True), (100, 80, True)], True, None, id="imported, builds its model"),
        pytest.param([(3, 1, True), (15, 8, True), (301, 80, True)], True, False, id="imported, never used"),
    ],
)
def test_conditions_for_concluding_that_there_is_no_hook(
    seen: list[tuple[float, float, bool]], imported: bool, says: bool | None
) -> None:
    assert looks(*seen).uses_hook(False, imported) is says
    assert looks(*seen).uses_hook(True, imported) is True


def test_output_after_a_traceback_does_not_hide_it() -> None:
    """TensorFlow's threads complain at the end of a process, each about the others."""
    pipe = StderrPipe(1)
    code = """if True:
    import atexit, sys
    atexit.register(lambda: sys.stderr.write("W0000 grpc: connection reset\\n" * 100))
    raise ValueError("the reason")
    """
    command = [sys.executable, "-c", code]
    actions = forkserver.stderr_actions(pipe.write_end)
    pid = os.posix_spawn(command[0], command, {**os.environ, **pipe.environment}, file_actions=actions)
    pipe.begin()
    os.waitpid(pid, 0)
    assert pipe.last().startswith("ValueError: the reason W0000")


# -- servers -------------------------------------------------------------------------------------------------------


def test_a_server_is_ready_once_its_port_is_open_and_runs_on_command(make_pod: MakePod) -> None:
    old, new = free_port(), free_port()
    pod = make_pod(SERVER, environment={"TF_CONFIG": tf_config("ps", port=old)}).start()
    until("it serves", lambda: f"serves at {old}" in pod.output)
    config = tf_config("ps", port=new)
    for action in ("prepare", "switch"):  # a server has nothing to save
        pod.command(action, 1, mode="overlap", tf_config=config)
        pod.heard(f"{action} 1")
        until("it is ready", lambda: (pod.status["prepared"] or {}).get("state") == "ready")
    assert len(children(pod)) == 2
    pod.command("run", 1, tf_config=config)
    until("the old one is gone", lambda: len(children(pod)) == 1)
    assert pod.status["generation"] == 1
    assert pod.started.poll() is None


def test_stubborn_server_is_killed(make_pod: MakePod) -> None:
    old, new = free_port(), free_port()
    environment = {"TF_CONFIG": tf_config("ps", port=old), "STUBBORN": "1"}
    pod = make_pod(SERVER, environment=environment).start()
    until("it serves", lambda: f"serves at {old}" in pod.output)
    begin = time.monotonic()
    pod.command("run", 2, tf_config=tf_config("ps", port=new))
    until("the new one serves", lambda: f"serves at {new}" in pod.output)
    assert time.monotonic() - begin > 4.5, "it had its time"


PATIENT = (
    """
import os, signal, sys, time

def wait(*_):
    print("waits for its chief", flush=True)
    while not os.path.exists(os.environ["ELASTIC_TFJOB_DIR"] + "/chief-has-ended"):
        time.sleep(0.01)
    sys.exit(143)

if os.environ["ELASTIC_TFJOB_GENERATION"] == "1":
    signal.signal(signal.SIGTERM, wait)
"""
    + SERVER
)


@pytest.mark.parametrize("beside", [True, False], ids=["kept pod", "added pod"])
def test_a_prepared_server_ends_after_its_chief(make_pod: MakePod, beside: bool) -> None:
    """Its chief may train already, though no command has said so yet."""
    old, new = free_port(), free_port()
    pod = make_pod(PATIENT, environment={"TF_CONFIG": tf_config("ps", port=old)})
    if beside:
        pod.start()
        until("it serves", lambda: f"serves at {old}" in pod.output)
    pod.command("prepare", 1, mode="overlap", tf_config=tf_config("ps", port=new))
    if not beside:
        pod.start()
    until("it is ready", lambda: (pod.status["prepared"] or {}).get("state") == "ready")
    pod.signal(signal.SIGTERM)
    until("it is told", lambda: "waits for its chief" in pod.output)
    until("the other one has ended", lambda: len(children(pod)) == 1)
    time.sleep(0.3)
    assert pod.started.poll() is None
    (pod.shared / "chief-has-ended").touch()
    assert pod.wait() == 143


def test_new_pod_prepares_and_then_runs(make_pod: MakePod) -> None:
    port = free_port()
    config = tf_config("worker", port=port)
    pod = make_pod(SERVER, environment={"TF_CONFIG": config})
    pod.command("prepare", 3, mode="overlap", tf_config=config)
    pod.start()
    until("it is ready", lambda: (pod.status["prepared"] or {}).get("state") == "ready")
    until("it has said so", lambda: f"serves at {port}\n" in pod.output)  # a moment after its port is open
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


SAVER = """
import os, signal, sys, time

def save(*_):
    print("saves", flush=True)
    while not os.path.exists(os.environ["ELASTIC_TFJOB_DIR"] + "/save"):
        time.sleep(0.01)
    print("saved", flush=True)
    sys.exit(143)

signal.signal(signal.SIGTERM, save)
print("up", flush=True)
while True:
    time.sleep(0.1)
"""


def test_a_terminated_pod_waits_for_the_save_of_a_replaced_program(make_pod: MakePod) -> None:
    pod = make_pod(SAVER, environment={"TF_CONFIG": CHIEF}).start()
    until("it is up", lambda: "up" in pod.output)
    pod.command("run", 2, tf_config=tf_config("chief", port=3002))
    until("it saves", lambda: "saves" in pod.output)
    pod.signal(signal.SIGTERM)
    until("its launcher has taken that", lambda: not pending(pod, signal.SIGTERM))
    (pod.shared / "save").touch()
    assert pod.wait() == 143
    assert pod.output.split() == ["up", "saves", "saved"], "and nothing new was begun"


def pending(pod: Pod, number: int) -> bool:
    """Whether a signal waits for the launcher."""
    status = Path(f"/proc/{pod.started.pid}/status").read_text()
    return bool(int(status.partition("ShdPnd:")[2].split()[0], 16) >> (number - 1) & 1)


FOLLOWER = """
import os, time
from pathlib import Path
from typing import Any
from elastic_tfjob.runtime import protocol

generation = int(os.environ["ELASTIC_TFJOB_GENERATION"])
shared = Path(os.environ["ELASTIC_TFJOB_DIR"])
folder = protocol.generation_directory(shared, generation)
protocol.write(folder / protocol.HELLO, {})
if not os.environ.get("ELASTIC_TFJOB_OPEN"):
    protocol.write(folder / protocol.READY, {})
    while not (shared / "chief-has-begun").exists():
        time.sleep(0.01)
    protocol.write(folder / protocol.BEGUN, {})
print(f"generation {generation} trains", flush=True)
time.sleep(600)
"""


def test_a_worker_follows_its_chief_without_an_operator(make_pod: MakePod) -> None:
    """MultiWorkerMirroredStrategy: the old program has lost its chief, and would end with an error."""
    cluster = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}
    config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}})
    pod = make_pod(FOLLOWER, environment={"TF_CONFIG": config}).start()
    until("it trains", lambda: "generation 0 trains" in pod.output)
    for action in ("prepare", "switch"):
        pod.command(action, 1, tf_config=config)
        until("it is ready", lambda: (pod.status["prepared"] or {}).get("state") == "ready")
        pod.heard(f"{action} 1")
    assert pod.status["generation"] == 0, "not before its chief"
    (pod.shared / "chief-has-begun").touch()
    until("it runs", lambda: pod.status["generation"] == 1)
    until("the old one is gone", lambda: len(children(pod)) == 1)
    assert (protocol.read(pod.shared / protocol.COMMITTED) or {}).get("generation") == 1


# -- a container that is restarted ---------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["switch", "run", "none"])
def test_a_restarted_container_runs_the_committed_generation(chief: Callable[..., Pod], command: str) -> None:
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
    until("its launcher says so", lambda: pod.status["generation"] == 1 and said(pod, "switch", 1, "committed"))
    assert len(children(pod)) == 1


def test_a_committed_program_that_always_fails(chief: Callable[..., Pod], make_pod: MakePod) -> None:
    """The container's next life begins the same program, and ends as it did: what the operator sees of it is what makes
    it return. A new pod runs the generation that returns."""
    pod = chief({1: "raise later"})
    prepare(pod)
    pod.command("switch", 1, mode="overlap", tf_config=tf_config("chief", port=3001))
    for life in range(2):
        assert pod.wait() == 1
        assert pod.output.count("generation 1 trains") == 0
        # The last of the log is what the kubelet puts into the status of a container that failed.
        ended = {"terminated": {"exitCode": 1, "message": pod.output[-2048:]}}
        seen = {"name": "tensorflow", "restartCount": life, "state": ended}
        assert last_end({"containerStatuses": [seen]}) == LastEnd(life + 1, 1, "ValueError: shapes differ in restore")
        pod.start()
    pod.stop()
    back = make_pod(TRAINER, name="back", environment={"TF_CONFIG": CHIEF})
    back.command("run", 2, tf_config=CHIEF)
    back.start()
    until("it trains", lambda: "generation 2 trains" in back.output)


def test_container_restarted_while_preparing_prepares_again(chief: Callable[..., Pod]) -> None:
    pod = chief()
    prepare(pod)
    pod.stop()
    pod.start()
    until("the old one trains", lambda: pod.output.count("generation 0 trains") == 2)
    # At first its program had not yet said that it reports, so that nothing could be prepared.
    until("the new one is ready", lambda: (pod.status["prepared"] or {}).get("state") == "ready")


SIMPLE = """
import os, time
print("generation", os.environ["ELASTIC_TFJOB_GENERATION"], "with", os.environ["TF_CONFIG"], flush=True)
time.sleep(60)
"""


def test_a_container_restarted_on_a_full_volume_runs_the_committed_generation(tmp_path: Path) -> None:
    shared = tmp_path / "pod" / "elastic-tfjob"
    shared.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", shared], check=False).returncode:
        pytest.skip("only root can mount")
    (tmp_path / "simple.py").write_text(SIMPLE)
    pod = Pod(tmp_path / "pod", [sys.executable, tmp_path / "simple.py"], {"TF_CONFIG": CHIEF})
    try:
        pod.start()
        until("it runs", lambda: "generation 0" in pod.output)
        config = tf_config("chief", port=3007)
        pod.command("run", 7, tf_config=config)
        until("the next one runs", lambda: f"generation 7 with {config}" in pod.output)
        until("its launcher says so", lambda: pod.status["generation"] == 7)  # and has noted what `stop` is to end
        pod.stop()
        pod.command_file.write_text("")
        with contextlib.suppress(OSError), open(shared / "filler", "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        pod.start()
        until("it runs again", lambda: pod.output.count("\n") == 3)
        assert pod.output.splitlines()[-1] == f"generation 7 with {config}"
    finally:
        pod.stop()
        subprocess.run(["umount", "--lazy", shared], check=True)


def test_a_switch_that_cannot_be_stored_does_not_happen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a restarted container would bring the old generation back."""
    launcher = Launcher(["true"], tmp_path, None, CHIEF)
    programs = launcher.programs
    programs.running, programs.prepared = Child(0, CHIEF), Child(1, CHIEF, state="ready")
    launcher._write_committed()
    protocol.generation_directory(tmp_path, 1).mkdir()
    make = tempfile.mkstemp

    def full(*, dir: Path, prefix: str) -> tuple[int, str]:
        if protocol.COMMITTED in prefix:
            raise OSError(errno.ENOSPC, "No space left on device")
        return make(dir=dir, prefix=prefix)

    monkeypatch.setattr(tempfile, "mkstemp", full)
    with pytest.raises(OSError, match="No space"):
        launcher._commit(0.0)
    assert programs.running.generation == 0
    assert not (protocol.generation_directory(tmp_path, 1) / protocol.GO).exists()


def test_a_change_of_workers_that_cannot_be_requested_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its launcher would report for ever that it is under way, and the operator would end the chief."""
    launcher = Launcher(["true"], tmp_path, None, CHIEF)
    running = launcher.programs.running = Child(0, CHIEF)

    def full(**_: object) -> tuple[int, str]:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "mkstemp", full)
    launcher._switch_live(LauncherCommand("switch", 1, "live", CHIEF), running, 0.0)
    assert launcher.switch is not None
    assert (launcher.switch["state"], launcher.switch["why"]) == (
        "refused",
        "the request cannot be written: No space left on device",
    )


# -- what it is made of --------------------------------------------------------------------------------------------


def test_everything_is_python_3_9() -> None:
    for source in Path(elastic_tfjob.runtime.__file__).parent.rglob("*.py"):
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
    assert pod.launcher.stat().st_size < 130_000  # each pod has a copy in its shared volume
    assert pod.launcher.stat().st_mode & 0o444 == 0o444
