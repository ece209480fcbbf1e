"""Makes one plan for all jobs. If planning fails, makes a plan for all jobs except those that make it fail.

A plan is one computation over all jobs, so one job that triggers a bug would leave every job without a plan. The search
for such jobs is described in docs/designs/isolation.md.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

import structlog

from elastic_tfjob.controller.kube import metrics
from elastic_tfjob.controller.model.job import Key
from elastic_tfjob.controller.planning.job_view import JobView, set_aside
from elastic_tfjob.controller.planning.round import PlannedRound
from elastic_tfjob.scheduling.profile_errors import ProfileError
from elastic_tfjob.scheduling.snapshot import Snapshot

__all__ = ["Jobs", "SearchBudget", "Searched", "bisect_failing_jobs", "plan_with_fallback"]

log = structlog.get_logger(__name__)

Jobs = Mapping[str, tuple[Key, JobView]]
"""All jobs by their names in the Snapshot."""

K = TypeVar("K", bound=tuple[str, object])
"""A job's key; its first element is the namespace."""
R = TypeVar("R")


class Searched(NamedTuple, Generic[K, R]):
    """The result of a search: `result` for all jobs except the `failed` ones, which have their errors, and the jobs
    that were not tried for lack of time. A job has failed only if it failed alone, or when added to jobs that work."""

    result: R
    failed: dict[K, Exception]
    not_tried: list[K]


