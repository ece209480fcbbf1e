"""Renders what the operator creates for a replica: its pod with TF_CONFIG, and its headless service. Pure.

TF_CONFIG equals upstream's byte for byte (tfjob v1, tensorflow.go), so programs that compare or hash it see no change.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from elastic_tfjob.api.annotations import OPERATOR_ANNOTATIONS, PREFIX, Elasticity
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
from elastic_tfjob.controller.model.annotations import Indexes
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.state import Next, StoredState

__all__ = [
    "Pods",
    "PodsBySize",
    "Role",
    "TFConfigs",
    "chief_of",
    "general_name",
    "has_one_replica",
    "on_host_network",
    "owner_reference",
    "pods_of",
    "pods_of_both",
    "port_on_host",
    "program_port",
    "render_pod",
    "render_service",
    "replica_labels",
    "roles_of",
    "sized",
    "tf_config",
    "trainer_port",
]

Role = tuple[str, int]
"""Replica type and index of the pod."""
Pods = Mapping[str, Sequence[int]]
"""The indexes of pods by replica type."""

_AS_COUNTED: Final[Indexes] = {}
_UNPRIVILEGED: Final = 1024
_PORTS: Final = 65535
# On the host's network, the distance from the port in TF_CONFIG to the port of the second program.
_SECOND_PROGRAM: Final = 10_000
_OWN_ANNOTATIONS: Final = frozenset(PREFIX + name for name in OPERATOR_ANNOTATIONS)


def general_name(job: str, replica_type: str, index: int) -> str:
    """Returns the name of a replica's pod and service."""
    return f"{job}-{replica_type.lower()}-{index}"


def owner_reference(job: TFJob) -> dict[str, Any]:
    """Returns the owner reference by which a job's objects are deleted with it."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def replica_labels(job: str, replica_type: str, index: int) -> dict[str, str]:
    """Returns the labels that identify a pod's or service's job and replica; the service also selects by them."""
    return {
        OPERATOR_NAME_LABEL: CONTROLLER_NAME,
        JOB_NAME_LABEL: job,
        REPLICA_TYPE_LABEL: replica_type.lower(),
        REPLICA_INDEX_LABEL: str(index),
    }


def worker_selector(job: str) -> str:
    """Returns the label selector of a job's worker pods, for the subresource `scale`."""
    return f"{JOB_NAME_LABEL}={job},{REPLICA_TYPE_LABEL}=worker"


def sized(spec: TFJobSpec, counts: Mapping[str, int]) -> TFJobSpec:
    """Returns the spec with these replica counts; a type that is not in `counts` has none."""
    replicas = {
        name: replica.model_copy(update={"replicas": counts.get(name, 0)})
        for name, replica in spec.tf_replica_specs.items()
    }
    return spec.model_copy(update={"tf_replica_specs": replicas})


def has_one_replica(declared: TFJobSpec, elasticity: Elasticity) -> bool:
    """Whether a job trains locally, and so gets no TF_CONFIG: it has one replica, and can never have more. Its present
    size does not matter, as a program that was written for several replicas reads TF_CONFIG."""
    known = {name: replica for name, replica in declared.tf_replica_specs.items() if name in REPLICA_TYPES}
    if sum(replica.count for replica in known.values()) != 1:
        return False
    most = sum(elasticity.bounds(name, replica.count)[1] for name, replica in known.items())
    return most == 1 or not elasticity.elastic(declared)


def render_pod(
    job: TFJob,
    spec: TFJobSpec,
    replica_type: str,
    index: int,
    *,
    configs: "TFConfigs | None" = None,
    local: bool | None = None,
) -> dict[str, Any]:
    """Renders the pod of one replica: the user's template with labels, owner, restart policy, port and TF_CONFIG, and
    without annotations that only the operator writes, so that a template cannot give its pods commands.

    `configs` are those of the size of `spec`, if they exist already. A `local` job gets no TF_CONFIG; None: `spec` is
    the declared one, and decides this.
    """
    replica = spec.tf_replica_specs[replica_type]
    template = copy.deepcopy(replica.template)
    metadata = template.get("metadata") or {}
    labels = (metadata.get("labels") or {}) | replica_labels(job.name, replica_type, index)
    if _is_master(spec, replica_type, configs.task(replica_type, index) if configs is not None else index):
        labels[JOB_ROLE_LABEL] = "master"
    pod_spec: dict[str, Any] = template.get("spec") or {}
    # ExitCode is the operator's policy, not the kubelet's: the kubelet must leave the container stopped, so that the
    # operator can judge its exit code.
    pod_spec["restartPolicy"] = "Never" if replica.restart == "ExitCode" else replica.restart
    _default_port(pod_spec)
    if not (has_one_replica(spec, Elasticity()) if local is None else local):
        head, tail = (configs or TFConfigs(job, spec)).parts(replica_type, index)
        _set_tf_config(pod_spec, head + tail)
    rendered = {
        "name": general_name(job.name, replica_type, index),
        "namespace": job.namespace,
        "labels": labels,
        "ownerReferences": [owner_reference(job)],
    }
    notes = {name: text for name, text in (metadata.get("annotations") or {}).items() if name not in _OWN_ANNOTATIONS}
    kept = {"annotations": notes, "finalizers": metadata.get("finalizers")}
    rendered |= {name: value for name, value in kept.items() if value}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": rendered, "spec": pod_spec}


