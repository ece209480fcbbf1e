"""What goes wrong in a schedule: nothing, one thing at one point, or many by seed. All stop at `until`."""

from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Literal

__all__ = ["EVENT_FAULTS", "ChiefLostAt", "Faults", "KillAt", "Request", "Seeded", "WatchFaultAt"]

Kill = Literal["before", "after"]
"""The operator dies before a write, or after it and without its answer."""
EventFault = Literal["", "lost", "delayed", "replayed", "silent"]
"""Of a watch event: the connection breaks instead; it comes late; it comes again, after newer ones; nothing comes any
more for a while, and then the connection breaks."""

EVENT_FAULTS: tuple[EventFault, ...] = ("lost", "delayed", "replayed")


@dataclass(frozen=True, slots=True)
class Request:
    """What becomes of one request: seconds to the server and back, and an HTTP status that is answered instead (0: no
    answer; None: the true one), after the effect or without it."""

    there_s: float = 0.002
    back_s: float = 0.002
    status: int | None = None
    effect: bool = True


_FINE = Request()


@dataclass
class Faults:
    """Nothing goes wrong. `until`: the time on the loop's clock from when on nothing does any more; `struck`: something
    has gone wrong."""

    until: float = 0.0
    struck: bool = False

    def request(self, method: str, path: str) -> Request:
        """What becomes of a request."""
        return _FINE

    def kill(self, write: int) -> Kill | None:
        """Whether the operator dies at its write number `write`, counted from 1 over all its lives."""
        return None

    def event(self, number: int) -> EventFault:
        """What becomes of the watch event number `number`, counted from 1."""
        return ""

    def event_delay_s(self) -> float:
        """How long an event takes."""
        return 0.002

    def expires(self) -> bool:
        """Whether a watch that is begun anew is told that its version is too old."""
        return False

    def restart_s(self) -> float:
        """How long an operator that died is away."""
        return 2.0

    def loses_chief(self, write: int) -> bool:
        """Whether the chief's node loses its power right after this write."""
        return False

    def mischief_s(self) -> float:
        """How long it takes until next something goes wrong in the cluster, and not with the operator: infinite, never.
        A container dies, a pod is drained, a command does not reach its pod."""
        return inf


@dataclass
class KillAt(Faults):
    """The operator dies at one write."""

    write: int = 0
    how: Kill = "before"
    away_s: float = 2.0

    def kill(self, write: int) -> Kill | None:
        if write != self.write:
            return None
        self.struck = True
        return self.how

    def restart_s(self) -> float:
        return self.away_s


@dataclass
class WatchFaultAt(Faults):
    """One watch event does not come as it should."""

    number: int = 0
    what: EventFault = "lost"

    def event(self, number: int) -> EventFault:
        if number != self.number:
            return ""
        self.struck = True
        return self.what


@dataclass
class ChiefLostAt(Faults):
    """The chief's node loses its power right after one write, and is replaced later."""

    write: int = 0

    def loses_chief(self, write: int) -> bool:
        self.struck = self.struck or write == self.write
        return write == self.write


@dataclass
class Seeded(Faults):
    """Many faults, as a seed has it: each schedule draws how often each kind comes, most of them seldom or never."""

    random: Random = field(default_factory=Random)
    harms_pods: bool = True

    def __post_init__(self) -> None:
        def rate(most: float) -> float:
            return self.random.choice((0.0, 0.0, 0.3, 1.0)) * most

        self.slow = self.random.choice((0.002, 0.002, 0.05, 0.5))
        self.refused, self.unanswered, self.event_rate = rate(0.1), rate(0.1), rate(0.05)
        self.kill_rate = rate(0.05)
        self.expiry = rate(0.5)
        self.mischief = rate(0.1) if self.harms_pods else 0.0

    def request(self, method: str, path: str) -> Request:
        draw = self.random.random
        there_s, back_s = draw() * self.slow, draw() * self.slow
        chance = draw()
        if chance < self.refused:
            status = self.random.choice((429, 500, 503, 0))
            return Request(there_s, back_s + (5.0 if status == 0 else 0.0), status, effect=False)
        if chance < self.refused + self.unanswered:
            return Request(there_s, back_s + 1.0, self.random.choice((0, 500)), effect=True)
        return Request(there_s, back_s)

    def kill(self, write: int) -> Kill | None:
        if self.random.random() < self.kill_rate:
            return self.random.choice(("before", "after"))
        return None

    def event(self, number: int) -> EventFault:
        if self.random.random() < self.event_rate:
            return self.random.choice(("lost", "delayed", "replayed", "silent"))
        return ""

    def event_delay_s(self) -> float:
        return self.random.random() * self.slow

    def expires(self) -> bool:
        return self.random.random() < self.expiry

    def restart_s(self) -> float:
        return self.random.choice((0.5, 2.0, 10.0, 30.0))

    def mischief_s(self) -> float:
        return self.random.expovariate(self.mischief) if self.mischief else inf
