"""From a profile's parameters to its stages."""

from elastic_tfjob.api.profiles import (
    DrfParameters,
    EdfParameters,
    ElasticParameters,
    FifoBackfillParameters,
    FixedParameters,
    KipsParameters,
    LasParameters,
    OptimusParameters,
    PlaceName,
    ProfileParameters,
    SjfBackfillParameters,
    SjfParameters,
    SrtfParameters,
    TetrisParameters,
)
from elastic_tfjob.scheduling.profile import Allocate, Order, Place, Profile
from elastic_tfjob.scheduling.stages.allocate.drf import DominantResourceFairness
from elastic_tfjob.scheduling.stages.allocate.edf import GreedyInOrder
from elastic_tfjob.scheduling.stages.allocate.fixed import FixedSize, Preemptive
from elastic_tfjob.scheduling.stages.allocate.kips import DynamicAdjustment
from elastic_tfjob.scheduling.stages.allocate.optimus import MarginalGain
from elastic_tfjob.scheduling.stages.allocate.tetris import Tetris
from elastic_tfjob.scheduling.stages.lend.none import NoLoans
from elastic_tfjob.scheduling.stages.lend.offered import BorrowOffered
from elastic_tfjob.scheduling.stages.migrate.none import NoMigration
from elastic_tfjob.scheduling.stages.order.edf import EarliestDeadlineFirst
from elastic_tfjob.scheduling.stages.order.fifo import Fifo
from elastic_tfjob.scheduling.stages.order.las import LeastAttainedService
from elastic_tfjob.scheduling.stages.order.sjf import ShortestJobFirst
from elastic_tfjob.scheduling.stages.order.srtf import ShortestRemainingTimeFirst
from elastic_tfjob.scheduling.stages.place.best_fit import BestFit
from elastic_tfjob.scheduling.stages.place.consolidate import Consolidate
from elastic_tfjob.scheduling.stages.place.count import CountOnly
from elastic_tfjob.scheduling.stages.place.even import EvenSplit
from elastic_tfjob.scheduling.stages.place.pack import Pack
from elastic_tfjob.scheduling.stages.place.spread import Spread

PLACES: dict[PlaceName, Place] = {
    "count": CountOnly(),
    "consolidate": Consolidate(),
    "best-fit": BestFit(),
    "spread": Spread(),
    "even": EvenSplit(),
    "pack": Pack(),
}


def build(name: str, parameters: ProfileParameters) -> Profile:
    """The profile `name` with these parameters."""
    order, allocate = _stages(parameters)
    elastic = parameters if isinstance(parameters, ElasticParameters) else ElasticParameters(sample_points=0)
    return Profile(
        name=name,
        lend=BorrowOffered() if parameters.lend == "offered" else NoLoans(),
        order=order,
        allocate=allocate,
        place=PLACES[parameters.place],
        migrate=NoMigration(),
        interval_s=parameters.interval_s,
        on_change=parameters.on_change,
        oracle=parameters.oracle,
        cooldown_s=elastic.cooldown_s,
        min_gain=elastic.min_gain,
        repack=elastic.repack,
        sample_points=elastic.sample_points,
        adjusts_cpu=isinstance(parameters, KipsParameters),
        learns=isinstance(parameters, ElasticParameters),
    )


def _stages(parameters: ProfileParameters) -> tuple[Order, Allocate]:
    match parameters:
        case EdfParameters(size=size):
            return EarliestDeadlineFirst(), GreedyInOrder(size)
        case DrfParameters(on_full=on_full):
            return Fifo(), DominantResourceFairness(on_full)
        case TetrisParameters(shortness_weight=weight):
            return ShortestRemainingTimeFirst(), Tetris(weight)
        case OptimusParameters(per_resource=per_resource, on_full=on_full):
            return Fifo(), MarginalGain(per_resource, on_full)
        case KipsParameters():
            return Fifo(), DynamicAdjustment(parameters)
        case SrtfParameters():
            return ShortestRemainingTimeFirst(), Preemptive()
        case LasParameters(thresholds=thresholds, within=within, promote_knob=knob):
            return LeastAttainedService(thresholds, within, knob), Preemptive()
        case SjfBackfillParameters():
            return ShortestJobFirst(), FixedSize(backfill=True)
        case SjfParameters():
            return ShortestJobFirst(), FixedSize()
        case FifoBackfillParameters() | FixedParameters():
            return Fifo(), FixedSize(backfill=True)
        case _:
            return Fifo(), FixedSize()
