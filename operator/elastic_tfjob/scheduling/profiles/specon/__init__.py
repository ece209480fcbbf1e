"""Who is nearly done goes first on crowded nodes, and moves go to idle CPU; or SpeCon as published.

SpeCon (Mao et al., arXiv 2010.11307) moves jobs whose loss has converged away from those whose loss falls fast. See
docs/designs/specon.md.
"""

from elastic_tfjob.scheduling.parameters import Stages, needs
from elastic_tfjob.scheduling.profiles.specon.migrate import Migrate
from elastic_tfjob.scheduling.profiles.specon.settings import Settings
from elastic_tfjob.scheduling.profiles.specon.weights import Weights, take_back
from elastic_tfjob.scheduling.stages.order.fifo import Fifo
from elastic_tfjob.scheduling.toolkit.balance import Balance
from elastic_tfjob.scheduling.toolkit.declared_size import FixedSize

__all__ = ["SpeconParameters"]


class SpeconParameters(Settings):
    """CPU of crowded nodes by remaining work, and moves to idle CPU; or SpeCon as published."""

    def stages(self) -> Stages:
        start = FixedSize(backfill=True)
        if self.published:
            return Stages(Fifo(), (start, Migrate(self.alpha, self.period_s)), needs("loss", "move"), drifts=True)
        balance = Balance(self.moves, self.times, self.move_s, self.idle)
        steps = (take_back, start, balance, Weights(self))
        return Stages(Fifo(), steps, needs("cpu", "use", "service", "move"), drifts=True)
