"""`pipeline run` and `pipeline cleanup`: steps of Kubeflow Pipelines that run a TFJob and delete a run's TFJobs."""

import asyncio
import contextlib
import hashlib
import re
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from html import escape
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal
from urllib.parse import urlencode

import click
import orjson

from elastic_tfjob.api.annotations import PREFIX, Elasticity, duration
from elastic_tfjob.api.reading import describe
from elastic_tfjob.api.tfjob import CONTAINER, TFJobSpec
from elastic_tfjob.commands import show
from elastic_tfjob.commands.cluster import EXIT_FAILED, EXIT_NOT_FOUND, EXIT_NOT_IN_TIME, Cluster, Failed, path_of, run
from elastic_tfjob.commands.logs import follow_log, lines
from elastic_tfjob.commands.usage import where
from elastic_tfjob.controller.job.pods import chief_of
from elastic_tfjob.controller.kube.errors import ApiError, Conflict, Expired, NotFound, Unavailable
from elastic_tfjob.controller.kube.informer import jobs_path
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.status import moment_of
from elastic_tfjob.controller.model.target import words
from elastic_tfjob.controller.query.rows.jobs import ReadJob, job_row, see
from elastic_tfjob.controller.query.rows.timeline import Size, sizes, timeline

__all__ = [
    "RUN_LABEL",
    "KfpExecutor",
    "Request",
    "metrics",
    "model_uri",
    "page",
    "pipeline",
    "put",
    "run_id_of",
    "write",
]

# -- Input of a step: KFP's executor input -----------------------------------------------------------------------------

RUN_LABEL: Final = "elastic-tfjob.kubeflow.org/pipeline-run"
"""Label of the TFJobs of a pipeline run; its value is the run id."""

