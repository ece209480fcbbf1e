"""Hull: replicas go where they add most speed, looking past sizes that help little to larger ones that help much."""

from typing import Literal

from pydantic import Field

from elastic_tfjob.scheduling.parameters import Stages, TryingParameters, needs
from elastic_tfjob.scheduling.stages.order.fifo import Fifo
from elastic_tfjob.scheduling.stages.place.catalogue import PlaceName
from elastic_tfjob.scheduling.toolkit.hull_rule import HullRule
from elastic_tfjob.scheduling.toolkit.try_sizes import TrySizes


class HullParameters(TryingParameters):
    """Hull: replicas go where they add most speed, looking past sizes that help little to larger ones."""

    place: PlaceName = Field("even", description="which nodes replicas go to; count looks at totals only")
    per_resource: bool = Field(False, description="gain per dominant share instead of per replica")
    on_full: Literal["next", "stop"] = Field("next", description="when a size does not fit: try other jobs, or stop")

    def stages(self) -> Stages:
        return Stages(
            Fifo(), (HullRule(self.per_resource, self.on_full), TrySizes(self.try_sizes)), needs("speed", "stop")
        )
