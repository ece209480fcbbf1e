"""bench-elastic-mix: the jobs are what the page says, and a small run gives its figures."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import bench_elastic_mix
from mix_workload import CORES, MIDDAY_S, NODES, Mix, workload

LARGE = Mix(0.9, 2000)


def test_a_seed_has_the_same_jobs_each_time() -> None:
    assert workload(Mix(0.9), 3) == workload(Mix(0.9), 3)


@pytest.mark.parametrize(
    ("kind", "share"),
    [("deadline_s", 0.2), ("loanable", 0.3), ("loss", 0.2)],
)
def test_the_mix_has_the_stated_share_of_each_kind(kind: str, share: float) -> None:
    having = sum(bool(getattr(job, kind)) for job in workload(LARGE, 1))
    assert having / LARGE.jobs == pytest.approx(share, abs=0.03)


def test_a_tenth_is_wide() -> None:
    wide = sum(max(group.minimum for group in job.groups) > 1 for job in workload(LARGE, 1))
    assert wide / LARGE.jobs == pytest.approx(0.1, abs=0.02)


def test_jobs_ask_for_the_load_while_they_come() -> None:
    jobs = workload(LARGE, 1)
    asked = sum(
        group.request.cpu_millicores / 1000 * group.count * (job.duration_s or 0)
        for job in jobs
        for group in job.groups
    )
    comes = jobs[-1].submit_s - MIDDAY_S
    assert asked / (comes * NODES * CORES) == pytest.approx(LARGE.load, rel=0.02)


def test_a_quarter_comes_eight_at_once() -> None:
    times = [job.submit_s for job in workload(LARGE, 1)]
    assert sum(times.count(t) == 8 for t in times) / LARGE.jobs == pytest.approx(0.25, abs=0.01)


@pytest.mark.thorough  # a run of the benchmark itself
def test_a_small_run(tmp_path: Path) -> None:
    output = tmp_path / "mix.json"
    said = ["--seeds", "1", "--loads", "full", "--jobs", "12", "--policies", "elastic", "--output", str(output)]
    done = CliRunner().invoke(bench_elastic_mix.main, said, catch_exceptions=False)
    assert done.exit_code == 0
    runs = json.loads(output.read_text())["runs"]
    assert [(each["policy"], each["finished"]) for each in runs] == [("fixed", 12), ("fifo", 12), ("elastic", 12)]
    assert "<polyline" in output.with_suffix(".svg").read_text()
    assert "Speed after a change" in done.output
