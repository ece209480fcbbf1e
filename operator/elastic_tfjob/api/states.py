"""Words of the query API and the command line that need no package. Pure."""

from typing import Final, Literal

__all__ = ["JOB_SORTS", "JOB_STATES", "MAX_ADDED_NODES", "JobState"]

JobState = Literal[
    "Pending",
    "Suspended",
    "Waiting",
    "Starting",
    "Running",
    "Rescaling",
    "Stopping",
    "Restarting",
    "Terminating",
    "Succeeded",
    "Failed",
]
JOB_STATES: Final[tuple[JobState, ...]] = JobState.__args__  # type: ignore[attr-defined]

JOB_SORTS: Final = (
    *("name", "created", "state", "eta", "deadline", "slack_s", "steps_per_s", "step", "replicas", "rescales"),
    "waits_since",
)
"""What jobs can be sorted by."""

MAX_ADDED_NODES: Final = 1000
"""Nodes that a what-if question can add."""
