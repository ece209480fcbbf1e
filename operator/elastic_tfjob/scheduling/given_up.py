"""Remembers which nodes were given up to an autoscaler, and when the next one may be. Pure.

The operator and the simulator keep one of these between rounds. It is lost with the process: then a node counts as kept
until it is given up again.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import inf

from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.snapshot import CompactionRules

__all__ = ["CompactionTimes", "GivenUpNodes"]


@dataclass(frozen=True, slots=True)
class CompactionTimes:
    """`after_s`: for how long no job has lacked room before a node is given up. `every_s`: from one node to the next.
    `forget_s`: after which a node that is still there is used again, and not given up for eight times as long: its
    autoscaler keeps it. The cluster autoscaler looks at a node with pods every 5 minutes, and removes it 10 minutes
    after it has seen it empty. `headroom`: as for CompactionRules."""

    after_s: float = 120.0
    every_s: float = 30.0
    forget_s: float = 1800.0
    headroom: int = 0


class GivenUpNodes:
    """The nodes that replicas leave. All times are in seconds of the same clock."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}
        self._kept_until_s: dict[str, float] = {}
        self._enough_since_s: float | None = None
        self._tried_s = -inf

    def names(self, nodes: Collection[str], times: CompactionTimes, now_s: float) -> frozenset[str]:
        """The nodes, of the present ones, that are given up now."""
        for name, since_s in list(self._since_s.items()):
            if name not in nodes:
                del self._since_s[name]
            elif now_s - since_s >= times.forget_s:
                del self._since_s[name]
                self._kept_until_s[name] = now_s + 8 * times.forget_s
        self._kept_until_s = {
            name: until_s for name, until_s in self._kept_until_s.items() if name in nodes and now_s < until_s
        }
        return frozenset(self._since_s)

    @property
    def kept(self) -> Iterable[str]:
        """Nodes that are not given up for now: their autoscaler did not remove them."""
        return self._kept_until_s.keys()

    def rules(self, times: CompactionTimes, now_s: float) -> CompactionRules:
        """The rules of a round. A round that gives up nothing counts as one that does: looking costs time."""
        due = (
            self._enough_since_s is not None
            and now_s - self._enough_since_s >= times.after_s
            and now_s - self._tried_s >= times.every_s
        )
        if due:
            self._tried_s = now_s
        return CompactionRules(due, times.headroom)

    def follow(self, plan: Plan, now_s: float) -> bool:
        """Notes what a plan gives up; whether it takes a node back, so that another round should follow at once."""
        if plan.lacks_room:
            self._enough_since_s = None
        elif self._enough_since_s is None:
            self._enough_since_s = now_s
        more, fewer = plan.given_up - self._since_s.keys(), self._since_s.keys() - plan.given_up
        self._since_s |= dict.fromkeys(sorted(more), now_s)
        for name in fewer:
            del self._since_s[name]
        return bool(fewer)

    def next_s(self, times: CompactionTimes, now_s: float) -> float | None:
        """Seconds until something may be given up or forgotten; None: not before a plan changes something."""
        at_s = [since_s + times.forget_s for since_s in self._since_s.values()]
        at_s += self._kept_until_s.values()
        if self._enough_since_s is not None:
            at_s.append(max(self._enough_since_s + times.after_s, self._tried_s + times.every_s))
        return min((each - now_s for each in at_s if each > now_s), default=None)
