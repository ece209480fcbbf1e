"""What a launcher answers to each command: one table, for the real one with real programs and for the one that unit
tests pretend with (unit.pretend), so that what is shown with that one is true of this one."""

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from elastic_tfjob.runtime import protocol
from harness.controlplane import free_port
from unit.pretend import Launcher

from .pods import Pod
from .programs import tf_config

SETTLED_S = 120.0
"""A busy machine takes long to start a program."""
STAYS_S = 0.15
"""Three looks of the launcher, in which nothing more may happen."""

PROGRAM = """
import os, signal, socket, sys, time
from pathlib import Path
from elastic_tfjob.runtime import protocol

generation, shared = int(os.environ["ELASTIC_TFJOB_GENERATION"]), Path(os.environ["ELASTIC_TFJOB_DIR"])
folder, task = protocol.generation_directory(shared, generation), protocol.Task.of(os.environ["TF_CONFIG"])

def told(what):
    return (protocol.read(shared / "told.json") or {}).get(what)

if generation and told("builds") == "no":
    sys.exit(1)
if task.serves:
    listener = socket.create_server(("127.0.0.1", task.port))
    while True:
        time.sleep(1)
protocol.write(folder / protocol.HELLO, {})
if not (folder / protocol.GO).exists():
    protocol.write(folder / protocol.READY, {})
    while not (folder / protocol.GO).exists():
        time.sleep(0.005)
protocol.write(shared / protocol.PROGRESS, {"generation": generation, "first_step_at": time.time()})
answered = changed = None
protocol.write(folder / protocol.LIVE, {"able": True, "why": ""})
while True:
    wanted = protocol.read(folder / protocol.WORKERS) or {}
    if wanted.get("id") != changed and told("lives") != "never":
        changed, ok = wanted["id"], wanted["generation"] == generation or told("lives") != "fails"
        if ok and wanted["generation"] != generation:
            generation = wanted["generation"]
            protocol.write(shared / protocol.PROGRESS, {"generation": generation, "first_step_at": time.time()})
        protocol.write(folder / protocol.CHANGED, {"id": changed, "ok": ok, "why": "no dataset on the new worker"})
    request = (protocol.read(folder / protocol.SAVE) or {}).get("id")
    if request and request != answered and told("saves") != "never":
        answered = request
        protocol.write(folder / protocol.SAVED, {"id": request, "ok": told("saves") != "fails", "why": ""})
    time.sleep(0.005)
"""
"""A chief that trains and saves, or a server, as the file told.json says."""


@dataclass(frozen=True)
class Answer:
    """Generations: what runs (and has made a step, where it is the chief's), what is prepared and the last switch; and
    the request of the checkpoint before the end."""

    runs: int | None
    prepared: tuple[int, str] | None = None
    switch: tuple[int, str] | None = None
    saved: tuple[int, str] | None = None


Script = list[tuple[str, Answer]]


def runs(generation: int | None, prepared: str = "", switch: str = "", saved: str = "") -> Answer:
    """`prepared`, `switch` and `saved`: "1 ready", "1 committed", "1 saved"."""

    def pair(text: str) -> tuple[int, str] | None:
        number, _, state = text.partition(" ")
        return (int(number), state) if text else None

    return Answer(generation, pair(prepared), pair(switch), pair(saved))


