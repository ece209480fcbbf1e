"""Timeline: the free capacity over future time slots, in which a job reserves the smallest size with which it meets its
deadline."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elastic_tfjob.scheduling.profiles.deadline.curves import Curve, Floats
from elastic_tfjob.scheduling.resources import Resources

__all__ = ["Booking", "Need", "Timeline"]

FIRST_S: Final = 10.0
RATIO: Final = 1.1
"""Slots end at the deadlines and at times that grow by this factor from the first slot, so that capacity released by a
finished job can be used soon."""
MOST_SLOTS: Final = 320
"""The maximum number of slots. With more deadlines only some of them end a slot; a job's last slot is then used up to
its deadline."""
ROUNDING: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Need:
    """The remaining work of a job: `steps_left` steps, due `by_s` seconds from now. The job does not train for
    `delay_s`, and for another `pause_s` if its size is not row `current` of its curve. A larger size takes `start_s` to
    start; meanwhile the job trains at half its speed, since the replicas that stay also start their next program."""

    steps_left: float
    by_s: float
    delay_s: float = 0.0
    pause_s: float = 0.0
    current: int = 0
    start_s: float = 0.0

    def steps(self, curve: Curve) -> Floats:
        """By row of the curve, the remaining steps plus the steps that the job would do during its pauses."""
        rates, now = curve.rates, self.current
        steps: Floats = self.steps_left + (self.delay_s + self.pause_s) * rates
        if now:
            steps[now] = self.steps_left + self.delay_s * rates[now]
            steps[now + 1 :] += self.start_s * (rates[now + 1 :] - rates[now] / 2)
        return steps

    def lasts_s(self, curve: Curve, row: int) -> float:
        """Seconds until the end at this row."""
        rates, now = curve.plain.rates, self.current
        if row == now:
            return self.delay_s + self.steps_left / rates[row]
        started = self.start_s * (rates[row] - rates[now] / 2) if 0 < now < row else 0.0
        return self.delay_s + self.pause_s + (self.steps_left + started) / rates[row]

    def least_s(self, curve: Curve) -> float:
        """Seconds until the end at the best size."""
        return min((self.lasts_s(curve, row) for row in range(1, len(curve.plain.rates))), default=inf)


@dataclass(frozen=True, slots=True)
class Booking:
    """Capacity reserved for a job: the row of its curve in the first slot, the largest row, the resources that it
    takes, and the area (share of the cluster times seconds)."""

    first: int
    cap: int
    taken: tuple[tuple[int, Floats], ...]
    area: float


class Timeline:
    """The free capacity over time: `free` by resource (columns as in Resources) and slot. Times are seconds from
    now."""

    def __init__(self, free: Resources, deadlines: Iterable[float]) -> None:
        ends = np.unique(np.array([d for d in deadlines if 0 < d < inf], dtype=np.float64))
        horizon = float(ends[-1]) if len(ends) else FIRST_S
        steps = FIRST_S * RATIO ** np.arange(np.ceil(np.log(max(horizon, FIRST_S) / FIRST_S) / np.log(RATIO)) + 1)
        spare = max(1, MOST_SLOTS - len(steps))
        if len(ends) > spare:
            ends = ends[np.linspace(0, len(ends) - 1, spare).round().astype(np.int64)]
        edges = np.unique(np.concatenate([steps[steps < horizon], ends, [horizon]]))
        self.starts: Floats = np.concatenate([[0.0], edges[:-1]])
        self.widths: Floats = edges - self.starts
        self.free: Floats = np.repeat(np.array(free, dtype=np.float64)[:, None], len(edges), axis=1)

    def hold(self, demand: Resources, until_s: float, times: int = 1) -> None:
        """Subtract `times` the demand from the free capacity from now until `until_s` (times -1: add it), at least in
        the first slot."""
        slots = max(1, int(np.searchsorted(self.starts, until_s)))
        self.free[:, :slots] -= times * np.array(demand, dtype=np.float64)[:, None]

    def book(self, curve: Curve, need: Need, *, mixed: bool = False) -> Booking | None:
        """Reserve capacity as early as possible, with the smallest maximum row with which the job meets its deadline.
        With `mixed`, the job shrinks to the row below as soon as it meets its deadline with that: this takes less
        capacity, and the job ends at its deadline. None: the free capacity is not sufficient."""
        slots = int(self.starts.searchsorted(need.by_s))
        if not slots:
            return None
        rows = len(curve.rates) - 1
        widths = self.widths[:slots]
        if self.starts[slots - 1] + widths[-1] > need.by_s:
            widths = widths.copy()
            widths[-1] = need.by_s - self.starts[slots - 1]
        fits = self._fits(curve, slots)
        time_at = np.bincount(fits, weights=widths, minlength=rows + 1)
        rates = curve.rates
        above = time_at[::-1].cumsum()[::-1]
        made = rates * above
        made[1:] += (rates * time_at).cumsum()[:-1]
        steps = need.steps(curve)
        enough = made >= steps * (1 - 1e-12)
        enough[0] = False
        cap = int(enough.argmax())
        if not enough[cap]:
            return None
        used, goal = np.minimum(fits, cap), steps[cap]
        below = cap - 1 if mixed else 0
        low = np.minimum(used, below)
        if below:
            # The job pauses once more when it shrinks.
            goal = min(goal + need.pause_s * rates[below], made[cap]) - made[below]
        done = ((rates[used] - rates[low]) * widths).cumsum()
        last = min(int(done.searchsorted(goal * (1 - 1e-12))), slots - 1)
        part = np.zeros(slots)
        part[:last] = 1.0
        before = done[last - 1] if last else 0.0
        part[last] = min(1.0, (goal - before) / max(done[last] - before, 1e-300)) if last or below else 1.0
        if not below:
            used, low, part, widths = used[: last + 1], low[: last + 1], part[: last + 1], widths[: last + 1]
        # The unused part of the job's last slot is released by time, without the part beyond its deadline.
        parts = widths / self.widths[: len(widths)]
        taken = tuple((column, _between(curve.demand[:, column], low, used, part) * parts) for column in curve.columns)
        self._add(taken, -1)
        area = float(_between(curve.share, low, used, part) @ widths)
        return Booking(int(used[0] if part[0] else low[0]), cap, taken, area)

    def _fits(self, curve: Curve, slots: int) -> NDArray[np.int64]:
        """The largest row that fits the free capacity, by slot."""
        room = self.free[:, :slots] + ROUNDING
        fits: NDArray[np.int64] | None = None
        for column in curve.columns:
            there = curve.demand[1:, column].searchsorted(room[column], side="right")
            fits = there if fits is None else np.minimum(fits, there, out=fits)
        return np.full(slots, len(curve.rates) - 1) if fits is None else fits

    def release(self, booking: Booking) -> None:
        self._add(booking.taken, 1)

    def retake(self, booking: Booking) -> None:
        self._add(booking.taken, -1)

    def _add(self, taken: tuple[tuple[int, Floats], ...], sign: int) -> None:
        for column, each in taken:
            self.free[column, : len(each)] += sign * each


def _between(values: Floats, low: NDArray[np.int64], high: NDArray[np.int64], part: Floats) -> Floats:
    """By slot, the value of the row `high` for a part of the slot, and of the row `low` for the rest."""
    return values[low] + (values[high] - values[low]) * part
