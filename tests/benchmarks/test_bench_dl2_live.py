"""The simulation of what the live benchmark of `dl2` should show."""

import pytest
from click.testing import CliRunner

import bench_dl2_live_simulation as bench


def test_jobs_share_cores_equally_and_none_gets_more_than_a_node() -> None:
    alone, end = bench.shared(1.5, [(0.0, 10.0)])
    assert alone == end == pytest.approx(20.0, abs=0.2)
    together, _ = bench.shared(1.5, [(0.0, 10.0)] * 6)
    assert together == pytest.approx(40.0, abs=0.2)


def test_a_trainer_that_takes_cpu_makes_jobs_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Near saturation by more than its part: 0.07 of 1.5 cores are 5 %, the jobs take 10 % longer."""
    monkeypatch.setattr(bench, "POLICIES", {"optimus": ("optimus", {}), "dl2": ("dl2", {})})
    done = CliRunner().invoke(bench.main, ["--cases", "6x10", "--seeds", "1"])
    assert done.exit_code == 0, done.output
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.output.splitlines() if "│" in line]
    times = {row[0]: float(row[1]) for row in rows if len(row) == 3}
    assert 1.08 < times["0.07"] / times["0"] < 1.12
    assert [row[1] for row in rows if row[0] == "6x10"] == ["optimus", "dl2"]
