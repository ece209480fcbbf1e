"""What the operator keeps in annotations: a job's target and state, and the command to a pod. Pure.

All of an elastic job's memory is here, so that any replica of the operator can go on with it after any crash. Each
datum has one writer: the scheduling loop writes `target`, the reconcile loop writes `state` and the pods' commands.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, get_args

import orjson

from elastic_tfjob.api.annotations import PREFIX

__all__ = [
    "COMMAND_ANNOTATION",
    "ETA_ANNOTATION",
    "STATE_ANNOTATION",
    "STEP_ANNOTATION",
    "STOP_COMMAND",
    "TARGET_ANNOTATION",
    "Command",
    "Mode",
    "Next",
    "Phase",
    "Refused",
    "Rescaled",
    "State",
    "Target",
    "words",
]

TARGET_ANNOTATION: Final = f"{PREFIX}target"
STATE_ANNOTATION: Final = f"{PREFIX}state"
STEP_ANNOTATION: Final = f"{PREFIX}step"
ETA_ANNOTATION: Final = f"{PREFIX}eta"

# The operator's mailbox to a pod. Written also before the operator deletes a running pod, so that whoever looks at the
# terminating pod later (another replica, the operator after a restart) knows that it did not fail.
COMMAND_ANNOTATION: Final = f"{PREFIX}command"
STOP_COMMAND: Final = '{"action":"stop"}'

Counts = Mapping[str, int]
"""Replicas per type."""
Nodes = Mapping[str, tuple[str, ...]]
"""Node names per type, in the order of the replicas' indices."""
Cpu = Mapping[str, tuple[int, ...]]
"""CPU in millicores per type and replica, where it shall differ from the template's request."""

Mode = Literal["overlap", "spare", "recreate"]
Phase = Literal["Waiting", "Stable", "Preparing", "Checkpointing", "Switching", "RollingBack", "Recreating"]

_HISTORY: Final = 10


def words(counts: Counts) -> str:
    """`1 Chief + 2 PS + 4 Worker`."""
    return " + ".join(f"{count} {name}" for name, count in sorted(counts.items()) if count) or "nothing"


@dataclass(frozen=True, slots=True)
class Target:
    """What a job shall hold. No replicas: it shall wait, and `reason` says why. No nodes: kube-scheduler chooses.

    `generation` grows when `replicas` change. `declared` are the spec's replicas when this was decided.
    """

    generation: int
    replicas: Counts
    nodes: Nodes = field(default_factory=dict)
    cpu: Cpu = field(default_factory=dict)
    reason: str = ""
    declared: Counts = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str | None) -> "Target | None":
        """Read the annotation; None where there is none. Raises ValueError for nonsense."""
        return None if text is None else _read("target", cls, text, _size)

    def to_json(self) -> str:
        """The annotation's text."""
        return orjson.dumps(asdict(self)).decode()


@dataclass(frozen=True, slots=True)
class Next:
    """The size that a job is on its way to, and how. `before` is the size that it comes from."""

    generation: int
    slot: int
    mode: Mode
    replicas: Counts
    before: Counts
    nodes: Nodes = field(default_factory=dict)
    cpu: Cpu = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """A target that could not be reached, and is not tried again."""

    generation: int
    reason: str
    at: str


@dataclass(frozen=True, slots=True)
class Rescaled:
    """A rescale that is done. `downtime_s` is from the last step before to the first step after it."""

    generation: int
    at: str
    before: Counts
    after: Counts
    mode: Mode
    downtime_s: float | None
    lost_steps: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class State:
    """Where a job is. `slot` says which of its two ports it uses, `since` when the phase began (RFC 3339).

    `speeds` are the steps per second seen at each size, "PS/workers", and `speed_cpu` the millicores that a worker had
    then in the mean, where that is not what it requests; `numbers_at` is when the figures were refreshed.
    """

    phase: Phase
    generation: int = 0
    slot: int = 0
    replicas: Counts = field(default_factory=dict)
    nodes: Nodes = field(default_factory=dict)
    cpu: Cpu = field(default_factory=dict)
    since: str = ""
    reason: str = ""
    next: Next | None = None
    refused: Refused | None = None
    rescales: int = 0
    last_downtime_s: float | None = None
    history: tuple[Rescaled, ...] = ()
    step: int | None = None
    total_steps: int | None = None
    steps_per_s: float | None = None
    eta: str | None = None
    speeds: Mapping[str, float] = field(default_factory=dict)
    speed_cpu: Mapping[str, int] = field(default_factory=dict)
    numbers_at: str | None = None

    @classmethod
    def parse(cls, text: str | None) -> "State | None":
        """Read the annotation; None where there is none. Raises ValueError for nonsense."""
        return None if text is None else _read("state", cls, text, _state)

    def to_json(self) -> str:
        """The annotation's text."""
        return orjson.dumps(asdict(self)).decode()

    @property
    def rescaling(self) -> bool:
        """On its way from one size to another."""
        return self.phase not in ("Waiting", "Stable")

    def remember(self, done: Rescaled) -> tuple[Rescaled, ...]:
        """The history with one more, of which the last ones are kept."""
        return (*self.history, done)[-_HISTORY:]


@dataclass(frozen=True, slots=True)
class Command:
    """What a pod's launcher shall do: see runtime/ for the meaning of each action."""

    generation: int
    action: Literal["prepare", "switch", "run"]
    tf_config: str
    mode: Mode = "overlap"
    timeout_s: float = 120.0

    def to_json(self) -> str:
        """The annotation's text; equal commands have equal texts."""
        return orjson.dumps(asdict(self)).decode()


def _read(what: str, kind: Any, text: str, shape: Any) -> Any:
    try:
        return kind(**shape(orjson.loads(text)))
    except (orjson.JSONDecodeError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise ValueError(f"{PREFIX}{what} is not what the operator wrote there: {error}") from error


def _size(raw: dict[str, Any]) -> dict[str, Any]:
    """The fields of a size with their types put right."""
    for name in ("replicas", "before", "after", "declared"):
        if name in raw:
            raw[name] = {str(kind): int(count) for kind, count in raw[name].items()}
    raw["generation"] = int(raw["generation"])
    raw["nodes"] = {kind: tuple(map(str, names)) for kind, names in (raw.get("nodes") or {}).items()}
    raw["cpu"] = {kind: tuple(map(int, millicores)) for kind, millicores in (raw.get("cpu") or {}).items()}
    return raw


def _state(raw: dict[str, Any]) -> dict[str, Any]:
    raw = _size(raw)
    if raw["phase"] not in get_args(Phase):
        raise ValueError(f"phase {raw['phase']!r}")
    raw["next"] = Next(**_size(raw["next"])) if raw.get("next") else None
    raw["refused"] = Refused(**raw["refused"]) if raw.get("refused") else None
    if raw["next"] is None and raw["phase"] not in ("Waiting", "Stable"):
        raise ValueError(f"phase {raw['phase']} without the size to go to")
    raw["speeds"] = {str(size): float(rate) for size, rate in (raw.get("speeds") or {}).items()}
    raw["speed_cpu"] = {str(size): int(cpu) for size, cpu in (raw.get("speed_cpu") or {}).items()}
    raw["history"] = tuple(Rescaled(**each) for each in raw.get("history") or ())
    return raw
