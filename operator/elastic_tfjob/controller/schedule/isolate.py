"""Which of many jobs a computation over all of them cannot bear. Knows nothing of what is computed.

Jobs belong to tenants. The search finds tenants first, and looks inside those that fail in turns, so that a tenant with
many offenders uses up its own turns and nobody else's. Most attempts are of few jobs by themselves, which is cheap.
"""

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

__all__ = ["Budget", "Isolated", "without_offenders"]

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
class Budget:
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


@dataclass(slots=True)
class _Group(Generic[T, K]):
    """Jobs that are tried together. `first`: of two halves of what failed; if it works, the other one next on the stack
    `fails`, which need not be tried."""

    parts: Sequence[tuple[T, Sequence[K]]]
    fails: bool = False
    first: bool = False

    @property
    def keys(self) -> list[K]:
        return [key for _, keys in self.parts for key in keys]

    def halves(self) -> tuple["_Group[T, K]", "_Group[T, K]"]:
        """Between tenants where there are several, else between jobs."""
        if len(self.parts) > 1:
            k = len(self.parts) // 2
            return _Group(self.parts[:k], first=True), _Group(self.parts[k:])
        ((tenant, keys),) = self.parts
        k = len(keys) // 2
        return _Group([(tenant, keys[:k])], first=True), _Group([(tenant, keys[k:])])


async def without_offenders(
    groups: Sequence[Mapping[T, Sequence[K]]],
    attempt: Callable[[Collection[K]], Awaitable[R]],
    budget: Budget,
) -> Isolated[K, R]:
    """The result of `attempt` for as many jobs as it can bear. Each group has jobs by tenant, the least suspected group
    first, and first in it whoever is to be tried first.

    First jobs are sifted by themselves: a group that fails is halved, so one offender among n costs about 2 log2 n
    small attempts. Then all that work by themselves are tried together. Where that fails, they are taken in by halves,
    and a job that fails beside those taken in before is an offender, too. Each part has half of the budget.

    Raises what `attempt` raises with nobody at all, where nothing works.
    """
    works: list[_Group[T, K]] = []
    results: list[R] = []

    async def alone(group: _Group[T, K]) -> None:
        result = await attempt(group.keys)
        works.append(group)
        if not results:  # the jobs of later ones are tried together anyway, and results may be large
            results.append(result)

    parts = [[(tenant, keys) for tenant, keys in group.items() if keys] for group in groups]
    offenders, untried = await _sift([_Group(each) for each in parts if each], alone, budget.half())
    if not works:
        return Isolated(await attempt(()), offenders, untried)

    taken = works[0].keys

    async def beside(group: _Group[T, K]) -> None:
        results[:] = [await attempt([*taken, *group.keys])]
        taken.extend(group.keys)

    rest = _together(works[1:])
    if rest.parts:
        others, not_reached = await _sift([rest], beside, budget.half())
        offenders |= others
        untried += not_reached
    return Isolated(results[0], offenders, untried)


def _together(groups: Iterable[_Group[T, K]]) -> _Group[T, K]:
    by_tenant: dict[T, list[K]] = {}
    for group in groups:
        for tenant, keys in group.parts:
            by_tenant.setdefault(tenant, []).extend(keys)
    return _Group(list(by_tenant.items()))


async def _sift(
    groups: Sequence[_Group[T, K]], attempt: Callable[[_Group[T, K]], Awaitable[None]], room: Callable[[], bool]
) -> tuple[dict[K, Exception], list[K]]:
    """Attempt these groups, and the halves of each that fails: which jobs fail, and which there was no room to try.

    Every other turn is for groups of several tenants while there are such, so that tenants without offenders are soon
    done with. The others go to whichever tenant has used the fewest.
    """
    stacks: dict[Hashable, list[_Group[T, K]]] = {_SHARED: list(reversed(groups))} if groups else {}
    turns = Counter[Hashable]()
    offenders: dict[K, Exception] = {}
    while stacks:
        shared = _SHARED in stacks and (len(stacks) == 1 or 2 * turns[_SHARED] <= turns.total())
        whose = _SHARED if shared else min((of for of in stacks if of is not _SHARED), key=turns.__getitem__)
        stack = stacks[whose]
        group = stack.pop()
        fails = group.fails
        if not fails or len(group.keys) == 1:  # nobody is an offender by what follows from others
            if not room():
                stack.append(group)
                break
            turns[whose] += 1
            try:
                await attempt(group)
            except Exception as error:
                fails = True
                if len(group.keys) == 1:
                    offenders[group.keys[0]] = error
            else:
                fails = False
                if group.first:
                    stack[-1].fails = True
        if fails and len(group.keys) > 1:
            inside = stack if len(group.parts) > 1 else stacks.setdefault(group.parts[0][0], [])
            inside.extend(reversed(group.halves()))
        if not stack:
            del stacks[whose]
    return offenders, [key for stack in stacks.values() for group in reversed(stack) for key in group.keys]
