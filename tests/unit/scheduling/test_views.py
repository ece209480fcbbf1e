"""What is kept from round to round never changes a plan: after any changes it is that of a Snapshot built anew."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.profiles.aryl import FlexibleReplicas
from elastic_tfjob.scheduling.resources import ANYWHERE, Constraints, Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import UNPLACED, Job, JobSpec, Snapshot
from elastic_tfjob.scheduling.steps.open_jobs import Claims, OpenJobs, Terms, claims_of, open_jobs, unsized
from elastic_tfjob.scheduling.steps.sizes import candidates
from elastic_tfjob.simulation.speed_models.ps import MODELS, PsTrueSpeed
from harness.effort import effort

from .build import node, servers, workers
from .test_properties import carried_out, jobs, snapshots, uses

CASES: list[tuple[str, dict[str, Any]]] = [
    ("srtf", {"stop_cooldown_s": 20}),
    ("las", {"thresholds": "50,5000", "promote_knob": 0.5}),
    ("edf", {"stop_cooldown_s": 20}),
    ("drf", {"cooldown_s": 10}),
    ("drf", {"on_full": "stop", "repack": True, "stop_cooldown_s": 20}),
    ("tetris", {"cooldown_s": 10, "stop_cooldown_s": 20}),
    ("tetris", {}),
    ("optimus", {}),
    ("optimus", {"repack": False, "cooldown_s": 10, "stop_cooldown_s": 20}),
    ("hull", {}),
    ("hull", {"per_resource": True, "cooldown_s": 10, "stop_cooldown_s": 20}),
    ("dl2", {}),
    ("dl2", {"cooldown_s": 10, "stop_cooldown_s": 20}),
    ("deadline", {}),
    ("deadline", {"most_planned": 2, "cooldown_s": 10, "stop_cooldown_s": 20}),
    ("kips", {}),
    ("specon", {}),
    ("specon", {"published": True}),
    ("rebalance", {}),
    ("elastic", {}),
    ("elastic", {"lend": "none", "cooldown_s": 10, "stop_cooldown_s": 20}),
]


@st.composite
def changed(draw: st.DrawFn, job: Job, now: float) -> Job:
    """The job in a way that it may be found a moment later."""
    spec = job.spec
    others: list[dict[str, Any]] = [
        {"phase": "rescaling" if job.placement else "waiting"},
        {"phase": "running" if job.placement else "waiting"},
        {"rescaled_s": now - 5},
        {"stops": 1, "stopped_s": now - 15, "resumed_s": now - 5},
        {"steps": job.steps_at(now), "observed_s": now, "steps_per_s": 2.0 if job.placement else 0.0},
        {"service": job.service + 3000, "since_s": now},
        {"speed": None},
        {"speed": PsTrueSpeed(spec.total_steps or 1.0, MODELS[sorted(MODELS)[0]])},
        {"cpu_use": draw(uses())},
        {"spec": replace(spec, priority=1 - spec.priority)},
        {"spec": replace(spec, stoppable=not spec.stoppable)},
        {"spec": replace(spec, deadline_s=now + 100)},
    ]
    return replace(job, **draw(st.sampled_from(others)))


@pytest.mark.parametrize(("name", "said"), CASES, ids=[f"{name}-{k}" for k, (name, _) in enumerate(CASES)])
@settings(max_examples=effort(4, 8), suppress_health_check=[HealthCheck.too_slow])
@given(start=snapshots(), draw=st.data())
def test_cached_views_equal_those_built_from_scratch(
    name: str, said: dict[str, Any], start: Snapshot, draw: Any
) -> None:
    """Jobs come, go, change in every way that a world has, and the clock goes on or is set back."""
    profile, snapshot = build(name, parse_profile(name, said)), start
    for step in range(4):
        snapshot = carried_out(snapshot, schedule(snapshot, profile), snapshot.now)
        keys = st.lists(st.sampled_from(sorted(snapshot.jobs) or [""]), max_size=3, unique=True)
        touched = [key for key in draw.draw(keys) if key]
        gone = touched[:1] if draw.draw(st.booleans()) else []
        now = snapshot.now + draw.draw(st.sampled_from([0.0, 1.0, 6.0, 30.0, -8.0]))
        news = [draw.draw(changed(snapshot.jobs[key], now)) for key in touched[len(gone) :]]
        news += [draw.draw(jobs(100 + step))] if draw.draw(st.booleans()) else []
        nodes = {**snapshot.nodes, f"m{step}": node(f"m{step}", gpus=2, cpus=4)} if draw.draw(st.booleans()) else None
        snapshot = snapshot.evolve(now, changed=news, removed=gone, nodes=nodes)
        assert schedule(snapshot, profile) == schedule(Snapshot(now, snapshot.nodes, snapshot.jobs), profile)


def test_ties_of_tetris_do_not_depend_on_the_past() -> None:
    """Two jobs alike that may run on the same node, of different shapes: the first in order gets it, also where the
    other's shape waited first."""
    nodes = {"n": node("n", gpus=1, labels={"zone": "x"})}
    here = Constraints(selector=(("zone", "x"),))
    first, second = (JobSpec(f"j{k}", float(k), (workers(1),), k, constraints=(here, Constraints())[k]) for k in (0, 1))
    profile = build("tetris", parse_profile("tetris", {}))
    running = Job(first, {"Worker": ("n",)}, "running")
    snapshot = Snapshot(10.0, nodes, {"j0": running, "j1": Job(second)})
    assert schedule(snapshot, profile).changes == {}
    snapshot = snapshot.evolve(11.0, changed=[Job(first)])
    assert set(schedule(snapshot, profile).changes) == {"j0"}
    turned = Snapshot(11.0, nodes, dict(reversed([*snapshot.jobs.items()])))
    assert set(schedule(turned, profile).changes) == {"j0"}


