"""The parameters of elastic."""

from typing import Literal

from pydantic import Field

from elastic_tfjob.api.limits import MAX_ENTRIES
from elastic_tfjob.scheduling.parameters import SHARE_CPU, ElasticParameters, Seconds
from elastic_tfjob.scheduling.stages.lend.offered import Reclaim
from elastic_tfjob.scheduling.stages.place.catalogue import PlaceName

__all__ = ["Settings"]


class Settings(ElasticParameters):
    """What may be set; see ElasticProfileParameters."""

    place: PlaceName = Field("pack-apart", description="which nodes replicas go to; count looks at totals only")
    interval_s: Seconds = Field(15.0, description="longest time between two rounds; 0: only when something changes")
    cooldown_s: Seconds = Field(30.0, description="least time between two rescales of one job")
    min_gain: float = Field(0.1, ge=0, lt=1, description="least relative gain in speed for which a running job grows")
    sample_points: int = Field(
        0, ge=0, le=MAX_ENTRIES, description="sizes measured before a job starts (simulation without oracle)"
    )
    lend: Literal["none", "offered"] = Field("offered", description="borrow nodes that the inference pool offers")
    reclaim: Reclaim = Field(
        "search",
        description="with lend, which nodes go back: the first; or those without jobs, then those whose jobs can "
        "shrink, then by least preemption cost, fewest jobs, a search for the fewest stops, or at random",
    )
    pause_s: Seconds = Field(1.0, description="what a start or a change of size is expected to stop training for")
    settle_s: Seconds = Field(30.0, description="a first start is left alone so long before its speed is believed")
    keep: float = Field(
        1.0, ge=0, le=1000, description="how much more what a running job has is worth to it than the same to another"
    )
    speed_power: float = Field(
        0.5,
        gt=0,
        le=1,
        description="beside deadlines, speed counts to this power: below 1 more jobs get some of the rest",
    )
    left_power: float = Field(
        0.25,
        ge=0,
        le=1,
        description="beside deadlines, the time left counts to this power: 1 shortest first, 0 all alike",
    )
    share_cpu: bool = Field(True, description=SHARE_CPU)
    moves: int = Field(2, ge=0, le=100, description="most moves of one job from crowded nodes to idle CPU")
