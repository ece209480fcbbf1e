"""Learning from live jobs: what is written down of a round comes back whole, and weights are handed over, refused and
taken back by how they do on jobs that were held back."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from elastic_tfjob.cli import main
from elastic_tfjob.learning import idle, training
from elastic_tfjob.learning import recorded as following
from elastic_tfjob.learning.episodes import draw, mean_jct_s, of_network, of_profile
from elastic_tfjob.learning.recorded import (
    LEAST_JOBS,
    ContinuedTraining,
    Recorded,
    Update,
    decides,
    follow,
    read_experience,
    recorded_of,
    recorded_speed,
    shipped,
)
from elastic_tfjob.learning.training import Evolution, TrainingPlan, cost
from elastic_tfjob.scheduling import experience
from elastic_tfjob.scheduling.experience import as_line, of_line
from elastic_tfjob.scheduling.plan import Plan as Decided
from elastic_tfjob.scheduling.profiles.dl2.network import Network, as_bytes, flat, greedy, of_flat
from elastic_tfjob.simulation.engine import Simulation, SimulationInput

from ..scheduling.build import job, node, plan, rates, servers, workers
from . import facts

TINY = TrainingPlan(seed=3, iterations=1, train=6, select=1, every=1, method=Evolution(1, 1))
UNITS = 16


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """What rounds of a simulated cluster saw and decided: 12 jobs or more."""
    episode = next(e for e in (draw("train", k) for k in range(100)) if 12 <= len(e.inputs.jobs) <= 16)
    found: list[str] = []

    def note(decided: Decided) -> None:
        if decided.snapshot.jobs:
            found.append(as_line(decided, episode.slot_s))

    Simulation(
        SimulationInput(episode.inputs.jobs, episode.inputs.nodes, episode.inputs.speed_model, seed=1),
        of_profile("dl2", episode),
        check=note,
    ).run()
    return found


def test_a_line_has_what_a_round_saw_and_decided() -> None:
    j = job("ns/j", servers(1, 1, 2), workers(1, 1, 4), steps=100, speed=rates(1.0, 1.9, 2.5))
    found = of_line(as_line(plan("fifo", [node("a", gpus=8, cpus=8), node("b", gpus=8, cpus=8)], [j]), 30.0))
    (seen,) = found.jobs
    assert (seen.job, seen.total_steps, seen.groups) == ("ns/j", 100, j.spec.groups)
    assert (seen.has, seen.gets) == ({}, {"PS": 1, "Worker": 1})
    assert found.slot_s == 30.0
    assert [number for _, number in found.nodes] == [2]


def test_jobs_come_back_from_the_lines_of_a_simulated_cluster(lines: list[str]) -> None:
    """As they were, and a policy takes as long for them as it did."""
    recorded = recorded_of(lines)
    assert len(recorded.jobs) >= LEAST_JOBS
    assert not recorded.unreadable
    train, held = recorded.part("train"), recorded.part("held")
    assert len(held) >= 2
    assert max(j.submit_s for j in train) <= min(j.submit_s for j in held)
    episode = recorded.episode("held", 0)
    assert episode.inputs.jobs[0].submit_s == 0
    assert mean_jct_s(of_profile("dl2", episode), episode) > 0
    assert facts(recorded.episode("train", 5)) == facts(recorded.episode("train", 5))


def changed(line: str, **job: Any) -> str:
    """With these words in its first job."""
    content = json.loads(line)
    content["jobs"][0] |= job
    return json.dumps(content)


def test_a_size_that_nobody_measured_is_told_to_nobody(lines: list[str]) -> None:
    """It is simulated as fast as the nearest that was."""
    few = [{"ps": 1, "workers": 1, "rate": 2.0}, {"ps": 1, "workers": 3, "rate": 5.0}]
    (work, *_) = recorded_of([changed(lines[0], speeds=few)]).jobs
    speed = recorded_speed(work, recorded_of([changed(lines[0], speeds=few)]).speeds)
    assert [speed.steps_per_s({"PS": 1, "Worker": w}) for w in (1, 2, 3, 9)] == [2.0, None, 5.0, None]
    assert [speed.rate({"PS": ("n",), "Worker": ("n",) * w}) for w in (1, 3, 9)] == [2.0, 5.0, 5.0]


def test_extreme_values_of_tenants_do_not_make_a_run_endless(lines: list[str]) -> None:
    """Steps for ages, speeds of nearly nothing, no worker at all, slots of no length: each ends, and soon."""
    bad: list[dict[str, Any]] = [
        {"total": 2**53},
        {"speeds": [{"ps": 1, "workers": 1, "rate": 1e-9}, {"ps": 1, "workers": 2, "rate": 1e9}]},
        {"total": 2**53, "speeds": [{"ps": 1, "workers": 1, "rate": 1e-9}]},
        {"groups": [{"type": "Worker", "request": [1000, 1, 1, 0, 0], "count": 1, "min": 0, "max": 2}]},
    ]
    for words in bad:
        said = json.loads(changed(lines[-1], **words)) | {"slot": 1e-6}
        recorded = recorded_of([*lines, json.dumps(said)])
        assert recorded.slot_s >= 5
        for k in range(3):
            episode = recorded.episode("all", k)
            assert mean_jct_s(of_network(WORST, episode), episode) > 0


def test_a_job_that_cannot_be_read_takes_nothing_from_the_others(lines: list[str]) -> None:
    whole = of_line(lines[3])
    found = of_line(changed(lines[3], steps=2**53 + 2, total="many"))
    assert (found.jobs, found.unreadable) == (whole.jobs[1:], 1)


def test_a_number_that_is_none_takes_no_other_job_from_a_line() -> None:
    jobs = [job("bad", steps=float("nan")), job("good", steps=10), job("far", steps=1e15, steps_per_s=1e9)]
    found = of_line(as_line(plan("fifo", [node("n", gpus=8)], jobs, now=1e9), 5.0))
    assert [seen.job for seen in found.jobs] == ["good", "far"]
    assert found.jobs[1].steps <= 2**53


def test_a_line_is_never_longer_than_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experience, "MOST_LINE_BYTES", 4000)
    monkeypatch.setattr(experience, "_ROOM_BYTES", 1000)
    text = as_line(plan("fifo", [node("n", gpus=8)], [job(f"j-{k}", steps=10) for k in range(40)]), 5.0)
    assert len(text) <= 4000
    assert 2 <= len(of_line(text).jobs) < 40


def test_unreadable_lines_are_skipped_and_counted(lines: list[str]) -> None:
    recorded = recorded_of(
        [*lines[:40], "{", "[]", '{"version": 9}', "\0", *lines[40:], lines[0][: len(lines[0]) // 2]]
    )
    assert recorded.unreadable >= 5
    assert recorded.jobs == recorded_of(lines).jobs


WORDS = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=5), each, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_a_line_with_anything_in_it_is_read_or_refused_in_words(lines: list[str], data: st.DataObject) -> None:
    content: Any = json.loads(lines[0])
    at = data.draw(st.sampled_from([content, content["jobs"][0], content["jobs"][0]["groups"][0], content["nodes"][0]]))
    at[data.draw(st.sampled_from(sorted(at)))] = data.draw(WORDS)
    with contextlib.suppress(ValueError):  # nothing else is raised
        of_line(json.dumps(content))


def written(directory: Path, lines: list[str]) -> None:
    (directory / "experience.1.jsonl").write_text("\n".join(lines[:20]) + "\n")
    (directory / "experience.jsonl").write_text("\n".join(lines[20:]) + "\n")


def course_of(tmp_path: Path, lines: list[str]) -> ContinuedTraining:
    written(tmp_path, lines)
    return ContinuedTraining(tmp_path, tmp_path / "w.npz", TINY)


def firsts(course: ContinuedTraining, number: int) -> list[Update | None]:
    updates: Iterator[Update | None] = follow(course)
    return [next(updates) for _ in range(number)]


def becomes(monkeypatch: pytest.MonkeyPatch, network: Network) -> None:
    """Training ends with this network."""
    monkeypatch.setattr(following, "_trained", lambda course, plan, current, workloads: network)


def weights(file: Path) -> list[float]:
    network = decides(file)
    assert network is not None
    return [float(each) for each in flat(network)]


WORST = of_flat(np.zeros(len(flat(greedy(UNITS)))), UNITS)
"""Adds no replica to any job: no score is above 0."""


def test_weights_that_are_better_are_handed_over(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    course = course_of(tmp_path, lines)
    course.output.write_bytes(as_bytes(WORST, {}))
    becomes(monkeypatch, greedy(UNITS))
    first, second = firsts(course, 2)
    assert first is not None
    assert first.outcome == "accepted"
    assert first.held < 0
    assert second is None, "no job has come since"
    assert weights(course.output) == pytest.approx(flat(greedy(UNITS)))
    assert weights(course.beside("before")) == pytest.approx(flat(WORST))
    assert json.loads(course.beside("updates.jsonl").read_text())["outcome"] == "accepted"
    assert firsts(course, 1) == [None], "another process learns from the same jobs no second time"


def test_weights_that_are_worse_are_refused(tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    course = course_of(tmp_path, lines)
    becomes(monkeypatch, WORST)
    (first,) = firsts(course, 1)
    assert first is not None
    assert first.outcome == "refused"
    assert first.held > 0
    assert not course.output.exists()


def test_weights_that_turn_out_worse_are_taken_back(tmp_path: Path, lines: list[str]) -> None:
    course = course_of(tmp_path, lines)
    course.output.write_bytes(as_bytes(WORST, {}))
    course.beside("before").write_bytes(as_bytes(greedy(UNITS), {}))
    (first,) = firsts(course, 1)
    assert first is not None
    assert first.outcome == "rolled back"
    assert weights(course.output) == pytest.approx(flat(greedy(UNITS)))


def test_the_first_weights_are_compared_with_hull_which_decides_until_then(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    course = course_of(tmp_path, lines)
    becomes(monkeypatch, greedy(UNITS))
    (first,) = firsts(course, 1)
    assert first is not None
    held = following.Mixed(recorded_of(lines), TINY).held
    hull = np.mean([np.log(mean_jct_s(of_profile("hull", episode), episode)) for episode in held])
    assert first.held == pytest.approx(np.expm1(cost(greedy(UNITS), held) - hull))


def test_the_first_weights_that_turn_out_worse_give_way_to_hull(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    course = course_of(tmp_path, lines)
    becomes(monkeypatch, WORST)
    with monkeypatch.context() as lenient:
        lenient.setattr(following, "_change", lambda *_: -0.1)
        (accepted,) = firsts(course, 1)
    assert accepted is not None
    assert accepted.outcome == "accepted"
    course.beside("updates.jsonl").unlink()  # the same jobs once more, as if they were new
    (second,) = firsts(course, 1)
    assert second is not None
    assert second.outcome == "rolled back"
    assert second.held < 0
    assert not course.output.exists()
    assert not course.beside("before").exists()


def test_unreadable_earlier_weights_are_ignored(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    course = course_of(tmp_path, lines)
    course.output.write_bytes(as_bytes(WORST, {}))
    course.beside("before").write_bytes(b"PK")
    becomes(monkeypatch, WORST)
    (first,) = firsts(course, 1)
    assert first is not None
    assert first.outcome == "refused"
    assert weights(course.output) == pytest.approx(flat(WORST))


@pytest.mark.parametrize(
    ("held_and_drawn", "accepted"),
    [((-0.1, 0.001), False), ((0.001, -0.1), False), ((0.0, 0.0), False), ((0.0, -0.1), True), ((-0.1, 0.0), True)],
)
def test_weights_are_accepted_where_they_are_nowhere_worse(
    tmp_path: Path,
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
    held_and_drawn: tuple[float, float],
    accepted: bool,
) -> None:
    course = course_of(tmp_path, lines)
    becomes(monkeypatch, greedy(UNITS))
    found = iter(held_and_drawn)
    monkeypatch.setattr(following, "_change", lambda *_: next(found))
    (first,) = firsts(course, 1)
    assert first is not None
    assert (first.outcome == "accepted", course.output.exists()) == (accepted, accepted)


def test_an_update_that_fails_is_noted_and_not_tried_again(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    course = course_of(tmp_path, lines)

    def fails(*_: Any) -> Network:
        raise ValueError("3 jobs never finish")

    monkeypatch.setattr(following, "_trained", fails)
    first, second = firsts(course, 2)
    assert first is not None
    assert "failed: 3 jobs never finish" in str(first)
    assert second is None
    assert firsts(course, 1) == [None]


def test_a_training_that_was_interrupted_restarts_where_the_jobs_are_others(tmp_path: Path, lines: list[str]) -> None:
    course, one = course_of(tmp_path, lines), recorded_of(lines)
    other = one.after(one.jobs[0].submit_s)
    assert one.fingerprint == recorded_of(lines).fingerprint != other.fingerprint
    kept = course.beside("state")
    training.save(training.begin(replace(TINY, workloads=other.fingerprint)), kept)
    assert following._resumed(kept, replace(TINY, workloads=one.fingerprint)) is None
    assert following._resumed(kept, replace(TINY, workloads=other.fingerprint)) is not None


def test_a_broken_file_is_as_none(tmp_path: Path, lines: list[str]) -> None:
    course = course_of(tmp_path, lines)
    course.output.write_bytes(b"PK")
    assert decides(course.output) is None
    assert isinstance(shipped(), Network)


def test_an_update_that_was_stopped_goes_on(tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    course = replace(course_of(tmp_path, lines), plan=replace(TINY, iterations=2))
    whole = firsts(course, 1)
    for each in tmp_path.glob("w.npz*"):
        each.unlink()
    real, begun = training.train, list[int]()

    def stopped(state: Any, workloads: Any) -> Iterator[Any]:
        yield next(real(state, workloads))
        raise KeyboardInterrupt

    monkeypatch.setattr(following, "train", stopped)
    with pytest.raises(KeyboardInterrupt):
        firsts(course, 1)
    monkeypatch.setattr(following, "train", real)
    monkeypatch.setattr(following, "begin", lambda *_: begun.append(1))
    assert firsts(course, 1) == whole
    assert not begun


def test_the_command_follows(tmp_path: Path, lines: list[str]) -> None:
    written(tmp_path, lines)
    short = ["--train-seeds", "4", "--select-seeds", "1", "--pairs", "1", "--episodes", "1", "--iterations", "1"]
    output = tmp_path / "w.npz"
    found = CliRunner().invoke(main, ["train-policy", str(output), "--follow", str(tmp_path), "--updates", "1", *short])
    assert found.exit_code == 0, found.output
    assert "update 1, " in found.output
    assert "on held-back live jobs" in found.output
    refused = CliRunner().invoke(main, ["train-policy", str(output), "--follow", str(tmp_path), "--resume", *short])
    assert refused.exit_code == 2
    assert "--resume" in refused.output


def test_nothing_is_learned_from_too_few_jobs(tmp_path: Path, lines: list[str]) -> None:
    written(tmp_path, lines[:1])
    recorded: Recorded = read_experience(tmp_path)
    assert len(recorded.jobs) < LEAST_JOBS
    assert firsts(ContinuedTraining(tmp_path, tmp_path / "w.npz", TINY), 1) == [None]


def test_weights_are_judged_on_other_live_jobs_than_they_are_trained_on(lines: list[str]) -> None:
    recorded = recorded_of(lines)
    workloads = following.Mixed(recorded, TINY)
    held = {j.key for j in recorded.part("held")}
    learned = [*workloads.select, *(workloads.train(k) for k in range(6))]
    assert all(each.key in held for episode in workloads.held for each in episode.inputs.jobs)
    assert not any(episode in learned for episode in workloads.drawn)
    assert not any(each.key in held for episode in learned for each in episode.inputs.jobs if "/" in each.key)


def test_networks_decide_for_recorded_jobs(lines: list[str]) -> None:
    episode = recorded_of(lines).episode("held", 1)
    assert mean_jct_s(of_network(WORST, episode), episode) >= mean_jct_s(of_network(greedy(UNITS), episode), episode)


# Waiting for idle CPU


class Clock:
    """Loads by minute, and what was slept."""

    def __init__(self, loads: list[float]) -> None:
        self.loads, self.slept = loads, list[float]()

    def load(self) -> tuple[float, float, float]:
        return self.loads.pop(0) if len(self.loads) > 1 else self.loads[0], 0.0, 0.0


@pytest.mark.parametrize(
    ("loads", "most_s", "expected"),
    [([1.9], 100, 0.0), ([2.1, 2.1, 1.9], 100, 10.0), ([9.0], 12, 12.0), ([9.0], 0, 0.0), ([9.0], -1, 0.0)],
    ids=["idle", "busy for a while", "busy for too long", "off", "no time left"],
)
def test_training_waits_while_its_node_is_busy(
    monkeypatch: pytest.MonkeyPatch, loads: list[float], most_s: float, expected: float
) -> None:
    clock = Clock(loads)
    monkeypatch.setattr("os.getloadavg", clock.load)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("time.sleep", clock.slept.append)
    assert idle.wait_for_idle_cpu(most_s) == expected
    assert sum(clock.slept) == expected
