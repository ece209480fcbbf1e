"""First in, first out, with and without backfill."""

from elastic_tfjob.scheduling.parameters import ProfileParameters, Stages, needs
from elastic_tfjob.scheduling.stages.order.fifo import Fifo
from elastic_tfjob.scheduling.toolkit.declared_size import FixedSize


class FifoParameters(ProfileParameters):
    """First in, first out; the first job that does not fit holds back all behind it."""

    def stages(self) -> Stages:
        return Stages(Fifo(), (FixedSize(),), needs())


class FifoBackfillParameters(ProfileParameters):
    """First in, first out; what fits starts."""

    def stages(self) -> Stages:
        return Stages(Fifo(), (FixedSize(backfill=True),), needs())
