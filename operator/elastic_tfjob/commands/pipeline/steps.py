"""`pipeline run` and `pipeline cleanup`: steps of Kubeflow Pipelines that run a TFJob, and delete a run's TFJobs."""

import asyncio
import contextlib
import signal
from collections import deque
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal
from urllib.parse import urlencode

import click
import orjson

from elastic_tfjob.api.tfjob import CONTAINER
from elastic_tfjob.commands import show
from elastic_tfjob.commands.cluster import EXIT_FAILED, EXIT_NOT_FOUND, EXIT_NOT_IN_TIME, Cluster, Failed, path_of, run
from elastic_tfjob.commands.logs import follow_log, lines
from elastic_tfjob.commands.options import where
from elastic_tfjob.commands.pipeline.outputs import put, write
from elastic_tfjob.commands.pipeline.request import RUN_LABEL, Executor, Request, run_id_of
from elastic_tfjob.controller.job.rescale_input import chief_of
from elastic_tfjob.controller.kube.caches import jobs_path
from elastic_tfjob.controller.kube.errors import ApiError, Conflict, Expired, NotFound, Unavailable
from elastic_tfjob.controller.objects.job import Job
from elastic_tfjob.controller.objects.status import moment_of
from elastic_tfjob.controller.query.rows.job import Seen, job_row, see

__all__ = ["pipeline"]

Outcome = Literal["Succeeded", "Failed", "Deleted", "TimedOut", "Terminated"]

_EXIT: Final[dict[Outcome, int]] = {
    "Failed": EXIT_FAILED,
    "Deleted": EXIT_NOT_FOUND,
    "TimedOut": EXIT_NOT_IN_TIME,
    "Terminated": 128 + signal.SIGTERM,
}
_AGAIN_S: Final = 1.0
_LOG_S: Final = 10.0
"""How long the rest of the chief's log is waited for once the job has ended."""
_LAST: Final = 20


@dataclass(slots=True)
class _Watched:
    """A job and the newest that was seen of it."""

    raw: dict[str, Any]

    def see(self) -> Seen:
        return see(Job.parse(self.raw))


@click.group()
def pipeline() -> None:
    """Steps of Kubeflow Pipelines, which the components `tfjob` and `tfjob_cleanup` call.

    \b
    Example, as a component has it:
      elastic-tfjob pipeline run --executor-input '{{$}}'
    """


@pipeline.command("run")
@click.option("--executor-input", required=True, help="What KFP puts in place of {{$}}.")
@click.option("--timeline", "timeline_file", default="", help="File for the page with the job's timeline.")
@where
def run_step(executor_input: str, timeline_file: str, **cluster: Any) -> None:
    """Run a TFJob to its end: create it, or attach to the one that an earlier try created; follow its chief's log;
    write the outputs.

    Exit codes: 0 succeeded, 1 failed, 2 wrong inputs, 3 the job was deleted, 4 timed out, 143 terminated.
    """
    try:
        executor = Executor.parse(executor_input)
        request = Request.parse(executor)
    except ValueError as error:
        raise Failed(show.plain(str(error)), 2) from None

    async def do(at: Cluster) -> None:
        at = replace(at, namespace=request.namespace or at.namespace)
        terminated = asyncio.Event()  # from now on: a job that is made while this process is told to end is stopped
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
        watched = _Watched(await _attach(at, request))
        log: deque[str] = deque(maxlen=_LAST)
        outcome = await _until_ended(at, request, watched, log, terminated)
        seen = watched.see()
        write(executor, seen, outcome, request.model_dir, timeline_file)
        message = await _told(at, request, outcome, seen, log)
        if outcome in ("TimedOut", "Terminated"):
            message += await _stop(at, request, outcome, seen)
        elif request.delete and outcome != "Deleted":
            await _delete(at, seen.job)
        if outcome != "Succeeded":
            raise Failed(message, _EXIT[outcome])
        click.echo(message)

    run(do, **cluster)


@pipeline.command("cleanup")
@click.option("--executor-input", required=True, help="What KFP puts in place of {{$}}.")
@where
def clean_up(executor_input: str, **cluster: Any) -> None:
    """Delete the TFJobs of a pipeline's run, whatever they do: for an ExitHandler."""
    try:
        executor = Executor.parse(executor_input)
        run_id = run_id_of(executor)
    except ValueError as error:
        raise Failed(show.plain(str(error)), 2) from None

    async def do(at: Cluster) -> None:
        at = replace(at, namespace=executor.text("namespace") or at.namespace)
        found = [
            Job.parse(raw) for raw in await at.items(jobs_path(at.namespace), labelSelector=f"{RUN_LABEL}={run_id}")
        ]
        for job in found:
            await _delete(at, job)
            click.echo(f"{job.name}: deleted")
        if place := executor.parameters.get("deleted"):
            put(place, orjson.dumps([job.name for job in found]).decode())

    run(do, **cluster)


async def _attach(at: Cluster, request: Request) -> dict[str, Any]:
    """Create the job, or find the one that an earlier try of the same step created. Raises Failed for another's."""
    try:
        made = await at.api.post(jobs_path(at.namespace), request.manifest)
        click.echo(f"{request.name}: created in namespace {at.namespace}")
        return made
    except Conflict:
        found = await at.raw_job(request.name)
    if (found["metadata"].get("labels") or {}).get(RUN_LABEL) != request.run_id:
        raise Failed(f"{request.name} is there already and is not of this run (label {RUN_LABEL})")
    click.echo(f"{request.name}: attached to the job that an earlier try created")
    return found


