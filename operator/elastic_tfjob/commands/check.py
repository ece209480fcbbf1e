"""`check`: whether the cluster, the operator's configuration, the user's rights and a TFJob have what an elastic job
needs."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

import click

from elastic_tfjob.api.annotations import Elasticity
from elastic_tfjob.api.crd import custom_resource_definition
from elastic_tfjob.api.tfjob import GROUP, PLURAL, VERSION, TFJobSpec
from elastic_tfjob.api.words import bytes_in_words
from elastic_tfjob.commands import show
from elastic_tfjob.commands.cluster import EXIT_FAILED, Cluster, path_of, read_all, run
from elastic_tfjob.commands.configuration import CONFIG_MAP, Nodes, about_configuration, config_map_path, read_nodes
from elastic_tfjob.commands.files import read_to_check
from elastic_tfjob.commands.job_findings import Finding, about_job, claim_of_checkpoints, job_as_created
from elastic_tfjob.controller import LEASE_NAME
from elastic_tfjob.controller.job.inject import inject, injected, resources_of
from elastic_tfjob.controller.job.pods import render_pod, render_service, sized
from elastic_tfjob.controller.kube.errors import ApiError, NotFound, Unavailable
from elastic_tfjob.controller.kube.informer import jobs_path
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.status import moment_of
from elastic_tfjob.controller.planning.request import JobRequest, job_request
from elastic_tfjob.controller.query.rows.jobs import job_row, see
from elastic_tfjob.scheduling.profiles import build, installed_profiles, parse_profile

__all__ = ["about_job", "check"]

_POLICIES: Final = ("elastic-tfjob-job-annotations", "elastic-tfjob-pod-annotations")
_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
# A leader renews its Lease every few seconds, and clocks may differ.
_STALE_S: Final = 60.0
# The operator stores training metrics about once a minute.
_SILENT_S: Final = 300.0
_TIMEOUT_S: Final = 30.0
# Rights that a user needs, with the commands that need them.
_RIGHTS: Final = (
    ("list", GROUP, PLURAL, "jobs, top, check"),
    ("get", GROUP, PLURAL, "explain, logs, scale, suspend"),
    ("watch", GROUP, PLURAL, "jobs -w"),
    ("create", GROUP, PLURAL, "kubectl create"),
    ("patch", GROUP, PLURAL, "scale, auto, suspend, resume"),
    ("list", "", "pods", "top jobs, logs --all"),
    ("get", "", "pods/log", "logs"),
    ("list", "", "events", "events in explain"),
)


def check(*, filename: str | None, offline: bool, operator_namespace: str, output: str | None, **cluster: Any) -> None:
    """Run all checks and print the findings. Exits with EXIT_FAILED if there is an error."""
    if offline and not filename:
        raise click.UsageError("--offline checks only a file; name it with -f")

    async def do(at: Cluster) -> list[Finding]:
        now = datetime.now(UTC)
        findings = [*await _crd(at), await _leader(at, operator_namespace, now), *await _policies(at), *_profiles()]
        findings += [*await _rights(at), await _reports(at, now)]
        nodes = await read_nodes(at)
        findings += await _live_configuration(at, operator_namespace, nodes)
        jobs, config_maps = read_to_check(filename, at.namespace, CONFIG_MAP) if filename else ([], [])
        findings += _configurations(config_maps, filename, nodes)
        for raw, notes in jobs:
            found = [*about_job(raw, now, notes), *await _dry_run(at, raw, now, operator_namespace)]
            found += _above_every_node(raw, nodes, now)
            findings += _of_several(raw, found) if len(jobs) > 1 else found
        return findings

    if offline and filename:
        jobs, config_maps = read_to_check(filename, cluster["namespace"] or "default", CONFIG_MAP)
        found = [(raw, about_job(raw, datetime.now(UTC), notes)) for raw, notes in jobs]
        findings = _configurations(config_maps, filename, None)
        findings += [each for raw, some in found for each in (_of_several(raw, some) if len(jobs) > 1 else some)]
    else:
        findings = run(do, **cluster)
    if output == "json":
        click.echo(show.as_json(findings))
    else:
        for finding in findings:
            click.echo(f"{finding.level + ':':<9}{show.plain(finding.about)}: {show.plain(finding.text)}")
            if finding.do:
                click.echo(f"{'':<9}-> {show.plain(finding.do)}")
    if any(finding.level == "error" for finding in findings):
        raise SystemExit(EXIT_FAILED)


def _configurations(config_maps: list[dict[str, Any]], filename: str | None, nodes: Nodes | None) -> list[Finding]:
    about = f"{CONFIG_MAP} in {filename}"
    return [finding for raw in config_maps for finding in about_configuration(raw, about, nodes)]


async def _live_configuration(at: Cluster, namespace: str, nodes: Nodes | None) -> list[Finding]:
    about = "configuration"
    raw = await _read(at, config_map_path(namespace))
    if isinstance(raw, Finding):
        return [_named(about, raw)]
    if raw is None:
        text = f"namespace {namespace} has no ConfigMap {CONFIG_MAP}: the defaults apply, with profile fixed"
        return [Finding("warning", about, text, "apply the manifests, or give --operator-namespace")]
    return about_configuration(raw, about, nodes)


def _above_every_node(raw: Mapping[str, Any], nodes: Nodes | None, now: datetime) -> list[Finding]:
    """Memory that the job allows a replica, and no node has."""
    try:
        job = job_as_created(raw, now)
        elasticity = Elasticity.parse(job.annotations, job.spec())
    except (ValueError, TypeError, AttributeError):  # about_job says what is wrong
        return []
    largest = max((node.allocatable.memory_bytes for node in nodes.nodes), default=0) if nodes is not None else 0
    return [
        Finding(
            "warning",
            "memory",
            f"max-memory allows each {name or 'replica'} {bytes_in_words(most)}, and no node has more than "
            f"{bytes_in_words(largest)}",
            "allow less, or add a larger node",
        )
        for name, most in elasticity.max_memory.items()
        if most > largest > 0
    ]


def _of_several(raw: Mapping[str, Any], findings: list[Finding]) -> list[Finding]:
    name = str(raw["metadata"].get("name"))
    return [Finding(each.level, f"{name}: {each.about}", each.text, each.do) for each in findings]


async def _read(at: Cluster, path: str) -> dict[str, Any] | Finding | None:
    """The object; None if it does not exist; a warning if the user may not read it."""
    try:
        return await at.api.once("GET", path, timeout_s=_TIMEOUT_S)
    except NotFound:
        return None
    except Unavailable:
        raise
    except ApiError as error:
        return Finding("warning", "", f"you may not read it: {error.message}", "ask an administrator to run this check")


def _named(about: str, found: Finding) -> Finding:
    return Finding(found.level, about, found.text, found.do)


async def _crd(at: Cluster) -> list[Finding]:
    install = "elastic-tfjob crd | kubectl apply --server-side -f -"
    if await _read(at, f"/apis/{GROUP}/{VERSION}") is None:
        return [Finding("error", "CRD", f"the API server does not serve {PLURAL} of {GROUP}/{VERSION}", install)]
    name = f"{PLURAL}.{GROUP}"
    crd = await _read(at, f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
    if isinstance(crd, Finding):
        return [Finding("ok", "CRD", f"{GROUP}/{VERSION} is served"), _named("CRD's version", crd)]
    if crd is None:
        return [Finding("error", "CRD", f"CustomResourceDefinition {name} does not exist", install)]
    ours, theirs = _columns(custom_resource_definition()), _columns(crd)
    if missing := sorted(ours - theirs):
        text = f"the CRD is older than this command, or upstream's: it lacks the columns {', '.join(missing)}"
        return [Finding("warning", "CRD", text, install)]
    return [Finding("ok", "CRD", f"{GROUP}/{VERSION} is served, and the CRD matches this command")]


def _columns(crd: Mapping[str, Any]) -> set[str]:
    versions = [each for each in crd["spec"]["versions"] if each["name"] == VERSION]
    return {column["name"] for each in versions for column in each.get("additionalPrinterColumns") or ()}


async def _leader(at: Cluster, namespace: str, now: datetime) -> Finding:
    about = "operator"
    install = "install the operator (README), or give --operator-namespace if it runs elsewhere"
    path = f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace, safe='')}/leases/{LEASE_NAME}"
    lease = await _read(at, path)
    if isinstance(lease, Finding):
        return _named(about, lease)
    if lease is None:
        text = (
            f"namespace {namespace} has no Lease {LEASE_NAME}: no operator runs there, or it runs without "
            "--leader-elect"
        )
        return Finding("error", about, text, install)
    spec = lease.get("spec") or {}
    holder, renewed = str(spec.get("holderIdentity") or ""), moment_of(spec.get("renewTime"))
    if not holder or renewed is None:
        return Finding("error", about, "no replica is the leader", f"kubectl -n {namespace} get pods")
    if (age_s := (now - renewed).total_seconds()) > _STALE_S:
        text = f"there is no leader: {holder} last renewed the Lease {show.duration(age_s)} ago"
        return Finding("error", about, text, f"kubectl -n {namespace} get pods; see the operator's log")
    return Finding("ok", about, f"{holder} is the leader")


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
                text = (
                    f"{kind} has no such object: any user who may patch pods or jobs can change the operator's "
                    "annotations"
                )
                findings.append(Finding("warning", about, text, "apply manifests/base/policy.yaml"))
                break
        else:
            findings.append(Finding("ok", about, "exists and is bound"))
    return findings


def _profiles() -> list[Finding]:
    """The profiles of packages that are installed beside this command."""
    installed = installed_profiles()
    mend = "repair or uninstall the package, here and in the operator's image"
    found = []
    for name, package in installed.packages.items():
        try:
            build(name, parse_profile(name, {}))
        except ValueError as error:
            text = f"installed here by package {package}, but cannot be built with its defaults: {error}"
            found.append(Finding("warning", f"profile {name}", text, mend))
        else:
            found.append(Finding("ok", f"profile {name}", f"installed here by package {package}"))
    return [*found, *(Finding("warning", "profiles", str(problem), mend) for problem in installed.problems)]


async def _rights(at: Cluster) -> list[Finding]:
    found = []
    for verb, group, resource, commands in _RIGHTS:
        name, _, sub = resource.partition("/")
        if not await _may(at, at.namespace, verb=verb, group=group, resource=name, subresource=sub):
            text = f"you may not {verb} {resource} in namespace {at.namespace} (for: {commands})"
            found.append(Finding("warning", "rights", text, "ask for a Role with this verb"))
    return found or [Finding("ok", "rights", f"you have the rights that all commands need in namespace {at.namespace}")]


async def _may(at: Cluster, namespace: str, **attributes: str) -> bool:
    """Whether the user has a right, given by `verb`, `group` and `resource`."""
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"namespace": namespace, **attributes}},
    }
    answer = await at.api.once("POST", _REVIEWS, body, timeout_s=_TIMEOUT_S)
    return bool((answer.get("status") or {}).get("allowed"))


async def _reports(at: Cluster, now: datetime) -> Finding:
    """Whether running jobs report their progress, which the operator copies from pods to annotations."""
    about = "job reports"
    try:
        jobs = read_all(TFJob.parse, await at.items(jobs_path(at.namespace)))
    except Unavailable:
        raise
    except ApiError as error:
        return Finding("warning", about, f"you may not list TFJobs: {error.message}")
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
        text = f"{len(silent)} running jobs have reported no step for {_SILENT_S:.0f} s: {shown}"
        todo = "call elastic_tfjob's hook or ElasticCheckpoint in the program; open port 9465 to the operator"
        return Finding("warning", about, text, todo)
    return Finding(
        "ok", about, f"{talking} running jobs report their progress" if talking else "no running job needs to report"
    )


async def _dry_run(at: Cluster, raw: Mapping[str, Any], now: datetime, operator_namespace: str) -> list[Finding]:
    """What the API server says about a TFJob, and about one pod and one Service per replica type."""
    about = "API server"
    path = jobs_path(str(raw["metadata"]["namespace"]))
    refused = await _refusal(at, path, raw)
    findings = []
    if refused and "strict decoding error" in refused:
        # If there are unknown fields, the API server names nothing else; ask again without strict validation.
        findings.append(Finding("error", about, f"refuses the job: {_fields(refused)}", "see the fields above"))
        refused = await _refusal(at, path, raw, strict=False)
    if refused:
        findings.append(Finding("error", about, f"refuses the job: {refused}", "correct the field that it names"))
    elif refused is None:
        findings.append(Finding("warning", about, "a TFJob of this name exists already", "choose another name"))
    elif not findings:
        findings.append(Finding("ok", about, "accepts the job (dry run)"))
    try:
        job = job_as_created(raw, now)
        request, spec = job_request(job), job.spec()
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return findings  # the findings about the job report this
    findings += await _replicas(at, job, request, spec, operator_namespace)
    findings += await _claim(at, job.namespace, spec, request.elasticity.checkpoint_dir)
    return findings


def _fields(message: str) -> str:
    found = re.findall(r'unknown field "([^"]{1,300})"', message)
    return f"v1 has no field {', '.join(found)}" if found else message


async def _refusal(at: Cluster, path: str, body: Mapping[str, Any], *, strict: bool = True) -> str | None:
    """Why the API server refuses to create an object; empty: it accepts it; None: an object of this name exists."""
    validation = "Strict" if strict else "Ignore"
    try:
        await at.api.once("POST", f"{path}?dryRun=All&fieldValidation={validation}", body, timeout_s=_TIMEOUT_S)
    except Unavailable:
        raise
    except ApiError as error:
        return None if error.reason == "AlreadyExists" else error.message or error.reason or str(error)
    return ""


async def _replicas(
    at: Cluster, job: TFJob, request: JobRequest, spec: TFJobSpec, operator_namespace: str
) -> list[Finding]:
    """Check the pod and Service of each type's last replica at the largest size, as the operator would create them."""
    may = {
        resource: await _may(at, job.namespace, verb="create", group="", resource=resource)
        for resource in ("pods", "services")
    }
    findings = [
        Finding("warning", resource, f"not checked, because you may not create {resource} in namespace {job.namespace}")
        for resource, allowed in may.items()
        if not allowed
    ]
    size = {name: max(1, request.bounds(name)[1]) for name in request.declared if request.bounds(name)[1]}
    largest, image = sized(spec, size), await _image(at, operator_namespace)
    what, resources = injected(request.elasticity, spec, None), resources_of(None, queue=job.queue)
    identity = f"{job.namespace}/{job.name}/{job.uid}"
    for name, count in size.items():
        if may["pods"]:
            plain = _unowned(render_pod(job, largest, name, count - 1))
            made = _unowned(render_pod(job, largest, name, count - 1))
            inject(made, what, image, request.elasticity.checkpoint_dir, resources, job=identity)
            refused = await _refusal(at, path_of(job.namespace, "pods"), made)
            if refused and what != "none" and await _refusal(at, path_of(job.namespace, "pods"), plain) == "":
                refused += f" (the pod without the operator's additions, inject: {what}, is accepted)"
            findings.append(_of_replica("pod", name, refused))
        if may["services"]:
            service = _unowned(render_service(job, largest, name, count - 1))
            refused = await _refusal(at, path_of(job.namespace, "services"), service)
            findings.append(_of_replica("Service", name, refused))
    return findings


