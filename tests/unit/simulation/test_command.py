"""`elastic-tfjob simulate` as a user meets it."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from elastic_tfjob.cli import main
from elastic_tfjob.simulation import command
from elastic_tfjob.simulation.runner import run_all

TRACE = "job_id,submit_s,duration_s,num_gpus\na,0,10,1\nb,2,5,1\nc,3,1,1\n"
SCENARIO = """\
jobs: 12
arrivals: {kind: fixed, every_s: 10}
mix:
  - name: small
    workers: {count: 1, min: 1, max: 4, gpus: 1, cpus: 1}
    duration_s: {uniform: [50, 100]}
    deadline_factor: 2
"""
KEYS = (
    *("profile", "seed", "jobs", "finished", "avg_jct_s", "median_jct_s", "p99_jct_s", "avg_queue_s", "makespan_s"),
    *(
        "gpu_utilisation",
        "cpu_utilisation",
        "cpu_used",
        "deadline_met",
        "rescales",
        "preemptions",
        "migrations",
        "rounds",
        "cpu_s",
    ),
    *("tardiness_s", "wasted_cpu", "jct_lower_bound_s", "losers", "worst_loser", "p95_jct_s"),
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


def simulate(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["simulate", *map(str, arguments)])


def runs(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["runs"]
    return found


def test_the_bound_is_told_where_all_jobs_finish_and_speeds_are_known(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    usual = ("--nodes", 2, "--gpus-per-node", 4, "--json", out)
    told = simulate(trace, *usual, "--profile", "fifo", "--profile", "srtf")
    first, second = runs(out)
    assert first["jct_lower_bound_s"] == second["jct_lower_bound_s"] <= second["avg_jct_s"]
    assert "bound: no schedule of these jobs has a mean JCT below" in told.output
    assert "bound:" not in simulate(trace, *usual, "--profile", "fifo", "--speed-noise", 0.1).output
    assert runs(out)[0]["jct_lower_bound_s"] is None


def test_cpu_that_is_lent_where_no_speed_follows_it_is_told(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = [f"j{k},{10 * k},500,1,1,4" for k in range(8)]
    path.write_text("\n".join(["job_id,submit_s,duration_s,num_gpus,cpus,cpu_demand", *rows]) + "\n")
    usual = (path, "--nodes", 3, "--cpus-per-node", 8)
    told = "its changes of CPU have no effect, because the speed model fixed ignores CPU"
    both = simulate(*usual, "--profile", "fifo", "--profile", "kips")
    assert both.exit_code == 0
    assert f"kips: {told}" in both.stderr
    assert f"fifo: {told}" not in both.stderr
    assert "lends CPU" not in simulate(*usual, "--profile", "kips", "--speed-model", "cpu-share").stderr


def test_json_has_every_number(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = simulate(trace, "--nodes", 1, "--gpus-per-node", 1, "--profile", "fifo", "--json", out)
    assert result.exit_code == 0, result.output
    (run,) = runs(out)
    assert set(KEYS) <= set(run)
    assert (run["profile"], run["jobs"], run["finished"], run["avg_jct_s"], run["makespan_s"]) == (
        "fifo",
        3,
        3,
        12.0,
        16.0,
    )
    assert run["deadline_met"] is None
    assert "3/3" in result.output


def test_profiles_seeds_places_and_settings(tmp_path: Path) -> None:
    path, out = tmp_path / "s.yaml", tmp_path / "out.json"
    path.write_text(SCENARIO)
    result = simulate(
        *(path, "--nodes", 2, "--gpus-per-node", 2, "--profile", "drf", "--profile", "las", "--replications", 2),
        *(
            "--set",
            "las.thresholds=10,20",
            "--set",
            "drf.cooldown_s=5",
            "--place",
            "spread",
            "--json",
            out,
            "--jobs",
            1,
        ),
    )
    assert result.exit_code == 0, result.output
    assert [(r["profile"], r["seed"]) for r in runs(out)] == [("drf", 0), ("las", 0), ("drf", 1), ("las", 1)]
    assert runs(out)[0]["avg_jct_s"] != runs(out)[2]["avg_jct_s"]
    assert all(r["finished"] == 12 and 0 <= r["deadline_met"] <= 1 for r in runs(out))


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO)
    pages, tables, numbers = [], [], []
    for k in range(2):
        html, rows, out = tmp_path / f"{k}.html", tmp_path / f"{k}.csv", tmp_path / f"{k}.json"
        files = ("--html", html, "--jobs-csv", rows, "--json", out)
        noise = ("--speed-noise", 0.2, "--speed-noise-every", 20, "--estimate-noise", 0.2, "--seed", 7)
        assert simulate(path, "--nodes", 2, "--profile", "optimus", *files, *noise).exit_code == 0
        pages.append(html.read_bytes())
        tables.append(rows.read_bytes())
        numbers.append(re.sub(r'"cpu_s": [\d.]+', "", out.read_text()))
    assert pages[0] == pages[1]
    assert tables[0] == tables[1]
    assert numbers[0] == numbers[1]


def test_several_processes_give_what_one_gives(trace: Path, tmp_path: Path) -> None:
    found = []
    for processes in (1, 2):
        out = tmp_path / f"{processes}.json"
        arguments = (trace, "--nodes", 1, "--profile", "fifo", "--profile", "srtf", "--json", out, "--jobs", processes)
        assert simulate(*arguments).exit_code == 0
        found.append([{k: v for k, v in run.items() if k != "cpu_s"} for run in runs(out)])
    assert found[0] == found[1]


def test_jobs_csv_and_html(trace: Path, tmp_path: Path) -> None:
    rows, html = tmp_path / "jobs.csv", tmp_path / "report.html"
    simulate(trace, "--nodes", 1, "--gpus-per-node", 1, "--profile", "fifo", "--jobs-csv", rows, "--html", html)
    with rows.open() as file:
        table = list(csv.DictReader(file))
    assert [(r["job_id"], r["start_s"], r["finish_s"]) for r in table] == [
        ("a", "0.0", "10.0"),
        ("b", "10.0", "15.0"),
        ("c", "15.0", "16.0"),
    ]
    page = html.read_text()
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page
    data = json.loads(page.split('type="application/json">')[1].split("</script>")[0])
    assert [bar[3] for bar in data["runs"][0]["gantt"]] == ["a", "b", "c"]


def test_bad_rows_stop_everything_or_are_listed(trace: Path, tmp_path: Path) -> None:
    trace.write_text(TRACE + "d,soon,1,1\n")
    result = simulate(trace, "--nodes", 1, "--profile", "fifo")
    assert result.exit_code == 1
    assert "trace.csv:5: column 'submit_s': 'soon' is not a number" in result.output
    result = simulate(trace, "--nodes", 1, "--profile", "fifo", "--skip-bad")
    assert result.exit_code == 0
    assert "1 invalid row(s) skipped" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--set", "fifo"), "write PROFILE.PARAM=VALUE"),
        (("--set", "las.promote_knob=2"), "profile 'las' is not part of this run; allowed: fifo"),
        (("--set", "fifo.speed=2"), "Parameters of fifo: place, interval_s"),
        (("--set", "fifo.interval_s=-1"), "fifo.interval_s should be greater than or equal to 0 (found '-1')"),
        (("--restart-pause", "8:x"), "give seconds, or tiers such as 1:7,8:30,60"),
        (("--restart-pause", "8:1,4:2"), "the limits must increase"),
        (("--boot-cpu", "x"), "give one or two numbers of CPU-seconds from 0"),
        (("--boot-cpu", "-1"), "give one or two numbers of CPU-seconds from 0"),
        (("--boot-cpu", "nan"), "give one or two numbers of CPU-seconds from 0"),
        (("--boot-cpu", "12,1,1"), "give one or two numbers of CPU-seconds from 0"),
        (("--boot-cpu", "1,12"), "must not exceed the first"),
        (("--speed-model", "ps"), "the speed model ps does not know model ''"),
        (("--format", "pollux"), "format pollux needs the column(s)"),
    ],
)
def test_wrong_arguments_say_what_is_wrong(trace: Path, arguments: tuple[str, ...], said: str) -> None:
    result = simulate(trace, "--nodes", 1, "--profile", "fifo", *arguments)
    assert result.exit_code != 0
    assert said in " ".join(result.output.split())


def test_the_old_name_of_the_speed_model_is_still_read(trace: Path) -> None:
    result = simulate(trace, "--nodes", 1, "--profile", "fifo", "--world", "ps")
    assert result.exit_code == 1
    assert "the speed model ps does not know model ''" in result.output
    assert "--speed-model" in result.output
    assert "--world" not in simulate("--help").output


def test_a_wrong_scenario_names_the_place_and_the_value(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO.replace("kind: fixed", "kind: often").replace("count: 1,", "count: 1, wings: 2,"))
    result = simulate(path, "--nodes", 1, "--profile", "fifo")
    assert result.exit_code == 1
    assert "arrivals.kind should be 'fixed', 'uniform'" in result.output
    assert "found 'often'" in result.output
    assert "mix.0.workers.wings" in result.output
    path.write_text("jobs: [")
    assert "not YAML" in simulate(path, "--nodes", 1, "--profile", "fifo").output


def test_jobs_that_never_fit_are_said(trace: Path) -> None:
    trace.write_text(TRACE + "wide,4,1,99\n")
    result = simulate(trace, "--nodes", 1, "--profile", "fifo-backfill")
    assert result.exit_code == 0
    assert "fifo-backfill: 1 job(s) never fitted into this cluster" in result.output


def test_jobs_that_fail_after_kills_are_said(trace: Path, tmp_path: Path) -> None:
    columns = "job_id,submit_s,duration_s,num_gpus,num_ps,ps_memory_gib,memory_growth_gib_per_h"
    trace.write_text(f"{columns}\na,0,7200,1,1,1,1\nb,0,60,1,1,1,1\n")
    table = tmp_path / "jobs.csv"
    result = simulate(trace, "--nodes", 1, "--memory-per-node", 8, "--profile", "fixed", "--jobs-csv", table)
    assert result.exit_code == 0
    assert "fixed: 1 job(s) failed after kills for memory" in result.output
    assert "never fitted" not in result.output
    assert [line.rsplit(",", 2)[1:] for line in table.read_text().splitlines()] == [
        ["memory_kills", "memory_raises"],
        ["7", "0"],
        ["0", "0"],
    ]


def test_list_shows_every_profile_and_parameter() -> None:
    result = CliRunner().invoke(main, ["simulate", "--list"])
    assert result.exit_code == 0
    for word in ("fifo-backfill", "promote_knob", "per_resource", "Format gavel", "cpu-share"):
        assert word in result.output


def test_an_interrupted_run_prints_what_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ctrl-C arrives while the progress bar is being drawn, after the first rounds."""
    trace = tmp_path / "long.csv"
    trace.write_text("job_id,submit_s,duration_s,num_gpus\n" + "".join(f"j{k},{k},5,1\n" for k in range(500)))

    def interrupted(specs: Any, report: Any, *_: object) -> Any:
        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        return run_all(specs, stop, 1)

    monkeypatch.setattr(command, "run_all", interrupted)
    result = simulate(trace, "--nodes", 1, "--profile", "fifo", "--json", tmp_path / "out.json")
    assert result.exit_code == 130
    assert "partial" in result.output
    (run,) = runs(tmp_path / "out.json")
    assert 0 < run["finished"] < 500
    assert run["partial"]


