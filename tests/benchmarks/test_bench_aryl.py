"""bench-aryl-simulation finds the load that it is asked for, and bench-aryl-reclaim asks what a run asked."""

import csv
import gzip
import json
import random
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import bench_aryl_reclaim
import bench_aryl_simulation
from aryl_workload import DAYS, PHILLY, Row, Setting, elastic_part, read_philly, workload
from elastic_tfjob.simulation.scenario import DAY_S

DRAW = random.Random(7)
ROWS: list[Row] = [
    (DRAW.uniform(0, 15 * 86400), DRAW.expovariate(1 / 9000), DRAW.choice([1, 1, 2, 4, 8, 16])) for _ in range(500)
]


def simulated(tmp_path: Path, *said: str, clusters: str | None = "06") -> Result:
    (tmp_path / "itp").mkdir(exist_ok=True)
    with gzip.open(tmp_path / "itp" / "itp_cluster06.csv.gz", "wt") as file:
        csv.writer(file).writerows([("submit_s", "duration_s", "num_gpus"), *ROWS])
    where = ["--traces", str(tmp_path), "--scale", "0.01", "--seeds", "11"]
    where += ["--clusters", clusters] if clusters else []
    return CliRunner().invoke(bench_aryl_simulation.main, [*where, "--output", str(tmp_path / "found.json"), *said])


@pytest.mark.thorough  # a run of the benchmark itself
def test_rows_say_the_load_and_the_bound(tmp_path: Path) -> None:
    done = simulated(tmp_path, "--queue", "4000", "--policies", "backfill,HOL,SJF + both")
    assert done.exit_code == 0, done.output
    runs = json.loads((tmp_path / "found.json").read_text())["runs"]
    assert [row["policy"] for row in runs] == ["backfill", "HOL", "SJF + both"]
    assert len({row["load"] for row in runs}) == 1
    assert runs[1]["avg_queue_s"] == pytest.approx(4000, rel=0.1)
    assert all(0 < row["bound"] < row["avg_jct_s"] for row in runs)
    assert {"reclaim_preemptions", "scaled_in", "loaned_node_hours", "loaned_used_hours"} <= runs[0].keys()


@pytest.mark.thorough  # a run of the benchmark itself
def test_a_queue_that_no_load_gives_is_refused_in_words() -> None:
    with pytest.raises(click.ClickException, match="at no load"):
        bench_aryl_simulation.calibrated(ROWS, Setting(scale=0.002), 1e7, 11)


def test_a_queue_and_a_load_are_not_both_taken(tmp_path: Path) -> None:
    done = simulated(tmp_path, "--queue", "4000", "--load", "0.8")
    assert done.exit_code == 2
    assert "give it or --load, not both" in done.output


@pytest.mark.parametrize("most", [0.1, 1.0])
def test_elastic_jobs_have_at_most_about_as_much_of_the_work_as_is_said(most: float) -> None:
    rows: list[Row] = [(0.0, 3600.0, 8 if k % 40 == 0 else 1) for k in range(2000)]
    jobs = workload(rows, Setting(scale=0.04, elastic_work=most), 11)
    all_large = 8 / (8 + 39)
    assert elastic_part(jobs)[1] == pytest.approx(min(most, all_large), abs=0.03)


def philly(tmp_path: Path, *lines: str) -> Path:
    (tmp_path / PHILLY).parent.mkdir()
    with gzip.open(tmp_path / PHILLY, "wt") as file:
        file.write("\n".join(["job_id,submit_s,duration_s,num_gpus,vc", *lines]) + "\n")
    return tmp_path


def test_a_line_of_philly_is_a_job_and_its_virtual_cluster_is_left_out(tmp_path: Path) -> None:
    found = read_philly(philly(tmp_path, "p0,-2294959,2240194,8,7f04ca", "p1,86400,557,1,6214e9"))
    assert found == [(-2294959.0, 2240194.0, 8), (86400.0, 557.0, 1)]


def test_jobs_of_before_the_zero_of_the_trace_are_folded_too_and_no_gpu_is_lost() -> None:
    rows: list[Row] = [(-3600.0, 600.0, 12), (-3600.0, 600.0, 1), (-3600.0, 600.0, 32)]
    jobs = workload(rows, Setting(scale=0.05), 11)
    assert {job.submit_s for job in jobs} == {DAYS * DAY_S - 3600}
    needs = {sum(g.count * g.request.accelerators for g in job.groups) for job in jobs}
    assert needs == {12, 1, 32}


@pytest.mark.thorough  # a run of the benchmark itself
def test_philly_is_asked_for_by_name(tmp_path: Path) -> None:
    philly(tmp_path, *(f"p{k},{submit},{1 + duration},{gpus},a" for k, (submit, duration, gpus) in enumerate(ROWS)))
    done = simulated(tmp_path, "--trace", "philly", "--policies", "HOL", clusters=None)
    assert done.exit_code == 0, done.output
    (run,) = json.loads((tmp_path / "found.json").read_text())["runs"]
    assert (run["trace"], run["clusters"]) == ("philly", "")
    refused = simulated(tmp_path, "--trace", "philly")
    assert refused.exit_code == 2
    assert "--clusters are of ITP" in refused.output


def test_a_trace_that_is_missing_is_named(tmp_path: Path) -> None:
    done = simulated(tmp_path, "--trace", "philly", clusters=None)
    assert done.exit_code == 1
    assert PHILLY in done.output.replace("\n", "")


@pytest.mark.thorough  # a run of the benchmark itself
def test_reclaims_of_a_run_are_asked_of_every_rule() -> None:
    reclaims = bench_aryl_reclaim.recorded(ROWS, Setting(scale=0.01, load=1.1, fungible=1.0), 11)
    assert len(reclaims) > 5
    rows = {row["rule"]: row for row in bench_aryl_reclaim.beyond("simulated", reclaims)}
    assert 0 < rows["search"]["best"] <= rows["search"]["stops"] <= rows["random"]["stops"]
