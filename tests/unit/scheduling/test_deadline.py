"""The profile `deadline`: who meets the deadline, with how little, and what the others get."""

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import Resources, Taint
from elastic_tfjob.scheduling.snapshot import WORKER, Job, JobSpec, ReplicaGroup, Snapshot
from elastic_tfjob.simulation.engine import Simulation, SimulationInput
from elastic_tfjob.simulation.formats import parse_csv
from elastic_tfjob.simulation.live_job import Costs
from elastic_tfjob.simulation.result import RunResult
from elastic_tfjob.simulation.runner import uniform_cluster
from elastic_tfjob.simulation.speed_models.base import LINEAR, LinearTrueSpeed
from elastic_tfjob.speed.optimus import believe

from .build import node, workers
from .invariants import violations
from .test_properties import carried_out

HOUR = 3600.0


def job(key: str, steps: float | None, deadline: float | None, most: int = 4, **more: Any) -> Job:
    """Of one to `most` workers of one accelerator; a step a second with each worker."""
    spec = JobSpec(
        key, more.pop("arrival", 0.0), (workers(1, 1, most, gpus=1, cpus=0),), deadline_s=deadline, total_steps=steps
    )
    spec = replace(spec, **{name: more.pop(name) for name in ("resizable", "stoppable") if name in more})
    speed = more.pop("speed", LinearTrueSpeed(steps or 1.0, 1))
    return Job(spec, speed=speed, **more)


def running(of: Job, n: int, rate: float | None = None) -> Job:
    return replace(
        of,
        placement={WORKER: ("n",) * n},
        phase="running",
        steps_per_s=float(n) if rate is None else rate,
        since_s=-HOUR,
    )


def decide(jobs: list[Job], gpus: int, now: float = 0.0, **settings: Any) -> Plan:
    profile = build("deadline", parse_profile("deadline", settings))
    return schedule(Snapshot(now, {"n": node("n", gpus=gpus, cpus=0)}, {j.key: j for j in jobs}), profile)


def sizes(plan: Plan) -> dict[str, int]:
    return {key: target.replicas[WORKER] for key, target in plan.targets.items()}


def test_the_least_size_that_meets_each_deadline() -> None:
    """Three jobs of an hour on one worker, all due in half an hour or an hour: 2 + 2 + 1 of 5."""
    jobs = [job("a", HOUR, 2000.0), job("b", HOUR, 2000.0), job("c", HOUR, 4000.0)]
    assert sizes(decide(jobs, 5)) == {"a": 2, "b": 2, "c": 1}


def test_spare_capacity_goes_to_jobs_that_meet_their_deadline() -> None:
    assert sizes(decide([job("a", HOUR, 4000.0)], 4)) == {"a": 4}


def test_a_hopeless_job_waits_behind_one_that_can_make_it_and_says_why() -> None:
    plan = decide([job("late", HOUR, 100.0), job("fine", HOUR, 1000.0)], 4)
    assert sizes(plan) == {"fine": 4}
    assert plan.waiting["late"].code == "deadline-missed"


def test_a_hopeless_job_runs_where_there_is_room() -> None:
    assert sizes(decide([job("late", HOUR, 100.0)], 2)) == {"late": 2}


def test_one_long_job_gives_way_to_two_short_ones() -> None:
    """Moore and Hodgson: the long one with the earliest deadline would make both others late. The shortest one starts
    first."""
    jobs = [job("long", 900.0, 1000.0, most=1), job("x", 700.0, 1010.0, most=1), job("y", 100.0, 1020.0, most=1)]
    plan = decide(jobs, 1)
    assert sizes(plan) == {"y": 1}
    assert plan.waiting["long"] == Reason("gives-way")


def test_a_running_job_keeps_a_promise_where_promises_are_kept() -> None:
    jobs = [
        running(job("long", 900.0, 1000.0, most=1), 1),
        job("x", 700.0, 1010.0, most=1),
        job("y", 100.0, 1020.0, most=1),
    ]
    assert sizes(decide(jobs, 1, keep_promises=True)) == {"long": 1}


