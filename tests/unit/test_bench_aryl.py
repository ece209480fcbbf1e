"""bench-aryl-simulation finds the load that it is asked for, and bench-aryl-reclaim asks what a run asked."""

import csv
import gzip
import json
import random
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import bench_aryl_reclaim
import bench_aryl_simulation
from aryl_workload import Row, Setting

DRAW = random.Random(7)
ROWS: list[Row] = [
    (DRAW.uniform(0, 15 * 86400), DRAW.expovariate(1 / 9000), DRAW.choice([1, 1, 2, 4, 8, 16])) for _ in range(500)
]


def simulated(tmp_path: Path, *said: str) -> Result:
    (tmp_path / "itp").mkdir()
    with gzip.open(tmp_path / "itp" / "itp_cluster06.csv.gz", "wt") as file:
        csv.writer(file).writerows([("submit_s", "duration_s", "num_gpus"), *ROWS])
    where = ["--traces", str(tmp_path), "--clusters", "06", "--scale", "0.01", "--seeds", "11"]
    return CliRunner().invoke(bench_aryl_simulation.main, [*where, "--output", str(tmp_path / "found.json"), *said])


def test_rows_say_the_load_and_the_bound(tmp_path: Path) -> None:
    done = simulated(tmp_path, "--queue", "4000", "--policies", "backfill,HOL,SJF + both")
    assert done.exit_code == 0, done.output
    runs = json.loads((tmp_path / "found.json").read_text())["runs"]
    assert [row["policy"] for row in runs] == ["backfill", "HOL", "SJF + both"]
    assert len({row["load"] for row in runs}) == 1
    assert runs[1]["avg_queue_s"] == pytest.approx(4000, rel=0.1)
    assert all(0 < row["bound"] < row["avg_jct_s"] for row in runs)
    assert {"reclaim_preemptions", "scaled_in", "loaned_node_hours", "loaned_used_hours"} <= runs[0].keys()


def test_a_queue_that_no_load_gives_is_refused_in_words() -> None:
    with pytest.raises(click.ClickException, match="at no load"):
        bench_aryl_simulation.calibrated(ROWS, Setting(scale=0.002), 1e7, 11)


def test_a_queue_and_a_load_are_not_both_taken(tmp_path: Path) -> None:
    done = simulated(tmp_path, "--queue", "4000", "--load", "0.8")
    assert done.exit_code == 2
    assert "give it or --load, not both" in done.output


def test_reclaims_of_a_run_are_asked_of_every_rule() -> None:
    reclaims = bench_aryl_reclaim.recorded(ROWS, Setting(scale=0.01, load=1.1, fungible=1.0), 11)
    assert len(reclaims) > 5
    rows = {row["rule"]: row for row in bench_aryl_reclaim.beyond("simulated", reclaims)}
    assert 0 < rows["search"]["best"] <= rows["search"]["stops"] <= rows["random"]["stops"]
