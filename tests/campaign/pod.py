"""Programs that make a step each tenth of a second, and what they share."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final, Protocol

from campaign.clock import wall
from campaign.files import SIGKILL, SIGTERM
from elastic_tfjob.runtime import protocol

if TYPE_CHECKING:
    from campaign.container import Container

__all__ = ["Program", "Training"]

STEP_S: Final = 0.1
_CHECKPOINT_STEPS: Final = 50
DIRECTORY: Final = "/elastic-tfjob"
_PEERS_S: Final = 0.25
_TAKEN_S: Final = 60.0


class Judge(Protocol):
    """Who watches over training."""

    def training_begins(self, program: "Program", step: int) -> None: ...
    def workers_change(self, program: "Program") -> None: ...
    def is_to_save(self, program: "Program", waiting: bool) -> None: ...
    def is_killed_for_memory(self, job: str, kind: str) -> None: ...
    def values_are_lost(self, program: "Program", why: str) -> None: ...


@dataclass
class Training:
    """One job's training, whoever does it: the newest checkpoint, how far the last chief came, and what saving will do.

    `saves`: whether the next saves go well; `builds`: whether programs that are prepared come up; `hangs`: they do, and
    are never ready; `breaks`: one that is ready dies while the chief saves for it. `save_s`: how long saving takes
    beyond the usual. `lingers_s`: how long programs other than the chief's take to end at SIGTERM beyond the usual.
    `hook`: whether the program uses ElasticCheckpoint; `clings`: whether the others end with 1 where the chief of their
    generation ends and has not succeeded. `dies_with`: with so many workers the chief's program restores and ends with
    1; `live`: whether workers join and leave a running program, `joins`: whether new ones can be used, `answers`:
    whether it answers; `gives`: whether values go through memory, `takes`: whether the next program gets them;
    `shared`: whether each new pod sees the checkpoints;
    `own_port`: a program cannot start while another one runs in its container. `uses`: by type of replica in small
    letters, the bytes that a container uses at so many seconds from its start, where these change. `name`: the job's
    namespace and name.
    """

    judge: Judge
    random: Random
    name: str = ""
    total_steps: int = 1_000_000
    checkpoint: int = 0
    reached: int = 0
    saves: bool = True
    builds: bool = True
    hangs: bool = False
    breaks: bool = False
    save_s: float = 0.0
    lingers_s: float = 0.0
    hook: bool = True
    clings: bool = False
    dies_with: int | None = None
    live: bool = False
    joins: bool = True
    answers: bool = True
    gives: bool = False
    takes: bool = True
    shared: bool = True
    own_port: bool = False
    uses: dict[str, Callable[[float], int]] = field(default_factory=dict)
    exit_code: int = 0
    trainers: set["Program"] = field(default_factory=set)
    peers: set["Program"] = field(default_factory=set)
    """Programs that the chief uses."""
    serving: set[str] = field(default_factory=set)
    """Addresses (`name.namespace.svc:port`) that listen."""
    at_commit: dict[int, int] = field(default_factory=dict)
    """By generation, the step that its predecessor saved for it."""

    def finish(self) -> None:
        """Let training end with the next step."""
        self.total_steps = 0
        for program in list(self.trainers):
            program.plan_end()


class Program:
    """A process of the user's. States: importing, spare (it has imported TensorFlow, and not been given the program),
    waiting (prepared, or for its peers), training, saving, held, serving, ended."""

    def __init__(
        self,
        container: "Container",
        pid: int,
        generation: int,
        tf_config: str | None,
        *,
        prepared: bool,
        spare: bool = False,
    ) -> None:
        self.container = container
        self.training = container.training
        self.pid = pid
        self.generation = self.runs_as = generation
        """The generation that it was started for, and the one whose workers it has."""
        self.prepared = prepared
        self.state = "importing"
        self._spare = spare
        self.before = ""
        """The folder of the program whose values it may take in memory."""
        self._kept_own = False
        self.pending = False
        """Whether the values that it took are in no checkpoint yet."""
        self._configure(tf_config)
        self.base = self.resumed = 0
        self.since = 0.0
        self.first_step_at: float | None = None
        self.downtime_s: float | None = None
        self.lost_steps: int | None = None
        self.held_at = 0
        self._saved = 0
        self._timers: set[asyncio.TimerHandle] = set()
        self._end: asyncio.TimerHandle | None = None
        self._after(container.seconds(0.5, 3.0), self._imported)

    def _configure(self, tf_config: str | None) -> None:
        self.task = protocol.Task.of(tf_config)
        config = json.loads(tf_config) if tf_config else {}
        self._workers = len((config.get("cluster") or {}).get("worker") or ())
        self._address, self._peers = _addresses(config)
        self._servers = frozenset((config.get("cluster") or {}).get("ps") or ())

    # Its life

    def _imported(self) -> None:
        if self._spare and self._read("start") is None:
            self.state = "spare"
            self._write("ready", {"spare": True})
        elif self.prepared and (not self.training.builds or (self.training.own_port and self._is_beside())):
            self.exit(1)
        elif self.prepared and self.training.hangs:
            return
        elif self.task.serves:
            if self.container.listens(self.task.port):  # the address is in use
                self.exit(1)
                return
            self.state = "serving"
            self.training.serving.add(self._address)
            self.training.peers.add(self)
            self.container.poke()
        elif self.task.trains:
            self.state = "waiting"
            if self.training.hook:
                self._write("hello", {})
            self._join()
        else:
            self.state = "serving"

    def _is_beside(self) -> bool:
        """Whether another program of this container has started."""
        begun = ("training", "saving", "held", "serving")
        return any(each.state in begun for each in self.container.programs.values() if each is not self)

    def _join(self) -> None:
        """Build the model once all peers are there, then wait to be let in."""
        if not self._peers <= self.training.serving:
            self._after(_PEERS_S, self._join)
        elif self.container.launcher is None or not self.training.hook or self._read("go") is not None:
            self._after(self.container.seconds(0.1, 0.4), self._begin)
        else:
            able = bool(self.before) and self.training.gives
            seen = self.training.checkpoint if self.training.shared else None
            values = {"able": able, "why": "" if able else "no light server"}
            self._write("ready", {"hand_over": values, "checkpoint": seen})

    def _begin(self) -> None:
        """Restore, or take what the program before gave, and train."""
        training = self.training
        given = (self._read("go") or {}).get("hand_over")
        if given and self._read("taken") is None:
            why = "" if training.takes and not self._kept() else "unreachable"
            self._write("taken", {"ok": not why, "why": why})
            self.pending = not why
        if given and not self.pending and not self._kept():
            self._after(_PEERS_S, self._begin)
            return
        needs = ((self._read("go") or {}).get("old_chief") or {}).get("checkpoint") or 0
        if self.task.chief and (self._workers == training.dies_with or (needs and not training.shared)):
            self.exit(1)
            return
        self.state = "training"
        start = given["step"] if given and self.pending else training.checkpoint
        self.base = self.resumed = self.held_at = self._saved = start
        self.since = self.container.loop.time()
        if self.task.chief:
            training.judge.training_begins(self, self.base)
            training.trainers.add(self)
            self._after(STEP_S, self._first_step)
            if self._servers and training.hook:
                self._write("live", {"able": training.live, "why": "" if training.live else "live=False"})
        else:
            training.trainers.add(self)
        self.plan_end()
        if self.pending:
            self.other_changed(self.before, "kept")

    def _kept(self) -> dict[str, Any]:
        """The word of the program before that the values it gave are saved, or not."""
        return self.container.files.contents.get(f"{DIRECTORY}/{self.before}/kept.json") or {}

    def other_changed(self, folder: str, name: str) -> None:
        """A file of another program's folder was written: the answer of the one before, or of the next."""
        if name == "kept" and folder == self.before and self.pending and (kept := self._kept()):
            self.pending = False
            if not kept["ok"]:
                self.training.judge.values_are_lost(self, kept["why"])
                if self.training.saves and self.state == "training":
                    self._save(self.step)
        if name == "taken" and self.state == "held" and self._gave:
            self._after(self.container.seconds(0.3, 2.0) + self.training.save_s, self._keep)

    @property
    def _gave(self) -> bool:
        return bool((self._read("saved") or {}).get("hand_over"))

    def _keep(self) -> None:
        """Save what was given; it is on the servers that it trained with."""
        if self.state == "held" and not self._kept_own:
            self._kept_own = True
            why = "" if self._servers <= self.training.serving else "a server is gone"
            why = why if self.training.saves else "No space left on device"
            if not why:
                self.training.checkpoint = max(self.training.checkpoint, self.held_at)
            self._write("kept", {"ok": not why, "why": why, "checkpoint": None})

    def _first_step(self) -> None:
        self.first_step_at = wall()
        before = self.container.progress or (self._read("go") or {}).get("old_chief")
        if before:
            if before.get("last_step_at") is not None:
                self.downtime_s = max(0.0, self.first_step_at - before["last_step_at"])
            if before.get("step") is not None:
                self.lost_steps = max(0, before["step"] - self.base)
        self.report()
        if self._read("save") is not None:  # it was asked for before there was anything to save
            self.file_changed("save")

    @property
    def uses(self) -> frozenset[str]:
        """The addresses of the servers that it trains with."""
        return self._peers

    def plan_end(self) -> None:
        """Set the timer for the last step."""
        if self._end is not None:
            self._end.cancel()
            self._end = None
        if self.state == "training":
            left_s = max(1, self.training.total_steps - self.base) * STEP_S - (self.container.loop.time() - self.since)
            if left_s < 100_000:
                self._end = self._after(max(0.0, left_s), self._finished)

    def _finished(self) -> None:
        if self.state != "training":
            return
        if self.task.chief:
            self._save(self.step)
        self.exit(self.training.exit_code)

    @property
    def step(self) -> int:
        """How far it is."""
        if self.state != "training":
            return self.held_at
        return self.base + int((self.container.loop.time() - self.since + 1e-6) / STEP_S)

    def exit(self, code: int) -> None:
        """The process is over: 128 and the number for a signal."""
        if self.state == "ended":
            return
        self._note()
        self.state = "ended"
        for timer in self._timers:
            timer.cancel()
        self.training.trainers.discard(self)
        self.training.peers.discard(self)
        self.training.serving.discard(self._address)
        if code and self.task.chief and self.training.clings:
            for each in sorted(self.training.peers, key=lambda peer: peer._address):
                if each.generation == self.generation or each._address in self._peers:
                    each._after(0.0, each.exit, 1)  # it has lost its connection before the chief's pod is gone
        self.container.ended(self, code)

    def _note(self) -> None:
        """Keep what it has done: the interval's checkpoint, how far it came."""
        if self.state == "training" and self.task.chief:
            self.training.reached = self.step
            self.report()

    def _save(self, step: int) -> None:
        self.training.reached = step
        self.training.checkpoint = max(self.training.checkpoint, step)

    # What it is told

    def signal(self, number: int) -> None:
        """SIGTERM lets a chief save; anything else ends it at once."""
        if number == SIGKILL or self.state in ("importing", "spare", "waiting", "held"):
            self.exit(128 + number)
        elif number == SIGTERM and self.state in ("training", "saving") and self.task.chief and self.training.hook:
            self._after(self.container.seconds(0.1, 0.5), self._terminated)
        elif number == SIGTERM:
            self._after(self.container.seconds(0.05, 0.3) + self.training.lingers_s, self.exit, 128 + SIGTERM)

    def _terminated(self) -> None:
        """What is to be saved is on the parameter servers in part."""
        if self.training.saves and self._servers <= self.training.serving:
            self._save(self.step)
        self.exit(128 + SIGTERM)

    def file_changed(self, name: str) -> None:
        """One of its folder's files was written or removed by the launcher."""
        if name == "start" and self.state == "spare" and (start := self._read("start")) is not None:
            self.state = "importing"
            self._configure(start["tf_config"])
            self.container.files.remove(self._path("ready"))
            self._after(self.container.seconds(0.1, 0.4), self._imported)
        elif name == "go" and self.state == "waiting" and self._read("ready") is not None:
            self._after(self.container.seconds(0.1, 0.4), self._begin)
        elif name == "save" and self._read("save") is not None and self.state == "training" and self.task.chief:
            others = self.container.programs.values()
            ready = any(each.prepared and each._read("ready") is not None for each in others)
            self.training.judge.is_to_save(self, ready or self._is_last() or self._leaves())
            self._after(self.container.seconds(0.0, 0.3), self._stand_still)
        elif name == "save" and self._read("save") is None and self.state in ("saving", "held"):
            self._go_on()
        elif name == "soon" and self.state == "training" and self.task.chief and self.training.saves:
            self.training.checkpoint = max(self.training.checkpoint, self.step)
        elif name == "workers" and self.state == "training" and self.task.chief:
            self._after(self.container.seconds(0.1, 0.8), self._change_workers)

    def _change_workers(self) -> None:
        """Those that join must listen; those that leave are not needed any more."""
        request = self._read("workers")
        if request is None or self.state != "training" or not self.training.answers:
            return
        servers = self._servers | set(request["workers"])
        back = request["generation"] == self.runs_as
        why = "" if back or (self.training.joins and servers <= self.training.serving) else "a worker cannot be reached"
        if not why and not back:
            self._peers, self.runs_as = frozenset(servers), request["generation"]
            self._workers = len(request["workers"])
            self.first_step_at, self.downtime_s, self.lost_steps = wall(), 0.1, 0
            self.training.judge.workers_change(self)
        self._write("changed", {"id": request["id"], "ok": not why, "why": why})

    def _is_last(self) -> bool:
        """Whether what is asked for is the checkpoint before the pod ends."""
        launcher = self.container.launcher
        return launcher is not None and launcher.command is not None and launcher.command.action == "save"

    def _leaves(self) -> bool:
        """Whether the next chief is in another pod."""
        launcher = self.container.launcher
        return launcher is not None and launcher.command is not None and launcher.command.mode == "leave"

    def _stand_still(self) -> None:
        if self.state != "training" or self._read("save") is None:
            return
        self.held_at = self.step
        self.training.reached = self.held_at
        self.state = "saving"
        if self.training.breaks:
            for each in list(self.container.programs.values()):
                if each.prepared and each is not self:
                    each.exit(1)
        self.plan_end()
        self._after(self.container.seconds(0.1, 0.5) + self.training.save_s, self._answer)

    def _answer(self) -> None:
        request = self._read("save")
        if self.state != "saving" or request is None:
            return
        given = bool(request.get("hand_over")) and self.training.gives
        saved = self.training.saves or given
        if saved:
            if given:
                self._after(_TAKEN_S, self._keep)
            else:
                self._save(self.held_at)
            if not self._is_last():
                self.training.at_commit[request["generation"]] = self.held_at
            self.state = "held"
        self.report()
        answer = {"id": request["id"], "ok": saved, "why": None if saved else "No space left on device"}
        values = {"id": "", "step": self.held_at, "checkpoint": None} if given else None
        self._write("saved", {**answer, "step": self.held_at, "at": wall(), "hand_over": values})
        if not saved:
            self._go_on()

    def _go_on(self) -> None:
        self.state = "training"
        self.base = self.held_at
        self.since = self.container.loop.time()
        self.plan_end()

    def report(self) -> None:
        """Write progress.json, as the program's thread does each second."""
        if not self.task.chief or not self.training.hook or self.state in ("importing", "spare", "waiting"):
            return
        step = self.step
        if self.state == "training" and self.training.saves and not self.pending:
            due = self.base + (step - self.base) // _CHECKPOINT_STEPS * _CHECKPOINT_STEPS
            self.training.checkpoint = max(self.training.checkpoint, due)
        before = self.container.progress
        made = self.first_step_at is not None
        last = self.since + (step - self.base) * STEP_S if self.state == "training" else None
        offset = wall() - self.container.loop.time()
        last_at = last + offset if last is not None and made else (before or {}).get("last_step_at")
        self.container.progress = {
            "at": wall(),
            "generation": self.runs_as,
            "step": step,
            "total_steps": self.training.total_steps or None,
            "steps_per_s": 1 / STEP_S if made else None,
            "first_step_at": self.first_step_at,
            "last_step_at": last_at if last_at is not None else self.first_step_at,
            "downtime_s": self.downtime_s,
            "lost_steps": self.lost_steps if made else None,
            "resumed_step": self.resumed,
            "checkpoint": {"step": self.training.checkpoint, "at": wall(), "seconds": 0.3, "bytes": 1000, "path": "c"},
            "save_error": None if self.training.saves else "No space left on device",
        }
        self.container.files.write(f"{DIRECTORY}/{protocol.PROGRESS}", self.container.progress)

    # Its files

    def _path(self, name: str) -> str:
        return f"{DIRECTORY}/generation-{self.generation}/{name}.json"

    def _read(self, name: str) -> Any:
        return self.container.files.contents.get(self._path(name))

    def _write(self, name: str, content: dict[str, Any]) -> None:
        self.container.files.write(self._path(name), content)

    def _after(self, seconds: float, what: Callable[..., None], *arguments: Any) -> asyncio.TimerHandle:
        timer = self.container.loop.call_later(seconds, what, *arguments)
        self._timers.add(timer)
        return timer


def _addresses(config: Mapping[str, Any]) -> tuple[str, frozenset[str]]:
    """A replica's own address, and those that a training program connects to."""
    cluster, task = config.get("cluster") or {}, config.get("task") or {}
    of_type = cluster.get(task.get("type")) or []
    own = of_type[task["index"]] if task.get("index", 0) < len(of_type) else ""
    if not cluster.get("ps"):
        return own, frozenset()
    return own, frozenset(address for kind in ("ps", "worker") for address in cluster.get(kind) or ()) - {own}