def test_replicas_that_a_deadline_does_not_need_go_to_a_job_that_is_short() -> None:
    jobs = [running(job("ahead", HOUR, 8000.0), 4), job("short", HOUR, 1400.0, most=3)]
    assert sizes(decide(jobs, 4)) == {"ahead": 1, "short": 3}


def test_the_pause_is_charged_to_who_changes_size() -> None:
    """At 2 workers it is done at 1,000 s; growing later would be too late with the pause."""
    ready = running(job("a", 2000.0, 1000.0), 2)
    assert sizes(decide([ready, job("b", 100.0, None, most=2)], 4, pause_s=30))["a"] == 2
    assert decide([job("a", 4000.0, 1000.0)], 4, pause_s=30).changes["a"].why.code == "deadline-missed"


def test_a_job_of_unknown_speed_is_probed_with_its_least() -> None:
    unknown = job("new", HOUR, 2 * HOUR, speed=None)
    plan = decide([unknown], 8)
    assert sizes(plan) == {"new": 1}
    assert plan.changes["new"].reason == Reason("unknown-speed")


def test_measured_speeds_decide_about_growth() -> None:
    """Measured at one worker; by the prior, two are 1.74 times as fast, and that is enough."""
    slow = running(job("a", HOUR, 2500.0, speed=believe({(0, 1): 1.0})), 1, rate=1.0)
    rival = job("b", HOUR, None, most=4)
    assert sizes(decide([slow, rival], 4))["a"] >= 2


@pytest.mark.parametrize(("lend", "granted"), [(True, {WORKER: (4000,)}), (False, {})])
def test_idle_cpu_of_the_node_is_lent_where_that_is_wanted(lend: bool, granted: dict[str, tuple[int, ...]]) -> None:
    """One worker of 1 CPU that uses all it has, alone on a node of 4, with time enough at its size."""
    spec = JobSpec("a", 0.0, (workers(1, gpus=0, cpus=1),), deadline_s=10 * HOUR, total_steps=HOUR)
    busy = Job(spec, {WORKER: ("n",)}, "running", steps_per_s=1.0, speed=believe({(0, 1): 1.0}), cpu_use={WORKER: 1.0})
    profile = build("deadline", parse_profile("deadline", {"lend_cpu": lend}))
    plan = schedule(Snapshot(100.0, {"n": node("n", cpus=4)}, {"a": busy}), profile)
    assert (plan.changes["a"].cpu if "a" in plan.changes else {}) == granted


@pytest.mark.parametrize(
    ("by_s", "urgent_m", "patient_m"),
    [
        (10 * HOUR, 1000, 3000),
        (HOUR / 1.5, 1750, 2250),
        (HOUR / 2, 2500, 1500),
        (HOUR / 10, 1000, 3000),
    ],
)
def test_cpu_in_place_goes_first_to_who_is_late_without(by_s: float, urgent_m: int, patient_m: int) -> None:
    """Two jobs of one worker that requests 1 CPU and uses all it has, on a node of 4. The patient one holds 3 CPUs, and
    keeps those but for what the urgent one needs, with an hour of work and less time (a tenth of that is kept). One
    that would be late with 4 CPUs, too, takes nothing from others."""
    made = {}
    for key, deadline_s, held in (("patient", 10 * HOUR, {WORKER: (3000,)}), ("urgent", by_s, {})):
        spec = JobSpec(key, 0.0, (workers(1, gpus=0, cpus=1),), deadline_s=deadline_s, total_steps=HOUR)
        made[key] = Job(spec, {WORKER: ("n",)}, "running", steps_per_s=1.0, cpu_use={WORKER: 1.0}, cpu=held)
    profile = build("deadline", parse_profile("deadline", {}))
    for _ in range(10):
        plan = schedule(Snapshot(0.0, {"n": node("n", cpus=4)}, made), profile)
        cpu = {key: plan.changes[key].cpu if key in plan.changes else made[key].cpu for key in made}
        assert {key: each.get(WORKER, (1000,)) for key, each in cpu.items()} == {
            "urgent": (urgent_m,),
            "patient": (patient_m,),
        }
        # Carried out: each is as fast as the CPU that it holds.
        made = {
            key: replace(made[key], cpu=cpu[key], steps_per_s=cpu[key].get(WORKER, (1000,))[0] / 1000) for key in made
        }


