"""`check`: whether a cluster, a user's rights and a TFJob's own words are as elasticity needs them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import PurePosixPath
from typing import Any, Final, Literal
from urllib.parse import quote

import click

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.api.crd import custom_resource_definition
from elastic_tfjob.api.tfjob import GROUP, PLURAL, VERSION, InvalidTFJob, TFJobSpec
from elastic_tfjob.commands import show
from elastic_tfjob.commands.cluster import EXIT_FAILED, Cluster, read_all, run
from elastic_tfjob.commands.manifest import read_job
from elastic_tfjob.controller import LEASE_NAME
from elastic_tfjob.controller.job.inject import trainer_of, without_command
from elastic_tfjob.controller.job.rescale_input import chief_of
from elastic_tfjob.controller.kube.caches import jobs_path
from elastic_tfjob.controller.kube.errors import ApiError, NotFound, Unavailable
from elastic_tfjob.controller.objects.job import Job
from elastic_tfjob.controller.objects.status import format_time, moment_of
from elastic_tfjob.controller.query.rows.job import job_row, see
from elastic_tfjob.controller.schedule.request import JobRequest, terms

__all__ = ["Finding", "about_job", "check"]

Level = Literal["ok", "warning", "error"]

_POLICIES: Final = ("elastic-tfjob-job-annotations", "elastic-tfjob-pod-annotations")
_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
# A leader renews its Lease every few seconds; clocks differ by some more.
_STALE_S: Final = 60.0
# Figures are stored every minute or so.
_SILENT_S: Final = 300.0
_TIMEOUT_S: Final = 30.0
# What a user may do, with the commands that need it.
_RIGHTS: Final = (
    ("list", GROUP, PLURAL, "jobs, top, check"),
    ("get", GROUP, PLURAL, "explain, logs, scale, suspend"),
    ("watch", GROUP, PLURAL, "jobs -w"),
    ("create", GROUP, PLURAL, "kubectl create"),
    ("patch", GROUP, PLURAL, "scale, auto, suspend, resume"),
    ("list", "", "pods", "top jobs, logs --all"),
    ("get", "", "pods/log", "logs"),
    ("list", "", "events", "the events of explain"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, how it is, and what to do about it."""

    level: Level
    about: str
    text: str
    do: str = ""


def check(*, filename: str | None, operator_namespace: str, output: str | None, **cluster: Any) -> None:
    """Look at all of it, and print what is found. Exits with EXIT_FAILED where something is wrong."""

    async def do(at: Cluster) -> list[Finding]:
        now = datetime.now(UTC)
        findings = [*await _crd(at), await _leader(at, operator_namespace, now), *await _policies(at)]
        findings += [*await _rights(at), await _reports(at, now)]
        if filename:
            job = read_job(filename, at.namespace)
            findings += about_job(job, now)
            findings.append(await _dry_run(at, job))
        return findings

    findings = run(do, **cluster)
    if output == "json":
        click.echo(show.as_json(findings))
    else:
        for finding in findings:
            click.echo(f"{finding.level + ':':<9}{finding.about}: {show.plain(finding.text)}")
            if finding.do:
                click.echo(f"{'':<9}-> {show.plain(finding.do)}")
    if any(finding.level == "error" for finding in findings):
        raise SystemExit(EXIT_FAILED)


async def _read(at: Cluster, path: str) -> dict[str, Any] | Finding | None:
    """An object; None where there is none; a warning where the user may not read it."""
    try:
        return await at.api.once("GET", path, timeout_s=_TIMEOUT_S)
    except NotFound:
        return None
    except Unavailable:
        raise
    except ApiError as error:
        return Finding("warning", "", f"you may not look: {error.message}", "ask an administrator to run this")


def _named(about: str, found: Finding) -> Finding:
    return Finding(found.level, about, found.text, found.do)


