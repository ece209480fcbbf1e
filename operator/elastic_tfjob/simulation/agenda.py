"""What happens when in a simulation: events by their time, and the next round that is due by the clock."""

from heapq import heappop, heappush
from math import inf
from typing import Final

__all__ = ["ARRIVE", "COOLED", "DEMAND", "FINISH", "JUMP", "NODES", "READY", "ROUND", "STRAY", "Agenda", "Event"]

FINISH: Final = 0
READY: Final = 1
ARRIVE: Final = 2
JUMP: Final = 3
COOLED: Final = 4
NODES: Final = 5
DEMAND: Final = 6
STRAY: Final = 7
ROUND: Final = 8
"""Kinds of events, in the order of those at one time."""

Event = tuple[float, int, int, int, str]
"""Time, kind, place in what is known beforehand (jobs, changes of nodes), version and key of the job."""


class Agenda:
    """Events to come. One that waits for a version of a job is void when that has another: who takes it compares."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.round_at = inf
        """When a round is due by the clock."""

    def add(self, at: float, kind: int, *, place: int = 0, version: int = 0, key: str = "") -> None:
        heappush(self.events, (at, kind, place, version, key))

    def due(self, now: float) -> bool:
        """Whether there is one (more) at this time."""
        return bool(self.events) and self.events[0][0] == now

    def take(self) -> Event:
        """The next one, off the agenda."""
        return heappop(self.events)

    def round_now(self, now: float) -> None:
        """Have a round at this time."""
        self.add(now, ROUND)
        self.round_at = now

    def round_by_clock(self, now: float, interval: float, *, had_one: bool) -> None:
        """Have a round at the next multiple of the interval, if none is due: `now` itself unless it `had_one`."""
        if interval <= 0 or self.round_at != inf:
            return
        at = (now // interval) * interval
        if at < now or (at == now and had_one):
            at += interval
        self.round_at = at
        self.add(at, ROUND)
