"""The status of a TFJob and the rules by which its conditions change. Pure.

Upstream's contract: the last element of `conditions` is the job's visible state, so the order is recency; once Failed,
nothing changes any more; Running and Restarting replace each other. Source: tfjob v1 (util/status.go of the
training-operator), restated here case by case in tests/unit/test_status.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

from elastic_tfjob.api.reading import MAX_REPLICA_TYPES, moment

__all__ = ["Condition", "JobStatus", "ReplicaCounts", "format_time", "moment_of", "parse_time", "shortened"]

_CONDITION: Final = ("type", "status", "reason", "message", "lastUpdateTime", "lastTransitionTime")
_COUNTS: Final = ("active", "succeeded", "failed")
_MAX_CONDITIONS: Final = 32
"""Upstream's controller has five types, and adds none."""
_MAX_COUNT: Final = 2**31 - 1


def format_time(moment: datetime) -> str:
    """RFC 3339 in whole seconds, as Kubernetes writes times."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> datetime:
    """The inverse of `format_time`; fractions of a second are accepted. Raises ValueError for what is no time with a
    zone in the years from 1970 to 9998."""
    return moment(text)


def moment_of(text: str | None) -> datetime | None:
    """A time that somebody else may have written; None for nonsense, and where there is none."""
    try:
        return parse_time(text) if text else None
    except ValueError:
        return None


def shortened(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """A status without what no operator writes: conditions before the last 32, and counts of types beyond what a job
    may have. Whoever may write `tfjobs/status` could have 50,000, which take a second to read."""
    conditions, replicas = raw.get("conditions"), raw.get("replicaStatuses")
    found = dict(raw)
    if isinstance(conditions, list) and len(conditions) > _MAX_CONDITIONS:
        found["conditions"] = conditions[-_MAX_CONDITIONS:]
    if isinstance(replicas, Mapping) and len(replicas) > MAX_REPLICA_TYPES:
        found["replicaStatuses"] = dict(islice(replicas.items(), MAX_REPLICA_TYPES))
    return found


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of a job, in the field names of the API."""

    type: str
    status: str
    reason: str
    message: str
    lastUpdateTime: str
    lastTransitionTime: str

    def to_dict(self) -> dict[str, str]:
        """The API's form. A time that somebody left out stays so: an empty one would be refused, and with it all that
        is written of the job."""
        times = {"lastUpdateTime": self.lastUpdateTime, "lastTransitionTime": self.lastTransitionTime}
        told = {"type": self.type, "status": self.status, "reason": self.reason, "message": self.message}
        return told | {name: time for name, time in times.items() if time}


@dataclass(slots=True)
class ReplicaCounts:
    """Pods of one replica type by what they do; pending pods are in none."""

    active: int = 0
    succeeded: int = 0
    failed: int = 0

    def to_dict(self) -> dict[str, int]:
        """The API's form, which leaves out zeros."""
        counts = {"active": self.active, "succeeded": self.succeeded, "failed": self.failed}
        return {name: count for name, count in counts.items() if count}


@dataclass(slots=True)
class JobStatus:
    """A working copy of `status`: parsed, changed by a reconcile, compared with what it was and written back."""

    conditions: list[Condition] = field(default_factory=list)
    replicas: dict[str, ReplicaCounts] = field(default_factory=dict)
    start_time: str | None = None
    completion_time: str | None = None
    last_reconcile_time: str | None = None

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> "JobStatus":
        """Read the API's form, whatever is in it: a user may have written it. What is missing or of a wrong type is as
        if it had not been set, and a time that is none, too."""
        conditions = raw.get("conditions")
        replicas = raw.get("replicaStatuses")
        return cls(
            conditions=[
                Condition(**{name: _text(item, name) for name in _CONDITION})
                for item in (conditions if isinstance(conditions, list) else ())
                if isinstance(item, Mapping) and _text(item, "type")
            ],
            replicas={
                name: ReplicaCounts(**{each: _count(counts, each) for each in _COUNTS})
                for name, counts in (replicas.items() if isinstance(replicas, Mapping) else ())
            },
            start_time=_time(raw, "startTime"),
            completion_time=_time(raw, "completionTime"),
            last_reconcile_time=_time(raw, "lastReconcileTime"),
        )

    def to_dict(self) -> dict[str, Any]:
        """The API's form; times that are not set are left out."""
        found: dict[str, Any] = {
            "conditions": [condition.to_dict() for condition in self.conditions],
            "replicaStatuses": {name: counts.to_dict() for name, counts in self.replicas.items()},
            "startTime": self.start_time,
            "completionTime": self.completion_time,
            "lastReconcileTime": self.last_reconcile_time,
        }
        return {name: value for name, value in found.items() if value is not None}

    def get(self, type_: str) -> Condition | None:
        """The condition of that type, whatever its status."""
        return next((condition for condition in self.conditions if condition.type == type_), None)

    def is_true(self, type_: str) -> bool:
        """True when the job has that condition with status True."""
        condition = self.get(type_)
        return condition is not None and condition.status == "True"

    @property
    def finished(self) -> bool:
        """Succeeded or Failed: nothing runs any more by right."""
        return self.is_true("Succeeded") or self.is_true("Failed")

    def set(self, type_: str, reason: str, message: str, now: str, status: str = "True") -> bool:
        """Set a condition by upstream's rules; returns whether anything changed.

        The same type, status and reason is no change (the message is not refreshed either). Else the condition moves to
        the end; it keeps its transition time if only its reason changed.
        """
        if self.is_true("Failed"):
            return False
        current = self.get(type_)
        if current is not None and (current.status, current.reason) == (status, reason):
            return False
        since = (current.lastTransitionTime if current is not None and current.status == status else now) or now
        self.conditions = [
            self._after(type_, condition) for condition in self.conditions if not _replaces(type_, condition.type)
        ]
        self.conditions.append(Condition(type_, status, reason, message, now, since))
        return True

    @staticmethod
    def _after(type_: str, condition: Condition) -> Condition:
        """What becomes of an older condition: a finished job is not running."""
        if type_ in ("Succeeded", "Failed") and condition.type == "Running":
            return replace(condition, status="False")
        return condition


def _text(raw: Mapping[str, Any], name: str) -> str:
    found = raw.get(name)
    return found if isinstance(found, str) else ""


def _count(raw: object, name: str) -> int:
    """A number of pods; int32 in the API."""
    found = raw.get(name) if isinstance(raw, Mapping) else None
    return min(max(found, 0), _MAX_COUNT) if type(found) is int else 0


def _time(raw: Mapping[str, Any], name: str) -> str | None:
    found = raw.get(name)
    if not isinstance(found, str):
        return None
    try:
        moment(found)
    except ValueError:
        return None
    return found


def _replaces(new: str, old: str) -> bool:
    return new == old or {new, old} == {"Running", "Restarting"}
