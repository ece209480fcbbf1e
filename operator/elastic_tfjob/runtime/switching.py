"""From one generation to the next: prepare beside what runs, save, hand over; see docs/designs/rescale.md.

The chief's launcher alone decides: its program has saved and waits -> the barrier of the prepared one opens and the old
one is stopped.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from dataclasses import dataclass
from typing import Any

from elastic_tfjob.runtime import programs, protocol, spare
from elastic_tfjob.runtime.cgroup import cpu_s
from elastic_tfjob.runtime.programs import ARCHIVE, Child, Programs, has_gpu, kept
from elastic_tfjob.runtime.protocol import LauncherCommand

HUNG_S = 60.0
"""A forked program has constructed its ElasticCheckpoint, or listens, long before."""


@dataclass
class Switching(Programs):
    """`asked`: the id of the save that was asked for. `preparation`: what it took until the newest prepared
    program was ready."""

    asked: str | None = None
    save_until: float = 0.0
    preparation: dict[str, Any] | None = None

    # -- the next generation -------------------------------------------------------------------------------------------

    def _config(self, command: LauncherCommand) -> str | None:
        return self.tf_config if command.tf_config is None else command.tf_config

    def _is_prepared(self, generation: int) -> bool:
        child = self.prepared
        if child is None or child.generation != generation or child.state == "failed":
            return False
        return bool(child.pid) or child.state == "ready"

    def _prepare(self, command: LauncherCommand) -> None:
        """Start a generation beside what runs. A program that trains must have said that it uses ElasticCheckpoint: its
        next generation would not wait, but train too. A restarted one needs a while to say so."""
        if self.prepared is None:
            self.prepared = Child(command.generation, self._config(command), command.mode)
        child = self.prepared
        task = child.task
        if task.trains and self.running is not None and not self._says_hello(self.running):
            child.why = "the running program does not use ElasticCheckpoint (yet)"
            return
        child.why = ""
        if not task.trains and not task.serves:
            # An evaluator is beside the cluster: it starts when it is to run.
            child.state, child.started = "ready", False
            return
        waiting = spare.command(self.program, ARCHIVE) if command.mode == "spare" else self.program
        if waiting is None:
            child.state, child.why = "failed", "only `python SCRIPT` and `python -m MODULE` can wait as a spare"
            return
        child.started = command.mode != "spare"
        try:
            self._spawn(child, waiting)
        except OSError as error:
            child.state, child.why = "failed", f"cannot be started: {error}"

    def _watch_prepared(self, now: float) -> None:
        child = self.prepared
        if child is None or child.state != "starting" or not child.pid:
            return
        waits = protocol.read(self._folder(child) / protocol.READY)
        if not child.started:
            ready = waits is not None and bool(waits.get("spare"))
        elif child.task.trains:
            ready = waits is not None and not waits.get("spare")
        else:
            ready = listens(child.task.port)
        if ready:
            child.state = "ready"
            self._restore_priority(child)
            self.preparation = {
                "generation": child.generation,
                "way": "fork" if child.forked else "exec",
                "seconds": round(now - child.began, 3),
                "cpu_s": cpu_s(child.pid),
            }
            if child.in_doubt:
                self._forks.decide(good=True)
            self._log(f"generation {child.generation} is ready")
        elif child.forked and now - child.began > HUNG_S and not self._says_hello(child):
            # Some threads and locks of libraries do not live through a fork: as a process of its own it may not hang.
            self._forks.doubt(f"forked, the program did nothing for {HUNG_S:.0f} s")
            self._drop_prepared()  # and is prepared again

    def _restore_priority(self, child: Child) -> None:
        """It waits now, so it takes nothing from the one that trains, and nothing is left to do when it takes over."""
        if child.lowered and not programs.restore_priority(child.pid, child.lowered):
            self._log(f"generation {child.generation} keeps a low priority")
        child.lowered = ""

    def _follow_chief(self, now: float) -> None:
        """A prepared program that has begun with its chief is the one that runs, also while no operator is there to say
        so: what it replaces has lost its chief, and would end with an error."""
        child = self.prepared
        if child is None or child.state != "ready" or child.task.chief or not child.task.trains:
            return
        if (self._folder(child) / protocol.BEGUN).exists():
            self._commit(now)

    # -- the switch ----------------------------------------------------------------------------------------------------

    def _switch(self, command: LauncherCommand, now: float) -> None:
        prepared, running = self.prepared, self.running
        assert prepared is not None
        if (
            prepared.mode == "spare"
            and prepared.pid
            and not prepared.started
            and prepared.task.serves
            and not has_gpu()
        ):
            if prepared.state == "ready":
                self._begin_spare(prepared)
                prepared.state = "starting"
            return
        if running is None or not running.task.chief:
            return
        if self.switch and self.switch["generation"] == command.generation and self.switch["state"] != "saving":
            return  # decided
        if self.switch is None or self.switch["generation"] != command.generation:
            self.save_until = now + command.timeout_s
            self._decide(command.generation, "saving")
        if prepared.state == "failed":
            self._refuse(prepared.why)
        elif now >= self.save_until:
            why = "not saved" if self.asked else "not ready"
            self._refuse(f"{why} within {command.timeout_s:g} s")
        elif self.asked is None and prepared.state == "ready":
            self.asked = f"{command.generation}-{time.time_ns()}"
            request = {"id": self.asked, "generation": command.generation}
            protocol.write(self._folder(running) / protocol.SAVE, request)

    def _watch_save(self, now: float) -> None:
        """The running program's answer to a request to save."""
        if self.asked is None or self.running is None or self.prepared is None:
            return
        answer = protocol.read(self._folder(self.running) / protocol.SAVED)
        if answer is None or answer.get("id") != self.asked:
            return
        if not answer.get("ok"):
            self._refuse(f"checkpoint: {answer.get('why') or 'failed'}")
        elif self.prepared.state == "failed":
            self._refuse(self.prepared.why)
        else:
            self._commit(now)

    def _commit(self, now: float) -> None:
        """The prepared program is the running one from here on. Once its barrier is open there is no way back; if that
        cannot be done (OSError), nothing has changed. What a restarted container goes on with is written before, and
        only renamed after: a volume that is full by then cannot bring the old generation back."""
        prepared, old = self.prepared, self.running
        assert prepared is not None
        decided = _decision(prepared.generation, "committed") if self.asked is not None else self.switch
        committed = protocol.stage(self.directory / protocol.COMMITTED, kept(prepared, decided))
        try:
            self._open(prepared)
        except BaseException:
            os.unlink(committed)
            raise
        with contextlib.suppress(OSError):
            os.replace(committed, self.directory / protocol.COMMITTED)
        self._restore_priority(prepared)  # if it was never seen ready
        self.running, self.prepared = prepared, None
        if prepared.stderr is not None:
            prepared.stderr.unmark()
        if self.asked is not None:
            self.asked, self.switch = None, decided
            self._log(f"switch to {prepared.generation}: committed")
        if old is not None:
            self._stop(old, now)
        self._log(f"generation {prepared.generation} runs")

    def _open(self, child: Child) -> None:
        protocol.write(self._folder(child) / protocol.GO, {"generation": child.generation, "at": time.time()})
        if child.started:
            return
        if child.pid:
            self._begin_spare(child)
        else:
            child.started = True
            self._spawn(child, self.program, opened=True)

    def _begin_spare(self, child: Child) -> None:
        protocol.write(self._folder(child) / protocol.START, {"tf_config": child.tf_config})
        child.started = True

    def _decide(self, generation: int, state: str, why: str = "") -> None:
        self.switch = _decision(generation, state, why)
        self._log(f"switch to {generation}: {state} {why}")

    def _refuse(self, why: str) -> None:
        """Let the running program go on."""
        assert self.switch is not None
        self._decide(self.switch["generation"], "refused", why)
        self._withdraw()

    def _withdraw(self) -> None:
        self.asked = None
        if self.running is not None:
            with contextlib.suppress(OSError):
                (self._folder(self.running) / protocol.SAVE).unlink()

    def _cancel(self, why: str) -> None:
        if self.switch is not None and self.switch["state"] == "saving":
            self._refuse(why)


def _decision(generation: int, state: str, why: str = "") -> dict[str, Any]:
    return {"generation": generation, "state": state, "why": why, "at": time.time()}


def listens(port: int) -> bool:
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with contextlib.suppress(OSError), socket.socket(family) as probe:
            probe.settimeout(0.2)
            probe.connect((address, port))
            return True
    return False