CHIEF: dict[str, Script] = {
    "two switches": [
        ("", runs(0)),
        ("prepare 1", runs(0, "1 ready")),
        ("switch 1", runs(1, switch="1 committed")),
        ("run 1", runs(1, switch="1 committed")),
        ("prepare 2", runs(1, "2 ready", "1 committed")),
        ("switch 2", runs(2, switch="2 committed")),
    ],
    "a switch that was not prepared": [("", runs(0)), ("switch 1", runs(1, switch="1 committed"))],
    "another one is prepared": [
        ("", runs(0)),
        ("prepare 1", runs(0, "1 ready")),
        ("prepare 2", runs(0, "2 ready")),
        ("run 0", runs(0)),
    ],
    "a save that fails is tried again when it is prepared again": [
        ("saves fails", runs(0)),
        ("prepare 1", runs(0, "1 ready")),
        ("switch 1", runs(0, "1 ready", "1 refused")),
        ("saves well", runs(0, "1 ready", "1 refused")),
        ("run 0", runs(0, switch="1 refused")),
        ("switch 1", runs(0, "1 ready", "1 refused")),
        ("prepare 1", runs(0, "1 ready")),
        ("switch 1", runs(1, switch="1 committed")),
    ],
    "a save that does not come is taken back": [
        ("saves never", runs(0)),
        ("switch 1", runs(0, "1 ready", "1 saving")),
        ("run 0", runs(0, switch="1 refused")),
        ("saves well", runs(0, switch="1 refused")),
    ],
    "prepared while it saves": [
        ("saves never", runs(0)),
        ("switch 1", runs(0, "1 ready", "1 saving")),
        ("prepare 1", runs(0, "1 ready")),
        ("saves well", runs(0, "1 ready")),
        ("switch 1", runs(1, switch="1 committed")),
    ],
    "another one is prepared while it saves": [
        ("saves never", runs(0)),
        ("switch 1", runs(0, "1 ready", "1 saving")),
        ("prepare 2", runs(0, "2 ready", "1 refused")),
        ("saves well", runs(0, "2 ready", "1 refused")),
    ],
    "what is prepared is to run": [
        ("saves never", runs(0)),
        ("prepare 1", runs(0, "1 ready")),
        ("run 1", runs(0, "1 ready", "1 saving")),
        ("saves well", runs(1, switch="1 committed")),
    ],
    "one that does not come up": [
        ("builds no", runs(0)),
        ("prepare 1", runs(0, "1 failed")),
        ("switch 1", runs(0, "1 failed", "1 refused")),
        ("run 0", runs(0, switch="1 refused")),
        ("builds yes", runs(0, switch="1 refused")),
        ("prepare 1", runs(0, "1 ready")),
    ],
    "what was not prepared is to run": [
        ("", runs(0)),
        ("run 4", runs(4)),
        ("prepare 5", runs(4, "5 ready")),
        ("run 6", runs(6)),
    ],
    "its workers change": [
        ("", runs(0)),
        ("live 1", runs(1, switch="1 committed")),
        ("run 1", runs(1, switch="1 committed")),
        ("live 2", runs(2, switch="2 committed")),
        ("run 1", runs(2, switch="2 committed")),
        ("run 2", runs(2, switch="2 committed")),
        ("restart", runs(2, switch="2 committed")),
        ("prepare 3", runs(2, "3 ready", "2 committed")),
        ("switch 3", runs(3, switch="3 committed")),
        ("live 4", runs(4, switch="4 committed")),
        ("save 5", runs(4, switch="4 committed", saved="5 saved")),
    ],
    "its workers do not change": [
        ("lives fails", runs(0)),
        ("live 1", runs(0, "1 ready", "1 refused")),
        ("run 0", runs(0, switch="1 refused")),
        ("live 1", runs(0, "1 ready", "1 refused")),
        ("prepare 1", runs(0, "1 ready")),
        ("switch 1", runs(1, switch="1 committed")),
    ],
    "a change of workers is taken back": [
        ("lives never", runs(0)),
        ("live 1", runs(0, "1 ready", "1 changing")),
        ("run 0", runs(0, switch="1 changing")),
        ("lives well", runs(0, switch="1 refused")),
        ("live 2", runs(2, switch="2 committed")),
    ],
    "restarted while its workers change": [
        ("lives never", runs(0)),
        ("live 1", runs(0, "1 ready", "1 changing")),
        ("restart", runs(0, "1 ready", "1 changing")),
        ("lives well", runs(1, switch="1 committed")),
    ],
    "a change of workers is called off before it begins": [
        ("", runs(0)),
        ("new 1", runs(0, "1 ready")),
        ("run 0", runs(0)),
        ("new 2", runs(0, "2 ready")),
        ("live 2", runs(2, switch="2 committed")),
    ],
    "its workers change while another one is prepared": [
        ("", runs(0)),
        ("prepare 1", runs(0, "1 ready")),
        ("live 2", runs(2, switch="2 committed")),
    ],
    "it leaves for another pod": [
        ("", runs(0)),
        ("leaving 1", runs(0, "1 ready")),
        ("leave 1", runs(None, switch="1 committed")),
        ("run 0", runs(None, switch="1 committed")),
        ("restart", runs(None, switch="1 committed")),
        ("prepare 2", runs(None, switch="1 committed")),
        ("save 3", runs(None, switch="1 committed")),
    ],
    "it cannot leave": [
        ("saves fails", runs(0)),
        ("leave 1", runs(0, "1 ready", "1 refused")),
        ("saves well", runs(0, "1 ready", "1 refused")),
        ("run 0", runs(0, switch="1 refused")),
        ("leave 2", runs(None, switch="2 committed")),
    ],
    "leaving is taken back": [
        ("saves never", runs(0)),
        ("leave 1", runs(0, "1 ready", "1 saving")),
        ("run 0", runs(0, switch="1 refused")),
        ("saves well", runs(0, switch="1 refused")),
        ("prepare 2", runs(0, "2 ready", "1 refused")),
        ("leaving 3", runs(0, "3 ready", "1 refused")),
    ],
    "restarted while it leaves": [
        ("saves never", runs(0)),
        ("leave 1", runs(0, "1 ready", "1 saving")),
        ("restart", runs(0, "1 ready", "1 saving")),
        ("saves well", runs(None, switch="1 committed")),
    ],
    "a pod that stops": [("", runs(0)), ("prepare 1", runs(0, "1 ready")), ("stop", runs(0, "1 ready"))],
    "a new pod that is to stop": [("stop", runs(0))],
    "a new pod": [("prepare 3", runs(None, "3 ready")), ("switch 3", runs(None, "3 ready")), ("run 3", runs(3))],
    "restarts": [
        ("", runs(0)),
        ("restart", runs(0)),
        ("prepare 1", runs(0, "1 ready")),
        ("restart", runs(0, "1 ready")),
        ("switch 1", runs(1, switch="1 committed")),
        ("restart", runs(1, switch="1 committed")),
        ("saves fails", runs(1, switch="1 committed")),
        ("switch 2", runs(1, "2 ready", "2 refused")),
        ("run 1", runs(1, switch="2 refused")),
        ("restart", runs(1, switch="1 committed")),
    ],
    "restarted while it saves": [
        ("saves never", runs(0)),
        ("switch 1", runs(0, "1 ready", "1 saving")),
        ("restart", runs(0, "1 ready", "1 saving")),
        ("run 0", runs(0, switch="1 refused")),
        ("restart", runs(0)),
    ],
    "a checkpoint before the end": [
        ("", runs(0)),
        ("save 1", runs(0, saved="1 saved")),
        ("stop", runs(0, saved="1 saved")),
    ],
    "it is taken back": [
        ("saves never", runs(0)),
        ("save 1", runs(0, saved="1 saving")),
        ("run 0", runs(0)),
        ("saves well", runs(0)),
        ("save 2", runs(0, saved="2 saved")),
    ],
    "it cannot be saved": [
        ("saves fails", runs(0)),
        ("save 1", runs(0, saved="1 refused")),
        ("run 0", runs(0)),
    ],
    "a checkpoint before the end of a job that was to change": [
        ("saves never", runs(0)),
        ("switch 1", runs(0, "1 ready", "1 saving")),
        ("saves well", runs(1, switch="1 committed")),
        ("prepare 2", runs(1, "2 ready", "1 committed")),
        ("save 3", runs(1, switch="1 committed", saved="3 saved")),
    ],
    "restarted before the end": [
        ("saves never", runs(0)),
        ("save 1", runs(0, saved="1 saving")),
        ("restart", runs(0, saved="1 saving")),
        ("saves well", runs(0, saved="1 saved")),
    ],
}

