"""Keys that a newer operator may have added are passed over in each annotation of the operator's own.

An operator that took such an annotation for nonsense would begin a running job anew after a downgrade.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.controller.model.annotations import INDEXES_ANNOTATION, parse
from elastic_tfjob.controller.model.cluster import LOAN_ANNOTATION, NodeLoan
from elastic_tfjob.controller.model.command import STOP_COMMAND
from elastic_tfjob.controller.model.command import Command as Sent
from elastic_tfjob.controller.model.deadline_status import (
    DEADLINE_ANNOTATION,
    TOLD_ANNOTATION,
    DeadlineStatus,
    told,
    told_json,
)
from elastic_tfjob.controller.model.lessons import read_history
from elastic_tfjob.controller.model.speed_checks import (
    CAUSES_ANNOTATION,
    EXPECTS_ANNOTATION,
    OUTCOMES_ANNOTATION,
    expects_json,
    read_causes,
    read_expects,
    read_outcomes,
)
from elastic_tfjob.controller.model.state import StoredState
from elastic_tfjob.controller.model.stop import Stop
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.controller.model.usage import RECORD_ANNOTATION, UsageRecord
from elastic_tfjob.runtime.protocol import LauncherCommand
from elastic_tfjob.speed.growth import Growth

from .reference import KEPT
from .test_own_annotations import FULL_STATE, FULL_TARGET

TIME = "2026-01-02T03:04:05Z"
WORKERS = {"Worker": 2}


def _deadline() -> str:
    status = DeadlineStatus("u", TIME, "at-risk", TIME, TIME, TIME, -5.0, "why", ("work",))
    return status.to_annotations()[DEADLINE_ANNOTATION] or ""


def _state() -> str:
    stop = Stop(4, TIME, TIME, 170, 170, 0, "preempt", "another one")
    ends: dict[str, Any] = {"eta_earliest": TIME, "eta_latest": TIME, "eta_source": "measured"}
    return replace(FULL_STATE, stop=stop, **ends).to_json()


LESSONS = {"ns": {"train": [{"id": "u", "steps": 9.0, "duration_s": 5.0, "rates": {"1/2": 3.0}, "cpu": {"1/2": 100}}]}}

ANNOTATIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    f"{PREFIX}target": (FULL_TARGET.to_json(), Target.parse),
    f"{PREFIX}state": (_state(), StoredState.parse),
    f"{PREFIX}command": (Sent(1, "save", "{}", request=4).to_json(), LauncherCommand.parse),
    f"{PREFIX}command of an end": (STOP_COMMAND, LauncherCommand.parse),
    RECORD_ANNOTATION: (
        UsageRecord(TIME, 2, 5.0, 9.0, 1, TIME, 2, TIME, Growth("finite", ((9.0, 0.5),), 0.01, 0.02, 3, 1e9)).to_json(),
        lambda text: UsageRecord.of({RECORD_ANNOTATION: text}, "u"),
    ),
    CAUSES_ANNOTATION: ('{"1":"asked"}', read_causes),
    OUTCOMES_ANNOTATION: ('{"1":{"expected":2.0,"measured":3.0}}', read_outcomes),
    EXPECTS_ANNOTATION: (expects_json(1, 2.5) or "", lambda text: read_expects(text, 1)),
    INDEXES_ANNOTATION: ('{"1":{"Worker":[0,2]}}', lambda text: parse(text, 1, {"Worker": 3})),
    TOLD_ANNOTATION: (told_json(["loss-nan"], "u"), lambda text: told({TOLD_ANNOTATION: text}, "u")),
    DEADLINE_ANNOTATION: (_deadline(), lambda text: DeadlineStatus.of({DEADLINE_ANNOTATION: text}, "u")),
    LOAN_ANNOTATION: (
        NodeLoan("loaned", "p", TIME, "why").to_json(),
        lambda text: NodeLoan.of({LOAN_ANNOTATION: text}),
    ),
    "what finished jobs taught": (
        orjson.dumps(LESSONS).decode(),
        lambda text: [(scope, name, past.lessons) for scope, name, past in read_history(text).items()],
    ),
}

BY_NAME = ("replicas", "before", "after", "declared", "nodes", "cpu", "memory")
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


def test_each_annotation_of_a_job_is_tried() -> None:
    """Those that hold one word or number for a column of kubectl's have no keys."""
    plain = {"uid", "verdict", "slack"}
    assert {name for name in KEPT if name.rpartition("/")[2] not in plain} <= ANNOTATIONS.keys()
