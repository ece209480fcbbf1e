"""bench-rescale by kinds of training programs: how the operator rescales each where it may choose, and what that costs.

A kind is an example program (trainer_images/digits) and the sizes that a job of it goes between; one that has a single
size goes to the other node and back. docs/elastic.md has the same kinds in a table.

*Way*: `live`, `overlap`, `spare` or `recreate`, and whether the program of the new size was forked in the pod that
leads or started as a process of its own (`exec`); where pods are made anew there is nothing to fork from. *Pause* and
*lost steps* are found as bench-rescale finds them, in the lines that the leading pod prints. keras_digits.py prints
none for its steps: there, and where a change is `live`, they are what the job's state says. *Training lost* is that of
bench-rescale, too, from the same lines, or from what the leading pod's exporter says each second. *First step*: from
the request to the first step of the new size. A change is requested once it is known whether the program uses
ElasticCheckpoint: before, the operator would wait for that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from harness.cluster import Cluster
from harness.jobs import Object, until
from harness.moves import elsewhere, move
from harness.progress import CommandFailed
from harness.rescale_cost import cost_of, pause, percentile
from harness.training import PREFIX, Line, training
from result_table import result_table
from trainee import BEFORE_S, DIGITS, ENDLESS, NAME, PATIENCE_S, Trainee, followed, not_refused, place, stayed

__all__ = ["KINDS", "Change", "Kind", "measure", "results", "table"]

_PLURAL = {"Worker": "workers", "PS": "ps"}
_SLOW = ("--report-every=20", "--at-most=50")
_TRAINS = 50
"""A job that has made so many steps trains."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The example program and its arguments, and the numbers of replicas, least and most."""

    program: str
    arguments: tuple[str, ...]
    worker: tuple[int, int]
    ps: tuple[int, int] = (0, 0)
    chief: bool = False

    @property
    def leader(self) -> str:
        """The pod that leads the training."""
        return f"{NAME}-{'chief' if self.chief else 'worker'}-0"

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """The numbers of the replicas that may change."""
        return {"Worker": self.worker, **({"PS": self.ps} if any(self.ps) else {})}

    @property
    def moves(self) -> bool:
        """Whether the job is moved, as its size cannot change."""
        return all(low == high for low, high in self.sizes.values())

    @property
    def profile(self) -> str:
        """Under `fixed` a job whose size cannot change is upstream's, and is not moved either."""
        return "fifo" if self.moves else "fixed"

    def round(self) -> list[tuple[str, int]]:
        """Each type goes up, then down. The number that it has already stands for a move."""
        varied = [type_ for type_, (low, high) in self.sizes.items() if low != high] or ["Worker"]
        return [(type_, self.sizes[type_][end]) for end in (1, 0) for type_ in varied]

    def manifest(self, folder: str) -> Object:
        """The job, which says nothing of how it is to be rescaled."""
        bounds: dict[str, str] = {}
        for type_, (low, high) in self.sizes.items():
            bounds |= {f"min-{_PLURAL[type_]}": str(low), f"max-{_PLURAL[type_]}": str(high)}
        return training(
            NAME,
            program=self.program,
            replicas={**({"Chief": 1} if self.chief else {}), **{type_: low for type_, (low, _) in self.sizes.items()}},
            arguments=(f"--steps={ENDLESS}", *self.arguments),
            annotations=bounds,
            folder=folder,
        )


