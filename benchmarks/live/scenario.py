"""Scenario files: jobs with arrival times, what their manifests say, and deadlines.

    title: Deadlines with enough CPU
    operators: [go, fixed, deadline]      # who is measured by default, the first one is what others are compared with
    defaults:                             # of every job
      cpu_m: {Chief: 50, PS: 50, Worker: 100}
      steps: 300
    jobs:
    - {name: a, at_s: 0, deadline: 0.7}   # times what the job takes alone, on an idle cluster, with the first operator
    - {name: b, at_s: 5, deadline_s: 240} # seconds after its creation

Other keys of a job: worker, ps (replicas), max_worker, batch, annotations (without their prefix); limits, whether cpu_m
are limits, too (else jobs share their node, with requests as weights); at_most, the steps a second that it trains where
CPU is not scarce, as on an accelerator of its own: all nodes share this machine's cores; node, on which of the workers
(0, 1, ...) it starts: until its pods are bound the others take none, and after that they may go anywhere. Keys of the
file beside these: limit_s, after which a run ends; period_ms, in which a node's pods together get what the node offers
(20; weights count for more in a longer one); and config, by operator what its ConfigMap says beside its profile. A
wrong key or value is an error that names the place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import yaml

from harness.api import Object
from harness.cluster import PERIOD_US
from harness.training import training

__all__ = ["OPERATORS", "Arrival", "Scenario", "ScenarioError", "read", "read_all"]

OPERATORS: Final = (
    *("go", "fixed", "kips", "deadline", "edf", "fifo", "optimus", "drf", "dl2", "specon", "rebalance"),
    *("aryl", "aryl-alone", "elastic", "elastic-killed"),
)
"""`go` is the Go training-operator under the default scheduler; the others are profiles of this operator.
`aryl-alone` is `aryl` without loans, and `elastic-killed` is `elastic`, as their scenario's config says."""
BATCH: Final = 2048
"""Images a step: so many that a step is work for the worker, not for the chief that hands it out."""
WORKERS: Final = 3
"""Nodes that take jobs (e2e/kind-scarce.yaml)."""
PERIOD_MS: Final = PERIOD_US // 1000
MOST_PERIOD_MS: Final = 1000
"""The kernel takes no longer one."""
_TYPES: Final = ("Chief", "PS", "Worker")


class ScenarioError(Exception):
    """What is wrong with a scenario file, and where."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job: seconds after the scenario's start, replicas by type, millicores of each, steps to train, bounds.
    `at_most`: steps a second; None: as many as it can. `deadline_s` counts from its creation; `deadline` is that in
    parts of what the job takes alone. `node`: the index of the worker on which all of its pods start; None: where the
    operator places them."""

    at_s: float
    name: str
    steps: int
    worker: int = 1
    ps: int = 1
    cpu_m: Mapping[str, int] = field(default_factory=dict)
    max_worker: int = 3
    deadline_s: float | None = None
    deadline: float | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    batch: int = BATCH
    limits: bool = True
    at_most: float | None = None
    node: int | None = None

    @property
    def shape(self) -> str:
        """Jobs of one shape take equally long alone."""
        cpu = "/".join(str(self.cpu_m.get(kind, 0)) for kind in _TYPES)
        speed = "" if self.at_most is None else f", at most {self.at_most:g} a second"
        return f"{self.steps} steps of {self.batch}{speed}, {self.ps} PS + {self.worker} Worker, {cpu} m"

    def due_s(self, alone: Mapping[str, float]) -> float | None:
        """Seconds from its creation to its deadline; None: it has none. `alone`: seconds by shape."""
        if self.deadline is None:
            return self.deadline_s
        return round(self.deadline * alone[self.shape], 1)

    def manifest(self, namespace: str, due_s: float | None = None) -> Object:
        """The TFJob."""
        said = {"min-workers": "1", "max-workers": str(self.max_worker), "total-steps": str(self.steps)}
        if due_s is not None:
            said["deadline"] = f"{max(1, round(due_s))}s"
        return training(
            self.name,
            replicas={"Chief": 1, "PS": self.ps, "Worker": self.worker},
            cpu_m=dict(self.cpu_m),
            cpu_limits=self.limits,
            arguments=[
                *(f"--steps={self.steps}", f"--batch-size={self.batch}", "--report-every=50"),
                *(() if self.at_most is None else (f"--at-most={self.at_most:g}",)),
            ],
            annotations={**said, **self.annotations},
            folder=f"{namespace}/{self.name}",
        )


@dataclass(frozen=True, slots=True)
class Scenario:
    """`limit_s`: a run ends then, whatever is finished. `period_ms`: of the quota of CPU of each node.
    `config`: of an operator's ConfigMap beside its profile."""

    title: str
    jobs: tuple[Arrival, ...]
    operators: tuple[str, ...] = ("go", "fixed")
    limit_s: float = 900.0
    period_ms: int = PERIOD_MS
    config: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def needs_alone(self) -> list[Arrival]:
        """A job of each shape of which it has to be known how long it takes alone."""
        return list({job.shape: job for job in self.jobs if job.deadline is not None}.values())


