"""Whatever stands in specs, annotations, pods and reports: a round comes to targets, and no node gets too much."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.reports import CpuUse, Report
from elastic_tfjob.controller.model.status import format_time
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.controller.planning.core_job import active, judge
from elastic_tfjob.controller.planning.job_view import JobView, view_of
from elastic_tfjob.controller.planning.round import assemble
from elastic_tfjob.controller.planning.targets import decide, decide_fixed, released, suspended
from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.resources import NOTHING, Resources
from harness.effort import effort

from .build import NOW
from .test_snapshot import NODES, bound, elastic_job, refused_pod

PROFILES = ["kips", "fifo", "fifo-backfill", "srtf", "edf", "drf", "optimus", "tetris", "las"]
NODE = st.sampled_from(["n1", "n2", "lost", ""])
COUNT = st.sampled_from([0, 1, 2, 3, 5])
NUMBER = st.sampled_from([None, 0.0, 1e-320, 0.5, 3.0, 1e308])
CPU = st.lists(st.sampled_from([-64000, 0, 1, 900, 1500, 10**9]), max_size=4)
AT = st.sampled_from([-(10**9), -100, -1, 0, 100]).map(lambda after_s: format_time(NOW + timedelta(seconds=after_s)))


@st.composite
def sizes(draw: st.DrawFn) -> dict[str, Any]:
    counts = {"PS": draw(COUNT), "Worker": draw(COUNT)}
    return {
        "generation": draw(st.integers(0, 3)),
        "replicas": draw(st.sampled_from([{}, counts, counts])),
        "nodes": {kind: draw(st.lists(NODE, max_size=4)) for kind in counts},
        "cpu": {kind: draw(CPU) for kind in counts},
    }


@st.composite
def states(draw: st.DrawFn) -> dict[str, Any]:
    phase = draw(st.sampled_from(["Waiting", "Stable", "Stable", "Preparing", "Switching", "Recreating"]))
    coming = {**draw(sizes()), "slot": 1, "mode": "overlap", "before": {}}
    refused = {"generation": draw(st.integers(0, 3)), "reason": "r", "at": draw(AT)}
    return {
        **draw(sizes()),
        "phase": phase,
        "since": draw(st.sampled_from(["", draw(AT)])),
        "next": coming if phase not in ("Waiting", "Stable") else None,
        "refused": draw(st.sampled_from([None, refused])),
        "step": draw(st.sampled_from([None, 0, 7, 2**53])),
        "total_steps": draw(st.sampled_from([None, 1, 100, 2**53])),
        "steps_per_s": draw(NUMBER),
        "metrics_at": draw(st.sampled_from([None, draw(AT)])),
        "speeds": {f"{p}/{w}": draw(NUMBER) or 1.0 for p in (0, 1, 2) for w in (0, 1, 4)},
    }


@st.composite
def candidates(draw: st.DrawFn, name: str) -> tuple[TFJob, tuple[Pod, ...], dict[str, Report]]:
    said = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "target-workers": st.sampled_from(["0", "2", "4"]),
                "total-steps": st.sampled_from(["1", "900", "9007199254740992"]),
                "deadline": st.sampled_from(["1s", "36500d"]),
                "estimated-duration": st.sampled_from(["1s", "36500d"]),
                "placement": st.sampled_from(["auto", "none"]),
                "min-workers": st.sampled_from(["0", "1"]),
                "max-workers": st.sampled_from(["4", "1000000000"]),
            },
        )
    )
    target_, state_ = draw(st.sampled_from([None, draw(sizes())])), draw(st.sampled_from([None, draw(states())]))
    job = elastic_job(target=target_, state=state_, said=said, workers=draw(st.integers(0, 4)))
    if draw(st.booleans()):
        job.annotations.pop("elastic.kubeflow.org/checkpoint-dir")
    job = replace(job, name=name, uid=f"{name}-uid", queue=draw(st.sampled_from(["", "q"])))
    pods = []
    for kind in ("ps", "worker"):
        for index in range(draw(st.integers(0, 3))):
            node = draw(NODE)
            if node:
                made = bound(kind, index, node, cpu=draw(st.sampled_from([0, 1000, 1500])))
            else:
                made = refused_pod(kind, index, draw(st.sampled_from(["n1", "n2", ""])), draw(st.sampled_from([1, 99])))
            pods.append(replace(made, name=f"{name}-{kind}-{index}", uid=f"{name}-{kind}-{index}", owner=job.uid))
    report = Report(
        at=draw(st.sampled_from([0.0, 1e308])),
        generation=draw(st.integers(0, 3)),
        step=draw(st.sampled_from([None, 0, 2**53])),
        total_steps=draw(st.sampled_from([None, 1, 2**53])),
        steps_per_s=draw(NUMBER),
        first_step_at=1.0,
        last_step_at=draw(NUMBER),
        cpu=CpuUse(use_cores=draw(st.sampled_from([None, -1e308, 0.0, 0.5, 1e308]))),
        received_at_s=NOW.timestamp(),
    )
    return job, tuple(pods), {pod.name: report for pod in pods if draw(st.booleans())}


def described(job: TFJob, pods: tuple[Pod, ...], reports: dict[str, Report], before: JobView | None = None) -> JobView:
    unfit = active(judge({}, pods, NOW.timestamp()), NOW.timestamp())
    return view_of(job, pods, nodes=NODES, now=NOW, reports=reports, before=before, rejected_nodes=unfit)


def used_on(found: JobView, target: Target | None) -> dict[str, Resources]:
    """What a job takes of each node, with its reservations. What its replicas release is room for its own new replicas
    only: others get it once it is free."""
    total = {name: found.other_usage.get(name, NOTHING).plus(found.reserved.get(name, NOTHING)) for name in NODES}
    if target is None or found.job is None:
        return total
    more = dict.fromkeys(NODES, 0)
    new = {**found.bound, **{role: node for role, node in found.pending.items() if node in NODES}}
    for kind, names in target.nodes.items():
        for index, node in enumerate(names):
            group = found.job.spec.group(kind)
            if group is None:
                continue
            if node in NODES and (kind, index) not in new:
                more[node] += group.request.cpu_millicores
            elif (there := found.bound.get((kind, index))) in NODES and found.request is not None:
                granted = target.cpu.get(kind, ())
                cpu = (
                    granted[index] + found.request.other_millicores[kind]
                    if index < len(granted)
                    else group.request.cpu_millicores
                )
                more[there] += min(0, cpu - found.cpu_millicores[kind, index])
    for (kind, index), node in new.items():
        group = found.job.spec.group(kind)
        if node in NODES and group is not None and target.nodes and index >= len(target.nodes.get(kind, ())):
            more[node] -= found.cpu_millicores.get((kind, index), group.request.cpu_millicores)
    return {name: each.plus(Resources(cpu_millicores=max(0, more[name]))) for name, each in total.items()}


@pytest.mark.parametrize("profile", PROFILES)
@settings(max_examples=effort(8, 25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(draw=st.data())
def test_a_round_of_anything(profile: str, draw: Any) -> None:
    made = {f"ns/j{k}": described(*draw.draw(candidates(f"j{k}"))) for k in range(draw.draw(st.integers(1, 4)))}
    core = replace(build(profile, parse_profile(profile, {})), repack=False)
    snapshot = assemble(made.values(), NODES, [], NOW.timestamp())
    decided = {name: found for name, found in made.items() if found.job is not None}
    written = decide(schedule(snapshot, core), decided)
    assert set(written) <= set(decided)
    before = {name: sum((used_on(f, None)[name].cpu_millicores for f in made.values()), 0) for name in NODES}
    after = {name: sum((used_on(f, written.get(k))[name].cpu_millicores for k, f in made.items()), 0) for name in NODES}
    for name, node in NODES.items():
        assert after[name] <= max(before[name], node.allocatable[0]), (name, before, written)
    for target in written.values():
        assert Target.parse(target.to_json()) == target
        assert all(" " not in node for names in target.nodes.values() for node in names)
        assert all(value > 0 for values in target.cpu.values() for value in values)
    for found in made.values():
        for answer in (decide_fixed(found), released(found, profile), suspended(found)):
            assert answer is None or Target.parse(answer.to_json()) == answer
