"""Shortest job first, with and without backfill."""

from pydantic import Field

from elastic_tfjob.scheduling.parameters import ProfileParameters, Stages, needs
from elastic_tfjob.scheduling.stages.order.sjf import ShortestJobFirst
from elastic_tfjob.scheduling.toolkit.declared_size import FixedSize


class SjfParameters(ProfileParameters):
    """Shortest job first, not preemptive; the first that does not fit holds back all behind it."""

    oracle: bool = Field(True, description="the policy is told the true duration and speed (simulation only)")

    def stages(self) -> Stages:
        return Stages(ShortestJobFirst(), (FixedSize(),), needs("duration", "speed"))


class SjfBackfillParameters(SjfParameters):
    """Shortest job first, not preemptive; what fits starts."""

    def stages(self) -> Stages:
        return Stages(ShortestJobFirst(), (FixedSize(backfill=True),), needs("duration", "speed"))
