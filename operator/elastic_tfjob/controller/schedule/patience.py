"""For how long promised room is kept for pods that do not come, and whose next promise is worth less. Pure.

Room that is kept costs who is promised it nothing: a job whose pods can never start (scheduling gates, a quota that
admits none) would keep it from all others, and the same job under another name could do so again, for ever. So who
says why his pods do not come is not waited for, and promises that failed count against their namespace for a while.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from elastic_tfjob.controller.objects.parsing import Key
from elastic_tfjob.controller.schedule.scheduled_job import ScheduledJob

__all__ = ["FailedPromises"]

# So long a failed promise counts, in seconds.
_REMEMBERED_S: Final = 600.0
# More of them change nothing.
_MOST: Final = 8


@dataclass(frozen=True, slots=True)
class _Hope:
    """What is asked of a look: whether it is a promise that failed, or one that nobody has moved into yet."""

    uid: str
    failed: bool
    open: bool


class FailedPromises:
    """How many promises to each namespace's jobs failed lately. Times are in seconds of one clock."""

    def __init__(self) -> None:
        self._at: dict[str, deque[float]] = {}
        self._told: Mapping[str, int] = {}

    def clear(self) -> None:
        """Forget them."""
        self._at.clear()

    def counts(self, now_s: float) -> Mapping[str, int]:
        """By namespace; those without any are left out."""
        for namespace, times in list(self._at.items()):
            while times and now_s - times[0] >= _REMEMBERED_S:
                times.popleft()
            if not times:
                del self._at[namespace]
        return {namespace: len(times) for namespace, times in self._at.items()}

    def changed(self, keys: Iterable[Key], now_s: float) -> set[Key]:
        """Those of the jobs in whose namespace there are more or fewer than at the last such question."""
        before, self._told = self._told, self.counts(now_s)
        others = {name for name in {*before, *self._told} if before.get(name) != self._told.get(name)}
        return {key for key in keys if key[0] in others} if others else set()

    def follow(self, key: Key, before: ScheduledJob | None, found: ScheduledJob | None, now_s: float) -> None:
        """A look at a job; None: there is no such job (any more)."""
        was, is_ = _hope(before), _hope(found)
        same = was is not None and is_ is not None and was.uid == is_.uid
        failed = is_ is not None and is_.failed and not (same and was is not None and was.failed)
        # A job that goes before any of its pods has a node kept the room in vain, too.
        left = was is not None and was.open and not (same and _goes_on(found)) and not _came(found)
        if failed or left:
            self._at.setdefault(key[0], deque(maxlen=_MOST)).append(now_s)


def _hope(found: ScheduledJob | None) -> _Hope | None:
    if found is None or found.source is None:
        return None
    awaits = found.awaited_since_s is not None
    promised = found.job is not None and awaits and not found.bound and any(found.awaited.values())
    return _Hope(found.source.uid, found.job is None and awaits, promised)


def _goes_on(found: ScheduledJob | None) -> bool:
    """Whether a job is still there and decided for, or is aside as its promise failed."""
    return found is not None and (found.job is not None or found.awaited_since_s is not None)


def _came(found: ScheduledJob | None) -> bool:
    """Whether pods had a node after all: they have it yet, or the job has succeeded meanwhile."""
    if found is None:
        return False
    return bool(found.others) or (found.source is not None and found.source.status().is_true("Succeeded"))
