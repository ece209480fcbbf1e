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
from elastic_tfjob.learning import follow as following
from elastic_tfjob.learning import training
from elastic_tfjob.learning.episodes import draw, mean_jct_s, of_network, of_profile
from elastic_tfjob.learning.evolution import Strategy
from elastic_tfjob.learning.follow import Course, Update, follow, in_use
from elastic_tfjob.learning.recorded import LEAST_JOBS, Recorded, read_experience, recorded_of
from elastic_tfjob.learning.training import Plan
from elastic_tfjob.scheduling.experience import as_line, of_line
from elastic_tfjob.scheduling.plan import Plan as Decided
from elastic_tfjob.scheduling.profiles.dl2.network import Network, flat, greedy, of_flat
from elastic_tfjob.scheduling.profiles.dl2.weights import as_bytes, read
from elastic_tfjob.simulation.engine import Simulation

from ..scheduling.build import job, node, plan, rates, servers, workers

TINY = Plan(seed=3, iterations=1, train=6, select=1, every=1, strategy=Strategy(1, 1))
UNITS = 16


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """What rounds of a simulated cluster saw and decided: 12 jobs or more."""
    episode = next(e for e in (draw("train", k) for k in range(100)) if 12 <= len(e.jobs) <= 16)
    found: list[str] = []

    def note(decided: Decided) -> None:
        if decided.snapshot.jobs:
            found.append(as_line(decided, episode.slot_s))

    Simulation(episode.jobs, episode.nodes, episode.speed_model, of_profile("dl2", episode), seed=1, check=note).run()
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
    assert episode.jobs[0].submit_s == 0
    assert mean_jct_s(of_profile("dl2", episode), episode) > 0
    assert recorded.episode("train", 5) == recorded.episode("train", 5)


def test_a_size_that_nobody_measured_is_told_to_nobody(lines: list[str]) -> None:
    recorded = recorded_of(lines)
    work = recorded.jobs[0]
    speed = recorded.speeds.true_speed(work)
    measured = recorded.speeds.beliefs[work.key].measured
    (p, w), rate = next(iter(measured.items()))
    assert speed.steps_per_s({"PS": p, "Worker": w}) == rate
    assert speed.rate({"PS": ("n",) * p, "Worker": ("n",) * w}) == rate


def test_what_is_no_line_is_passed_over_and_counted(lines: list[str]) -> None:
    recorded = recorded_of(
        [*lines[:40], "{", "[]", '{"version": 9}', "\0", *lines[40:], lines[0][: len(lines[0]) // 2]]
    )
    assert recorded.unreadable == 5
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


def course_of(tmp_path: Path, lines: list[str]) -> Course:
    written(tmp_path, lines)
    return Course(tmp_path, tmp_path / "w.npz", TINY)


def firsts(course: Course, number: int) -> list[Update | None]:
    updates: Iterator[Update | None] = follow(course)
    return [next(updates) for _ in range(number)]


def becomes(monkeypatch: pytest.MonkeyPatch, network: Network) -> None:
    """Training ends with this network."""
    monkeypatch.setattr(following, "_trained", lambda course, plan, current, workloads: network)


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
    assert flat(in_use(course)) == pytest.approx(flat(greedy(UNITS)))
    assert isinstance(before := read(str(course.beside("before"))), Network)
    assert flat(before) == pytest.approx(flat(WORST))
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
    assert flat(in_use(course)) == pytest.approx(flat(greedy(UNITS)))


def test_a_broken_file_is_as_none(tmp_path: Path, lines: list[str]) -> None:
    course = course_of(tmp_path, lines)
    course.output.write_bytes(b"PK")
    shipped = read("")
    assert isinstance(shipped, Network)
    assert flat(in_use(course)).tolist() == flat(shipped).tolist()


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
    assert "on live jobs that were held back" in found.output
    refused = CliRunner().invoke(main, ["train-policy", str(output), "--follow", str(tmp_path), "--resume", *short])
    assert refused.exit_code == 2
    assert "--resume" in refused.output


def test_of_too_few_jobs_nothing_is_learned(tmp_path: Path, lines: list[str]) -> None:
    written(tmp_path, lines[:1])
    recorded: Recorded = read_experience(tmp_path)
    assert len(recorded.jobs) < LEAST_JOBS
    assert firsts(Course(tmp_path, tmp_path / "w.npz", TINY), 1) == [None]


def test_what_live_jobs_are_learned_on_is_not_what_weights_are_judged_on(lines: list[str]) -> None:
    recorded = recorded_of(lines)
    workloads = following.Mixed(recorded, TINY)
    held = {j.key for j in recorded.part("held")}
    learned = [*workloads.select, *(workloads.train(k) for k in range(6))]
    assert all(each.key in held for episode in workloads.held for each in episode.jobs)
    assert not any(each.key in held for episode in learned for each in episode.jobs if "/" in each.key)


def test_networks_decide_for_recorded_jobs(lines: list[str]) -> None:
    episode = recorded_of(lines).episode("held", 1)
    assert mean_jct_s(of_network(WORST, episode), episode) >= mean_jct_s(of_network(greedy(UNITS), episode), episode)