_RUN: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class KfpExecutor:
    """The executor input, which KFP substitutes for `{{$}}`: input values and output locations."""

    values: Mapping[str, Any]
    parameters: Mapping[str, str]
    artifacts: Mapping[str, Mapping[str, Any]]
    output_file: str

    @classmethod
    def parse(cls, text: str) -> "KfpExecutor":
        """Parse the executor input. Raises ValueError if it is not as KFP writes it."""
        try:
            raw = orjson.loads(text)
            outputs = raw.get("outputs") or {}
            return cls(
                values=dict((raw.get("inputs") or {}).get("parameterValues") or {}),
                parameters={
                    name: str(found["outputFile"]) for name, found in (outputs.get("parameters") or {}).items()
                },
                artifacts={name: found["artifacts"][0] for name, found in (outputs.get("artifacts") or {}).items()},
                output_file=str(outputs.get("outputFile") or ""),
            )
        except (ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
            raise ValueError("the executor input is invalid; it must be what KFP substitutes for {{$}}") from error

    def text(self, name: str) -> str:
        """A string input; empty if it is not given."""
        value = self.values.get(name)
        if value is None or isinstance(value, str):
            return (value or "").strip()
        raise ValueError(f"{name}: {describe(value)} is not a string")

    def struct(self, name: str) -> dict[str, Any]:
        """An object input; empty if it is not given."""
        value = self.values.get(name)
        if value is None or isinstance(value, dict):
            return dict(value or {})
        raise ValueError(f"{name}: {describe(value)} is not an object")


@dataclass(frozen=True, slots=True)
class Request:
    """The TFJob that a step runs. `timeout_s` counts from the job's creation; None: no timeout."""

    manifest: Mapping[str, Any]
    name: str
    namespace: str
    run_id: str
    timeout_s: float | None
    delete: bool
    model_dir: str

    @classmethod
    def parse(cls, executor: KfpExecutor) -> "Request":
        """Read the inputs. Raises ValueError for anything wrong; nothing is ignored."""
        run_id = run_id_of(executor)
        manifest = _manifest(executor)
        spec = TFJobSpec.parse(manifest["spec"])
        annotations = manifest["metadata"]["annotations"]
        elasticity = Elasticity.parse(annotations, spec)
        if elasticity.problems:
            raise ValueError("; ".join(elasticity.problems))
        when_done = executor.text("when_done") or "keep"
        if when_done not in ("keep", "delete"):
            raise ValueError(f"when_done is {describe(when_done)}; allowed: keep, delete")
        timeout = executor.text("timeout")
        try:
            timeout_s = duration(timeout).total_seconds() if timeout else None
        except ValueError:
            raise ValueError(f"timeout is {describe(timeout)}; allowed: a duration (1d12h, 90m, 30s)") from None
        base = executor.text("name") or str(manifest["metadata"].get("name") or "") or "tfjob"
        if not _NAME.fullmatch(base):
            raise ValueError(f"name is {describe(base)}; allowed: up to 40 of a-z, 0-9 and -, a letter first")
        # A retry has the same inputs and so the same name; other steps and loop iterations have different ones.
        asked = orjson.dumps([run_id, manifest], option=orjson.OPT_SORT_KEYS)
        name = f"{base}-{hashlib.sha256(asked).hexdigest()[:8]}"
        labels = {**(manifest["metadata"].get("labels") or {}), RUN_LABEL: run_id}
        namespace = str(manifest["metadata"].get("namespace") or "")
        metadata = {"name": name, "labels": labels, "annotations": annotations}
        return cls(
            manifest={**manifest, "metadata": metadata},
            name=name,
            namespace=namespace,
            run_id=run_id,
            timeout_s=timeout_s,
            delete=when_done == "delete",
            model_dir=executor.text("model_path") or elasticity.checkpoint_dir or "",
        )


def run_id_of(executor: KfpExecutor) -> str:
    """The run id. Raises ValueError if it cannot be a label value."""
    run_id = executor.text("run_id")
    if not _RUN.fullmatch(run_id):
        hint = "pass dsl.PIPELINE_JOB_ID_PLACEHOLDER"
        raise ValueError(f"run_id is {describe(run_id)}, which is not a valid label value; {hint}")
    return run_id


def _manifest(executor: KfpExecutor) -> dict[str, Any]:
    """The requested TFJob, with string annotations."""
    given, replicas = executor.struct("manifest"), executor.struct("replicas")
    if bool(given) == bool(replicas):
        raise ValueError("give exactly one of manifest (a whole TFJob) and replicas (a ReplicaSpec per type)")
    api = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob"}
    if replicas:
        given = {**api, "metadata": {}, "spec": {"tfReplicaSpecs": replicas}}
    if any(given.get(key) != text for key, text in api.items()):
        raise ValueError("manifest: apiVersion must be kubeflow.org/v1, and kind must be TFJob")
    metadata = given.get("metadata") or {}
    if not isinstance(metadata, dict) or not isinstance(given.get("spec"), dict):
        raise ValueError("manifest: metadata or spec is not an object")
    for key in ("annotations", "labels"):
        if not isinstance(metadata.get(key) or {}, dict):
            raise ValueError(f"manifest: metadata.{key} is not an object")
    left = sorted(metadata.keys() - {"name", "namespace", "labels", "annotations"})
    if left:
        raise ValueError(
            f"manifest: metadata.{', metadata.'.join(left)} is not allowed; allowed: name, namespace, labels, "
            "annotations"
        )
    annotations = {**(metadata.get("annotations") or {})}
    annotations |= {PREFIX + name: _word(value) for name, value in executor.struct("elastic").items()}
    for name in ("checkpoint-dir", "deadline"):
        if text := executor.text(name.replace("-", "_")):
            annotations[PREFIX + name] = text
    if wrong := sorted(name for name, value in annotations.items() if not isinstance(value, str)):
        raise ValueError(f"manifest: the value of annotation {wrong[0]} is not a string")
    return {**api, "metadata": {**metadata, "annotations": annotations}, "spec": given["spec"]}


def _word(value: object) -> str:
    """A value as an annotation. KFP passes all numbers as floats."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


# -- Output of a step --------------------------------------------------------------------------------------------------
# Parameters, metrics, the model's location, and a page with the timeline.

_WIDE, _HIGH, _COLOURS = 900, 160, ("#2f6fde", "#e0652f", "#1f9d6b", "#a04bd0", "#c79a00")
_STYLE: Final = "body{font:14px/1.45 system-ui,sans-serif;margin:24px}td{padding:3px 10px;vertical-align:top}"


def metrics(seen: ReadJob) -> dict[str, float]:
    """A job's metrics at its end, without unknown ones. `steps_per_s` is the last measured speed, `downtime_s` the sum
    over the last ten rescales, `deadline_met` 1 or 0."""
    row, found = job_row(seen), dict[str, float]()
    if seen.state is not None:
        known = {"steps": seen.state.step, "steps_per_s": seen.state.steps_per_s, "rescales": seen.state.rescales}
        found |= {name: float(value) for name, value in known.items() if value is not None}
        found["downtime_s"] = sum(each.downtime_s or 0.0 for each in seen.state.history)
    due, ended = moment_of(row.deadline), moment_of(row.ended)
    if due is not None and row.state in ("Succeeded", "Failed"):
        found["deadline_met"] = float(row.state == "Succeeded" and ended is not None and ended <= due)
    return found


def model_uri(spec: TFJobSpec, model_dir: str) -> str:
    """Where other steps find the chief's model: a URL unchanged, `pvc://CLAIM/PATH` for a path on a volume claim; empty
    if the path is not on a volume that outlives the pod."""
    if "://" in model_dir or not model_dir:
        return model_dir
    kind, _ = chief_of(spec)
    path, found, depth = PurePosixPath(model_dir), "", -1
    try:
        pod = spec.tf_replica_specs[kind].template["spec"]
        claims = {each["name"]: (each.get("persistentVolumeClaim") or {}).get("claimName") for each in pod["volumes"]}
        container = next(each for each in pod["containers"] if each["name"] == CONTAINER)
        for mount in container["volumeMounts"]:
            at = PurePosixPath(mount["mountPath"])
            if path.is_relative_to(at) and len(at.parts) > depth:
                depth, claim = len(at.parts), claims.get(mount["name"])
                inside = PurePosixPath(mount.get("subPath") or "", path.relative_to(at))
                found = f"pvc://{claim}/{inside}" if claim and "subPathExpr" not in mount else ""
    except (KeyError, TypeError, AttributeError, StopIteration):  # users write pod templates
        return ""
    return found


def page(seen: ReadJob, condition: str) -> str:
    """A job's timeline as an HTML page without scripts."""
    row = job_row(seen)
    rows = "".join(
        f"<tr><td>{escape(each.at or 'pending')}</td><td>{escape(each.text)}</td><td>{escape(each.reason)}</td></tr>"
        for each in timeline(seen)
    )
    figures = ", ".join(f"{name} {value:g}" for name, value in metrics(seen).items())
    due = f"<p>Deadline: {escape(row.deadline)}</p>" if row.deadline else ""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(row.name)}</title>'
        f"<style>{_STYLE}</style><h1>{escape(row.namespace)}/{escape(row.name)}: {escape(condition)}</h1>"
        f"<p>{escape(row.reason)}</p>{due}<p>{escape(figures)}</p>{_chart(sizes(seen), row.ended)}<table>{rows}</table>"
    )


