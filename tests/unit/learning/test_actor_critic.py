"""The actor-critic of DL2: what it sees of a run, its gradients, that it learns, and that it goes on where it was."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from elastic_tfjob.cli import main
from elastic_tfjob.learning import training
from elastic_tfjob.learning.actor_critic import (
    ActorCritic,
    Batch,
    as_batch,
    explore,
    forward,
    gradients,
    value,
    with_next,
)
from elastic_tfjob.learning.episodes import Episode, draw
from elastic_tfjob.learning.training import TrainingPlan, TrainingState, begin, cost, load, save, train
from elastic_tfjob.scheduling.profiles.dl2.network import Floats, Network, flat, greedy, of_flat

UNITS = 3
TINY = TrainingPlan(seed=3, iterations=3, train=6, select=1, every=1, method=ActorCritic(episodes=1, replay=2))


def short(seed: int = 1, jobs: int = 4) -> Episode:
    episode = draw("train", seed)
    return replace(episode, inputs=replace(episode.inputs, jobs=episode.inputs.jobs[:jobs]))


def network(seed: int) -> Network:
    return of_flat(np.random.default_rng(seed).normal(0, 0.3, len(flat(greedy(UNITS)))), UNITS)


def test_rewards_of_a_run_sum_to_its_jobs() -> None:
    """The reward is the part of each job that a slot did, so all slots together have done each job once."""
    episode = short()
    slots, mean_s = explore(network(0), episode, np.random.default_rng(0), 0.4)
    assert sum(slot.reward for slot in slots) == pytest.approx(len(episode.inputs.jobs), abs=1e-6)
    assert mean_s > 0
    again, _ = explore(network(0), episode, np.random.default_rng(0), 0.4)
    assert [[d.taken for d in slot.decisions] for slot in again] == [[d.taken for d in s.decisions] for s in slots]


def test_every_chosen_action_was_possible_and_a_stop_ends_the_slot() -> None:
    slots, _ = explore(network(2), short(), np.random.default_rng(1), 0.4)
    decisions = [decision for slot in slots for decision in slot.decisions]
    assert len(decisions) > 20
    for decision in decisions:
        assert 0 < decision.chance <= 1
        assert decision.taken == decision.may.size or decision.may.ravel()[decision.taken]
    stops = [decision.taken == decision.may.size for slot in slots for decision in slot.decisions[:-1]]
    assert not any(stops)


def only_workers() -> Network:
    """One that adds workers and nothing else."""
    idle = of_flat(np.zeros(len(flat(greedy(UNITS)))), UNITS)
    return replace(idle, output_bias=np.array([20.0, -20.0, -20.0]))


def test_a_job_in_a_poor_state_gets_what_it_lacks() -> None:
    episode = short(2)
    helped, _ = explore(only_workers(), episode, np.random.default_rng(1), 1.0)
    alone, _ = explore(only_workers(), episode, np.random.default_rng(1), 0.0)
    ps = [d.taken % 3 == 1 for slot in helped for d in slot.decisions if d.taken < d.may.size]
    assert any(ps)
    assert not any(d.taken % 3 == 1 for slot in alone for d in slot.decisions if d.taken < d.may.size)


def a_batch(seed: int) -> Batch:
    slots, _ = explore(network(seed), short(seed), np.random.default_rng(seed), 0.4)
    known = with_next(slots)
    return as_batch([known[0], *known[-12:]], 0.2)


def actor_loss(actor: Network, given: Batch, weight: Floats, entropy: float) -> float:
    """By the definition, decision by decision."""
    total = 0.0
    for b, taken in enumerate(given.taken):
        scores, _ = forward(actor, given.sizes[b], given.jobs[b])
        scores = np.append(np.where(given.may[b], scores.ravel(), -np.inf), 0.0)
        chances = np.exp(scores - scores.max())
        chances /= chances.sum()
        some = chances[chances > 0]
        total += -weight[b] * np.log(chances[taken]) + entropy * float(np.sum(some * np.log(some)))
    return total / len(given.taken)


@pytest.mark.parametrize("critic", [True, False])
def test_gradients_are_those_of_the_losses(*, critic: bool) -> None:
    how, given, actor, judge = (
        ActorCritic(critic=critic, entropy=0.05, discount=0.9),
        a_batch(5),
        network(6),
        network(7),
    )
    slope, critic_slope = gradients(actor, judge, given, how)
    then, _, _ = value(judge, given.then_sizes, given.then_jobs, given.then_there)
    worth, _, _ = value(judge, given.sizes, given.jobs, given.there)
    target = given.reward + 0.9 * then if critic else given.reward
    advantage = target - (worth if critic else 0.2)
    chances = np.exp([-actor_loss(actor, only(given, b), np.ones(1), 0.0) for b in range(len(worth))])
    weight = np.minimum(chances / given.chance, 2.0) * advantage / np.sqrt(np.mean(advantage**2))

    def critic_loss(network: Network) -> float:
        found, _, _ = value(network, given.sizes, given.jobs, given.there)
        return float(np.mean((found - target) ** 2) / 2)

    for k in range(0, len(slope), 11):
        moved = np.eye(1, len(slope), k)[0] * 1e-5
        up, down = (actor_loss(of_flat(flat(actor) + s * moved, UNITS), given, weight, 0.05) for s in (1, -1))
        assert slope[k] == pytest.approx((up - down) / 2e-5, rel=1e-3, abs=1e-6)
        up, down = (critic_loss(of_flat(flat(judge) + s * moved, UNITS)) for s in (1, -1))
        assert critic_slope[k] == pytest.approx((up - down) / 2e-5, rel=1e-3, abs=1e-6)


def only(given: Batch, b: int) -> Batch:
    """This decision alone."""
    rows = {
        name: getattr(given, name)[b : b + 1]
        for name in (
            "sizes",
            "jobs",
            "there",
            "then_sizes",
            "then_jobs",
            "then_there",
            "may",
            "taken",
            "chance",
            "reward",
        )
    }
    return Batch(**rows, expected=given.expected)


def test_the_method_learns_to_add_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a network that seldom adds anything; on one workload, so that a few iterations are enough."""
    one = short(2, 5)
    monkeypatch.setattr(training, "draw", lambda split, seed, models=(): one)
    method = ActorCritic(episodes=1, rate=0.02)
    plan = TrainingPlan(seed=1, iterations=50, train=1, select=1, every=1, method=method)
    idle = flat(replace(greedy(training.UNITS), output_bias=np.full(3, -1.0)))
    first = cost(of_flat(idle, training.UNITS), [one])
    memory = method.begin(idle, training.UNITS, 1)
    *_, last = train(TrainingState(plan, idle, memory, idle, first, history=((0, first, first),)))
    assert last.best_cost < first - 0.05