async def _until_ended(
    at: Cluster, request: Request, watched: _Watched, log: deque[str], terminated: asyncio.Event
) -> Outcome:
    """Follow the job and its chief's log until it has ended, is gone, is too late, or this process shall end."""
    if (ended := _outcome(watched)) is not None:  # an earlier try did not live to see it
        return ended
    left = None
    if request.timeout_s is not None:
        created = moment_of(watched.raw["metadata"].get("creationTimestamp")) or datetime.now(UTC)
        left = max(0.0, request.timeout_s - (datetime.now(UTC) - created).total_seconds())
    following = asyncio.create_task(_follow_chief(at, watched.see(), log))
    watching = asyncio.create_task(_watch(at, watched))
    asked = asyncio.create_task(terminated.wait())
    try:
        await asyncio.wait({watching, asked}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            await asyncio.wait({following}, timeout=_LOG_S)
            return watching.result()
        return "Terminated" if terminated.is_set() else "TimedOut"
    finally:
        for task in (following, watching, asked):
            task.cancel()
        await asyncio.gather(following, watching, asked, return_exceptions=True)


async def _watch(at: Cluster, watched: _Watched) -> Outcome:
    """Follow one job, not another of the same name, also while the API server goes away and comes back."""
    metadata = watched.raw["metadata"]
    path, only = jobs_path(at.namespace), {"fieldSelector": f"metadata.name={metadata['name']}"}
    while True:
        try:
            page = await at.api.once("GET", f"{path}?{urlencode(only)}", timeout_s=30)
            found = [each for each in page.get("items") or () if each["metadata"]["uid"] == metadata["uid"]]
            if not found:
                return "Deleted"
            watched.raw = found[0]
            version = str(page["metadata"]["resourceVersion"])
            while (outcome := _outcome(watched)) is None:
                async for event in at.api.watch(path, version=version, **only):
                    version = str(event["object"]["metadata"]["resourceVersion"])
                    if event["type"] == "BOOKMARK" or event["object"]["metadata"]["uid"] != metadata["uid"]:
                        continue
                    watched.raw = event["object"]
                    # One that had ended and was cleaned away is not one that somebody took away.
                    if (outcome := _outcome(watched)) is not None:
                        return outcome
                    if event["type"] == "DELETED":
                        return "Deleted"
                await asyncio.sleep(_AGAIN_S)  # a server may end each watch at once
            return outcome
        except (Expired, Unavailable):
            await asyncio.sleep(_AGAIN_S)


def _outcome(watched: _Watched) -> Outcome | None:
    status = Job.parse(watched.raw).status()
    return "Failed" if status.is_true("Failed") else "Succeeded" if status.is_true("Succeeded") else None


def _chief(seen: Seen) -> str:
    kind, index = chief_of(seen.request.spec) if seen.request is not None else ("Worker", 0)
    return f"{seen.job.name}-{kind}-{index}".lower()


async def _follow_chief(at: Cluster, seen: Seen, log: deque[str]) -> None:
    """Print the chief's log. A step does not fail because it may not, or cannot, be read."""

    def tell(line: str) -> None:
        log.append(line)
        click.echo(line)

    try:
        await follow_log(at, seen.job.name, _chief(seen), tell, follow=True)
    except ApiError as error:
        click.echo(f"the chief's log is not followed: {show.plain(error.message)}", err=True)


async def _told(at: Cluster, request: Request, outcome: Outcome, seen: Seen, log: deque[str]) -> str:
    """How it ended, in words; of a job that failed with the last lines that its chief wrote."""
    why = show.plain(job_row(seen).reason)
    if outcome == "TimedOut":
        return f"{request.name} has not ended within its timeout of {request.timeout_s:g} s ({why})"
    if outcome == "Terminated":
        return f"{request.name}: this step was told to end"
    if outcome == "Deleted":
        return f"{request.name} was deleted by somebody else before it had ended"
    if outcome == "Succeeded":
        return f"{request.name} succeeded: {why}"
    if not log:
        with contextlib.suppress(ApiError, TimeoutError):
            path = f"{path_of(at.namespace, 'pods')}/{_chief(seen)}/log"
            async with asyncio.timeout(_LOG_S):
                async for _, line in lines(at, path, "", {"container": CONTAINER, "tailLines": str(_LAST)}):
                    log.append(line)
    last = "\n".join(["the chief's last lines:", *log]) if log else "its chief's log cannot be read any more"
    return f"{request.name} failed: {why}\n{last}"


async def _stop(at: Cluster, request: Request, outcome: Outcome, seen: Seen) -> str:
    """See to a job that has not ended although its step has; returns what was done, in words."""
    name = seen.job.name
    if request.delete:
        await _delete(at, seen.job)
        return "; it is deleted"
    if outcome == "Terminated":  # the node is drained, or a retry follows: that attaches again
        return f"; {name} goes on, and a retry attaches to it"
    if seen.job.queue:
        return f"; Kueue admits it (queue {seen.job.queue}), so it goes on: delete it, or use when_done=delete"
    try:
        await at.change(seen.job, {"spec": {"runPolicy": {"suspend": True}}})
    except NotFound:
        return "; it is gone"
    return f"; it is suspended: `elastic-tfjob resume {name}` lets it go on"


async def _delete(at: Cluster, job: Job) -> None:
    with contextlib.suppress(NotFound, Conflict):  # gone, or another one by now
        await at.api.delete(at.job_path(job.name), uid=job.uid, propagationPolicy="Background")
