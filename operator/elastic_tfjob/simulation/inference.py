"""A second pool of nodes that serves inference, with a daily swing, and what it can lend."""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import LoanState, Node, Pool

DAY_S = 86400.0
HOUR_S = 3600.0
INFERENCE = "inference"
"""What its nodes call their pool."""


@dataclass(frozen=True, slots=True)
class InferencePool:
    """`nodes` nodes of `each`, whose accelerators run `accelerator_speed` as fast as the training pool's.

    Demand follows u(t) = middle + swing cos(2 pi (t - peak) / day) plus AR(1) noise, less on weekends, within [0.40,
    0.97]: with the defaults 42 to 95 %, the peak in the evening, as Aryl reports for its inference cluster. Every
    `period_s` it needs ceil(nodes (u + headroom)) nodes for itself and offers the rest, the last ones first.
    """

    nodes: int
    each: Resources
    accelerator_speed: float = 1.0
    middle: float = 0.685
    swing: float = 0.265
    peak_s: float = 21 * HOUR_S
    noise: float = 0.02
    weekend: float = 0.95
    headroom: float = 0.02
    period_s: float = 300.0

    def build(self) -> list[Node]:
        """The pool before it offers anything."""
        width = len(str(max(self.nodes - 1, 0)))
        return [
            Node(
                f"inference-{i:0{width}}",
                self.each,
                self.each,
                pool=INFERENCE,
                accelerator_speed=self.accelerator_speed,
                loan="busy",
            )
            for i in range(self.nodes)
        ]

    def utilisation(self, t: float, disturbance: float = 0.0) -> float:
        """The share of the pool that serves requests at `t`, where 0 is midnight of a Monday."""
        u = self.middle + self.swing * math.cos(2 * math.pi * (t - self.peak_s) / DAY_S) + disturbance
        if (t // DAY_S) % 7 >= 5:
            u *= self.weekend
        return min(0.97, max(0.40, u))

    def spare(self, t: float, disturbance: float = 0.0) -> int:
        """How many nodes it can do without at `t`."""
        return self.nodes - min(self.nodes, math.ceil(self.nodes * (self.utilisation(t, disturbance) + self.headroom)))


class Demand:
    """The pool's demand as time goes on; one step of noise per period."""

    def __init__(self, pool: InferencePool, seed: int) -> None:
        self.pool = pool
        self._random = random.Random(f"inference-{seed}")
        self._disturbance = 0.0

    def step(self, t: float, nodes: Mapping[str, Node]) -> tuple[dict[str, Node], Pool]:
        """`nodes` with those that the pool has not lent offered or busy, as the demand at `t` has it; and how many of
        the others it wants back."""
        self._disturbance = 0.9 * self._disturbance + self._random.gauss(0.0, self.pool.noise)
        mine = [node for node in nodes.values() if node.pool == INFERENCE]
        kept = [node for node in mine if node.loan != "loaned"]
        spare = self.pool.spare(t, self._disturbance) - (len(mine) - len(kept))
        after = dict(nodes)
        for i, node in enumerate(kept):
            loan: LoanState = "offered" if i >= len(kept) - spare else "busy"
            if node.loan != loan:
                after[node.name] = replace(node, loan=loan)
        return after, Pool(wanted=max(0, -spare), spare=max(0, spare))
