"""The parameters of specon."""

from pydantic import Field

from elastic_tfjob.scheduling.parameters import ProfileParameters, Seconds
from elastic_tfjob.scheduling.stages.place.catalogue import PlaceName

__all__ = ["Settings"]


class Settings(ProfileParameters):
    """What may be set; see SpeconParameters."""

    place: PlaceName = Field("spread", description="which nodes replicas go to; count looks at totals only")
    interval_s: Seconds = Field(10.0, description="longest time between two rounds; 0: only when something changes")
    published: bool = Field(False, description="SpeCon as published: converging jobs move away, and nothing else")
    alpha: float = Field(
        0.1, gt=0, lt=1, description="published: a loss that falls slower than this part of its peak is a slow reading"
    )
    period_s: Seconds = Field(30.0, description="published: least time between two moves")
    moves: int = Field(2, ge=0, le=100, description="most moves of one job; published: 1 whatever stands here")
    times: float = Field(4.0, ge=0, le=1000, description="a move must save, and leave to do, this times what it costs")
    move_s: Seconds = Field(15.0, description="what a move is expected to cost a job, in seconds of training")
    idle: float = Field(0.25, gt=0, le=1, description="least part of a node's CPU that is idle where a replica goes")
    floor: float = Field(
        0.2, ge=0, le=1, description="part of an equal share of a crowded node's CPU that each job keeps"
    )
    ahead: float = Field(
        0.75, gt=0, lt=1, description="part of the rest that the first job gets; the next gets it of what is left"
    )
    critical: float = Field(
        1.3,
        ge=0,
        le=1000,
        description="a job that alone needs this times what the cluster needs for all goes first; 0: none does",
    )