def _of_replica(kind: str, name: str, refused: str | None) -> Finding:
    if refused:
        text = f"the API server refuses it in this namespace: {refused}"
        return Finding("error", f"{kind} of {name}", text, "correct what the message names, or ask an administrator")
    there = "" if refused == "" else "; one of this name exists already"
    return Finding("ok", f"{kind} of {name}", f"the API server accepts it (dry run){there}")


def _unowned(made: dict[str, Any]) -> dict[str, Any]:
    """The object without its owner, which does not exist yet."""
    return {**made, "metadata": {key: value for key, value in made["metadata"].items() if key != "ownerReferences"}}


async def _image(at: Cluster, operator_namespace: str) -> str:
    """The operator's image, which it injects into pods; a placeholder if the Deployment cannot be read."""
    path = f"/apis/apps/v1/namespaces/{quote(operator_namespace, safe='')}/deployments/{LEASE_NAME}"
    found = await _read(at, path)
    if found is None or isinstance(found, Finding):
        return "elastic-tfjob"
    containers = (((found.get("spec") or {}).get("template") or {}).get("spec") or {}).get("containers") or [{}]
    return str(containers[0].get("image") or "elastic-tfjob")


async def _claim(at: Cluster, namespace: str, spec: TFJobSpec, directory: str | None) -> list[Finding]:
    """Whether the checkpoints' claim exists, and all pods that mount it can write to it."""
    name, pods = claim_of_checkpoints(spec, directory)
    if not name:
        return []
    about = "checkpoint-dir"
    claim = await _read(at, f"{path_of(namespace, 'persistentvolumeclaims')}/{quote(name, safe='')}")
    if isinstance(claim, Finding):
        return []  # the user may not read claims
    if claim is None:
        text = f"namespace {namespace} has no PersistentVolumeClaim {name}: pods that mount it stay pending"
        return [Finding("warning", about, text, "create it, or use another claim")]
    modes = set((claim.get("spec") or {}).get("accessModes") or ())
    if modes == {"ReadOnlyMany"}:
        return [Finding("warning", about, f"claim {name} is ReadOnlyMany: checkpoints cannot be written to it")]
    if pods > 1 and "ReadWriteMany" not in modes:
        text = f"claim {name} is {', '.join(sorted(modes))}, and {pods} pods mount it: they must all run on one node"
        if modes == {"ReadWriteOncePod"}:
            text = f"claim {name} is ReadWriteOncePod, and {pods} pods mount it: only one of them can start"
        return [Finding("warning", about, text, "mount it only in the chief, or use a ReadWriteMany claim")]
    return []
