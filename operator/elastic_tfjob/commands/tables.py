"""`jobs` and `top`: tables of TFJobs, and of held, borrowed and free CPU per node or per job."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from elastic_tfjob.api.tfjob import CONTROLLER_NAME, OPERATOR_NAME_LABEL
from elastic_tfjob.commands import show
from elastic_tfjob.commands.cluster import Cluster, path_of, read_all, run
from elastic_tfjob.controller.kube.errors import Expired, Unavailable
from elastic_tfjob.controller.kube.informer import jobs_path
from elastic_tfjob.controller.model.cluster import ACTIVE_AND_BOUND, ForeignPod, KubeNode
from elastic_tfjob.controller.model.job import Key, TFJob
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.status import moment_of
from elastic_tfjob.controller.query.rows.jobs import JobRow, job_row, see
from elastic_tfjob.controller.query.rows.listing import Listing, NodeRow, node_rows, page

__all__ = ["jobs", "top"]

# -- jobs --------------------------------------------------------------------------------------------------------------

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
    """List TFJobs with their state, size, steps, speed, expected end, and the reason for state and size."""
    listing = Listing(states=frozenset(states), reasons=frozenset(reasons), sort=sort, descending=reverse, limit=_ALL)

    async def do(at: Cluster) -> None:
        namespace = "" if all_namespaces else at.namespace
        if watch:
            await _watch(at, namespace, listing, output, namespaces=all_namespaces)
            return
        rows = [job_row(job) for job in read_all(TFJob.parse, await at.items(jobs_path(namespace)))]
        found, _ = page(rows, listing)
        if not found and output != "json":
            what = "matching TFJobs" if states or reasons else "TFJobs"
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
        rows, _ = page(known.values(), listing)
        return _render(rows, output, namespaces=namespaces)

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


# -- top ---------------------------------------------------------------------------------------------------------------

_OURS = f"{OPERATOR_NAME_LABEL}={CONTROLLER_NAME}"
_OTHERS = f"{OPERATOR_NAME_LABEL}!={CONTROLLER_NAME}"
# Each refresh reads all pods.
_LOOK_S = 5.0


def top(*, what: str, all_namespaces: bool, output: str | None, watch: bool, **cluster: Any) -> None:
    """Show the CPU that TFJobs hold, and how much of it they borrowed beyond their requests."""

    async def look(at: Cluster) -> str:
        if what == "nodes":
            return await _render_nodes(at, output)
        return await _render_jobs(at, "" if all_namespaces else at.namespace, output)

    async def do(at: Cluster) -> None:
        text = await look(at)
        if not watch:
            click.echo(text)
            return
        with show.following(output) as tell:
            tell(text)
            while True:
                await asyncio.sleep(_LOOK_S)
                before, text = text, await look(at)
                if text != before:
                    tell(text)

    run(do, **cluster)


async def _render_nodes(at: Cluster, output: str | None) -> str:
    rows = await _nodes(at)
    head = ["NODE", "STATE", "CPU", "HELD", "BORROWED", "OTHERS", "FREE", "REPLICAS", "JOBS"]
    return show.as_json(rows) if output == "json" else show.table(head, map(_cells, rows))


async def _render_jobs(at: Cluster, namespace: str, output: str | None) -> str:
    found = await _jobs(at, namespace)
    if output == "json":
        return show.as_json(found)
    head = ["NAMESPACE", "JOB", "REPLICAS", "HELD", "BORROWED", "NODES"]
    cells = [
        [
            each["namespace"],
            each["job"],
            str(each["replicas"]),
            _cores(each["held"]),
            _cores(each["lent"]),
            ", ".join(each["nodes"]),
        ]
        for each in found
    ]
    return show.table(head, cells)


async def _requested(at: Cluster, namespace: str) -> dict[Key, dict[str, int]]:
    """Millicores that templates request, by job and lower-case replica type."""
    found = {}
    for job in read_all(TFJob.parse, await at.items(jobs_path(namespace))):
        seen = see(job)
        requests = seen.request.requests if seen.request is not None else {}
        found[seen.job.key] = {name.lower(): amount.cpu_millicores for name, amount in requests.items()}
    return found


async def _nodes(at: Cluster) -> list[NodeRow]:
    requested = await _requested(at, "")
    nodes = read_all(KubeNode.parse, await at.items(path_of("", "nodes")))
    pods = read_all(Pod.parse, await at.items(path_of("", "pods"), labelSelector=_OURS))
    others = await at.items(path_of("", "pods"), labelSelector=_OTHERS, fieldSelector=ACTIVE_AND_BOUND)
    foreign = read_all(ForeignPod.parse, others)
    return node_rows(nodes, pods, foreign, lambda key, kind: requested.get(key, {}).get(kind), None)


async def _jobs(at: Cluster, namespace: str) -> list[dict[str, Any]]:
    requested = await _requested(at, namespace)
    pods = defaultdict[Key, list[Pod]](list)
    for pod in read_all(Pod.parse, await at.items(path_of(namespace, "pods"), labelSelector=_OURS)):
        if pod.node and not pod.ended:
            pods[pod.key].append(pod)
    found = []
    for key, held in sorted(pods.items(), key=lambda each: -sum(pod.requests.cpu_millicores for pod in each[1])):
        declared = requested.get(key, {})
        lent = sum(
            max(0, pod.requests.cpu_millicores - declared.get(pod.replica_type, pod.requests.cpu_millicores))
            for pod in held
        )
        cpu = sum(pod.requests.cpu_millicores for pod in held)
        nodes = sorted({pod.node for pod in held})
        row = {"namespace": key[0], "job": key[1], "replicas": len(held), "held": cpu, "lent": lent, "nodes": nodes}
        found.append(row)
    return found


def _cells(row: NodeRow) -> list[str]:
    left = "" if row.gone_at is None else f", {max(0.0, _until_s(row.gone_at)):.0f} s left"
    state = f"draining{left}" if row.draining else "cordoned" if row.cordoned else "ready" if row.ready else "not ready"
    cpu = map(_cores, (row.cpu, row.held, row.lent, row.others, row.free))
    return [row.name, state, *cpu, str(row.replicas), str(row.jobs)]


def _until_s(text: str) -> float:
    at = moment_of(text)
    return 0.0 if at is None else (at - datetime.now(UTC)).total_seconds()


def _cores(millicores: int) -> str:
    return f"{millicores / 1000:.2f}"