def test_only_jobs_that_changed_are_computed_again() -> None:
    """The sizes of a job are asked for again where its spec or speed, or the totals are others, and not otherwise."""

    class Sizes:
        def __init__(self, spec: JobSpec) -> None:
            self.sizes = [spec.minimum, spec.declared]

    asked: list[str] = []

    def sizes_of(job: Job, total: Resources) -> Sizes:
        asked.append(job.key)
        return Sizes(job.spec)

    profile = build("drf", parse_profile("drf", {}))
    nodes = {"n": node("n", gpus=8, cpus=8)}
    specs = [JobSpec(f"j{k}", float(k), (servers(1), workers(2, 1, 4)), k) for k in range(3)]
    snapshot = Snapshot(10.0, nodes, {spec.key: Job(spec) for spec in specs})

    def look() -> OpenJobs[Sizes]:
        return candidates(Round(snapshot, profile), OpenJobs, sizes_of, "test")[0]

    assert [job.key for job in look().jobs] == ["j0", "j1", "j2"] == asked
    asked.clear()
    placed = Job(specs[1], {"PS": ("n",), "Worker": ("n", "n")}, "running")
    snapshot = snapshot.evolve(11.0, changed=[placed])
    found = look()
    assert (found.rows, asked, found.held) == ([0, 2, 0], [], placed.holds)
    snapshot = snapshot.evolve(12.0, changed=[replace(placed, placement={"PS": ("n",), "Worker": ("n",) * 3})])
    assert (look().rows, asked) == ([0, -1, 0], [])
    snapshot = snapshot.evolve(13.0, changed=[Job(replace(specs[2], priority=1))], removed=["j0"])
    assert ([job.key for job in look().jobs], asked) == (["j2", "j1"], ["j2"])
    snapshot = snapshot.evolve(14.0, nodes={**nodes, "m": node("m", gpus=8, cpus=8)})
    look()
    assert asked == ["j2", "j2", "j1"], "the totals are others"


def test_the_set_of_open_jobs_follows_the_clock() -> None:
    """A job is not open until its cooldown is over; it is again where the clock is set back."""
    nodes = {"n": node("n", gpus=8)}
    job = Job(JobSpec("j", 0.0, (workers(1, 1, 4),)), {"Worker": ("n",)}, "running", rescaled_s=100.0)
    snapshot = Snapshot(105.0, nodes, {"j": job})
    profile, terms = build("drf", parse_profile("drf", {"cooldown_s": 30})), Terms(0.0, 30.0)
    for now, is_open in ((106.0, False), (130.0, True), (140.0, True), (120.0, False), (131.0, True)):
        snapshot = snapshot.evolve(now)
        found = open_jobs(Round(snapshot, profile), OpenJobs, terms, unsized)
        assert ([*found.jobs], found.others, [*found.later]) == (
            ([job], Resources(), []) if is_open else ([], job.holds, ["j"])
        )


def test_the_claims_of_running_jobs_follow_their_sizes_and_the_round() -> None:
    """No more than is declared (`large`), and less of who has fewer replicas, from the Snapshot or by this round."""
    large, other = (
        Job(JobSpec(key, 0.0, (workers(2, 1, 4),)), {"Worker": ("n",) * n}, "running")
        for key, n in (("large", 3), ("other", 2))
    )
    profile = build("srtf", parse_profile("srtf", {}))
    nodes, terms = {"n": node("n", gpus=8)}, Terms(0.0, resizes=False, waiting=False)
    snapshot = Snapshot(1.0, nodes, {"large": large, "other": other})

    def claimed(round_: Round) -> tuple[list[int], int]:
        claims, total = claims_of(round_, open_jobs(round_, Claims, terms, unsized))
        return [claim.accelerators for claim in claims], total.accelerators

    assert claimed(Round(snapshot, profile)) == ([2, 2], 4)
    snapshot = snapshot.evolve(2.0, changed=[replace(large, placement={"Worker": ("n",)})])
    round_ = Round(snapshot, profile)
    assert claimed(round_) == ([1, 2], 3)
    round_.stop(other, "toy")
    assert claimed(round_) == ([1, 0], 1)
    assert claimed(Round(snapshot, profile)) == ([1, 2], 3), "the next round begins as this one did"


def test_flexible_replicas_follow_jobs_and_are_as_they_were_once_a_round_is_over() -> None:
    large, other = (
        Job(JobSpec(key, 0.0, (workers(1, 1, 4),), constraints=where), {"Worker": ("n",) * n}, "running")
        for key, where, n in (("large", ANYWHERE, 3), ("other", Constraints(selector=(("zone", "x"),)), 2))
    )

    def kept(flexible: FlexibleReplicas) -> tuple[object, ...]:
        return flexible.on, flexible.total, flexible.elastic

    flexible = FlexibleReplicas([large, other])
    flexible.hold(large, UNPLACED)
    flexible.hold(other, {"Worker": ("n",)})
    assert list(flexible.elastic) == [other.spec.placement_key]
    flexible.restore()
    assert kept(flexible) == kept(FlexibleReplicas([large, other]))
    smaller = replace(large, spec=replace(large.spec, groups=(workers(1, 1, 3),)))
    flexible.change(large, smaller, 1.0)
    assert kept(flexible) == kept(FlexibleReplicas([other, smaller]))


def test_an_order_that_is_not_common_is_refused() -> None:
    profile = replace(
        build("drf", parse_profile("drf", {})), order=build("srtf", parse_profile("srtf", {})).order, name="toy"
    )
    with pytest.raises(ValueError, match="toy: waiting and running jobs have no common order"):
        schedule(Snapshot(0.0, {}, {}), profile)
