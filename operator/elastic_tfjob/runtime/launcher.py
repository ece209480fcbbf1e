"""The first process of the training container: runs the user's program, and the next generation's beside it.

    python3 launcher.pyz -- python train.py --steps 1000

Level-based: several times a second the launcher compares the operator's command (a file that shows an annotation of the
pod) with what runs, and takes one step towards it. The running generation is kept in committed.json, so a restarted
container continues with it. The chief's launcher alone decides a switch: its program has saved and waits -> the barrier
of the prepared program opens, and the old program is stopped. No process outside the pod is asked in between.

The result of a job is the same as without the launcher: the launcher exits with the running program's exit code, output
goes directly to the container's log, and signals are forwarded. An error of the launcher is written to launcher.log and
changes nothing else. One thing is added: where the command is a shell that does not forward a signal, the program
behind it gets the signal, and the container ends when that program has ended.

How a generation replaces another one: docs/designs/rescale.md.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

from elastic_tfjob.runtime import cgroup, preload, processes, protocol
from elastic_tfjob.runtime.command_file import CommandFile
from elastic_tfjob.runtime.launcher_report import committed, decision, modes, prepared_for, uses_hook
from elastic_tfjob.runtime.leaving import LeavingProgram
from elastic_tfjob.runtime.live_switch import LiveSwitch
from elastic_tfjob.runtime.memory_use import MemoryTrend
from elastic_tfjob.runtime.moved_chief import OldChief, has_left, progress_of, still_needed, write_left
from elastic_tfjob.runtime.programs import ARCHIVE, Child, Programs, SaveBeforeStop, has_gpu, listens, opening
from elastic_tfjob.runtime.protocol import LauncherCommand

IDLE_POLL_S, POLL_S, SAVING_POLL_S = 1.0, 0.05, 0.005
"""Time between two checks: while nothing changes (each check costs CPU time, which a small container has little of; the
kernel signals a new command at once where it can), while programs start or stop, and while a program saves."""
STATUS_S = 3.0
"""How often the launcher writes what the container uses. Changes of state are written at once."""
HUNG_S = 60.0
"""A forked program that works constructs its ElasticCheckpoint, or listens, long before this time."""
_FORWARDED = [
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGWINCH")
]
_WAKING = {signal.SIGCHLD, signal.SIGIO}
"""Signals of the kernel for the launcher itself: a child has ended, the folder of the command file has changed."""
WATCHED = {*_FORWARDED, *_WAKING}
_LOG_BYTES = 1 << 20


class Launcher:
    """Carries out the operator's commands in one container: runs, prepares, switches and stops programs.

    `program`: the user's command line. `directory`: the pod's shared directory. `command_file`: the file of the
    operator's commands, if there is one. `tf_config`: the TF_CONFIG of generation 0.
    """

    def __init__(self, program: list[str], directory: Path, command_file: Path | None, tf_config: str | None) -> None:
        self.directory, self.tf_config = directory, tf_config
        self._commands = CommandFile(command_file, self._log)
        self.programs = Programs(program, directory, self._log)
        self.command: LauncherCommand | None = None
        self.switch: dict[str, Any] | None = None
        """The last decision about another generation; it is kept in committed.json."""
        self.preparation: dict[str, Any] | None = None
        """How the newest prepared program became ready, and what that cost."""
        self.save_before_stop = SaveBeforeStop()
        self._live: LiveSwitch | None = None  # that is under way
        self._leaving: LeavingProgram | None = None
        self._has_left = False  # the chief's program is in another pod now: this one runs none any more
        self._old_chief: OldChief | None = None
        self._save_id: str | None = None  # of the save for a switch that is under way
        self._save_deadline_s = 0.0
        self._published: dict[str, Any] = {}
        self._status_at_s = 0.0
        self._cgroup: dict[str, Any] = {}
        self._cores = cgroup.Cores()
        self._memory = MemoryTrend(cgroup.held_bytes)

    # -- the loop ------------------------------------------------------------------------------------------------------

    def run(self, signal_mask: set[Any]) -> int:
        """Run until the running program has ended; returns the exit code. `signal_mask`: the signals that a program
        starts with blocked."""
        programs = self.programs
        programs.signal_mask = signal_mask
        if early := signal.sigpending() & {signal.SIGTERM, signal.SIGINT}:
            return 128 + int(min(early))
        self._commands.watch()
        self._start_first()
        while True:
            if (code := self._reap()) is not None:
                programs.kill(programs.prepared)
                programs.forks.poll()
                self._publish(time.monotonic())
                programs.drain_stderr()
                return code
            try:
                self._tick()
            except Exception as error:
                self._log(f"{type(error).__name__}: {error}")
                if programs.running is not None and not programs.running.pid:  # the user's program cannot be started
                    raise
            received = signal.sigtimedwait(WATCHED, self._poll_s())
            if received is not None and received.si_signo not in _WAKING:
                programs.forward(received.si_signo)

    def _reap(self) -> int | None:
        """The exit code, once the running program has ended, and with it what the container is to wait for; or once a
        signal has ended a launcher that runs none."""
        programs = self.programs
        code = programs.reap(saving=self._is_switching())
        self._watch_leaving(code)
        if self._leaving is not None or programs.server_ends():
            return None
        if code is None and programs.ended_by is not None and not programs.stopping:
            return 128 + programs.ended_by
        return code

    def _start_first(self) -> None:
        """Start what the container ran before its restart, or the commanded generation, or generation 0."""
        self._read_command()
        stored = protocol.read(self.directory / protocol.COMMITTED)
        command = self.command
        if stored is not None and isinstance(stored.get("generation"), int):
            self.switch, self._has_left = stored.get("switch"), has_left(stored)
            if self._has_left:
                return
            if not (command and command.action == "run" and command.generation != stored["generation"]):
                old_chief = still_needed(stored, protocol.read(self.directory / protocol.PROGRESS))
                self._start_running(stored["generation"], stored.get("tf_config"), old_chief)
                return
        if command is None or command.action == "stop":
            self._start_running(0, self.tf_config)
        elif command.action in ("run", "save"):
            self._start_running(command.generation, self._tf_config_of(command), progress_of(command))
        # else: a new pod, whose program is prepared and waits

    def _start_running(self, generation: int, tf_config: str | None, old_chief: dict[str, Any] | None = None) -> None:
        child = Child(generation, tf_config, state="running", old_chief=old_chief or {})
        self.programs.running = child
        with contextlib.suppress(OSError):
            self._write_committed()
        self.programs.start(child, opened=True)

    def _poll_s(self) -> float:
        if self._save_id is not None or self.save_before_stop.is_saving:
            return SAVING_POLL_S
        programs = self.programs
        changing = self._live or programs.prepared or programs.stopping
        busy = changing or not programs.running or programs.exit_code is not None
        return POLL_S if busy else IDLE_POLL_S

    def _tick(self) -> None:
        now_s = time.monotonic()
        programs = self.programs
        if programs.ended_by is not None or programs.exit_code is not None:  # only remaining processes are waited for
            return
        if news := programs.forks.poll():
            self._log(news)
        self._read_command()
        programs.kill_overdue(now_s)
        self._watch_prepared(now_s)
        self._follow_chief(now_s)
        self._follow_old_chief(now_s)
        if self.command is not None:
            self._carry_out(self.command, now_s)
        self._watch_save(now_s)
        self._watch_live(now_s)
        self._publish(now_s)

    # -- the command ---------------------------------------------------------------------------------------------------

    def _read_command(self) -> None:
        command = self._commands.read()
        if command is None:
            return
        # A refused generation may be tried again: only a repeated `switch` is the same attempt.
        again = self.switch is not None and self.switch["generation"] == command.generation and self._live is None
        if command.action == "prepare" and again:
            self.switch = None
            self._withdraw_save()  # the answer to the previous attempt must not commit this one
        self.command = command

    def _carry_out(self, command: LauncherCommand, now_s: float) -> None:
        """Take one step towards the command."""
        if command.action == "stop" or self._has_left:
            return
        programs, running = self.programs, self.programs.running
        if command.action == "save":
            self._cancel_switch("the job is stopped")
            programs.drop_prepared()
            if running is not None and running.task.chief and programs.said_hello(running):
                self.save_before_stop.update(programs.folder(running), command.request, now_s)
            return
        if running is not None and running.task.chief:
            self.save_before_stop.train_on(programs.folder(running), command.request)
        if command.action == "run":
            self._carry_out_run(command, now_s)
            return
        if running is not None and running.generation == command.generation:
            return
        prepared = programs.prepared
        if prepared is not None and (prepared.generation != command.generation or prepared.mode != command.mode):
            self._cancel_switch("another generation is prepared")
            programs.drop_prepared()
        if command.mode in ("live", "leave") and running is not None:
            if command.action == "switch" and command.mode == "live":
                self._switch_live(command, running, now_s)
            elif command.action == "switch":
                self._ask_to_save(command, None, now_s)
            else:
                self._cancel_switch("the operator cancelled it")
            return
        if programs.prepared is None or (programs.prepared.state == "starting" and not programs.prepared.pid):
            if not programs.stopping:  # a stopping program may still use the port
                self._prepare(command)
            if programs.prepared is None:
                return
        if command.action == "prepare":
            self._cancel_switch("the operator cancelled it")
        else:
            self._switch(command, now_s)

    def _carry_out_run(self, command: LauncherCommand, now_s: float) -> None:
        programs, running = self.programs, self.programs.running
        if self.switch is not None and self.switch["generation"] != command.generation:
            self._cancel_switch("the operator cancelled it")
        # After a switch in mode `live`, the chief's program has no other workers to return to.
        stale = running is not None and running.started_as < running.generation > command.generation
        if running is not None and (running.generation == command.generation or stale):
            programs.drop_prepared()
        elif self._is_prepared(command.generation):
            if running is not None and running.task.chief:
                self._switch(command, now_s)  # the chief's launcher decides the switch, and only after a save
            else:
                self._commit(now_s, old_chief=progress_of(command, self._old_chief))
        elif running is not None and self._continues(running, command):
            self._continue_as(running, command.generation, self._tf_config_of(command))
            with contextlib.suppress(OSError):  # a restarted container gets the command again
                self._write_committed()
        elif running is not None:
            programs.drop_prepared()
            programs.running = None
            programs.stop(running, now_s)
        elif not programs.stopping:  # a stopping program may still use the port
            programs.drop_prepared()
            if not programs.stopping:
                self._start_running(command.generation, self._tf_config_of(command))

    # -- preparing the next generation ---------------------------------------------------------------------------------

    def _tf_config_of(self, command: LauncherCommand) -> str | None:
        return self.tf_config if command.tf_config is None else command.tf_config

    def _is_prepared(self, generation: int) -> bool:
        child = self.programs.prepared
        if child is None or child.generation != generation or child.state == "failed":
            return False
        return bool(child.pid) or child.state == "ready"

    def _prepare(self, command: LauncherCommand) -> None:
        """Start a generation beside the running program. A running program that trains must have reported that it uses
        ElasticCheckpoint: otherwise its next generation would train at once instead of waiting. After a restart that
        report takes a while."""
        programs = self.programs
        if programs.prepared is None:
            programs.prepared = self._new_child(command)
        child = programs.prepared
        task = child.task
        if task.trains and programs.running is not None and not programs.said_hello(programs.running):
            child.why = "the running program does not use ElasticCheckpoint (yet)"
            return
        child.why = ""
        if not task.trains and not task.serves:
            # An evaluator is outside the cluster: it starts when it is to run.
            child.state, child.has_program = "ready", False
            return
        line = preload.spare_command(programs.command, ARCHIVE) if command.mode == "spare" else programs.command
        if line is None:
            child.state, child.why = "failed", "mode spare needs a command `python SCRIPT` or `python -m MODULE`"
            return
        child.has_program = command.mode != "spare"
        try:
            programs.start(child, line)
        except OSError as error:
            child.state, child.why = "failed", f"cannot be started: {error}"

    def _new_child(self, command: LauncherCommand) -> Child:
        """The next program. The running one is asked to offer it its values, where they may go through memory."""
        child, running = Child(command.generation, self._tf_config_of(command), command.mode), self.programs.running
        if child.task.chief and running is not None and command.mode == "overlap" and not command.durable:
            folder = self.programs.folder(running)
            with contextlib.suppress(OSError):
                (folder / protocol.OFFERED).unlink(missing_ok=True)
                protocol.write(folder / protocol.OFFER, {"id": f"{child.generation}-{time.time_ns()}"})
                child.before = folder.name
        return child

    def _watch_prepared(self, now_s: float) -> None:
        """Notice when the prepared program is ready, or hangs."""
        programs, child = self.programs, self.programs.prepared
        # In a new pod it may see newer checkpoints later.
        if child is None or not child.pid or (child.state != "starting" and programs.running is not None):
            return
        waits = protocol.read(programs.folder(child) / protocol.READY)
        child.checkpoint = (waits or {}).get("checkpoint")
        if child.state != "starting":
            return
        if not child.has_program:
            ready = waits is not None and bool(waits.get("spare"))
        elif child.task.trains:
            ready = waits is not None and not waits.get("spare")
        else:
            ready = listens(child.task.port)
        if ready:
            child.state = "ready"
            programs.restore_priority(child)  # it waits now; at the switch there is nothing left to do
            self.preparation = {
                "generation": child.generation,
                "way": "fork" if child.forked else "exec",
                "seconds": round(now_s - child.started_at_s, 3),
                "cpu_s": processes.cpu_s(child.pid),
                "hand_over": (waits or {}).get("hand_over"),
            }
            child.takes_values = bool((self.preparation["hand_over"] or {}).get("able"))
            if child.checks_fork:
                programs.forks.resolve_suspicion(works_without_fork=True)
            self._log(f"generation {child.generation} is ready")
        elif child.forked and now_s - child.started_at_s > HUNG_S and not programs.said_hello(child):
            # Some threads and locks of libraries do not survive a fork; a process of its own may not hang.
            programs.forks.suspect(f"the forked program did nothing for {HUNG_S:.0f} s")
            programs.drop_prepared()  # it is prepared again

    def _follow_chief(self, now_s: float) -> None:
        """Commit a prepared program that has begun with its chief, even while no operator can say so: the program it
        replaces has lost its chief, and would end with an error."""
        programs, child = self.programs, self.programs.prepared
        if child is None or child.state != "ready" or child.task.chief or not child.task.trains:
            return
        if (programs.folder(child) / protocol.BEGUN).exists():
            self._commit(now_s)

    def _follow_old_chief(self, now_s: float) -> None:
        """Commit the prepared program once the chief's pod before has left."""
        command, old = self.command, self._old_chief
        if command is None or not command.old_chief or not self._is_prepared(command.generation):
            return
        if old is None or old.address != command.old_chief:
            old = self._old_chief = OldChief(command.old_chief)
        if command.action == "switch" and old.has_left(command.generation, now_s):
            self._commit(now_s, old_chief=old.progress)

    # -- switching while the programs stay: mode `live` ----------------------------------------------------------------

    def _switch_live(self, command: LauncherCommand, running: Child, now_s: float) -> None:
        """Have the chief's program change its workers, once for each generation."""
        decided = self.switch and self.switch["generation"] == command.generation and self.switch["state"] != "changing"
        if not running.task.chief or self._live is not None or decided:
            return
        self._decide(command.generation, "changing")
        tf_config = self._tf_config_of(command)
        (chief, before), (next_chief, workers) = map(protocol.chief_and_workers, (running.tf_config, tf_config))
        if not chief or chief != next_chief:
            self._refuse("the chief has another address")
            return
        coming = Child(command.generation, tf_config)
        try:
            self._live = LiveSwitch(
                self.programs.folder(running),
                self.directory / protocol.COMMITTED,
                committed(coming, decision(command.generation, "committed")),
                workers,
                before=(running.generation, before),
                limit_s=command.timeout_s,
                now_s=now_s,
            )
        except OSError as error:  # else the switch would be under way for ever
            self._refuse(f"the request cannot be written: {error.strerror}")

    def _watch_live(self, now_s: float) -> None:
        """Read the running program's answer to the request to change its workers."""
        live, running = self._live, self.programs.running
        if live is None or running is None or (why := live.poll(now_s)) is None:
            return
        self._live = None
        if why:
            live.discard()
            self._decide(live.content["generation"], "refused", why)
            return
        live.commit()
        self.switch = live.content["switch"]
        self._continue_as(running, live.content["generation"], live.content["tf_config"])

    def _continues(self, running: Child, command: LauncherCommand) -> bool:
        """Whether the running server, or evaluator, also serves the commanded generation. The port of a server stays
        only in mode `live`."""
        coming = protocol.Task.of(self._tf_config_of(command))
        return not running.task.trains and (coming.serves, coming.port) == (running.task.serves, running.task.port)

    def _continue_as(self, running: Child, generation: int, tf_config: str | None) -> None:
        running.generation, running.tf_config = generation, tf_config
        self._log(f"generation {running.generation} is running, in the same program")

    # -- switching to a prepared program -------------------------------------------------------------------------------

    def _is_switching(self) -> bool:
        return self.switch is not None and self.switch["state"] == "saving"

    def _switch(self, command: LauncherCommand, now_s: float) -> None:
        prepared = self.programs.prepared
        assert prepared is not None
        waits_as_spare = prepared.mode == "spare" and prepared.pid and not prepared.has_program
        if waits_as_spare and prepared.task.serves and not has_gpu():
            if prepared.state == "ready":
                self._give_program(prepared)
                prepared.state = "starting"
            return
        self._ask_to_save(command, prepared, now_s)

    def _ask_to_save(self, command: LauncherCommand, prepared: Child | None, now_s: float) -> None:
        """Have the chief's program save, once for each generation. `prepared`: the next one; None if that is in another
        pod."""
        running = self.programs.running
        if running is None or not running.task.chief:
            return
        if self.switch and self.switch["generation"] == command.generation and self.switch["state"] != "saving":
            return  # the switch is decided already
        if self.switch is None or self.switch["generation"] != command.generation:
            self._save_deadline_s = now_s + command.timeout_s
            self._decide(command.generation, "saving")
        if prepared is not None and prepared.state == "failed":
            self._refuse(prepared.why)
        elif now_s >= self._save_deadline_s:
            why = "not saved" if self._save_id else "not ready"
            self._refuse(f"{why} within {command.timeout_s:g} s")
        elif self._save_id is None and (prepared is None or prepared.state == "ready"):
            in_memory = prepared is not None and prepared.takes_values
            self._save_id = f"{command.generation}-{time.time_ns()}"
            request = {"id": self._save_id, "generation": command.generation, "hand_over": in_memory}
            protocol.write(self.programs.folder(running) / protocol.SAVE, request)

    def _watch_save(self, now_s: float) -> None:
        """Read the running program's answer to the request to save for a switch."""
        programs, leaves = self.programs, self.command is not None and self.command.mode == "leave"
        if self._save_id is None or programs.running is None or (programs.prepared is None and not leaves):
            return
        answer = protocol.read(programs.folder(programs.running) / protocol.SAVED)
        if answer is None or answer.get("id") != self._save_id:
            return
        if not answer.get("ok"):
            self._refuse(f"checkpoint: {answer.get('why') or 'failed'}")
        elif leaves or programs.prepared is None:
            self._leave(programs.running, now_s)
        elif programs.prepared.state == "failed":
            self._refuse(programs.prepared.why)
        else:
            given = answer.get("hand_over")
            self._commit(now_s, given if isinstance(given, dict) else None)

    def _leave(self, running: Child, now_s: float) -> None:
        """Run no program any more: the next one is in another pod. An OSError changes nothing."""
        assert self.switch is not None
        decided = decision(self.switch["generation"], "committed")
        write_left(self.directory / protocol.COMMITTED, committed(running, decided))
        self._save_id, self.switch, self._has_left = None, decided, True
        self.programs.leave(now_s)
        self._log(f"switch to generation {decided['generation']}: committed, in another pod")

    def _commit(
        self, now_s: float, given: dict[str, Any] | None = None, old_chief: dict[str, Any] | None = None
    ) -> None:
        """Make the prepared program the running one. Opening its barrier is the point of no return; an OSError before
        that changes nothing. committed.json is written before and only renamed afterwards, so a volume that becomes
        full in between cannot bring the old generation back. `given`: what the old program gives in memory.
        `old_chief`: how far the chief came in another pod."""
        programs, prepared, old = self.programs, self.programs.prepared, self.programs.running
        assert prepared is not None
        prepared.old_chief = old_chief or {}
        decided = self.switch
        if self._save_id is not None:
            decided = {**decision(prepared.generation, "committed"), "in_memory": given is not None}
        staged = protocol.stage(self.directory / protocol.COMMITTED, committed(prepared, decided))
        try:
            self._open(prepared, given)
        except BaseException:
            os.unlink(staged)
            raise
        with contextlib.suppress(OSError):
            os.replace(staged, self.directory / protocol.COMMITTED)
        programs.restore_priority(prepared)  # if it was never seen ready
        programs.running, programs.prepared = prepared, None
        if prepared.stderr is not None:
            prepared.stderr.unmark()
        if self._save_id is not None:
            self._save_id, self.switch = None, decided
            self._log(f"switch to generation {prepared.generation}: committed")
        if old is not None and given is not None:
            programs.stopping.append(old)
            self._leaving = LeavingProgram(old, programs.folder(old), programs.folder(prepared), now_s)
        elif old is not None:
            programs.stop(old, now_s)
        self._log(f"generation {prepared.generation} is running")

    def _watch_leaving(self, code: int | None) -> None:
        """Stop the program that has given its values when it has saved them. `code`: with which the running program has
        ended."""
        leaving, now_s = self._leaving, time.monotonic()
        if leaving is not None and leaving.is_done(now_s, code):
            self._leaving = None
            if not leaving.child.exited:
                self.programs.stop(leaving.child, now_s)

    def _open(self, child: Child, given: dict[str, Any] | None) -> None:
        """Open the barrier of resume(). If the user's program has not been started yet, start it: in the waiting spare,
        or as a new process."""
        protocol.write(self.programs.folder(child) / protocol.GO, opening(child, given))
        if child.has_program:
            return
        if child.pid:
            self._give_program(child)
        else:
            child.has_program = True
            self.programs.start(child, opened=True)

    def _give_program(self, spare: Child) -> None:
        protocol.write(self.programs.folder(spare) / protocol.START, {"tf_config": spare.tf_config})
        spare.has_program = True

    def _decide(self, generation: int, state: str, why: str = "") -> None:
        self.switch = decision(generation, state, why)
        self._log(f"switch to generation {generation}: {state} {why}")

    def _refuse(self, why: str) -> None:
        """Give up the switch: the running program continues to train."""
        assert self.switch is not None
        self._decide(self.switch["generation"], "refused", why)
        self._withdraw_save()

    def _cancel_switch(self, why: str) -> None:
        if self._live is not None:
            self._live.give_up(why, time.monotonic())
        elif self._is_switching():
            self._refuse(why)

    def _withdraw_save(self) -> None:
        self._save_id = None
        if self.programs.running is not None:
            with contextlib.suppress(OSError):
                (self.programs.folder(self.programs.running) / protocol.SAVE).unlink()

    # -- what it publishes ---------------------------------------------------------------------------------------------

    def _publish(self, now_s: float) -> None:
        """Write launcher.json: at once where the state has changed, and every STATUS_S with what the container uses."""
        programs, running, prepared = self.programs, self.programs.running, self.programs.prepared
        alone = running if prepared is None and self._leaving is None else None
        self._memory.sample(now_s, alone.started_at_s if alone else now_s)
        due = now_s - self._status_at_s >= STATUS_S or self._memory.is_news
        if due and running and running.hook and running.task.trains and uses_hook(programs) is None:
            running.hook.sample(now_s, programs.forks.has_imported("tensorflow"))
        live = (protocol.read(programs.folder(running) / protocol.LIVE) if running else None) or {}
        state = {
            "generation": running.generation if running else None,
            "prepared": prepared_for(self.command, running, prepared),
            "switch": self.switch,
            "modes": modes(programs, live),
            "not_live": live.get("why") or None,
            "hook": uses_hook(programs),
            "saved": self.save_before_stop.report,
            "start": programs.forks.report(),
            "preparation": self.preparation,
            "handing_over": self._leaving is not None,
        }
        if not due and state == self._published:
            return
        if due or state["prepared"] != self._published.get("prepared"):  # a kill explains its end
            self._status_at_s, self._cgroup = now_s, {"at": time.time(), **cgroup.usage()}
            if prepared is None and not programs.stopping:
                programs.forks.make_room(self._cgroup.get("anonymous_bytes"), self._cgroup.get("limit_bytes"))
            self._cores.add(now_s, self._cgroup.get("usage_s"))
            self._cgroup["trend"] = self._memory.report(self._cgroup.get("kills"), time.time())
        self._published = state
        content = {"at": time.time(), **state, "cgroup": self._cgroup, "use_cores": self._cores.used()}
        with contextlib.suppress(OSError):
            protocol.write(self.directory / protocol.LAUNCHER, content)

    def _write_committed(self) -> None:
        assert self.programs.running is not None
        protocol.write(self.directory / protocol.COMMITTED, committed(self.programs.running, self.switch))

    def _log(self, line: str) -> None:
        with contextlib.suppress(OSError):
            log = self.directory / "launcher.log"
            mode = "w" if log.exists() and log.stat().st_size > _LOG_BYTES else "a"
            with open(log, mode) as file:
                file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')}.{time.time_ns() // 1_000_000 % 1000:03} {line}\n")
