"""The teams of the last plan, for the query API and as metrics: a limited number, because each is a time series."""

import time
from collections.abc import Mapping
from typing import Final

from elastic_tfjob.controller.kube import metrics
from elastic_tfjob.scheduling.plan import Plan, TeamShare

__all__ = ["MAX_COUNTED", "MAX_NAMED", "OTHERS", "TeamMetrics", "limited"]

MAX_NAMED: Final = 100
"""Teams that have metrics of their own; the others are summed."""
MAX_COUNTED: Final = 1000
"""Teams that have counters of their own. A counter stays when its team goes, and namespaces may come and go for years;
those of later teams are summed."""
OTHERS: Final = "(others)"
"""No namespace has this name."""


def limited(teams: Mapping[str, TeamShare]) -> dict[str, TeamShare]:
    """The teams that deserve most, and the sum of the others."""
    if len(teams) <= MAX_NAMED:
        return dict(teams)
    names = sorted(teams, key=lambda name: (-teams[name].deserved, -teams[name].share, name))
    found = {name: teams[name] for name in names[:MAX_NAMED]}
    others = [teams[name] for name in names[MAX_NAMED:]]
    taken: dict[str, int] = {}
    for each in others:
        for how, n in each.taken.items():
            taken[how] = taken.get(how, 0) + n
    found[OTHERS] = TeamShare(
        sum(each.share for each in others),
        sum(each.deserved for each in others),
        sum(each.waiting for each in others),
        any(each.below for each in others),
        taken,
    )
    return found


class TeamMetrics:
    """`teams`: those of the last plan, all of them."""

    def __init__(self) -> None:
        self.teams: Mapping[str, TeamShare] = {}
        self._shown: Mapping[str, TeamShare] = {}
        self._counted: set[str] = set()
        self._at = time.monotonic()

    def note(self, plan: Plan | None) -> None:
        """Follow a round. None: it had no plan, so no team has a share."""
        now = time.monotonic()
        for name, each in self._shown.items():
            if each.below:
                metrics.TEAM_BELOW_SHARE.labels(self._counter(name)).inc(now - self._at)
        self.teams = {} if plan is None else plan.teams
        shown = limited(self.teams)
        for name in self._shown.keys() - shown.keys():
            for gauge in (metrics.TEAM_SHARE, metrics.TEAM_DESERVED, metrics.TEAM_WAITING):
                gauge.remove(name)
        for name, each in shown.items():
            metrics.TEAM_SHARE.labels(name).set(each.share)
            metrics.TEAM_DESERVED.labels(name).set(each.deserved)
            metrics.TEAM_WAITING.labels(name).set(each.waiting)
            for how, n in each.taken.items():
                metrics.TEAM_RECLAIMED.labels(self._counter(name), how).inc(n)
        self._shown, self._at = shown, now

    def _counter(self, team: str) -> str:
        """The label of a team's counters."""
        if team not in self._counted and len(self._counted) >= MAX_COUNTED:
            return OTHERS
        self._counted.add(team)
        return team
