"""What `elastic` adds to the steps that it composes."""

from dataclasses import replace
from typing import Any

from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.profiles.elastic.planned import planned
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Job, JobSpec, Node, ReplicaGroup, Snapshot, counts_of
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
    assert not planned(busy(spec("a", (1, 2, 4)), ("n0", "n0")))


def test_a_job_with_a_deadline_is_planned() -> None:
    assert planned(busy(spec("a", (1, 2, 4), deadline_s=2000.0, total_steps=10.0), ("n0", "n0")))


def test_a_deadline_without_steps_plans_nothing() -> None:
    assert not planned(busy(spec("a", (1, 2, 4), deadline_s=2000.0), ("n0", "n0")))


def test_a_job_whose_speed_is_known_everywhere_is_planned() -> None:
    assert planned(Job(spec("a", (1, 1, 4)), speed=Linear()))


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


def test_nobody_who_runs_is_stopped_for_a_gain() -> None:
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


def test_what_is_planned_gives_nothing_to_who_waits() -> None:
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
    plan = plan_of([timed("a", (1, 2, 8), 2, steps=4e3, by_s=2000.0, use=0.3)], [node("n0", cpus=8)])
    assert workers(plan, "a") >= 4


def test_who_has_more_than_the_deadline_needs_gives_it_to_who_waits() -> None:
    """Four workers meet it."""
    held = timed("held", (1, 2, 8), 7, steps=3.6e3, by_s=2000.0, use=0.7)
    waits = Job(spec("waits", (3, 3, 3), arrival_s=900.0))
    plan = plan_of([held, waits], [node("n0", cpus=8)])
    assert workers(plan, "waits") == 3
    assert 4 <= workers(plan, "held") <= 5


def test_what_a_deadline_needs_is_given_to_nobody() -> None:
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
    assert str(plan.changes["large"].reason).endswith("makes room for small, which has 1 Worker, less than it declares")


def test_nobody_falls_below_the_declared_size_for_that() -> None:
    small = busy(spec("small", (1, 3, 3), arrival_s=500.0, total_steps=1e5), ("n0",))
    other = busy(spec("other", (1, 7, 7), total_steps=1e5), ("n0",) * 7, use=0.9)
    plan = plan_of([small, other], [node("n0", cpus=8)])
    assert (workers(plan, "small"), workers(plan, "other")) == (1, 7)
