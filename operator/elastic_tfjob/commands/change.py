"""`scale`, `auto`, `suspend`, `resume`: change a job's annotations or its spec.runPolicy."""

import asyncio
import time
from collections.abc import Callable
from math import inf
from typing import Any

import click

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.api.words import count_in_words
from elastic_tfjob.commands import show
from elastic_tfjob.commands.cluster import EXIT_NOT_IN_TIME, Cluster, Failed, run
from elastic_tfjob.commands.job_events import job_events, why_pending
from elastic_tfjob.controller.query.rows.jobs import JobRow, ReadJob, job_row, see

__all__ = ["auto", "resume", "scale", "suspend"]

_TYPES = (("workers", "Worker"), ("ps", "PS"))
_LOOK_S, _EVENTS_S = 1.0, 5.0


def scale(*, job: str, workers: int | None, ps: int | None, wait: bool, timeout: int, **cluster: Any) -> None:
    """Request a size for an elastic TFJob, within its bounds. The job keeps it until `auto`."""
    asked = {of: count for (_, of), count in zip(_TYPES, (workers, ps), strict=True) if count is not None}
    if not asked:
        raise click.UsageError("no size is given; use --workers, --ps, or both")

    async def do(at: Cluster) -> None:
        seen = see(await at.job(job))
        refuse(seen, asked)
        annotations = {f"{PREFIX}target-{kind}": str(asked[of]) for kind, of in _TYPES if of in asked}
        await at.change(seen.job, {"metadata": {"annotations": annotations}})
        click.echo(f"{job}: {show.size(asked)} requested")
        if wait:
            with show.waiting(f"{job}: waiting for {show.size(asked)}") as report:
                row = await _until(at, job, asked, timeout, report)
            click.echo(f"{job}: now has {show.size(row.replicas)}")

    run(do, **cluster)


def auto(*, job: str, **cluster: Any) -> None:
    """Let the operator's profile decide the size of a TFJob again."""

    async def do(at: Cluster) -> None:
        found = await at.job(job)
        names = [f"{PREFIX}target-{kind}" for kind, _ in _TYPES if f"{PREFIX}target-{kind}" in found.annotations]
        if not names:
            click.echo(f"{job}: no size was requested; the profile already decides")
            return
        await at.change(found, {"metadata": {"annotations": dict.fromkeys(names)}})
        click.echo(f"{job}: the profile decides its size again")

    run(do, **cluster)


def suspend(*, job: str, **cluster: Any) -> None:
    """Suspend a TFJob."""
    run(lambda at: _set_suspended(at, job, True), **cluster)


def resume(*, job: str, **cluster: Any) -> None:
    """Resume a suspended TFJob."""
    run(lambda at: _set_suspended(at, job, False), **cluster)


def refuse(seen: ReadJob, asked: dict[str, int]) -> None:
    """Raises Failed if the job cannot have this size. The message says which sizes it can have."""
    request, name = seen.request, seen.job.name
    if request is None:
        raise Failed(f"{name}: {show.plain(seen.problems[0] if seen.problems else 'the spec cannot be read')}")
    if seen.status.finished:
        raise Failed(f"{name} has ended")
    if not request.elastic:
        raise Failed(
            f"{name} is not elastic: it needs the annotation {PREFIX}checkpoint-dir, bounds that differ "
            f"(such as {PREFIX}max-workers), and no {PREFIX}rescale=never (docs/elastic.md)"
        )
    for of, count in asked.items():
        if of not in request.declared:
            raise Failed(f"{name} has no replica type {of}; allowed: {', '.join(sorted(request.declared))}")
        least, most = request.bounds(of)
        if not least <= count <= most:
            kueue = f", as admitted by Kueue (queue {seen.job.queue})" if seen.job.queue else ""
            raise Failed(
                f"{name}: {count_in_words(count, of)} requested, out of bounds; allowed: {least} to {most}{kueue}"
            )


async def _set_suspended(at: Cluster, name: str, wanted: bool) -> None:
    seen = see(await at.job(name))
    if seen.job.queue:
        raise Failed(
            f"{name}: only Kueue suspends and resumes this job (queue {seen.job.queue}); see kubectl -n "
            f"{at.namespace} get workloads"
        )
    if seen.status.finished:
        raise Failed(f"{name} has ended")
    if seen.request is not None and seen.request.spec.run_policy.suspend == wanted:
        click.echo(f"{name} is {'already' if wanted else 'not'} suspended")
        return
    await at.change(seen.job, {"spec": {"runPolicy": {"suspend": wanted}}})
    click.echo(f"{name}: {'suspended' if wanted else 'resumed'}")


async def _until(
    at: Cluster, name: str, asked: dict[str, int], timeout_s: int, report: Callable[[str], None]
) -> JobRow:
    """Wait until the job has the size and no rescale is under way."""
    row: JobRow | None = None
    pending, events_at_s = "", -inf
    try:
        async with asyncio.timeout(timeout_s):
            while row is None or row.phase != "Stable" or any(row.replicas.get(of, 0) != n for of, n in asked.items()):
                await asyncio.sleep(_LOOK_S if row is not None else 0)
                seen = see(await at.job(name))
                row = job_row(seen)
                if row.phase != "Stable":
                    pending = ""
                elif time.monotonic() - events_at_s >= _EVENTS_S:  # the API server searches all of the namespace
                    pending = why_pending(seen, row, (await job_events(at, seen))[0])
                    events_at_s = time.monotonic()
                report(f"{name}: waiting for {show.size(asked)} ({row.state}: {pending or row.reason})")
                if row.state in ("Succeeded", "Failed"):
                    raise Failed(f"{name} ended ({row.state}) before it reached the size")
    except TimeoutError:
        why = show.plain(f"{row.state}: {pending or row.reason}") if row is not None else "the job could not be read"
        raise Failed(f"{name} did not reach the size within {timeout_s} s ({why})", EXIT_NOT_IN_TIME) from None
    return row
