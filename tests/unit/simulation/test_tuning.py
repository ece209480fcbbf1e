"""`simulate --tune`: what is tried, what is kept, and how it does on what was held out."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from elastic_tfjob.cli import main
from elastic_tfjob.scheduling.profiles import PROFILES, ProfileParameters, parse_profile
from elastic_tfjob.simulation import tuning
from elastic_tfjob.simulation.tuning import LEFT, differences, halves, tunable, tune, variants
from elastic_tfjob.simulation.workload import WorkloadJob

HEADER = "job_id,submit_s,duration_s,num_gpus,num_workers,min_workers,max_workers,deadline_s\n"


def trace(path: Path, jobs: int = 24) -> Path:
    """Long and short jobs that come faster than two accelerators serve them."""
    rows = [f"j{k},{10 * k},{400 if k % 4 == 0 else 30},1,1,1,2,{10 * k + 900}" for k in range(jobs)]
    path.write_text(HEADER + "\n".join(rows) + "\n")
    return path


def simulate(*words: object) -> Result:
    return CliRunner().invoke(main, ["simulate", *map(str, words), "--jobs", "1"])


@pytest.mark.parametrize("name", PROFILES)
def test_every_variant_is_a_valid_parameter(name: str) -> None:
    parameters = parse_profile(name, {})
    for each in tunable(parameters):
        assert each not in LEFT
        for value, _ in variants(parameters, each):
            assert getattr(parse_profile(name, {each: value}), each) == value != getattr(parameters, each)


def test_a_parameter_that_is_given_is_not_tuned() -> None:
    parameters = parse_profile("elastic", {"keep": 2.0})
    assert "keep" in tunable(parameters)
    assert "keep" not in tunable(parameters, ["keep"])


def test_the_best_value_of_each_parameter_is_kept_and_sweeps_end() -> None:
    asked: list[ProfileParameters] = []

    def evaluate(tried: Sequence[ProfileParameters]) -> list[float]:
        asked.extend(tried)
        return [abs(each.keep - 4) + abs(each.cooldown_s - 60) + 100 for each in tried]  # type: ignore[attr-defined]

    first = parse_profile("elastic", {})
    *_, (best, trials) = tune(first, ["keep", "cooldown_s"], evaluate)
    assert differences(first, best) == {"keep": 4.0, "cooldown_s": 60.0}
    assert not any(trial.kept for trial in trials)
    assert len(asked) == 1 + 2 * (4 + 4)


def test_less_than_half_a_percent_is_chance() -> None:
    first = parse_profile("elastic", {})
    found = list(tune(first, ["keep"], lambda tried: [100 - 0.1 * each.keep for each in tried]))  # type: ignore[attr-defined]
    assert [best for best, _ in found] == [first]


def test_halves_are_by_arrival() -> None:
    jobs = [WorkloadJob(f"j{k}", float(-k), ()) for k in range(5)]
    first, second = halves(jobs)
    assert [job.key for job in first] == ["j4", "j3"]
    assert len(second) == 3
    with pytest.raises(ValueError, match="needs at least 4 jobs"):
        halves(jobs[:3])


def test_a_trace_is_tuned_on_one_half_and_told_on_the_other(tmp_path: Path) -> None:
    file, found = trace(tmp_path / "t.csv"), tmp_path / "tuned.json"
    words = (file, "--nodes", 2, "--gpus-per-node", 1, "--profile", "las", "--tune", "--json", found)
    result = simulate(*words)
    assert result.exit_code == 0, result.output
    assert "Tuned on the first 12 jobs by arrival, compared on the other 12" in result.output
    content = json.loads(found.read_text())
    assert {row["jobs"] for row in content["held_out"]} == {12}
    assert len(content["held_out"]) == 1 + bool(content["chosen"])
    assert {trial["parameter"] for trial in content["trials"]} == set(tunable(parse_profile("las", {})))
    for name, value in content["chosen"].items():
        assert f"--set las.{name}=" in result.output
        kept = [t["value"] for t in content["trials"] if t["kept"] and t["parameter"] == name]
        assert kept[-1] == value


def test_a_scenario_is_tuned_on_seeds_and_told_on_others(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(
        "jobs: 8\narrivals: {kind: fixed, every_s: 10}\nmix:\n"
        "  - {name: a, workers: {count: 1, max: 4, gpus: 1}, duration_s: {uniform: [50, 100]}}\n"
    )
    found = tmp_path / "tuned.json"
    words = ("--nodes", 4, "--profile", "drf", "--tune", "--seed", 3, "--replications", 2, "--json", found)
    assert simulate(file, *words).exit_code == 0
    assert [row["seed"] for row in json.loads(found.read_text())["held_out"]][:2] == [5, 6]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--profile", "las", "--profile", "srtf"), "--tune needs exactly one --profile"),
        (("--profile", "las", "--html", "x.html"), "cannot be combined with --html or --jobs-csv"),
        (("--profile", "las", "--tune-for", "speed"), "'speed' is not one of"),
    ],
)
def test_invalid_options_of_tune_are_refused(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    result = simulate(trace(tmp_path / "t.csv"), "--nodes", 2, "--tune", *words)
    assert result.exit_code == 2
    assert said in result.output


def test_deadlines_that_nobody_has_and_too_few_jobs_are_told(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("job_id,submit_s,duration_s,num_gpus\n" + "".join(f"j{k},{k},5,1\n" for k in range(4)))
    words = ("--nodes", 1, "--profile", "las", "--tune")
    assert "no job of this workload has a deadline" in simulate(file, *words, "--tune-for", "deadlines").output
    file.write_text("job_id,submit_s,duration_s,num_gpus\na,0,5,1\n")
    result = simulate(file, *words)
    assert (result.exit_code, "--tune needs at least 4 jobs" in result.output) == (1, True)


def test_an_interrupted_tuning_tells_the_best_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, runs = tuning._outcomes, []

    def later(*arguments: object) -> object:
        runs.append(arguments)
        if len(runs) > 2:
            raise KeyboardInterrupt
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(tuning, "_outcomes", later)
    result = simulate(trace(tmp_path / "t.csv"), "--nodes", 2, "--gpus-per-node", 1, "--profile", "las", "--tune")
    assert result.exit_code == 130
    assert "No tried value improves las" in result.output or "Chosen: --set las." in result.output
    assert "the comparison on the second part was not run" in result.output
