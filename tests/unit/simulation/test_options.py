"""Options of commands that may run for long are bounded: a wrong value is said with its option, before the run."""

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from elastic_tfjob.learning.command import train_policy
from elastic_tfjob.param_types import Amount, OutputFile
from elastic_tfjob.simulation import command
from elastic_tfjob.simulation.command import simulate

SCENARIO = "jobs: 1000000\nmix: [{name: a, duration_s: 1, workers: {}}]\n"


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def runs(*_: object) -> None:
        raise AssertionError("it ran")

    monkeypatch.setattr(command, "run_all", runs)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text("job_id,submit_s,duration_s,num_gpus\na,0,10,1\n")
    return path


def simulated(workload: Path, *arguments: str) -> Result:
    return CliRunner().invoke(simulate, [str(workload), "--nodes", "1", "--profile", "fifo", *arguments])


def refused(result: Result) -> str:
    assert (result.exit_code, type(result.exception)) == (2, SystemExit), result.output
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.output).split())


def test_valid_options_run(trace: Path) -> None:
    assert isinstance(simulated(trace, "--cpus-per-node", "8.5", "--start-pause", "3").exception, AssertionError)


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("--cpus-per-node", "inf", "0<=x<=1000000"),
        ("--cpus-per-node", "nan", "0 to 1000000"),
        ("--memory-per-node", "1e300", "0<=x<=65536"),
        ("--gpus-per-node", "99999999", "0<=x<=1024"),
        ("--nodes", "99999999999", "0<=x<=100000"),
        ("--replications", "100000000", "1<=x<=10000"),
        ("--jobs", "99999999", "1<=x<=1024"),
        ("--start-pause", "nan", "0 to 3153600000"),
        ("--start-pause", "inf", "0<=x<=3153600000"),
        ("--rescale-pause", "-1", "0<=x<=3153600000"),
        ("--checkpoint-interval", "nan", "0 to 3153600000"),
        ("--restart-pause", "nan", "seconds must be 0 to 3153600000"),
        ("--restart-pause", "nan:1,2", "the limits must increase"),
        ("--boot-cpu", "1e300", "to 3153600000"),
        ("--speed-noise", "nan", "0 to 10"),
        ("--speed-noise", "1e9", "0<=x<=10"),
        ("--speed-noise-every", "nan", "0 to 3153600000"),
        ("--silent", "1.1", "0<=x<=1"),
        ("--silent", "nan", "0 to 1"),
        ("--estimate-noise", "many", "not a valid number"),
    ],
)
def test_an_odd_number_is_refused_with_its_option(trace: Path, option: str, value: str, allowed: str) -> None:
    said = refused(simulated(trace, option, value))
    assert f"'{option}'" in said
    assert allowed in said


def test_how_often_speeds_are_drawn_needs_noise_and_a_second(trace: Path) -> None:
    assert "--speed-noise-every needs --speed-noise" in refused(simulated(trace, "--speed-noise-every", "60"))
    assert "0.5: it must be 0 or at least 1" in refused(
        simulated(trace, "--speed-noise", "0.2", "--speed-noise-every", "0.5")
    )
    drawn_once = simulated(trace, "--speed-noise", "0.2", "--speed-noise-every", "0")
    assert isinstance(drawn_once.exception, AssertionError)


@pytest.mark.parametrize("option", ["--json", "--html", "--jobs-csv"])
def test_a_folder_that_is_missing_is_said_before_the_run(trace: Path, option: str) -> None:
    missing = trace.parent / "nowhere"
    said = refused(simulated(trace, option, str(missing / "x")))
    assert f"'{option}'" in said
    assert "does not exist; create it first" in said


def test_replications_of_a_scenario_make_so_many_jobs_only(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO)
    assert "allowed: 10000000 jobs in total" in refused(simulated(path, "--replications", "11"))


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["w.npz", "--rate", "nan"], "'--rate'"),
        (["w.npz", "--train-seeds", "100000000"], "'--train-seeds'"),
        (["w.npz", "--seed", "-1"], "'--seed'"),
        (["nowhere/w.npz"], "'OUTPUT'"),
        (["w.npz", "--plot", "nowhere/p.svg"], "'--plot'"),
    ],
)
def test_training_refuses_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], option: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert option in refused(CliRunner().invoke(train_policy, arguments))


def test_bounds_themselves_are_allowed() -> None:
    assert (Amount(10).convert("0", None, None), Amount(10).convert("10", None, None)) == (0, 10)


def test_an_output_is_a_file_in_a_folder_that_is_there(tmp_path: Path) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    old.write_text("")
    assert [OutputFile().convert(str(path), None, None) for path in (new, old)] == [new, old]
    with pytest.raises(click.BadParameter, match="is a directory"):
        OutputFile().convert(str(tmp_path), None, None)
