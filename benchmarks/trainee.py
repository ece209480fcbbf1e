"""A job that trains on the kind cluster, and what one change of it costs: what bench-rescale and bench-moves share."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import cluster as kind
from harness.cluster import Cluster
from harness.jobs import Jobs, until
from harness.progress import CommandFailed
from harness.rescale_cost import Rescale, cost_of, parts_of, pause
from harness.training import Annotations, Line, Lines, wait_for_step

__all__ = [
    "BEFORE_S",
    "CHIEF",
    "DIGITS",
    "ENDLESS",
    "NAME",
    "PATIENCE_S",
    "UNEVALUATED",
    "Trainee",
    "followed",
    "not_refused",
    "place",
    "trains",
]

NAME = "subject"
CHIEF = f"{NAME}-chief-0"
BEFORE_S = 6.0
"""Training goes on for so long before each request: the rate that preparing is compared with."""
PATIENCE_S = 400.0
_LOOK_S = 0.05
"""Between two looks at what watches have told."""
ENDLESS = 10_000_000
UNEVALUATED = f"--evaluate-every={ENDLESS}"
"""Else a line would be printed not when its step is done, but when the model has been tried on what was held out."""
DIGITS = ("--report-every=5", UNEVALUATED)


@dataclass(slots=True)
class Trainee:
    """The job that is changed, what the pod that leads it reports, and what the operator says of it."""

    jobs: Jobs
    lines: Lines
    annotations: Annotations

    def state(self) -> dict[str, Any]:
        return self.annotations.said("state")

    def measured(
        self, ask: Callable[[], object], change: str, *, grows: bool = False, follows: bool = True, parts: bool = False
    ) -> Rescale:
        """One change, from the request to the first steps after it. `ask` makes the request. `follows`: the operator is
        ours, which says where the job is. `parts`: where the time of an overlapped change goes."""
        there = set(self.jobs.pods(NAME))
        time.sleep(BEFORE_S)
        asked = time.time()
        ask()
        found: list[tuple[Line, Line]] = []

        def happened() -> bool:
            found[:] = [pair] if (pair := pause(self.lines.seen, asked)) else []
            if not found and follows:
                not_refused(self.state(), change, asked)
            return bool(found) or (follows and stayed(self.state(), asked))

        until(happened, PATIENCE_S, lambda: f"no step after {change}:\n{self.jobs.describe(NAME)}", every_s=_LOOK_S)
        joined, times = None, {}
        if not found:  # the program has other workers, and stays
            status = self.status()
            joined, times = status["switch"]["at"], {"program": status["downtime_s"]}
        elif parts:  # soon: the next checkpoint comes within seconds
            times = parts_of(self.status(), asked, *found[0])
        stable, cpu = found[0][1].at if found else time.time(), {}
        if follows:
            until(self._settled, 120, lambda: f"not stable: {self.state()}", every_s=_LOOK_S)
            stable, cpu = time.time(), self._prepare_cpu(there)
        until(lambda: bool(self.lines.after(stable)), PATIENCE_S, lambda: "it does not train on")
        return cost_of(
            self.lines.seen,
            asked,
            stable,
            before_s=BEFORE_S,
            change=change,
            grows=grows,
            prepare_cpu_s=cpu,
            parts_s=times,
            joined=joined,
        )

    def _settled(self) -> bool:
        return self.state().get("phase") == "Stable"

    def status(self, pod: str = "") -> dict[str, Any]:
        """What a pod's exporter says; that of the one that leads, if no other is named. Raises CommandFailed."""
        path = f"/api/v1/namespaces/{self.jobs.namespace}/pods/{pod or self.lines.pod}:9465/proxy/status"
        # A pod that is ending no longer answers.
        return dict(json.loads(self.jobs.cluster.kubectl("get", "--request-timeout=5s", "--raw", path)))

    def _prepare_cpu(self, there: set[str]) -> dict[str, list[float]]:
        """CPU-seconds of the program that was prepared in each pod, by whether the pod was there before."""
        generation = self.state().get("generation")
        used: dict[str, list[float]] = {"kept": [], "added": []}
        for name in self.jobs.pods(NAME):
            try:
                took = self.status(name).get("preparation") or {}
            except CommandFailed:  # it ends
                continue
            if took.get("generation") == generation and took.get("cpu_s") is not None:
                used["kept" if name in there else "added"].append(took["cpu_s"])
        return used


def stayed(state: Mapping[str, Any], asked: float) -> bool:
    """Whether the job's program has changed its workers since then; its state tells seconds."""
    done = state.get("history") or []
    return bool(
        state.get("phase") == "Stable" and done and done[-1]["mode"] == "live" and unix_of(done[-1]["at"]) >= int(asked)
    )


def not_refused(state: Mapping[str, Any], change: str, asked: float) -> None:
    """Raises AssertionError where the operator has refused a change since it was asked for; its state tells seconds."""
    refused = state.get("refused")
    if refused and state.get("phase") == "Stable" and unix_of(refused.get("at", "")) >= int(asked):
        raise AssertionError(f"{change} was refused: {refused['reason']}")


def unix_of(stamp: str) -> float:
    """Seconds since 1970 of a time in a job's state; 0 for none."""
    if not stamp:
        return 0.0
    return time.mktime(time.strptime(stamp[:19], "%Y-%m-%dT%H:%M:%S")) - time.timezone


@contextmanager
def place(cluster: Cluster, name: str) -> Iterator[tuple[Jobs, Path]]:
    """A namespace for one job, and its folder of checkpoints; what is in it goes when the block ends."""
    namespace = re.sub("[^a-z0-9-]", "-", f"{name}-{int(time.time()) % 100_000}")
    folder = kind.shared_folder(namespace)
    cluster.kubectl("create", "namespace", namespace)
    try:
        yield Jobs(cluster, namespace), folder
    finally:
        cluster.kubectl("-n", namespace, "delete", "tfjob", NAME, "--ignore-not-found", "--wait=false")
        cluster.kubectl("-n", namespace, "delete", "pods", "--all", "--grace-period=1", "--wait=true")
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")


@contextmanager
def followed(jobs: Jobs, leader: str = CHIEF, *, moves: bool = False) -> Iterator[tuple[Lines, Annotations]]:
    """What the pod that leads the job reports, and what the operator says of it. `moves`: the leader goes to and fro
    between two pods."""
    where = jobs.cluster, jobs.namespace
    with contextlib.ExitStack() as stack:
        lines = stack.enter_context(Lines(*where, leader))
        if moves:
            stack.enter_context(Lines(*where, f"{leader[:-1]}1", beside=lines))
        yield lines, stack.enter_context(Annotations(*where, NAME))


def trains(lines: Lines, folder: Path) -> None:
    """Wait until the job trains and has saved.

    The first checkpoint makes the servers connect to the chief. One at SIGTERM would fail under the Go operator:
    suspending has deleted the chief's service, and with it its name."""
    wait_for_step(lines, 50, PATIENCE_S)
    until(lambda: any(folder.glob("*.complete")), PATIENCE_S, lambda: f"no checkpoint in {folder}")
