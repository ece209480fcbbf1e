"""Free capacity over the time to come, and the least size with which a job is done by its deadline."""

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
"""The grid has the deadlines, and steps that grow by this from the first: when a job ends, others may take its room."""
MOST_SLOTS: Final = 320
"""Where there are more, only some of the deadlines are kept: a job's last slot is then used up to its deadline."""
ROUNDING: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Need:
    """What a job needs to be done: `left` steps, by `by_s` seconds from now. It trains nothing for `delay_s`, and for
    `pause_s` more where its size is not row `current` of its curve. A larger size than that takes `start_s` to start,
    and meanwhile the job trains as it is, at half its speed: the replicas that stay start their next program, too."""

    left: float
    by_s: float
    delay_s: float = 0.0
    pause_s: float = 0.0
    current: int = 0
    start_s: float = 0.0

    def steps(self, curve: Curve) -> Floats:
        """By row of the curve: steps it would make if it trained all the time, in which the pauses count as steps."""
        rates, now = curve.rates, self.current
        steps: Floats = self.left + (self.delay_s + self.pause_s) * rates
        if now:
            steps[now] = self.left + self.delay_s * rates[now]
            steps[now + 1 :] += self.start_s * (rates[now + 1 :] - rates[now] / 2)
        return steps

    def lasts_s(self, curve: Curve, row: int) -> float:
        """Seconds to its end at this row."""
        rates, now = curve.plain.rates, self.current
        if row == now:
            return self.delay_s + self.left / rates[row]
        started = self.start_s * (rates[row] - rates[now] / 2) if 0 < now < row else 0.0
        return self.delay_s + self.pause_s + (self.left + started) / rates[row]

    def least_s(self, curve: Curve) -> float:
        """Seconds to its end at the best size."""
        return min((self.lasts_s(curve, row) for row in range(1, len(curve.plain.rates))), default=inf)


@dataclass(frozen=True, slots=True)
class Booking:
    """What is set aside for a job: row of its curve in the first slot and at most, what it takes by resource, and the
    area (share of the cluster times seconds)."""

    first: int
    cap: int
    taken: tuple[tuple[int, Floats], ...]
    area: float


class Timeline:
    """`free` by resource (columns as in Resources) and slot. Times in seconds from now."""

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
        """Take this away (times -1: give it back) from now until then, in the first slot at least."""
        slots = max(1, int(np.searchsorted(self.starts, until_s)))
        self.free[:, :slots] -= times * np.array(demand, dtype=np.float64)[:, None]

    def book(self, curve: Curve, need: Need) -> Booking | None:
        """Set aside the least cap with which the job is done in time, as early as there is room; None where it is
        not."""
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
        used = np.minimum(fits, cap)
        done = (rates[used] * widths).cumsum()
        last = min(int(done.searchsorted(steps[cap] * (1 - 1e-12))), slots - 1)
        used = used[: last + 1]
        part = np.ones(last + 1)
        if last:
            before = done[last - 1]
            part[last] = min(1.0, (steps[cap] - before) / max(done[last] - before, 1e-300))
            # What it does not need of its last slot counts by time, but for the part that lies beyond its deadline.
            part[last] *= widths[last] / self.widths[last]
        taken = tuple((column, curve.demand[used, column] * part) for column in curve.columns)
        self._add(taken, -1)
        area = float(curve.share[used] * part @ self.widths[: last + 1])
        return Booking(int(used[0]), cap, taken, area)

    def _fits(self, curve: Curve, slots: int) -> NDArray[np.int64]:
        """The largest row for which there is room, by slot."""
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
