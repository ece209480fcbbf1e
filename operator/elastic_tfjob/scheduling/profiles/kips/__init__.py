"""Dynamic resource adjustment: what is idle goes to jobs that use all they have, and comes back when others need it.

After Jeong and Yu (KIPS KTCCS 11(7), 2022), whose text is not public, and its nearest relative DRAGON (CLOSER'19).
"""

from elastic_tfjob.scheduling.parameters import Stages, needs
from elastic_tfjob.scheduling.profiles.kips.adjustment import Adjustment
from elastic_tfjob.scheduling.profiles.kips.admit import admit, guarantee, relieve
from elastic_tfjob.scheduling.profiles.kips.back import go_back
from elastic_tfjob.scheduling.profiles.kips.grow import grow
from elastic_tfjob.scheduling.profiles.kips.settings import Settings
from elastic_tfjob.scheduling.stages.order.fifo import Fifo
from elastic_tfjob.scheduling.toolkit.cpu_in_place import (
    boot,
    count_as_free,
    give_back_idle,
    give_back_used,
    grant,
    keep_for_leaving,
    raise_busy,
)
from elastic_tfjob.scheduling.toolkit.shared import sharing

__all__ = ["KipsParameters"]

STEPS = (
    count_as_free,
    relieve,
    guarantee,
    go_back,
    admit,
    keep_for_leaving,
    give_back_used,
    raise_busy,
    grow,
    boot,
    give_back_idle,
    grant,
)
"""In this order, each with what the steps before it left."""


class KipsParameters(Settings):
    """PS/worker affinity and dynamic adjustment (Jeong and Yu, 2022): idle CPU goes to who uses all it has."""

    def stages(self) -> Stages:
        steps = tuple(sharing(step, ("kips", self), lambda round_: Adjustment(round_, self)) for step in STEPS)
        told = needs("cpu", "use", "speed", "duration", "service")
        return Stages(Fifo(), steps, told, drifts=True, shares_cpu=self.share_cpu)
