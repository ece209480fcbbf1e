"""`jobs`: what there is, in one table."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from elastic_tfjob.api.words import did_you_mean
from elastic_tfjob.commands import show
from elastic_tfjob.commands.cluster import Cluster, read_all, run
from elastic_tfjob.controller.kube.errors import Expired, Unavailable
from elastic_tfjob.controller.kube.informer import jobs_path
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.query.rows.jobs import JobRow, job_row
from elastic_tfjob.controller.query.rows.listing import Listing, page
from elastic_tfjob.scheduling.reasons import CODES

__all__ = ["jobs"]

_ALL = 10**9
_AGAIN_S = 1.0


def jobs(
    *,
    all_namespaces: bool,
    output: str | None,
    watch: bool,
    states: tuple[str, ...],
    reasons: tuple[str, ...],
    sort: str,
    reverse: bool,
    **cluster: Any,
) -> None:
    """List TFJobs: state, size, steps, speed, when they end, and why they are as they are."""
    for each in reasons:
        if each not in CODES:
            raise click.BadParameter(f"{each!r} is no reason.{did_you_mean(each, CODES)}", param_hint="--reason")
    listing = Listing(states=frozenset(states), reasons=frozenset(reasons), sort=sort, descending=reverse, limit=_ALL)

    async def do(at: Cluster) -> None:
        namespace = "" if all_namespaces else at.namespace
        if watch:
            await _watch(at, namespace, listing, output, namespaces=all_namespaces)
            return
        rows = [job_row(job) for job in read_all(TFJob.parse, await at.items(jobs_path(namespace)))]
        found = page(rows, listing).items
        if not found and output != "json":
            what = "such TFJobs" if reasons else "TFJobs in these states" if states else "TFJobs"
            click.echo(f"no {what} in {'any namespace' if all_namespaces else f'namespace {namespace}'}", err=True)
            return
        click.echo(_render(found, output, namespaces=all_namespaces))

    run(do, **cluster)


def _render(rows: Sequence[JobRow], output: str | None, *, namespaces: bool) -> str:
    if output == "json":
        return show.as_json(rows)
    now, columns = datetime.now(UTC), {"wide": output == "wide", "namespaces": namespaces}
    return show.table(show.job_head(**columns), [show.job_cells(row, now, **columns) for row in rows])


async def _watch(at: Cluster, namespace: str, listing: Listing, output: str | None, *, namespaces: bool) -> None:
    """The jobs now, and again after each change of one."""
    path = jobs_path(namespace)
    known: dict[str, JobRow] = {}

    def render() -> str:
        return _render(page(known.values(), listing).items, output, namespaces=namespaces)

    with show.following(output) as tell:
        while True:
            first = await at.api.once("GET", path, timeout_s=30)
            known = {job.uid: job_row(job) for job in read_all(TFJob.parse, first.get("items") or ())}
            version = str(first["metadata"]["resourceVersion"])
            tell(render())
            try:
                while True:
                    async for event in at.api.watch(path, version=version):
                        raw = event["object"]
                        version = str(raw["metadata"]["resourceVersion"])
                        if event["type"] == "BOOKMARK":
                            continue
                        known.pop(raw["metadata"]["uid"], None)
                        if event["type"] != "DELETED":
                            known |= {job.uid: job_row(job) for job in read_all(TFJob.parse, [raw])}
                        tell(render())
            except (Expired, Unavailable):
                await asyncio.sleep(_AGAIN_S)