ITP = "job_id,submit_s,duration_s,num_gpus,model_name,batch_size,num_iteration,deadline_s\n"
TESTBED = "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration\n"


@pytest.mark.parametrize(
    "text", [ITP + "a,0,1000,2,resnet50,256,4000,1500\n", TESTBED + "a,0,4000,resnet50,1500,256,2,1000\n"]
)
def test_traces_of_itp_are_elastic_on_a_measured_accelerator(text: str, tmp_path: Path) -> None:
    path, out = tmp_path / "itp.csv", tmp_path / "out.json"
    path.write_text(text)
    for profile in ("fixed", "deadline"):
        options = ("--set", "deadline.oracle=true") if profile == "deadline" else ()
        result = simulate(
            path,
            "--nodes",
            1,
            "--place",
            "count",
            "--accelerator",
            "A100",
            "--profile",
            profile,
            *options,
            "--json",
            out,
        )
        assert result.exit_code == 0, result.output
        (run,) = runs(out)
        jct = run["avg_jct_s"]
        if profile == "fixed":
            declared = jct
        assert "keep the sizes" not in result.output
    assert jct < declared, "it got more than the two workers that it declares"
    rigid = simulate(path, "--nodes", 1, "--place", "count", "--profile", "deadline")
    assert ("The jobs keep the sizes in the trace" in rigid.output) == text.startswith(ITP), (
        "of the other file are elastic"
    )


