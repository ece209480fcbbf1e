"""Shortest remaining time first."""

from pydantic import Field

from elastic_tfjob.scheduling.parameters import ProfileParameters, Stages, needs
from elastic_tfjob.scheduling.stages.order.srtf import ShortestRemainingTimeFirst
from elastic_tfjob.scheduling.toolkit.declared_size import Preemptive


class SrtfParameters(ProfileParameters):
    """Shortest remaining time first, preemptive."""

    oracle: bool = Field(True, description="the policy is told the true duration and speed (simulation only)")

    def stages(self) -> Stages:
        return Stages(ShortestRemainingTimeFirst(), (Preemptive(),), needs("duration", "speed", "stop"))
