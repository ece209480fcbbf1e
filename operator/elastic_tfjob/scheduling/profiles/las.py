"""Least attained service."""

from collections.abc import Iterable
from typing import Literal

from pydantic import Field, field_validator

from elastic_tfjob.api.limits import MAX_ENTRIES
from elastic_tfjob.scheduling.parameters import ProfileParameters, Stages, needs
from elastic_tfjob.scheduling.profile import Need
from elastic_tfjob.scheduling.stages.order.las import LeastAttainedService
from elastic_tfjob.scheduling.toolkit.declared_size import Preemptive


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

    def _needs(self) -> Iterable[Need]:
        yield from super()._needs()
        if self.promote_knob:
            yield "promote"

    def stages(self) -> Stages:
        order = LeastAttainedService(self.thresholds, self.within, self.promote_knob)
        return Stages(order, (Preemptive(),), needs("service", "stop"))
