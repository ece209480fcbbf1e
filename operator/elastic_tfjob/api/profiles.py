"""The parameters of every scheduling profile: what a line of YAML, or `--set PROFILE.PARAM=VALUE`, may say."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from elastic_tfjob.api.limits import MAX_DURATION_S, MAX_ENTRIES
from elastic_tfjob.api.scenario import wrong_places

PlaceName = Literal["count", "consolidate", "best-fit", "spread", "even", "pack"]
Seconds = Annotated[float, Field(ge=0, le=MAX_DURATION_S)]


class ProfileParameters(BaseModel):
    """What every profile has."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    place: PlaceName = Field("best-fit", description="which nodes replicas go to; count looks at totals only")
    interval_s: Seconds = Field(0.0, description="longest time between two rounds; 0: only when something changes")
    on_change: bool = Field(True, description="false: a change waits for the next multiple of interval_s")
    oracle: bool = Field(False, description="the policy is told the true duration and speed (simulation only)")
    lend: Literal["none", "offered"] = Field("none", description="borrow nodes that the inference pool offers")


class FixedParameters(ProfileParameters):
    """As upstream does: declared sizes by arrival, what fits starts, pods spread by kube-scheduler."""

    place: PlaceName = Field("spread", description="which nodes replicas go to; count looks at totals only")


class FifoParameters(ProfileParameters):
    """First in, first out; the first job that does not fit holds back all behind it."""


class FifoBackfillParameters(ProfileParameters):
    """First in, first out; what fits starts."""


class SjfParameters(ProfileParameters):
    """Shortest job first, not preemptive; the first that does not fit holds back all behind it."""

    oracle: bool = Field(True, description="the policy is told the true duration and speed (simulation only)")


class SjfBackfillParameters(SjfParameters):
    """Shortest job first, not preemptive; what fits starts."""


class SrtfParameters(ProfileParameters):
    """Shortest remaining time first, preemptive."""

    oracle: bool = Field(True, description="the policy is told the true duration and speed (simulation only)")


class LasParameters(ProfileParameters):
    """Least attained service (Tiresias), preemptive."""

    thresholds: tuple[float, ...] = Field(
        (3250.0, 7200.0),
        max_length=MAX_ENTRIES,
        description="accelerator-seconds at which a job sinks one queue, rising",
    )
    within: Literal["arrival", "turn"] = Field(
        "turn", description="order in a queue: by arrival (Lucid), or running, preempted, entered (Tiresias)"
    )
    promote_knob: float = Field(
        0.0, ge=0, description="back to the first queue after waiting this times its run; 0: off"
    )

    @field_validator("thresholds", mode="before")
    @classmethod
    def commas(cls, value: object) -> object:
        """`3250,7200` as a command line gives it."""
        return value.split(",") if isinstance(value, str) else value

    @field_validator("thresholds")
    @classmethod
    def rising(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not value or list(value) != sorted(set(value)) or value[0] <= 0:
            raise ValueError("one or more rising numbers above 0, such as 3250,7200")
        return value


class EdfParameters(ProfileParameters):
    """Earliest deadline first; an elastic job takes as many replicas as help it and are free."""

    oracle: bool = Field(True, description="the policy is told the true duration and speed (simulation only)")
    size: Literal["useful", "largest"] = Field(
        "useful", description="largest size that is faster than all below it, or largest known (ElasticFlow)"
    )


class ElasticParameters(ProfileParameters):
    """What profiles that resize jobs have in common."""

    cooldown_s: Seconds = Field(0.0, description="least time between two rescales of one job")
    min_gain: float = Field(0.0, ge=0, lt=1, description="least relative gain in speed for which a running job grows")
    repack: bool = Field(False, description="a resized job is placed anew as a whole")
    sample_points: int = Field(
        8, ge=0, le=MAX_ENTRIES, description="sizes measured before a job starts (simulation without oracle)"
    )


class DrfParameters(ElasticParameters):
    """Dominant resource fairness by progressive filling."""

    on_full: Literal["next", "stop"] = Field("next", description="when a job's unit does not fit: try others, or stop")


class TetrisParameters(ElasticParameters):
    """Tetris: packing score plus shortness."""

    shortness_weight: float = Field(1.0, ge=0, description="weight of short remaining work beside packing")


class OptimusParameters(ElasticParameters):
    """Optimus: one PS or worker at a time to the job whose finish it brings nearest."""

    place: PlaceName = Field("even", description="which nodes replicas go to; count looks at totals only")
    per_resource: bool = Field(True, description="gain per amount of the unit's dominant resource (the paper)")
    on_full: Literal["next", "stop"] = Field("next", description="when the best unit does not fit: try others, or stop")
    repack: bool = Field(True, description="a resized job is placed anew as a whole")


class KipsParameters(ElasticParameters):
    """PS/worker affinity and dynamic adjustment (Jeong and Yu, 2022): idle CPU goes to who uses all it has."""

    place: PlaceName = Field("pack", description="which nodes replicas go to; count looks at totals only")
    interval_s: Seconds = Field(15.0, description="longest time between two rounds; 0: only when something changes")
    cooldown_s: Seconds = Field(30.0, description="least time between two rescales of one job")
    min_gain: float = Field(0.1, ge=0, lt=1, description="least relative gain in speed for which a running job grows")
    sample_points: int = Field(
        0, ge=0, le=MAX_ENTRIES, description="sizes measured before a job starts (simulation without oracle)"
    )
    busy: float = Field(0.8, gt=0, le=1, description="CPU used / held from which on replicas lack CPU")
    idle: float = Field(0.3, ge=0, lt=1, description="CPU used / held below which replicas leave CPU idle")
    patience_s: Seconds = Field(
        30.0, description="who waits longer may take all beyond others' minimum, not only beyond their declared size"
    )
    cpu_growth: float = Field(4.0, ge=1, description="most that a replica's CPU is raised at once, times what it holds")
    min_idle: float = Field(0.05, ge=0, le=1, description="idle CPU is lent from this part of a node's CPU on")
    min_efficiency: float = Field(
        0.5, ge=0, le=1, description="least gain of one more replica, relative to a gain in proportion"
    )
    rescale_pause_s: Seconds = Field(1.0, description="what a rescale stops training for")
    prepare_cpu_s: Seconds = Field(12.0, description="CPU time of starting one process of the new size")

    @model_validator(mode="after")
    def apart(self) -> "KipsParameters":
        if self.idle >= self.busy:
            raise ValueError(f"idle, {self.idle:g}, must be below busy, {self.busy:g}")
        return self


PROFILES: dict[str, type[ProfileParameters]] = {
    "fixed": FixedParameters,
    "fifo": FifoParameters,
    "fifo-backfill": FifoBackfillParameters,
    "sjf": SjfParameters,
    "sjf-backfill": SjfBackfillParameters,
    "srtf": SrtfParameters,
    "las": LasParameters,
    "edf": EdfParameters,
    "drf": DrfParameters,
    "tetris": TetrisParameters,
    "optimus": OptimusParameters,
    "kips": KipsParameters,
}
"""Profile names and what may be set for each."""


def parse_profile(name: str, settings: Mapping[str, Any]) -> ProfileParameters:
    """The parameters of profile `name` with these settings. Raises ValueError that names each wrong one, what was found
    and what there is.
    """
    model = PROFILES[name]
    try:
        return model.model_validate(settings)
    except ValidationError as e:
        problems = "; ".join(f"{name}.{place}" for place in wrong_places(e))
        raise ValueError(f"{problems}. Parameters of {name}: {', '.join(model.model_fields)}") from e
