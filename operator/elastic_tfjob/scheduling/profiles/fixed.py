"""What the Go training-operator does."""

from pydantic import Field

from elastic_tfjob.scheduling.parameters import ProfileParameters, Stages, needs
from elastic_tfjob.scheduling.stages.order.fifo import Fifo
from elastic_tfjob.scheduling.stages.place.catalogue import PlaceName
from elastic_tfjob.scheduling.toolkit.declared_size import FixedSize


class FixedParameters(ProfileParameters):
    """As upstream does: declared sizes by arrival, what fits starts, pods spread by kube-scheduler."""

    place: PlaceName = Field("spread", description="which nodes replicas go to; count looks at totals only")

    def stages(self) -> Stages:
        return Stages(Fifo(), (FixedSize(backfill=True),), needs())
