"""A pod's report: the exporter's `/status`, as a Report. Pure.

The user controls the pod, so its answers are never trusted to be well-formed: an answer that breaks the pod contract,
or is larger than api/reading.py allows, is no report.
"""

import json
import sys
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

from elastic_tfjob.api.reading import (
    LATEST,
    MAX_BYTES,
    MAX_DURATION_S,
    MAX_GENERATION,
    MAX_MILLICORES,
    MAX_RATE,
    MAX_STARTS,
    MAX_STATUS_BYTES,
    MAX_STEPS,
    MAX_VALUE,
    MAX_WORD,
    Fields,
    cut,
)
from elastic_tfjob.scheduling.memory_limit import MemoryRule, fits, forecast, short
from elastic_tfjob.speed.growth import Growth, LossState

__all__ = ["WINDOW_S", "Checkpoint", "CpuUse", "MemoryUse", "Prepared", "Report", "Saved", "Switch"]

WINDOW_S: Final = 30.0
"""Seconds over which a pod's resource use is averaged, so that the variation within a training step does not show."""
# Seconds after a generation's first step before which a speed depends more on the start than on the size.
_SPEED_WINDOW_S: Final = 5.0
# A program's first steps trace and compile, and cost more than later ones. They are over after this number of steps; if
# a step takes long, after this number of seconds.
_FIRST_STEPS: Final = 10
_FIRST_STEPS_S: Final = 60.0
# Shares of a memory limit that are told apart at most.
_MOST_TENTHS: Final = 100

PreparedState = Literal["starting", "ready", "failed"]
SwitchState = Literal["changing", "saving", "committed", "refused"]
SavedState = Literal["saving", "saved", "refused"]

_MAX_TIME: Final = LATEST.timestamp()
_MAX_CPU_S: Final = MAX_DURATION_S * (MAX_MILLICORES / 1000)
_MAX_FLOAT: Final = sys.float_info.max
_MODES: Final = 16


@dataclass(frozen=True, slots=True)
class Prepared:
    """The program of a coming generation, started beside the running one."""

    generation: int
    """generation that the program is prepared for"""
    mode: str
    """mode in which it was started, one of `modes`"""
    state: PreparedState
    """progress of the preparation"""
    why: str = ""
    """why the preparation failed"""
    checkpoint: int | None = None
    """step of the newest checkpoint that it sees; `null` if there is none, or it is not the chief's"""


@dataclass(frozen=True, slots=True)
class Switch:
    """The progress of the chief's launcher with the switch to a generation."""

    generation: int
    """generation to switch to"""
    state: SwitchState
    """progress or result of the switch"""
    why: str = ""
    """why the switch was refused"""
    at: float | None = None
    """Unix time of this state, on the pod's clock"""
    in_memory: bool = False
    """whether the values of the variables went through memory, not through a checkpoint"""


@dataclass(frozen=True, slots=True)
class Saved:
    """The progress of the chief's launcher with the checkpoint that was requested before its pod ends."""

    request: int
    """generation of the job's stop that requested it"""
    state: SavedState
    """progress of the checkpoint; `saved`: the program has paused"""
    why: str = ""
    """why saving failed"""
    step: int | None = None
    """steps done at the checkpoint"""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The newest complete checkpoint."""

    step: int | None = None
    """steps done at the checkpoint"""
    at: float | None = None
    """Unix time when the checkpoint was complete, on the pod's clock"""
    seconds: float | None = None
    """seconds that saving took"""
    bytes: int | None = None
    """size of the checkpoint"""
    path: str = ""
    """path of the checkpoint, as TensorFlow names it"""


