"""What `elastic` adds to the steps that it composes."""

from dataclasses import replace
from typing import Any

import pytest

from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.profiles.elastic import planned
from elastic_tfjob.scheduling.profiles.kips import UNTIL
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Job, JobSpec, Node, Pool, ReplicaGroup, Snapshot, counts_of
from elastic_tfjob.speed.optimus import believe

from .build import node

CPU = Resources(1000)


def elastic(**said: Any) -> Any:
    return build("elastic", parse_profile("elastic", said))


def spec(key: str, workers: tuple[int, int, int], **more: Any) -> JobSpec:
    """Least, declared and most workers of 1 CPU."""
    least, count, most = workers
    return JobSpec(key, more.pop("arrival_s", 0.0), (ReplicaGroup(WORKER, CPU, count, least, most),), **more)


def busy(job: JobSpec, nodes: tuple[str, ...], use: float = 1.0) -> Job:
    """Running for a long time, seen at one size only."""
    return Job(
        job,
        {WORKER: nodes},
        "running",
        steps_per_s=1.0,
        observed_s=1000.0,
        speed=believe({(0, len(nodes)): 1.0}),
        cpu_use={WORKER: use},
    )


class Linear:
    """Twice the workers, twice the speed: known at every size."""

    def steps_per_s(self, counts: Any) -> float | None:
        return float(counts.get(WORKER, 0)) or None


def plan_of(jobs: list[Job], nodes: list[Node], **said: Any) -> Plan:
    snapshot = Snapshot(1000.0, {n.name: n for n in nodes}, {job.key: job for job in jobs})
    return schedule(snapshot, elastic(**said))


def workers(plan: Plan, key: str) -> int:
    """How many workers the job has after the plan."""
    target = plan.changes.get(key)
    return counts_of(target.nodes if target else plan.snapshot.jobs[key].placement).get(WORKER, 0)


def test_a_job_seen_at_one_size_goes_by_how_busy_it_is() -> None:
    assert not planned(busy(spec("a", (1, 2, 4)), ("n0", "n0")), 1000.0)


def test_a_job_with_a_deadline_is_planned() -> None:
    assert planned(busy(spec("a", (1, 2, 4), deadline_s=2000.0, total_steps=10.0), ("n0", "n0")), 1000.0)


def test_a_deadline_without_steps_plans_nothing() -> None:
    assert not planned(busy(spec("a", (1, 2, 4), deadline_s=2000.0), ("n0", "n0")), 1000.0)


def test_a_job_whose_speed_is_known_everywhere_is_planned() -> None:
    assert planned(Job(spec("a", (1, 1, 4)), speed=Linear()), 1000.0)


def test_a_deadline_takes_room_of_jobs_that_are_not_planned() -> None:
    """The waiting job is in time only with all four CPUs."""
    wide = busy(spec("wide", (1, 3, 4), total_steps=1e6), ("n0",) * 3)
    urgent = Job(spec("urgent", (2, 2, 3), arrival_s=999.0, deadline_s=1400.0, total_steps=900.0), speed=Linear())
    plan = plan_of([wide, urgent], [node("n0", cpus=4)])
    assert (workers(plan, "wide"), workers(plan, "urgent")) == (1, 3)


def test_without_need_jobs_that_are_not_planned_stay_as_they_are() -> None:
    wide = busy(spec("wide", (1, 3, 4), total_steps=1e6), ("n0",) * 3, use=0.5)
    easy = Job(spec("easy", (1, 1, 1), deadline_s=1e6, total_steps=10.0), speed=Linear())
    plan = plan_of([wide, easy], [node("n0", cpus=4)])
    assert (workers(plan, "wide"), workers(plan, "easy")) == (3, 1)


def test_no_running_job_is_stopped_for_a_gain() -> None:
    """The long one would give its whole share to ten short ones that wait."""
    long = Job(
        spec("long", (2, 2, 4), total_steps=1e7),
        {WORKER: ("n0", "n0")},
        "running",
        steps_per_s=2.0,
        observed_s=1000.0,
        speed=Linear(),
    )
    short = [Job(spec(f"short-{k}", (2, 2, 2), arrival_s=900.0, total_steps=10.0), speed=Linear()) for k in range(10)]
    plan = plan_of([long, *short], [node("n0", cpus=4)])
    assert workers(plan, "long") == 2
    assert sum(workers(plan, job.key) for job in short) == 2