def _chart(found: Sequence[Size], ended: str | None) -> str:
    """Replicas of each type over time, as a step chart."""
    points = [(at.timestamp(), each.replicas) for each in found if (at := moment_of(each.at)) is not None]
    if not points:
        return ""
    first = points[0][0]
    last = max((moment_of(ended) or datetime.now(UTC)).timestamp(), points[-1][0], first + 1)
    most = max([count for _, replicas in points for count in replicas.values()], default=1)
    types = sorted({name for _, replicas in points for name in replicas})
    lines = []
    for number, name in enumerate(types):
        path: list[str] = []
        for when, replicas in points:
            x, y = _WIDE * (when - first) / (last - first), _HIGH * (1 - replicas.get(name, 0) / most)
            path.append(f"H{x:.1f}V{y:.1f}" if path else f"M{x:.1f} {y:.1f}")
        colour = _COLOURS[number % len(_COLOURS)]
        lines.append(f'<path d="{"".join(path)}H{_WIDE}" fill="none" stroke="{colour}" stroke-width="2"/>')
        label = escape(f"{name}: up to {max(replicas.get(name, 0) for _, replicas in points)}")
        lines.append(f'<text x="{10 + 160 * number}" y="{_HIGH + 20}" fill="{colour}">{label}</text>')
    at_first = escape(words(points[0][1])) if points[0][1] else "nothing"
    box = f'viewBox="-4 -4 {_WIDE + 8} {_HIGH + 32}" width="{_WIDE}"'
    return f'<svg {box} role="img" aria-label="Job size over time, starting with {at_first}">{"".join(lines)}</svg>'


