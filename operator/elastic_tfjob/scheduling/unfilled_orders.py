"""Remembers orders of nodes that no autoscaler has filled, or that their job did not use, and how long nodes take to
come. Pure.

A job whose order has waited too long orders nothing for a while, longer each time: its nodes may not exist, and other
jobs can order meanwhile. The same holds for a running job that orders again without having grown since nodes came: the
profile leaves it at its size, and each node would come and go. The operator and the simulator keep one of these between
rounds. It is lost with the process; then the wait begins anew.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Final, Literal

from elastic_tfjob.scheduling.snapshot import LEAD_S

__all__ = ["LONGEST_RETRY_S", "FailedOrder", "UnfilledOrders"]

LONGEST_RETRY_S: Final = 1800.0
_LEADS: Final = 20
"""The number of filled orders whose times are remembered."""


@dataclass(frozen=True, slots=True)
class FailedOrder:
    """What became of a job's order, and for how many seconds the job orders nothing."""

    why: Literal["not coming", "not used"]
    retry_s: float


@dataclass(slots=True)
class _Pause:
    until_s: float
    delay_s: float


class UnfilledOrders:
    """The jobs that order nothing for a while, by their names in the Snapshot. All times are in seconds of the same
    clock."""

    def __init__(self) -> None:
        self._pauses: dict[str, _Pause] = {}
        self._ordering: dict[str, int] = {}
        """By job that orders, the replicas that it holds."""
        self._filled: dict[str, int] = {}
        """By job whose order was filled, the replicas that it held then."""
        self._leads = deque[float](maxlen=_LEADS)
        self._since: dict[str, float] = {}
        """By job that waits for nodes, since when."""

    @property
    def lead_s(self) -> float:
        """How long an order takes to be filled: the median of the last ones."""
        return median(self._leads) if self._leads else LEAD_S

    @property
    def since_s(self) -> Mapping[str, float]:
        """By job that waited for nodes when this last looked, since when."""
        return self._since

    def failed(self, now_s: float) -> frozenset[str]:
        """The jobs that order nothing at the moment."""
        return frozenset(key for key, each in self._pauses.items() if now_s < each.until_s)

    def follow(
        self,
        waiting: Mapping[str, float],
        filled: Collection[str],
        held: Callable[[str], int | None],
        now_s: float,
        *,
        timeout_s: float,
        retry_s: float,
    ) -> Mapping[str, FailedOrder]:
        """Notes what became of the orders, and returns those that have failed now. `waiting`: since when a job waits
        for the first of its nodes that is not there; `filled`: jobs whose orders have nodes. `held`: the replicas that
        a job has; None: it does not exist, and is forgotten. So is a job whose whole order is filled."""
        came = (now_s - at_s for key, at_s in self._since.items() if key in filled and key not in waiting)
        self._leads += (lead_s for lead_s in came if lead_s < timeout_s)
        self._since = dict(waiting)
        failed: dict[str, FailedOrder] = {}
        for key, since_s in waiting.items():
            known = self._pauses.get(key)
            if now_s - since_s >= timeout_s and not (known and now_s < known.until_s):
                delay_s = min(2 * known.delay_s, LONGEST_RETRY_S) if known is not None else retry_s
                failed[key] = self._pause(key, "not coming", delay_s, now_s)
        for key in [key for key in self._pauses if held(key) is None or (key in filled and key not in waiting)]:
            del self._pauses[key]
        ordering = {key: held(key) or 0 for key in {**waiting, **dict.fromkeys(filled)}}
        for key, has in ordering.items():
            if has and key not in self._ordering and has <= self._filled.pop(key, -1):
                failed[key] = self._pause(key, "not used", LONGEST_RETRY_S, now_s)
        over = {key: has for key, has in self._ordering.items() if key not in ordering and key not in self._pauses}
        self._filled = {key: has for key, has in (self._filled | over).items() if held(key) is not None}
        self._ordering = ordering
        return failed

    def _pause(self, key: str, why: Literal["not coming", "not used"], delay_s: float, now_s: float) -> FailedOrder:
        self._pauses[key] = _Pause(now_s + delay_s, delay_s)
        return FailedOrder(why, delay_s)

    def next_s(self, waiting: Mapping[str, float], now_s: float, timeout_s: float) -> float:
        """The next time at which an order fails, or may be tried again; infinite: there is none."""
        times = [*(each.until_s for each in self._pauses.values()), *(since + timeout_s for since in waiting.values())]
        return min((at for at in times if at > now_s), default=inf)
