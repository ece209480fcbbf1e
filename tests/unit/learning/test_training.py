"""Training of the policy of `dl2`: what it learns from, that it learns, and that it goes on where it was."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from elastic_tfjob.cli import main
from elastic_tfjob.learning import training
from elastic_tfjob.learning.episodes import Episode, draw, mean_jct_s, of_network, of_profile
from elastic_tfjob.learning.training import (
    SCALES,
    STOP,
    Evolution,
    Examples,
    Part,
    TrainingPlan,
    TrainingState,
    begin,
    compare,
    cost,
    draw_curve,
    examples_of,
    fit,
    gradient,
    load,
    save,
    step,
    train,
    way,
)
from elastic_tfjob.scheduling.profiles.dl2.features import Known, grid_of
from elastic_tfjob.scheduling.profiles.dl2.network import Network, flat, greedy, of_flat, parse
from elastic_tfjob.scheduling.snapshot import PS, WORKER

from ..scheduling.build import job, servers, workers
from . import facts

TINY = TrainingPlan(seed=3, iterations=2, train=6, select=2, every=1, lessons=1, passes=5, method=Evolution(2, 1))


def test_a_seed_always_draws_the_same_workload_and_splits_share_none() -> None:
    assert facts(draw("train", 5)) == facts(draw("train", 5))
    found = [draw(split, 5) for split in ("train", "select", "test")]
    assert len({episode.inputs.jobs for episode in found}) == 3
    models = {j.model for k in range(6) for j in draw("train", k, ("vgg-16", "wlm")).inputs.jobs}
    assert models <= {"vgg-16", "wlm"}


def test_the_way_to_a_size_is_by_both_as_long_as_both_are_lacking() -> None:
    known = Known(grid_of(job("j", servers(1, 1, 4), workers(1, 1, 4)).spec))
    assert way(known, {PS: 2, WORKER: 3}) == [(0, 2), (5, 0), (6, STOP)]
    assert way(known, {PS: 1, WORKER: 1}) == [(0, STOP)]
    assert way(known, {}) == []


def random_examples(n: int) -> Examples:
    rng, network = np.random.default_rng(0), greedy(3)
    return Examples(
        rng.normal(size=(n, len(network.hidden))),
        rng.normal(size=(n, len(network.job_skip))),
        np.ones((n, 3), dtype=np.bool_),
        rng.integers(0, 4, n),
    )


def test_the_gradient_is_that_of_the_loss() -> None:
    weights = np.random.default_rng(1).normal(0, 0.3, len(flat(greedy(3))))
    given = random_examples(7)
    _, slope = gradient(of_flat(weights, 3), given)
    for k in range(0, len(weights), 17):
        moved = np.eye(1, len(weights), k)[0] * 1e-5
        up, down = (gradient(of_flat(weights + s * moved, 3), given)[0] for s in (1, -1))
        assert slope[k] == pytest.approx((up - down) / 2e-5, rel=1e-3, abs=1e-6)


def test_the_network_learns_the_decisions_of_a_teacher() -> None:
    episode = draw("train", 1)
    episode = replace(episode, inputs=replace(episode.inputs, jobs=episode.inputs.jobs[:4]))
    given = examples_of("hull", [episode], 200, 0)
    untaught = of_flat(0.01 * np.ones(len(flat(greedy(4)))), 4)
    before, _ = gradient(untaught, given)
    taught, losses = fit(untaught, given, 40, 0)
    after, _ = gradient(taught, given)
    assert after < 0.8 * before
    assert losses[-1] < losses[0]
    again, _ = fit(untaught, given, 40, 0)
    assert flat(again).tolist() == flat(taught).tolist()


def test_evolution_goes_downhill_and_the_same_way_by_seed() -> None:
    """A cost that is known: the distance from some weights."""
    aim = flat(greedy(2)) + 0.3

    def distance(network: Network) -> float:
        return float(np.sum((flat(network) - aim) ** 2))

    ends = []
    for _ in range(2):
        weights, drift = flat(greedy(2)), np.zeros_like(aim)
        for k in range(60):
            rng = np.random.default_rng([7, k])
            strategy = Evolution(pairs=8, rate=1.0, part="all")
            weights, drift, _ = step(weights, drift, 2, strategy=strategy, rng=rng, cost_of=distance)
        ends.append(weights)
    assert np.sum((ends[0] - aim) ** 2) < 0.5 * np.sum((flat(greedy(2)) - aim) ** 2)
    assert ends[0].tolist() == ends[1].tolist()


def test_evolution_changes_only_the_part_that_is_asked_for() -> None:
    begun = flat(greedy(2))
    changed: dict[Part, list[bool]] = {}
    for part in SCALES:
        rng, strategy = np.random.default_rng(3), Evolution(pairs=2, part=part)
        after, _, _ = step(
            begun, np.zeros_like(begun), 2, strategy=strategy, rng=rng, cost_of=lambda it: float(np.sum(flat(it)))
        )
        changed[part] = [
            bool((new != old).any())
            for new, old in zip(of_flat(after, 2).arrays, of_flat(begun, 2).arrays, strict=True)
        ]
        if part == "job":
            moved = of_flat(after - begun, 2).job_skip
            assert np.ptp(moved, axis=1) == pytest.approx(0.0), "the three actions alike"
            assert np.ptp(moved) > 0
    assert changed == {"job": [False] * 5 + [True], "all": [True] * 6}


def test_a_training_improves_its_objective(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a network that never adds anything; on one workload, so that a few iterations are enough."""
    one = draw("train", 12)  # four jobs
    monkeypatch.setattr(training, "draw", lambda split, seed, models=(): one)
    how = Evolution(pairs=6, episodes=1, rate=4.0, part="all")
    plan = TrainingPlan(seed=1, iterations=6, train=1, select=1, every=1, method=how)
    begun = greedy(training.UNITS)
    idle = flat(replace(begun, output_bias=np.full(3, 0.6), job_skip=0 * begun.job_skip))
    first = cost(of_flat(idle, training.UNITS), [one])
    *_, last = train(
        TrainingState(plan, idle, {"drift": np.zeros_like(idle)}, idle, first, history=((0, first, first),))
    )
    assert last.best_cost < first - 0.01
    *_, again = train(
        TrainingState(plan, idle, {"drift": np.zeros_like(idle)}, idle, first, history=((0, first, first),))
    )
    assert again.best.tolist() == last.best.tolist()