def greedy(key: str, times: float, holds: int = 1000, use: float | None = 1.0, work_s: float = HOUR) -> Job:
    """It requests 1 CPU, uses all it has, and is in time with `times` as much (0.9 of the time counts)."""
    spec = JobSpec(key, 0.0, (workers(1, gpus=0, cpus=1),), deadline_s=work_s / times / 0.89, total_steps=work_s)
    cpu = {WORKER: (holds,)} if holds > 1000 else {}
    known = {} if use is None else {WORKER: use}
    return Job(spec, {WORKER: ("n",)}, "running", steps_per_s=holds / 1000, cpu_use=known, cpu=cpu)


@pytest.mark.parametrize(
    ("cpus", "jobs", "held"),
    [
        # The first was raised a moment ago: what it uses is not known yet, and it keeps that from the second.
        (4, [greedy("a", 2, 2000, None), greedy("b", 3, work_s=3 * HOUR)], {"a": 2000, "b": 2000}),
        # There is too little for the first, who is late all the same: the second gets what is enough for it.
        (4, [greedy("u", 4), greedy("v", 1.9, work_s=2 * HOUR), greedy("w", 0.5)], {"u": 1000, "v": 2000, "w": 1000}),
        # It is in time with 7 times its request, which it holds, and with no less that is tried.
        (8, [greedy("a", 6, 7000), greedy("b", 4, work_s=9 * HOUR)], {"a": 7000, "b": 1000}),
    ],
)
def test_cpu_that_is_enough_for_nobody_is_left_to_others(cpus: int, jobs: list[Job], held: dict[str, int]) -> None:
    profile = build("deadline", parse_profile("deadline", {}))
    plan = schedule(Snapshot(0.0, {"n": node("n", cpus=cpus)}, {j.key: j for j in jobs}), profile)
    after = {j.key: plan.changes[j.key].cpu if j.key in plan.changes else j.cpu for j in jobs}
    assert {key: each.get(WORKER, (1000,))[0] for key, each in after.items()} == held


def growing(key: str, times: float, *, holds: int = 1000, use: float | None = 1.0, **spec: Any) -> Job:
    """As `greedy`, and up to 4 workers are each as fast as the first."""
    job = greedy(key, times, holds, use, spec.pop("work_s", HOUR))
    more = {"groups": (workers(1, 1, spec.pop("most", 4), gpus=0, cpus=1),), **spec}
    return replace(job, spec=replace(job.spec, **more), speed=believe({(0, 1): holds / 1000}))


def waiting(key: str, cpus: int, by_s: float, work_s: float) -> Job:
    spec = JobSpec(key, 50.0, (workers(1, gpus=0, cpus=cpus),), deadline_s=by_s, total_steps=work_s, duration_s=work_s)
    return Job(spec)


def placed(jobs: list[Job], *cpus: int, now: float = 0.0, **settings: Any) -> dict[str, tuple[int, int]]:
    """Workers by job, and the least CPU that one of them holds, on nodes n0 (called n), n1 and so on."""
    profile = build("deadline", parse_profile("deadline", {"pause_s": 0, "prepare_cpu_s": 0, **settings}))
    names = ["n", *(f"n{k}" for k in range(1, len(cpus)))]
    nodes = {name: node(name, cpus=n) for name, n in zip(names, cpus, strict=True)}
    plan = schedule(Snapshot(now, nodes, {j.key: j for j in jobs}), profile)
    targets = {key: target for key, target in plan.targets.items() if target.replicas.get(WORKER)}
    return {key: (t.replicas[WORKER], min(t.cpu.get(WORKER, (jobs_cpu(jobs, key),)))) for key, t in targets.items()}


