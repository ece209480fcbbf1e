"""Teams share the cluster by weights: what they deserve, and how the profile elastic gives it to them by shrinking."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.profiles.elastic import planned
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.shares import Ask, deserved, with_growth
from elastic_tfjob.scheduling.snapshot import ClusterRules, Job, JobSpec, OrderRules, Snapshot
from harness.effort import effort

from .build import job, node, servers, snapshot, workers
from .invariants import violations
from .test_properties import carried_out, snapshots

TOTAL = Resources(10_000, 1000, 10)
NEAR = 1e-6


def share_out(total: Resources = TOTAL, **asks: Ask) -> dict[str, float]:
    return deserved(asks, total)


def cpu(cores: float, weight: float = 1.0, guarantee: float = 0.0, limit: float = 1.0) -> Ask:
    demand = Resources(round(cores * 1000))
    return Ask(demand, demand, weight, guarantee, limit)


# -- What teams deserve ------------------------------------------------------------------------------------------------


def test_teams_that_ask_for_everything_share_by_weight() -> None:
    assert share_out(a=cpu(10, 3), b=cpu(10, 1)) == pytest.approx({"a": 0.75, "b": 0.25})


def test_what_one_does_not_ask_for_the_others_get() -> None:
    assert share_out(a=cpu(1, 3), b=cpu(10), c=cpu(10)) == pytest.approx({"a": 0.1, "b": 0.45, "c": 0.45})


def test_guarantee_and_limit() -> None:
    assert share_out(a=cpu(10, 1, 0.6), b=cpu(10, 9)) == pytest.approx({"a": 0.6, "b": 0.4})
    assert share_out(a=cpu(10, 9, 0, 0.3), b=cpu(10)) == pytest.approx({"a": 0.3, "b": 0.7})


def test_a_guarantee_without_demand_takes_nothing() -> None:
    assert share_out(a=cpu(0, 1, 0.9), b=cpu(10)) == pytest.approx({"a": 0.0, "b": 1.0})


def test_teams_with_different_dominant_resources_get_more_than_the_whole_together() -> None:
    """The example of the paper (Ghodsi et al., section 4.1): 9 CPU and 18 GB, jobs of (1, 4) and of (3, 1)."""
    total = Resources(9, 18, 0)
    found = deserved({"a": _many(1, 4), "b": _many(3, 1)}, total)
    assert found == pytest.approx({"a": 2 / 3, "b": 2 / 3})


def _many(cpu_: int, memory: int) -> Ask:
    demand = Resources(cpu_ * 100, memory * 100)
    return Ask(demand, demand)


def test_growth_shares_what_declared_sizes_leave() -> None:
    asks = {
        "a": Ask(Resources(2000), Resources(10_000)),
        "b": Ask(Resources(4000), Resources(5000)),
        "c": Ask(Resources(0), Resources(0)),
    }
    found = with_growth(asks, TOTAL, deserved(asks, TOTAL))
    assert found == pytest.approx({"a": 0.5, "b": 0.5, "c": 0.0})


resources = st.builds(Resources, st.integers(0, 30_000), st.integers(0, 3000), st.integers(0, 30))
weights = st.sampled_from([0.001, 0.5, 1.0, 2.0, 7.0, 1000.0])


@st.composite
def asks(draw: st.DrawFn) -> dict[str, Ask]:
    n = draw(st.integers(1, 6))
    guarantees = draw(st.lists(st.sampled_from([0.0, 0.0, 0.1, 0.15]), min_size=n, max_size=n))
    found = {}
    for k in range(n):
        demand = draw(resources)
        limit = max(guarantees[k], draw(st.sampled_from([1.0, 1.0, 0.3])))
        most = demand.plus(draw(resources))
        found[f"team-{k}"] = Ask(demand, most, draw(weights), guarantees[k], limit)
    return found


def used(asks_: Mapping[str, Ask], shares: Mapping[str, float], total: Resources = TOTAL) -> list[float]:
    """Each resource's used part if teams have these shares of what they ask for."""
    parts = [0.0] * 3
    for name, ask in asks_.items():
        wants = ask.demand.dominant_share(total)
        for r in range(3):
            parts[r] += shares[name] / wants * ask.demand[r] / total[r] if wants else 0.0
    return parts


