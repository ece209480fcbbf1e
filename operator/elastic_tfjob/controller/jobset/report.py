"""From the status of a TFJob to that of the JobSet which it runs. Pure. Trainer v2 shows it as the TrainJob's."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from elastic_tfjob.api.fields import cut
from elastic_tfjob.api.tfjob import TFJobSpec
from elastic_tfjob.controller.jobset.translate import TYPES
from elastic_tfjob.controller.objects.status import JobStatus, ReplicaCounts, format_time

__all__ = ["refused_status", "status_of", "terminal"]

_ENDS: Final[Mapping[str, str]] = {"Succeeded": "Completed", "Failed": "Failed"}
"""Conditions of a TFJob, and what JobSets call them."""
_MESSAGE: Final = 1024


def terminal(status: Mapping[str, Any]) -> bool:
    """Whether the JobSet has ended, so that nothing of it changes any more."""
    return bool(status.get("terminalState"))


def status_of(
    before: Mapping[str, Any],
    spec: TFJobSpec,
    status: JobStatus,
    now: datetime,
    size: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """The JobSet's status, which was `before`. Each replicated job is one Job: it is ready when all of its pods run.
    `size`: the replicas that the job runs with, where these are not those of its spec."""
    names = {replica_type: name for name, replica_type in TYPES.items()}
    suspended = status.is_true("Suspended")
    found = {
        **before,
        "restarts": 0,
        "replicatedJobsStatus": [
            {
                "name": names[each],
                "ready": int(counts.active + counts.succeeded >= wanted and not suspended),
                "active": int(counts.active > 0),
                "succeeded": int(status.is_true("Succeeded")),
                "failed": int(status.is_true("Failed") and counts.failed > 0),
                "suspended": int(suspended),
            }
            for each, replica in spec.tf_replica_specs.items()
            for counts in [status.replicas.get(each, ReplicaCounts())]
            for wanted in [(size or {}).get(each, replica.count)]
        ],
    }
    for theirs, ours in _ENDS.items():
        ended = status.get(theirs)
        if ended is not None and ended.status == "True":
            found["terminalState"] = ours
            found["conditions"] = _with(before, now, ours, ended.reason, ended.message)
            return found
    if suspended or _condition(before, "Suspended") is not None:
        reason, words = ("SuspendedJobs", "jobset is suspended") if suspended else ("ResumeJobs", "jobset is resumed")
        found["conditions"] = _with(before, now, "Suspended", reason, words, true=suspended)
    return found


def refused_status(before: Mapping[str, Any], why: str, now: datetime) -> dict[str, Any]:
    """Of a JobSet that cannot be run: it has failed, and says why."""
    conditions = _with(before, now, "Failed", "UnsupportedByTFJob", why)
    return {**before, "restarts": 0, "terminalState": "Failed", "conditions": conditions}


def _condition(status: Mapping[str, Any], type_: str) -> Mapping[str, Any] | None:
    return next((each for each in status.get("conditions") or () if each.get("type") == type_), None)


def _with(
    status: Mapping[str, Any], now: datetime, type_: str, reason: str, message: str, *, true: bool = True
) -> Sequence[Mapping[str, Any]]:
    """The conditions with this one; since when it holds stays as it is while it does."""
    before, holds = _condition(status, type_), "True" if true else "False"
    same = before is not None and before.get("status") == holds
    made = {
        "type": type_,
        "status": holds,
        "reason": reason,
        "message": cut(message, _MESSAGE),
        "lastTransitionTime": before["lastTransitionTime"] if before is not None and same else format_time(now),
    }
    return [*(each for each in status.get("conditions") or () if each.get("type") != type_), made]