def jobs_cpu(jobs: list[Job], key: str) -> int:
    return next(int(job.spec.requested_cpu(WORKER)) for job in jobs if job.key == key)


@pytest.mark.parametrize(
    ("jobs", "has"),
    [
        # The CPU is there: no start. What the node has left is then for who is busy.
        ([growing("a", 1.9)], {"a": (1, 4000)}),
        # Both count on the CPU of their node, which is enough for the one whose deadline is first.
        ([growing("a", 2.9), growing("b", 2.9, work_s=2 * HOUR)], {"a": (1, 3000), "b": (4, 1000)}),
        # None is enough: it grows.
        ([growing("a", 4.5)], {"a": (4, 1000)}),
        # A second worker, which takes less of the cluster, is enough, too.
        ([replace(growing("a", 2.9, most=2), speed=believe({(0, 1): 1.0, (0, 2): 3.0}))], {"a": (2, 2000)}),
    ],
)
def test_a_late_job_gets_cpu_in_place_before_another_size(jobs: list[Job], has: dict[str, tuple[int, int]]) -> None:
    assert placed(jobs, 4, 4) == has


@pytest.mark.parametrize(
    ("use", "held"),
    [
        # At once: the worker sets the pace, and twice its CPU is enough. The others use half of theirs, and less.
        ({"Chief": 0.4, "PS": 0.5, WORKER: 1.0}, {WORKER: (200,)}),
        # The PS, too, would set the pace before the worker is twice as fast.
        ({"Chief": 0.3, "PS": 0.9, WORKER: 1.0}, {"PS": (180,), WORKER: (200,)}),
    ],
)
def test_only_replicas_that_set_the_pace_get_cpu(use: dict[str, float], held: dict[str, tuple[int, ...]]) -> None:
    """A chief, a PS and a worker that request 100m each, on a node of 500m, are to be twice as fast. Two more workers
    would do that elsewhere, after a start."""
    groups = tuple(
        ReplicaGroup(type_, Resources(100), 1, 1, most) for type_, most in (("Chief", 1), ("PS", 1), (WORKER, 3))
    )
    spec = JobSpec("a", 0.0, groups, deadline_s=HOUR / 1.9 / 0.89, total_steps=HOUR)
    late = Job(
        spec,
        dict.fromkeys(("Chief", "PS", WORKER), ("n",)),
        "running",
        steps_per_s=1.0,
        cpu_use=use,
        speed=believe({(1, 1): 1.0}),
    )
    profile = build("deadline", parse_profile("deadline", {}))
    plan = schedule(Snapshot(0.0, {name: node(name, cpus=0.5) for name in "nm"}, {"a": late}), profile)
    assert plan.targets["a"].replicas[WORKER] == 1
    got = plan.changes["a"].cpu
    assert all(got[type_] >= each for type_, each in held.items())
    assert {type_ for type_, each in got.items() if each > (100,)} == set(held)


@pytest.mark.parametrize(("holds", "use"), [(1000, 1.0), (2000, 1.0), (4000, 1.0), (2000, None), (4000, None)])
def test_cpu_in_place_for_a_late_job_is_kept_from_who_starts(holds: int, use: float | None) -> None:
    """One waits that would start on the CPU of the node; it comes second by its deadline. The first one has the CPU
    already, or gets it now."""
    has = placed([growing("a", 1.9, holds=holds, use=use), waiting("b", 3, 9 * HOUR, 9.0)], 4)
    assert {key: workers for key, (workers, _) in has.items()} == {"a": 1}
    assert has["a"][1] >= 2000


def test_a_raise_that_failed_costs_no_other_its_own() -> None:
    """The second node has too little for the last by deadline."""
    fails = replace(growing("b", 2.9, most=1, work_s=4 * HOUR), placement={WORKER: ("n1",)})
    has = placed([growing("a", 1.9), waiting("w", 3, 3000.0, 300.0), fails], 4, 2, 2)
    assert has["a"] == (1, 4000)