@settings(max_examples=effort(60, 2000), deadline=None)
@given(asks())
def test_property_1_deserved_shares_fit_the_cluster_and_the_demand(found: dict[str, Ask]) -> None:
    shares = deserved(found, TOTAL)
    assert all(part <= 1 + NEAR for part in used(found, shares))
    for name, ask in found.items():
        wants = ask.demand.dominant_share(TOTAL)
        assert -NEAR <= shares[name] <= min(wants, ask.limit) + NEAR
        assert shares[name] >= min(wants, ask.limit, ask.guarantee) - NEAR
    if all(part < 1 - NEAR for part in used(found, shares)):  # nothing is used up, so all get what they ask for
        for name, ask in found.items():
            assert shares[name] == pytest.approx(min(ask.demand.dominant_share(TOTAL), ask.limit))


@settings(max_examples=effort(60, 2000), deadline=None)
@given(asks(), st.data())
def test_property_1_more_weight_never_gives_less(found: dict[str, Ask], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(found)))
    more = {**found, name: replace(found[name], weight=found[name].weight * 2)}
    assert deserved(more, TOTAL)[name] >= deserved(found, TOTAL)[name] - NEAR


@settings(max_examples=effort(15, 1000), deadline=None)
@given(asks())
def test_many_teams_get_the_same_as_few(found: dict[str, Ask]) -> None:
    """Above some number of teams the sums are updated instead of computed again."""
    nobody = {f"none-{k}": Ask(Resources(), Resources()) for k in range(100)}
    shares = deserved({**found, **nobody}, TOTAL)
    assert {name: shares[name] for name in found} == pytest.approx(deserved(found, TOTAL), abs=NEAR)


# -- Plans: one node whose CPUs are replicas, so that whatever fits the total fits the node ----------------------------

NOW = 1000.0


def elastic(**teams: Any) -> Any:
    return build("elastic", parse_profile("elastic", {"lend": "none", "teams": teams}))


def worker_job(key: str, n: int, low: int = 1, high: int | None = None, has: int = 0, **more: Any) -> Job:
    on = {"Worker": ("n",) * has} if has else None
    more.setdefault("rescaled_s", 0.0)
    return job(key, workers(n, low, high or n, gpus=0, cpus=1), on=on, observed_s=NOW, **more)


def plan(cpus: int, jobs: Iterable[Job], profile: Any = None, orders: OrderRules | None = None) -> Plan:
    found = {each.key: each for each in jobs}
    rules = ClusterRules(orders)
    return schedule(Snapshot(NOW, {"n": node("n", cpus=cpus)}, found, cluster_rules=rules), profile or elastic())


def replicas(made: Plan) -> dict[str, int]:
    held = {key: sum(each.counts.values()) for key, each in made.snapshot.jobs.items()}
    return held | {key: sum(target.replicas.values()) for key, target in made.changes.items()}


def test_a_new_team_gets_its_share_from_the_growth_and_the_declared_size_of_the_other() -> None:
    made = plan(8, [worker_job("a/1", 6, 1, 8, has=8), worker_job("b/1", 6, 1, at=1)])
    assert replicas(made) == {"a/1": 4, "b/1": 4}
    assert made.changes["a/1"].why.code == "team-share"
    assert made.teams["a"].taken == {"shrink": 4}
    assert "makes room for b/1 of team b, which has 0.0% of the cluster and deserves 50.0%" in str(
        made.changes["a/1"].reason
    )


def test_growth_gives_before_declared_sizes_and_the_latest_first() -> None:
    made = plan(
        9,
        [
            worker_job("a/old", 2, 1, 4, has=3, since_s=10),
            worker_job("a/new", 2, 1, 4, has=3, since_s=500),
            worker_job("a/declared", 3, 1, has=3, since_s=900),
            worker_job("b/1", 1, 1, at=1),
        ],
    )
    assert replicas(made) == {"a/old": 3, "a/new": 2, "a/declared": 3, "b/1": 1}