def write(executor: KfpExecutor, seen: ReadJob, condition: str, model_dir: str, timeline_file: str) -> None:
    """Write all outputs of a step to the locations that KFP gave."""
    values = {"job_name": seen.job.name, "final_condition": condition, "model_dir": model_dir}
    for name, place in executor.parameters.items():
        if name in values:
            put(place, values[name])
    if timeline_file:
        put(timeline_file, page(seen, condition))
    uri = model_uri(seen.job.spec(), model_dir) if seen.request is not None else ""
    artifacts: dict[str, Mapping[str, Any]] = {
        "metrics": {"metadata": metrics(seen)},
        "model": {"metadata": {"job": seen.job.name, "path": model_dir}, **({"uri": uri} if uri else {})},
        "timeline": {},
    }
    # All with a uri: a runner deletes the uri of an artifact that is written without one.
    artifacts = {
        name: {"artifacts": [{"name": given.get("name", name), "uri": given.get("uri", ""), **artifacts[name]}]}
        for name, given in executor.artifacts.items()
        if name in artifacts
    }
    if executor.output_file:
        put(executor.output_file, orjson.dumps({"artifacts": artifacts}).decode())


def put(name: str, text: str) -> None:
    """Write a file, and create its folders."""
    place = Path(name)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


Outcome = Literal["Succeeded", "Failed", "Deleted", "TimedOut", "Terminated"]

_EXIT: Final[dict[Outcome, int]] = {
    "Failed": EXIT_FAILED,
    "Deleted": EXIT_NOT_FOUND,
    "TimedOut": EXIT_NOT_IN_TIME,
    "Terminated": 128 + signal.SIGTERM,
}
_AGAIN_S: Final = 1.0
_LOG_S: Final = 10.0
"""Seconds to wait for the rest of the chief's log after the job has ended."""
_LAST: Final = 20


@dataclass(slots=True)
class _Watched:
    """A job's newest known object."""

    raw: dict[str, Any]

    def see(self) -> ReadJob:
        return see(TFJob.parse(self.raw))


@click.group()
def pipeline() -> None:
    """Steps for Kubeflow Pipelines. The components `tfjob` and `tfjob_cleanup` call these commands.

    \b
    Example, as in the component:
      elastic-tfjob pipeline run --executor-input '{{$}}'
    """


@pipeline.command("run")
@click.option("--executor-input", required=True, help="The executor input, which KFP substitutes for {{$}}.")
@click.option("--timeline", "timeline_file", default="", help="File to write the job's timeline to, as an HTML page.")
@where
def run_step(executor_input: str, timeline_file: str, **cluster: Any) -> None:
    """Run a TFJob to its end. Create the job, or attach to the one that an earlier attempt created, follow the chief's
    log, and write the outputs.

    \b
    Example, as in the component:
      elastic-tfjob pipeline run --executor-input '{{$}}' --timeline timeline.html

    Exit codes: 0 succeeded, 1 failed, 2 wrong inputs, 3 the job was deleted, 4 timed out, 143 terminated.
    """
    try:
        executor = KfpExecutor.parse(executor_input)
        request = Request.parse(executor)
    except ValueError as error:
        raise Failed(show.plain(str(error)), 2) from None

    async def do(at: Cluster) -> None:
        at = replace(at, namespace=request.namespace or at.namespace)
        terminated = asyncio.Event()  # before the job is created, so that a job created during termination is stopped
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
        watched = _Watched(await _attach(at, request))
        log: deque[str] = deque(maxlen=_LAST)
        outcome = await _until_ended(at, request, watched, log, terminated)
        seen = watched.see()
        write(executor, seen, outcome, request.model_dir, timeline_file)
        message = await _outcome_message(at, request, outcome, seen, log)
        if outcome in ("TimedOut", "Terminated"):
            message += await _stop(at, request, outcome, seen)
        elif request.delete and outcome != "Deleted":
            await _delete(at, seen.job)
        if outcome != "Succeeded":
            raise Failed(message, _EXIT[outcome])
        click.echo(message)

    run(do, **cluster)


@pipeline.command("cleanup")
@click.option("--executor-input", required=True, help="The executor input, which KFP substitutes for {{$}}.")
@where
def clean_up(executor_input: str, **cluster: Any) -> None:
    """Delete all TFJobs of a pipeline run, whatever their state. Use it in an ExitHandler.

    \b
    Example, as in the component:
      elastic-tfjob pipeline cleanup --executor-input '{{$}}'
    """
    try:
        executor = KfpExecutor.parse(executor_input)
        run_id = run_id_of(executor)
    except ValueError as error:
        raise Failed(show.plain(str(error)), 2) from None

    async def do(at: Cluster) -> None:
        at = replace(at, namespace=executor.text("namespace") or at.namespace)
        found = [
            TFJob.parse(raw) for raw in await at.items(jobs_path(at.namespace), labelSelector=f"{RUN_LABEL}={run_id}")
        ]
        for job in found:
            await _delete(at, job)
            click.echo(f"{job.name}: deleted")
        if place := executor.parameters.get("deleted"):
            put(place, orjson.dumps([job.name for job in found]).decode())

    run(do, **cluster)


