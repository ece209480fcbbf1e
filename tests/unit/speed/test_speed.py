"""Speed models: fits against the formulas they stand for, tables, and finish times."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls as reference_nnls

from elastic_tfjob.speed.model import Table, predict
from elastic_tfjob.speed.optimus import believe, fit, nnls
from harness.effort import effort

SYNC = (0.4, 0.02, 0.01, 0.003, 0.002)
ASYNC = (0.3, 0.05, 0.02, 0.01)


def sync(p: int, w: int) -> float:
    a, b, c, d, e = SYNC
    return 1 / (a / w + b + c * w / p + d * w + e * p)


def asynchronous(p: int, w: int) -> float:
    a, b, c, d = ASYNC
    return w / (a + b * w / p + c * w + d * p)


SIZES = [(1, 1), (2, 1), (1, 4), (4, 4), (2, 8), (8, 2), (3, 6)]


def test_the_synchronous_form_is_found_again() -> None:
    found = fit({size: sync(*size) for size in SIZES})
    assert found.coefficients == pytest.approx(SYNC, rel=1e-6)
    assert found.predict(5, 7) == pytest.approx(sync(5, 7))
    assert found.confident


def test_the_asynchronous_form_is_found_again() -> None:
    found = fit({size: asynchronous(*size) for size in SIZES}, "async")
    assert found.coefficients == pytest.approx(ASYNC, rel=1e-6)
    assert found.predict(5, 7) == pytest.approx(asynchronous(5, 7))


def test_jobs_without_ps_lose_its_terms() -> None:
    found = fit({(0, w): 1 / (0.5 / w + 0.1) for w in (1, 2, 3, 4, 8)})
    assert found.predict(0, 6) == pytest.approx(1 / (0.5 / 6 + 0.1))


def test_noise_shows_in_the_residual_and_takes_the_confidence() -> None:
    rng = random.Random(1)
    small = fit({size: sync(*size) * rng.lognormvariate(0, 0.05) for size in SIZES})
    large = fit({size: sync(*size) * rng.lognormvariate(0, 1.5) for size in SIZES})
    assert 0 < small.residual < 0.1 < large.residual
    assert small.confident
    assert not large.confident


def test_a_measured_size_overrides_the_fit() -> None:
    belief = believe({**{size: sync(*size) for size in SIZES}, (5, 5): 123.0})
    assert belief.steps_per_s({"PS": 5, "Worker": 5}) == 123.0


def test_without_confidence_the_nearest_measured_size_speaks() -> None:
    belief = believe({(1, 1): 2.0, (1, 4): 5.0})
    assert belief.fit is None
    assert belief.steps_per_s({"PS": 1, "Worker": 5}) == 5.0
    assert belief.steps_per_s({"PS": 2, "Worker": 1}) == 2.0


def test_nothing_seen_is_nothing_known() -> None:
    assert believe({}).steps_per_s({"Worker": 1}) is None
    assert believe({(0, 0): 5.0, (1, 1): 0.0}).measured == {}


@settings(max_examples=effort(13, 40))
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(2, 9))
def test_nnls_is_scipys(seed: int, columns: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(rows, columns)), rng.normal(size=rows)
    ours, (_, norm) = nnls(a, b), reference_nnls(a, b)
    assert ours.shape == (columns,)
    assert np.all(ours >= 0)
    assert float(np.linalg.norm(a @ ours - b)) == pytest.approx(float(norm), abs=1e-6)


def test_a_table_knows_only_what_was_measured() -> None:
    table = Table({(1, 2): 3.0})
    assert table.steps_per_s({"PS": 1, "Worker": 2}) == 3.0
    assert table.steps_per_s({"PS": 1, "Worker": 3}) is None


def test_finish_with_an_interval() -> None:
    """100 steps at 2/s from 10 on: 60. With 10 % error the ends are 10 + 50 / (1 +- 0.1645)."""
    found = predict(10, 100, 2, 0.1)
    assert found.expected_s == 60
    assert (found.earliest_s, found.latest_s) == pytest.approx((10 + 50 / 1.1645, 10 + 50 / 0.8355))


def test_finish_at_the_edges() -> None:
    assert predict(5, 0, 1).latest_s == 5
    assert predict(5, 10, 0).expected_s == math.inf
    assert predict(5, 10, 1, 0.9).latest_s == math.inf
