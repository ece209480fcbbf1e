"""Least attained service."""

from dataclasses import dataclass
from typing import Literal

from pydantic import Field, field_validator

from elastic_tfjob.api.limits import MAX_ENTRIES
from elastic_tfjob.scheduling.parameters import ProfileParameters, Stages, needs
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.stages.order.las import FORGIVEN, LeastAttainedService
from elastic_tfjob.scheduling.toolkit.declared_size import Preemptive


@dataclass(frozen=True, slots=True)
class Forgive:
    """Remembers of each promoted job that starts what it has had until now: that counts no more."""

    order: LeastAttainedService

    def __call__(self, round_: Round) -> None:
        if not self.order.promote_knob:
            return
        for key, target in round_.changes.items():
            job = round_.job(key)
            if target.nodes and self.order.promotes(job, round_.now):
                round_.remember(job, FORGIVEN, job.service)


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

    def stages(self) -> Stages:
        order = LeastAttainedService(self.thresholds, self.within, self.promote_knob)
        return Stages(order, (Preemptive(), Forgive(order)), needs("service", "stop"))
