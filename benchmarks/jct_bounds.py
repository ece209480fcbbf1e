"""What mean job completion time no schedule is below, where jobs of several sizes share resources slot by slot.

Every resource has a price for each slot of time. A job alone, which pays for what it holds and for the time until it
ends, is then at its cheapest by some way of training; the sum of these costs over all jobs, less what is paid for all
that there is, is not above the sum of completion times of any schedule, whatever the prices (Lagrange). The schedule
may know all jobs in advance, change sizes at no cost at the start of each slot, and use speeds between two sizes.
Within a slot sizes stay, and what a job held that ends within it is free from the next slot on. Prices are then raised
and lowered by subgradients to bring the bound up.

What a job costs at least if it ends in slot e, at work `steps` and price m of a step, is for every m

    start of e - arrival + m steps - sum over slots t before e of L phi_t(m) + L min(1 - best_e(m), cheapest_e)

with L the length of a slot; best_t(m) the most that a second of slot t earns, over all sizes m rate(size) -
price_t(size); phi_t(m) the same over all sizes and none; and cheapest_t the price of the cheapest size. The last term
is the least of x + price_e(size) - m x rate(size) over the part x of slot e at which the job ends. After the last slot
all is free. tests/benchmarks/test_jct_bounds.py compares with all schedules of tiny inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Kind", "Training", "least_total_jct"]

Floats = NDArray[np.float64]
COARSE, FINE = 80, 800
"""So many prices of a step are tried while prices are looked for, and for the bound itself."""
PATIENCE = 12
"""After so many attempts that do not help, steps are halved."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Sizes of a job: what each holds, by resource, and steps per second."""

    demand: Sequence[Sequence[float]]
    rates: Sequence[float]


@dataclass(frozen=True, slots=True)
class Training:
    """A job: when it comes (s), its steps, and which kind it is."""

    at_s: float
    steps: float
    kind: int


def least_total_jct(
    jobs: Sequence[Training],
    kinds: Sequence[Kind],
    capacity: Sequence[float],
    *,
    slot_s: float,
    slots: int,
    reached_s: float,
    attempts: int = 300,
) -> float:
    """Seconds that the completion times of these jobs add up to at least. `slots` from time 0 on have prices;
    `reached_s` is the sum that some schedule reaches, which only guides the search."""
    problem = _Problem(jobs, kinds, np.array(capacity, dtype=np.float64), slot_s, slots)
    prices = np.zeros((slots, len(capacity)))
    best, best_prices, scale, worse = -np.inf, prices, 1.0, 0
    for _ in range(attempts):
        value, slope = problem.value(prices, COARSE)
        if value > best:
            best, best_prices, worse = value, prices, 0
        else:
            worse += 1
            if worse == PATIENCE:
                scale, worse, prices = scale / 2, 0, best_prices
                continue
        square = float((slope**2).sum())
        if reached_s <= value or square == 0:
            break
        prices = np.maximum(0.0, prices + scale * (reached_s - value) / square * slope)
    return max(problem.value(best_prices, FINE)[0], problem.value(np.zeros_like(prices), FINE)[0])


class _Problem:
    def __init__(
        self, jobs: Sequence[Training], kinds: Sequence[Kind], capacity: Floats, slot_s: float, slots: int
    ) -> None:
        self._jobs, self._slot_s, self._slots = jobs, slot_s, slots
        self._kinds = [_best(kind, capacity) for kind in kinds]
        self._of = [[job for job in jobs if job.kind == k] for k in range(len(kinds))]

    def value(self, prices: Floats, tried: int) -> tuple[float, Floats]:
        """The bound at these prices of whole resources, and how it changes with them."""
        length = self._slot_s
        total = -length * float(prices.sum())
        slope = np.full_like(prices, -length)
        for (demand, rates), jobs in zip(self._kinds, self._of, strict=True):
            if not jobs:
                continue
            # From what makes the fastest size just worth its time alone, to a hundred times as much.
            price = np.geomspace(0.01, 100.0, tried) / rates.max()
            costs = prices @ demand.T
            best, chosen = self._earned(costs, np.outer(price, rates))
            so_far = np.concatenate([np.zeros((1, tried)), length * np.cumsum(np.maximum(0.0, best), axis=0)])
            cheapest = costs.argmin(axis=1)
            least = costs[np.arange(len(costs)), cheapest][:, None]
            last = length * np.minimum(1.0 - best, least)
            # With which size a job goes on in each slot (-1: none), and with which it ends there.
            goes_on = np.where(best > 0, chosen, -1)
            ends = np.where(1.0 - best <= least, chosen, cheapest[:, None])
            for job in jobs:
                first = int(job.at_s // length)
                if first >= self._slots:
                    total += job.steps / rates.max()
                    continue
                gives = price * job.steps - (so_far[first:] - so_far[first])
                gives[:-1] += last[first:]
                gives[-1, price * rates.max() > 1.0 + 1e-12] = -np.inf
                at = gives.argmax(axis=1)
                cost = gives[np.arange(len(at)), at] + length * np.arange(first, self._slots + 1) - job.at_s
                end = int(cost.argmin())
                total += max(float(cost[end]), job.steps / rates.max())
                m, until = at[end], first + end
                sizes = goes_on[first:until, m]
                slope[first:until] += length * np.where(sizes[:, None] >= 0, demand[sizes], 0.0)
                if until < self._slots:
                    slope[until] += length * demand[ends[until, m]]
        return total, slope

    def _earned(self, costs: Floats, values: Floats) -> tuple[Floats, NDArray[np.int64]]:
        """The most that a second earns by slot and price of a step, and with which size."""
        earned = values[None, :, 0] - costs[:, None, 0]
        chosen = np.zeros(earned.shape, dtype=np.int64)
        for size in range(1, costs.shape[1]):
            found = values[None, :, size] - costs[:, None, size]
            better = found > earned
            earned[better] = found[better]
            chosen[better] = size
        return earned, chosen


def _best(kind: Kind, capacity: Floats) -> tuple[Floats, Floats]:
    """The sizes that fit and have none beside them which holds as little and is as fast; as parts of what there is."""
    demand, rates = np.array(kind.demand, dtype=np.float64) / capacity, np.array(kind.rates, dtype=np.float64)
    fits = (rates > 0) & (demand <= 1 + 1e-12).all(axis=1)
    demand, rates = demand[fits], rates[fits]
    if not len(rates):
        raise ValueError("a job that fits at no size never ends")
    keep = []
    for k in range(len(rates)):
        as_good = (demand <= demand[k]).all(axis=1) & (rates >= rates[k])
        better = as_good & ((demand < demand[k]).any(axis=1) | (rates > rates[k]))
        twin = bool((as_good & ~better)[:k].any())
        if not better.any() and not twin:
            keep.append(k)
    return demand[keep], rates[keep]
