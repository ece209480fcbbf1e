"""The status of a TFJob and the rules by which its conditions change. Pure.

Upstream's contract: the last element of `conditions` is the job's visible state, so they are ordered by recency; once
the job is Failed, nothing changes any more; Running and Restarting replace each other. Source: tfjob v1 (util/status.go
of the training-operator), restated case by case in tests/unit/test_status.py.
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
"""Conditions at most; upstream's controller has five types."""
_MAX_COUNT: Final = 2**31 - 1
_MAX_SELECTOR: Final = 256
"""Characters of a label selector at most; those of the operator have up to 136."""


def format_time(moment: datetime) -> str:
    """Returns a time in RFC 3339 with whole seconds, as Kubernetes writes times."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> datetime:
    """The inverse of `format_time`; fractions of a second are accepted. Raises ValueError for text that is no time with
    a time zone in the years from 1970 to 9998."""
    return moment(text)


def moment_of(text: str | None) -> datetime | None:
    """Reads a time that another client may have written; None if it is invalid or missing."""
    try:
        return parse_time(text) if text else None
    except ValueError:
        return None


def shortened(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a status without parts that no operator writes: conditions before the last 32, and counts of replica
    types beyond a job's limit. A client with write access to `tfjobs/status` could write 50,000, which take a second to
    read."""
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
        """Returns the API's form. A missing time is left out: the API server would refuse an empty one, and with it the
        whole update of the job."""
        times = {"lastUpdateTime": self.lastUpdateTime, "lastTransitionTime": self.lastTransitionTime}
        fields = {"type": self.type, "status": self.status, "reason": self.reason, "message": self.message}
        return fields | {name: time for name, time in times.items() if time}


@dataclass(slots=True)
class ReplicaCounts:
    """Numbers of pods of one replica type, by status; pending pods are not counted. `selector`: the pods' label
    selector, which the subresource `scale` shows; empty for types other than Worker."""

    active: int = 0
    succeeded: int = 0
    failed: int = 0
    selector: str = ""

    def to_dict(self) -> dict[str, int | str]:
        """Returns the API's form, which leaves out zeros."""
        fields: dict[str, int | str] = {
            "active": self.active,
            "succeeded": self.succeeded,
            "failed": self.failed,
            "selector": self.selector,
        }
        return {name: found for name, found in fields.items() if found}


@dataclass(slots=True)
class JobStatus:
    """A working copy of `status`: parsed, changed by a reconcile, compared with the original and written back."""

    conditions: list[Condition] = field(default_factory=list)
    replicas: dict[str, ReplicaCounts] = field(default_factory=dict)
    start_time: str | None = None
    completion_time: str | None = None
    last_reconcile_time: str | None = None

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> "JobStatus":
        """Reads the API's form, with any content, as a user may have written it. Missing values, values of a wrong type
        and invalid times count as not set."""
        conditions = raw.get("conditions")
        replicas = raw.get("replicaStatuses")
        return cls(
            conditions=[
                Condition(**{name: _text(item, name) for name in _CONDITION})
                for item in (conditions if isinstance(conditions, list) else ())
                if isinstance(item, Mapping) and _text(item, "type")
            ],
            replicas={
                name: ReplicaCounts(**{each: _count(counts, each) for each in _COUNTS}, selector=_selector(counts))
                for name, counts in (replicas.items() if isinstance(replicas, Mapping) else ())
            },
            start_time=_time(raw, "startTime"),
            completion_time=_time(raw, "completionTime"),
            last_reconcile_time=_time(raw, "lastReconcileTime"),
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the API's form; times that are not set are left out."""
        found: dict[str, Any] = {
            "conditions": [condition.to_dict() for condition in self.conditions],
            "replicaStatuses": {name: counts.to_dict() for name, counts in self.replicas.items()},
            "startTime": self.start_time,
            "completionTime": self.completion_time,
            "lastReconcileTime": self.last_reconcile_time,
        }
        return {name: value for name, value in found.items() if value is not None}

    def get(self, type_: str) -> Condition | None:
        """Returns the condition of this type, whatever its status; None if there is none."""
        return next((condition for condition in self.conditions if condition.type == type_), None)

    def is_true(self, type_: str) -> bool:
        """Whether the job has a condition of this type with status True."""
        condition = self.get(type_)
        return condition is not None and condition.status == "True"

    @property
    def finished(self) -> bool:
        """Whether the job has succeeded or failed, so that none of its pods should run."""
        return self.is_true("Succeeded") or self.is_true("Failed")

    def set(self, type_: str, reason: str, message: str, now: str, status: str = "True") -> bool:
        """Sets a condition by upstream's rules. Returns whether anything changed.

        The same type, status and reason is no change (the message is not updated either). Otherwise the condition moves
        to the end; it keeps its transition time if only its reason changed.
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
        """Returns an older condition, adjusted to a newer one: a finished job is not running."""
        if type_ in ("Succeeded", "Failed") and condition.type == "Running":
            return replace(condition, status="False")
        return condition


def _text(raw: Mapping[str, Any], name: str) -> str:
    found = raw.get(name)
    return found if isinstance(found, str) else ""


def _count(raw: object, name: str) -> int:
    """Reads a number of pods, an int32 in the API."""
    found = raw.get(name) if isinstance(raw, Mapping) else None
    return min(max(found, 0), _MAX_COUNT) if type(found) is int else 0


def _selector(raw: object) -> str:
    """Reads a label selector. One that is longer than the operator's is not the operator's, and counts as not set."""
    found = _text(raw, "selector") if isinstance(raw, Mapping) else ""
    return found if len(found) <= _MAX_SELECTOR else ""


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
