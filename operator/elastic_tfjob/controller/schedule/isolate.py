"""Which of many jobs a computation over all of them cannot bear. Knows nothing of what is computed."""

from collections.abc import Awaitable, Callable, Collection, Hashable, Sequence
from typing import TypeVar

__all__ = ["without_offenders"]

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")


async def without_offenders(
    groups: Sequence[Collection[K]], attempt: Callable[[Collection[K]], Awaitable[R]], *, tries: int
) -> tuple[R, dict[K, Exception]]:
    """The result of `attempt` for as many as it can bear, and the error of each that is left out.

    Groups are taken in one after the other, least suspected first; one that fails is taken in by halves, so a single
    offender among n costs about 2 log2 n attempts. When `tries` are spent, whatever has not been taken in is left out.
    Raises what `attempt` raises with nobody at all.
    """
    result = await attempt(())
    taken: list[K] = []
    left_out: dict[K, Exception] = {}
    waiting = [list(group) for group in reversed(groups) if group]
    failure: Exception | None = None
    while waiting:
        group = waiting.pop()
        if tries <= 0:
            left_out.update(dict.fromkeys(group, failure or TimeoutError("no time was left to try it")))
            continue
        tries -= 1
        try:
            result = await attempt((*taken, *group))
        except Exception as error:
            failure = error
            if len(group) == 1:
                left_out[group[0]] = error
            else:
                half = len(group) // 2
                waiting += [group[half:], group[:half]]
        else:
            taken += group
    return result, left_out
