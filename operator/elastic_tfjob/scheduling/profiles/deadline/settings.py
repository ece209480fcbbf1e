"""The parameters of deadline."""

from typing import Literal

from pydantic import Field

from elastic_tfjob.api.limits import MAX_ENTRIES
from elastic_tfjob.scheduling.parameters import ElasticParameters, Seconds

__all__ = ["Settings"]


class Settings(ElasticParameters):
    """What may be set; see DeadlineParameters."""

    min_gain: float = Field(0.1, ge=0, lt=1, description="least relative gain in speed for which a running job grows")
    sample_points: int = Field(
        0, ge=0, le=MAX_ENTRIES, description="sizes measured before a job starts (simulation without oracle)"
    )
    pause_s: Seconds = Field(1.0, description="what a start or a change of size is expected to stop training for")
    sizes: Literal["all", "doublings"] = Field(
        "all", description="worker counts that a job may get: all, or the least one times a power of two"
    )
    probe_share: float = Field(
        0.1, ge=0, le=1, description="part of the cluster for jobs of unknown speed, each at its least size"
    )
    settle_s: Seconds = Field(30.0, description="a first start is left alone so long before its speed is believed")
    keep_promises: bool = Field(
        False, description="a running job that can meet its deadline is never given up for another one"
    )
    exchanges: int = Field(3, ge=0, le=64, description="jobs that are tried in exchange for one that does not fit")
    keep: float = Field(
        10.0, ge=0, le=1000, description="how much more what a running job has is worth to it than the same to another"
    )
    most_planned: int = Field(
        400, ge=1, le=MAX_ENTRIES * 100, description="waiting jobs, and running ones, that one round looks at"
    )
