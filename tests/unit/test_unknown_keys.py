"""Keys that a newer operator may have added are passed over in each annotation of the operator's own.

An operator that took such an annotation for nonsense would begin a running job anew after a downgrade.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest

from elastic_tfjob.api.annotations import OPERATOR_ANNOTATIONS, PREFIX
from elastic_tfjob.controller.model.annotations import GROWTH_ANNOTATION, NOTICES_ANNOTATION, RECORD_ANNOTATION
from elastic_tfjob.controller.model.cluster import LOAN_ANNOTATION, NodeLoan
from elastic_tfjob.controller.model.command import STOP_COMMAND
from elastic_tfjob.controller.model.command import Command as Sent
from elastic_tfjob.controller.model.deadline_status import DeadlineStatus, NoticesSent
from elastic_tfjob.controller.model.kueue import Growth as QuotaGrowth
from elastic_tfjob.controller.model.lessons import read_history
from elastic_tfjob.controller.model.state import Outcome, Stop, StoredState
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.controller.model.usage import UsageRecord
from elastic_tfjob.runtime.protocol import LauncherCommand
from elastic_tfjob.speed.growth import Growth

from .test_own_annotations import FULL_STATE, FULL_TARGET

TIME = "2026-01-02T03:04:05Z"
WORKERS = {"Worker": 2}


def _notices() -> str:
    judged = DeadlineStatus(TIME, "at-risk", TIME, TIME, TIME, -5.0, "why", ("work",))
    return NoticesSent(judged, frozenset({"loss-nan"})).to_json("u") or ""


def _state() -> str:
    stop = Stop(4, TIME, TIME, 170, 170, 0, "preempt", "another one")
    ends: dict[str, Any] = {"eta_earliest": TIME, "eta_latest": TIME, "eta_source": "measured"}
    folded: dict[str, Any] = {"causes": {1: "asked"}, "outcomes": {1: Outcome(2.0, 3.0)}, "indexes": {"Worker": (0, 2)}}
    return replace(FULL_STATE, stop=stop, **ends, **folded).to_json("u")


LESSONS = {"ns": {"train": [{"id": "u", "steps": 9.0, "duration_s": 5.0, "rates": {"1/2": 3.0}, "cpu": {"1/2": 100}}]}}

ANNOTATIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    f"{PREFIX}target": (replace(FULL_TARGET, expects=2.5).to_json("u"), Target.parse),
    f"{PREFIX}state": (_state(), StoredState.parse),
    f"{PREFIX}command": (Sent(1, "save", "{}", request=4).to_json(), LauncherCommand.parse),
    f"{PREFIX}command of an end": (STOP_COMMAND, LauncherCommand.parse),
    RECORD_ANNOTATION: (
        UsageRecord(TIME, 2, 5.0, 9.0, 1, TIME, 2, TIME, Growth("finite", ((9.0, 0.5),), 0.01, 0.02, 3, 1e9)).to_json(
            "u"
        ),
        lambda text: UsageRecord.of({RECORD_ANNOTATION: text}, "u"),
    ),
    GROWTH_ANNOTATION: (
        QuotaGrowth({"Worker": 3}, "no free quota").to_json("u"),
        lambda text: QuotaGrowth.of({GROWTH_ANNOTATION: text}, "u"),
    ),
    NOTICES_ANNOTATION: (_notices(), lambda text: NoticesSent.of({NOTICES_ANNOTATION: text}, "u")),
    LOAN_ANNOTATION: (
        NodeLoan("loaned", "p", TIME, "why").to_json(),
        lambda text: NodeLoan.of({LOAN_ANNOTATION: text}),
    ),
    "what finished jobs taught": (
        orjson.dumps(LESSONS).decode(),
        lambda text: [(scope, name, past.lessons) for scope, name, past in read_history(text).items()],
    ),
}

BY_NAME = ("admitted", "replicas", "before", "after", "declared", "nodes", "cpu", "memory")
"""Objects whose keys are data, replica types and names of numbers: there is no unknown one."""


def _with_more(value: Any, more: object) -> Any:
    """The value, with one more key in each of its objects."""
    if isinstance(value, list):
        return [_with_more(each, more) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        **{key: each if key in BY_NAME else _with_more(each, more) for key, each in value.items()},
        "of_tomorrow": more,
    }


@pytest.mark.parametrize("more", [{"a": [1]}, [1], "a", 1.5, True, None])
@pytest.mark.parametrize("what", ANNOTATIONS)
def test_unknown_keys_are_passed_over(what: str, more: object) -> None:
    text, read = ANNOTATIONS[what]
    known = read(text)
    assert known, "a full one is read"
    assert read(orjson.dumps(_with_more(orjson.loads(text), more)).decode()) == known


def test_each_annotation_is_tried() -> None:
    """Those that hold one word or number, for a column of kubectl's or as a digest, have no keys."""
    plain = {"step", "eta", "verdict", "slack", "jobset-spec"}
    assert {PREFIX + name for name in OPERATOR_ANNOTATIONS - plain} <= ANNOTATIONS.keys()
