"""Moves to idle CPU alone: what `specon` does without weights, and without looking at the loss."""

from pydantic import Field

from elastic_tfjob.scheduling.parameters import ProfileParameters, Seconds, Stages, needs
from elastic_tfjob.scheduling.stages.order.fifo import Fifo
from elastic_tfjob.scheduling.stages.place.catalogue import PlaceName
from elastic_tfjob.scheduling.toolkit.balance import Balance
from elastic_tfjob.scheduling.toolkit.declared_size import FixedSize

__all__ = ["RebalanceParameters"]


class RebalanceParameters(ProfileParameters):
    """Declared sizes by arrival; replicas move from crowded nodes to idle CPU where that pays."""

    place: PlaceName = Field("spread", description="which nodes replicas go to; count looks at totals only")
    interval_s: Seconds = Field(10.0, description="longest time between two rounds; 0: only when something changes")
    moves: int = Field(2, ge=0, le=100, description="most moves of one job")
    times: float = Field(4.0, ge=0, le=1000, description="a move must save, and leave to do, this times what it costs")
    move_s: Seconds = Field(15.0, description="what a move is expected to cost a job, in seconds of training")
    idle: float = Field(0.25, gt=0, le=1, description="least part of a node's CPU that is idle where a replica goes")

    def stages(self) -> Stages:
        steps = (FixedSize(backfill=True), Balance(self.moves, self.times, self.move_s, self.idle))
        return Stages(Fifo(), steps, needs("use", "service", "move"), drifts=True)
