"""Teams: weighted shares of the cluster between namespaces, which jobs reach by shrinking others.

A team has a share, the dominant share of what its jobs request, and deserves one (`shares.deserved`). Waiting jobs of a
team below the share that it deserves come first, and take replicas from teams above theirs. What no team asks for,
any may use.
"""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import groupby
from typing import Final, Literal

from elastic_tfjob.scheduling.plan import TeamShare
from elastic_tfjob.scheduling.queue import Entry
from elastic_tfjob.scheduling.reasons import Fact, Reason
from elastic_tfjob.scheduling.resources import NOTHING, Resources
from elastic_tfjob.scheduling.room import lacking
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.shares import Ask, deserved, with_growth
from elastic_tfjob.scheduling.snapshot import Counts, Job, Node, Placement, Snapshot, counts_of
from elastic_tfjob.scheduling.steps.open_jobs import reachable_total, usable_total
from elastic_tfjob.scheduling.steps.preemption import Preemption
from elastic_tfjob.scheduling.steps.sizes import Downward, largest, movable

__all__ = ["Reclaim", "TeamRules", "TeamTerms", "Teams", "begin_teams", "teams_of"]

EPSILON: Final = 1e-9
"""Shares that a rounding error may hide."""

Reclaim = Literal["shrink", "stop", "none"]
"""How a team gets what it deserves from jobs of other teams: they `shrink`, or also `stop`, or not (`none`)."""


@dataclass(frozen=True, slots=True)
class TeamTerms:
    """What one team has: its weight, and the dominant shares of the cluster that it always gets if it asks for them,
    and gets at most."""

    weight: float = 1.0
    guarantee: float = 0.0
    limit: float = 1.0


EQUAL: Final = TeamTerms()


@dataclass(frozen=True, slots=True)
class TeamRules:
    """How teams share the cluster. `named`: the terms of teams; other teams have weight 1. `of_namespace`: the team of
    a namespace; a namespace without one is a team of its own. `over_priority`: shares come before priorities."""

    named: Mapping[str, TeamTerms] = field(default_factory=dict)
    of_namespace: Mapping[str, str] = field(default_factory=dict)
    reclaim: Reclaim = "shrink"
    over_priority: bool = False

    def team(self, job: Job) -> str:
        scope = job.spec.scope
        return self.of_namespace.get(scope, scope)

    def terms(self, team: str) -> TeamTerms:
        return self.named.get(team, EQUAL)


# -- What the jobs of each namespace hold and ask for, kept from round to round ----------------------------------------


@dataclass(slots=True)
class _Sums:
    jobs: int = 0
    waiting: int = 0
    held: Resources = NOTHING
    demand: Resources = NOTHING
    most: Resources = NOTHING

    def add(self, job: Job, sign: int) -> None:
        self.jobs += sign
        self.waiting += sign * (not job.placement)
        spec = job.spec
        most = {group.type: group.maximum for group in spec.groups} if spec.resizable else spec.declared
        if job.placement:
            self.held = _moved(self.held, spec.demand(job.counts), sign)
        self.demand = _moved(self.demand, spec.declared_demand, sign)
        self.most = _moved(self.most, spec.demand(most), sign)

    def plus(self, other: "_Sums") -> "_Sums":
        return _Sums(
            self.jobs + other.jobs,
            self.waiting + other.waiting,
            self.held.plus(other.held),
            self.demand.plus(other.demand),
            self.most.plus(other.most),
        )


def _moved(amount: Resources, by: Resources, sign: int) -> Resources:
    return amount.plus(by) if sign > 0 else amount.minus(by)


