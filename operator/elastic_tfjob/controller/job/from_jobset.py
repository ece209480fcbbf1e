"""Translates a JobSet to the TFJob that runs it. Pure.

A TrainJob's runtime has up to four replicated jobs, named after their replica type. Trainer v2 sets image, command and
environment of a TrainJob only in the one that trains (`node`). The other replicas of a TFJob run the same program, so
fields that their container omits are copied from `node`.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from datetime import datetime
from typing import Any, Final

import orjson

from elastic_tfjob.api.annotations import OPERATOR_ANNOTATIONS, PREFIX
from elastic_tfjob.api.reading import MAX_WORD, cut, few
from elastic_tfjob.api.tfjob import (
    CONTAINER,
    GROUP,
    JOBSET_NAME_LABEL,
    KIND,
    NODE_CONTAINER,
    REPLICATED_JOB_LABEL,
    VERSION,
    InvalidTFJob,
    TFJobSpec,
)
from elastic_tfjob.controller.model.jobset import JOBSET_KIND, JOBSET_VERSION, JobSet
from elastic_tfjob.controller.model.status import JobStatus, ReplicaCounts, format_time

__all__ = ["DIGEST_ANNOTATION", "TYPES", "Unsupported", "refused_status", "status_of", "terminal", "tfjob_of"]

TYPES: Final[Mapping[str, str]] = {"chief": "Chief", "evaluator": "Evaluator", "node": "Worker", "ps": "PS"}
"""Replica types of TFJobs by the name of the replicated job."""
DIGEST_ANNOTATION: Final = f"{PREFIX}jobset-spec"
"""A digest of the JobSet's spec from which the TFJob was written, to detect changes."""
QUEUE_LABEL: Final = "kueue.x-k8s.io/"
_SHARED: Final = ("image", "imagePullPolicy", "command", "args", "workingDir", "env", "envFrom", "volumeMounts")
"""Fields that a container of another replica type copies from the training container if it omits them."""
_BACKOFF: Final = 6
"""Kubernetes' default for a Job."""
_DEFAULTS: Final[Mapping[str, Any]] = {
    "successPolicy": {"operator": "All"},
    "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
}
"""The defaults that JobSet's webhook sets."""
_REFUSED: Final = ("failurePolicy", "coordinator", "volumeClaimPolicies", "ttlSecondsAfterFinished")
_REFUSED_OF_JOB: Final = ("activeDeadlineSeconds", "podFailurePolicy", "successPolicy", "backoffLimitPerIndex")


class Unsupported(ValueError):
    """A JobSet has fields that cannot be run as a TFJob; the message lists them."""


def tfjob_of(jobset: JobSet) -> dict[str, Any]:
    """Returns the TFJob of the same name, owned by the JobSet. Raises Unsupported with all problems: no field that a
    user wrote is ignored."""
    if jobset.too_large:
        raise Unsupported("; ".join(few(jobset.too_large)))
    parts = jobset.parts()
    try:
        problems = list(_problems(parts["spec"]))
        if problems:
            raise Unsupported("; ".join(few(problems)))
        spec = _spec(jobset.name, parts["spec"])
        TFJobSpec.parse(spec)
    except InvalidTFJob as error:
        raise Unsupported(str(error)) from None
    except (LookupError, TypeError, AttributeError) as error:
        raise Unsupported(f"its spec is invalid: {type(error).__name__}: {cut(str(error), MAX_WORD)}") from None
    asked = {name: text for name, text in parts["annotations"].items() if _users(name)}
    digest = hashlib.sha256(orjson.dumps([spec["tfReplicaSpecs"], asked], option=orjson.OPT_SORT_KEYS)).hexdigest()
    # Kueue suspends and resumes a TrainJob as a whole, so its TFJob must not be queued again.
    labels = {name: text for name, text in parts["labels"].items() if not name.startswith(QUEUE_LABEL)}
    owner = {
        "apiVersion": JOBSET_VERSION,
        "kind": JOBSET_KIND,
        "name": jobset.name,
        "uid": jobset.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {
            "name": jobset.name,
            "namespace": jobset.namespace,
            "labels": labels,
            "annotations": {**asked, DIGEST_ANNOTATION: digest[:16]},
            "ownerReferences": [owner],
        },
        "spec": spec,
    }


def _users(name: str) -> bool:
    return name.startswith(PREFIX) and name.removeprefix(PREFIX) not in OPERATOR_ANNOTATIONS


def _problems(spec: Mapping[str, Any]) -> Iterator[str]:
    for name in _REFUSED:
        if spec.get(name) is not None:
            yield f"spec.{name} is not supported for TFJobs"
    for name, default in _DEFAULTS.items():
        if spec.get(name) not in (None, default):
            yield f"spec.{name} is not supported for TFJobs: a TFJob succeeds when its chief or worker 0 does"
    if (spec.get("network") or {}).get("subdomain"):
        yield "spec.network.subdomain is not supported for TFJobs: each replica has its own Service"
    jobs = spec.get("replicatedJobs") or []
    if "node" not in [job["name"] for job in jobs]:
        yield "spec.replicatedJobs: the job named node, which trains, is missing"
    for job in jobs:
        yield from _problems_of(job, f"spec.replicatedJobs[{cut(job['name'], MAX_WORD)}]")


