"""Why a pod failed, in a few words that are known beforehand: labels of a metric must not grow. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from elastic_tfjob.api.tfjob import CONTAINER
from elastic_tfjob.controller.objects.parsing import Raw

__all__ = ["OTHER", "REASONS", "Failure", "LastEnd", "failure_of", "last_end", "retried"]

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
# What upstream takes for the exit code of a container that has none: retryable, since it is above 127.
_NO_EXIT_CODE: Final = 0xBEEF
_RETRYABLE_FROM: Final = 128
# Characters of what a program said last that are kept.
_LAST_WORDS: Final = 600


@dataclass(frozen=True, slots=True)
class Failure:
    """`reason` is one of REASONS or OTHER; `exit_code` is a number from 1 to 255, or empty where no container has one
    (a pod that was evicted before it ran)."""

    reason: str
    exit_code: str


@dataclass(frozen=True, slots=True)
class LastEnd:
    """How the container that trains ended last, with an error: its exit code and its last words; and how many of its
    lives are over, of which others may have ended well."""

    deaths: int
    exit_code: int
    words: str = ""

    def __str__(self) -> str:
        return f"the program ended with exit code {self.exit_code}" + (f": {self.words}" if self.words else "")


def retried(policy: str, exit_code: int | None) -> bool:
    """Whether a replica with this restart policy is restarted after its pod failed; else the job fails with it."""
    code = _NO_EXIT_CODE if exit_code is None else exit_code
    return policy in ("OnFailure", "Always") or (policy == "ExitCode" and code >= _RETRYABLE_FROM)


def last_end(status: Raw, trains: str = CONTAINER) -> LastEnd | None:
    """How the container that trains ended last; None where it has not, or not with an error."""
    for container in status.get("containerStatuses") or ():
        if container["name"] != trains:
            continue
        state = container.get("state") or {}
        ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated") or {}
        code = ended.get("exitCode")
        if not isinstance(code, int) or not 0 < code <= _MAX_EXIT_CODE:
            return None
        # The kubelet counts one that is yet to be restarted when it has been.
        down = bool(state) and "running" not in state
        restarts = max(0, container.get("restartCount") or 0)
        return LastEnd(restarts + down, code, _last_words(str(ended.get("message") or "")))
    return None


def _last_words(log: str) -> str:
    """What a program said last, in one line: the exception of the last traceback, else the last lines."""
    lines = [line.rstrip() for line in log[-4 * 1024 :].splitlines() if line.strip()]
    begins = [at for at, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    if begins and (told := [line for line in lines[begins[-1] + 1 :] if not line.startswith((" ", "\t"))]):
        return " ".join(told)[:_LAST_WORDS]
    return " | ".join(line.strip() for line in lines[-10:])[-_LAST_WORDS:]


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
