"""When the memory of replicas is raised, on traces of their use, and what a launcher tells of it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from elastic_tfjob.controller.model.reports import MemoryUse, Report
from elastic_tfjob.runtime.memory_use import MemoryTrend
from elastic_tfjob.scheduling.memory_limit import MemoryRule, after_kill, fits, raised

MIB, GIB = 1 << 20, 1 << 30
RULE = MemoryRule()
BEGAN_S = -60.0


# -- the rule, on traces of two hours (GiB by second) ------------------------------------------------------------------


def trace(kind: str, seed: int) -> "np.ndarray[Any, Any]":
    t = np.arange(7200)
    use = {
        "flat": np.full(len(t), 0.6),
        "ramp": 0.5 + 2.5 * t / 7200,
        "saves": (0.5 + 2.5 * t / 7200) * np.where(t % 60 < 4, 1.18, 1.0),
        "fast": 0.5 + 6.0 * np.minimum(t / 1200, 1),
        "jump": np.where(t < 600, 0.55, 0.55 + np.minimum((t - 600) / 10, 1) * 0.9),
    }[kind]
    return use * (1 + 0.01 * np.random.default_rng(seed).standard_normal(len(t)))


def figures(trend: MemoryTrend) -> MemoryUse:
    found = trend.report(0, 0.0)
    return MemoryUse(**{name: found[name] for name in found if name not in ("kills", "killed_at")})


def played(kind: str, seed: int, *, most: int = 8 * GIB, forecasts: bool = True) -> tuple[int, int, list[int]]:
    """Kills, raises and limits, with a poll each 5 s, 5 s until a raise is in force, and 40 s without use after a
    kill."""
    now_used = [0]
    trend, limit, kills, limits, away = MemoryTrend(lambda: now_used[0]), GIB, 0, [GIB], 0
    coming: tuple[int, int] | None = None
    for now, used in enumerate((trace(kind, seed) * GIB).astype(int).tolist()):
        now_used[0] = used
        if now < away:
            continue
        if coming is not None and now >= coming[0]:
            limit, coming = coming[1], None
            limits.append(limit)
        if used > limit:
            kills, away, trend = kills + 1, now + 40, MemoryTrend(lambda: now_used[0])
            limit = after_kill(RULE, limit, most)
            limits.append(limit)
            continue
        trend.sample(now, BEGAN_S)
        if now % 5 == 0 and coming is None and forecasts and limit < most:
            use = figures(trend)
            if not fits(RULE, limit, use):
                coming = now + 5, raised(RULE, limit, use, most)
    return kills, len(limits) - 1, limits


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("kind", "kills", "raises"), [("flat", 0, 0), ("ramp", 0, 9), ("saves", 0, 9), ("fast", 0, 13)]
)
def test_growth_is_foreseen(kind: str, kills: int, raises: int, seed: int) -> None:
    found, changes, limits = played(kind, seed)
    assert found == kills
    assert changes <= raises
    assert limits == sorted(limits), "a limit is never lowered"
    assert limits[-1] <= 1.6 * max(trace(kind, seed)) * GIB or kind == "flat"


@pytest.mark.parametrize("seed", range(3))
def test_a_jump_costs_one_kill_or_two(seed: int) -> None:
    """Nobody foresees it."""
    assert 1 <= played("jump", seed)[0] <= 2


def test_without_forecasts_kills_teach_the_limit() -> None:
    assert 1 <= played("ramp", 0, forecasts=False)[0] <= 4


def test_a_limit_stays_within_the_users_bound() -> None:
    kills, _, limits = played("ramp", 0, most=2 * GIB)
    assert max(limits) == 2 * GIB
    assert kills > 0
    assert raised(RULE, 2 * GIB, MemoryUse(highest_bytes=2 * GIB), 2 * GIB) == 2 * GIB
    assert after_kill(RULE, 3 * GIB, 2 * GIB) == 3 * GIB
    assert raised(RULE, 100 * MIB, MemoryUse(highest_bytes=95 * MIB), GIB) == 320 * MIB
    assert fits(RULE, 100 * MIB, MemoryUse()), "nothing is known"


# -- what a launcher tells ---------------------------------------------------------------------------------------------


def test_a_trend_is_of_the_last_three_minutes() -> None:
    used = 0
    trend = MemoryTrend(lambda: used)
    for at in range(600):
        used = at * MIB
        trend.sample(at, BEGAN_S)
        used = 0
        trend.sample(at + 0.5, BEGAN_S)
    found = trend.report(0, 0.0)
    assert found["highest_bytes"] == found["peak_bytes"] == 599 * MIB
    assert found["growth_bytes_per_s"] == pytest.approx(MIB)
    assert found["growth_of_late_bytes_per_s"] == pytest.approx(MIB)
    for at in range(600, 900):
        used = 5
        trend.sample(at, BEGAN_S)
    found = trend.report(0, 0.0)
    assert (found["highest_bytes"], found["peak_bytes"], found["growth_bytes_per_s"]) == (5, 599 * MIB, 0.0)


def test_a_second_program_and_a_start_are_no_growth() -> None:
    two = False
    trend = MemoryTrend(lambda: GIB if two else GIB // 2)
    for at in range(100):
        two = 50 <= at < 60
        trend.sample(at, at if two else BEGAN_S)
    found = trend.report(0, 0.0)
    assert (found["highest_bytes"], found["peak_bytes"], found["growth_bytes_per_s"]) == (GIB // 2, GIB, 0.0)


def test_a_kill_has_a_time() -> None:
    trend = MemoryTrend(lambda: None)
    assert set(trend.report(None, 1.0).values()) == {None}
    found = [trend.report(kills, 1000.0 + at) for at, kills in ((0, 0), (3, 1), (6, 1), (9, 3))]
    assert [(each["kills"], each["killed_at"]) for each in found] == [(0, None), (1, 1003.0), (1, 1003.0), (3, 1009.0)]


def test_a_report_is_news_when_its_memory_no_longer_fits() -> None:
    """Else a job is not looked at: it may be a minute until something else changes."""

    def news(highest: int, growth: float = 0.0, kills: int = 0) -> object:
        use = MemoryUse(highest_bytes=highest * MIB, limit_bytes=768 * MIB, growth_bytes_per_s=growth, kills=kills)
        return Report(at=0.0, memory=use).news

    assert news(100) == news(150)
    assert news(570) != news(580), "192 MiB stay free"
    assert news(580) != news(580, growth=6.0 * MIB), "it will be killed"
    assert news(100) != news(100, kills=1)
    assert Report(at=0.0, memory=MemoryUse(highest_bytes=GIB)).news == Report(at=0.0).news, "without a limit"
    fast = MemoryUse(highest_bytes=300 * MIB, limit_bytes=768 * MIB, growth_bytes_per_s=2.0 * MIB)
    assert fast.changes_fast
    assert not replace(fast, growth_bytes_per_s=0.0).changes_fast
    assert not replace(fast, limit_bytes=8 * GIB).changes_fast