def test_before_a_planned_job_is_stopped_others_shrink() -> None:
    """The deadline that is close needs three of four CPUs, the one that is far off can wait: it keeps its one CPU all
    the same, since the job without a deadline can do with less."""
    far = replace(
        busy(spec("far", (1, 1, 1), deadline_s=1e6, total_steps=1000.0), ("n0",)), speed=Linear(), steps_per_s=1.0
    )
    wide = busy(spec("wide", (1, 2, 2), total_steps=1e6), ("n0",) * 2)
    close = Job(spec("close", (2, 2, 2), arrival_s=999.0, deadline_s=1400.0, total_steps=700.0), speed=Linear())
    plan = plan_of([far, wide, close], [node("n0", cpus=4)])
    assert [workers(plan, key) for key in ("far", "wide", "close")] == [1, 1, 2]


def test_a_job_at_a_size_slower_than_a_smaller_one_is_not_stopped_for_a_gain() -> None:
    rates = {1: 1.0, 2: 2.0, 3: 1.5}

    class Hill:
        def steps_per_s(self, counts: Any) -> float | None:
            return rates.get(counts.get(WORKER, 0))

    held = Job(
        spec("held", (2, 3, 3), total_steps=1e6), {WORKER: ("n0",) * 3}, "running", steps_per_s=1.5, observed_s=1000.0
    )
    short = [Job(spec(f"short-{k}", (2, 2, 2), arrival_s=900.0, total_steps=10.0), speed=Linear()) for k in range(3)]
    plan = plan_of([replace(held, speed=Hill()), *short], [node("n0", cpus=4)])
    assert workers(plan, "held") == 2


@pytest.mark.parametrize("left_s", [10.0, 0.0])
def test_a_job_with_a_deadline_that_went_back_is_not_planned_for_a_while(left_s: float) -> None:
    """Four workers would meet the deadline if they were as fast as the prior says."""
    late = replace(
        busy(spec("late", (1, 1, 4), deadline_s=1000.0 + 400.0, total_steps=1000.0), ("n0",), use=0.5),
        cpu_use={},
        memory={UNTIL: 1000.0 + left_s},
    )
    plan = plan_of([late], [node("n0", cpus=4)])
    assert (workers(plan, "late") > 1) is (not left_s)


def lent(job: Job, cpus: float = 4, others: tuple[Job, ...] = (), **said: Any) -> Plan:
    """The plan where the node `lent`, on which the job has replicas, is wanted back; `own` has so many CPUs."""
    nodes = [node("own", cpus=cpus), node("lent", cpus=4, pool="inference", loan="reclaiming")]
    jobs = {each.key: each for each in (job, *others)}
    pools = {"inference": Pool(wanted=1, spare=0)}
    return schedule(Snapshot(1000.0, {n.name: n for n in nodes}, jobs, pools=pools), elastic(**said))


def test_only_replicas_on_a_node_that_goes_back_move() -> None:
    plan = lent(busy(spec("there", (3, 3, 3), loanable=True, total_steps=1e6), ("own", "lent", "own"), use=0.5))
    target = plan.changes["there"]
    assert (target.nodes, target.cause, target.why.code) == ({WORKER: ("own",) * 3}, "repair", "leaves-node")


def test_a_job_goes_on_on_room_of_others_though_it_was_resumed_lately() -> None:
    there = replace(
        busy(spec("there", (2, 2, 2), loanable=True, total_steps=1e6), ("lent",) * 2, use=0.5),
        stops=1,
        stopped_s=900.0,
        resumed_s=990.0,
    )
    wide = busy(spec("wide", (1, 4, 4), total_steps=1e6), ("own",) * 4, use=0.5)
    plan = lent(there, others=(wide,), stop_cooldown_s=60)
    assert (workers(plan, "there"), workers(plan, "wide")) == (2, 2)
    assert plan.changes["there"].why.code == "leaves-node"
    assert plan.changes["wide"].why.facts["waits_s"] == 0.0


def test_a_job_on_a_node_that_goes_back_starts_elsewhere_in_the_same_round() -> None:
    there = busy(spec("there", (2, 2, 2), loanable=True, total_steps=1e6), ("lent",) * 2, use=0.5)
    nodes = [node("own", cpus=4), node("lent", cpus=4, pool="inference", loan="reclaiming")]
    snapshot = Snapshot(
        1000.0, {n.name: n for n in nodes}, {"there": there}, pools={"inference": Pool(wanted=1, spare=0)}
    )
    target = schedule(snapshot, elastic()).changes["there"]
    assert (target.nodes, target.cause) == ({WORKER: ("own",) * 2}, "repair")