SERVER: dict[str, Script] = {
    "a server": [
        ("", runs(0)),
        ("prepare 1", runs(0, "1 ready")),
        ("switch 1", runs(0, "1 ready")),
        ("run 1", runs(1)),
        ("switch 2", runs(1, "2 ready")),
        ("prepare 3", runs(1, "3 ready")),
        ("run 1", runs(1)),
        ("run 4", runs(4)),
    ],
    "a server that stays": [
        ("", runs(0)),
        ("same 1", runs(1)),
        ("same 2", runs(2)),
        ("prepare 3", runs(2, "3 ready")),
        ("run 3", runs(3)),
        ("same 4", runs(4)),
        ("restart", runs(4)),
    ],
    "a new server beside those that stay": [("new 1", runs(None, "1 ready")), ("run 1", runs(1)), ("same 2", runs(2))],
    "a server that is to end saves nothing": [("", runs(0)), ("save 1", runs(0))],
    "a server that does not come up": [
        ("builds no", runs(0)),
        ("prepare 1", runs(0, "1 failed")),
        ("switch 1", runs(0, "1 failed")),
        ("run 0", runs(0)),
    ],
    "a new server": [("prepare 3", runs(None, "3 ready")), ("restart", runs(None, "3 ready")), ("run 3", runs(3))],
    "a server restarts": [
        ("", runs(0)),
        ("prepare 1", runs(0, "1 ready")),
        ("restart", runs(0, "1 ready")),
        ("run 1", runs(1)),
        ("restart", runs(1)),
    ],
}