def test_without_reclaim_a_team_waits() -> None:
    jobs = [worker_job("a/1", 8, 1, has=8), worker_job("b/1", 4, 1, at=1)]
    made = plan(8, jobs, elastic(reclaim="none"))
    assert replicas(made) == {"a/1": 8, "b/1": 0}
    assert made.teams["b"].below


def test_only_stop_takes_from_jobs_of_a_fixed_size() -> None:
    jobs = [worker_job(f"a/{k}", 2, 2, has=2, since_s=k) for k in range(4)] + [worker_job("b/1", 4, 4, at=9)]
    assert not plan(8, jobs).changes
    made = plan(8, jobs, elastic(reclaim="stop"))
    assert replicas(made) == {"a/0": 2, "a/1": 2, "a/2": 0, "a/3": 0, "b/1": 4}
    assert made.teams["a"].taken == {"stop": 4}


def test_weights_and_namespaces_of_a_team() -> None:
    jobs = [worker_job("a/1", 8, 1, has=8), worker_job("b1/1", 8, 1, at=1), worker_job("b2/1", 8, 1, at=2)]
    made = plan(8, jobs, elastic(named={"b": {"weight": 3, "namespaces": ["b1", "b2"]}}))
    assert made.teams.keys() == {"a", "b"}
    assert made.teams["b"].share == pytest.approx(0.75)
    assert replicas(made)["a/1"] == 2


def test_priority_comes_before_shares_unless_the_rules_turn_that_round() -> None:
    jobs = [worker_job("a/1", 8, 1, has=8, priority=5), worker_job("b/1", 4, 1, at=1)]
    assert replicas(plan(8, jobs)) == {"a/1": 8, "b/1": 0}
    assert replicas(plan(8, jobs, elastic(over_priority=True))) == {"a/1": 4, "b/1": 4}


def test_a_limit_holds_although_capacity_is_free() -> None:
    limited = elastic(named={"a": {"limit": 0.5}})
    made = plan(8, [worker_job("a/1", 6, 4, 8), worker_job("a/2", 4, 2, at=1)], limited)
    assert replicas(made) == {"a/1": 4, "a/2": 0}
    assert made.refusals["a/2"].code == "team-limit"
    assert "team a may have at most 50.0% of the cluster" in str(made.refusals["a/2"])


@pytest.mark.parametrize("others", [[], [worker_job("b/1", 2, 2, at=5)]])
def test_a_job_that_its_teams_limit_keeps_small_is_told_so(others: list[Job]) -> None:
    limited = elastic(named={"a": {"limit": 0.5}})
    made = plan(8, [worker_job("a/1", 6, 1, 8), *others], limited)
    assert replicas(made)["a/1"] == 4
    why = made.changes["a/1"].why
    assert (why.code, dict(why.facts)) == ("team-limit", {"team": "a", "limit": 0.5})
    full = [worker_job("b/1", 6, 6, has=6), worker_job("a/1", 4, 1, at=1)]
    made = plan(8, full, limited)
    assert (replicas(made)["a/1"], made.changes["a/1"].why.code) == (2, "less-room")


def test_a_team_at_its_limit_orders_no_nodes() -> None:
    jobs = [worker_job("a/1", 4, 4, has=4), worker_job("a/2", 4, 4, at=1), worker_job("b/1", 8, 8, at=2)]
    made = plan(8, jobs, elastic(named={"a": {"limit": 0.5}}), orders=OrderRules())
    assert made.orders.keys() == {"b/1"}


def test_a_team_that_has_its_share_is_told_so() -> None:
    made = plan(8, [worker_job("a/1", 4, 4, has=4), worker_job("b/1", 4, 4, has=4), worker_job("a/2", 2, 2, at=1)])
    assert made.refusals["a/2"].code == "team-served"
    assert "beyond what its team deserves: a has 50.0%" in str(made.refusals["a/2"])


def test_a_running_job_below_its_declared_size_gets_its_share_too() -> None:
    made = plan(8, [worker_job("a/1", 8, 1, has=7), worker_job("b/1", 8, 1, has=1, at=1)])
    assert replicas(made) == {"a/1": 4, "b/1": 4}


# -- The properties ----------------------------------------------------------------------------------------------------


