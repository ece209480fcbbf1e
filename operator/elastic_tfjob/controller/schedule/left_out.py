"""Jobs that are left out of scheduling: until when each, and for how long the next time."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from elastic_tfjob.controller.objects.parsing import Key

__all__ = ["LeftOut"]

# A job that was left out is looked at again after so long, then after twice as long, and so on.
_ASIDE_S: Final = 30.0
_MAX_ASIDE_S: Final = 3600.0


@dataclass(slots=True)
class _Aside:
    """Until when a job is left out (monotonic seconds). It is kept for a while after, for `delay_s` to grow."""

    delay_s: float
    until: float


class LeftOut:
    """The jobs that nothing is decided for."""

    def __init__(self) -> None:
        self._jobs: dict[Key, _Aside] = {}
        self._suspected: dict[str, float] = {}
        """Until when namespaces are that had a job which made the core fail (monotonic seconds)."""

    def __contains__(self, key: Key) -> bool:
        known = self._jobs.get(key)
        return known is not None and time.monotonic() < known.until

    def add(self, key: Key) -> None:
        """Leave a job out for a while; longer, if it is not the first time."""
        known = self._jobs.get(key)
        delay_s = _ASIDE_S if known is None else min(2 * known.delay_s, _MAX_ASIDE_S)
        self._jobs[key] = _Aside(delay_s, time.monotonic() + delay_s)

    def suspect(self, namespace: str) -> None:
        """Look at what changes in a namespace by itself for a while, since one of its jobs made the core fail."""
        self._suspected[namespace] = time.monotonic() + _MAX_ASIDE_S

    @property
    def suspected(self) -> set[str]:
        """The namespaces of which what changes is looked at by itself."""
        now = time.monotonic()
        self._suspected = {namespace: until for namespace, until in self._suspected.items() if now < until}
        return set(self._suspected)

    def forget(self, key: Key) -> None:
        """A job is gone, or what was wrong with it may be mended."""
        self._jobs.pop(key, None)

    @property
    def due(self) -> set[Key]:
        """Those whose time is over, which are to be tried again."""
        now = time.monotonic()
        return {key for key, known in self._jobs.items() if known.until <= now}

    def worked(self, keys: Iterable[Key]) -> None:
        """These were decided for. After as long as they were left out, what was wrong with them is forgotten."""
        now = time.monotonic()
        for key in keys:
            known = self._jobs.get(key)
            if known is not None and now > known.until + known.delay_s:
                del self._jobs[key]
