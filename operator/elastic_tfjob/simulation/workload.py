"""Jobs as a workload file or a scenario describes them, independent of speed models and policies; and typed access to
the rows of workload files."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from elastic_tfjob.scheduling.resources import ANYWHERE, Constraints
from elastic_tfjob.scheduling.snapshot import ReplicaGroup

__all__ = ["BadValue", "Row", "bounds", "in_team"]


def in_team(name: str, team: str) -> str:
    """The key of a job of this team, as a live job has its namespace and its name."""
    return f"{team}/{name}" if team else name


@dataclass(frozen=True, slots=True)
class LossCurve:
    """The training loss after k steps: l(k) = 1 / (b0 k + b1) + b2 (Optimus, EuroSys'18, equation 1)."""

    b0: float
    b1: float
    b2: float = 0.0

    def at(self, steps: float) -> float:
        return 1 / (self.b0 * steps + self.b1) + self.b2


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """How much memory one parameter server uses, in bytes: `first` before the first step, `per_h` more for each hour of
    training at the declared size, and `jump` more at once after `jump_s` seconds of such training. `most`: up to where
    its memory may be raised, as by the annotation max-memory; None: it is never raised."""

    first: float
    per_h: float = 0.0
    jump_s: float = 0.0
    jump: float = 0.0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class WorkloadJob:
    """One job. `key` may begin with its team and a slash. `duration_s` is the run time in seconds at the declared size,
    `total_steps` the work; a speed model needs one of them.

    `estimated_s` is the user's estimate of the duration in seconds, if any. `cpu_demand` is the number of CPUs that one
    replica can use (None: its CPU request). `line` is the line number of the job in its file. `constraints`: the nodes
    that its replicas may run on. `memory`: what a parameter server uses; None: never more than it requests.
    """

    key: str
    submit_s: float
    groups: tuple[ReplicaGroup, ...]
    duration_s: float | None = None
    total_steps: float | None = None
    estimated_s: float | None = None
    deadline_s: float | None = None
    priority: int = 0
    model: str = ""
    batch_size: int = 0
    loanable: bool = False
    loss: LossCurve | None = None
    cpu_demand: float | None = None
    line: int = 0
    constraints: Constraints = ANYWHERE
    memory: MemoryGrowth | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    format: str
    jobs: tuple[WorkloadJob, ...]


# -- One row of a workload file, with typed access ---------------------------------------------------------------------

T = TypeVar("T")


class BadValue(Exception):
    """A value in a row is invalid. `wrong` is the predicate of the message: "VALUE `wrong`"."""

    def __init__(self, column: str, value: str, wrong: str) -> None:
        super().__init__(wrong)
        self.column, self.value, self.wrong = column, value, wrong


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a workload file. The accessors raise BadValue with the column and the value."""

    values: Mapping[str, str | None]
    line: int
    shared: dict[object, tuple[ReplicaGroup, ...]] = field(default_factory=dict)
    """Cache of replica groups, so that thousands of jobs with equal groups share one object."""

    def has(self, column: str) -> bool:
        return bool((self.values.get(column) or "").strip())

    def either(self, column: str, other: str) -> str:
        """The name in the header: `column` if it is there, else `other`."""
        return column if column in self.values else other

    def text(self, column: str) -> str:
        value = (self.values.get(column) or "").strip()
        if not value:
            raise BadValue(column, value, "is empty")
        return value

    def number(self, column: str, *, least: float | None = None, above: float | None = None) -> float:
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            raise BadValue(column, text, "is not a number") from None
        if not math.isfinite(value):
            raise BadValue(column, text, "is not a finite number")
        if least is not None and value < least:
            raise BadValue(column, text, f"must be at least {least:g}")
        if above is not None and value <= above:
            raise BadValue(column, text, f"must be above {above:g}")
        return value

    def whole(self, column: str, *, least: int = 0) -> int:
        value = self.number(column, least=least)
        if value != int(value):
            raise BadValue(column, self.text(column), "is not a whole number")
        return int(value)

    def flag(self, column: str) -> bool:
        text = self.text(column).lower()
        if text not in ("true", "false", "1", "0"):
            raise BadValue(column, text, "is neither true nor false")
        return text in ("true", "1")

    def maybe(self, column: str, get: Callable[[str], T], default: T) -> T:
        return get(column) if self.has(column) else default

    def groups(self, *groups: ReplicaGroup) -> tuple[ReplicaGroup, ...]:
        return self.shared.setdefault(groups, groups)


def bounds(row: Row, kind: str, count: int) -> tuple[int, int]:
    """The values of the columns min_KIND and max_KIND. Both default to the declared count."""
    low = row.maybe(f"min_{kind}", lambda c: row.whole(c, least=1), count)
    high = row.maybe(f"max_{kind}", lambda c: row.whole(c, least=1), count)
    if low > count:
        raise BadValue(f"min_{kind}", str(low), f"is above the declared {count}")
    if high < count:
        raise BadValue(f"max_{kind}", str(high), f"is below the declared {count}")
    return low, high