async def _crd(at: Cluster) -> list[Finding]:
    install = "elastic-tfjob crd | kubectl apply --server-side -f -"
    if await _read(at, f"/apis/{GROUP}/{VERSION}") is None:
        return [Finding("error", "CRD", f"the API server knows no {PLURAL} of {GROUP}/{VERSION}", install)]
    name = f"{PLURAL}.{GROUP}"
    crd = await _read(at, f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
    if isinstance(crd, Finding):
        return [Finding("ok", "CRD", f"{GROUP}/{VERSION} is served"), _named("CRD's version", crd)]
    if crd is None:
        return [Finding("error", "CRD", f"there is no {name}", install)]
    ours, theirs = _columns(custom_resource_definition()), _columns(crd)
    if missing := sorted(ours - theirs):
        text = f"older than this command, or upstream's: it has no columns {', '.join(missing)}"
        return [Finding("warning", "CRD", text, install)]
    return [Finding("ok", "CRD", f"{GROUP}/{VERSION} is served, as this version has it")]


def _columns(crd: Mapping[str, Any]) -> set[str]:
    versions = [each for each in crd["spec"]["versions"] if each["name"] == VERSION]
    return {column["name"] for each in versions for column in each.get("additionalPrinterColumns") or ()}


async def _leader(at: Cluster, namespace: str, now: datetime) -> Finding:
    about = "operator"
    install = "install it (README), or name --operator-namespace where it runs elsewhere"
    path = f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace, safe='')}/leases/{LEASE_NAME}"
    lease = await _read(at, path)
    if isinstance(lease, Finding):
        return _named(about, lease)
    if lease is None:
        text = f"namespace {namespace} has no Lease {LEASE_NAME}: none runs there, or one without --leader-elect"
        return Finding("error", about, text, install)
    spec = lease.get("spec") or {}
    holder, renewed = str(spec.get("holderIdentity") or ""), moment_of(spec.get("renewTime"))
    if not holder or renewed is None:
        return Finding("error", about, "nobody leads", f"kubectl -n {namespace} get pods")
    if (age_s := (now - renewed).total_seconds()) > _STALE_S:
        text = f"{holder} led until {show.duration(age_s)} ago, and nobody has since"
        return Finding("error", about, text, f"kubectl -n {namespace} get pods; logs of the operator")
    return Finding("ok", about, f"{holder} leads")


async def _policies(at: Cluster) -> list[Finding]:
    findings = []
    for name in _POLICIES:
        about = f"admission policy {name}"
        for kind in ("validatingadmissionpolicies", "validatingadmissionpolicybindings"):
            there = await _read(at, f"{_ADMISSION}/{kind}/{name}")
            if isinstance(there, Finding):
                findings.append(_named(about, there))
                break
            if there is None:
                text = f"none of {kind}: whoever may patch objects may write what only the operator should"
                findings.append(Finding("warning", about, text, "apply manifests/base/policy.yaml"))
                break
        else:
            findings.append(Finding("ok", about, "it is there, and bound"))
    return findings


async def _rights(at: Cluster) -> list[Finding]:
    found = []
    for verb, group, resource, commands in _RIGHTS:
        name, _, sub = resource.partition("/")
        attributes = {"namespace": at.namespace, "verb": verb, "group": group, "resource": name, "subresource": sub}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = await at.api.once("POST", _REVIEWS, body, timeout_s=_TIMEOUT_S)
        if not (answer.get("status") or {}).get("allowed"):
            text = f"you may not {verb} {resource} in namespace {at.namespace} (for: {commands})"
            found.append(Finding("warning", "rights", text, "a Role with this verb"))
    return found or [Finding("ok", "rights", f"you may do all that commands need in namespace {at.namespace}")]


async def _reports(at: Cluster, now: datetime) -> Finding:
    """Whether jobs that run say how far they are: what pods report comes to annotations by the operator."""
    about = "reports of jobs"
    try:
        jobs = read_all(Job.parse, await at.items(jobs_path(at.namespace)))
    except Unavailable:
        raise
    except ApiError as error:
        return Finding("warning", about, f"you may not look: {error.message}")
    silent, talking = [], 0
    for job in jobs:
        seen = see(job)
        row, request = job_row(seen), seen.request
        if row.state != "Running" or request is None or not request.elasticity.reports(request.spec):
            continue
        at_ = moment_of(row.figures_at)
        if at_ is None or (now - at_).total_seconds() > _SILENT_S:
            silent.append(row.name)
        else:
            talking += 1
    if silent:
        shown = ", ".join(silent[:10]) + (", ..." if len(silent) > 10 else "")
        text = f"{len(silent)} jobs run and have told no step for {_SILENT_S:.0f} s: {shown}"
        todo = "their programs call elastic_tfjob's hook or ElasticCheckpoint; port 9465 must be open to the operator"
        return Finding("warning", about, text, todo)
    return Finding("ok", about, f"{talking} jobs report" if talking else "no job runs that would report")


async def _dry_run(at: Cluster, job: Mapping[str, Any]) -> Finding:
    about = "API server"
    path = f"{jobs_path(str(job['metadata']['namespace']))}?dryRun=All"
    try:
        await at.api.once("POST", path, job, timeout_s=_TIMEOUT_S)
    except Unavailable:
        raise
    except ApiError as error:
        if error.reason == "AlreadyExists":
            return Finding("warning", about, "there is a TFJob of this name already", "another name")
        return Finding("error", about, f"it refuses the job: {error.message}", "see the field that it names")
    return Finding("ok", about, "it would take the job (dry run)")


