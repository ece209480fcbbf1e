"""TFJobs for the cases, as users write them."""

from collections.abc import Mapping
from typing import Any

Object = dict[str, Any]

IMAGE = "example.org/trainer:1"
NAME = "job"


def container(name: str = "tensorflow", **fields: Any) -> Object:
    return {"name": name, "image": IMAGE, **fields}


def replica(
    replicas: int | None = 1,
    restart: str | None = None,
    *,
    containers: list[Object] | None = None,
    metadata: Object | None = None,
    **pod: Any,
) -> Object:
    """A ReplicaSpec; `replicas` or `restart` None leaves the field out; `pod` is added to the template's pod spec."""
    spec: Object = {"template": {"spec": {"containers": containers or [container()], **pod}}}
    if replicas is not None:
        spec["replicas"] = replicas
    if restart:
        spec["restartPolicy"] = restart
    if metadata:
        spec["template"]["metadata"] = metadata
    return spec


def tfjob(name: str = NAME, *, policy: Object | None = None, metadata: Object | None = None, **spec: Any) -> Object:
    """A TFJob. Capitalised words are replica types (`Worker=4` or `Worker=replica(...)`), others fields of the spec.

    `policy` is the runPolicy.
    """
    types = {
        key: replica(value) if isinstance(value, int) else value for key, value in spec.items() if key[0].isupper()
    }
    body = {key: value for key, value in spec.items() if not key[0].isupper()}
    if types:
        body["tfReplicaSpecs"] = types
    if policy is not None:
        body["runPolicy"] = policy
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": name, **(metadata or {})},
        "spec": body,
    }


def names(**counts: int) -> str:
    """`names(ps=1, worker=2)`: "ps-0 worker-0 worker-1", as Lab shows pods and services."""
    return " ".join(sorted(f"{kind}-{i}" for kind, count in counts.items() for i in range(count)))


def labels(job: str, kind: str, index: int, role: str | None = None) -> dict[str, str]:
    """The labels of a pod or service of a job."""
    found = {
        "training.kubeflow.org/operator-name": "tfjob-controller",
        "training.kubeflow.org/job-name": job,
        "training.kubeflow.org/replica-type": kind,
        "training.kubeflow.org/replica-index": str(index),
    }
    return {**found, "training.kubeflow.org/job-role": role} if role else found


def owner(job: Mapping[str, Any]) -> Object:
    """The owner reference that a job's pods and services carry."""
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def counts(status: Mapping[str, Any]) -> Object:
    """Numbers of pods by replica type, as a status has them. Ours also has the selector of the workers, which the
    subresource `scale` shows: a superset of upstream's."""
    return {
        name: {key: value for key, value in each.items() if key != "selector"}
        for name, each in (status.get("replicaStatuses") or {}).items()
    }