def render_service(job: TFJob, spec: TFJobSpec, replica_type: str, index: int) -> dict[str, Any]:
    """Renders the headless service of one replica, with all ports of the container that trains."""
    labels = replica_labels(job.name, replica_type, index)
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
            "ports": _service_ports(_ports(spec.tf_replica_specs[replica_type])),
        },
    }


def tf_config(job: TFJob, spec: TFJobSpec, replica_type: str, index: int, *, domain: str = "", slot: int = 0) -> str:
    """Returns TF_CONFIG of one replica. For several replicas use `TFConfigs`, which renders their common part once."""
    head, tail = TFConfigs(job, spec, domain=domain, slot=slot).parts(replica_type, index)
    return head + tail


class TFConfigs:
    """TF_CONFIG of all replicas of one size: dense, or sparse for a job with dynamic workers. In a sparse one a PS is
    listed alone, a worker with all PS, and other types with no replica, as upstream has it.

    `domain` is the cluster domain to append to host names; empty for none. `slot` selects one of each program's two
    ports (program_port), as programs of two generations run side by side in a pod. `indexes` are those of the pods with
    the tasks 0 to n-1.
    """

    def __init__(
        self, job: TFJob, spec: TFJobSpec, *, domain: str = "", slot: int = 0, indexes: Indexes = _AS_COUNTED
    ) -> None:
        suffix = f".{domain}" if domain else ""
        self._tasks = {name: {index: task for task, index in enumerate(indexes[name])} for name in indexes}
        self._cluster = {
            name.lower(): [
                f"{general_name(job.name, name, i)}.{job.namespace}.svc{suffix}:{port}"
                for i in indexes.get(name, range(replica.count))
            ]
            for name, replica in sorted(spec.tf_replica_specs.items(), key=lambda item: item[0].lower())
            for port in (program_port(_port(replica), slot, host=on_host_network(replica.template.get("spec") or {})),)
        }
        self._sparse = spec.enable_dynamic_worker
        # The common part is rendered once: for a thousand workers each text has a thousand names.
        shared = self._cluster.get("ps") if self._sparse else self._cluster
        self._shared = orjson.dumps(shared).decode()
        self._head = f'{{"cluster":{self._shared},"task":'

    def task(self, replica_type: str, index: int) -> int:
        """Returns the task of the pod with this index."""
        return self._tasks[replica_type][index] if replica_type in self._tasks else index

    def parts(self, replica_type: str, index: int) -> tuple[str, str]:
        """Returns the text for the pod with this index in two parts: the part common to all replicas, and the rest."""
        kind, index = replica_type.lower(), self.task(replica_type, index)
        task = orjson.dumps({"type": kind, "index": index}).decode()
        if not self._sparse:
            return self._head, f'{task},"environment":"cloud"}}'
        worker, ps = "{}", "[]"
        if kind == "ps":
            ps = orjson.dumps([self._cluster["ps"][index]]).decode()
        elif kind == "worker":
            # Go writes a nil slice as null, so `shared` is null without parameter servers.
            worker, ps = orjson.dumps({str(index): self._cluster["worker"][index]}).decode(), self._shared
        return '{"cluster":{"worker":', f'{worker},"ps":{ps}}},"task":{task}}}'


class PodsBySize:
    """Caches the common data of one job's replicas, by size. `local`: the job has one replica, and never has more."""

    def __init__(self, job: TFJob, declared: TFJobSpec, domain: str, *, local: bool = False) -> None:
        self._job = job
        self._declared = declared
        self._domain = domain
        self._local = local
        self._specs: dict[tuple[tuple[str, int], ...], TFJobSpec] = {}
        self._configs: dict[tuple[object, ...], TFConfigs] = {}

    def spec(self, counts: Mapping[str, int]) -> TFJobSpec:
        """Returns the spec with these replica counts."""
        key = tuple(sorted(counts.items()))
        if key not in self._specs:
            self._specs[key] = sized(self._declared, counts)
        return self._specs[key]

    def is_local(self, counts: Mapping[str, int]) -> bool:
        """Whether a size gets no TF_CONFIG. A size that still has several replicas from before an edit gets one."""
        return self._local and sum(counts.values()) == 1

    def tf_configs(self, counts: Mapping[str, int], slot: int, indexes: Indexes = _AS_COUNTED) -> TFConfigs:
        """Returns TF_CONFIG of the replicas of a size whose pods have these indexes."""
        key = tuple(sorted(counts.items())), slot, tuple(sorted(indexes.items()))
        if key not in self._configs:
            spec = self.spec(counts)
            self._configs[key] = TFConfigs(self._job, spec, domain=self._domain, slot=slot, indexes=indexes)
        return self._configs[key]


