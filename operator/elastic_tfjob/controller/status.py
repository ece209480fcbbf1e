"""The status of a TFJob and the rules by which its conditions change. Pure.

Upstream's contract: the last element of `conditions` is the job's visible state, so the order is recency; once Failed,
nothing changes any more; Running and Restarting replace each other. Source: tfjob v1 (util/status.go of the
training-operator), restated here case by case in tests/unit/test_status.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

__all__ = ["Condition", "JobStatus", "ReplicaCounts", "format_time", "parse_time"]


def format_time(moment: datetime) -> str:
    """RFC 3339 in whole seconds, as Kubernetes writes times."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> datetime:
    """The inverse of `format_time`; fractions of a second are accepted."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


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
        """The API's form."""
        return {
            "type": self.type,
            "status": self.status,
            "reason": self.reason,
            "message": self.message,
            "lastUpdateTime": self.lastUpdateTime,
            "lastTransitionTime": self.lastTransitionTime,
        }


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
        """Read the API's form; fields that may be missing are."""
        return cls(
            conditions=[
                Condition(
                    type=item["type"],
                    status=item["status"],
                    reason=item.get("reason", ""),
                    message=item.get("message", ""),
                    lastUpdateTime=item.get("lastUpdateTime", ""),
                    lastTransitionTime=item.get("lastTransitionTime", ""),
                )
                for item in raw.get("conditions") or ()
            ],
            replicas={
                name: ReplicaCounts(counts.get("active", 0), counts.get("succeeded", 0), counts.get("failed", 0))
                for name, counts in (raw.get("replicaStatuses") or {}).items()
            },
            start_time=raw.get("startTime"),
            completion_time=raw.get("completionTime"),
            last_reconcile_time=raw.get("lastReconcileTime"),
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
        since = current.lastTransitionTime if current is not None and current.status == status else now
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


def _replaces(new: str, old: str) -> bool:
    return new == old or {new, old} == {"Running", "Restarting"}