def test_a_training_that_was_stopped_goes_on_as_if_not(tmp_path: Path) -> None:
    *_, whole = train(begin(TINY))
    stopped = next(train(begin(TINY)))
    save(stopped, tmp_path / "state")
    *_, resumed = train(load(tmp_path / "state"))
    assert resumed.weights.tolist() == whole.weights.tolist()
    assert resumed.history == whole.history


def test_the_network_is_compared_with_other_profiles() -> None:
    episodes: list[Episode] = [draw("test", 0)]
    found = compare(greedy(training.UNITS), episodes)
    ours = mean_jct_s(of_network(greedy(training.UNITS), episodes[0]), episodes[0])
    assert found["drf"] == pytest.approx(ours / mean_jct_s(of_profile("drf", episodes[0]), episodes[0]) - 1)
    assert set(found) == {"drf", "optimus", "hull"}


SHORT = ["--train-seeds", "4", "--select-seeds", "1", "--pairs", "1", "--episodes", "1", "--test-seeds", "0"]


def test_the_command_trains_resumes_and_plots(tmp_path: Path) -> None:
    file, plot = tmp_path / "w.npz", tmp_path / "w.svg"
    first = CliRunner().invoke(main, ["train-policy", str(file), "--iterations", "1", *SHORT])
    assert first.exit_code == 0, first.output
    again = [str(file), "--iterations", "2", "--resume", "--plot", str(plot)]
    second = CliRunner().invoke(main, ["train-policy", *again, *SHORT])
    assert second.exit_code == 0, second.output
    assert load(tmp_path / "w.npz.state").iteration == 2
    parse(file.read_bytes())
    assert plot.read_text().count("<polyline") == 2
    other = CliRunner().invoke(main, ["train-policy", *again, *SHORT, "--seed", "9"])
    assert other.exit_code == 1
    assert "only --iterations may change" in other.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--models", "vgg-16,gpt"], "unknown model gpt"),
        (["--resume"], "does not exist"),
    ],
)
def test_invalid_options_of_train_policy_are_refused_with_a_message(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    found = CliRunner().invoke(main, ["train-policy", str(tmp_path / "w.npz"), *arguments])
    assert found.exit_code in (1, 2)
    assert said in " ".join(found.output.split())


def test_a_file_that_is_no_training_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="not a training state"):
        load(tmp_path / "state")


def test_a_curve_of_a_training_that_has_not_begun(tmp_path: Path) -> None:
    weights = flat(greedy(training.UNITS))
    state = TrainingState(TINY, weights, {}, weights, 1.0, history=((0, 1.0, 1.0),))
    draw_curve(state, tmp_path / "w.svg")
    assert "</svg>" in (tmp_path / "w.svg").read_text()
