"""Invariants of every profile over random clusters and jobs."""

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.forecasts import prediction_of
from elastic_tfjob.scheduling.orders import FORGIVEN
from elastic_tfjob.scheduling.places import PLACES
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.profiles import PROFILES, build, parse_profile
from elastic_tfjob.scheduling.resources import ANYWHERE, Constraints, Taint, Toleration
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Counts, Job, JobSpec, Node, Snapshot
from elastic_tfjob.simulation.engine import carry_out_loans
from elastic_tfjob.simulation.speed_models.ps import MODELS, PsTrueSpeed
from elastic_tfjob.speed.growth import NOT_REPORTED, Growth
from harness.effort import effort

from .build import node, servers, workers
from .invariants import violations

NOW = 1000.0
times = st.sampled_from([0.0, 50.0, 3000.0])


@st.composite
def bounds(draw: st.DrawFn) -> tuple[int, int, int]:
    low = draw(st.integers(1, 3))
    count = draw(st.integers(low, low + 2))
    return count, low, draw(st.integers(count, count + 3))


@st.composite
def specs(draw: st.DrawFn, k: int) -> JobSpec:
    groups = []
    with_ps = draw(st.booleans())
    if with_ps:
        groups.append(servers(*draw(bounds()), cpus=draw(st.sampled_from([0.5, 1, 2]))))
    groups.append(
        workers(*draw(bounds()), gpus=draw(st.sampled_from([0, 0, 1, 2])), cpus=draw(st.sampled_from([1, 2])))
    )
    steps = draw(st.sampled_from([None, 500.0, 5000.0]))
    return JobSpec(
        f"job-{k}",
        draw(st.integers(0, 999)) * 1.0,
        tuple(groups),
        sequence=k,
        priority=draw(st.sampled_from([0, 0, 0, 1])),
        deadline_s=draw(st.sampled_from([None, 900.0, 2000.0])),
        total_steps=steps,
        duration_s=draw(st.sampled_from([None, steps])),
        resizable=draw(st.sampled_from([True, True, False])),
        stoppable=draw(st.sampled_from([True, True, False])),
        movable=draw(st.sampled_from([True, True, False])),
        fixed_cpu=draw(st.sampled_from([False, False, True])),
        asked=draw(st.sampled_from(["", "", "asked for by a person"])),
        loanable=draw(st.booleans()),
        constraints=draw(
            st.sampled_from(
                [
                    ANYWHERE,
                    ANYWHERE,
                    Constraints(selector=(("zone", "x"),)),
                    Constraints(tolerations=(Toleration("t", "Exists"),)),
                ]
            )
        ),
    )


@st.composite
def uses(draw: st.DrawFn) -> dict[str, float]:
    """How busy replicas are, where it is known."""
    known = {t: draw(st.sampled_from([None, 0.05, 0.25, 0.5, 0.9, 1.0])) for t in (PS, WORKER)}
    return {t: use for t, use in known.items() if use is not None}


@st.composite
def losses(draw: st.DrawFn) -> Growth:
    """Of a loss that falls by these amounts from one reading to the next; no fall, no reading."""
    found, loss = NOT_REPORTED, 10.0
    for k, fall in enumerate(draw(st.lists(st.sampled_from([1.0, 0.01, 0.0, -0.5, nan]), max_size=4))):
        loss -= fall
        found = found.read(100.0 * k, loss, 20.0 * k)
    return found


