"""What the simulator says of teams."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from elastic_tfjob.cli import main
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import WORKER, ReplicaGroup
from elastic_tfjob.scheduling.steps.teams import TeamRules
from elastic_tfjob.simulation.engine import Simulation, SimulationInput
from elastic_tfjob.simulation.formats import WorkloadError, parse_csv
from elastic_tfjob.simulation.result import RunResult
from elastic_tfjob.simulation.runner import uniform_cluster
from elastic_tfjob.simulation.speed_models.catalogue import speed_model_named
from elastic_tfjob.simulation.teams import jain, static_part, team_numbers
from elastic_tfjob.simulation.workload import WorkloadJob

HEADER = "job_id,submit_s,duration_s,num_gpus,num_workers,team\n"


def run(teams: object) -> RunResult:
    """Team a takes the whole cluster of 8 CPUs for hours; b comes after ten minutes and asks for as much."""
    group = ReplicaGroup(WORKER, Resources(1000), 8, 1, 8)
    jobs = [WorkloadJob(key, at, (group,), duration_s=2 * 3600) for key, at in (("a/1", 0.0), ("b/1", 600.0))]
    profile = build("elastic", parse_profile("elastic", {"lend": "none", "teams": teams}))
    inputs = SimulationInput(jobs, uniform_cluster(1, 0, 8, 8), speed_model_named("linear"), teams=TeamRules())
    return Simulation(inputs, profile).run()


def test_with_shares_both_teams_get_half_and_without_the_first_keeps_all() -> None:
    shared, alone = run({}), run(None)
    a, b = team_numbers(shared)
    assert (a.reclaimed, b.reclaimed) == ({"shrink": 4}, {})
    assert (b.mean_wait_s, a.lost_s) == (0, 0)
    assert jain(shared)
    assert min(jain(shared)) == pytest.approx(1.0)
    assert team_numbers(alone)[0].reclaimed == {}
    assert team_numbers(alone)[1].below_share_s > 3600
    assert min(jain(alone)) < 0.9


def test_a_trace_names_teams_and_a_wrong_name_is_told_with_its_line() -> None:
    work, _ = parse_csv(f"{HEADER}x,0,60,0,2,vision\ny,0,60,0,2,\n", "t.csv")
    assert [job.key for job in work.jobs] == ["vision/x", "y"]
    with pytest.raises(WorkloadError, match=r"t.csv:2: column 'team': 'A/b' is not a name of at most 63"):
        parse_csv(f"{HEADER}x,0,60,0,2,A/b\n", "t.csv")


def test_a_part_of_a_cluster_is_whole_nodes_and_one_with_the_rest() -> None:
    part = static_part(uniform_cluster(10, 0, 16, 64), 1 / 3)
    assert [node.capacity.cpu_millicores for node in part] == [16000, 16000, 16000, 5333]


@pytest.mark.parametrize("columns", [60, 100])
def test_no_figure_of_the_table_of_teams_is_cut(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, columns: int) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text(HEADER + "".join(f"{i},{i},{4000 + i},2,2,team-{'ab'[i % 2]}\n" for i in range(8)))
    monkeypatch.setenv("COLUMNS", str(columns))
    words = ["simulate", str(trace), "--nodes", "2", "--profile", "elastic", "--set", "elastic.lend=none"]
    result = CliRunner().invoke(main, [*words, "--set", "elastic.teams={reclaim: stop}", "--teams-alone"])
    assert result.exit_code == 0, result.output
    _, _, table = result.output.partition("Teams under elastic:")
    for heading in ("team-a", "team-b", "p95 wait s", "below share s", "to share s", "vs alone"):
        assert heading in table
    assert "…" not in result.output
