"""Reports: parsing what a pod says."""

import json
from typing import Any

import pytest

from elastic_tfjob.api.reading import MAX_STARTS, MAX_STATUS_BYTES
from elastic_tfjob.controller.model.reports import Report
from harness.hostile_text import HUGE_NEGATIVE_NUMBERS, HUGE_NUMBERS, NO_JSON_OBJECT, NO_UTF8, named

FULL: dict[str, Any] = {
    "at": 1000.5,
    "generation": 2,
    "launcher": True,
    "modes": ["overlap", "spare"],
    "prepared": {"generation": 3, "mode": "overlap", "state": "ready", "why": ""},
    "switch": None,
    "step": 1200,
    "total_steps": 2000,
    "steps_per_s": 101.2,
    "loss": 0.3,
    "first_step_at": 990.0,
    "last_step_at": 1000.4,
    "downtime_s": 0.61,
    "lost_steps": 0,
    "checkpoint": {"step": 1100, "at": 999.0, "seconds": 0.1, "bytes": 4096, "path": "/ckpt/1100"},
    "cpu": {"usage_s": 12.5, "throttled_s": 0.5, "limit_cores": 0.5, "use_cores": 0.31},
    "memory": {"used_bytes": 2**28, "limit_bytes": None},
    "something": "newer",
}


def test_reads_all_of_the_contract() -> None:
    found = Report.parse(json.dumps(FULL), 7.0)
    assert found.prepared is not None
    assert (found.prepared.generation, found.prepared.state) == (3, "ready")
    assert found.checkpoint is not None
    assert (found.checkpoint.bytes, found.cpu.use_cores, found.memory.limit_bytes) == (4096, 0.31, None)
    assert (found.step, found.modes, found.received_at_s) == (1200, ("overlap", "spare"), 7.0)


@pytest.mark.parametrize(
    ("more", "steady"),
    [
        ({}, True),
        ({"step": None}, False),
        ({"first_step_at": None}, False),
        ({"resumed_step": 1190}, True),
        ({"resumed_step": 1191}, False),
        ({"resumed_step": 1199, "last_step_at": 1050.0}, True),
        ({"last_step_at": 994.9}, False),
    ],
)
def test_first_steps_are_over_after_ten_or_after_a_minute(more: dict[str, Any], steady: bool) -> None:
    assert Report.parse(json.dumps({**FULL, **more}), 7.0).steady is steady


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ({"way": "fork", "why": ""}, "fork"),
        ({"way": "exec", "why": "no Python program"}, "exec: no Python program"),
        ({"way": "exec"}, "exec"),
        ({"way": "exec", "why": "x" * 1000}, None),
        ({}, "exec"),
        (None, None),
    ],
)
def test_how_the_next_program_starts_and_why(start: Any, said: str | None) -> None:
    found = Report.parse(json.dumps({**FULL, "start": start})).starts
    if start and len(start.get("why", "")) > 500:
        assert found is not None
        assert found.startswith("exec: xxx")
        assert len(found) <= MAX_STARTS
    else:
        assert found == said


def test_whether_the_next_program_is_forked() -> None:
    for start, forks in (({"way": "fork", "why": ""}, True), ({"way": "exec"}, False), ({}, False), (None, False)):
        assert Report.parse(json.dumps({**FULL, "start": start})).forks is forks
    assert not Report.parse(json.dumps(FULL)).forks, "a launcher from before forks says nothing of them"
    with pytest.raises(ValueError, match="start"):
        Report.parse('{"start": 5}')
    assert Report.parse('{"start": {"way": [{}]}}').forks is False


@pytest.mark.parametrize("number", HUGE_NUMBERS, ids=named)
def test_a_number_that_is_missing_or_not_finite_is_unknown(number: str) -> None:
    found = Report.parse(f'{{"loss": {number}, "step": {number}, "total_steps": {number}}}')
    assert (found.loss, found.step, found.total_steps, found.generation, found.launcher) == (None,) * 4 + (False,)