@st.composite
def team_snapshots(draw: st.DrawFn) -> tuple[Snapshot, dict[str, Any]]:
    """Two to four teams whose jobs have replicas of one CPU on one node; some run, and may hold more than is fair."""
    cpus = draw(st.integers(4, 16))
    teams = [f"t{k}" for k in range(draw(st.integers(2, 4)))]
    jobs, free = {}, cpus
    for k in range(draw(st.integers(2, 9))):
        low = draw(st.integers(1, 3))
        count = draw(st.integers(low, 6))
        high = draw(st.integers(count, 10))
        team = draw(st.sampled_from(teams))
        has = draw(st.sampled_from([0, low, count, high]))
        has = has if has <= free else 0
        free -= has
        made = worker_job(f"{team}/job-{k}", count, low, high, has=has, at=float(k), since_s=float(k))
        jobs[made.key] = replace(made, spec=replace(made.spec, sequence=k))
    named = {team: {"weight": draw(st.sampled_from([1, 1, 2, 5]))} for team in teams}
    return Snapshot(NOW, {"n": node("n", cpus=cpus)}, jobs), {"named": named}


def held(found: Snapshot) -> dict[str, int]:
    by_team: dict[str, int] = {}
    for each in found.jobs.values():
        by_team[each.spec.scope] = by_team.get(each.spec.scope, 0) + sum(each.counts.values())
    return by_team


def at_rest(found: Snapshot, profile: Any, check: Callable[[Snapshot, Plan], None] = lambda s, p: None) -> Snapshot:
    """The cluster once plans change nothing more; it must come to that."""
    for k in range(30):
        made = schedule(found, profile)
        assert not violations(made)
        check(found, made)
        if not made.changes:
            return found
        found = carried_out(found, made, NOW + 100 * (k + 1))
        found = found.evolve(found.now + 60)  # after the cooldown
    raise AssertionError("still changes after 30 plans")


def dues(found: Snapshot, profile: Any) -> dict[str, float]:
    """What each team deserves, in CPUs."""
    cpus = found.nodes["n"].capacity.cpu_millicores / 1000
    return {team: each.deserved * cpus for team, each in schedule(found, profile).teams.items()}


def could_give(found: Snapshot, due: Mapping[str, float], taker: str) -> int:
    """How many replicas other teams could give one by one so that it gets fairer, written down independently."""
    has, total = held(found), 0
    part = min(1.0, has[taker] / due[taker])
    for team in has:
        if team == taker:
            continue
        spare = sum(
            sum(each.counts.values()) - each.spec.minimum["Worker"]
            for each in found.jobs.values()
            if each.spec.scope == team and each.placement
        )
        mine = has[team]
        while spare > 0 and mine > due[team] + NEAR and (mine - 1) / max(due[team], NEAR) > part + NEAR:
            mine, spare, total = mine - 1, spare - 1, total + 1
    return total


@settings(max_examples=effort(12, 1000), deadline=None)
@given(team_snapshots())
def test_property_2_no_team_waits_below_its_share_while_another_could_give(
    case: tuple[Snapshot, dict[str, Any]],
) -> None:
    found, terms = case
    profile = elastic(**terms)
    found = at_rest(found, profile)
    due, has = dues(found, profile), held(found)
    free = found.nodes["n"].capacity.cpu_millicores // 1000 - sum(has.values())
    for each in found.jobs.values():
        least, team = each.spec.minimum["Worker"], each.spec.scope
        if not each.placement and has[team] + least <= due[team] + NEAR:
            assert free + could_give(found, due, team) < least, (each.key, due, has)


@settings(max_examples=effort(12, 1000), deadline=None)
@given(team_snapshots())
def test_property_3_nothing_stays_free_that_a_waiting_job_could_use(case: tuple[Snapshot, dict[str, Any]]) -> None:
    found, terms = case
    found = at_rest(found, elastic(**terms))
    free = found.nodes["n"].capacity.cpu_millicores // 1000 - sum(held(found).values())
    assert all(each.placement or each.spec.minimum["Worker"] > free for each in found.jobs.values())


