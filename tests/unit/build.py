"""Builders of observations: only what a case is about is said, the rest has the usual values."""

from datetime import UTC, datetime, timedelta
from typing import Any

from elastic_tfjob.controller.job.decision import Decision, Event, Observed, ReconcileSettings
from elastic_tfjob.controller.job.reconcile import reconcile
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.owned_objects import PodGroup, Service
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.status import format_time

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
UID = "job-uid"


class Recorder:
    """An EventRecorder that keeps the events instead of writing them."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def record(self, _: object, event: Event) -> None:
        self.events.append(event)


def template(**pod_spec: Any) -> dict[str, Any]:
    """A pod template with one container that trains; `metadata` goes beside its spec."""
    metadata = pod_spec.pop("metadata", None)
    spec = {"containers": [{"name": "tensorflow", "image": "train"}], **pod_spec}
    return {"spec": spec, **({"metadata": metadata} if metadata else {})}


def replicas(count: int, restart: str | None = None, **pod_spec: Any) -> dict[str, Any]:
    """One entry of tfReplicaSpecs."""
    found: dict[str, Any] = {"replicas": count, "template": template(**pod_spec)}
    return {**found, "restartPolicy": restart} if restart else found


def job(
    types: dict[str, Any] | None = None,
    *,
    status: dict[str, Any] | None = None,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> TFJob:
    """A TFJob; `types` maps a replica type to a count or to an entry of tfReplicaSpecs."""
    declared = {
        name: value if isinstance(value, dict) else replicas(value)
        for name, value in (types if types is not None else {"Worker": 1}).items()
    }
    return TFJob.parse(
        {
            "metadata": {
                "namespace": "ns",
                "name": "j",
                "uid": UID,
                "resourceVersion": "7",
                "annotations": annotations or {},
            },
            "spec": {"tfReplicaSpecs": declared, **spec},
            "status": status or {},
        }
    )


def raw_node(
    name: str,
    cpu: str = "4",
    memory: str = "8Gi",
    *,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A node that is Ready and takes 110 pods, as the API server sends it; `spec`: fields of its spec."""
    return {
        "metadata": {
            "name": name,
            "uid": name,
            "resourceVersion": "1",
            "labels": labels or {},
            "annotations": annotations or {},
        },
        "spec": spec,
        "status": {
            "allocatable": {"cpu": cpu, "memory": memory, "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(replica_type: str, index: int, phase: str = "Running", *, exit_code: int | None = None, **state: Any) -> Pod:
    """A pod of that job. `owner`, `terminating`, `restarts`, `annotations`, `leads`, and raw `spec` and `status` fields
    can be given."""
    name = f"j-{replica_type.lower()}-{index}"
    container: dict[str, Any] = {"name": "tensorflow", "restartCount": state.get("restarts", 0)}
    if exit_code is not None:
        container["state"] = {"terminated": {"exitCode": exit_code}}
    metadata: dict[str, Any] = {
        "namespace": "ns",
        "name": name,
        "uid": f"{name}-uid",
        "resourceVersion": "3",
        "labels": {
            "training.kubeflow.org/job-name": "j",
            "training.kubeflow.org/replica-type": replica_type.lower(),
            "training.kubeflow.org/replica-index": str(index),
        },
        "annotations": state.get("annotations", {}),
        "ownerReferences": [{"uid": state.get("owner", UID), "controller": True}],
    }
    if state.get("leads", replica_type.lower() in ("chief", "master")):
        metadata["labels"]["training.kubeflow.org/job-role"] = "master"
    if state.get("terminating"):
        metadata["deletionTimestamp"] = "2026-01-02T03:04:00Z"
    status = {"phase": phase, "containerStatuses": [container], **state.get("status", {})}
    return Pod.parse({"metadata": metadata, "spec": state.get("spec", {}), "status": status})


def service(replica_type: str, index: int, *, owner: str = UID) -> Service:
    """A service of that job; an empty owner for an orphan."""
    name = f"j-{replica_type.lower()}-{index}"
    return Service.parse(
        {
            "metadata": {
                "namespace": "ns",
                "name": name,
                "uid": f"{name}-svc-uid",
                "resourceVersion": "3",
                "labels": {
                    "training.kubeflow.org/job-name": "j",
                    "training.kubeflow.org/replica-type": replica_type.lower(),
                    "training.kubeflow.org/replica-index": str(index),
                },
                "ownerReferences": [{"uid": owner, "controller": True}] if owner else [],
            }
        }
    )


def services(counts: dict[str, int]) -> tuple[Service, ...]:
    """All services of a job with so many replicas per type."""
    return tuple(service(name, index) for name, count in counts.items() for index in range(count))


def pod_group(**spec: Any) -> PodGroup:
    """The job's PodGroup; `phase` is its status."""
    phase = spec.pop("phase", "")
    return PodGroup.parse(
        {
            "metadata": {
                "namespace": "ns",
                "name": "j",
                "uid": "group-uid",
                "resourceVersion": "3",
                "ownerReferences": [{"uid": UID, "controller": True}],
            },
            "spec": spec,
            "status": {"phase": phase},
        }
    )


def decide(
    observed_job: TFJob, *, settings: ReconcileSettings | None = None, later_s: float = 0.0, **seen: Any
) -> Decision:
    """Reconcile one observation at NOW, or so much later."""
    moment = NOW + timedelta(seconds=later_s)
    return reconcile(Observed(job=observed_job, now=moment, **seen), settings or ReconcileSettings())


def condition(type_: str, status: str = "True", reason: str | None = None) -> dict[str, str]:
    """One stored condition, since NOW."""
    moment = format_time(NOW)
    return {
        "type": type_,
        "status": status,
        "reason": reason or f"TFJob{type_}",
        "message": "",
        "lastUpdateTime": moment,
        "lastTransitionTime": moment,
    }


def shown(status: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Type, status and reason of each condition, in order."""
    return [(item["type"], item["status"], item["reason"]) for item in status["conditions"]]
