"""What `deadline` and `elastic` keep of a job's sizes is what they would find anew."""

from typing import Any

import numpy as np
import pytest

from elastic_tfjob.scheduling.profiles.deadline.curves import Curve, CurveCache
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import NOTHING_LEARNED, PS, WORKER, Job, JobSpec, ReplicaGroup
from elastic_tfjob.scheduling.steps.crowding import CpuLoad
from elastic_tfjob.simulation.speed_models.base import LinearTrueSpeed
from elastic_tfjob.speed.history import Conditions, Lesson, Past
from elastic_tfjob.speed.optimus import believe

from .build import node

SMALL, LARGE, TINY = Resources(8000), Resources(16000), Resources(2000)


def job(*, servers: int = 0, speed: Any = None) -> Job:
    """One to four workers of 1 CPU; with one to `servers` PSs."""
    groups = [ReplicaGroup(WORKER, Resources(1000), 1, 1, 4)]
    if servers:
        groups.append(ReplicaGroup(PS, Resources(1000), 1, 1, servers))
    return Job(JobSpec("a", 0.0, tuple(groups), total_steps=100.0, model="m"), speed=speed)


def shown(rate: float) -> Past | None:
    lesson = Lesson(f"before-{rate}", 100.0, 10.0, {(0, 1): rate, (0, 2): 1.5 * rate}, {})
    return NOTHING_LEARNED.learned("s", "m", lesson).past("s", "m")


def found(view: CurveCache, of: Job, total: Resources, past: Past | None = None) -> Curve | None:
    return view.of(of, total, past, settled=True)[0]


def same(one: Curve | None, other: Curve | None) -> bool:
    if one is None or other is None:
        return one is other
    arrays = ("rates", "demand", "share")
    return one.sizes == other.sizes and all(np.array_equal(getattr(one, a), getattr(other, a)) for a in arrays)


@pytest.mark.parametrize("speed", [LinearTrueSpeed(100.0, 1), believe({(0, 1): 1.0}), None], ids=["told", "seen", "no"])
@pytest.mark.parametrize("servers", [0, 3])
@pytest.mark.parametrize("totals", [(SMALL, LARGE), (LARGE, TINY), (TINY, SMALL)], ids=["grew", "shrank", "fits"])
def test_after_the_totals_changed_it_is_as_if_found_there(
    totals: tuple[Resources, Resources], servers: int, speed: Any
) -> None:
    view, of = CurveCache("all"), job(servers=servers, speed=speed)
    found(view, of, totals[0])
    assert same(found(view, of, totals[1]), found(CurveCache("all"), of, totals[1]))


def test_a_curve_follows_the_speeds_of_other_jobs_of_the_name() -> None:
    view, of = CurveCache("all"), job()
    found(view, of, SMALL, shown(1.0))
    assert same(found(view, of, SMALL, shown(4.0)), found(CurveCache("all"), of, SMALL, shown(4.0)))


def test_a_speed_that_is_told_is_not_asked_anew_when_another_job_ends() -> None:
    view, of = CurveCache("all"), job(speed=LinearTrueSpeed(100.0, 1))
    assert found(view, of, SMALL, shown(1.0)) is found(view, of, SMALL, shown(4.0))


@pytest.mark.parametrize("cpu", [(2000, 2000), (8000, 5000)], ids=["as requested", "with more"])
def test_a_size_that_was_measured_is_known_where_the_best_next_size_does_not_lead(cpu: tuple[int, int]) -> None:
    """7 workers and a PS were faster than the 20 and 4 PSs of now. With CPU that was lent they do not count as so fast:
    it is not sure to be lent again."""
    large = {WORKER: 20, PS: 4}
    groups = (ReplicaGroup(WORKER, Resources(2000), 2, 1, 32), ReplicaGroup(PS, Resources(2000), 1, 1, 4))
    of = Job(
        JobSpec("a", 0.0, groups, total_steps=1e6),
        placement={type_: ("n",) * n for type_, n in large.items()},
        phase="running",
        steps_per_s=900.0,
        speed=believe(
            {(1, 7): 1134.0, (4, 20): 900.0}, conditions={(1, 7): Conditions(cpu[0]), (4, 20): Conditions(cpu[1])}
        ),
        cpu={WORKER: (cpu[1],) * 20},
    )
    curve = found(CurveCache("all"), of, Resources(1_000_000))
    assert curve is not None
    rates = {(size[PS], size[WORKER]): rate for size, rate in zip(curve.sizes, curve.rates[1:], strict=True)}
    assert rates[1, 7] == pytest.approx(1134.0, rel=0.01) if cpu[0] == 2000 else rates[1, 7] < 600
    assert [*rates.values()] == sorted(rates.values())


def test_a_node_of_which_nobody_uses_cpu_is_not_crowded() -> None:
    """Its CPU is nothing and all of that is used: jobs of accelerators alone do not slow each other down."""
    spec = (ReplicaGroup(WORKER, Resources(accelerators=1), 1, 1, 1),)
    jobs = [Job(JobSpec(key, 0.0, spec), {WORKER: ("n",)}, "running") for key in "ab"]
    assert not CpuLoad(jobs, {"n": node("n", gpus=8)}).crowded()
