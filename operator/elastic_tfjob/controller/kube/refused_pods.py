"""Jobs of which the API server refuses pods for good: a quota, a policy, a name that another pod has."""

import time
from collections.abc import Callable
from typing import Final

__all__ = ["RefusedPods"]

# A pod is tried again at least each minute: of one that was not for longer nobody knows.
_KNOWN_S: Final = 300.0


class RefusedPods:
    """When each pod was refused last, by its job's uid and its own name."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._at: dict[str, dict[str, float]] = {}
        self._forgot_at = now()

    def refused(self, uid: str, pod: str) -> None:
        """It was refused."""
        if self._now() - self._forgot_at >= _KNOWN_S:  # under a profile that decides nothing nobody asks for `jobs`
            self._forget()
        self._at.setdefault(uid, {})[pod] = self._now()

    def made(self, uid: str, pod: str) -> None:
        """It is there after all."""
        if (known := self._at.get(uid)) is not None:
            known.pop(pod, None)

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
            if (left := {name: at for name, at in pods.items() if at > oldest})
        }