@settings(max_examples=effort(12, 1000), deadline=None)
@given(team_snapshots(), st.sampled_from(["shrink", "stop"]))
def test_property_4_each_reclaim_is_fairer(case: tuple[Snapshot, dict[str, Any]], reclaim: str) -> None:
    """The sorted parts that teams have of what they deserve get greater, so reclaims end."""
    found, terms = case
    profile = elastic(**terms, reclaim=reclaim)

    def parts(has: Mapping[str, int], due: Mapping[str, float]) -> list[float]:
        return sorted(round(min(1.0, has[team] / due[team]), 9) for team in has if due[team] > 0)

    def check(before: Snapshot, made: Plan) -> None:
        if any(target.why.code == "team-share" for target in made.changes.values()):
            due, after = dues(before, profile), carried_out(before, made, before.now)
            assert parts(held(after), due) > parts(held(before), due)

    at_rest(found, profile, check)


@settings(max_examples=effort(10, 500), deadline=None)
@given(team_snapshots(), st.permutations(["t0", "t1", "t2", "t3"]))
def test_property_5_names_do_not_matter(case: tuple[Snapshot, dict[str, Any]], names: list[str]) -> None:
    found, terms = case
    other = {f"t{k}": name for k, name in enumerate(names)}

    def renamed(key: str) -> str:
        team, _, name = key.partition("/")
        return f"{other[team]}/{name}"

    def with_name(each: Job) -> Job:
        return replace(each, spec=replace(each.spec, key=renamed(each.key)))

    first = schedule(found, elastic(**terms))
    jobs = {renamed(key): with_name(each) for key, each in found.jobs.items()}
    again = schedule(
        Snapshot(NOW, found.nodes, jobs), elastic(named={other[team]: each for team, each in terms["named"].items()})
    )
    assert {renamed(key): target.nodes for key, target in first.changes.items()} == {
        key: target.nodes for key, target in again.changes.items()
    }


@settings(max_examples=effort(10, 500), deadline=None)
@given(team_snapshots(), st.data())
def test_property_5_a_job_split_in_two_deserves_no_more(
    case: tuple[Snapshot, dict[str, Any]], data: st.DataObject
) -> None:
    found, terms = case
    key = data.draw(st.sampled_from(sorted(found.jobs)))
    whole = found.jobs[key]
    group = whole.spec.groups[0]
    if group.count < 2:
        return
    first = group.count // 2
    halves = [
        replace(whole.spec, key=f"{key}-{k}", groups=(replace(group, count=n, minimum=1, maximum=n),))
        for k, n in enumerate((first, group.count - first))
    ]
    split = {each.key: each for each in found.jobs.values() if each.key != key}
    split |= {spec.key: Job(spec) for spec in halves}
    profile = elastic(**terms)
    due = schedule(Snapshot(NOW, found.nodes, split), profile).teams
    for team, each in schedule(found, profile).teams.items():
        assert due[team].deserved == pytest.approx(each.deserved)


@settings(max_examples=effort(10, 500), deadline=None)
@given(snapshots())
def test_property_6_one_team_alone_decides_as_without_teams(found: Snapshot) -> None:
    given_: tuple[dict[str, Any], ...] = ({}, {"teams": {}})
    plans = [
        schedule(
            Snapshot(found.now, found.nodes, found.jobs, found.seed), build("elastic", parse_profile("elastic", g))
        )
        for g in given_
    ]
    first, second = (
        (made.changes, made.loans, made.refusals, made.kept, made.memory, made.held_back) for made in plans
    )
    assert first == second


@settings(max_examples=effort(12, 1000), deadline=None)
@given(team_snapshots(), st.sampled_from([0.25, 0.5, 0.75]), st.integers(1, 8))
def test_property_7_a_guarantee_is_met_at_once_if_minima_allow(
    case: tuple[Snapshot, dict[str, Any]], guarantee: float, asks_for: int
) -> None:
    found, _ = case
    cpus = found.nodes["n"].capacity.cpu_millicores // 1000
    terms = {"named": {"new": {"guarantee": guarantee}}}
    profile = elastic(**terms)
    found = at_rest(found, profile)
    came = worker_job("new/job", asks_for, 1, at=found.now)
    found = found.evolve(found.now + 30, changed=[came])
    due = min(asks_for, int(guarantee * cpus + NEAR))
    minima = sum(each.spec.minimum["Worker"] for each in found.jobs.values() if each.placement)
    if minima + due > cpus or not due:
        return
    after = carried_out(found, schedule(found, profile), found.now + 30)
    assert held(after)["new"] >= due