def test_a_training_that_was_stopped_resumes_with_the_same_result(tmp_path: Path) -> None:
    *_, whole = train(begin(TINY))
    states = train(begin(TINY))
    next(states)
    save(next(states), tmp_path / "state")
    *_, resumed = train(load(tmp_path / "state"))
    assert resumed.weights.tolist() == whole.weights.tolist()
    assert resumed.memory["critic"].tolist() == whole.memory["critic"].tolist()
    assert len(resumed.memory["past"]) == 1


def test_a_feature_that_it_is_not_told_has_no_weight() -> None:
    *_, last = train(begin(replace(TINY, iterations=1, without=("best", "age"))))
    network = of_flat(last.weights, training.UNITS)
    assert not network.hidden[0].any()
    assert not network.size_skip[0].any()
    assert not network.job_skip[4].any()
    assert network.hidden[1].all()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--method", "actor-critic", "--pairs", "3"], "cannot be combined with --pairs"),
        (["--replay", "3", "--no-critic"], "cannot be combined with --replay, --critic"),
        (["--without", "best,worst"], "unknown feature worst; allowed: best,"),
        (["--method", "actor-critic", "--explore", "1.5"], "1.5"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(tmp_path: Path, arguments: list[str], said: str) -> None:
    refused = CliRunner().invoke(main, ["train-policy", str(tmp_path / "w.npz"), *arguments])
    assert refused.exit_code == 2
    assert said in " ".join(refused.output.split())
    assert not list(tmp_path.iterdir())


def test_the_command_trains_by_it(tmp_path: Path) -> None:
    output = tmp_path / "w.npz"
    arguments = ["--method", "actor-critic", "--iterations", "1", "--episodes", "1", "--select-seeds", "1"]
    done = CliRunner().invoke(main, ["train-policy", str(output), *arguments, "--test-seeds", "0"])
    assert done.exit_code == 0, done.output
    assert "the best weights of 1 iterations" in done.output
    with np.load(output) as file:
        assert '"name": "actor-critic"' in str(file["metadata"])