async def _attach(at: Cluster, request: Request) -> dict[str, Any]:
    """Create the job, or find the one that an earlier attempt of this step created. Raises Failed for another job."""
    try:
        made = await at.api.post(jobs_path(at.namespace), request.manifest)
        click.echo(f"{request.name}: created in namespace {at.namespace}")
        return made
    except Conflict:
        found = await at.raw_job(request.name)
    if (found["metadata"].get("labels") or {}).get(RUN_LABEL) != request.run_id:
        raise Failed(f"TFJob {request.name} exists already and belongs to another run (label {RUN_LABEL})")
    click.echo(f"{request.name}: attached to the job that an earlier attempt created")
    return found


async def _until_ended(
    at: Cluster, request: Request, watched: _Watched, log: deque[str], terminated: asyncio.Event
) -> Outcome:
    """Follow the job and its chief's log until the job ends, is deleted or times out, or this process is terminated."""
    if (ended := _outcome(watched)) is not None:  # the earlier attempt ended before the job did
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
    """Follow one job, not a later one of the same name, also across restarts of the API server."""
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
                    # A job that ended and was then cleaned up counts as ended, not as deleted.
                    if (outcome := _outcome(watched)) is not None:
                        return outcome
                    if event["type"] == "DELETED":
                        return "Deleted"
                await asyncio.sleep(_AGAIN_S)  # the server may close each watch at once
            return outcome
        except (Expired, Unavailable):
            await asyncio.sleep(_AGAIN_S)


def _outcome(watched: _Watched) -> Outcome | None:
    status = TFJob.parse(watched.raw).status()
    return "Failed" if status.is_true("Failed") else "Succeeded" if status.is_true("Succeeded") else None


async def _follow_chief(at: Cluster, seen: ReadJob, log: deque[str]) -> None:
    """Print the chief's log. The step does not fail if the log cannot be read."""

    def tell(line: str) -> None:
        log.append(line)
        click.echo(line)

    try:
        await follow_log(at, seen.job.name, seen.chief, tell, follow=True, leads=True)
    except ApiError as error:
        click.echo(f"the chief's log cannot be read: {show.plain(error.message)}", err=True)


async def _outcome_message(at: Cluster, request: Request, outcome: Outcome, seen: ReadJob, log: deque[str]) -> str:
    """How the job ended, in words; for a failed job with the last lines of the chief's log."""
    why = show.plain(job_row(seen).reason)
    if outcome == "TimedOut":
        return f"{request.name} did not end within its timeout of {request.timeout_s:g} s ({why})"
    if outcome == "Terminated":
        return f"{request.name}: this step was terminated"
    if outcome == "Deleted":
        return f"{request.name} was deleted before it ended"
    if outcome == "Succeeded":
        return f"{request.name} succeeded: {why}"
    if not log:
        with contextlib.suppress(ApiError, TimeoutError):
            path = f"{path_of(at.namespace, 'pods')}/{seen.chief}/log"
            async with asyncio.timeout(_LOG_S):
                async for _, line in lines(at, path, "", {"container": CONTAINER, "tailLines": str(_LAST)}):
                    log.append(line)
    last = "\n".join(["last lines of the chief's log:", *log]) if log else "the chief's log is no longer available"
    return f"{request.name} failed: {why}\n{last}"


async def _stop(at: Cluster, request: Request, outcome: Outcome, seen: ReadJob) -> str:
    """Delete, suspend or leave a job that outlives its step; returns what was done, in words."""
    name = seen.job.name
    if request.delete:
        await _delete(at, seen.job)
        return "; the job was deleted"
    if outcome == "Terminated":  # after a node drain or before a retry, which attaches again
        return f"; {name} keeps running, and a retry attaches to it"
    if seen.job.queue:
        return (
            f"; the job keeps running, because Kueue manages it (queue {seen.job.queue}): delete it, or use "
            "when_done=delete"
        )
    try:
        await at.change(seen.job, {"spec": {"runPolicy": {"suspend": True}}})
    except NotFound:
        return "; the job no longer exists"
    return f"; the job was suspended: `elastic-tfjob resume {name}` resumes it"


async def _delete(at: Cluster, job: TFJob) -> None:
    with contextlib.suppress(NotFound, Conflict):  # deleted, or replaced by another job
        await at.api.delete(at.job_path(job.name), uid=job.uid, propagationPolicy="Background")
