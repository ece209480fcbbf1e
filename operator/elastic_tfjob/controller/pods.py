"""What the operator creates for a replica: its pod with TF_CONFIG, and its headless service. Pure.

TF_CONFIG is upstream's byte for byte (tfjob v1, tensorflow.go): programs that compare or hash it see no change.
"""

import copy
from collections.abc import Mapping
from typing import Any

import orjson

from elastic_tfjob.api.tfjob import (
    CONTAINER,
    CONTROLLER_NAME,
    GROUP,
    JOB_NAME_LABEL,
    JOB_ROLE_LABEL,
    KIND,
    OPERATOR_NAME_LABEL,
    PORT,
    PORT_NAME,
    REPLICA_INDEX_LABEL,
    REPLICA_TYPE_LABEL,
    REPLICA_TYPES,
    VERSION,
    ReplicaSpec,
    TFJobSpec,
)
from elastic_tfjob.controller.observed import Job

__all__ = ["general_name", "owner_reference", "render_pod", "render_service", "replica_labels", "sized", "tf_config"]


def general_name(job: str, replica_type: str, index: int) -> str:
    """The name of a replica's pod and of its service."""
    return f"{job}-{replica_type.lower()}-{index}"


def owner_reference(job: Job) -> dict[str, Any]:
    """The reference by which a job's objects are deleted with it."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def replica_labels(job: str, replica_type: str, index: int) -> dict[str, str]:
    """The labels that say whose a pod or service is; a service also selects by them."""
    return {
        OPERATOR_NAME_LABEL: CONTROLLER_NAME,
        JOB_NAME_LABEL: job,
        REPLICA_TYPE_LABEL: replica_type.lower(),
        REPLICA_INDEX_LABEL: str(index),
    }


def sized(spec: TFJobSpec, counts: Mapping[str, int]) -> TFJobSpec:
    """The spec with other numbers of replicas; a type that is not in `counts` has none."""
    replicas = {
        name: replica.model_copy(update={"replicas": counts.get(name, 0)})
        for name, replica in spec.tf_replica_specs.items()
    }
    return spec.model_copy(update={"tf_replica_specs": replicas})


def render_pod(
    job: Job, spec: TFJobSpec, replica_type: str, index: int, *, domain: str = "", slot: int = 0
) -> dict[str, Any]:
    """The pod of one replica: the user's template with labels, owner, restart policy, port and TF_CONFIG.

    `domain` and `slot` as for `tf_config`.
    """
    replica = spec.tf_replica_specs[replica_type]
    template = copy.deepcopy(replica.template)
    metadata = template.get("metadata") or {}
    labels = (metadata.get("labels") or {}) | replica_labels(job.name, replica_type, index)
    if _is_master(spec, replica_type, index):
        labels[JOB_ROLE_LABEL] = "master"
    pod_spec: dict[str, Any] = template.get("spec") or {}
    # ExitCode is a policy of ours: the kubelet must leave the container stopped for us to judge.
    pod_spec["restartPolicy"] = "Never" if replica.restart == "ExitCode" else replica.restart
    _default_port(pod_spec)
    if _is_distributed(spec):
        _set_tf_config(pod_spec, tf_config(job, spec, replica_type, index, domain=domain, slot=slot))
    rendered = {
        "name": general_name(job.name, replica_type, index),
        "namespace": job.namespace,
        "labels": labels,
        "ownerReferences": [owner_reference(job)],
    }
    kept = {name: metadata[name] for name in ("annotations", "finalizers") if metadata.get(name)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": rendered | kept, "spec": pod_spec}


def render_service(job: Job, spec: TFJobSpec, replica_type: str, index: int) -> dict[str, Any]:
    """The headless service of one replica, with all ports of the container that trains."""
    labels = replica_labels(job.name, replica_type, index)
    # By name, as upstream: a later port of the same name wins.
    ports = {port.get("name", ""): port["containerPort"] for port in _ports(spec.tf_replica_specs[replica_type])}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": general_name(job.name, replica_type, index),
            "namespace": job.namespace,
            "labels": labels,
            "ownerReferences": [owner_reference(job)],
        },
        "spec": {
            "clusterIP": "None",
            "selector": labels,
            "ports": [{"name": name, "port": port} if name else {"port": port} for name, port in ports.items()],
        },
    }


def tf_config(job: Job, spec: TFJobSpec, replica_type: str, index: int, *, domain: str = "", slot: int = 0) -> str:
    """TF_CONFIG of one replica: dense, or sparse for a job with dynamic workers (where a PS knows itself alone and a
    worker knows itself and all PS; other types know nobody, as upstream has it).

    `domain` is the cluster domain to append to host names; empty for none. `slot` is added to the ports: the programs
    of two generations run side by side in a pod.
    """
    suffix = f".{domain}" if domain else ""
    cluster = {
        name.lower(): [
            f"{general_name(job.name, name, i)}.{job.namespace}.svc{suffix}:{_port(replica) + slot}"
            for i in range(replica.count)
        ]
        for name, replica in sorted(spec.tf_replica_specs.items(), key=lambda item: item[0].lower())
    }
    kind = replica_type.lower()
    task = {"type": kind, "index": index}
    if not spec.enable_dynamic_worker:
        return orjson.dumps({"cluster": cluster, "task": task, "environment": "cloud"}).decode()
    sparse: dict[str, Any] = {"worker": {}, "ps": []}
    if kind == "ps":
        sparse["ps"] = [cluster["ps"][index]]
    elif kind == "worker":
        # Go writes a nil slice as null.
        sparse = {"worker": {str(index): cluster["worker"][index]}, "ps": cluster.get("ps")}
    return orjson.dumps({"cluster": sparse, "task": task}).decode()


def _is_master(spec: TFJobSpec, replica_type: str, index: int) -> bool:
    if spec.has_chief:
        return replica_type in ("Chief", "Master")
    return replica_type == "Worker" and index == 0


def _is_distributed(spec: TFJobSpec) -> bool:
    """A job of a single replica trains locally and gets no TF_CONFIG."""
    return sum(spec.tf_replica_specs[name].count for name in REPLICA_TYPES if name in spec.tf_replica_specs) != 1


def _trainer(containers: list[dict[str, Any]]) -> dict[str, Any]:
    return next((container for container in containers if container.get("name") == CONTAINER), containers[0])


def _default_port(pod_spec: Mapping[str, Any]) -> None:
    container = _trainer(pod_spec["containers"])
    ports = container.setdefault("ports", [])
    if not any(port.get("name") == PORT_NAME for port in ports):
        ports.append({"name": PORT_NAME, "containerPort": PORT})


def _set_tf_config(pod_spec: Mapping[str, Any], value: str) -> None:
    for container in pod_spec["containers"]:
        if container.get("name") == CONTAINER:
            container["env"] = [*(container.get("env") or ()), {"name": "TF_CONFIG", "value": value}]
            return


def _ports(replica: ReplicaSpec) -> list[dict[str, Any]]:
    """Ports of the container that trains, with the default applied."""
    ports = list(_trainer(replica.containers()).get("ports") or ())
    if not any(port.get("name") == PORT_NAME for port in ports):
        ports.append({"name": PORT_NAME, "containerPort": PORT})
    return ports


def _port(replica: ReplicaSpec) -> int:
    return next(int(port["containerPort"]) for port in _ports(replica) if port.get("name") == PORT_NAME)
