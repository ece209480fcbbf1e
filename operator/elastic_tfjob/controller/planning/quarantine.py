"""Jobs that are left out of scheduling: until when each, and for how long the next time."""

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from elastic_tfjob.controller.model.job import Key

__all__ = ["Isolated", "Quarantine", "SearchBudget", "bisect_failing_jobs"]

# A job that was left out is looked at again after so long, then after twice as long, and so on.
_ASIDE_S: Final = 30.0
_MAX_ASIDE_S: Final = 3600.0


@dataclass(slots=True)
class _Quarantined:
    """Until when a job is left out (monotonic seconds). It is kept for a while after, for `delay_s` to grow."""

    delay_s: float
    until: float


class Quarantine:
    """The jobs that nothing is decided for."""

    def __init__(self) -> None:
        self._jobs: dict[Key, _Quarantined] = {}
        self._suspected: dict[str, float] = {}
        """Until when namespaces are that had a job which made the core fail (monotonic seconds)."""

    def __contains__(self, key: Key) -> bool:
        known = self._jobs.get(key)
        return known is not None and time.monotonic() < known.until

    def add(self, key: Key) -> None:
        """Leave a job out for a while; longer, if it is not the first time."""
        known = self._jobs.get(key)
        delay_s = _ASIDE_S if known is None else min(2 * known.delay_s, _MAX_ASIDE_S)
        self._jobs[key] = _Quarantined(delay_s, time.monotonic() + delay_s)

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


# -- Which of many jobs a computation over all of them cannot bear -----------------------------------------------------
# Knows nothing of what is computed.
#
# Jobs belong to tenants. The search finds tenants first, and looks inside those that fail in turns, so that a tenant
# with many offenders uses up its own turns and nobody else's. Most attempts are of few jobs by themselves, which is
# cheap.

T = TypeVar("T", bound=Hashable)
K = TypeVar("K", bound=Hashable)
R = TypeVar("R")

_SHARED: Final = object()
"""Whose turn it is where groups have jobs of several tenants."""
_LONGEST: Final = 4


@dataclass(frozen=True, slots=True)
class Isolated(Generic[K, R]):
    """The result for all jobs but the offenders, with the error of each, and those there was no time to try. Only an
    offender was tried by itself, or with jobs that work, and failed."""

    result: R
    offenders: Mapping[K, Exception]
    untried: Collection[K]