def test_cpu_in_place_costs_no_job_with_an_earlier_deadline_its_nodes() -> None:
    """Only the first node holds what waits. The one that runs grows instead."""
    assert placed([growing("a", 1.9), waiting("w", 3, 1500.0, 300.0)], 4, 2)["w"] == (1, 3000)


def test_cpu_that_was_lent_without_need_keeps_nobody_waiting() -> None:
    """What it uses of four times its request is not known yet. It is in time with what it requests; or it never is."""
    for by_s in (10 * HOUR, 10.0):
        lent = growing("a", 0.1, holds=4000, use=None, deadline_s=by_s)
        assert "b" in placed([lent, waiting("b", 3, 11 * HOUR, 100.0)], 4)


def test_a_job_that_is_just_in_time_keeps_no_cpu_from_who_starts() -> None:
    """With a tenth of the time to spare it would need more than it requests."""
    assert placed([growing("a", 1.05), waiting("b", 3, 9 * HOUR, 9.0)], 4) == {"a": (1, 1000), "b": (1, 3000)}


def test_a_job_that_is_given_up_gives_back_its_cpu() -> None:
    long = growing("a", 1.0, work_s=385.2, deadline_s=309.1, most=1)
    others = [waiting("c0", 2, 315.3, 35.2), waiting("c1", 1, 355.0, 13.9)]
    assert placed([long, *others], 2) == {"a": (1, 1000), "c1": (1, 1000)}


def test_a_job_with_a_fixed_size_gets_cpu_in_the_order_of_deadlines_too() -> None:
    """Its size is not chosen, as it cannot be stopped; the CPU that is free is enough for one of the two."""
    fixed, later = growing("f", 2.9, most=1, stoppable=False), growing("a", 2.9, most=1, work_s=2 * HOUR)
    assert placed([fixed, later], 5)["f"] == (1, 3000)
    # Nobody else is late, and one waits.
    assert placed([fixed, waiting("b", 3, 9 * HOUR, 9.0)], 5) == {"f": (1, 5000)}


@pytest.mark.parametrize(("prepare_cpu_s", "grows"), [(600.0, True), (800.0, False)])
def test_a_start_takes_the_cpu_that_replicas_request(prepare_cpu_s: float, grows: bool) -> None:
    """It holds a little more, which was lent."""
    lent = growing("a", 1.0, holds=1200)
    after = placed([replace(lent, spec=replace(lent.spec, deadline_s=None))], 4, 4, prepare_cpu_s=prepare_cpu_s)
    assert (after["a"][0] > 1) == grows


def test_an_unknown_speed_is_said_so() -> None:
    """It was stopped right after its first steps."""
    plan = decide([running(job("r", HOUR, HOUR), 1), replace(job("s", HOUR, 2 * HOUR, speed=None), steps=5.0)], 1)
    assert plan.waiting["s"].code == "unknown-speed"


@pytest.mark.parametrize(("prepare_cpu_s", "grows"), [(0.0, True), (12.0, True), (3600.0, False)])
def test_a_larger_size_has_to_start_before_it_is_faster(prepare_cpu_s: float, grows: bool) -> None:
    """An hour of work, and CPU in place is not enough: its replicas start in so many seconds on a CPU each."""
    after = placed([growing("a", 4.5)], 4, 4, prepare_cpu_s=prepare_cpu_s)
    assert (after["a"][0] > 1) == grows


def test_cpu_lent_to_a_job_that_keeps_its_size_keeps_nobody_waiting() -> None:
    """It was resumed a moment ago, and holds all CPU of the node, of which it requests 1."""
    spec = JobSpec("a", 0.0, (workers(1, 1, 4, gpus=0, cpus=1),))
    resumed = Job(spec, {WORKER: ("n",)}, "running", cpu={WORKER: (8000,)}, stops=1, stopped_s=10.0, resumed_s=95.0)
    waits = Job(JobSpec("b", 50.0, (workers(1, gpus=0, cpus=4),), duration_s=100.0, total_steps=100.0))
    profile = build("deadline", parse_profile("deadline", {"stop_cooldown_s": 60}))
    plan = schedule(Snapshot(100.0, {"n": node("n", cpus=8)}, {"a": resumed, "b": waits}), profile)
    assert sizes(plan) == {"a": 1, "b": 1}