KINDS = {
    "ps-own-loop": Kind("digits.py", DIGITS, worker=(2, 3), ps=(1, 2), chief=True),
    "ps-fit": Kind("keras_digits.py", (), worker=(1, 2), ps=(1, 2), chief=True),
    "keras-worker": Kind("keras_digits.py", (), worker=(1, 2)),
    "keras-3": Kind("keras_3_digits.py", ("--report-every=5",), worker=(1, 1)),
    "mirrored": Kind("mirrored_digits.py", ("--report-every=5",), worker=(1, 2)),
    "monitored-session": Kind("monitored_digits.py", _SLOW, worker=(1, 2), ps=(1, 1)),
    "own-checkpoints": Kind("own_checkpoints_digits.py", _SLOW, worker=(1, 2)),
}


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a job. Seconds; `start`: fork or exec, empty where all pods are made anew. `lost_steps` and
    `training_lost_s`: None where nobody knows."""

    change: str
    mode: str
    start: str
    pause_s: float
    lost_steps: int | None
    first_step_s: float
    training_lost_s: float | None

    @property
    def way(self) -> str:
        return f"{self.mode}, {self.start}" if self.start else self.mode

    def __str__(self) -> str:
        lost = "?" if self.lost_steps is None else self.lost_steps
        pause_ = f"{self.change} by {self.way}: {self.pause_s:.2f} s, {lost} steps lost"
        training_lost = "?" if self.training_lost_s is None else f"{self.training_lost_s:.1f}"
        return f"{pause_}, first step after {self.first_step_s:.1f} s, {training_lost} s of training lost"


@dataclass(slots=True)
class Subject(Trainee):
    """A job of one kind, and its size. `told`: the steps that its exporter has told, of a program that prints none."""

    nodes: Sequence[str]
    size: dict[str, int]
    told: list[Line] = field(default_factory=list)

    def trains(self, folder: Path) -> None:
        """Wait until the job trains and has saved, with the hook or with TensorFlow's own checkpoints."""

        def reached() -> bool:
            saved = any(folder.glob("*.complete")) or (folder / "checkpoint").exists()
            return saved and max(self.lines.last_step(), self._told("step") or 0) > _TRAINS

        until(reached, PATIENCE_S, lambda: f"it does not train, or save in {folder}:\n{self.jobs.describe(NAME)}")

    def changed(self, type_: str, count: int) -> Change:
        """Have the job get so many replicas of a type, or move where it has them, and wait until it trains again."""
        had = self.size[type_]
        what = f"{type_} {had}->{count}" if had != count else f"{type_} to another node"
        until(lambda: self._told("hook") is not None, PATIENCE_S, lambda: "nobody knows whether it uses the hook")
        printed, before = bool(self.lines.seen), self.state()["generation"]
        lines = self.lines.seen if printed else self.told
        for _ in range(round(BEFORE_S)):
            self._listen()
            time.sleep(1)
        asked = time.time()
        self._ask(type_, count)
        self.size[type_] = count

        def happened() -> bool:
            report = self._listen()
            state = self.state()
            not_refused(state, what, asked)
            if state["phase"] != "Stable" or state["generation"] <= before:
                return False
            if stayed(state, asked):  # the program has other workers, and goes on
                return True
            return (pause(lines, asked) if printed else report.get("first_step_at")) is not None

        until(happened, PATIENCE_S, lambda: f"no step after {what}:\n{self.jobs.describe(NAME)}")
        stable = time.time()

        def goes_on() -> bool:
            self._listen()
            return bool(lines) and lines[-1].at > stable

        until(goes_on, PATIENCE_S, lambda: f"it does not train on after {what}")
        done = self.state()["history"][-1]
        live, switch = stayed(self.state(), asked), self._told("switch") or {}
        prepared = self._told("preparation") or {}
        start = prepared["way"] if done["mode"] not in ("live", "recreate") and prepared.get("way") else ""
        if live:
            pause_s, lost, first_at = done["downtime_s"], done["lost_steps"], switch.get("at", stable)
        elif pair := pause(self.lines.seen, asked):
            last, first = pair
            pause_s, lost, first_at = first.at - last.at, max(0, last.step - first.resumed_at), first.at
        else:
            pause_s, lost, first_at = done["downtime_s"], done["lost_steps"], self._told("first_step_at")
        training_lost_s = None
        with suppress(ValueError):
            cost = cost_of(
                lines,
                asked,
                stable,
                before_s=BEFORE_S,
                change=what,
                grows=count > had,
                joined=switch.get("at", stable) if live else None,
            )
            training_lost_s = cost.training_lost_s if cost.rate_before else None
        return Change(what, done["mode"], start, round(pause_s, 3), lost, round(first_at - asked, 2), training_lost_s)

    def _listen(self) -> dict[str, Any]:
        """Note how far a program is that prints nothing, as its exporter tells it; gives all that it tells. A program
        that prints is not asked."""
        report = {} if self.lines.seen else self._report()
        at, resumed_at = report.get("last_step_at"), report.get("resumed_step")
        if at is not None and resumed_at is not None and (not self.told or at > self.told[-1].at):
            self.told.append(Line(at, self.lines.pod, {"step": report["step"], "resumed_at": resumed_at}))
        return report

    def _report(self) -> dict[str, Any]:
        """What the exporter of the pod that leads says; nothing while there is none."""
        try:
            return self.status()
        except CommandFailed:
            return {}

    def _told(self, key: str) -> Any:
        """One of what it says."""
        return report[key] if (report := self._report()) else None

    def _ask(self, type_: str, count: int) -> None:
        if count != self.size[type_]:
            self.jobs.kubectl("annotate", "tfjob", NAME, f"{PREFIX}target-{_PLURAL[type_]}={count}", "--overwrite")
            return
        here = self.jobs.pods(NAME)[self.lines.pod]["spec"]["nodeName"]
        move(self.jobs, NAME, type_, elsewhere(self.nodes, here))