def read_all(folder: Path) -> dict[str, Scenario]:
    """The scenarios of a folder by their files' names. Raises ScenarioError."""
    return {path.stem: read(path) for path in sorted(folder.glob("*.yaml"))}


def read(path: Path) -> Scenario:
    """One file. Raises ScenarioError."""
    try:
        raw = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ScenarioError(f"{path}: {error}") from error
    return parse(raw, str(path))


def parse(raw: object, place: str) -> Scenario:
    """What a file says."""
    known = _object(raw, place, ("title", "operators", "defaults", "jobs", "limit_s", "period_ms", "config"))
    allowed = tuple(each.name for each in fields(Arrival))
    defaults = _object(known.get("defaults") or {}, f"{place}: defaults", allowed)
    jobs = known.get("jobs")
    if not isinstance(jobs, list) or not jobs:
        raise ScenarioError(f"{place}: jobs: a list of jobs is needed")
    arrivals = [
        _arrival({**defaults, **_object(each, f"{place}: jobs[{k}]", allowed)}, f"{place}: jobs[{k}]")
        for k, each in enumerate(jobs)
    ]
    names = [job.name for job in arrivals]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ScenarioError(f"{place}: two jobs are called {twice[0]}")
    operators = known.get("operators", ["go", "fixed"])
    if not isinstance(operators, list) or not operators or (wrong := [o for o in operators if o not in OPERATORS]):
        raise ScenarioError(
            f"{place}: operators: a list of {', '.join(OPERATORS)} is needed, not {operators!r}{wrong!r}"
        )
    config = _object(known.get("config") or {}, f"{place}: config", OPERATORS)
    limit_s = _number(known.get("limit_s", 900.0), f"{place}: limit_s")
    period_ms = known.get("period_ms", PERIOD_MS)
    if type(period_ms) is not int or not 1 <= period_ms <= MOST_PERIOD_MS:
        raise ScenarioError(
            f"{place}: period_ms: a whole number from 1 to {MOST_PERIOD_MS} is needed, not {period_ms!r}"
        )
    return Scenario(str(known.get("title") or place), tuple(arrivals), tuple(operators), limit_s, period_ms, config)


def _arrival(raw: Mapping[str, Any], place: str) -> Arrival:
    if not isinstance(raw.get("name"), str) or "steps" not in raw:
        raise ScenarioError(f"{place}: name and steps are needed")
    found: dict[str, Any] = {"at_s": 0.0, **raw}
    for key in ("at_s", "deadline_s", "deadline"):
        if found.get(key) is not None:
            found[key] = _number(found[key], f"{place}.{key}")
    if found.get("at_most") is not None and not (speed := _number(found["at_most"], f"{place}.at_most")):
        raise ScenarioError(f"{place}.at_most: more than 0 steps a second are needed, not {speed:g}")
    for key in ("steps", "worker", "ps", "max_worker", "batch"):
        if key in found and (type(found[key]) is not int or found[key] < (0 if key == "ps" else 1)):
            raise ScenarioError(f"{place}.{key}: a whole number from 1 up is needed, not {found[key]!r}")
    cpu = _object(found.get("cpu_m") or {}, f"{place}.cpu_m", _TYPES)
    if missing := [kind for kind in _TYPES if type(cpu.get(kind)) is not int]:
        raise ScenarioError(f"{place}.cpu_m: millicores of {', '.join(missing)} are needed")
    if type(found.get("limits", True)) is not bool:
        raise ScenarioError(f"{place}.limits: true or false is needed, not {found['limits']!r}")
    if found.get("node") is not None and (type(found["node"]) is not int or not 0 <= found["node"] < WORKERS):
        raise ScenarioError(f"{place}.node: a whole number from 0 to {WORKERS - 1} is needed, not {found['node']!r}")
    if found.get("deadline") is not None and found.get("deadline_s") is not None:
        raise ScenarioError(f"{place}: deadline (parts of the time alone) or deadline_s, not both")
    found["annotations"] = {str(k): str(v) for k, v in (found.get("annotations") or {}).items()}
    return Arrival(**found)


def _object(raw: object, place: str, allowed: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise ScenarioError(f"{place}: an object is needed, not {raw!r}")
    if unknown := [key for key in raw if key not in allowed]:
        raise ScenarioError(f"{place}: {unknown[0]!r} is not known; there are {', '.join(allowed)}")
    return raw


def _number(value: object, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
        raise ScenarioError(f"{place}: a number from 0 to a million is needed, not {value!r}")
    return float(value)