@st.composite
def jobs(draw: st.DrawFn, k: int) -> Job:
    spec = draw(specs(k))
    speed = (
        PsTrueSpeed(spec.total_steps or 1.0, MODELS[draw(st.sampled_from(sorted(MODELS)))])
        if draw(st.booleans())
        else None
    )
    stops = draw(st.sampled_from([0, 0, 1, 3]))
    return Job(
        spec,
        loss=draw(losses()),
        stops=stops,
        stopped_s=draw(st.sampled_from([500.0, NOW - 10])) if stops else -inf,
        service=draw(st.sampled_from([0.0, 100.0, 4000.0, 9000.0])),
        since_s=draw(st.sampled_from([0.0, 500.0, NOW])),
        executed_s=draw(st.sampled_from([0.0, 50.0])),
        observed_s=NOW,
        speed=speed,
        cpu_use=draw(uses()),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Some jobs run already: placed by FIFO with backfill, best fit, on part of the jobs."""
    nodes = {}
    for i in range(draw(st.integers(0, 5))):
        name = f"n{i}"
        made_node = node(
            name,
            gpus=draw(st.sampled_from([0, 2, 4])),
            cpus=draw(st.sampled_from([2, 4, 8])),
            labels={"zone": draw(st.sampled_from(["x", "y"]))},
            taints=draw(st.sampled_from([(), (), (Taint("t"),)])),
            loan=draw(st.sampled_from(["own", "own", "own", "loaned", "offered", "busy"])),
        )
        nodes[name] = replace(made_node, accelerator_speed=draw(st.sampled_from([1.0, 1.0, 0.5, 3.0])))
    made = [draw(jobs(k)) for k in range(draw(st.integers(0, 8)))]
    first = draw(st.integers(0, len(made)))
    before = Snapshot(NOW - 100, nodes, {j.key: j for j in made[:first]})
    plan = schedule(before, build("fifo-backfill", parse_profile("fifo-backfill", {})))
    running = carried_out(before, plan, NOW - 100)
    running = moved(draw, running)
    used = {
        key: replace(j, cpu_use=draw(uses()), executed_s=draw(times), loss=draw(losses()))
        for key, j in running.jobs.items()
    }
    for key, job in used.items():
        if job.placement and draw(st.integers(0, 3)) == 0:
            used[key] = replace(job, phase="rescaling")
    return Snapshot(NOW, robbed(draw, nodes), {**used, **{j.key: j for j in made[first:]}})


def moved(draw: st.DrawFn, snapshot: Snapshot) -> Snapshot:
    """Some replicas are where no placement would have put them."""
    profile = build("fifo-backfill", parse_profile("fifo-backfill", {}))
    round_ = Round(snapshot, profile)
    for job in snapshot.jobs.values():
        for type_, names in job.placement.items():
            if draw(st.integers(0, 2)) == 0:
                where = draw(st.sampled_from(sorted(snapshot.nodes)))
                round_.move(job, (type_, draw(st.integers(0, len(names) - 1))), where, "drawn")
    return carried_out(snapshot, round_.plan(), snapshot.now)


def robbed(draw: st.DrawFn, nodes: dict[str, Node]) -> dict[str, Node]:
    """Some nodes are lost; some that were lent to us are wanted back."""
    left = {name: found for name, found in nodes.items() if draw(st.integers(0, 5))}
    return {
        name: replace(found, loan="reclaiming") if found.loan == "loaned" and draw(st.booleans()) else found
        for name, found in left.items()
    }


def carried_out(before: Snapshot, plan: Plan, now: float) -> Snapshot:
    """The Snapshot once all changes of the plan are there."""
    changed = []
    for key, target in plan.changes.items():
        old = before.jobs[key]
        rate = (old.speed.steps_per_s(target.replicas) or 0.0) if old.speed else believed(old, target.replicas)
        changed.append(
            Job(
                old.spec,
                target.nodes,
                "running" if target.nodes else "waiting",
                old.steps_at(now),
                now,
                rate if target.nodes else 0.0,
                now,
                old.service_at(now),
                old.executed_s + (max(0.0, now - old.since_s) if old.placement else 0.0),
                now if old.placement and target.replicas != old.counts else old.rescaled_s,
                migrations=old.migrations + (bool(old.placement) and target.replicas == old.counts),
                speed=old.speed,
                loss=old.loss,
                stops=old.stops + (not target.nodes),
                stopped_s=old.stopped_s if target.nodes else now,
                resumed_s=now if target.nodes and old.stops and not old.placement else old.resumed_s,
                cpu=target.cpu,  # how busy replicas are is not known right after a change
                memory=plan.memory.get(key, old.memory),
            )
        )
    alone = {key: memory for key, memory in plan.memory.items() if key not in plan.changes}
    changed += [replace(before.jobs[key], memory=memory) for key, memory in alone.items()]
    nodes = carry_out_loans(plan.loans, before.nodes, before.pools)[0] if plan.loans else None
    return before.evolve(now, changed=changed, nodes=nodes)


def believed(job: Job, counts: Counts) -> float:
    """Of a job whose speed nothing tells: as it is expected from the speed that it has, so that nobody is surprised."""
    rate = replace(prediction_of(job), use={}).at(counts)
    return 1.0 if rate is None else rate.steps_per_s


LATER_AT_REST = ("aryl", "deadline", "drf", "elastic", "hull", "optimus")
"""All but `aryl` plan with totals: where a job does not find nodes for what the totals have, the next round begins from
other running jobs, and gives what is left. `aryl` gives nodes back, and who was stopped for that may start
elsewhere."""


def at_rest(snapshot: Snapshot, profile: Profile) -> tuple[Snapshot, Plan]:
    """After a few rounds in which nothing else happens."""
    for _ in range(6):
        plan = schedule(snapshot, profile)
        assert violations(plan) == []
        if not plan.changes:
            break
        snapshot = carried_out(snapshot, plan, snapshot.now)
    return snapshot, schedule(snapshot, profile)


CASES: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in PROFILES]
CASES += [(name, {"place": place}) for name in ("fifo-backfill", "drf") for place in PLACES]
CASES += [("specon", {"published": True})]
"""Every profile as it comes, every placement under one that never resizes and one that does, and SpeCon."""


@pytest.mark.parametrize(
    ("name", "said"), CASES, ids=[f"{n}-{''.join(map(str, s.values())) or 'own'}" for n, s in CASES]
)
@settings(max_examples=effort(5, 15), suppress_health_check=[HealthCheck.too_slow])
@given(snapshot=snapshots(), extra=st.data())
def test_invariants(name: str, said: dict[str, Any], snapshot: Snapshot, extra: Any) -> None:
    """Capacity, gangs, bounds and constraints hold; equal input gives an equal plan, whether views were kept or not;
    a plan that was carried out gives nothing more to do, or soon no more."""
    # What runs on nodes is no state of a cluster without nodes.
    assume(said.get("place") != "count" or not any(j.placement for j in snapshot.jobs.values()))
    profile = build(name, parse_profile(name, said))
    plan = schedule(snapshot, profile)
    assert violations(plan) == []
    assert set(plan.targets) | set(plan.waiting) == set(snapshot.jobs)
    assert plan == schedule(Snapshot(snapshot.now, snapshot.nodes, snapshot.jobs), profile)
    settled = carried_out(snapshot, plan, snapshot.now)
    again = schedule(settled, profile)
    assert again == schedule(Snapshot(settled.now, settled.nodes, settled.jobs), profile)
    if name in LATER_AT_REST:
        settled, again = at_rest(settled, profile)
    assert again.changes == {}, "an unchanged world, another plan"
    assert again.memory == {}, "an unchanged world, something else to remember"
    new = extra.draw(jobs(99))
    gone = extra.draw(st.sampled_from(sorted(settled.jobs))) if settled.jobs else None
    later = settled.evolve(NOW + 7, changed=[new], removed=[gone] if gone else [])
    plan = schedule(later, profile)
    assert violations(plan) == []
    assert plan == schedule(Snapshot(later.now, later.nodes, later.jobs), profile)


@settings(max_examples=effort(13, 40), suppress_health_check=[HealthCheck.too_slow])
@given(
    snapshot=snapshots(), forgiven=st.lists(st.sampled_from([None, -1.0, 0.0, 100.0, 1e300]), min_size=8, max_size=8)
)
def test_a_plan_made_with_its_own_memory_does_not_change(snapshot: Snapshot, forgiven: list[float | None]) -> None:
    """The profile whose plans depend on what it remembers: fed back, there is nothing more to do or to remember."""
    known = [
        replace(job, memory={} if number is None else {FORGIVEN: number})
        for job, number in zip(snapshot.jobs.values(), forgiven, strict=False)
    ]
    snapshot = snapshot.evolve(snapshot.now, changed=known)
    profile = build("las", parse_profile("las", {"promote_knob": 0.1, "thresholds": [50.0, 5000.0]}))
    plan = schedule(snapshot, profile)
    assert violations(plan) == []
    assert plan == schedule(Snapshot(snapshot.now, snapshot.nodes, snapshot.jobs), profile)
    again = schedule(carried_out(snapshot, plan, snapshot.now), profile)
    assert (again.changes, again.memory) == ({}, {})


NODES = st.fixed_dictionaries(
    {
        "loan": st.sampled_from(["own", "own", "busy", "offered", "loaned", "reclaiming"]),
        "cpus": st.sampled_from([2, 4, 8]),
        "gpus": st.sampled_from([0, 2]),
    }
)


LOANS = [("none", "first"), *(("offered", rule) for rule in ("first", "cost", "fewest", "random"))]


@pytest.mark.parametrize("name", ["fifo-backfill", "srtf", "drf", "kips"])
@pytest.mark.parametrize("place", PLACES)
@settings(max_examples=effort(4, 8), suppress_health_check=[HealthCheck.too_slow])
@given(start=snapshots(), draw=st.data())
def test_views_follow_nodes(name: str, place: str, start: Snapshot, draw: Any) -> None:
    """Nodes come and go, grow, and are lent and returned, under jobs that run there: plans are those of a Snapshot that
    is built from nothing, and leave the kept one as it was."""
    assume(place != "count" or not any(j.placement for j in start.jobs.values()))
    lend, reclaim = draw.draw(st.sampled_from(LOANS))
    profile = build(name, parse_profile(name, {"place": place, "lend": lend, "reclaim": reclaim}))
    snapshot = start
    for later in (1, 2, 3):
        names = draw.draw(st.lists(st.sampled_from([f"n{k}" for k in range(6)]), unique=True))
        nodes = {n: node(n, **draw.draw(NODES)) for n in sorted(names)}
        nodes |= {n: kept for n, kept in snapshot.nodes.items() if draw.draw(st.booleans())}
        lent = [replace(j, spec=replace(j.spec, loanable=draw.draw(st.booleans()))) for j in snapshot.jobs.values()]
        schedule(snapshot, profile)
        snapshot = snapshot.evolve(NOW + later, changed=lent, nodes=nodes)
        plan = schedule(snapshot, profile)
        assert plan == schedule(Snapshot(snapshot.now, nodes, snapshot.jobs), profile)
        assert plan == schedule(snapshot, profile), "a plan is undone when it is made"
        snapshot = carried_out(snapshot, plan, snapshot.now)
