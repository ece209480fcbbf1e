"""Growth: the decrease of the training loss per step. It is measured per step so that a slow job does not look
converged.

SpeCon (Mao et al., CLOUD'23, section 3) classifies jobs by the growth of their loss relative to its peak. This module
computes that value, in a live cluster from the programs' reports and in a simulation from each job's loss curve.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, isinf, isnan
from typing import Final, Literal

__all__ = ["NOT_REPORTED", "READING_S", "RECENT", "Growth", "LossState", "state_of"]

LossState = Literal["absent", "finite", "nan", "inf"]
"""The loss of the last report: missing, finite, NaN, or infinite."""

READING_S: Final = 10.0
"""The minimum number of seconds between two readings, since a loss jitters from step to step."""
RECENT: Final = 5
"""The number of readings that are kept."""
_MOST: Final = 1e300
"""The bound of a growth, so that calculations stay finite."""
_SMOOTHING: Final = 0.5
"""The weight of the newest reading in the mean."""


def state_of(loss: float | None) -> LossState:
    """The state of a reported loss."""
    if loss is None:
        return "absent"
    if isnan(loss):
        return "nan"
    return "inf" if isinf(loss) else "finite"


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth of one job's loss. `recent`: (steps, loss) of the last readings, the oldest first. `per_step`: the
    decrease of the loss per step, an exponential mean over readings, negative if the loss rises; `peak`: the largest of
    these means. `readings`: the number of readings in the mean. `at_s`: the time of the last one in seconds."""

    state: LossState = "absent"
    recent: tuple[tuple[float, float], ...] = ()
    per_step: float = 0.0
    peak: float = 0.0
    readings: int = 0
    at_s: float = -inf

    @property
    def loss(self) -> float | None:
        """The last finite loss."""
        return self.recent[-1][1] if self.recent else None

    @property
    def of_peak(self) -> float | None:
        """The growth divided by its peak: 1 at the peak, approaching 0 as the job converges. None: not known yet."""
        return max(0.0, self.per_step) / self.peak if self.readings and self.peak > 0 else None

    @property
    def rises(self) -> bool:
        """Whether the loss rose at each of the last RECENT readings."""
        return len(self.recent) == RECENT and all(a[1] < b[1] for a, b in pairwise(self.recent))

    def read(self, step: float, loss: float | None, at_s: float, state: LossState | None = None) -> "Growth":
        """The growth after a report of this loss at this step. `state`: the state of the loss, if it is known. A loss
        that is not finite, or is reported too early or without a new step, changes only the state. After a decrease of
        the step (the job resumed from a checkpoint), the next growth counts from the lower step."""
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
