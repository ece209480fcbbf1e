"""`logs`: the log of a job's replicas, followed across rescales, recreated pods and restarted containers."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any, Final
from urllib.parse import quote, urlencode

import click

from elastic_tfjob.api.tfjob import JOB_NAME_LABEL, trains_in
from elastic_tfjob.commands import show
from elastic_tfjob.commands.cluster import EXIT_NOT_FOUND, Cluster, Failed, path_of, run
from elastic_tfjob.controller.kube.errors import ApiError, Invalid, NotFound, Unavailable
from elastic_tfjob.controller.model.status import moment_of
from elastic_tfjob.controller.query.rows.jobs import see

__all__ = ["follow_log", "lines", "logs"]

_LOOK_S: Final = 1.0
_PODS: Final = 64


def logs(*, job: str, follow: bool, everything: bool, replica: str | None, tail: int | None, **cluster: Any) -> None:
    """Print the log of a TFJob: by default the chief's."""
    if everything and replica:
        raise click.UsageError("--all and --replica cannot be combined")

    async def do(at: Cluster) -> None:
        seen = see(await at.job(job))
        if everything:
            selector = f"{JOB_NAME_LABEL}={job}"
            pods = [
                item["metadata"]["name"]
                for item in await at.items(path_of(at.namespace, "pods"), labelSelector=selector)
            ]
            if not pods:
                raise Failed(f"{job} currently has no pods", EXIT_NOT_FOUND)
            if len(pods) > _PODS:
                raise Failed(f"{job} has {len(pods)} pods, and --all allows {_PODS}; choose one with --replica")
            names = sorted(pods)
        else:
            names = [f"{job}-{replica.lower()}" if replica else seen.chief]

        def writer(name: str) -> Callable[[str], None]:
            short = f"[{name.removeprefix(f'{job}-')}] " if everything else ""
            # Files and pipes get the unchanged output.
            shown = show.harmless if sys.stdout.isatty() else str
            return lambda line: click.echo(f"{short}{shown(line)}")

        leads = not (everything or replica)
        logs = (follow_log(at, job, name, writer(name), follow=follow, leads=leads, tail=tail) for name in names)
        await asyncio.gather(*logs)

    run(do, **cluster)


async def follow_log(
    at: Cluster,
    job: str,
    name: str,
    write: Callable[[str], None],
    *,
    follow: bool,
    leads: bool = False,
    tail: int | None = None,
) -> None:
    """Write the log lines of one replica, pod after pod. `leads`: it is the chief, which may move to a pod of another
    name. Raises ApiError, and without `follow` also Failed."""
    uid, last = "", ""
    while True:
        # First check whether the job has ended: everything that its pods wrote until then is still printed.
        ended, chief = await _look(at, job) if follow else (True, "")
        if leads and chief and chief != name:
            click.echo(f"--- the chief is {chief} now", err=True)
            name, last = chief, ""
        path = f"{path_of(at.namespace, 'pods')}/{quote(name, safe='')}"
        try:
            pod = await at.api.once("GET", path)
            if uid and pod["metadata"]["uid"] != uid:
                click.echo(f"--- {name} was recreated", err=True)
                last = ""
            params = {"container": trains_in(pod["metadata"].get("labels"))} | ({"follow": "true"} if follow else {})
            if not uid and tail is not None:
                params["tailLines"] = str(tail)
            uid = pod["metadata"]["uid"]
            async for when, line in lines(at, f"{path}/log", last, params):
                write(line)
                last = when
        except NotFound:
            if not follow:
                raise Failed(f"{job} currently has no pod {name}; --follow waits for it", EXIT_NOT_FOUND) from None
        except Invalid:
            if not follow:  # such as ContainerCreating; the API server's message says it
                raise
        except Unavailable:
            if not follow:
                raise
        if ended:
            return
        await asyncio.sleep(_LOOK_S)


async def lines(at: Cluster, path: str, after: str, params: dict[str, str]) -> AsyncIterator[tuple[str, str]]:
    """Lines with their times. The API server starts at a full second, so lines that were printed already are
    skipped."""
    query = {"timestamps": "true", **params}
    if after:
        query["sinceTime"] = after
    async for raw in at.api.lines(f"{path}?{urlencode(query)}"):
        text = raw.decode(errors="replace")
        when, _, line = text.partition(" ")
        if moment_of(when) is None:
            yield after, text  # the kubelet's message about a log that it cannot read
        elif when > after:
            yield when, line


async def _look(at: Cluster, job: str) -> tuple[bool, str]:
    """Whether the job has ended, and its chief's pod; empty if unknown."""
    try:
        seen = see(await at.job(job))
    except Failed:
        return True, ""  # it is gone
    except ApiError:
        return False, ""
    return seen.status.finished, seen.chief
