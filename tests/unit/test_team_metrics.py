"""Metrics of teams: bounded in number, and gone with their team."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from prometheus_client import REGISTRY

from elastic_tfjob.controller.schedule.team_metrics import MAX_COUNTED, MAX_NAMED, OTHERS, TeamMetrics, limited
from elastic_tfjob.scheduling.plan import Plan, TeamShare
from elastic_tfjob.scheduling.snapshot import Snapshot


def planned(teams: Mapping[str, TeamShare]) -> Plan:
    return Plan(Snapshot(0.0, {}, {}), {}, teams=teams)


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"elastic_tfjob_team_{name}", labels)


def test_a_team_has_its_gauges_until_it_is_gone_and_its_counters_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    found = TeamMetrics()
    vision = TeamShare(0.25, 0.5, 2, below=True, taken={"shrink": 3})
    found.note(planned({"vision": vision}))
    assert (value("share", team="vision"), value("deserved", team="vision")) == (0.25, 0.5)
    assert value("waiting_jobs", team="vision") == 2
    assert value("reclaimed_replicas_total", team="vision", how="shrink") == 3
    clock[0] = 110.0
    found.note(planned({"vision": replace(vision, below=False, taken={})}))
    clock[0] = 120.0
    found.note(None)
    assert value("below_share_seconds_total", team="vision") == 10
    assert value("share", team="vision") is None
    assert found.teams == {}


def test_many_teams_are_few_time_series() -> None:
    teams = {f"team-{k}": TeamShare(0.001 * k, 0.001 * k, 1, taken={"stop": 1}) for k in range(MAX_NAMED + 50)}
    found = limited(teams)
    assert len(found) == MAX_NAMED + 1
    assert "team-149" in found
    assert "team-0" not in found
    assert found[OTHERS].waiting == 50
    assert found[OTHERS].taken == {"stop": 50}
    assert sum(each.share for each in found.values()) == pytest.approx(sum(each.share for each in teams.values()))


def test_namespaces_that_come_and_go_leave_few_counters() -> None:
    """Whoever may create namespaces could fill the memory of the operator and of Prometheus."""
    found = TeamMetrics()
    for k in range(MAX_COUNTED + 20):
        found.note(planned({f"run-{k}": TeamShare(0.0, 0.5, 1, below=True, taken={"shrink": 1})}))
    samples = [each for family in REGISTRY.collect() for each in family.samples if each.name.endswith("_total")]
    named = {team for each in samples if (team := each.labels.get("team", "")).startswith("run-")}
    assert len(named) == MAX_COUNTED
    assert value("reclaimed_replicas_total", team=OTHERS, how="shrink") == 20