@pytest.mark.parametrize(
    "text",
    [
        *NO_JSON_OBJECT,
        *NO_UTF8,
        *(f'{{"step": {number}}}' for number in HUGE_NEGATIVE_NUMBERS),
        '{"step": "x"}',
        '{"step": -1}',
        '{"step": 1.5}',
        '{"launcher": 1}',
        '{"modes": "overlap"}',
        '{"prepared": {"generation": 1, "state": "odd"}}',
        '{"switch": {"state": "saving"}}',
        '{"cpu": 3}',
        '{"steps_per_s": -1}',
        '{"hook": 1}',
        '{"modes": [1]}',
        '{"modes": ' + json.dumps(["overlap"] * 17) + "}",
        '{"prepared": {"generation": 1e300, "state": "ready"}}',
        '{"prepared": {"generation": 1, "state": ["ready"]}}',
        '{"prepared": {"generation": 1, "state": "failed", "why": 5}}',
    ],
    ids=named,
)
def test_an_answer_that_is_no_report_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError) as error:
        Report.parse(text)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("depth", [900, 950, 980, 990, 1000])
@pytest.mark.parametrize("answer", ["%s", '{"step": %s}', '{"modes": [%s]}', '{"switch": {"why": %s}}', '{"hook": %s}'])
def test_a_deep_answer_is_no_report(answer: str, depth: int) -> None:
    """As deep as json reads, repr cannot write it."""
    with pytest.raises(ValueError):
        Report.parse(answer % ("[" * depth + "]" * depth))


def test_a_large_answer_is_no_report() -> None:
    """However sound: the client reads no more."""
    with pytest.raises(ValueError, match="larger than 65536 bytes"):
        Report.parse(json.dumps({**FULL, "something": "x" * MAX_STATUS_BYTES}))


def test_a_figure_beyond_its_bounds_is_unknown() -> None:
    large = {"generation": 2**40, "step": 2**54, "total_steps": 10**18, "steps_per_s": 1e12, "downtime_s": 1e12}
    clock = {"at": 1e18, "first_step_at": 1e18, "last_step_at": 1e18, "lost_steps": -(2**60)}
    found = Report.parse(json.dumps({**large, **clock, "memory": {"used_bytes": 2**70}, "cpu": {"usage_s": 1e300}}))
    assert found == Report(at=0.0)


def test_texts_are_bounded_and_can_be_written_again() -> None:
    """They end in events, in the job's state and in the log. Half a UTF-16 pair is sound JSON, and no UTF-8."""
    found = Report.parse(
        json.dumps(
            {
                "modes": ["\ud800" * 100],
                "prepared": {"generation": 1, "mode": "m" * 100, "state": "failed", "why": "\ud800" + "y" * 10_000},
                "checkpoint": {"path": "p" * 10_000},
            }
        )
    )
    assert found.prepared is not None
    assert found.checkpoint is not None
    assert found.modes == ("?" * 64,)
    assert (found.prepared.mode, found.prepared.why) == ("m" * 64, "?" + "y" * 1023)
    assert found.checkpoint.path == "p" * 4096


@pytest.mark.parametrize("hook", [True, False, None])
def test_tells_whether_the_program_has_the_hook(hook: bool | None) -> None:
    found = Report.parse(json.dumps({**FULL, "hook": hook}))
    assert found.hook is hook
    assert (found.news != Report.parse(json.dumps(FULL)).news) is (hook is not None)


@pytest.mark.parametrize(("change", "news"), [({"step": 1201, "loss": 0.2}, False), ({"generation": 3}, True)])
def test_progress_is_no_news(change: dict[str, Any], news: bool) -> None:
    before, after = Report.parse(json.dumps(FULL)), Report.parse(json.dumps({**FULL, **change}))
    assert (before.news != after.news) is news