def total_held(found: Snapshot, team: str) -> Resources:
    held_ = Resources()
    for each in found.jobs.values():
        if each.spec.scope == team:
            held_ = held_.plus(each.spec.demand(each.counts))
    return held_


@settings(max_examples=effort(15, 1000), deadline=None)
@given(snapshots(), st.data())
def test_any_plan_of_teams_is_valid_and_ends(found: Snapshot, data: st.DataObject) -> None:
    """Nodes of several kinds, PS, deadlines, known speeds, jobs that must not change: jobs of three namespaces."""
    jobs = {}
    for each in found.jobs.values():
        key = f"{data.draw(st.sampled_from(['a', 'b', 'c']))}/{each.key}"
        jobs[key] = replace(each, spec=replace(each.spec, key=key))
    limit = data.draw(st.sampled_from([0.3, 1.0]))
    named = {"a": {"weight": 3}, "b": {"guarantee": 0.4}, "c": {"limit": limit}}
    rules = {"named": named, "reclaim": data.draw(st.sampled_from(["shrink", "stop", "none"]))}
    profile = build("elastic", parse_profile("elastic", {"teams": rules}))
    found = Snapshot(found.now, found.nodes, jobs, found.seed)
    made = schedule(found, profile)
    assert not violations(made)
    after = total_held(carried_out(found, made, found.now), "c")
    if "c" in made.teams and made.teams["c"].share > limit + NEAR:
        assert after.within(total_held(found, "c")) or made.loans  # it had that already


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"named": {"a": {"weight": -1}}}, "elastic.teams.named.a.weight should be greater than or equal to 0.001"),
        ({"named": {"a": {"weight": 1e9}}}, "elastic.teams.named.a.weight should be less than or equal to 1000"),
        ({"named": {"a": {"guarantee": 0.5, "limit": 0.2}}}, "limit, 0.2, must be at least the guarantee, 0.5"),
        (
            {"named": {"a": {"guarantee": 0.7}, "b": {"guarantee": 0.6}}},
            "the guarantees of named add up to 1.3 of the cluster; allowed: at most 1",
        ),
        (
            {"named": {"a": {"namespaces": ["x"]}, "b": {"namespaces": ["x"]}}},
            "namespace x is in the teams a and b; allowed: one team",
        ),
        ({"reclaim": "evict"}, "elastic.teams.reclaim"),
        ({"named": {"No Name": {}}}, "elastic.teams.named.No Name"),
        ({"weights": {"a": 2}}, "elastic.teams.weights is not known"),
    ],
)
def test_bad_terms_are_refused_with_the_place_and_what_is_allowed(given_: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match="elastic") as error:
        parse_profile("elastic", {"teams": given_})
    assert said in str(error.value)


def test_the_work_of_a_round_is_linear_in_the_teams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each namespace is a team, and whoever may create namespaces could slow down the rounds of all."""
    calls = Counter[str]()
    scope, is_planned = JobSpec.scope, planned

    def counted(what: str, value: Any) -> Any:
        calls[what] += 1
        return value

    monkeypatch.setattr(JobSpec, "scope", property(lambda spec: counted("scope", scope.fget(spec))))  # type: ignore[attr-defined]
    monkeypatch.setattr(f"{is_planned.__module__}.planned", lambda job, now: counted("planned", is_planned(job, now)))
    n = 300
    waiting = [
        job(f"ns{k}/j", workers(1 + k % 7, 1, 8, gpus=0, cpus=1 + k % 13 / 10), servers(1), at=float(k))
        for k in range(n)
    ]
    found = snapshot([node("n", cpus=16)], waiting, 1000.0)
    assert schedule(found, build("elastic", parse_profile("elastic", {"lend": "none", "teams": {}}))).changes
    assert max(calls.values()) < 60 * n, calls
