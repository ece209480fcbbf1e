"""Reclaims that are drawn, and the fewest stops that each can do with: an integer program, which is for tests alone."""

import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from elastic_tfjob.scheduling.lend import Guest
from elastic_tfjob.scheduling.snapshot import WORKER


class Reclaim(NamedTuple):
    """So many of the nodes `lent` are wanted back."""

    lent: Sequence[str]
    guests: Sequence[Guest]
    wanted: int


def rigid(key: str, *nodes: str, stops: int = 0, stoppable: bool = True) -> Guest:
    return Guest(key, {WORKER: nodes}, {WORKER: len(nodes)}, stoppable, stops)


def drawn(seed: int, *, hard: bool, size: int = 14) -> Reclaim:
    """Three jobs for each of `size` nodes of 8 accelerators, of which those run that fit. `hard`: 1 to 4 accelerators
    each, half of them across two nodes; else, as in simulations, mostly small ones, and a few on whole nodes."""
    draw = random.Random(seed)
    nodes = [f"n{k:02}" for k in range(size)]
    free = dict.fromkeys(nodes, 8)
    guests = []
    for k in range(3 * size):
        wide = draw.randint(1, 4) if hard else draw.choice([1, 1, 1, 2, 4, 8, 16])
        spread = min(2, wide) if hard and draw.random() < 0.5 else max(1, wide // 8)
        there = draw.sample(nodes, spread)
        each = [there[i * spread // wide] for i in range(wide)]
        if all(free[n] >= each.count(n) for n in there):
            for n in each:
                free[n] -= 1
            guests.append(rigid(f"j{k}", *each))
    return Reclaim(nodes, guests, 3 + seed % 4)


def without(guest: Guest) -> frozenset[str]:
    """The nodes that the job cannot do without: replicas leave from the highest index, so those of its minimum."""
    assert any(guest.minimum.values()), "a job keeps at least one replica"
    return frozenset(name for type_, names in guest.placement.items() for name in names[: guest.minimum.get(type_, 0)])


def fewest_stops(reclaim: Reclaim) -> int:
    """The optimum. A variable for each node, whether it goes, and one for each job, whether it is stopped, which is at
    least that of each node it cannot do without; as many nodes go as are wanted, and the fewest jobs are stopped."""
    # Here, since all processes of a test run import this file, and SciPy takes most of a second.
    from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415
    from scipy.sparse import coo_array  # noqa: PLC0415

    index = {name: k for k, name in enumerate(reclaim.lent)}
    pairs = [
        (len(index) + j, index[name])
        for j, guest in enumerate(reclaim.guests)
        for name in sorted(without(guest) & index.keys())
    ]
    if not pairs:
        return 0
    stays = {node for job, node in pairs if not reclaim.guests[job - len(index)].stoppable}
    size = len(index) + len(reclaim.guests)
    rows = np.repeat(np.arange(len(pairs)), 2)
    stops_with = coo_array((np.tile([1.0, -1.0], len(pairs)), (rows, np.array(pairs).ravel())), (len(pairs), size))
    goes = np.arange(size) < len(index)
    found = milp(
        (~goes).astype(float),
        integrality=goes.astype(float),
        bounds=Bounds(0.0, np.array([float(k not in stays) for k in range(size)])),
        constraints=[
            LinearConstraint(stops_with.tocsr(), 0.0, np.inf),
            LinearConstraint(goes[None].astype(float), reclaim.wanted, reclaim.wanted),
        ],
    )
    assert found.success, found.message
    fewest: int = round(found.fun)
    return fewest
