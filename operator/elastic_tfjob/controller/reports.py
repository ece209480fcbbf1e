"""What the pods say of themselves: the exporters' `/status`, as Reports.

A pod is the user's ground, so what comes from there is never trusted to be well-formed: an answer that is not what the
pod contract says is no report.
"""

import json
import math
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast, get_args

__all__ = ["Checkpoint", "CpuUse", "MemoryUse", "Prepared", "Report", "Switch"]

PreparedState = Literal["starting", "ready", "failed"]
SwitchState = Literal["saving", "committed", "refused"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prepared:
    """The program of a coming generation, started beside the one that runs. `why` tells what failed."""

    generation: int
    mode: str
    state: PreparedState
    why: str = ""


@dataclass(frozen=True, slots=True)
class Switch:
    """How far the chief's launcher is with handing over to a generation. `at` is Unix time on the pod's clock."""

    generation: int
    state: SwitchState
    why: str = ""
    at: float | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The newest complete checkpoint. `at`: Unix time; `seconds`: how long saving took; `bytes`: its size."""

    step: int | None = None
    at: float | None = None
    seconds: float | None = None
    bytes: int | None = None
    path: str = ""


@dataclass(frozen=True, slots=True)
class CpuUse:
    """CPU of the training container: seconds used and throttled since it started; cores it may use and uses now."""

    usage_s: float | None = None
    throttled_s: float | None = None
    limit_cores: float | None = None
    use_cores: float | None = None


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory of the training container."""

    used_bytes: int | None = None
    limit_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """One pod's `/status`. None stands for what the pod does not know.

    `at`, `first_step_at`, `last_step_at` are Unix times on the pod's clock, which may be wrong; `received_at` is ours.
    `first_step_at` is of this generation's first step. `downtime_s` and `lost_steps` are of the last switch or restart.
    """

    at: float
    generation: int | None = None
    launcher: bool = False
    modes: tuple[str, ...] = ()
    prepared: Prepared | None = None
    switch: Switch | None = None
    step: int | None = None
    total_steps: int | None = None
    steps_per_s: float | None = None
    examples_per_s: float | None = None
    loss: float | None = None
    first_step_at: float | None = None
    last_step_at: float | None = None
    downtime_s: float | None = None
    lost_steps: int | None = None
    checkpoint: Checkpoint | None = None
    cpu: CpuUse = CpuUse()
    memory: MemoryUse = MemoryUse()
    received_at: float = 0.0

    @classmethod
    def parse(cls, text: bytes | str, received_at: float = 0.0) -> "Report":
        """Read a `/status` answer. Unknown keys are passed over and missing ones are None, as is a number that is not
        finite (a loss that diverged). Raises ValueError that names the first value of a wrong type."""
        # The json of the standard library: it reads NaN, which a training program's numbers may well be.
        try:
            raw = _Fields(json.loads(text))
        except RecursionError:
            raise ValueError("the answer is nested too deeply") from None
        return cls(
            at=raw.number("at") or 0.0,
            generation=raw.integer("generation"),
            launcher=raw.of(bool, "launcher") or False,
            modes=tuple(str(mode) for mode in raw.of(list, "modes") or ()),
            prepared=_prepared(raw.within("prepared")),
            switch=_switch(raw.within("switch")),
            step=raw.integer("step"),
            total_steps=raw.integer("total_steps"),
            steps_per_s=raw.number("steps_per_s"),
            examples_per_s=raw.number("examples_per_s"),
            loss=raw.number("loss"),
            first_step_at=raw.number("first_step_at"),
            last_step_at=raw.number("last_step_at"),
            downtime_s=raw.number("downtime_s"),
            lost_steps=raw.integer("lost_steps", least=None),
            checkpoint=_checkpoint(raw.within("checkpoint")),
            cpu=_cpu(raw.within("cpu")),
            memory=_memory(raw.within("memory")),
            received_at=received_at,
        )

    @property
    def news(self) -> tuple[object, ...]:
        """All but plain progress: while this stays the same there is nothing to decide."""
        return (
            self.generation,
            self.launcher,
            self.modes,
            self.prepared,
            self.switch,
            self.total_steps,
            self.first_step_at,
            self.downtime_s,
            self.lost_steps,
        )


class _Fields:
    """Typed access to an object of JSON. Every method gives None for a key that is missing or null."""

    def __init__(self, raw: object, place: str = "") -> None:
        if not isinstance(raw, dict):
            raise ValueError(f"{place or 'the answer'} is not an object: {_excerpt(raw)}")
        self._raw: dict[str, Any] = raw
        self._place = f"{place}." if place else ""

    def of(self, kind: type[T], name: str) -> T | None:
        value = self._raw.get(name)
        if value is None or type(value) is kind:
            return value
        raise self._wrong(name, kind.__name__)

    def within(self, name: str) -> "_Fields | None":
        value = self._raw.get(name)
        return None if value is None else _Fields(value, self._place + name)

    def number(self, name: str) -> float | None:
        value = self._raw.get(name)
        if value is None:
            return None
        if type(value) not in (int, float):
            raise self._wrong(name, "number")
        try:
            number = float(value)
        except OverflowError:
            return None
        return number if math.isfinite(number) else None

    def integer(self, name: str, *, least: int | None = 0) -> int | None:
        number = self.number(name)
        if number is None:
            return None
        if number != int(number) or (least is not None and number < least):
            raise self._wrong(name, "whole number" + ("" if least is None else f" from {least} up"))
        return int(number)

    def required_integer(self, name: str) -> int:
        if (found := self.integer(name)) is None:
            raise self._wrong(name, "whole number")
        return found

    def word(self, name: str, allowed: tuple[str, ...]) -> str:
        found = self._raw.get(name)
        if found not in allowed:
            raise self._wrong(name, " or ".join(allowed))
        return cast("str", found)

    def _wrong(self, name: str, wanted: str) -> ValueError:
        return ValueError(f"{self._place}{name} is not a {wanted}: {_excerpt(self._raw.get(name))}")


def _excerpt(value: object) -> str:
    return repr(value)[:60]


def _prepared(raw: _Fields | None) -> Prepared | None:
    if raw is None:
        return None
    return Prepared(
        raw.required_integer("generation"),
        raw.of(str, "mode") or "",
        cast("PreparedState", raw.word("state", get_args(PreparedState))),
        raw.of(str, "why") or "",
    )


def _switch(raw: _Fields | None) -> Switch | None:
    if raw is None:
        return None
    return Switch(
        raw.required_integer("generation"),
        cast("SwitchState", raw.word("state", get_args(SwitchState))),
        raw.of(str, "why") or "",
        raw.number("at"),
    )


def _checkpoint(raw: _Fields | None) -> Checkpoint | None:
    if raw is None:
        return None
    return Checkpoint(
        raw.integer("step"),
        raw.number("at"),
        raw.number("seconds"),
        raw.integer("bytes"),
        raw.of(str, "path") or "",
    )


def _cpu(raw: _Fields | None) -> CpuUse:
    if raw is None:
        return CpuUse()
    return CpuUse(*(raw.number(name) for name in ("usage_s", "throttled_s", "limit_cores", "use_cores")))


def _memory(raw: _Fields | None) -> MemoryUse:
    return MemoryUse() if raw is None else MemoryUse(raw.integer("used_bytes"), raw.integer("limit_bytes"))
