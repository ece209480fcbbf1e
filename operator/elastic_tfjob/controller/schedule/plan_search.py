"""One plan for all jobs; where the core fails, for all but the jobs that make it fail, which are searched for."""

import asyncio
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from typing import Final, NamedTuple

import structlog

from elastic_tfjob.controller.kube import metrics
from elastic_tfjob.controller.objects.parsing import Key
from elastic_tfjob.controller.schedule.isolate import Budget, without_offenders
from elastic_tfjob.controller.schedule.round import Planned
from elastic_tfjob.controller.schedule.scheduled_job import ScheduledJob, set_aside
from elastic_tfjob.scheduling.snapshot import Snapshot

__all__ = ["Jobs", "Searched", "plan_with_search"]

log = structlog.get_logger(__name__)

Jobs = Mapping[str, tuple[Key, ScheduledJob]]
"""All jobs by their names in the core."""

# What a search for the jobs that make the core fail may take. Most of its attempts are rounds of few jobs.
_SEARCH: Final = Budget(tries=2000, seconds=6.0)


class Searched(NamedTuple):
    """A plan, with the error of each job that it leaves out, and those that there was no time to try."""

    planned: Planned
    failed: dict[Key, Exception]
    untried: set[Key]


async def plan_with_search(
    plan: Callable[[Mapping[str, ScheduledJob], Snapshot | None], Planned],
    jobs: Jobs,
    tried: Collection[Key],
    *,
    changed: Collection[Key],
    doubtful: Collection[Key],
    first: Container[Key],
    previous: Snapshot | None,
) -> Searched:
    """What `plan` makes of the jobs that are `tried`, from the `previous` round's Snapshot; the others only hold what
    they have. Where it fails, the search looks last at those that it bore in the last round, which have not `changed`.
    Jobs in doubt are not even asked for with the others before they are tried by themselves. Of the jobs of one
    namespace those in `first` come first. Computes in a thread."""
    aside: dict[str, ScheduledJob] = {}

    def of(chosen: set[Key], evolved: Snapshot | None) -> Planned:
        considered: dict[str, ScheduledJob] = {}
        for name, (key, found) in jobs.items():
            if key not in chosen and name not in aside:
                aside[name] = set_aside(found)
            considered[name] = found if key in chosen else aside[name]
        return plan(considered, evolved)

    async def attempt(keys: Collection[Key]) -> Planned:
        """From the last round where most jobs are asked for. Where that fails, the next is from scratch."""
        nonlocal previous
        if 2 * len(keys) <= len(tried):
            return await asyncio.to_thread(of, set(keys), None)
        evolved, previous = previous, None
        planned = await asyncio.to_thread(of, set(keys), evolved)
        previous = planned.snapshot
        return planned

    if not doubtful:
        try:
            return Searched(await attempt(tried), {}, set())
        except Exception:
            log.exception("bug: the core failed")
            metrics.SCHEDULING_FAILURES.inc()
    known = [key for key in tried if key not in changed and key not in doubtful]
    new = [key for key in tried if key in changed and key not in doubtful]
    groups = [_by_namespace(keys, first=first) for keys in (known, new, doubtful)]
    isolated = await without_offenders(groups, attempt, _SEARCH)
    if isolated.offenders or isolated.untried:
        log.warning("jobs make the core fail", offenders=len(isolated.offenders), untried=len(isolated.untried))
        if doubtful:  # else it is counted already
            metrics.SCHEDULING_FAILURES.inc()
    return Searched(isolated.result, dict(isolated.offenders), set(isolated.untried))


def _by_namespace(keys: Iterable[Key], *, first: Container[Key]) -> dict[str, list[Key]]:
    """The same order each time, with these first."""
    found: dict[str, list[Key]] = {}
    for key in sorted(keys, key=lambda key: (key not in first, key)):
        found.setdefault(key[0], []).append(key)
    return found
