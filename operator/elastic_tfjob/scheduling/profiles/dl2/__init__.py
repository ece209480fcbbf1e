"""DL2: sizes by a learned policy, one small network for all jobs, which is trained in simulation (`train-policy`)."""

from pydantic import Field

from elastic_tfjob.scheduling.parameters import Seconds, Stages, TryingParameters, needs
from elastic_tfjob.scheduling.profiles.dl2.from_file import FromFile
from elastic_tfjob.scheduling.stages.order.fifo import Fifo
from elastic_tfjob.scheduling.stages.place.catalogue import PlaceName
from elastic_tfjob.scheduling.toolkit.try_sizes import TrySizes

__all__ = ["Dl2Parameters"]

SLOT_S = 300.0
"""DL2's testbed had slots of this length."""


class Dl2Parameters(TryingParameters):
    """DL2: sizes by a learned policy; as `hull` where its weights cannot be used."""

    place: PlaceName = Field("even", description="which nodes replicas go to; count looks at totals only")
    interval_s: Seconds = Field(SLOT_S, gt=0, description="length of a slot: sizes are decided anew at least so often")
    cooldown_s: Seconds = Field(
        SLOT_S, description="least time between two rescales of one job; starts and repairs do not wait for it"
    )
    weights: str = Field("", max_length=4096, description="a .npz file of train-policy; empty: the one that is shipped")

    @property
    def files(self) -> tuple[str, ...]:
        return (self.weights,) if self.weights else ()

    def stages(self) -> Stages:
        return Stages(Fifo(), (FromFile(self.weights), TrySizes(self.try_sizes)), needs("speed", "stop"), drifts=True)
