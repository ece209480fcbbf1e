"""Memory of parameter servers that grows: timelines worked out by hand, and the operator's rule on the same figures."""

import math
from dataclasses import replace
from typing import Any

import pytest

from elastic_tfjob.api.scenario import parse_scenario
from elastic_tfjob.controller.job import memory as operators
from elastic_tfjob.controller.model.reports import MemoryUse
from elastic_tfjob.runtime import memory_use
from elastic_tfjob.runtime.memory_use import MemoryTrend
from elastic_tfjob.scheduling import memory_limit
from elastic_tfjob.scheduling.memory_limit import MemoryRule, after_kill, fits, raised, short
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import PS, WORKER, ReplicaGroup
from elastic_tfjob.simulation import memory
from elastic_tfjob.simulation.engine import Simulation, SimulationInput
from elastic_tfjob.simulation.formats import GIB, WorkloadError, parse_csv
from elastic_tfjob.simulation.live_job import Costs, Noise
from elastic_tfjob.simulation.memory import MOST_KILLS, Figures, PsMemory
from elastic_tfjob.simulation.result import JobRecord, RunResult
from elastic_tfjob.simulation.runner import uniform_cluster
from elastic_tfjob.simulation.scenario import generate
from elastic_tfjob.simulation.speed_models.base import FIXED, LINEAR
from elastic_tfjob.simulation.speed_models.cpu import PS_CPU
from elastic_tfjob.simulation.summary import COLUMNS, job_rows, summarise
from elastic_tfjob.simulation.workload import MemoryGrowth, WorkloadJob

from .build import finishes, no_violation

MIB = 1 << 20
HOUR_S = 3600.0
RULE = MemoryRule()
COSTS = Costs(restart_s=((math.inf, 40.0),), checkpoint_interval_s=60.0)
GROWS = MemoryGrowth(GIB / 2, per_h=GIB)
"""From 0.5 GiB: a limit of 1 GiB is reached after half an hour."""
JUMPS = MemoryGrowth(0.55 * GIB, jump_s=630.0, jump=0.9 * GIB)