@dataclass(frozen=True, slots=True)
class SearchBudget:
    """How many attempts a search may make, and for how many seconds it may begin new ones: at least for a few times as
    long as its longest attempt. Halves take half as long, so that one offender at least is found in that time."""

    tries: int
    seconds: float
    clock: Callable[[], float] = time.monotonic

    def half(self) -> Callable[[], bool]:
        """Asked before each attempt from now on: whether half of the budget has room for one more."""
        begun = last = self.clock()
        asked, longest = 0, 0.0

        def room() -> bool:
            nonlocal asked, last, longest
            now = self.clock()
            asked, last, longest = asked + 1, now, max(longest, now - last)
            return asked <= max(1, self.tries // 2) and now - begun <= max(self.seconds / 2, _LONGEST * longest)

        return room


@dataclass(slots=True, eq=False)
class _Group(Generic[T, K]):
    """Jobs that are tried together, by tenant. `rank`: how much they are suspected. `fails`: that follows from what was
    tried before, since the `other` half of what failed works."""

    parts: Sequence[tuple[T, Sequence[K]]]
    rank: int = 0
    fails: bool = False
    other: "_Group[T, K] | None" = None

    @property
    def keys(self) -> list[K]:
        return [key for _, keys in self.parts for key in keys]

    def __len__(self) -> int:
        return sum(len(keys) for _, keys in self.parts)

    def halves(self) -> tuple["_Group[T, K]", "_Group[T, K]"]:
        """Between tenants where there are several, else between jobs."""
        halves: tuple[Sequence[tuple[T, Sequence[K]]], ...]
        if len(self.parts) > 1:
            k = len(self.parts) // 2
            halves = self.parts[:k], self.parts[k:]
        else:
            ((tenant, keys),) = self.parts
            k = len(keys) // 2
            halves = [(tenant, keys[:k])], [(tenant, keys[k:])]
        first, second = (_Group(half, self.rank) for half in halves)
        first.other, second.other = second, first
        return first, second


async def bisect_failing_jobs(
    groups: Sequence[Mapping[T, Sequence[K]]],
    attempt: Callable[[Collection[K]], Awaitable[R]],
    budget: SearchBudget,
) -> Isolated[K, R]:
    """The result of `attempt` for as many jobs as it can bear. Each group has jobs by tenant, the least suspected group
    first, and first in it whoever is to be tried first.

    First jobs are sifted by themselves: a group that fails is halved, so one offender among n costs about 2 log2 n
    small attempts. Then all that work by themselves are tried together. Where that fails, they are taken in by halves,
    and a job that fails beside those taken in before is an offender, too. Each part has half of the budget.

    Raises what `attempt` raises with nobody at all, where nothing works.
    """
    works: list[_Group[T, K]] = []
    base: tuple[_Group[T, K], R] | None = None

    def before(group: _Group[T, K]) -> tuple[int, int]:
        return group.rank, -len(group)

    async def alone(group: _Group[T, K]) -> None:
        nonlocal base
        result = await attempt(group.keys)
        works.append(group)
        if base is None or before(group) < before(base[0]):  # of the others their jobs are enough: results are large
            base = group, result

    parts = [[(tenant, keys) for tenant, keys in group.items() if keys] for group in groups]
    ranked = [_Group(each, rank) for rank, each in enumerate(parts) if each]
    offenders, untried = await _sift(ranked, alone, budget.half())
    if base is None:
        return Isolated(await attempt(()), offenders, untried)

    least, result = base
    taken = least.keys

    async def beside(group: _Group[T, K]) -> None:
        nonlocal result
        result = await attempt([*taken, *group.keys])
        taken.extend(group.keys)

    rest = [part for group in sorted(works, key=before) if group is not least for part in group.parts]
    others, not_reached = await _sift([_Group(rest)] if rest else [], beside, budget.half())
    return Isolated(result, {**offenders, **others}, [*untried, *not_reached])


async def _sift(
    groups: Sequence[_Group[T, K]], attempt: Callable[[_Group[T, K]], Awaitable[None]], room: Callable[[], bool]
) -> tuple[dict[K, Exception], list[K]]:
    """Attempt these groups, and the halves of each that fails: which jobs fail, and which there was no room to try.

    Every other turn is for groups of several tenants while there are such, so that tenants without offenders are soon
    done with. The others go to whichever tenant has used the fewest. Of a tenant's turns every other one is for its
    largest group, so that many jobs are soon known to work, and the others for its smallest, so that some offender is
    soon found whatever there are.
    """
    waiting: dict[Hashable, list[_Group[T, K]]] = {_SHARED: list(reversed(groups))} if groups else {}
    turns = Counter[Hashable]()
    offenders: dict[K, Exception] = {}
    while waiting:
        shared = _SHARED in waiting and (len(waiting) == 1 or 2 * turns[_SHARED] <= turns.total())
        whose = _SHARED if shared else min((of for of in waiting if of is not _SHARED), key=turns.__getitem__)
        stack = waiting[whose]
        choose = max if turns[whose] % 2 else min
        group = stack.pop(choose(range(len(stack) - 1, -1, -1), key=lambda k: len(stack[k])))
        fails = group.fails
        if not fails or len(group) == 1:  # nobody is an offender by what follows from others
            if not room():
                stack.append(group)
                break
            turns[whose] += 1
            try:
                await attempt(group)
            except Exception as error:
                fails = True
                if len(group) == 1:
                    offenders[group.keys[0]] = error
            else:
                fails = False
                if group.other is not None:
                    group.other.fails = True
        if fails and len(group) > 1:
            inside = stack if len(group.parts) > 1 else waiting.setdefault(group.parts[0][0], [])
            inside.extend(reversed(group.halves()))
        if not stack:
            del waiting[whose]
    return offenders, [key for stack in waiting.values() for group in reversed(stack) for key in group.keys]