@dataclass(frozen=True, slots=True)
class SearchBudget:
    """Limits of a search: it makes at most `attempts`, and begins none after `seconds`. Even after `seconds` it may
    continue until it has lasted a few times as long as its longest attempt: each half of a group takes half as long as
    the group, so every search finds at least one failing job."""

    attempts: int
    seconds: float
    clock: Callable[[], float] = time.monotonic

    def begin_half(self) -> Callable[[], bool]:
        """Starts one half of the budget. The returned function must be called before each attempt, and returns whether
        this half allows it."""
        begun = last = self.clock()
        asked, longest = 0, 0.0

        def allows() -> bool:
            nonlocal asked, last, longest
            now = self.clock()
            asked, last, longest = asked + 1, now, max(longest, now - last)
            in_time = now - begun <= max(self.seconds / 2, _LONGEST_ATTEMPTS * longest)
            return asked <= max(1, self.attempts // 2) and in_time

        return allows


_LONGEST_ATTEMPTS: Final = 4
# Many attempts are affordable, since most attempts of a search plan only few jobs.
_BUDGET: Final = SearchBudget(attempts=2000, seconds=6.0)


async def plan_with_fallback(
    plan: Callable[[Mapping[str, JobView], Snapshot | None], PlannedRound],
    jobs: Jobs,
    tried: Collection[Key],
    *,
    changed: Collection[Key],
    doubtful: Collection[Key],
    first: Container[Key],
    previous: Snapshot | None,
    raised: Callable[[ProfileError], None],
) -> Searched[Key, PlannedRound]:
    """The plan for the `tried` jobs, derived from the `previous` round's Snapshot; all other jobs keep what they have.

    If planning fails, a search finds the jobs that make it fail. It suspects jobs that have `changed` since the last
    round more than unchanged ones, and `doubtful` jobs most: these are tried alone before any plan includes them. Jobs
    in `first` are tried first within their namespace. Plans are computed in a thread. `raised` is called with an error
    of the profile that makes the plan for all jobs fail.
    """
    kept: dict[str, JobView] = {}

    def plan_of(chosen: set[Key], evolved: Snapshot | None) -> PlannedRound:
        considered: dict[str, JobView] = {}
        for name, (key, view) in jobs.items():
            if key not in chosen and name not in kept:
                kept[name] = set_aside(view)
            considered[name] = view if key in chosen else kept[name]
        return plan(considered, evolved)

    async def attempt(keys: Collection[Key]) -> PlannedRound:
        """Plans these jobs. A plan of more than half of the jobs is derived from the last Snapshot, unless the attempt
        with that Snapshot failed."""
        nonlocal previous
        if 2 * len(keys) <= len(tried):
            return await asyncio.to_thread(plan_of, set(keys), None)
        evolved, previous = previous, None
        planned = await asyncio.to_thread(plan_of, set(keys), evolved)
        previous = planned.snapshot
        return planned

    if not doubtful:
        try:
            return Searched(await attempt(tried), {}, [])
        except ProfileError as error:
            raised(error)
            metrics.SCHEDULING_FAILURES.inc()
        except Exception:
            log.exception("bug: planning failed")
            metrics.SCHEDULING_FAILURES.inc()
    known = [key for key in tried if key not in changed and key not in doubtful]
    new = [key for key in tried if key in changed and key not in doubtful]
    groups = [sorted(keys, key=lambda key: (key not in first, key)) for keys in (known, new, doubtful)]
    found = await bisect_failing_jobs(groups, attempt, _BUDGET)
    if found.failed or found.not_tried:
        log.warning("planning fails with some jobs", failed=len(found.failed), not_tried=len(found.not_tried))
        if doubtful:  # otherwise the failure is counted already
            metrics.SCHEDULING_FAILURES.inc()
    return found


# -- The search --------------------------------------------------------------------------------------------------------
# It finds the failing namespaces first, and then searches them in turns, so that a namespace with many failing jobs
# uses up only its own turns. Most attempts are of few jobs, which is cheap.

_SHARED: Final = ""
"""Used as the namespace of groups with jobs of several namespaces."""


@dataclass(slots=True, eq=False)
class _Group(Generic[K]):
    """Jobs that are tried together, in parts with one namespace each. `rank`: how much they are suspected. `fails`: the
    group is known to fail without an attempt, since it is one half of a group that failed and the `other` half works.
    """

    parts: Sequence[Sequence[K]]
    rank: int = 0
    fails: bool = False
    other: "_Group[K] | None" = None

    @property
    def keys(self) -> list[K]:
        return [key for part in self.parts for key in part]

    @property
    def namespace(self) -> str:
        return self.parts[0][0][0] if len(self.parts) == 1 else _SHARED

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def halves(self) -> tuple["_Group[K]", "_Group[K]"]:
        """Splits the group between namespaces if it has several, else between jobs."""
        whole: Sequence[Sequence[K]] = self.parts
        if len(whole) > 1:
            k = len(whole) // 2
            first, second = _Group(whole[:k], self.rank), _Group(whole[k:], self.rank)
        else:
            k = len(whole[0]) // 2
            first, second = _Group([whole[0][:k]], self.rank), _Group([whole[0][k:]], self.rank)
        first.other, second.other = second, first
        return first, second


async def bisect_failing_jobs(
    ranked: Sequence[Iterable[K]], attempt: Callable[[Collection[K]], Awaitable[R]], budget: SearchBudget
) -> Searched[K, R]:
    """The result of `attempt` for as many jobs as possible. `ranked`: lists of jobs, the least suspected list first;
    jobs in a list are tried in its order.

    First, groups are tried alone, and each group that fails is halved: one failing job among n costs about 2 log2 n
    small attempts. Then all groups that work alone are tried together. If that fails, they are added in halves, and a
    job that fails when it is added has failed, too. Each phase has half of the budget.

    If no group works, `attempt` is called without jobs; its error is raised.
    """
    works: list[_Group[K]] = []
    base: tuple[_Group[K], R] | None = None

    def least_suspected(group: _Group[K]) -> tuple[int, int]:
        return group.rank, -len(group)

    async def alone(group: _Group[K]) -> None:
        nonlocal base
        result = await attempt(group.keys)
        works.append(group)
        if base is None or least_suspected(group) < least_suspected(base[0]):
            base = group, result  # only one result is kept, since results are large

    groups = [_Group(parts, rank) for rank, keys in enumerate(ranked) if (parts := _by_namespace(keys))]
    failed, not_tried = await _sift(groups, alone, budget.begin_half())
    if base is None:
        return Searched(await attempt(()), failed, not_tried)

    first, result = base
    added = first.keys

    async def beside(group: _Group[K]) -> None:
        nonlocal result
        result = await attempt([*added, *group.keys])
        added.extend(group.keys)

    rest = [part for group in sorted(works, key=least_suspected) if group is not first for part in group.parts]
    failed_beside, not_added = await _sift([_Group(rest)] if rest else [], beside, budget.begin_half())
    return Searched(result, {**failed, **failed_beside}, [*not_tried, *not_added])


def _by_namespace(keys: Iterable[K]) -> list[list[K]]:
    parts: dict[str, list[K]] = {}
    for key in keys:
        parts.setdefault(key[0], []).append(key)
    return list(parts.values())


async def _sift(
    groups: Sequence[_Group[K]], attempt: Callable[[_Group[K]], Awaitable[None]], allows: Callable[[], bool]
) -> tuple[dict[K, Exception], list[K]]:
    """Attempts these groups, and the halves of each group that fails. Returns the failed jobs with their errors, and
    the jobs that the budget did not allow to try.

    Every second turn is for groups of several namespaces while there are any, so that namespaces without failing jobs
    are done early. The other turns go to the namespace with the fewest turns so far. A namespace alternates between its
    largest group, so that many jobs are soon known to work, and its smallest, so that a failing job is soon found.
    """
    waiting: dict[str, list[_Group[K]]] = {_SHARED: list(reversed(groups))} if groups else {}
    turns = Counter[str]()
    failed: dict[K, Exception] = {}
    while waiting:
        shared = _SHARED in waiting and (len(waiting) == 1 or 2 * turns[_SHARED] <= turns.total())
        turn = _SHARED if shared else min((name for name in waiting if name != _SHARED), key=turns.__getitem__)
        stack = waiting[turn]
        choose = max if turns[turn] % 2 else min
        group = stack.pop(choose(range(len(stack) - 1, -1, -1), key=lambda k: len(stack[k])))
        fails = group.fails
        if not fails or len(group) == 1:  # a job has failed only if it was tried itself
            if not allows():
                stack.append(group)
                break
            turns[turn] += 1
            try:
                await attempt(group)
            except Exception as error:
                fails = True
                if len(group) == 1:
                    failed[group.keys[0]] = error
            else:
                fails = False
                if group.other is not None:
                    group.other.fails = True
        if fails and len(group) > 1:
            waiting.setdefault(group.namespace, []).extend(reversed(group.halves()))
        if not stack:
            del waiting[turn]
    return failed, [key for stack in waiting.values() for group in reversed(stack) for key in group.keys]
