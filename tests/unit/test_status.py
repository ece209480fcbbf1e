"""The rules by which conditions change, and the API's form of a status."""

from typing import Any

import pytest

from elastic_tfjob.controller.model.status import JobStatus
from harness.hostile_text import NO_TIMES, named
from unit.build import condition, decide, job

THEN, NOW = "2026-01-02T03:04:05Z", "2026-01-02T03:05:00Z"


def status(*conditions: dict[str, str]) -> JobStatus:
    return JobStatus.parse({"conditions": list(conditions)})


def types(found: JobStatus) -> list[str]:
    return [f"{item.type}={item.status}" for item in found.conditions]


@pytest.mark.parametrize(
    ("before", "new", "after"),
    [
        pytest.param([], "Created", ["Created=True"], id="first"),
        pytest.param(["Created"], "Running", ["Created=True", "Running=True"], id="order-is-recency"),
        pytest.param(
            ["Created", "Running"], "Restarting", ["Created=True", "Restarting=True"], id="restarting-replaces"
        ),
        pytest.param(["Created", "Restarting"], "Running", ["Created=True", "Running=True"], id="running-replaces"),
        pytest.param(
            ["Created", "Running"], "Succeeded", ["Created=True", "Running=False", "Succeeded=True"], id="not-running"
        ),
        pytest.param(["Created", "Running"], "Failed", ["Created=True", "Running=False", "Failed=True"], id="failed"),
        pytest.param(["Created", "Failed"], "Succeeded", ["Created=True", "Failed=True"], id="failed-is-final"),
        pytest.param(
            ["Created", "Succeeded"], "Failed", ["Created=True", "Succeeded=True", "Failed=True"], id="both-true"
        ),
    ],
)
def test_set(before: list[str], new: str, after: list[str]) -> None:
    """Setting a condition moves it to the end and changes what contradicts it."""
    found = status(*map(condition, before))
    found.set(new, f"TFJob{new}", "because", NOW)
    assert types(found) == after


def test_the_same_condition_changes_nothing() -> None:
    """Type, status and reason decide: a new message alone is no change."""
    found = status(condition("Running"))
    assert not found.set("Running", "TFJobRunning", "another message", NOW)
    assert found.conditions[0].lastUpdateTime == THEN


def test_a_new_reason_keeps_the_transition_time() -> None:
    """The transition time is of the status, not of the reason."""
    found = status(condition("Restarting"))
    assert found.set("Restarting", "TFJobRescaling", "", NOW)
    assert (found.conditions[0].lastTransitionTime, found.conditions[0].lastUpdateTime) == (THEN, NOW)


def test_round_trip() -> None:
    """Parsing and writing a status of upstream's gives the same object, zeros left out."""
    raw = {
        "conditions": [condition("Created"), condition("Running", "False")],
        "replicaStatuses": {"PS": {}, "Worker": {"active": 1, "failed": 2, "selector": "a=b"}},
        "startTime": THEN,
        "completionTime": NOW,
    }
    assert JobStatus.parse(raw).to_dict() == raw


@pytest.mark.parametrize("time", [*NO_TIMES, 5, {}], ids=named)
def test_a_time_that_is_none_is_not_set(time: object) -> None:
    """A user may write the status of a job, too: a pass of the operator must come to its end all the same."""
    found = JobStatus.parse({"startTime": time, "completionTime": time, "lastReconcileTime": time})
    assert (found.start_time, found.completion_time, found.last_reconcile_time) == (None, None, None)


@pytest.mark.parametrize("limits", [{"activeDeadlineSeconds": 60}, {"ttlSecondsAfterFinished": 60}])
@pytest.mark.parametrize("conditions", [[], [condition("Succeeded")]])
def test_a_job_with_such_a_status_goes_on(limits: dict[str, int], conditions: list[dict[str, str]]) -> None:
    """The start is then now, and is written down."""
    wrong = {"conditions": conditions, "startTime": "x", "completionTime": "2026-01-02T03:04:05"}
    found = decide(job({"Worker": 1}, runPolicy=limits, status=wrong))
    if not conditions:
        assert found.status is not None
        assert found.status["startTime"] == THEN
        assert len(found.actions) == 2


@pytest.mark.parametrize(
    "raw",
    [
        {"conditions": "x", "replicaStatuses": []},
        {"conditions": [None, 5, {}, {"type": 7, "status": "True"}], "replicaStatuses": {}},
    ],
)
def test_nonsense_in_a_status_is_as_if_not_set(raw: dict[str, object]) -> None:
    assert JobStatus.parse(raw) == JobStatus()


def test_counts_are_numbers_of_pods() -> None:
    raw = {
        "Worker": {"active": -1, "succeeded": 1e30, "failed": 10**30},
        "PS": None,
        "Chief": {"active": "1"},
        "Evaluator": {"selector": 5},
        "Master": {"selector": "x" * 257},
    }
    assert JobStatus.parse({"replicaStatuses": raw}).to_dict()["replicaStatuses"] == {
        "Worker": {"failed": 2**31 - 1},
        "PS": {},
        "Chief": {},
        "Evaluator": {},
        "Master": {},
    }


def test_nothing_stored_yet() -> None:
    """A new job has no status at all."""
    assert JobStatus.parse({}).to_dict() == {"conditions": [], "replicaStatuses": {}}


def test_a_condition_that_somebody_wrote_without_times_is_written_back_without_them() -> None:
    """The API server takes no empty time: nothing of the job could be written any more."""
    status = JobStatus.parse({"conditions": [{"type": "Created", "status": "True"}]})
    assert status.to_dict()["conditions"] == [{"type": "Created", "status": "True", "reason": "", "message": ""}]


def test_a_condition_without_a_time_has_one_when_it_changes() -> None:
    status = JobStatus.parse({"conditions": [{"type": "Running", "status": "True"}]})
    status.set("Running", "JobRunning", "", "2026-01-02T03:04:05Z")
    assert status.to_dict()["conditions"][0]["lastTransitionTime"] == "2026-01-02T03:04:05Z"


def test_a_status_that_somebody_has_filled_is_shortened() -> None:
    """The API server bounds none of it, and each pass over the job reads and writes it."""
    made: dict[str, Any] = {"conditions": [{"type": f"T{k}", "status": "True"} for k in range(50_000)]}
    made["conditions"].append({"type": "Running", "status": "True"})
    made["replicaStatuses"] = {f"T{k}": {"active": 1} for k in range(10_000)}
    found = job({"Worker": 1}, status=made)
    assert len(found.raw_status) < 8192
    assert [each.type for each in found.status().conditions][-2:] == ["T49999", "Running"]
    assert len(found.status().conditions) == len(found.status().replicas) == 32
    written = decide(found).status
    assert written is None or len(written["conditions"]) <= 34