LIVE = {
    "live": ("switch", "live"),
    "same": ("run", "overlap"),
    "new": ("prepare", "live"),
    "leaving": ("prepare", "leave"),
    "leave": ("switch", "leave"),
}
"""Commands by which the program that runs keeps its port."""


class Side(Protocol):
    """A launcher, real or pretended."""

    def begin(self, command: str) -> None: ...
    def do(self, what: str) -> None: ...
    def settled(self, expected: Answer) -> Answer:
        """Its answer when nothing more happens."""
        ...


class Real:
    """A launcher's process, and programs that it starts."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._kind = kind
        self._ports = {0: free_port()}
        (folder / "program.py").write_text(PROGRAM)
        environment = {"TF_CONFIG": tf_config(kind, port=self._ports[0])}
        self.pod = Pod(folder / "pod", [sys.executable, folder / "program.py"], environment)
        self._told: dict[str, str] = {}
        self._heard = 0
        self._started_at = 0.0

    def begin(self, command: str) -> None:
        if command:
            self._command(command)
        self._start()

    def _start(self) -> None:
        self._started_at = time.time()
        self.pod.start()

    def _speaks(self) -> bool:
        """Whether the launcher that runs has spoken: after a restart there are still the words of the one before it."""
        said = protocol.read(self.pod.shared / protocol.LAUNCHER) or {}
        return said.get("at", 0.0) >= self._started_at and "generation" in said

    def do(self, what: str) -> None:
        word, _, value = what.partition(" ")
        if word in ("saves", "builds", "lives"):
            self._told[word] = value
            protocol.write(self.pod.shared / "told.json", dict(self._told))
        elif what == "restart":
            self.pod.stop()
            self._heard += bool(self.pod.command_file.read_text())
            self._start()
        else:
            self._command(what)
            self.pod.signal(signal.SIGCONT)  # it looks at once

    def _command(self, text: str) -> None:
        action, _, number = text.partition(" ")
        self._heard += 1
        if action == "stop":
            self.pod.command_file.write_text(json.dumps({"action": "stop"}))
            return
        if action == "save":
            self.pod.command(action, self.pod.status["generation"] or 0, request=int(number))
            return
        generation = int(number)
        if action in LIVE:
            running = self.pod.status["generation"] or 0
            self._ports[generation] = self._ports.get(running) or free_port()
        port = self._ports.setdefault(generation, free_port())
        action, mode = LIVE.get(action, (action, "overlap"))
        self.pod.command(action, generation, mode=mode, tf_config=tf_config(self._kind, port=port))

    def _answer(self) -> Answer:
        said = self.pod.status
        trains = self._kind != "chief" or (said["first_step_at"] or 0.0) >= self._started_at
        return Answer(
            said["generation"] if trains else None,
            said["prepared"] and (said["prepared"]["generation"], said["prepared"]["state"]),
            said["switch"] and (said["switch"]["generation"], said["switch"]["state"]),
            said["saved"] and (said["saved"]["request"], said["saved"]["state"]),
        )

    def settled(self, expected: Answer) -> Answer:
        end = time.monotonic() + SETTLED_S
        while time.monotonic() < end:
            heard = self.pod.log.count(" command: ")
            if self._speaks() and heard >= self._heard and self._answer() == expected:
                break
            time.sleep(0.01)
        time.sleep(STAYS_S)
        return self._answer()


class Pretended:
    """The one of the unit tests."""

    def __init__(self, kind: str) -> None:
        self.launcher = Launcher(kind == "chief")
        self._kind = kind
        self._text = ""
        self._ports = {0: 2222}

    def begin(self, command: str) -> None:
        self._command(command)

    def do(self, what: str) -> None:
        word, _, value = what.partition(" ")
        if word in ("saves", "lives"):
            setattr(self.launcher, word, value)
        elif word == "builds":
            self.launcher.builds = value == "yes"
        elif what == "restart":
            self.launcher.restart()
        else:
            self._command(what)

    def _command(self, text: str) -> None:
        action, _, number = text.partition(" ")
        if action == "save" or not number:
            self._text = json.dumps({"action": action, "request": int(number or 0)}) if text else ""
            return
        generation = int(number)
        port = self.launcher.port if action in LIVE else self._ports.setdefault(generation, 2300 + len(self._ports))
        self._ports[generation] = port
        action, mode = LIVE.get(action, (action, "overlap"))
        config = tf_config(self._kind, port=port)
        said = {"action": action, "generation": generation, "mode": mode, "tf_config": config}
        self._text = json.dumps(said)

    def settled(self, expected: Answer) -> Answer:
        del expected
        launcher = self.launcher
        for _ in range(5):
            launcher.obey(self._text)
        prepared, switch, saved = launcher.prepared, launcher.switch, launcher.saved
        return Answer(
            launcher.generation if launcher.first_step else None,
            None if prepared is None else (prepared.generation, prepared.state),
            None if switch is None else (switch.generation, switch.state),
            None if saved is None else (saved.request, saved.state),
        )


@pytest.fixture(params=["real", "pretended"])
def side(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Side]]:
    """`side(kind)`: the launcher of a replica of this kind."""
    pods: list[Pod] = []

    def make(kind: str) -> Side:
        if request.param == "pretended":
            return Pretended(kind)
        real = Real(tmp_path, kind)
        pods.append(real.pod)
        return real

    yield make
    for pod in pods:
        pod.stop()


@pytest.mark.parametrize(("kind", "name"), [*(("chief", name) for name in CHIEF), *(("ps", name) for name in SERVER)])
def test_each_answer(side: Callable[[str], Side], kind: str, name: str) -> None:
    script = {"chief": CHIEF, "ps": SERVER}[kind][name]
    launcher = side(kind)
    first, answer = script[0]
    behaves = first.startswith(("saves", "builds", "lives"))
    if behaves:
        launcher.do(first)
    launcher.begin("" if behaves else first)
    assert launcher.settled(answer) == answer, first
    for what, answer in script[1:]:
        launcher.do(what)
        assert launcher.settled(answer) == answer, what
