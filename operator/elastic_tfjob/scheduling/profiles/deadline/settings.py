"""The parameters of deadline."""

from typing import Literal

from pydantic import Field

from elastic_tfjob.api.limits import MAX_ENTRIES
from elastic_tfjob.scheduling.parameters import ElasticParameters, Seconds
from elastic_tfjob.scheduling.stages.place.catalogue import PlaceName

__all__ = ["Settings"]


class Settings(ElasticParameters):
    """What may be set; see DeadlineParameters."""

    place: PlaceName = Field(
        "pack-apart",
        description="which nodes replicas go to; count looks at totals only. Jobs on nodes of their own have idle CPU "
        "beside them",
    )
    min_gain: float = Field(0.1, ge=0, lt=1, description="least relative gain in speed for which a running job grows")
    sample_points: int = Field(
        0, ge=0, le=MAX_ENTRIES, description="sizes measured before a job starts (simulation without oracle)"
    )
    stop_cooldown_s: Seconds = Field(
        60.0,
        description="least time from a stop of a job to its resumption, and from that to its next stop: what is known "
        "of a job changes when it stops, and without this two could take each other's place again and again",
    )
    pause_s: Seconds = Field(1.0, description="what a start or a change of size is expected to stop training for")
    prepare_cpu_s: Seconds = Field(
        12.0,
        description="CPU time of starting one process of a larger size, at the pace of what its replicas request: "
        "until it has started the job trains as it is, at half its speed",
    )
    sizes: Literal["all", "front", "doublings"] = Field(
        "all",
        description="sizes that a job may get: all worker counts, with parameter servers those on the way of the best "
        "next one; front: with these all that no cheaper one is as fast as; or the least size times a power of two",
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
    speed_power: float = Field(
        1.0,
        gt=0,
        le=1,
        description="beside deadlines, speed counts to this power: below 1 more jobs get some of the rest",
    )
    left_power: float = Field(
        1.0,
        ge=0,
        le=1,
        description="beside deadlines, the time left counts to this power: 1 shortest first, 0 all alike",
    )
    ageing: bool = Field(True, description="beside deadlines, a job counts more the longer it is there")
    start: Literal["least", "declared"] = Field(
        "least", description="the size that a job of unknown speed starts with, where there is room"
    )
    lend_cpu: bool = Field(True, description="idle CPU of nodes is lent in place, as under kips")
    most_planned: int = Field(
        400, ge=1, le=MAX_ENTRIES * 100, description="waiting jobs, and running ones, that one round looks at"
    )
