"""Why a pod failed, in a few words that are known beforehand: labels of a metric must not grow. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from elastic_tfjob.api.tfjob import CONTAINER
from elastic_tfjob.controller.objects.parsing import Raw

__all__ = ["OTHER", "REASONS", "Failure", "failure_of"]

OTHER: Final = "Other"
# Of the kubelet and the control plane, about a pod or one of its containers. Whoever may write a status may write any
# other word there.
REASONS: Final = frozenset(
    {
        "ContainerCannotRun",
        "ContainerStatusUnknown",
        "DeadlineExceeded",
        "Error",
        "Evicted",
        "NodeAffinity",
        "NodeLost",
        "NodeShutdown",
        "OOMKilled",
        "OutOfcpu",
        "OutOfmemory",
        "OutOfpods",
        "Preempting",
        "StartError",
        "Terminated",
        "UnexpectedAdmissionError",
    }
)
# What a process on Linux can end with.
_MAX_EXIT_CODE: Final = 255


@dataclass(frozen=True, slots=True)
class Failure:
    """`reason` is one of REASONS or OTHER; `exit_code` is a number from 1 to 255, or empty where no container has one
    (a pod that was evicted before it ran)."""

    reason: str
    exit_code: str


def failure_of(status: Raw, trains: str = CONTAINER) -> Failure | None:
    """Why a pod with this status failed; None where it has not. What is said of the pod goes before what is said of
    its containers: one that is evicted has containers that were killed."""
    if status.get("phase") != "Failed":
        return None
    ended = next(_ended_badly(status, trains), {})
    reason, code = status.get("reason") or ended.get("reason"), ended.get("exitCode")
    return Failure(
        reason if reason in REASONS else OTHER,
        str(code) if isinstance(code, int) and 0 < code <= _MAX_EXIT_CODE else "",
    )


def _ended_badly(status: Raw, trains: str) -> Iterator[dict[str, Any]]:
    """How containers ended that did not end with 0: first the one that trains, then the others, then init ones."""
    found: Iterable[Raw] = status.get("containerStatuses") or ()
    for container in (
        *sorted(found, key=lambda each: each["name"] != trains),
        *(status.get("initContainerStatuses") or ()),
    ):
        ended = (container.get("state") or {}).get("terminated")
        if ended and ended.get("exitCode"):
            yield ended