class Namespaces:
    """An index of what the jobs of each namespace hold and ask for."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.sums: dict[str, _Sums] = {}
        for job in jobs:
            self.change(None, job, 0.0)

    def change(self, before: Job | None, after: Job | None, now: float) -> None:
        for job, sign in ((before, -1), (after, 1)):
            if job is not None:
                sums = self.sums.setdefault(job.spec.scope, _Sums())
                sums.add(job, sign)
                if not sums.jobs:
                    del self.sums[job.spec.scope]

    def change_nodes(self, nodes: Mapping[str, Node]) -> bool:
        return True


def namespaces(snapshot: Snapshot) -> Namespaces:
    return Namespaces(snapshot.jobs.values())


# -- The teams of one round --------------------------------------------------------------------------------------------


class Teams:
    """What each team holds at this point of a round, and what it deserves: the quota of the round."""

    def __init__(self, round_: Round, rules: TeamRules) -> None:
        self.rules = rules
        self._round = round_
        self.total = usable_total(round_)
        sums: dict[str, _Sums] = {}
        for scope, each in round_.snapshot.index("namespaces", namespaces).sums.items():
            team = rules.of_namespace.get(scope, scope)
            sums[team] = sums[team].plus(each) if team in sums else each.plus(_Sums())
        self.held = {team: each.held for team, each in sums.items()}
        self._waiting = {team: each.waiting for team, each in sums.items()}
        self._asks: dict[str, Ask] = {}
        for team, each in sums.items():
            terms = rules.terms(team)
            self._asks[team] = Ask(each.demand, each.most, terms.weight, terms.guarantee, terms.limit)
        self.deserved = deserved(self._asks, self.total)
        self._preemption = Preemption(round_, TeamDonors(round_, self))
        self._below = set[str]()
        """The teams that got less than they deserve."""
        self._for_guarantee = False
        """Whether the present reclaim is for a team that has no more than its guarantee afterwards."""

    @property
    def several(self) -> bool:
        """Whether there is anything to share; one team alone decides as without teams."""
        return len(self.held) > 1

    def entitled(self) -> dict[str, float]:
        """The share of each team if growth beyond declared sizes shares what these leave."""
        return with_growth(self._asks, self.total, self.deserved)

    def in_order(self) -> list[str]:
        """The teams, the one with the least share per weight first."""
        return sorted(self.held, key=self.level)

    def share(self, team: str) -> float:
        return self.held[team].dominant_share(self.total)

    def level(self, team: str) -> float:
        """The team's share per weight."""
        return self.share(team) / self.rules.terms(team).weight

    def ratio(self, team: str, share: float) -> float:
        """The part of what it deserves that a team has with this share, at most 1."""
        due = self.deserved[team]
        return min(1.0, share / due) if due > 0 else 1.0

    def share_with(self, job: Job, counts: Counts) -> float:
        """The share of the job's team if the job has this size."""
        now = job.spec.demand(counts_of(self._round.placement(job)))
        held = self.held[self.rules.team(job)]
        return held.minus(now).plus(job.spec.demand(counts)).dominant_share(self.total)

    def within(self, job: Job, counts: Counts) -> bool:
        """Whether the job's team has at most what it deserves if the job has this size."""
        return self.share_with(job, counts) <= self.deserved[self.rules.team(job)] + EPSILON

    def spare(self, team: str, share: float) -> Resources:
        """What is free, as much as a team with at most this share may take of it."""
        held, free = self.held[team], reachable_total(self._round)
        cpu, memory, accelerators = (
            min(part, int(share * whole) - mine)
            for part, whole, mine in zip(free[:3], self.total[:3], held[:3], strict=True)
        )
        return Resources(cpu, memory, accelerators, free.pods, free.storage_bytes).positive()

    # ---- the quota

    def allows(self, job: Job, counts: Counts) -> bool:
        team = self.rules.team(job)
        limit = self.rules.terms(team).limit
        if limit >= 1:
            return True
        share = self.share_with(job, counts)
        return share <= limit + EPSILON or share <= self.share(team) + EPSILON

    def limits(self, job: Job, counts: Counts) -> Reason | None:
        if self.allows(job, counts):
            return None
        team = self.rules.team(job)
        return Reason("team-limit", {"team": team, "limit": self.rules.terms(team).limit})

    def refusal(self, job: Job) -> Reason | None:
        if (limit := self.limits(job, job.spec.minimum)) is not None:
            return limit
        team = self.rules.team(job)
        if self.several and not self.within(job, job.spec.minimum):
            return Reason("team-served", {"team": team, "share": self.share(team), "deserved": self.deserved[team]})
        return None

    def change(self, job: Job, before: Placement, after: Placement) -> None:
        if before is not after:
            team, demand = self.rules.team(job), job.spec.demand
            self.held[team] = self.held[team].minus(demand(counts_of(before))).plus(demand(counts_of(after)))
            self._waiting[team] += bool(before) - bool(after)

    def teams(self) -> Mapping[str, TeamShare]:
        taken: dict[str, dict[str, int]] = {}
        for key, target in self._round.changes.items():
            if target.why.code != "team-share":
                continue
            job = self._round.job(key)
            n = sum(job.counts.values()) - sum(target.replicas.values())
            how = "shrink" if target.nodes else "stop"
            by_how = taken.setdefault(self.rules.team(job), {})
            by_how[how] = by_how.get(how, 0) + max(0, n)
        return {
            team: TeamShare(
                self.share(team), self.deserved[team], self._waiting[team], team in self._below, taken.get(team, {})
            )
            for team in self.held
        }

    # ---- who gives to whom

    def may_take(self, donor: Job, job: Job) -> bool:
        """Whether a job may take replicas from another one without regard to shares: within a team, and from lower
        priorities."""
        if self.rules.team(donor) == self.rules.team(job):
            return donor.spec.priority <= job.spec.priority
        return donor.spec.priority < job.spec.priority and not self.rules.over_priority

    def above(self, team: str) -> bool:
        """Whether the team has more than it deserves."""
        return self.share(team) > self.deserved[team] + EPSILON

    def improves(self, donor: Job, counts: Counts, job: Job) -> bool:
        """Whether it is fairer if the donor has this size, for a job whose team has less than it deserves. The donor's
        team keeps its guarantee. If this is not about the guarantee of the job's team, the donor's team must be above
        its share, and have a larger part of what it deserves afterwards than the job's team before. So each change
        makes the least part larger, and none is ever undone by another."""
        mine, theirs = self.rules.team(job), self.rules.team(donor)
        if mine == theirs:
            enough = all(counts.get(type_, 0) >= n for type_, n in donor.spec.declared.items())
            return enough and donor.spec.priority <= job.spec.priority
        if donor.spec.priority > job.spec.priority and not self.rules.over_priority:
            return False
        after = self.share_with(donor, counts)
        if after < min(self.rules.terms(theirs).guarantee, self.deserved[theirs]) - EPSILON:
            return False
        if self._for_guarantee:
            return True
        return self.above(theirs) and self.ratio(theirs, after) > self.ratio(mine, self.share(mine)) + EPSILON

    # ---- what teams deserve

    def give(self, job: Job, set_size: Callable[[Counts], bool]) -> bool:
        """Give a job the largest size above its present one, up to its declared one, with which its team has at most
        what it deserves: from what is free, else from jobs of other teams. `set_size` gives the job a size that has
        room."""
        held, sizes = self._round.placement(job), Downward(job, job.spec.declared)

        def keeps(k: int) -> bool:
            return all(n <= len(held.get(type_, ())) for type_, n in sizes[k].items())

        def attempt(counts: Counts) -> bool:
            return self.within(job, counts) and (set_size(counts) or self._reclaim(job, counts, set_size))

        larger = bisect_left(range(len(sizes)), True, key=keeps)
        if larger > 0 and largest(self._round, job, sizes, attempt, larger) >= 0:
            return True
        if larger > 0 and self.within(job, sizes[larger - 1]):
            self._below.add(self.rules.team(job))
        return False

    def _reclaim(self, job: Job, counts: Counts, set_size: Callable[[Counts], bool]) -> bool:
        if self.rules.reclaim == "none":
            return False
        team = self.rules.team(job)
        self._for_guarantee = self.share_with(job, counts) <= self.rules.terms(team).guarantee + EPSILON
        facts: dict[str, Fact] = {
            "job": job.key,
            "team": team,
            "share": self.share(team),
            "deserved": self.deserved[team],
        }
        why, demand = Reason("team-share", facts), lacking(self._round.placement(job), counts)
        if self._preemption.take(job, demand, why, lambda: set_size(counts), needed=True):
            return True
        return self.rules.reclaim == "stop" and self._stop_others(job, why, lambda: set_size(counts))

    def _stop_others(self, job: Job, why: Reason, attempt: Callable[[], bool]) -> bool:
        """Stop jobs of other teams, the lowest priority and latest start first, until `attempt` succeeds; all or
        nothing."""
        round_ = self._round
        undo = round_.savepoint()
        mine = self.rules.team(job)
        others = (other for other in round_.running_in_order() if self.rules.team(other) != mine)
        for other in sorted(others, key=lambda other: (other.spec.priority, -other.since_s, -other.spec.sequence)):
            if round_.placement(other) != other.placement or not self.improves(other, {}, job):
                continue
            if round_.stop(other, why) and attempt():
                return True
        undo()
        return False

    def in_share_order(self, jobs: Iterable[tuple[Entry, Job]], attempt: Callable[[Job, bool], bool]) -> None:
        """Try these jobs, given in the profile's order: first the highest priority; of these first teams within what
        they deserve; of these the team with the least share per weight. `attempt` gets a job and whether its team must
        stay within what it deserves; a job for which it fails is tried again without that, and like it no later job of
        its team that needs the same nodes."""
        by_priority = groupby(jobs, key=lambda each: 0.0 if self.rules.over_priority else each[0][0])
        for _, group in by_priority:
            queues: dict[str, list[tuple[Entry, Job]]] = {}
            for entry, job in group:
                queues.setdefault(self.rules.team(job), []).append((entry, job))
            for within in (True, False):
                self._try_all(queues, within, attempt)

    def _try_all(
        self, queues: Mapping[str, Sequence[tuple[Entry, Job]]], within: bool, attempt: Callable[[Job, bool], bool]
    ) -> None:
        failed = set[Hashable]()
        heads = [(self.level(team), queue[0][0], team, 0) for team, queue in queues.items()]
        heapify(heads)
        while heads:
            level, entry, team, k = heappop(heads)
            if (risen := self.level(team)) > level:
                heappush(heads, (risen, entry, team, k))
                continue
            job = queues[team][k][1]
            kind = (team, job.spec.placement_key)
            if kind not in failed and not attempt(job, within):
                failed.add(kind)
            if k + 1 < len(queues[team]):
                heappush(heads, (self.level(team), queues[team][k + 1][0], team, k + 1))

    def started(self, job: Job) -> None:
        """A job that has just started can give, too."""
        self._preemption.started(job)


