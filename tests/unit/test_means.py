"""What a pod uses and does in the mean, from one answer to the next."""

import pytest

from elastic_tfjob.controller.kube.reports import RollingAverages
from elastic_tfjob.controller.model.reports import WINDOW_S, Report


def answer(at: float, usage_s: float) -> Report:
    return Report.parse(b'{"at": %.9f, "cpu": {"at": %.9f, "usage_s": %.9f}}' % (at, at, usage_s))


def test_cpu_use_is_the_mean_of_the_last_half_minute() -> None:
    means = RollingAverages()
    for tenth in range(1200):  # half a core at first, then two
        at = 100.0 + tenth / 10
        found = means.take(answer(at, 0.5 * (at - 100) if at < 160 else 30 + 2 * (at - 160)))
    assert found.cpu.use_cores == pytest.approx(2.0)


def test_a_clock_that_hardly_moves_keeps_nothing() -> None:
    """The clock is the pod's: each answer may be a microsecond after the one before."""
    means = RollingAverages()
    for count in range(10_000):
        means.take(answer(100.0 + count * 1e-6, 1.0))
    assert len(means._used) == 1


def test_the_number_of_kept_readings_is_bounded() -> None:
    means = RollingAverages()
    for count in range(20_000):
        means.take(answer(100.0 + count * WINDOW_S / 5000, count * 0.001))
    assert len(means._used) <= 66
