"""Timeline: capacity that is reserved for a job until its deadline."""

from math import inf

import numpy as np
import pytest

from elastic_tfjob.scheduling.profiles.deadline.curves import Curve
from elastic_tfjob.scheduling.profiles.deadline.timeline import Need, Timeline
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import WORKER

SIZES = (1, 2, 4)
CURVE = Curve(
    tuple({WORKER: n} for n in SIZES),
    np.array([0.0, 1.0, 1.8, 3.0]),
    np.array([Resources(accelerators=n) for n in (0, *SIZES)], dtype=np.float64),
    np.array([0.0, *SIZES]) / 4,
    (2,),
    True,
)


def reserved(timeline: Timeline) -> float:
    """Accelerator-seconds that are not free."""
    return float((4 - timeline.free[2]) @ timeline.widths)


@pytest.mark.parametrize(
    ("steps", "plain", "mixed"),
    [(100.0, 100.0, 100.0), (150.0, 2 * 150 / 1.8, 100 + 50 / 0.8), (240.0, 4 * 80.0, 200 + 2 * 60 / 1.2)],
    ids=["one size", "between 1 and 2", "between 2 and 4"],
)
def test_a_job_that_shrinks_before_its_deadline_takes_less(steps: float, plain: float, mixed: float) -> None:
    for found, as_mixed in ((plain, False), (mixed, True)):
        timeline = Timeline(Resources(accelerators=4), [100.0])
        booking = timeline.book(CURVE, Need(steps, 100.0), mixed=as_mixed)
        assert booking is not None
        assert reserved(timeline) == pytest.approx(found)
        assert booking.area == pytest.approx(found / 4)
        timeline.release(booking)
        assert reserved(timeline) == pytest.approx(0)


def test_a_second_pause_counts_where_the_job_shrinks() -> None:
    timeline = Timeline(Resources(accelerators=4), [100.0])
    booking = timeline.book(CURVE, Need(150.0, 100.0, pause_s=2.0), mixed=True)
    assert booking is not None
    # 150 steps, 2 s without training at 2 workers and 2 s at one; 100 s at one worker make 100 steps.
    assert reserved(timeline) == pytest.approx(100 + (150 + 2 * 1.8 + 2 * 1.0 - 100) / 0.8)


def test_what_does_not_fit_is_not_reserved() -> None:
    timeline = Timeline(Resources(accelerators=4), [100.0])
    timeline.hold(Resources(accelerators=3), inf)
    before = timeline.free.copy()
    assert timeline.book(CURVE, Need(101.0, 100.0), mixed=True) is None
    assert (timeline.free == before).all()