@dataclass(frozen=True, slots=True)
class CpuUse:
    """CPU of the training container."""

    at: float | None = None
    """Unix time of these figures, on the pod's clock"""
    usage_s: float | None = None
    """CPU-seconds used since the container started"""
    throttled_s: float | None = None
    """seconds throttled since the container started"""
    limit_cores: float | None = None
    """cores that the container may use"""
    use_cores: float | None = None
    """cores that the container uses"""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory of the training container."""

    used_bytes: int | None = None
    """memory in use"""
    limit_bytes: int | None = None
    """memory limit"""
    held_bytes: int | None = None
    """memory that the kernel cannot take back (anonymous, shared, its own): beyond the limit it kills"""
    peak_bytes: int | None = None
    """highest `held_bytes` since the container started"""
    highest_bytes: int | None = None
    """highest `held_bytes` of the last 180 s"""
    growth_bytes_per_s: float | None = None
    """growth of `held_bytes` over the last 180 s, at least 0; `null` for the first samples"""
    growth_of_late_bytes_per_s: float | None = None
    """the same over the last 9 s"""
    kills: int | None = None
    """processes that the kernel has killed for memory since the container started"""
    killed_at: float | None = None
    """Unix time of the last of them, on the pod's clock"""

    @property
    def soon_bytes(self) -> int:
        """What is used soon if the growth goes on, as forecast by default; 0: unknown."""
        return forecast(MemoryRule(), self)

    @property
    def outlook(self) -> tuple[bool, bool, int]:
        """Whether the limit leaves headroom, and whether it will be exceeded, by the default rule; and `soon_bytes` in
        tenths of the limit, from the half on. A decision may be due when this changes."""
        limit, rule = self.limit_bytes, MemoryRule()
        if not limit:
            return True, False, 0
        tenths = min(10 * self.soon_bytes // limit, _MOST_TENTHS)
        return fits(rule, limit, self), short(rule, limit, self), tenths if tenths >= 5 else 0

    @property
    def changes_fast(self) -> bool:
        """Whether the memory may be used up within minutes, so that the pod is polled more often."""
        growth = self.soon_bytes - (self.highest_bytes or 0)
        limit = self.limit_bytes or 0
        return 0 < limit < 2 * self.soon_bytes and growth > limit / 20


@dataclass(frozen=True, slots=True)
class Report:
    """One pod's `/status`. None stands for a value that the pod does not know.

    Times are on the pod's clock, which may be wrong; `received_at_s` is on the operator's. In `Reports`, the use of CPU
    is a mean over up to half a minute in which the pod ran the same generation with the same limit, and None before.
    `mean_cores` and `mean_steps_per_s` are means over the last minutes, from which the cost of a step follows, while
    `steps_per_s` is the speed of the last ten seconds. `saves`: the launcher can save a checkpoint before its pod ends.
    `starts`: how the pod's next program will be started: `fork`, or `exec: ` with the reason; None from a launcher that
    does not report it.
    """

    at: float
    """Unix time of the answer, on the pod's clock"""
    generation: int | None = None
    """generation (number of the change of size) whose program runs; `null` while a new pod only prepares"""
    launcher: bool = False
    """whether the pod has a launcher"""
    modes: tuple[str, ...] = ()
    """modes by which the pod can be rescaled now: `live`, `overlap`, `spare`, and `leave` if its program leads and the
    next one can be in another pod; empty if only `recreate` is possible"""
    not_live: str = ""
    """why the workers of the chief's program cannot change while it trains, else `null`"""
    prepared: Prepared | None = None
    """the program of a coming generation, started beside the running one"""
    switch: Switch | None = None
    """the chief's last switch to a generation"""
    step: int | None = None
    """steps done, as last reported, also by the previous generation"""
    total_steps: int | None = None
    """steps to do, as last reported, also by the previous generation"""
    steps_per_s: float | None = None
    """steps per second of the running generation"""
    examples_per_s: float | None = None
    """examples per second of the running generation"""
    loss: float | None = None
    """loss as last reported, also by the previous generation; `null` if it is no number"""
    loss_problem: str = ""
    """`nan` or `inf` if the loss is no number, else `null`"""
    first_step_at: float | None = None
    """Unix time of the first step of the running generation"""
    last_step_at: float | None = None
    """Unix time of the last step, also by the previous generation"""
    downtime_s: float | None = None
    """seconds without a step at the last switch or restart"""
    lost_steps: int | None = None
    """steps repeated after the last switch or restart"""
    checkpoint: Checkpoint | None = None
    """the newest complete checkpoint"""
    cpu: CpuUse = CpuUse()
    """CPU of the training container"""
    memory: MemoryUse = MemoryUse()
    """memory of the training container"""
    received_at_s: float = 0.0
    mean_steps_per_s: float | None = None
    mean_cores: float | None = None
    hook: bool | None = None
    """whether the running program in this pod has constructed `ElasticCheckpoint`"""
    resumed_step: int | None = None
    """step at which the running generation's program began"""
    saves: bool = False
    starts: str | None = None
    handing_over: bool = False
    """whether the previous program still saves the values that it gave to the running one in memory"""
    saved: Saved | None = None
    """the checkpoint that was requested before the pod ends; a launcher without this feature has no such key"""

    @classmethod
    def parse(cls, text: bytes | str, received_at_s: float = 0.0) -> "Report":
        """Reads a `/status` answer. Unknown keys are ignored. Missing keys are None, as are numbers that are not finite
        (a loss that diverged) or beyond their bounds. Raises ValueError, which names the first value of a wrong type,
        and nothing else."""
        if len(text) > MAX_STATUS_BYTES:
            raise ValueError(f"the answer is larger than {MAX_STATUS_BYTES} bytes")
        # The standard library's json reads NaN, which may be among a training program's numbers.
        try:
            raw = Fields(json.loads(text))
        except RecursionError:
            raise ValueError("the answer is nested too deeply") from None
        return cls(
            at=raw.number("at", _MAX_TIME) or 0.0,
            generation=raw.integer("generation", MAX_GENERATION),
            launcher=raw.flag("launcher") or False,
            modes=_modes(raw),
            not_live=raw.text("not_live"),
            prepared=_prepared(raw.within("prepared")),
            switch=_switch(raw.within("switch")),
            step=raw.integer("step", MAX_STEPS),
            total_steps=raw.integer("total_steps", MAX_STEPS),
            steps_per_s=raw.number("steps_per_s", MAX_RATE),
            examples_per_s=raw.number("examples_per_s", _MAX_FLOAT, least=None),
            loss=raw.number("loss", _MAX_FLOAT, least=None),
            loss_problem=raw.text("loss_problem", MAX_WORD),
            first_step_at=raw.number("first_step_at", _MAX_TIME),
            last_step_at=raw.number("last_step_at", _MAX_TIME),
            downtime_s=raw.number("downtime_s", MAX_DURATION_S),
            lost_steps=raw.integer("lost_steps", MAX_STEPS, least=None),
            checkpoint=_checkpoint(raw.within("checkpoint")),
            cpu=_cpu(raw.within("cpu")),
            memory=_memory(raw.within("memory")),
            received_at_s=received_at_s,
            hook=raw.flag("hook"),
            resumed_step=raw.integer("resumed_step", MAX_STEPS),
            saves=raw.has("saved"),
            starts=_starts(raw.within("start")),
            handing_over=raw.flag("handing_over") or False,
            saved=_saved(raw.within("saved")),
        )

    @property
    def forks(self) -> bool:
        """Whether the pod's next program will be forked from an interpreter that has already imported its libraries."""
        return self.starts == "fork"

    @property
    def news(self) -> tuple[object, ...]:
        """All fields except plain progress: while these stay the same there is nothing to decide."""
        return (
            self.generation,
            self.launcher,
            self.hook,
            self.modes,
            self.forks,
            self.prepared,
            self.switch,
            self.handing_over,
            self.saved,
            self.total_steps,
            self.first_step_at,
            self.downtime_s,
            self.lost_steps,
            self.memory.kills,
            self.memory.outlook,
        )

    @property
    def steady(self) -> bool:
        """Whether the running program has made its first steps, so that the next ones have the usual cost."""
        if self.first_step_at is None or self.last_step_at is None or self.step is None:
            return False
        made, seconds = self.step - (self.resumed_step or 0), self.last_step_at - self.first_step_at
        return seconds >= _SPEED_WINDOW_S and (made >= _FIRST_STEPS or seconds >= _FIRST_STEPS_S)

    @property
    def loss_state(self) -> LossState:
        """The state of the last loss: finite, NaN, infinite or absent."""
        if self.loss is None and self.loss_problem in ("nan", "inf"):
            return cast("LossState", self.loss_problem)
        return "absent" if self.loss is None else "finite"

    def growth(self, before: Growth) -> Growth:
        """Returns how the loss falls, after this report."""
        if self.step is None:
            return before
        return before.read(float(self.step), self.loss, self.received_at_s, self.loss_state)

    def speed_of(self, generation: int | None) -> float | None:
        """Returns the steps per second of this generation, once it has trained long enough for them to depend on its
        size alone; None before."""
        if self.generation != generation or self.first_step_at is None:
            return None
        return self.steps_per_s if (self.last_step_at or 0.0) - self.first_step_at >= _SPEED_WINDOW_S else None


def _prepared(raw: Fields | None) -> Prepared | None:
    if raw is None:
        return None
    return Prepared(
        raw.whole("generation", MAX_GENERATION),
        raw.text("mode", MAX_WORD),
        cast("PreparedState", raw.word("state", get_args(PreparedState))),
        raw.text("why"),
        raw.integer("checkpoint", MAX_STEPS),
    )


def _switch(raw: Fields | None) -> Switch | None:
    if raw is None:
        return None
    return Switch(
        raw.whole("generation", MAX_GENERATION),
        cast("SwitchState", raw.word("state", get_args(SwitchState))),
        raw.text("why"),
        raw.number("at", _MAX_TIME),
        raw.flag("in_memory") or False,
    )


def _saved(raw: Fields | None) -> Saved | None:
    if raw is None:
        return None
    return Saved(
        raw.whole("request", MAX_GENERATION),
        cast("SavedState", raw.word("state", get_args(SavedState))),
        raw.text("why"),
        raw.integer("step", MAX_STEPS),
    )


def _checkpoint(raw: Fields | None) -> Checkpoint | None:
    if raw is None:
        return None
    return Checkpoint(
        raw.integer("step", MAX_STEPS),
        raw.number("at", _MAX_TIME),
        raw.number("seconds", MAX_DURATION_S),
        raw.integer("bytes", MAX_BYTES),
        raw.text("path", MAX_VALUE),
    )


def _cpu(raw: Fields | None) -> CpuUse:
    if raw is None:
        return CpuUse()
    return CpuUse(
        at=raw.number("at", _MAX_TIME),
        usage_s=raw.number("usage_s", _MAX_CPU_S),
        throttled_s=raw.number("throttled_s", _MAX_CPU_S),
        limit_cores=raw.number("limit_cores", MAX_MILLICORES / 1000),
        use_cores=raw.number("use_cores", MAX_MILLICORES / 1000, least=None),
    )


def _memory(raw: Fields | None) -> MemoryUse:
    if raw is None:
        return MemoryUse()
    return MemoryUse(
        used_bytes=raw.integer("used_bytes", MAX_BYTES),
        limit_bytes=raw.integer("limit_bytes", MAX_BYTES),
        held_bytes=raw.integer("held_bytes", MAX_BYTES),
        peak_bytes=raw.integer("peak_bytes", MAX_BYTES),
        highest_bytes=raw.integer("highest_bytes", MAX_BYTES),
        growth_bytes_per_s=raw.number("growth_bytes_per_s", MAX_BYTES),
        growth_of_late_bytes_per_s=raw.number("growth_of_late_bytes_per_s", MAX_BYTES),
        kills=raw.integer("kills", MAX_STEPS),
        killed_at=raw.number("killed_at", _MAX_TIME),
    )


def _starts(raw: Fields | None) -> str | None:
    if raw is None:
        return None
    why = cut(raw.text("why"), MAX_STARTS - len("exec: "))
    return "fork" if raw.any("way") == "fork" else f"exec: {why}" if why else "exec"


def _modes(raw: Fields) -> tuple[str, ...]:
    found = raw.items("modes", _MODES)
    if not all(isinstance(mode, str) for mode in found):
        raise raw.wrong("modes", "a list of strings")
    return tuple(cut(mode, MAX_WORD) for mode in found)
