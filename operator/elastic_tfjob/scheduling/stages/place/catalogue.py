"""Placements by the names that a profile's parameters give them."""

from typing import Literal

from elastic_tfjob.scheduling.profile import Place
from elastic_tfjob.scheduling.stages.place.apart import Apart
from elastic_tfjob.scheduling.stages.place.best_fit import BestFit
from elastic_tfjob.scheduling.stages.place.consolidate import Consolidate
from elastic_tfjob.scheduling.stages.place.count import CountOnly
from elastic_tfjob.scheduling.stages.place.even import EvenSplit
from elastic_tfjob.scheduling.stages.place.pack import Pack, PackApart
from elastic_tfjob.scheduling.stages.place.spread import Spread

PlaceName = Literal["count", "consolidate", "best-fit", "spread", "even", "pack", "apart", "pack-apart"]

PLACES: dict[PlaceName, Place] = {
    "count": CountOnly(),
    "consolidate": Consolidate(),
    "best-fit": BestFit(),
    "spread": Spread(),
    "even": EvenSplit(),
    "pack": Pack(),
    "apart": Apart(),
    "pack-apart": PackApart(),
}
