"""Aryl: nodes on loan from an inference pool, and elastic jobs that use what others leave (arXiv 2202.07896, Lyra)."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from elastic_tfjob.scheduling.parameters import CostParameters, Seconds, Stages, needs
from elastic_tfjob.scheduling.profile import Need, Order
from elastic_tfjob.scheduling.profiles.aryl.admit import admit
from elastic_tfjob.scheduling.profiles.aryl.grow import give_back, grow
from elastic_tfjob.scheduling.profiles.aryl.tails import tails_view
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.stages.lend.offered import Reclaim
from elastic_tfjob.scheduling.stages.order.fifo import Fifo
from elastic_tfjob.scheduling.stages.order.sjf import AgedShortestFirst
from elastic_tfjob.scheduling.stages.place.catalogue import PlaceName
from elastic_tfjob.scheduling.toolkit.cost import ChangeCosts

__all__ = ["ArylParameters", "TwoPhases"]


@dataclass(frozen=True, slots=True)
class TwoPhases:
    """Base demands first, then flexible replicas on what is left. Where a base took room of flexible replicas, once
    more: a job that shrank may have given up more than was needed. `scaling` false: no job grows or shrinks. Nor does
    a job whose rescale `costs` more than it brings, which Aryl leaves open."""

    backfill: bool = True
    scaling: bool = True
    costs: ChangeCosts = field(default_factory=ChangeCosts)

    def __call__(self, round_: Round) -> None:
        tails = round_.snapshot.view("tails", tails_view)
        for job in (round_.job(key) for key in round_.changes):
            tails.hold(job, round_.placement(job))
        while donors := admit(round_, tails, self.costs, backfill=self.backfill, shrinks=self.scaling):
            give_back(round_, tails, donors)
        if self.scaling:
            grow(round_, tails, self.costs)
        tails.restore()


class ArylParameters(CostParameters):
    """Aryl: borrows nodes from an inference pool; shortest job first, and what is left goes to elastic jobs."""

    place: PlaceName = Field("apart", description="which nodes replicas go to; count looks at totals only")
    oracle: bool = Field(True, description="the policy is told the true duration and speed (simulation only)")
    lend: Literal["none", "offered"] = Field("offered", description="borrow nodes that the inference pool offers")
    reclaim: Reclaim = Field(
        "search",
        description="with lend, which nodes go back: the first; or those without jobs, then those whose jobs can "
        "shrink, then by least preemption cost, fewest jobs, a search for the fewest stops, or at random",
    )
    cooldown_s: Seconds = Field(60.0, description="least time between two rescales of one job")
    min_gain: float = Field(0.1, ge=0, lt=1, description="least relative gain in speed for which a running job grows")
    order: Literal["sjf", "fifo"] = Field("sjf", description="shortest job first, or by arrival")
    patience: float = Field(
        10.0,
        ge=1,
        le=1e6,
        description="with sjf, a job that came so many times its own run time ago (at least a day) goes first",
    )
    backfill: bool = Field(True, description="jobs behind one that does not fit may start")
    scaling: bool = Field(True, description="elastic jobs grow beyond their minimum, and shrink where others wait")

    def _needs(self) -> Iterable[Need]:
        """Without scaling nobody is resized, nor where a node goes back: it would not grow again."""
        return (need for need in super()._needs() if self.scaling or need != "resize")

    def stages(self) -> Stages:
        order: Order = AgedShortestFirst(patience=self.patience) if self.order == "sjf" else Fifo()
        declared: list[Need] = ["stop"]
        if self.lend == "offered":
            declared.append("loans")
        if self.scaling:
            declared.append("resize")
        if self.order == "sjf" or self.scaling:  # who grows is chosen by the time that it has left
            declared += ["duration", "speed"]
        return Stages(order, (TwoPhases(self.backfill, self.scaling, self.costs),), needs(*declared))
