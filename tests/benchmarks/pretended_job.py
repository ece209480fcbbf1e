"""A job on a pretended cluster, which does what the operator does with a target, in time that a test lets pass: for
benchmarks that change one job again and again."""

import json
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from elastic_tfjob.controller.model.target import Target
from harness.progress import CommandFailed
from harness.training import PREFIX, Annotations, Line, Lines

PREPARES_S = 14.0
PAUSE_S = 0.25
LEAVES_S = 3.0
"""From the first step elsewhere until the pod that was left is gone."""


class Clock:
    """Time that passes only while the test's thread sleeps. `tick` is called as it does. Threads that other tests have
    left in this process sleep as ever: their turns would be seconds here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_800_000_000.0
        self._thread, self._real_sleep = threading.current_thread(), time.sleep
        self.tick: Callable[[], None] = lambda: None
        monkeypatch.setattr(time, "time", lambda: self.now)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self._sleep)

    def _sleep(self, seconds: float) -> None:
        if threading.current_thread() is not self._thread:
            self._real_sleep(seconds)
            return
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.25)
            self.tick()


NODES = {"Chief": ["a"], "PS": ["a"], "Worker": ["b"]}


class Pretended:
    """A cluster with one job, whose first replica leads it and reports every fifth of ten steps a second. A target is
    followed PREPARES_S after it was written: `mode` says how, `refuses` why not, `loses` how many steps are made once
    more then. `placed`: the profile writes targets with nodes."""

    def __init__(
        self,
        clock: Clock,
        *,
        nodes: Mapping[str, list[str]] = NODES,
        mode: str = "overlap",
        refuses: str = "",
        loses: int = 0,
        placed: bool = True,
    ) -> None:
        self.clock, self.mode, self.refuses, self.loses, self.placed = clock, mode, refuses, loses, placed
        clock.tick = self._tick
        self.lines: list[Line] = []
        self.asked: list[tuple[str, ...]] = []
        self.step, self.resumed_at, self.next_at = 0, 0, clock.now + 0.5
        replicas = dict.fromkeys(nodes, 1)
        sizes = {"replicas": replicas, "declared": replicas}
        self.target: dict[str, Any] = {"generation": 0, **sizes, "nodes": nodes, "reason": "r"}
        self.state: dict[str, Any] = {"phase": "Stable", "generation": 0, "replicas": replicas, "history": []}
        self.pods = {f"subject-{kind.lower()}-0": names[0] for kind, names in nodes.items()}
        self.leader = next(iter(self.pods))
        self.written_at: float | None = None
        self.switched_at: float | None = None
        self.leaving = ""

    def workers(self) -> list[str]:
        return ["b", "a"]

    def kubectl(self, *args: str, stdin: str | None = None) -> str:
        self.asked.append(args)
        match [word for word in args if not word.startswith("--namespace")]:
            case ["get", "tfjob", _, "-o", "json"]:
                said = {f"{PREFIX}state": json.dumps(self.state)}
                if self.placed:
                    said[f"{PREFIX}target"] = json.dumps(self.target)
                return json.dumps({"metadata": {"annotations": said}})
            case ["get", "pods", _, "-o", "json"]:
                pods = [{"metadata": {"name": n}, "spec": {"nodeName": node}} for n, node in self.pods.items()]
                return json.dumps({"items": pods})
            case ["get", _, "--raw", path]:
                return self._status(path.rpartition("/pods/")[2].partition(":")[0])
            case ["annotate", "tfjob", _, "--overwrite", text]:
                self._follow(json.loads(text.removeprefix(f"{PREFIX}target=")))
            case ["annotate", "tfjob", _, _, "--overwrite"]:  # a person's target-workers or target-ps
                self.target = {**self.target, "generation": self.state["generation"] + 1}
                self._prepare()
        return ""

    def _status(self, pod: str) -> str:
        """A pod's exporter. That of a worker does not answer: its pod may be about to end."""
        if "-worker-" in pod and pod != self.leader:
            raise CommandFailed("not found")
        prepared = {"generation": self.state["generation"], "way": "fork", "cpu_s": 0.1}
        report: dict[str, Any] = {"hook": True, "step": self.step, "preparation": prepared, "first_step_at": None}
        if self.lines:
            report |= {"last_step_at": self.lines[-1].at, "resumed_step": self.resumed_at}
        if pod == self.leader and self.switched_at is not None:
            report["checkpoint"] = {"at": self.switched_at + 0.15, "seconds": 0.1}
            report["switch"] = {"at": self.switched_at + 0.2}
            report["first_step_at"] = self.switched_at + 0.25
        return json.dumps(report)

    def _prepare(self) -> None:
        self.written_at, self.state = self.clock.now, {**self.state, "phase": "Preparing"}

    def _follow(self, target: dict[str, Any]) -> None:
        """A pod with another index comes on the other node, and is prepared."""
        assert Target.parse(json.dumps(target)) is not None
        assert target["generation"] == self.state["generation"] + 1
        (kind,) = (k for k, names in target["nodes"].items() if names != self.target["nodes"][k])
        self.leaving = next(name for name in self.pods if f"-{kind.lower()}-" in name)
        (node,) = target["nodes"][kind]
        if self.leaving == self.leader and self.mode == "recreate":  # it is made anew, with its name
            self.pods[self.leader], self.leaving = node, ""
        else:
            self.pods[f"{self.leaving[:-1]}{1 - int(self.leaving[-1])}"] = node
        self.target, self.placed = target, True
        self._prepare()

    def _tick(self) -> None:
        now = self.clock.now
        while self.next_at <= now:
            self.step += 5
            content = {"step": self.step, "resumed_at": self.resumed_at}
            self.lines.append(Line(self.next_at, self.leader, content))
            if self.written_at is not None and self.next_at >= self.written_at + PREPARES_S:
                self._switch()
            else:
                self.next_at += 0.5
        if self.switched_at is not None and now >= self.switched_at + LEAVES_S:
            self.pods.pop(self.leaving, None)

    def _switch(self) -> None:
        """As the launcher of the chief has it: the next program goes on from what was saved."""
        generation, self.written_at = self.target["generation"], None
        at = datetime.fromtimestamp(self.clock.now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if self.refuses:
            refused = {"generation": generation, "reason": self.refuses, "at": at}
            self.state = {**self.state, "phase": "Stable", "refused": refused}
            self.next_at += 0.5
            return
        done = {"generation": generation, "mode": self.mode, "downtime_s": PAUSE_S, "lost_steps": self.loses, "at": at}
        history = [*self.state["history"], done]
        self.state = {**self.state, "phase": "Stable", "generation": generation, "history": history}
        self.step -= self.loses
        self.resumed_at = self.resumed_at if self.mode == "live" else self.step
        self.switched_at = self.next_at
        if self.leaving == self.leader:
            self.leader = next(n for n in self.pods if n != self.leaving and n[:-1] == self.leaving[:-1])
        self.next_at += PAUSE_S


class Seen(Lines):
    """What the pod that leads a pretended job reports."""

    def __init__(self, cluster: Pretended, _: str, pod: str, *, beside: Lines | None = None) -> None:
        self.seen, self._pod = cluster.lines, pod

    def __enter__(self) -> "Seen":
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Said(Annotations):
    """What the operator says of a pretended job."""

    def __init__(self, cluster: Pretended, *_: str) -> None:
        self._cluster = cluster

    def __enter__(self) -> "Said":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def said(self, annotation: str) -> dict[str, Any]:
        return dict(getattr(self._cluster, annotation))