@pytest.mark.parametrize("deadline", [nan, inf, -inf, -5.0, 0.0, 1e300])
@pytest.mark.parametrize("steps", [None, 0.0, 5.0, inf, nan])
def test_odd_numbers_harm_nobody(deadline: float, steps: float | None) -> None:
    """The others get what they get without the odd one, or no less than what they need."""
    fine = job("fine", HOUR, 1000.0)
    plan = decide([job("odd", steps, deadline), fine], 4)
    assert violations(plan) == []
    assert sizes(plan)["fine"] == 4


def test_without_a_deadline_or_steps_it_is_best_effort_with_a_reason() -> None:
    plan = decide([job("a", HOUR, 1000.0), job("b", HOUR, None), job("c", None, 4000.0)], 4)
    assert plan.waiting == {"b": Reason("no-deadline"), "c": Reason("unknown-steps")}


def test_a_job_without_a_checkpoint_keeps_its_size() -> None:
    fixed = job("fixed", HOUR, 4000.0, resizable=False, stoppable=False)
    assert sizes(decide([fixed], 4)) == {"fixed": 1}
    assert sizes(decide([running(fixed, 1), job("urgent", HOUR, 1000.0)], 4))["fixed"] == 1


def test_a_running_job_of_one_size_makes_room_for_an_urgent_one_and_meets_its_own_deadline_after_it() -> None:
    """It has a checkpoint to go on from. Without one, it cannot be stopped, and the urgent job is late."""
    patient, urgent = job("patient", HOUR, 3 * HOUR, most=1, resizable=False), job("urgent", HOUR, 1.2 * HOUR, most=1)
    stopped = decide([running(patient, 1), urgent], 1)
    assert sizes(stopped) == {"urgent": 1, "patient": 0} or sizes(stopped) == {"urgent": 1}
    assert stopped.changes["patient"].replicas == {}
    assert stopped.waiting["patient"].code == "deadline-met"
    kept = decide([running(replace(patient, spec=replace(patient.spec, stoppable=False)), 1), urgent], 1)
    assert not kept.changes


@pytest.mark.parametrize("profile", ["deadline", "drf", "hull", "optimus", "aryl", "elastic"])
def test_nodes_where_no_job_may_run_are_no_part_of_what_jobs_share(profile: str) -> None:
    """A control plane with a taint changes nothing: not that an urgent job has the place of one with time enough."""
    patient = running(job("patient", HOUR, 3 * HOUR, most=2), 2)
    jobs = {each.key: each for each in (patient, job("urgent", HOUR, 0.6 * HOUR, most=2))}
    nodes = {"n": node("n", gpus=2, cpus=0)}
    control_plane = {"c": node("c", gpus=8, cpus=8, taints=(Taint("control-plane"),))}
    made = build(profile, parse_profile(profile, {}))
    alone, beside = (schedule(Snapshot(0.0, each, jobs), made) for each in (nodes, nodes | control_plane))
    assert alone.changes == beside.changes
    assert {k: why.code for k, why in alone.waiting.items()} == {k: why.code for k, why in beside.waiting.items()}
    if profile in ("deadline", "elastic"):
        assert beside.changes["urgent"].replicas == {WORKER: 2}


def test_a_job_of_one_size_that_runs_with_another_keeps_that() -> None:
    """It was edited while it ran: it can go on only as it is."""
    edited = running(job("edited", HOUR, 8000.0, most=1, resizable=False), 2, rate=2.0)
    assert not decide([edited, job("urgent", HOUR, 1400.0, most=3)], 4).changes.get("edited")


