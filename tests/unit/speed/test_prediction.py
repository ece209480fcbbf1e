"""How fast a job will be: which source speaks when, and how sure it is."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_tfjob.speed.history import Lesson, Past
from elastic_tfjob.speed.model import Table
from elastic_tfjob.speed.optimus import believe
from elastic_tfjob.speed.prediction import PRIOR_ERROR, UTILISATION_ERROR, Prediction

ONE, TWO, FOUR = ({"PS": 1, "Worker": n} for n in (1, 2, 4))
FITTED = {(p, w): 1 / (0.4 / w + 0.02 + 0.01 * w / p) for p, w in ((1, 1), (1, 2), (2, 2), (1, 3), (2, 4), (3, 3))}


def past(*rates: dict[tuple[int, int], float], **more: Any) -> Past:
    return Past(tuple(Lesson(str(k), rates=each, **more) for k, each in enumerate(rates)))


def source(prediction: Prediction, counts: dict[str, int], **more: Any) -> str | None:
    found = prediction.at(counts, **more)
    return None if found is None else found.source


def test_the_best_known_source_is_used() -> None:
    use = {"Worker": 0.9, "PS": 0.05}
    seen = believe({(1, 1): 2.0, (1, 2): 3.0})
    assert source(Prediction(ONE, 2.0, use, speed=seen), TWO) == "measured"
    assert source(Prediction(ONE, 2.0, use, speed=believe(FITTED)), FOUR) == "fitted"
    assert source(Prediction(ONE, 2.0, use, speed=seen), FOUR) == "utilisation"
    assert source(Prediction(ONE, 2.0, past=past({(1, 1): 2.0, (1, 4): 5.0})), FOUR) == "history"
    assert source(Prediction(ONE, 2.0), FOUR) == "prior"
    assert source(Prediction({}), FOUR) is None
    assert source(Prediction({}, speed=Table({(1, 4): 5.0})), FOUR) == "oracle"


def test_the_surer_one_of_law_and_past_is_used() -> None:
    use = {"Worker": 0.9, "PS": 0.05}
    once = past({(1, 1): 2.0, (1, 2): 3.0})
    often = past(*[{(1, 1): 2.0, (1, 2): 3.0}] * 3)
    assert source(Prediction(ONE, 2.0, use, past=once), TWO) == "utilisation"
    assert source(Prediction(ONE, 2.0, use, past=often), TWO) == "history"


def test_the_law_is_a_bound_and_half_of_the_work_of_workers_is_expected_to_be_split() -> None:
    """Workers 80 % busy in turn with the PS: with four times as many 1 / (0.2 + 0.8/4) = 2.5 times as fast at best."""
    known = Prediction(ONE, 2.0, {"Worker": 0.8})
    assert known.factor(FOUR) == pytest.approx(2.5)
    found = known.at(FOUR)
    assert found is not None
    assert found.steps_per_s == pytest.approx(2.0 / (0.2 + 0.8 * (1 / 2 + 1 / 2 / 4)))
    assert found.relative_error == pytest.approx(max(UTILISATION_ERROR, math.log(2.5) / 2))


def test_each_worker_is_work_for_the_servers() -> None:
    """The PS is busy for half of the time: with twice the workers it is for twice as long, unless there are two."""
    known = Prediction(ONE, 2.0, {"PS": 0.5})
    found = [known.at(counts) for counts in (TWO, {"PS": 2, "Worker": 2}, {"PS": 2, "Worker": 1})]
    assert [each and each.steps_per_s for each in found] == pytest.approx([2.0 / 1.5, 2.0, 2.0 / 0.75])


def test_a_speed_measured_with_the_coming_cpu_is_used() -> None:
    """A job goes back to a size at which it was faster. There its workers held as much as they will; what they hold at
    the size that it leaves says nothing of that."""
    seen = believe({(1, 1): 4.0, (1, 4): 3.0}, worker_millicores={(1, 1): 2000.0, (1, 4): 4000.0})
    known = Prediction(FOUR, 3.0, {"Worker": 0.5, "PS": 0.4}, {"Worker": 4000.0, "PS": 4000.0}, seen)
    can_use = {"Worker": 6000.0, "PS": 1000.0}
    found = [known.at(ONE, can_use, worker_millicores=held) for held in (2000.0, 2200.0, 1000.0)]
    assert [each and each.steps_per_s == 4.0 for each in found] == [True, True, False]


def test_a_past_of_the_same_name_tells_the_ratio_and_of_a_job_that_waits_the_speed() -> None:
    seen = past({(1, 1): 4.0, (1, 4): 12.0})
    running, waiting = Prediction(ONE, 2.0, past=seen).at(FOUR), Prediction({}, past=seen).at(FOUR)
    assert running is not None
    assert waiting is not None
    assert [running.steps_per_s, waiting.steps_per_s] == pytest.approx([6.0, 12.0])


def test_the_prior_doubles_by_the_whole_size() -> None:
    alone, beside_ps = Prediction({"Worker": 1}, 2.0), Prediction(ONE, 2.0)
    found = [alone.at({"Worker": 2}), beside_ps.at({"PS": 2, "Worker": 2}), beside_ps.at(TWO)]
    assert [each and each.steps_per_s for each in found] == [
        pytest.approx(2.0 * 2**0.8),
        pytest.approx(2.0 * 2**0.8),
        pytest.approx(2.0 * 2**0.4),
    ]
    far = beside_ps.at({"PS": 1, "Worker": 8})
    assert far is not None
    assert far.relative_error > 3 * PRIOR_ERROR > PRIOR_ERROR


def test_more_cpu_at_the_same_size_makes_it_as_fast_as_the_law_says() -> None:
    """Workers at their limit get twice the CPU: 1 / (1 - 0.8 + 0.8/2)."""
    known = Prediction(ONE, 2.0, {"Worker": 0.8}, {"Worker": 500.0, "PS": 500.0})
    same, more = known.at(ONE), known.at(ONE, {"Worker": 1000.0})
    assert same is not None
    assert more is not None
    assert (same.steps_per_s, same.source) == (2.0, "measured")
    assert more.steps_per_s == pytest.approx(2.0 / 0.6)
    assert more.relative_error > same.relative_error


def test_slower_accelerators_slow_the_job() -> None:
    known = Prediction(ONE, 2.0, accelerator=1.0)
    found = known.at(ONE, accelerator=0.5)
    assert found is not None
    assert found.steps_per_s == 1.0


def test_the_users_estimate_is_the_speed_at_the_declared_size() -> None:
    known = Prediction({}, estimate=(TWO, 10.0))
    found = known.at(TWO)
    assert found is not None
    assert (found.steps_per_s, found.source) == (10.0, "estimated")
    assert source(known, FOUR) == "prior"


def test_a_poor_speed_with_less_cpu_says_nothing() -> None:
    """As kips has it: what was measured with less CPU than the job would have now is no reason not to grow."""
    poor = believe({(1, 1): 2.0, (1, 2): 1.5}, worker_millicores={(1, 1): 1000.0, (1, 2): 300.0})
    known = Prediction(ONE, 2.0, {"Worker": 1.0}, {"Worker": 1000.0}, poor, min_gain=0.1)
    assert known.factor(TWO) == 2.0
    alike = believe({(1, 1): 2.0, (1, 2): 1.5}, worker_millicores={(1, 1): 1000.0, (1, 2): 1000.0})
    assert Prediction(ONE, 2.0, {"Worker": 1.0}, {"Worker": 1000.0}, alike, min_gain=0.1).factor(TWO) == 0.75


def test_lent_cpu_that_a_worker_cannot_use_makes_no_speed_a_poor_one() -> None:
    """It holds 2,000 millicores and uses 1,000: with 1,000 the larger size was slower, and will be again."""
    seen = believe({(1, 1): 2.0, (1, 2): 1.5}, worker_millicores={(1, 1): 1000.0, (1, 2): 1000.0})
    known = Prediction(ONE, 2.0, {"Worker": 0.5}, {"Worker": 2000.0}, seen, min_gain=0.1)
    assert known.factor(TWO) == 0.75


SIZES = st.tuples(st.integers(0, 3), st.integers(1, 8))
RATES = st.dictionaries(SIZES, st.floats(1e-6, 1e6), max_size=8)


USE = st.fixed_dictionaries({"Worker": st.floats(0, 1), "PS": st.floats(0, 1)})


@given(st.tuples(SIZES, SIZES), RATES, RATES, st.sampled_from([0.0, 1e-6, 3.0, 1e6]), USE)
def test_a_speed_is_a_number(
    sizes: tuple[tuple[int, int], tuple[int, int]],
    seen: dict[tuple[int, int], float],
    taught: dict[tuple[int, int], float],
    rate: float,
    use: dict[str, float],
) -> None:
    """Whatever is known, what comes of it is no speed, or one that can be reckoned with."""
    now, then = sizes
    counts = {"PS": now[0], "Worker": now[1]}
    held = {"Worker": 500.0, "PS": 100.0}
    known = Prediction(counts, rate, use, held, believe(seen), past(taught) if taught else None)
    found = known.at({"PS": then[0], "Worker": then[1]}, {"Worker": 1000.0})
    if found is not None:
        assert 0 <= found.steps_per_s < math.inf
        assert 0 <= found.relative_error < math.inf
    else:
        assert (rate, seen, taught) == (0.0, {}, {})


@given(st.floats(0.1, 10), st.sampled_from([1.0, 0.9]), st.integers(2, 16))
def test_measurements_correct_the_law(ratio: float, use: float, n: int) -> None:
    """At the measured size it is that speed; between and beyond, no more than a bound and never on its other side."""
    seen = believe({(1, 1): 4.0, (1, 4): 4.0 * ratio}, worker_millicores={(1, 1): 500.0, (1, 4): 500.0})
    known = Prediction(ONE, 4.0, {"Worker": use}, {"Worker": 500.0}, seen)
    alone = Prediction(ONE, 4.0, {"Worker": use}, {"Worker": 500.0})
    assert known.factor(FOUR) == pytest.approx(ratio)
    there = {"PS": 1, "Worker": n}
    if ratio < 0.95:
        assert known.factor(there) < 1
        rate = known.at(there)
        assert rate is not None
        assert rate.steps_per_s < 4.0
    assert known.factor(there) <= alone.factor(there) or n == 4


@pytest.mark.parametrize("slower", [{(1, 4): 2.7}, {(2, 4): 3.0}])
def test_a_larger_size_that_was_slower_with_other_cpu_leaves_a_probe(slower: dict[tuple[int, int], float]) -> None:
    seen = believe({(1, 1): 4.0, **slower}, worker_millicores={(1, 1): 1000.0, **dict.fromkeys(slower, 200.0)})
    known = Prediction(ONE, 4.0, {"Worker": 1.0}, {"Worker": 1000.0}, seen)
    sizes = [{"PS": 1, "Worker": n} for n in (2, 3, 4, 8)]
    assert [known.factor(counts) for counts in sizes] == [2.0] * 4
    assert {rate.steps_per_s for counts in sizes if (rate := known.at(counts)) is not None} == {4.0 / 0.75}


def test_beside_unseen_pods_the_law_counts_for_one_replica_more() -> None:
    seen = Prediction(TWO, 4.0, {"Worker": 1.0}, {"Worker": 1000.0})
    unseen = Prediction(TWO, 4.0, {"Worker": 1.0}, {"Worker": 1000.0}, unseen=True)
    eight = {"PS": 1, "Worker": 8}
    assert [seen.factor(eight), unseen.factor(eight)] == [4.0, 1.5]
    assert unseen.factor(ONE) == seen.factor(ONE)
