"""How fast a job will be: which source speaks when, and how sure it is."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_tfjob.speed.history import Conditions, Lesson, Past, Size
from elastic_tfjob.speed.model import Table
from elastic_tfjob.speed.optimus import OnlineSpeed, believe
from elastic_tfjob.speed.prediction import MEASURED_ERROR, OF_PRIOR, WEIGHT_ERROR, Prediction

ONE, TWO, FOUR, EIGHT = ({"PS": 1, "Worker": n} for n in (1, 2, 4, 8))
FITTED = {(p, w): 1 / (0.4 / w + 0.02 + 0.01 * w / p) for p, w in ((1, 1), (1, 2), (2, 2), (1, 3), (2, 4), (3, 3))}
CPU = {"Worker": 1000.0, "PS": 1000.0}
BUSY = {"Worker": 0.9, "PS": 0.05}


def past(*rates: dict[Size, float], **more: Any) -> Past:
    return Past(tuple(Lesson(str(k), rates=each, **more) for k, each in enumerate(rates)))


def seen(rates: Mapping[Size, float], *, worker: float = 1000.0, spread: float = 0.0) -> OnlineSpeed:
    return believe(rates, conditions=dict.fromkeys(rates, Conditions(worker, 1000.0, spread)))


def source(prediction: Prediction, counts: dict[str, int], **more: Any) -> str | None:
    found = prediction.at(counts, **more)
    return None if found is None else found.source


def rate(prediction: Prediction, counts: dict[str, int], **more: Any) -> float:
    found = prediction.at(counts, **more)
    assert found is not None
    return found.steps_per_s


def error(prediction: Prediction, counts: dict[str, int], **more: Any) -> float:
    found = prediction.at(counts, **more)
    assert found is not None
    return found.relative_error


def test_the_best_known_source_is_named() -> None:
    twice = seen({(1, 1): 2.0, (1, 4): 3.0})
    assert source(Prediction(ONE, 2.0, BUSY, CPU, twice), FOUR) == "measured"
    assert source(Prediction(ONE, 2.0, BUSY, CPU, twice), TWO) == "interpolated"
    assert source(Prediction(ONE, 2.0, BUSY, speed=believe(FITTED)), FOUR) == "fitted"
    assert source(Prediction(ONE, 2.0, BUSY, CPU, twice), EIGHT) == "utilisation"
    assert source(Prediction(ONE, 2.0, BUSY, past=past({(1, 1): 2.0, (1, 4): 5.0})), FOUR) == "history"
    assert source(Prediction(ONE, 2.0), FOUR) == "prior"
    assert source(Prediction({}), FOUR) is None
    assert source(Prediction({}, speed=Table({(1, 4): 5.0})), FOUR) == "oracle"


def test_the_law_is_a_bound_and_half_of_the_work_of_workers_is_expected_to_be_split() -> None:
    """Workers 80 % busy in turn with the PS: half of that is divided by four."""
    known = Prediction(ONE, 2.0, {"Worker": 0.8})
    assert rate(known, FOUR) == pytest.approx(2.0 / (0.2 + 0.8 * (1 / 2 + 1 / 2 / 4)))
    assert known.gain(FOUR).expected == pytest.approx(rate(known, FOUR) / 2.0)
    assert error(known, EIGHT) > error(known, FOUR) > error(known, TWO) > MEASURED_ERROR


def test_each_worker_is_work_for_the_servers() -> None:
    """The PS is busy for half of the time: with twice the workers it is for twice as long, unless there are two."""
    known = Prediction(ONE, 2.0, {"PS": 0.5})
    found = [rate(known, counts) for counts in (TWO, {"PS": 2, "Worker": 2}, {"PS": 2, "Worker": 1})]
    assert found == pytest.approx([2.0 / 1.5, 2.0, 2.0 / 0.75])


def test_optimism_grows_with_what_is_not_known() -> None:
    known = Prediction(ONE, 2.0, BUSY, CPU)
    gains = [known.gain(counts).at(1.0) / known.gain(counts).expected for counts in (TWO, FOUR, EIGHT)]
    assert 1.0 < gains[0] < gains[1] < gains[2]
    measured = Prediction(ONE, 2.0, BUSY, CPU, seen({(1, 1): 2.0, (1, 4): 3.0}))
    assert measured.gain(FOUR).at(1.0) / measured.gain(FOUR).expected < 1.06 < gains[1]


def test_a_speed_measured_with_the_coming_cpu_comes_again() -> None:
    """A job goes back to a size at which it was faster. With half of the CPU of then it is slower than it was."""
    speed = believe({(1, 1): 4.0, (1, 4): 3.0}, conditions={(1, 1): Conditions(2000.0), (1, 4): Conditions(4000.0)})
    known = Prediction(FOUR, 3.0, {"Worker": 0.5, "PS": 0.4}, {"Worker": 4000.0, "PS": 4000.0}, speed)
    again, less = (rate(known, ONE, usable={"Worker": held, "PS": 4000.0}) for held in (2000.0, 1000.0))
    assert again == pytest.approx(4.0, rel=0.03)
    assert less < 0.9 * again


def test_a_past_of_the_same_name_tells_the_shape_and_of_a_job_that_waits_the_speed() -> None:
    shown = past({(1, 1): 4.0, (1, 4): 12.0})
    assert rate(Prediction(ONE, 2.0, past=shown), FOUR) == pytest.approx(6.0, rel=0.05)
    assert rate(Prediction({}, past=shown), FOUR) == pytest.approx(12.0, rel=0.02)
    assert error(Prediction(ONE, 2.0, past=shown), FOUR) < error(Prediction({}, past=shown), FOUR)


def test_the_prior_doubles_by_the_whole_size() -> None:
    alone, beside_ps = Prediction({"Worker": 1}, 2.0), Prediction(ONE, 2.0)
    found = [rate(alone, {"Worker": 2}), rate(beside_ps, {"PS": 2, "Worker": 2}), rate(beside_ps, TWO)]
    assert found == pytest.approx([2.0 * 2**0.8, 2.0 * 2**0.8, 2.0 * 2**0.4])
    assert error(alone, {"Worker": 2}) == pytest.approx(OF_PRIOR.shape[0], rel=0.05)
    assert error(beside_ps, EIGHT) > 2 * error(beside_ps, TWO)


def test_more_cpu_at_the_same_size_makes_it_as_fast_as_the_law_says() -> None:
    """Workers at their limit get twice the CPU: 1 / (1 - 0.8 + 0.8/2)."""
    known = Prediction(ONE, 2.0, {"Worker": 0.8}, {"Worker": 500.0, "PS": 500.0})
    assert (rate(known, ONE), source(known, ONE)) == (2.0, "measured")
    assert rate(known, ONE, usable={"Worker": 1000.0}) == pytest.approx(2.0 / 0.6)
    assert error(known, ONE, usable={"Worker": 1000.0}) > error(known, ONE)


def test_a_weight_says_nothing_of_the_speed() -> None:
    known = Prediction(ONE, 2.0, {"Worker": 0.8}, {"Worker": 500.0, "PS": 500.0}, limited=False)
    assert rate(known, ONE, usable={"Worker": 1000.0}) == 2.0
    assert error(known, ONE, usable={"Worker": 1000.0}) >= WEIGHT_ERROR


def test_slower_accelerators_slow_the_job() -> None:
    assert rate(Prediction(ONE, 2.0, accelerator=1.0), ONE, accelerator=0.5) == 1.0


def test_the_users_estimate_is_the_speed_at_the_declared_size() -> None:
    known = Prediction({}, estimate=(TWO, 10.0))
    assert rate(known, TWO) == pytest.approx(10.0)
    assert source(known, TWO) == "estimated"
    assert source(known, FOUR) == "prior"
    measured = Prediction(ONE, 2.0, BUSY, CPU, estimate=(TWO, 10.0))
    assert rate(measured, TWO) < 4.0


def test_a_poor_speed_with_little_cpu_says_little_of_one_with_more() -> None:
    """With a third of the CPU two workers were slower than one. With as much as now they are faster."""
    poor = believe({(1, 1): 2.0, (1, 2): 1.5}, conditions={(1, 1): Conditions(1000.0), (1, 2): Conditions(300.0)})
    assert Prediction(ONE, 2.0, {"Worker": 1.0}, {"Worker": 1000.0}, poor).gain(TWO).expected > 1.2
    alike = seen({(1, 1): 2.0, (1, 2): 1.5})
    assert Prediction(ONE, 2.0, {"Worker": 1.0}, {"Worker": 1000.0}, alike).gain(TWO).expected == pytest.approx(
        0.75, rel=0.06
    )


def test_lent_cpu_that_a_worker_cannot_use_makes_no_speed_a_poor_one() -> None:
    """It can use 2,000 millicores and uses 1,000: with 1,000 the larger size was slower, and will be again."""
    known = Prediction(ONE, 2.0, {"Worker": 0.5}, {"Worker": 2000.0}, seen({(1, 1): 2.0, (1, 2): 1.5}))
    assert known.gain(TWO).expected < 1.1


@pytest.mark.parametrize("use", [1.0, 0.6])
def test_a_size_that_was_slower_is_not_expected_to_be_faster_nor_one_beyond_it(use: float) -> None:
    """The demo beside other load grew from one worker to four, was slower, went back, and did the same again."""
    known = Prediction(ONE, 4.0, {"Worker": use}, {"Worker": 1000.0}, seen({(1, 1): 4.0, (1, 4): 3.0}))
    assert known.gain(FOUR).at(1.28) < 1
    assert known.gain(EIGHT).at(0.5) < 1
    assert known.gain(FOUR).expected == pytest.approx(0.75, rel=0.03)


def test_a_spread_of_measurements_widens_the_uncertainty() -> None:
    """Neighbours that nobody sees, and CPU that the host takes, change the speed at one size."""
    calm, restless = (Prediction(ONE, 4.0, BUSY, CPU, seen({(1, 1): 4.0, (1, 4): 6.0}, spread=s)) for s in (0.0, 0.3))
    assert error(restless, FOUR) > 0.3 > 3 * error(calm, FOUR)
    assert error(restless, ONE) == pytest.approx(0.3)
    # The law expects less than was measured, and counts for more.
    assert restless.gain(FOUR).expected < calm.gain(FOUR).expected


def test_measurements_that_surprise_widen_the_uncertainty() -> None:
    as_law, odd = ({(1, 1): 4.0, (1, 2): two, (1, 3): three} for two, three in ((5.9, 7.0), (2.0, 12.0)))
    errors = [error(Prediction(ONE, 4.0, BUSY, CPU, seen(rates)), EIGHT) for rates in (as_law, odd)]
    assert errors[1] > 2 * errors[0]


SIZES = st.tuples(st.integers(0, 3), st.integers(1, 8))
RATES = st.dictionaries(SIZES, st.floats(1e-6, 1e6), max_size=8)
USE = st.fixed_dictionaries({"Worker": st.floats(0, 1), "PS": st.floats(0, 1)})


@given(st.tuples(SIZES, SIZES), RATES, RATES, st.sampled_from([0.0, 1e-6, 3.0, 1e6]), USE)
def test_a_speed_is_a_number(
    sizes: tuple[Size, Size],
    rates: dict[Size, float],
    taught: dict[Size, float],
    now_per_s: float,
    use: dict[str, float],
) -> None:
    """Whatever is known, what comes of it is no speed, or one that can be reckoned with."""
    now, then = sizes
    counts = {"PS": now[0], "Worker": now[1]}
    held = {"Worker": 500.0, "PS": 100.0}
    known = Prediction(counts, now_per_s, use, held, believe(rates), past(taught) if taught else None)
    found = known.at({"PS": then[0], "Worker": then[1]}, {"Worker": 1000.0})
    if found is not None:
        assert 0 <= found.steps_per_s < math.inf
        assert 0 <= found.relative_error < math.inf
        assert 0 <= known.gain({"PS": then[0], "Worker": then[1]}).at(1.0) < math.inf
    else:
        assert (now_per_s, rates, taught) == (0.0, {}, {})


@given(st.floats(0.1, 10), st.sampled_from([1.0, 0.9]))
def test_a_measured_size_has_the_speed_that_was_measured(ratio: float, use: float) -> None:
    known = Prediction(ONE, 4.0, {"Worker": use}, CPU, seen({(1, 1): 4.0, (1, 4): 4.0 * ratio}))
    assert known.gain(FOUR).expected == pytest.approx(ratio, rel=0.1)
    between = known.gain({"PS": 1, "Worker": 3}).expected
    assert min(1.0, ratio) * 0.75 <= between <= max(1.0, ratio) * 1.5
