"""What holds for kips on the small clusters it is for, over some rounds of a world that answers."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import CHIEF, PS, WORKER, Job, JobSpec, ReplicaGroup, Snapshot
from elastic_tfjob.scheduling.steps.preemption import Preemption
from elastic_tfjob.speed.optimus import believe
from harness.effort import effort

from .build import node
from .invariants import violations

KIPS = build("kips", parse_profile("kips", {}))
USE = st.sampled_from([None, 0.05, 0.2, 0.4, 0.6, 0.9, 1.0])
HOLDING = ("makes-room", "slower", "node-full", "lost", "bounds", "requested-size")
"""Codes of the reasons for which a running job may lose replicas."""


@st.composite
def specs(draw: st.DrawFn, k: int) -> JobSpec:
    groups = []
    for type_, most in ((CHIEF, 1), (PS, 3), (WORKER, 6)):
        low = draw(st.integers(1, min(2, most)))
        count = draw(st.integers(low, most))
        high = draw(st.integers(count, most))
        if type_ != CHIEF or draw(st.booleans()):
            groups.append(ReplicaGroup(type_, Resources(draw(st.sampled_from([50, 70, 100]))), count, low, high))
    return JobSpec(
        f"job-{k}",
        draw(st.integers(0, 90)) * 1.0,
        tuple(groups),
        sequence=k,
        priority=draw(st.sampled_from([0, 0, 1])),
        total_steps=draw(st.sampled_from([None, 100.0, 10000.0])),
        resizable=draw(st.sampled_from([True, True, True, False])),
    )


def lived(draw: Any, job: Job, now: float) -> Job:
    """The job some time later: how busy its replicas are and how fast it is, each maybe not known."""
    if not job.placement:
        return job
    size = (len(job.placement.get(PS, ())), len(job.placement[WORKER]))
    seen = dict(getattr(job.speed, "measured", {})) | {size: draw(st.sampled_from([1.0, 2.0, 3.0]))}
    use = {t: u for t in job.placement if (u := draw(USE)) is not None}
    return replace(job, cpu_use=use, steps_per_s=seen[size], observed_s=now, steps=0.0, speed=believe(seen))


def carried_out(before: Snapshot, plan: Plan) -> Snapshot:
    changed = []
    for key, target in plan.changes.items():
        old = before.jobs[key]
        changed.append(
            replace(
                old,
                placement=target.nodes,
                cpu=target.cpu,
                memory=plan.memory.get(key, old.memory),
                phase="running" if target.nodes else "waiting",
                cpu_use={},
                steps_per_s=old.steps_per_s if target.replicas == old.counts else 0.0,
                since_s=before.now,
                executed_s=old.executed_s + (before.now - old.since_s if old.placement else 0.0),
                rescaled_s=before.now if old.placement and target.replicas != old.counts else old.rescaled_s,
            )
        )
    return before.evolve(before.now, changed=changed)


@settings(max_examples=effort(20, 40), suppress_health_check=[HealthCheck.too_slow])
@given(draw=st.data())
def test_rounds_of_a_small_cluster(draw: Any) -> None:
    """Each round: capacity, gangs, bounds and requests hold; nobody loses replicas without a reason to; what was just
    decided is not decided otherwise; and no job is rescaled twice within its cooldown."""
    nodes = {n.name: n for k in range(3) for n in [node(f"n{k}", cpus=draw.draw(st.sampled_from([0.35, 0.7, 1.4])))]}
    snapshot = Snapshot(100.0, nodes, {})
    made = 0
    for _ in range(5):
        new = [Job(draw.draw(specs(made + k)), since_s=snapshot.now) for k in range(draw.draw(st.integers(0, 2)))]
        made += len(new)
        gone = [key for key in snapshot.jobs if draw.draw(st.integers(0, 4)) == 0]
        now = snapshot.now + draw.draw(st.sampled_from([5, 40]))
        stay = [lived(draw.draw, job, now) for key, job in snapshot.jobs.items() if key not in gone]
        snapshot = snapshot.evolve(now, changed=[*stay, *new], removed=gone)
        plan = schedule(snapshot, KIPS)
        assert violations(plan) == []
        assert set(plan.targets) | set(plan.waiting) == set(snapshot.jobs)
        assert plan == schedule(Snapshot(snapshot.now, snapshot.nodes, snapshot.jobs), KIPS)
        for key, target in plan.changes.items():
            job = snapshot.jobs[key]
            assert target.nodes, "kips never preempts"
            if job.placement and target.replicas != job.counts:
                assert now - job.rescaled_s >= KIPS.cooldown_s
                if any(target.replicas[t] < n for t, n in job.counts.items()):
                    assert target.why.code in HOLDING
        snapshot = carried_out(snapshot, plan)
        again = schedule(snapshot, KIPS)
        assert again.changes == {}, "an unchanged world, another plan"


@settings(max_examples=effort(40, 150), suppress_health_check=[HealthCheck.too_slow])
@given(draw=st.data())
def test_skipping_preemptions_that_failed_changes_no_decision(draw: Any) -> None:
    """Many jobs wait, of different ages and priorities, beside some that run: without the bound the same start, and
    the same give."""
    nodes = [node(f"n{k}", cpus=draw.draw(st.sampled_from([0.35, 0.7]))) for k in range(3)]
    first = {f"job-{k}": Job(draw.draw(specs(k))) for k in range(4)}
    start = schedule(Snapshot(0.0, {n.name: n for n in nodes}, first), KIPS)
    jobs = carried_out(start.snapshot, start).jobs
    waiting = [Job(draw.draw(specs(k)), since_s=draw.draw(st.integers(0, 100)) * 1.0) for k in range(4, 12)]
    running = [lived(draw.draw, job, 100.0) for job in jobs.values()]
    crowd = Snapshot(100.0, start.snapshot.nodes, {job.key: job for job in (*running, *waiting)})
    bounded = schedule(crowd, KIPS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Preemption, "in_vain", lambda *_, **__: False)
        assert bounded == schedule(Snapshot(crowd.now, crowd.nodes, crowd.jobs), KIPS)