def test_losers_are_told_beside_the_first_profile(tmp_path: Path) -> None:
    path, out = tmp_path / "trace.csv", tmp_path / "out.json"
    path.write_text("job_id,submit_s,duration_s,num_gpus,deadline_s\nlong,0,100,1,500\nshort,0,10,1,5\n")
    simulate(path, *("--nodes", 1, "--gpus-per-node", 1, "--profile", "fifo", "--profile", "sjf"), "--json", out)
    first, second = runs(out)
    assert (first["losers"], first["worst_loser"]) == (None, None)
    assert (second["losers"], second["worst_loser"]) == (1, pytest.approx(0.1))
    assert first["tardiness_s"] == pytest.approx((110 - 5) / 2)


@pytest.mark.parametrize("width", [80, 120, 250])
@pytest.mark.parametrize("seeds", [1, 6])
def test_the_table_fits_and_shows_no_column_without_numbers(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int, seeds: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    page = tmp_path / "out.html"
    words = ("--profile", "fixed", "--profile", "las", "--html", page, "--jobs", 1, "--replications", seeds)
    result = simulate(trace, "--nodes", 2, *words)
    assert max(map(len, result.output.splitlines())) <= width
    assert "CPU used" not in result.output
    assert result.output.count("finished") >= 1
    if seeds == 6:
        assert all(f"las #{seed}" in result.output for seed in range(seeds))
    headings = page.read_text().partition("</thead>")[0]
    assert "GPU used" in headings
    assert "deadlines met" not in headings
