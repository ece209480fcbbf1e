"""What each team got in a run: service, waits, time below its share; and how fair that was.

A team is the part of a job's name before the slash, as a live job's namespace. The numbers need no profile that knows
teams, so that profiles without them can be compared.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.resources import NOTHING, Resources, total_of
from elastic_tfjob.scheduling.shares import Ask, deserved
from elastic_tfjob.scheduling.snapshot import Job, Node, Snapshot
from elastic_tfjob.scheduling.steps.teams import TeamRules
from elastic_tfjob.simulation.result import JobRecord, RunResult

__all__ = ["TeamNumbers", "TeamRecorder", "jain", "static_part", "team_numbers", "teams_in"]

WINDOW_S: Final = 3600.0
"""The length of the windows in which service is compared."""
NEAR: Final = 1e-9


def teams_in(keys: Sequence[str], rules: TeamRules) -> tuple[str, ...]:
    """The teams of these jobs, in the order of their first job."""
    scopes = dict.fromkeys(key.rpartition("/")[0] for key in keys)
    return tuple(dict.fromkeys(rules.of_namespace.get(scope, scope) for scope in scopes))


@dataclass(slots=True)
class _Held:
    """A team at one moment. `below`: it could use another replica, or start a waiting job, within what it deserves."""

    share: float
    below: bool
    full: bool


@dataclass(slots=True)
class TeamRecorder:
    """Records one run. `service`: dominant share times seconds, by window and team; `not_full`: windows in which some
    team asked for less than its part of the cluster. `below_s` by team; `to_share_s`: how long each time below lasted.
    `taken`: replicas by team and how; `lost_s`: training lost by stops for other teams."""

    rules: TeamRules
    service: dict[int, dict[str, float]] = field(default_factory=dict)
    not_full: set[int] = field(default_factory=set)
    below_s: dict[str, float] = field(default_factory=dict)
    to_share_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    taken: Counter[tuple[str, str]] = field(default_factory=Counter)
    lost_s: dict[str, float] = field(default_factory=dict)
    teams: tuple[str, ...] = ()
    _now: float | None = None
    _held: dict[str, _Held] = field(default_factory=dict)
    _since: dict[str, float] = field(default_factory=dict)

    def look(self, snapshot: Snapshot) -> None:
        """The cluster as it is from now on."""
        now = snapshot.now
        if self._now is not None:
            self._account(self._now, now)
        self._now, self._held = now, self._state(snapshot)
        for team, each in self._held.items():
            if each.below:
                self._since.setdefault(team, now)
            elif (since := self._since.pop(team, None)) is not None:
                self.to_share_s[team].append(now - since)

    def reclaimed(self, plan: Plan, lost: Mapping[str, float]) -> None:
        """Count what a plan takes for other teams. `lost`: seconds of training that each job loses by its change."""
        for team, each in plan.teams.items():
            for how, n in each.taken.items():
                self.taken[team, how] += n
        for key, target in plan.changes.items():
            if target.why.code == "team-share":
                _add(self.lost_s, self.rules.team(plan.snapshot.jobs[key]), lost.get(key, 0.0))

    def _account(self, since: float, until: float) -> None:
        full = len(self._held) == len(self.teams) and all(each.full for each in self._held.values())
        at = since
        while at < until:
            window = int(at // WINDOW_S)
            end = min(until, (window + 1) * WINDOW_S)
            for team, each in self._held.items():
                _add(self.service.setdefault(window, {}), team, each.share * (end - at))
            if not full:
                self.not_full.add(window)
            at = end
        for team, each in self._held.items():
            _add(self.below_s, team, each.below * (until - since))

    def _state(self, snapshot: Snapshot) -> dict[str, _Held]:
        total = total_of(node.capacity for node in snapshot.nodes.values() if node.loan in ("own", "loaned"))
        held: dict[str, Resources] = defaultdict(lambda: NOTHING)
        demand: dict[str, Resources] = defaultdict(lambda: NOTHING)
        jobs: dict[str, list[Job]] = defaultdict(list)
        for job in snapshot.jobs.values():
            team = self.rules.team(job)
            jobs[team].append(job)
            demand[team] = demand[team].plus(job.spec.declared_demand)
            if job.placement:
                held[team] = held[team].plus(job.spec.demand(job.counts))
        asks = {}
        for team, wants in demand.items():
            terms = self.rules.terms(team)
            asks[team] = Ask(wants, wants, terms.weight, terms.guarantee, terms.limit)
        due = deserved(asks, total)
        weights = sum(self.rules.terms(team).weight for team in self.teams)
        found = {}
        for team, ask in asks.items():
            steps = [step for job in jobs[team] if (step := _next(job)) is not None]
            below = any(held[team].plus(step).dominant_share(total) <= due[team] + NEAR for step in steps)
            full = ask.demand.dominant_share(total) >= ask.weight / weights - NEAR
            found[team] = _Held(held[team].dominant_share(total), below, full)
        return found


def _add(sums: dict[str, float], name: str, more: float) -> None:
    sums[name] = sums.get(name, 0.0) + more


def _next(job: Job) -> Resources | None:
    """What the job takes at least if it gets more: its smallest size if it waits, else one replica that it lacks of its
    declared size."""
    if not job.placement:
        return job.spec.minimum_demand
    lacks = [g.request for g in job.spec.groups if len(job.placement.get(g.type, ())) < job.spec.declared[g.type]]
    return min(lacks, default=None) if job.spec.elastic else None


# -- The numbers of one run --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TeamNumbers:
    """One team in one run. Times are seconds; `wait` is the time without replicas. `below_share_s`: time in which it
    had less than it deserved and could use more. `to_share_s`: mean and longest of these times. `reclaimed`: replicas
    taken from it for other teams, by how; `lost_s`: training lost by that. `alone`: its mean completion time over that
    of its jobs alone on its static part of the cluster (sharing incentive); None: not simulated."""

    team: str
    weight: float
    jobs: int
    finished: int
    mean_jct_s: float | None
    p95_jct_s: float | None
    mean_wait_s: float | None
    p95_wait_s: float | None
    below_share_s: float
    mean_to_share_s: float
    longest_to_share_s: float
    reclaimed: Mapping[str, int]
    lost_s: float
    alone: float | None = None

    def beside(self, alone: Sequence[JobRecord]) -> "TeamNumbers":
        """With the sharing incentive, from the same jobs alone."""
        times = [record.jct_s for record in alone if record.jct_s is not None]
        if self.mean_jct_s is None or not times or len(times) != self.finished:
            return self
        return replace(self, alone=self.mean_jct_s / (sum(times) / len(times)))


def team_numbers(outcome: RunResult) -> list[TeamNumbers]:
    """The numbers of each team; none where the run did not record teams."""
    recorder = outcome.teams
    if recorder is None:
        return []
    found = []
    for team in recorder.teams:
        records = [r for r in outcome.records if _team(r.key, recorder.rules) == team]
        done = [r for r in records if r.jct_s is not None]
        jcts, waits = [r.jct_s or 0.0 for r in done], [r.queue_s for r in done]
        spans = recorder.to_share_s.get(team, [])
        found.append(
            TeamNumbers(
                team,
                recorder.rules.terms(team).weight,
                len(records),
                len(done),
                float(np.mean(jcts)) if jcts else None,
                float(np.percentile(jcts, 95)) if jcts else None,
                float(np.mean(waits)) if waits else None,
                float(np.percentile(waits, 95)) if waits else None,
                recorder.below_s.get(team, 0.0),
                sum(spans) / len(spans) if spans else 0.0,
                max(spans, default=0.0),
                {how: n for (of, how), n in sorted(recorder.taken.items()) if of == team},
                recorder.lost_s.get(team, 0.0),
            )
        )
    return found


def _team(key: str, rules: TeamRules) -> str:
    scope = key.rpartition("/")[0]
    return rules.of_namespace.get(scope, scope)


def jain(outcome: RunResult) -> list[float]:
    """Jain's index of service per weight, for each whole hour in which each team asked for at least its part of the
    cluster: 1 if all get the same, 1 / n if one gets all."""
    recorder = outcome.teams
    if recorder is None or len(recorder.teams) < 2:
        return []
    found = []
    windows = sorted(recorder.service)
    for window in windows[1:-1]:  # the first and the last are not whole
        if window not in recorder.not_full:
            each = [recorder.service[window].get(t, 0.0) / recorder.rules.terms(t).weight for t in recorder.teams]
            squares = sum(x * x for x in each)
            if squares > 0:
                found.append(sum(each) ** 2 / (len(each) * squares))
    return found


def static_part(nodes: Sequence[Node], part: float) -> list[Node]:
    """This part of a cluster of equal nodes: whole nodes, and one node with the rest."""
    whole = int(part * len(nodes) + NEAR)
    rest = part * len(nodes) - whole
    found = list(nodes[:whole])
    if rest > NEAR and whole < len(nodes):
        each = nodes[whole].capacity
        less = Resources(*(int(amount * rest + NEAR) for amount in each))
        found.append(replace(nodes[whole], capacity=less, free=less))
    return found