class TeamDonors:
    """The order in which jobs give to teams below their share: those of teams above theirs; of these replicas beyond
    the declared size first, then down to the minimum; of these the lowest priority, and what grew or started last."""

    def __init__(self, round_: Round, teams: Teams) -> None:
        self._round = round_
        self._teams = teams

    def gives(self, donor: Job, needed: bool) -> bool:
        held, floor = self._round.placement(donor), donor.spec.minimum
        if not donor.spec.elastic or all(len(names) <= floor.get(type_, 0) for type_, names in held.items()):
            return False
        if not donor.placement:
            return True
        grew = any(len(names) > len(donor.placement.get(type_, ())) for type_, names in held.items())
        return not grew and movable(donor, self._round)

    def floor(self, donor: Job, needed: bool) -> Counts:
        return donor.spec.minimum

    def rank(self, donor: Job) -> tuple[float, ...]:
        spec, held = donor.spec, self._round.placement(donor)
        beyond = any(len(names) > spec.declared.get(type_, 0) for type_, names in held.items())
        last_s = max(donor.rescaled_s, donor.since_s)
        above = self._teams.above(self._teams.rules.team(donor))
        return (not above, not beyond, spec.priority, -last_s, -spec.arrival_s, -spec.sequence)

    def facts(self, donor: Job) -> Mapping[str, float]:
        return {}

    def serves(self, donor: Job, fewer: Counts, job: Job) -> bool:
        return self._teams.improves(donor, fewer, job)


def begin_teams(round_: Round, rules: TeamRules) -> None:
    """Let teams share the cluster in this round."""
    round_.quota = Teams(round_, rules)


def teams_of(round_: Round) -> Teams | None:
    """The teams that share the cluster; None: there are not several."""
    quota = round_.quota
    return quota if isinstance(quota, Teams) and quota.several else None