def _is_master(spec: TFJobSpec, replica_type: str, task: int) -> bool:
    if spec.has_chief:
        return replica_type in ("Chief", "Master")
    return replica_type == "Worker" and task == 0


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
    """Returns the ports of the container that trains, with the default port added if it is missing."""
    ports = list(_trainer(replica.containers()).get("ports") or ())
    if not any(port.get("name") == PORT_NAME for port in ports):
        ports.append({"name": PORT_NAME, "containerPort": PORT})
    return ports


def on_host_network(pod_spec: Mapping[str, Any]) -> bool:
    """Whether the pods of a template use their node's network and ports."""
    return pod_spec.get("hostNetwork") is True


def program_port(port: int, slot: int, *, host: bool = False) -> int:
    """Returns the port of the program in a slot, given the port in TF_CONFIG. The second slot has the next port. On the
    host's network the next port probably belongs to another replica, so the second slot's port is _SECOND_PROGRAM
    away."""
    if not slot:
        return port
    return port_on_host(port, _SECOND_PROGRAM) if host else port + 1 if port < _PORTS else port - 1


def port_on_host(port: int, away: int) -> int:
    """Returns an extra port in a pod on its host's network, `away` from the port in TF_CONFIG. No two pods on a node
    share the TF_CONFIG port, so the extra ports do not collide either. They are declared as container ports, so
    kube-scheduler keeps other pods that use them off the node."""
    return _UNPRIVILEGED + (port + away - _UNPRIVILEGED) % (_PORTS + 1 - _UNPRIVILEGED)


def trainer_port(container: Mapping[str, Any]) -> int:
    """Returns the port in TF_CONFIG of a rendered container."""
    return next(
        (int(port["containerPort"]) for port in container.get("ports") or () if port.get("name") == PORT_NAME), PORT
    )


def _service_ports(ports: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns a service's ports for a container's ports: upstream's, if the API server admits them. With several ports
    the API server requires a name for each, and no two ports of one protocol with the same number. If upstream's break
    this, every port is kept once, with its protocol, and an unnamed port is named by its number."""
    # by name, as upstream does: a later port of the same name wins
    by_name = {port.get("name") or "": port["containerPort"] for port in ports}
    if len(by_name) == 1 or ("" not in by_name and len(set(by_name.values())) == len(by_name)):
        return [{"name": name, "port": port} if name else {"port": port} for name, port in by_name.items()]
    found: dict[tuple[str, int], dict[str, Any]] = {}
    # Ports that programs may look up keep their names: the port of TF_CONFIG first, then those that the user has named.
    for port in sorted(ports, key=lambda each: (each.get("name") != PORT_NAME, not each.get("name"))):
        protocol, number = port.get("protocol") or "TCP", port["containerPort"]
        if (protocol, number) in found:
            continue
        if not (name := port.get("name")):
            name = f"port-{number}" + ("" if protocol == "TCP" else f"-{protocol.lower()}")
            while name in by_name:  # the user gave this name to another port
                name += "-x"
        entry = {"name": name, "port": number}
        found[protocol, number] = entry if protocol == "TCP" else {**entry, "protocol": protocol}
    return list(found.values())


def _port(replica: ReplicaSpec) -> int:
    return trainer_port({"ports": _ports(replica)})


def chief_of(spec: TFJobSpec, size: StoredState | Next | None = None) -> Role:
    """Returns the replica that leads the training of a size: the chief or master, else the first worker. Without a
    size, its pod has the index 0."""
    name = next((name for name in ("Chief", "Master") if name in spec.tf_replica_specs), "Worker")
    return name, next(iter(size.pods(name) if size is not None else ()), 0)


def roles_of(size: StoredState | Next) -> list[Role]:
    """Returns the replicas of a size."""
    return [(name, index) for name in size.replicas for index in size.pods(name)]


def pods_of(size: StoredState | Next) -> Pods:
    """Returns the indexes of a size's pods, by replica type."""
    return {name: size.pods(name) for name in size.replicas}


def pods_of_both(a: StoredState, b: Next) -> Pods:
    """Returns the indexes of both sizes' pods, by replica type."""

    def pods(name: str) -> Sequence[int]:
        if name in a.indexes or name in b.indexes:
            return sorted({*a.pods(name), *b.pods(name)})
        return range(max(a.replicas.get(name, 0), b.replicas.get(name, 0)))

    return {name: pods(name) for name in {**a.replicas, **b.replicas}}
