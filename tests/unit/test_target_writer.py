"""When a size that a job could not get is asked for again."""

from collections.abc import Iterator
from itertools import count, islice
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_tfjob.controller.model.state import Refused
from elastic_tfjob.controller.model.status import parse_time
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.controller.schedule.job_entry import JobEntry
from elastic_tfjob.controller.schedule.writers import TargetWriter

KEY = ("ns", "j")
AT = "2026-01-02T03:04:05Z"
MIN = 60


@pytest.fixture
def later() -> list[Any]:
    return []


@pytest.fixture
def writer(later: list[Any]) -> TargetWriter:
    nothing: Any = SimpleNamespace(seen=None)
    return TargetWriter(
        nothing,
        nothing,
        entries={},
        touched=lambda _: None,
        later=later.append,
        failed=lambda _, error: pytest.fail(str(error)),
    )


def waits(
    writer: TargetWriter, entry: JobEntry, replicas: dict[str, int], generations: Iterator[int], reached: int = 0
) -> Iterator[int]:
    """Seconds from each refusal of a size until it may be written again, of a job whose generation is `reached`."""
    for generation in generations:
        refused = Refused(generation, "it crashed", AT)
        target, state = Target(generation, replicas), SimpleNamespace(refused=refused, generation=reached)
        found: Any = SimpleNamespace(target=target, state=state)
        writer.note_refusal(entry, found)
        writer.note_refusal(entry, found)  # it is seen in each round
        began = parse_time(AT).timestamp()
        yield next(s for s in count() if writer._may_write(entry, None, target, began + s))


def test_a_refused_size_is_tried_soon_once_and_then_ever_later(writer: TargetWriter, later: list[Any]) -> None:
    found = list(islice(waits(writer, JobEntry(KEY), {"Worker": 3}, count(1)), 8))
    assert found == [10, 2 * MIN, 4 * MIN, 8 * MIN, 16 * MIN, 32 * MIN, 60 * MIN, 60 * MIN]
    assert set(later) == {KEY}  # and a later round looks again


def test_a_size_that_the_job_returned_from_is_not_tried_soon(writer: TargetWriter) -> None:
    assert list(islice(waits(writer, JobEntry(KEY), {"Worker": 3}, count(1), reached=9), 3)) == [
        2 * MIN,
        4 * MIN,
        8 * MIN,
    ]


def test_another_size_is_tried_at_once(writer: TargetWriter) -> None:
    generations, entry = count(1), JobEntry(KEY)
    assert list(islice(waits(writer, entry, {"Worker": 3}, generations), 2)) == [10, 2 * MIN]
    assert writer._may_write(entry, None, Target(9, {"Worker": 2}), parse_time(AT).timestamp())
    assert next(waits(writer, entry, {"Worker": 2}, generations)) == 10