def job(key: str = "a", growth: MemoryGrowth | None = GROWS, hours: float = 2.0, **more: Any) -> WorkloadJob:
    groups = (
        ReplicaGroup(PS, Resources(100, more.pop("asks", GIB)), 1, 1, more.pop("most_ps", 1)),
        ReplicaGroup(WORKER, Resources(100, GIB // 4), 1, 1, more.pop("high", 1)),
    )
    return WorkloadJob(key, more.pop("at", 0.0), groups, hours * HOUR_S, memory=growth, **more)


def run(*jobs: WorkloadJob, memory_gib: float = 8, nodes: int = 1, profile: str = "fixed", **more: Any) -> RunResult:
    cluster = uniform_cluster(nodes, 0, more.pop("cpus", 4), memory_gib)
    given: dict[str, Any] = {"costs": COSTS, "speed_model": FIXED} | more
    inputs = SimulationInput(jobs, cluster, **given)
    return Simulation(inputs, build(profile, parse_profile(profile, {"place": "best-fit"})), check=no_violation).run()


def bounded(growth: MemoryGrowth, gib: float) -> MemoryGrowth:
    return replace(growth, most=round(gib * GIB))


# -- what is used, and what a launcher would report of it --------------------------------------------------------------


@pytest.mark.parametrize("growth", [GROWS, replace(GROWS, jump_s=300.0, jump=0.3 * GIB)])
def test_the_figures_are_those_of_a_launcher(growth: MemoryGrowth) -> None:
    found = PsMemory.of(job(growth=growth), FIXED.true_speed(job()))
    assert found is not None
    now_used = 0
    trend = MemoryTrend(lambda: now_used)
    for at in range(900):
        now_used = round(found.used(float(at)))
        trend.sample(at, -60.0)
        if at % 5 or at < memory.WINDOW_S:
            continue
        told, seen = trend.report(None, 0.0), found.figures(float(at), 1.0)
        assert told["highest_bytes"] == seen.highest_bytes
        near = growth.jump / 60 + MIB / 100  # samples of each second
        assert told["growth_bytes_per_s"] == pytest.approx(seen.growth_bytes_per_s, abs=near)
        assert told["growth_of_late_bytes_per_s"] == pytest.approx(seen.growth_of_late_bytes_per_s, abs=8 * near)
        use = MemoryUse(**{name: told[name] for name in Figures._fields})
        assert fits(RULE, 2 * GIB, use) == fits(RULE, 2 * GIB, seen)


def test_what_both_worlds_have_in_common_is_the_same() -> None:
    assert (memory_limit.NO_ROOM_S, memory_limit.GIVE_UP_S, memory_limit.AGAIN_S) == (20, 120, 300), "as in the docs"
    assert memory.SAVE_S == operators._SAVE_S == RULE.horizon_s
    assert (memory.WINDOW_S, memory.LATELY_S) == (memory_use.WINDOW_S, memory_use._LATELY_S)
    rules = memory.OPERATORS
    assert (rules.rule, rules.fits, rules.raised) == (RULE, fits, raised)
    assert (rules.short, rules.after_kill) == (short, after_kill)


def test_use_follows_the_steps_that_are_done() -> None:
    """At the declared size one step is a second; two workers make two a second, and memory grows twice as fast."""
    found = PsMemory.of(job(growth=replace(GROWS, jump_s=1800.0, jump=GIB)), LINEAR.true_speed(job()))
    assert found is not None
    assert [found.used(steps) / GIB for steps in (0, 900, 1799, 1800, 3600)] == pytest.approx(
        [0.5, 0.75, 0.5 + 1799 / 3600, 2.0, 2.5]
    )


def test_held_and_used_memory_is_counted() -> None:
    found = PsMemory.of(job(growth=replace(GROWS, jump_s=1800.0, jump=GIB)), FIXED.true_speed(job()))
    assert found is not None
    record = JobRecord("a", 0.0, None)
    for at in (0.0, 900.0, 2700.0, 3600.0):
        found.count(record, at, at)
    assert record.ps_held_byte_s == HOUR_S * GIB
    assert record.ps_used_byte_s == pytest.approx(HOUR_S * GIB * (0.5 + 0.5 + 0.5))  # first, growth, jump at half


def test_more_parameter_servers_divide_what_one_would_use() -> None:
    found = PsMemory.of(job(growth=JUMPS), FIXED.true_speed(job()))
    assert found is not None
    one = found.used(1000.0)
    found.replicas = 2
    assert found.used(1000.0) == pytest.approx(one / 2)


# -- kills -------------------------------------------------------------------------------------------------------------


def test_a_job_that_outgrows_its_limit_is_killed_again_and_again_and_fails() -> None:
    """The limit is reached after 1800 s, at a checkpoint: nothing is lost, and each restart takes 40 s."""
    outcome = run(job(), job("b", at=1000.0), memory_gib=1.5)
    a, b = outcome.records
    assert (a.memory_kills, a.memory_raises, a.finish_s) == (MOST_KILLS + 1, 0, None)
    assert a.lost_steps == pytest.approx(0, abs=1)
    assert b.start_s == pytest.approx(1800 + MOST_KILLS * 40, abs=1)  # when a gives up its replicas
    summary = summarise(outcome, 2)
    assert (summary.finished, summary.memory_failed, summary.memory_kills) == (0, 2, 2 * (MOST_KILLS + 1))


def test_steps_since_the_checkpoint_are_lost_at_each_kill() -> None:
    """0.45 GiB more are used after 1620 s and 27 checkpoints; 1.5 % more is 1674 s."""
    (record,) = run(job(growth=replace(GROWS, first=0.535 * GIB))).records
    assert record.lost_steps == pytest.approx((MOST_KILLS + 1) * (0.465 * 3600 - 1620), abs=MOST_KILLS + 1)


def test_without_growth_there_is_nothing_to_tell() -> None:
    outcome = run(job(growth=None))
    assert finishes(outcome) == {"a": 2 * HOUR_S}
    summary = summarise(outcome, 1)
    assert (summary.memory_kills, summary.memory_raises, summary.memory_held_by_used) == (None, None, None)
    assert dict(zip(COLUMNS, job_rows(outcome)[0], strict=True))["memory_kills"] is None


def test_costs_that_are_zero_do_not_make_it_endless() -> None:
    outcome = run(job(), job("b", bounded(JUMPS, 4)), costs=Costs())
    assert [(r.memory_kills, r.finish_s) for r in outcome.records] == [(MOST_KILLS + 1, None), (1, 2 * HOUR_S)]


@pytest.mark.parametrize("speed_model", [FIXED, PS_CPU])
def test_a_kill_costs_a_restart_and_the_way_from_the_checkpoint(speed_model: Any) -> None:
    """The jump after 630 s is 30 s after a checkpoint; then the limit is half as much again."""
    costs = replace(COSTS, boot_cpu_s=1.0)
    calm, jumps = (
        run(job(growth=growth, hours=0.5, model="digits"), speed_model=speed_model, costs=costs)
        for growth in (None, bounded(JUMPS, 4))
    )
    (record,) = jumps.records
    assert record.memory_kills == 1
    assert record.lost_s == pytest.approx(30)
    before, after = finishes(calm)["a"], finishes(jumps)["a"]
    assert before is not None
    assert after is not None
    boot_s = after - before - 70
    assert boot_s == pytest.approx(0 if speed_model is FIXED else 10, abs=0.1 if speed_model is FIXED else 10)


# -- raises ------------------------------------------------------------------------------------------------------------


def test_a_forecast_prevents_kills() -> None:
    """From 0.5 to 2.5 GiB; no second is lost."""
    outcome = run(job(growth=bounded(GROWS, 4)))
    (record,) = outcome.records
    assert (record.memory_kills, record.finish_s) == (0, 2 * HOUR_S)
    assert 3 <= record.memory_raises <= 6
    held_by_used = summarise(outcome, 1).memory_held_by_used
    assert held_by_used is not None
    assert 1.1 <= held_by_used <= 1.5


def test_of_a_job_that_reports_nothing_kills_tell_alone() -> None:
    (record,) = run(job(growth=bounded(GROWS, 4)), noise=Noise(silent=1.0)).records
    assert record.finish_s is not None
    assert record.memory_kills == record.memory_raises == 3


def limits_of(*jobs: WorkloadJob, **more: Any) -> dict[float, int]:
    """What plans count for a parameter server of job a, by time."""
    found: dict[float, int] = {}

    class Watched(Simulation):
        def _decide(self, now: float) -> None:
            if "a" in self.snapshot.jobs:
                group = self.snapshot.jobs["a"].spec.group(PS)
                assert group is not None
                found[now] = group.request.memory_bytes
            super()._decide(now)

    profile = build("fixed", parse_profile("fixed", {}))
    Watched(SimulationInput(jobs, uniform_cluster(1, 0, 4, 8), FIXED, COSTS, **more), profile).run()
    return found


def test_limits_are_raised_when_the_operator_raises_them() -> None:
    """The rule alone, on the figures of each report."""
    growth = bounded(GROWS, 2)
    expected, limit = {0.0: GIB}, GIB
    for at in range(0, 7200, 5):
        use = Figures(round(GIB / 2 + GIB * at / 3600), GIB / 3600, GIB / 3600)
        if limit < 2 * GIB and not fits(RULE, limit, use):
            limit = expected[float(at)] = raised(RULE, limit, use, 2 * GIB)
    assert limit == 2 * GIB
    seen = limits_of(job(growth=growth))
    assert {at: seen[at] for at in expected} == expected
    assert sorted(set(seen.values())) == sorted(set(expected.values()))


def test_a_limit_stays_within_the_users_bound() -> None:
    growth = bounded(GROWS, 1.5)
    seen = limits_of(job(growth=growth, hours=4))
    assert max(seen.values()) == 1.5 * GIB
    (record,) = run(job(growth=growth, hours=4)).records
    assert (record.memory_kills, record.finish_s) == (MOST_KILLS + 1, None)


def test_a_job_saves_before_a_kill_that_it_cannot_avoid() -> None:
    """With checkpoints each half hour, and the bound at 1.5 GiB, which is used after an hour."""
    costs = replace(COSTS, checkpoint_interval_s=1790.0)
    free, bound = (run(job(growth=growth), costs=costs).records[0] for growth in (GROWS, bounded(GROWS, 1.25)))
    assert free.lost_s == pytest.approx(7 * 10)
    assert bound.lost_s == pytest.approx(7 * 60, rel=0.01)


def test_one_more_parameter_server_is_asked_for_at_the_bound() -> None:
    """2.5 GiB in the end: not in one of 1.5 GiB, but in two."""
    growth = bounded(GROWS, 1.5)
    alone, two = (run(job(growth=growth, most_ps=most), profile="fixed").records[0] for most in (1, 2))
    assert (alone.memory_kills, alone.finish_s) == (MOST_KILLS + 1, None)
    assert (two.memory_kills, two.rescales, two.finish_s) == (0, 1, 2 * HOUR_S)


def test_a_job_of_one_limit_does_not_fail_by_kills_at_several() -> None:
    """Without forecasts, kills teach the limit: 1, 1.5, 2.25, 3.375 and so on up to 9 GiB."""
    limits = memory.LimitRules(fits=lambda rule, limit, use: True)
    (record,) = run(job(growth=bounded(GROWS, 64), hours=8), memory_gib=80, limits=limits).records
    assert record.finish_s is not None
    assert record.memory_kills == record.memory_raises == 6


# -- nodes without room ------------------------------------------------------------------------------------------------


def test_a_replica_moves_where_its_node_has_no_room() -> None:
    """1.25 GiB and the other job's 1 GiB leave no room for 1.25: after a raise at about 1,400 s it moves, and is not
    killed. The move is a change like others: it may cost a pause."""
    jobs = (job(growth=bounded(GROWS, 1.5), hours=0.7), job("b", None, asks=GIB, hours=2))
    outcome = run(*jobs, memory_gib=2.5, nodes=2, costs=replace(COSTS, migrate_s=7.0))
    a = outcome.records[0]
    assert (a.memory_kills, a.migrations) == (0, 1)
    assert a.finish_s == 0.7 * HOUR_S + 7


def test_without_room_anywhere_it_is_killed_and_raised_when_there_is_room() -> None:
    """b holds the rest until 1,900 s. a uses 1 GiB at 1,800 s; it is in force at the next look after b has ended."""
    jobs = (job(growth=bounded(GROWS, 2), hours=0.6), job("b", None, asks=GIB, hours=1900 / HOUR_S))
    (a, b) = run(*jobs, memory_gib=2.5).records
    assert b.finish_s == 1900
    assert 1 <= a.memory_kills <= 5
    assert a.finish_s is not None
    assert a.migrations == 0


def test_a_raise_without_room_is_given_up_and_tried_again() -> None:
    """Raised to 1.25 GiB when 0.8125 are used: at 1065 s, forecast a minute ahead. Another job asks for the rest."""
    seen = limits_of(job(growth=bounded(GROWS, 2), hours=0.45), job("b", None, asks=6.5 * GIB, hours=1))
    times = [at for at, limit in sorted(seen.items()) if limit > GIB]
    assert times[0] == pytest.approx(1065, abs=10)
    given_up = min(at for at, limit in seen.items() if at > times[0] and limit == GIB)
    assert given_up == pytest.approx(times[0] + memory_limit.GIVE_UP_S, abs=10)
    again = min(at for at in times if at > given_up)
    assert again == pytest.approx(given_up + memory_limit.AGAIN_S, abs=10)


def test_what_is_raised_is_not_given_to_others() -> None:
    """4 GiB: a grows to 3 GiB, so that b, which asks for 2, starts when a has ended."""
    jobs = (job(growth=bounded(GROWS, 8), hours=2), job("b", None, asks=2 * GIB, at=6000.0, hours=0.1))
    a, b = run(*jobs, memory_gib=4.5).records
    assert a.memory_kills == 0
    assert b.start_s == a.finish_s == 2 * HOUR_S


def test_a_job_that_was_stopped_begins_with_the_raised_limit() -> None:
    first = job(growth=bounded(GROWS, 3), hours=2, priority=0)
    other = job("b", None, at=6000.0, hours=0.1, priority=1)
    a, _ = run(first, other, memory_gib=3.5, profile="srtf").records
    assert (a.memory_kills, a.preemptions) == (0, 1)


@pytest.mark.parametrize("profile", ["kips", "elastic", "optimus", "hull", "drf", "las"])
def test_each_profile_follows_raised_memory(profile: str) -> None:
    jobs = [job(f"j{k}", bounded(GROWS, 3), at=300.0 * k, hours=1 + 0.2 * k, high=3) for k in range(6)]
    outcome = run(*jobs, memory_gib=6, nodes=2, profile=profile, speed_model=LINEAR)
    assert None not in finishes(outcome).values()
    assert run(*jobs, memory_gib=6, nodes=2, profile=profile, speed_model=LINEAR).records == outcome.records


# -- workloads ---------------------------------------------------------------------------------------------------------

COLUMNS_OF_ALL = "job_id,submit_s,duration_s,num_gpus,num_workers,num_ps,ps_memory_gib,"


def parsed(columns: str, values: str) -> MemoryGrowth | None:
    (found,) = parse_csv(f"{COLUMNS_OF_ALL}{columns}\na,0,60,1,1,1,2,{values}\n", "t.csv")[0].jobs
    return found.memory


def test_columns_of_a_trace() -> None:
    assert parsed("x", "1") is None
    assert parsed("memory_growth_gib_per_h", "") is None
    assert parsed("memory_growth_gib_per_h", "0.5") == MemoryGrowth(GIB, per_h=GIB / 2)
    everything = "memory_growth_gib_per_h,memory_jump_s,memory_jump_gib,ps_memory_used_gib,ps_max_memory_gib"
    assert parsed(everything, "1,600,0.9,0.25,8") == MemoryGrowth(GIB / 4, GIB, 600.0, 0.9 * GIB, 8 * GIB)


@pytest.mark.parametrize(
    ("columns", "values", "said"),
    [
        ("memory_growth_gib_per_h", "-1", "'memory_growth_gib_per_h': '-1' must be at least 0"),
        ("memory_growth_gib_per_h", "much", "'memory_growth_gib_per_h': 'much' is not a number"),
        ("memory_jump_s", "60", "'memory_jump_gib': '' is empty; a jump has both memory_jump_s and memory_jump_gib"),
        ("memory_jump_gib", "1", "'memory_jump_s': '' is empty; a jump has both memory_jump_s and memory_jump_gib"),
        ("memory_jump_s,memory_jump_gib", "60,0", "'memory_jump_gib': '0' must be above 0"),
        ("ps_memory_used_gib", "3", "'ps_memory_used_gib': '3' is above ps_memory_gib, 2"),
        ("ps_max_memory_gib", "1", "'ps_max_memory_gib': '1' is below ps_memory_gib, 2"),
    ],
)
def test_bad_values_say_what_is_allowed(columns: str, values: str, said: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        parsed(columns, values)
    assert f"t.csv:2: column {said}" in str(caught.value)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("1,,", "needs num_ps above 0, parameter servers"),
        ("1,0,2", "needs num_ps above 0, parameter servers"),
        ("1,1,", "needs ps_memory_gib above 0, the memory of each"),
    ],
)
def test_growth_needs_parameter_servers_with_a_limit(row: str, said: str) -> None:
    text = f"job_id,submit_s,duration_s,num_gpus,memory_growth_gib_per_h,num_ps,ps_memory_gib\na,0,60,1,{row}\n"
    with pytest.raises(WorkloadError) as caught:
        parse_csv(text, "t.csv")
    assert f"column 'memory_growth_gib_per_h': '1' {said}" in str(caught.value)


def scenario(use: dict[str, Any], ps: dict[str, Any] | None = None) -> dict[str, Any]:
    kind = {"name": "k", "duration_s": 60, "workers": {}, "ps": ps or {"memory_gib": 2}, "memory": use}
    return {"jobs": 2, "mix": [kind]}


def test_memory_of_a_scenario() -> None:
    use = {"growth_gib_per_h": {"uniform": [1, 2]}, "jump_s": 60, "jump_gib": 1, "max_gib": 8}
    first, second = (each.memory for each in generate(parse_scenario(scenario(use)), 1))
    assert first is not None
    assert second is not None
    assert (first.first, first.jump_s, first.jump, first.most) == (GIB, 60, GIB, 8 * GIB)
    assert GIB <= first.per_h != second.per_h <= 2 * GIB


def test_other_scenarios_draw_the_same_numbers() -> None:
    with_use, without = (generate(parse_scenario(scenario(use) | {"jobs": 1}), 3)[0] for use in ({"max_gib": 4}, {}))
    assert replace(with_use, memory=None) == replace(without, memory=None)


@pytest.mark.parametrize(
    ("use", "ps", "said"),
    [
        ({"jump_s": 60}, None, "a jump needs both jump_s and jump_gib"),
        ({"grows": 1}, None, "memory.grows is not known"),
        ({}, {"count": 1}, "memory needs ps with memory_gib above 0"),
        ({"max_gib": 1}, None, "memory.max_gib 1 is below ps.memory_gib 2"),
    ],
)
def test_a_scenario_says_what_is_allowed(use: dict[str, Any], ps: dict[str, Any] | None, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace(".", r"\.")):
        parse_scenario(scenario(use, ps))


def test_a_speed_model_without_a_speed_is_refused() -> None:
    with pytest.raises(
        ValueError, match="job a: its memory grows, but the speed model has no speed at its declared size"
    ):
        PsMemory.of(job(), Speedless())


class Speedless:
    total_steps = 1.0

    def rate(self, placement: Any) -> float:
        return 1.0

    def steps_per_s(self, counts: Any) -> float | None:
        return None