def _problems_of(job: Mapping[str, Any], where: str) -> Iterator[str]:
    if job["name"] not in TYPES:
        yield f"{where}: not supported for TFJobs; allowed names are {', '.join(TYPES)}"
        return
    if job.get("replicas", 1) != 1:
        yield f"{where}.replicas: {job['replicas']} is not supported for TFJobs; set parallelism, its number of pods"
    if job.get("dependsOn"):
        yield f"{where}.dependsOn is not supported for TFJobs: all replicas start together"
    template = job["template"]["spec"]
    for name in _REFUSED_OF_JOB:
        if template.get(name) is not None:
            yield f"{where}.template.spec.{name} is not supported for TFJobs"
    count = template.get("parallelism", 1)
    if template.get("completions", count) != count:
        yield f"{where}.template.spec: completions and parallelism differ; a TFJob's replicas run together"
    if [each["name"] for each in template["template"]["spec"]["containers"]].count(NODE_CONTAINER) != 1:
        yield f"{where}: exactly one container must have the name {NODE_CONTAINER}, the one that trains"


def _spec(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    jobs = {job["name"]: job["template"]["spec"] for job in spec["replicatedJobs"]}
    trains = _container(jobs["node"]["template"]["spec"])
    types = {TYPES[each]: _replica_spec(name, each, job, trains, jobs["node"]) for each, job in jobs.items()}
    backoff = jobs["node"].get("backoffLimit", _BACKOFF)
    policy = {"cleanPodPolicy": "Running", "backoffLimit": backoff, "suspend": bool(spec.get("suspend"))}
    return {"runPolicy": policy, "tfReplicaSpecs": types}


def _replica_spec(
    name: str, of_type: str, job: Mapping[str, Any], trains: Mapping[str, Any], node: Mapping[str, Any]
) -> dict[str, Any]:
    template = deepcopy(job["template"])
    metadata = template.setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), JOBSET_NAME_LABEL: name, REPLICATED_JOB_LABEL: of_type}
    pod = template["spec"]
    policy = pod.pop("restartPolicy", "OnFailure")
    container = _container(pod)
    if job is not node:
        for field in _SHARED:
            if field not in container and field in trains:
                container[field] = deepcopy(trains[field])
        if "volumeMounts" in trains:
            named = {volume["name"] for volume in pod.get("volumes") or ()}
            theirs = node["template"]["spec"].get("volumes") or ()
            pod["volumes"] = [*(pod.get("volumes") or ()), *(deepcopy(v) for v in theirs if v["name"] not in named)]
    container["name"] = CONTAINER
    return {"replicas": job.get("parallelism", 1), "restartPolicy": policy, "template": template}


def _container(pod: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in pod["containers"] if each["name"] == NODE_CONTAINER)
    return found


# -- From the status of a TFJob to that of its JobSet ------------------------------------------------------------------
# Trainer v2 copies it to the TrainJob.

_ENDS: Final[Mapping[str, str]] = {"Succeeded": "Completed", "Failed": "Failed"}
"""A JobSet's names of a TFJob's conditions."""
_MESSAGE: Final = 1024


def terminal(status: Mapping[str, Any]) -> bool:
    """Whether the JobSet has ended, so that its status no longer changes."""
    return bool(status.get("terminalState"))


def status_of(
    before: Mapping[str, Any],
    spec: TFJobSpec,
    status: JobStatus,
    now: datetime,
    size: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Returns the JobSet's new status; `before` is the present one. Each replicated job is one Job, which is ready when
    all of its pods run. `size` has the replicas that the job runs with, if they differ from its spec's."""
    names = {replica_type: name for name, replica_type in TYPES.items()}
    suspended = status.is_true("Suspended")
    found = {
        **before,
        "restarts": 0,
        "replicatedJobsStatus": [
            {
                "name": names[each],
                "ready": int(counts.active + counts.succeeded >= wanted and not suspended),
                "active": int(counts.active > 0),
                "succeeded": int(status.is_true("Succeeded")),
                "failed": int(status.is_true("Failed") and counts.failed > 0),
                "suspended": int(suspended),
            }
            for each, replica in spec.tf_replica_specs.items()
            for counts in [status.replicas.get(each, ReplicaCounts())]
            for wanted in [(size or {}).get(each, replica.count)]
        ],
    }
    for theirs, ours in _ENDS.items():
        ended = status.get(theirs)
        if ended is not None and ended.status == "True":
            found["terminalState"] = ours
            found["conditions"] = _with(before, now, ours, ended.reason, ended.message)
            return found
    if suspended or _condition(before, "Suspended") is not None:
        reason, words = ("SuspendedJobs", "jobset is suspended") if suspended else ("ResumeJobs", "jobset is resumed")
        found["conditions"] = _with(before, now, "Suspended", reason, words, true=suspended)
    return found


def refused_status(before: Mapping[str, Any], why: str, now: datetime) -> dict[str, Any]:
    """Returns the status of a JobSet that cannot be run: failed, with the reason."""
    conditions = _with(before, now, "Failed", "UnsupportedByTFJob", why)
    return {**before, "restarts": 0, "terminalState": "Failed", "conditions": conditions}


def _condition(status: Mapping[str, Any], type_: str) -> Mapping[str, Any] | None:
    return next((each for each in status.get("conditions") or () if each.get("type") == type_), None)


def _with(
    status: Mapping[str, Any], now: datetime, type_: str, reason: str, message: str, *, true: bool = True
) -> Sequence[Mapping[str, Any]]:
    """Returns the conditions with this one; its transition time is kept while its status is the same."""
    before, holds = _condition(status, type_), "True" if true else "False"
    same = before is not None and before.get("status") == holds
    made = {
        "type": type_,
        "status": holds,
        "reason": reason,
        "message": cut(message, _MESSAGE),
        "lastTransitionTime": before["lastTransitionTime"] if before is not None and same else format_time(now),
    }
    return [*(each for each in status.get("conditions") or () if each.get("type") != type_), made]