def test_a_replica_that_was_weighed_already_is_not_given_to_a_waiting_job() -> None:
    """Its second worker was weighed against the waiting job already, which needs more than is left of the node."""
    held = Job(
        spec("held", (1, 2, 4), total_steps=1e5),
        {WORKER: ("n0", "n0")},
        "running",
        steps_per_s=2.0,
        observed_s=1000.0,
        speed=Linear(),
    )
    waits = Job(spec("waits", (3, 3, 3), arrival_s=0.0))
    plan = plan_of([held, waits], [node("n0", cpus=4)], keep=1000.0, interval_s=0)
    assert workers(plan, "held") >= 2
    assert workers(plan, "waits") == 0


def test_cpu_by_rank_is_not_lent_a_second_time() -> None:
    """Two jobs crowd a node: together they hold no more than it has."""
    jobs = [
        replace(busy(JobSpec(key, 0.0, (ReplicaGroup(WORKER, Resources(100), 1, 1, 2),), total_steps=steps), ("n0",)))
        for key, steps in (("a", 2e3), ("b", 9e5))
    ]
    jobs = [replace(job, cpu={WORKER: (500,)}) for job in jobs]
    plan = plan_of(jobs, [node("n0", cpus=1)])
    held = {key: sum(target.cpu.get(WORKER, (100,))) for key, target in plan.changes.items()}
    assert sum(held.get(job.key, 500) for job in jobs) <= 1000
    assert held["a"] > held.get("b", 500), "who has least left holds most"


def test_parameter_servers_grow_with_known_speed() -> None:
    """Sizes past one that does not help are found: 1 PS and 2 workers are as slow as 1 and 1, 2 and 2 twice as fast."""

    class Dip:
        def steps_per_s(self, counts: Any) -> float | None:
            return float(min(counts.get(PS, 0), counts.get(WORKER, 0))) or None

    groups = (ReplicaGroup(PS, CPU, 1, 1, 2), ReplicaGroup(WORKER, CPU, 1, 1, 2))
    plan = plan_of([Job(JobSpec("a", 0.0, groups, total_steps=1e6), speed=Dip())], [node("n0", cpus=4)])
    assert counts_of(plan.changes["a"].nodes) == {PS: 2, WORKER: 2}


def timed(key: str, bounds: tuple[int, int, int], held: int, *, steps: float, by_s: float = 1e6, use: float) -> Job:
    """Running with a deadline, as fast as its workers are many, as seen at two sizes."""
    job = spec(key, bounds, deadline_s=by_s, total_steps=steps)
    return replace(
        busy(job, ("n0",) * held, use), steps_per_s=float(held), speed=believe({(0, 1): 1.0, (0, held): float(held)})
    )


def test_a_deadline_that_is_met_is_no_reason_to_grow() -> None:
    """Its workers use a third of their CPU: more of them would be idle, too."""
    plan = plan_of([timed("a", (1, 2, 8), 2, steps=1e4, use=0.3)], [node("n0", cpus=8)])
    assert workers(plan, "a") == 2


def test_a_deadline_that_needs_more_gets_more() -> None:
    plan = plan_of([timed("a", (1, 2, 8), 2, steps=2.8e3, by_s=2000.0, use=0.95)], [node("n0", cpus=8)])
    assert workers(plan, "a") >= 4


def test_replicas_that_a_deadline_does_not_need_go_to_a_waiting_job() -> None:
    """Four workers meet it."""
    held = timed("held", (1, 2, 8), 7, steps=3.6e3, by_s=2000.0, use=0.7)
    waits = Job(spec("waits", (3, 3, 3), arrival_s=900.0))
    plan = plan_of([held, waits], [node("n0", cpus=8)])
    assert workers(plan, "waits") == 3
    assert 4 <= workers(plan, "held") <= 5


def test_replicas_that_a_deadline_needs_are_not_given_away() -> None:
    held = timed("held", (1, 2, 8), 7, steps=6.7e3, by_s=2000.0, use=0.7)
    waits = Job(spec("waits", (3, 3, 3), arrival_s=900.0))
    plan = plan_of([held, waits], [node("n0", cpus=8)])
    assert (workers(plan, "held"), workers(plan, "waits")) == (7, 0)


def test_a_busy_job_gets_back_to_its_declared_size() -> None:
    """It started on a full cluster; another has more than it declares."""
    small = busy(spec("small", (1, 3, 3), arrival_s=500.0, total_steps=1e5), ("n0",))
    large = busy(spec("large", (1, 2, 8), total_steps=1e5), ("n0",) * 7, use=0.5)
    plan = plan_of([small, large], [node("n0", cpus=8)])
    assert (workers(plan, "small"), workers(plan, "large")) == (3, 5)
    assert str(plan.changes["large"].reason).endswith("makes room for small, which has 1 worker, less than it declares")