def about_job(raw: Mapping[str, Any], now: datetime) -> list[Finding]:
    """What a TFJob's own words come to. Pure."""
    try:
        own = {"uid": "check", "resourceVersion": "0", "creationTimestamp": format_time(now)}
        job = Job.parse({**raw, "metadata": {**raw["metadata"], **own}})
        request = terms(job)
        spec = job.spec()
        checkpoints = list(_checkpoints(spec, request.elasticity.checkpoint_dir))
    except InvalidTFJob as error:
        return [Finding("error", "spec", problem) for problem in error.problems]
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        return [Finding("error", "spec", f"it cannot be read: {error}")]
    elasticity = request.elasticity
    findings = [Finding("error", "annotation", each, "correct it: it is ignored") for each in elasticity.problems]
    no_command = without_command(spec)
    if elasticity.injected(spec) in ("launcher", "both") and no_command:
        text = f"no launcher can start {', '.join(no_command)}: an image's entrypoint is not known to the operator"
        findings.append(Finding("warning", "launcher", text, "say command in the container tensorflow"))
    findings += _capabilities(request)
    findings += checkpoints
    findings += _figures(request)
    return findings


def _capabilities(request: JobRequest) -> Iterator[Finding]:
    """What may be done to the job, and what is missing where it may not."""
    elasticity = request.elasticity
    if not elasticity.annotated:
        yield Finding("ok", "elasticity", f"no annotation {PREFIX}...: it is run as upstream's operator runs it")
        return
    why = (
        f"it has no {PREFIX}checkpoint-dir to go on from"
        if elasticity.checkpoint_dir is None
        else "its annotation rescale is never"
        if elasticity.rescale == "never"
        else "enableDynamicWorker is true"
    )
    if request.elastic:
        bounds = {name: request.bounds(name) for name in request.declared}
        words = ", ".join(f"{name} {low} to {high}" for name, (low, high) in bounds.items() if low != high)
        yield Finding("ok", "elastic", f"its size may change: {words}")
    elif request.stoppable:
        yield Finding(
            "ok", "elastic", "its size is fixed, as no bounds leave room; it may be stopped, moved and resumed"
        )
    else:
        yield Finding("warning", "elastic", f"nothing may be done to it while it runs: {why}", "docs/elastic.md")
    if request.queue:
        yield Finding("ok", "Kueue", f"queue {request.queue} admits it: it never has more replicas than declared")


def _checkpoints(spec: TFJobSpec, directory: str | None) -> Iterator[Finding]:
    """Whether what the chief writes is still there when its pod was made anew."""
    if directory is None or "://" in (path := directory.removeprefix("file://")):
        return
    chief = spec.tf_replica_specs.get(chief_of(spec)[0])
    volume = _volume(chief.template, PurePosixPath(path)) if chief is not None else None
    if volume is None or "emptyDir" in volume:
        where = f"{path} is on no volume" if volume is None else f"{path} is on an emptyDir"
        text = f"{where}: a chief whose pod is made anew (stopped, moved, evicted) begins at step 0"
        yield Finding("warning", "checkpoint-dir", text, "mount a volume that outlives a pod, such as a PVC")


def _volume(template: Mapping[str, Any], path: PurePosixPath) -> Mapping[str, Any] | None:
    """The volume that holds `path` in the container that trains: that of the longest mount path above it."""
    mounts = [
        (len(at.parts), mount.get("name"))
        for mount in trainer_of(template).get("volumeMounts") or ()
        if path.is_relative_to(at := PurePosixPath(str(mount.get("mountPath"))))
    ]
    volumes = (template.get("spec") or {}).get("volumes") or ()
    named = {volume.get("name"): volume for volume in volumes}
    return named.get(max(mounts, key=itemgetter(0))[1]) if mounts else None


def _figures(request: JobRequest) -> Iterable[Finding]:
    elasticity = request.elasticity
    if elasticity.annotated and not elasticity.reports(request.spec):
        text = "nothing in its pods tells its steps: no progress, no expected end"
        yield Finding("warning", "reports", text, f"{PREFIX}inject: sidecar, or a checkpoint-dir")
    if elasticity.deadline is not None and elasticity.total_steps is None and elasticity.estimated_duration is None:
        text = "before it has told its number of steps nobody knows whether it will be met"
        yield Finding("warning", "deadline", text, f"{PREFIX}total-steps, or {PREFIX}estimated-duration")
    if none := [name for name, asked in request.requests.items() if not asked.cpu]:
        text = f"{', '.join(none)} request no CPU: plans take it that they need none"
        yield Finding("warning", "requests", text, "resources.requests.cpu of the container tensorflow")
