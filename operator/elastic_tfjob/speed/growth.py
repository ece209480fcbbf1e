"""How fast the training loss falls, per step: a job that is slowed down does not look like one that converges. Pure.

SpeCon (Mao et al., CLOUD'23, section 3) sorts jobs by the growth of their loss relative to its peak; what it needs is
here, live from what programs report and in a simulation from each job's loss curve.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, isinf, isnan
from typing import Final, Literal

__all__ = ["NOT_REPORTED", "READING_S", "RECENT", "Growth", "LossState", "state_of"]

LossState = Literal["absent", "finite", "nan", "inf"]
"""Of the last report: it had no loss, one that is a number, none that is one, or one beyond all bounds."""

READING_S: Final = 10.0
"""Two readings are so many seconds apart, or more: a loss jitters from step to step."""
RECENT: Final = 5
"""Readings that are kept."""
_MOST: Final = 1e300
"""A growth that is believed, and with which can be calculated."""
_SMOOTHING: Final = 0.5
"""The part of the newest reading in the mean."""


def state_of(loss: float | None) -> LossState:
    """What a loss is."""
    if loss is None:
        return "absent"
    if isnan(loss):
        return "nan"
    return "inf" if isinf(loss) else "finite"


@dataclass(frozen=True, slots=True)
class Growth:
    """`recent`: (steps, loss) of the last readings, the oldest first. `per_step`: by how much the loss falls in a step,
    an exponential mean over readings, below 0 where it rises; `peak`: the largest of those means. `readings`: how many
    told a growth. `at_s`: when the last one was taken."""

    state: LossState = "absent"
    recent: tuple[tuple[float, float], ...] = ()
    per_step: float = 0.0
    peak: float = 0.0
    readings: int = 0
    at_s: float = -inf

    @property
    def loss(self) -> float | None:
        """The last finite one."""
        return self.recent[-1][1] if self.recent else None

    @property
    def of_peak(self) -> float | None:
        """The growth as a part of its peak: 1 at the peak, towards 0 as the job converges. None: not known yet."""
        return max(0.0, self.per_step) / self.peak if self.readings and self.peak > 0 else None

    @property
    def rises(self) -> bool:
        """Whether each of the last readings, as many as are kept, was above the one before."""
        return len(self.recent) == RECENT and all(a[1] < b[1] for a, b in pairwise(self.recent))

    def read(self, step: float, loss: float | None, at_s: float, state: LossState | None = None) -> "Growth":
        """After a report of this loss at this step. `state` says what the loss is where that is known otherwise. One
        that is no number changes nothing but the state; so does one that comes too early, or tells of no new step.
        Where the step fell (the job went on from a checkpoint) the next growth is counted from there."""
        now = state_of(loss) if state is None else state
        seen = self if now == self.state else replace(self, state=now)
        if now != "finite" or loss is None or (self.recent and at_s - self.at_s < READING_S):
            return seen
        last = self.recent[-1] if self.recent else None
        if last is None or step < last[0]:
            return replace(seen, recent=((step, loss),), at_s=at_s)
        if step == last[0]:
            return seen
        growth = min(max((last[1] - loss) / (step - last[0]), -_MOST), _MOST)
        mean = growth if not self.readings else _SMOOTHING * growth + (1 - _SMOOTHING) * self.per_step
        recent = (*self.recent, (step, loss))[-RECENT:]
        return Growth("finite", recent, mean, max(self.peak, mean), self.readings + 1, at_s)


NOT_REPORTED: Final = Growth()