def test_no_job_falls_below_its_declared_size_for_a_waiting_job() -> None:
    small = busy(spec("small", (1, 3, 3), arrival_s=500.0, total_steps=1e5), ("n0",))
    other = busy(spec("other", (1, 7, 7), total_steps=1e5), ("n0",) * 7, use=0.9)
    plan = plan_of([small, other], [node("n0", cpus=8)])
    assert (workers(plan, "small"), workers(plan, "other")) == (1, 7)


def test_a_deadline_that_nothing_can_meet_stops_nobody() -> None:
    """It needs the room of a job that cannot be stopped. A job of unknown speed, which waits too, takes nobody's place
    on that occasion."""
    kept = busy(spec("kept", (4, 4, 4), stoppable=False, resizable=False, total_steps=1e6), ("n0",) * 4)
    runs = busy(spec("runs", (4, 4, 4), total_steps=1e6), ("n1",) * 4)
    new = Job(spec("new", (4, 4, 4), arrival_s=998.0))
    late = Job(spec("late", (8, 8, 8), arrival_s=999.0, deadline_s=1030.0, total_steps=50.0), speed=Linear())
    plan = plan_of([kept, runs, new, late], [node("n0", cpus=4), node("n1", cpus=4)], lend="none")
    assert [workers(plan, key) for key in ("kept", "runs", "new", "late")] == [4, 4, 0, 0]


def test_capacity_of_a_job_stopped_for_a_deadline_goes_to_the_job_with_the_deadline() -> None:
    runs = busy(spec("runs", (4, 4, 4), total_steps=1e6), ("n0",) * 4)
    new = Job(spec("new", (4, 4, 4), arrival_s=998.0))
    late = Job(spec("late", (2, 2, 2), arrival_s=999.0, deadline_s=1030.0, total_steps=50.0), speed=Linear())
    plan = plan_of([runs, new, late], [node("n0", cpus=4)], lend="none")
    assert [workers(plan, key) for key in ("runs", "new", "late")] == [0, 0, 2]


def test_jobs_without_a_step_keep_the_cpu_of_their_rank() -> None:
    """Two programs that still start share a crowded node by rank, and a round that changes nothing changes no CPU."""
    small = (ReplicaGroup(WORKER, Resources(100), 1, 1, 2),)
    jobs = [
        Job(
            JobSpec(key, 0.0, small, total_steps=steps),
            {WORKER: ("n0",)},
            "running",
            observed_s=900.0,
            cpu_use={WORKER: 1.0},
            cpu={WORKER: (450,)},
        )
        for key, steps in (("short", 1e3), ("long", 1e5))
    ]
    nodes = [Node("n0", Resources(1000), Resources(1000))]
    plan = plan_of(jobs, nodes, lend="none")
    given = {key: target.cpu[WORKER][0] for key, target in plan.changes.items()}
    assert sorted(given.values()) == [250, 700]
    again = plan_of([replace(job, cpu=plan.changes[job.key].cpu) for job in jobs], nodes, lend="none")
    assert not again.changes


@pytest.mark.parametrize("deadline_s", [None, 1e6])
def test_a_job_that_went_back_gives_idle_replicas_with_a_deadline_or_without(deadline_s: float | None) -> None:
    timed: dict[str, Any] = {} if deadline_s is None else {"deadline_s": deadline_s}
    wide = replace(
        busy(spec("wide", (1, 2, 8), total_steps=1e4, **timed), ("n0",) * 7, use=0.1), memory={UNTIL: 1000.0 + 3600.0}
    )
    new = Job(spec("new", (3, 3, 3), arrival_s=900.0))
    plan = plan_of([wide, new], [node("n0", cpus=8)], lend="none")
    assert workers(plan, "new") == 3


def test_a_deadline_that_has_passed_puts_nobody_first() -> None:
    passed = Job(spec("passed", (2, 2, 2), arrival_s=900.0, deadline_s=901.0, total_steps=50.0))
    early = Job(spec("early", (2, 2, 2), arrival_s=10.0))
    plan = plan_of([passed, early], [node("n0", cpus=2)], lend="none")
    assert (workers(plan, "early"), workers(plan, "passed")) == (2, 0)
    order = elastic().order
    assert order.next_jump_s(replace(passed, spec=replace(passed.spec, deadline_s=2000.0)), 1000.0) == 2000.0
    assert order.next_jump_s(early, 1000.0) is None
