"""Jobs of which the API server refuses pods for good: a quota, a policy, a name that another pod has."""

import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from elastic_tfjob.controller.job.decision import RefusedPod

__all__ = ["RefusedPods"]

# A pod is tried again at least each minute: of one that was not for longer nobody knows.
_KNOWN_S: Final = 300.0


class _Refusal(NamedTuple):
    """The API server's words, and when the pod was refused first and last."""

    why: str
    first: float
    last: float


class RefusedPods:
    """What was refused, by the uid of a job and the name of its pod."""

    def __init__(self, now: Callable[[], float] = lambda: time.monotonic()) -> None:  # noqa: PLW0108 tests replace it
        self._now = now
        self._at: dict[str, dict[str, _Refusal]] = {}
        self._forgot_at = now()

    def refused(self, uid: str, pod: str, why: str) -> None:
        """It was refused."""
        if self._now() - self._forgot_at >= _KNOWN_S:  # under a profile that decides nothing nobody asks for `jobs`
            self._forget()
        pods, now = self._at.setdefault(uid, {}), self._now()
        known = pods.get(pod)
        first = known.first if known is not None and now - known.last < _KNOWN_S else now
        pods[pod] = _Refusal(why, first, now)

    def made(self, uid: str, pod: str) -> None:
        """It is there after all."""
        if (known := self._at.get(uid)) is not None:
            known.pop(pod, None)

    def of_job(self, uid: str) -> Mapping[str, RefusedPod]:
        """The pods of a job that are refused now, by name."""
        now = self._now()
        return {
            name: RefusedPod(each.why, now - each.first)
            for name, each in self._at.get(uid, {}).items()
            if now - each.last < _KNOWN_S
        }

    @property
    def jobs(self) -> frozenset[str]:
        """The uids of jobs that have such pods now."""
        self._forget()
        return frozenset(self._at)

    def _forget(self) -> None:
        self._forgot_at = self._now()
        oldest = self._forgot_at - _KNOWN_S
        self._at = {
            uid: left
            for uid, pods in self._at.items()
            if (left := {name: each for name, each in pods.items() if each.last > oldest})
        }