def test_an_unchanged_world_gets_no_other_plan_for_ten_rounds() -> None:
    jobs = [
        job(f"j{k}", 500.0 * (k % 7 + 1), None if k % 5 == 0 else 400.0 + 300.0 * (k % 9), arrival=-10.0 * k)
        for k in range(30)
    ]
    profile = build("deadline", parse_profile("deadline", {}))
    snapshot = Snapshot(0.0, {"n": node("n", gpus=20, cpus=0)}, {j.key: j for j in jobs})
    snapshot = carried_out(snapshot, schedule(snapshot, profile), 0.0)
    for later in range(10):
        plan = schedule(snapshot.evolve(later * 0.1), profile)
        assert not plan.changes


def with_use(snapshot: Snapshot) -> Snapshot:
    """Workers use what they hold up to 4, 2 or half a CPU, by job."""
    changed = []
    for k, each in enumerate(snapshot.jobs.values()):
        if each.placement:
            held = each.held_cpu(WORKER) / each.counts[WORKER]
            changed.append(replace(each, cpu_use={WORKER: min(1.0, (4000, 2000, 500)[k % 3] / held)}))
    return snapshot.evolve(snapshot.now, changed=changed)


@pytest.mark.parametrize("jobs", [5, 16, 40], ids=["idle CPU", "full", "some wait"])
def test_an_unchanged_world_with_lent_cpu_gets_no_other_plan_for_ten_rounds(jobs: int) -> None:
    """With what the rounds remember fed back. How busy replicas are is seen a round after they start."""
    group = workers(1, 1, 4, gpus=0, cpus=1)
    specs = [
        JobSpec(
            f"j{k}", 0.0, (group,), deadline_s=None if k % 4 == 0 else 900.0 + 300.0 * (k % 5), total_steps=500.0 + k
        )
        for k in range(jobs)
    ]
    profile = build("deadline", parse_profile("deadline", {}))
    nodes = {f"n{k}": node(f"n{k}", cpus=8) for k in range(3)}
    snapshot = Snapshot(
        0.0, nodes, {spec.key: Job(spec, speed=LinearTrueSpeed(spec.total_steps or 1.0, 1)) for spec in specs}
    )
    lent = False
    for _ in range(3):
        plan = schedule(snapshot, profile)
        lent = lent or any(target.cpu for target in plan.changes.values())
        snapshot = with_use(carried_out(snapshot, plan, 0.0))
    assert lent == (jobs == 5)
    for later in range(10):
        plan = schedule(snapshot.evolve(later * 0.1), profile)
        assert not plan.changes
        snapshot = carried_out(snapshot, plan, later * 0.1)


def simulated(profile: str, rows: str, gpus: int, **settings: Any) -> RunResult:
    head = "job_id,submit_s,duration_s,num_gpus,min_workers,max_workers,deadline_s\n"
    jobs = parse_csv(head + rows, "x")[0].jobs
    chosen = build(profile, parse_profile(profile, {"oracle": True, "place": "count", **settings}))
    return Simulation(
        SimulationInput(jobs, uniform_cluster(1, gpus, 0, 0), LINEAR, costs=Costs(1, ((inf, 1),), 1)),
        chosen,
    ).run()


@pytest.mark.parametrize("seed", range(3))
def test_no_job_waits_more_than_three_times_as_long_as_under_fifo(seed: int) -> None:
    """Under steady load no job waits more than 3 times what the longest waits under first come, first served."""
    rows = "\n".join(
        f"j{k},{60 * k},{200 + 97 * ((k + seed) * 7 % 11)},1,1,4,{60 * k + 250 + 61 * ((k + seed) * 5 % 13)}"
        for k in range(80)
    )
    ours, fifo = simulated("deadline", rows, 8), simulated("fifo", rows, 8)
    assert all(r.finish_s is not None for r in ours.records)
    assert max(r.queue_s for r in ours.records) <= 3 * max(60.0, *(r.queue_s for r in fifo.records))