def measure(cluster: Cluster, name: str, times: int, tell: Callable[[Change], None]) -> None:
    """`times` rounds of a kind; each change is told as soon as it is measured."""
    kind = KINDS[name]
    with (
        place(cluster, f"rescale-{name}") as (jobs, folder),
        followed(jobs, kind.leader, moves=kind.moves) as (lines, annotations),
    ):
        size = {type_: low for type_, (low, _) in kind.sizes.items()}
        subject = Subject(jobs, lines, annotations, sorted(cluster.workers()), size)
        jobs.apply(kind.manifest(jobs.namespace))
        subject.trains(folder)
        for type_, count in kind.round() * times:
            tell(subject.changed(type_, count))


# -- what comes of it


def results(name: str, changes: Sequence[Change]) -> dict[str, Any]:
    """What the JSON file has of a kind: every change, and by way the seconds and the fewest and the most lost steps."""
    ways: dict[str, dict[str, Any]] = {}
    for way in dict.fromkeys(each.way for each in changes):
        own = [each for each in changes if each.way == way]
        lost = [each.lost_steps for each in own if each.lost_steps is not None]
        spread = partial(_spread, own)
        known = [each for each in own if each.training_lost_s is not None]
        ways[way] = {
            "n": len(own),
            "pause_s": spread("pause_s"),
            "first_step_s": spread("first_step_s"),
            "lost_steps": [min(lost), max(lost)] if lost else [],
            **({"training_lost_s": _spread(known, "training_lost_s")} if known else {}),
        }
    return {"program": KINDS[name].program, "ways": ways, "changes": [asdict(each) for each in changes]}


def _spread(changes: Sequence[Change], key: str) -> dict[str, float]:
    values = [getattr(each, key) for each in changes]
    return {"p50": percentile(values, 50), "p90": percentile(values, 90)}


def table(kinds: Mapping[str, Mapping[str, Any]]) -> Table:
    """Of what the JSON file has, by kind."""
    columns = (
        "kind",
        "program",
        "way",
        "n",
        "pause p50 s",
        "p90 s",
        "training lost p50 s",
        "steps lost each",
        "first step p50 s",
    )
    made = result_table("How each kind of training program is rescaled", columns, words=3)
    for name in (name for name in KINDS if name in kinds):
        for way, found in kinds[name]["ways"].items():
            made.add_row(
                name,
                kinds[name]["program"],
                way,
                str(found["n"]),
                f"{found['pause_s']['p50']:.2f}",
                f"{found['pause_s']['p90']:.2f}",
                f"{found['training_lost_s']['p50']:.1f}" if "training_lost_s" in found else "",
                " to ".join(str(steps) for steps in dict.fromkeys(found["lost_steps"])),
                f"{found['first_step_s']['p50']:.1f}",
            )
    return made
