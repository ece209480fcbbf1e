"""Adds to a pod the launcher, the exporter, a pinned node, or different CPU. Pure.

docs/elastic.md describes launcher and exporter. The user's image is not changed: the launcher, which needs only Python
3.9, is copied from the operator's image. The exporter copies it when it starts, in a postStart hook, which the kubelet
waits for before it starts the next container. An init container would add one to two seconds to each pod's start, so
only a pod without the exporter has one.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from elastic_tfjob.api.annotations import Elasticity
from elastic_tfjob.api.quantity import quantity
from elastic_tfjob.api.tfjob import CONTAINER, PORT, TFJobSpec
from elastic_tfjob.controller.job.pods import on_host_network, port_on_host, program_port, trainer_port
from elastic_tfjob.controller.model.cluster import LOANED_TAINT
from elastic_tfjob.controller.model.command import COMMAND_ANNOTATION
from elastic_tfjob.controller.model.injection import DEFAULT_RESOURCES, UNCOUNTED, ContainerResources, Injection
from elastic_tfjob.controller.model.pod import STATUS_PORT, STATUS_PORT_NAME
from elastic_tfjob.controller.model.quantities import has_pod_level_resources, requests_of
from elastic_tfjob.scheduling.resources import Resources

__all__ = [
    "SECURITY",
    "has_launcher",
    "inject",
    "injected",
    "is_adapted",
    "keep_last_words",
    "needs_accelerator",
    "on_windows",
    "pin",
    "requests_with",
    "resources_of",
    "set_checkpoint_env",
    "set_cpu",
    "tolerate_loan",
    "trainer_of",
]

_FOLDER: Final = "/elastic-tfjob"
_COMMAND_FOLDER: Final = "/elastic-tfjob-command"
_VOLUME: Final = "elastic-tfjob"
_COMMAND_VOLUME: Final = "elastic-tfjob-command"
# Environment variables and volume that Trainer v2 gives a TrainJob's program for reporting its progress.
_TRAINER_ENV: Final = "KUBEFLOW_TRAINER_SERVER_"
_TRAINER_VOLUME: Final = "kubeflow-trainer-token"
# On the host's network, the distance from the port in TF_CONFIG to the exporter's: with port 2222 the exporter has its
# usual port.
_STATUS_AWAY: Final = STATUS_PORT - PORT
_SECOND_PORT_NAME: Final = "elastic-tfjob-2"
_LAUNCHER: Final = ("python3", f"{_FOLDER}/launcher.pyz", "--")
_INSTALL: Final = ("runtime.install", _FOLDER)
_CHECKPOINT_DIR: Final = "ELASTIC_TFJOB_CHECKPOINT_DIR"
_JOB: Final = "ELASTIC_TFJOB_JOB"

SECURITY: Final[Mapping[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}
# Fields of a template that determine its pods' resources, and fields of a container that determine its own or that
# `inject` reads.
_TAKES: Final = ("containers", "initContainers", "overhead", "resources", "nodeSelector", "os", "hostNetwork")
_SIZED: Final = ("name", "resources", "command")
_OS_LABEL: Final = "kubernetes.io/os"


def has_launcher(elasticity: Elasticity, spec: TFJobSpec) -> bool:
    """Whether all of a job's pods get the launcher and the exporter, so that it can be rescaled without a stop."""
    return elasticity.injected(spec) == "both" and not without_command(spec) and not on_windows(spec)


def without_command(spec: TFJobSpec) -> list[str]:
    """Returns the replica types whose program the launcher cannot start: without a command, as the operator does not
    know an image's entrypoint."""
    return [name for name, replica in spec.tf_replica_specs.items() if not trainer_of(replica.template).get("command")]


def on_windows(spec: TFJobSpec) -> list[str]:
    """Returns the replica types whose pods run on Windows, where nothing can be injected."""
    return [name for name, replica in spec.tf_replica_specs.items() if _windows(replica.template.get("spec") or {})]


def _windows(pod_spec: Mapping[str, Any]) -> bool:
    says = (pod_spec.get("os") or {}).get("name"), (pod_spec.get("nodeSelector") or {}).get(_OS_LABEL)
    return "windows" in says


def injected(elasticity: Elasticity, spec: TFJobSpec, injection: Injection | None) -> str:
    """Returns what is injected into all of a job's pods, given what its namespace admits: `launcher`, `sidecar`, `both`
    or `none`."""
    refused = injection is not None and bool(injection.refused)
    return "none" if refused or on_windows(spec) else elasticity.injected(spec)


def needs_accelerator(spec: TFJobSpec) -> bool:
    """Whether any replica holds a device that two programs cannot share."""
    return any(
        requests_of(replica.template.get("spec") or {}).accelerators for replica in spec.tf_replica_specs.values()
    )


def requests_with(
    what: str,
    template_spec: Mapping[str, Any],
    resources: ContainerResources = DEFAULT_RESOURCES,
    *,
    adapted: bool = False,
) -> Resources:
    """Returns the resources of a template's rendered pod; `what`, `resources` and `adapted` as for `inject`."""
    spec = {name: template_spec[name] for name in _TAKES if template_spec.get(name)}
    spec["containers"] = [
        {name: each[name] for name in _SIZED if name in each} for each in spec.get("containers") or ()
    ]
    inject({"spec": spec}, what, "", None, resources, adapted=adapted)
    return requests_of(spec)


def resources_of(
    injection: Injection | None, configured: ContainerResources = DEFAULT_RESOURCES, queue: str = ""
) -> ContainerResources:
    """Returns the resources of an injected container. It requests 0 in a job that a Kueue `queue` admits, as Kueue
    reserves what the templates request and nothing more."""
    if injection is not None and injection.resources:
        return injection.resources
    return {**configured, "requests": UNCOUNTED["requests"]} if queue else configured


def is_adapted(injection: Injection | None) -> bool:
    """Whether an injected container has the resources that the namespace wants, instead of the configured ones."""
    return injection is not None and bool(injection.resources)


def inject(
    pod: dict[str, Any],
    what: str,
    image: str,
    checkpoint_dir: str | None,
    resources: ContainerResources = DEFAULT_RESOURCES,
    *,
    job: str = "",
    adapted: bool = False,
) -> None:
    """Injects into a rendered pod. `what` is `launcher`, `sidecar`, `both` or `none`; `resources` are those of an added
    container; `job` is the pod's job (namespace/name/uid). A pod without any resources (BestEffort) stays BestEffort,
    as quotas count it by its class; only resources `adapted` to the namespace change that. An added container takes
    nothing in a pod with pod-level resources, which limit all containers together."""
    if what == "none":
        return
    spec = pod["spec"]
    if (_is_best_effort(spec) and not adapted) or has_pod_level_resources(spec):
        resources = UNCOUNTED
    spec["volumes"] = [*(spec.get("volumes") or ()), {"name": _VOLUME, "emptyDir": {}}]
    shared = {"name": _VOLUME, "mountPath": _FOLDER}
    trainer = trainer_of(pod)
    trainer["volumeMounts"] = [*(trainer.get("volumeMounts") or ()), shared]
    trainer["env"] = [*(trainer.get("env") or ()), {"name": "ELASTIC_TFJOB_DIR", "value": _FOLDER}]
    if checkpoint_dir is not None:
        trainer["env"].append({"name": _CHECKPOINT_DIR, "value": checkpoint_dir})
        trainer["env"].append({"name": _JOB, "value": job})
    launches = what in ("launcher", "both") and bool(trainer.get("command"))
    if launches:
        _add_launcher(spec, trainer)
    added = []
    if what in ("sidecar", "both"):
        port = port_on_host(trainer_port(trainer), _STATUS_AWAY) if on_host_network(spec) else STATUS_PORT
        while port in _ports_of(spec):
            port = port_on_host(port, 1)
        added.append(_exporter(trainer, image, shared, resources, port=port, installs=launches))
    elif launches:
        added.append(_container("install", image, _INSTALL, [shared], resources))
    if has_pod_level_resources(spec):
        _keep_pod_level(spec)
    spec["initContainers"] = [*added, *(spec.get("initContainers") or ())]


def set_checkpoint_env(pod: dict[str, Any], checkpoint_dir: str | None, job: str) -> None:
    """Sets the environment variables of checkpoint directory and job, in a pod into which nothing is injected."""
    trainer = trainer_of(pod)
    if checkpoint_dir is not None and trainer:
        environment = {"name": _CHECKPOINT_DIR, "value": checkpoint_dir}, {"name": _JOB, "value": job}
        trainer["env"] = [*(trainer.get("env") or ()), *environment]


def keep_last_words(pod: dict[str, Any]) -> None:
    """Makes the kubelet put a failed program's last log lines into its pod's status, unless the user sets this
    policy."""
    trainer_of(pod).setdefault("terminationMessagePolicy", "FallbackToLogsOnError")


def _keep_pod_level(spec: dict[str, Any]) -> None:
    """Keeps a pod's total resources unchanged by the added containers. The API server makes a pod-level limit the
    request, too, unless a container names that resource, as the added ones do."""
    resources = spec["resources"]
    requests, limits = dict(resources.get("requests") or {}), resources.get("limits") or {}
    named = {
        name
        for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
        for amounts in (container.get("resources") or {}).values()
        for name in amounts or ()
    }
    for name in UNCOUNTED["requests"]:
        if name in limits and name not in named:
            requests.setdefault(name, limits[name])
    spec["resources"] = {**resources, "requests": requests}


def _exporter(
    trainer: Mapping[str, Any],
    image: str,
    shared: dict[str, Any],
    resources: ContainerResources,
    *,
    port: int,
    installs: bool,
) -> dict[str, Any]:
    module = ("exporter", f"--dir={_FOLDER}", f"--port={port}")
    exporter = _container("exporter", image, module, [shared], resources)
    exporter["restartPolicy"] = "Always"
    exporter["ports"] = [{"name": STATUS_PORT_NAME, "containerPort": port}]
    if installs:
        exporter["command"].append("--launcher")
        exporter["lifecycle"] = {"postStart": {"exec": {"command": _python(_INSTALL)}}}
    _set_progress_env(trainer, exporter)
    return exporter


def _ports_of(spec: Mapping[str, Any]) -> set[object]:
    """Returns the ports that the containers of a pod declare."""
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    return {port.get("containerPort") for each in containers for port in each.get("ports") or ()}


def _is_best_effort(spec: Mapping[str, Any]) -> bool:
    """Whether a pod requests no CPU and no memory, in any container or at pod level."""
    asked = [spec, *(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    amounts = [
        found for each in asked for found in (each.get("resources") or {}).values() if isinstance(found, Mapping)
    ]
    return not any(quantity(found.get(name)) for found in amounts for name in ("cpu", "memory"))


def _set_progress_env(trainer: Mapping[str, Any], exporter: dict[str, Any]) -> None:
    """Makes the exporter report progress to Trainer v2, in pods of a TrainJob, as Trainer expects from the program."""
    environment = [each for each in trainer.get("env") or () if str(each.get("name")).startswith(_TRAINER_ENV)]
    if environment:
        mounts = [each for each in trainer.get("volumeMounts") or () if each.get("name") == _TRAINER_VOLUME]
        exporter["env"] = environment
        exporter["volumeMounts"] = [*exporter["volumeMounts"], *mounts]


def _add_launcher(spec: dict[str, Any], trainer: dict[str, Any]) -> None:
    command = {"fieldRef": {"fieldPath": f"metadata.annotations['{COMMAND_ANNOTATION}']"}, "path": "command"}
    spec["volumes"].append({"name": _COMMAND_VOLUME, "downwardAPI": {"items": [command]}})
    trainer["volumeMounts"].append({"name": _COMMAND_VOLUME, "mountPath": _COMMAND_FOLDER, "readOnly": True})
    trainer["env"].append({"name": "ELASTIC_TFJOB_COMMAND", "value": f"{_COMMAND_FOLDER}/command"})
    trainer["command"] = [*_LAUNCHER, *trainer["command"]]
    if on_host_network(spec):
        # Reserved on the node from the start, as the second program needs it.
        second = program_port(trainer_port(trainer), 1, host=True)
        trainer["ports"] = [*(trainer.get("ports") or ()), {"name": _SECOND_PORT_NAME, "containerPort": second}]


def _container(
    name: str, image: str, module: Sequence[str], mounts: list[dict[str, Any]], resources: ContainerResources
) -> dict[str, Any]:
    return {
        "name": f"elastic-tfjob-{name}",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": _python(module),
        "volumeMounts": mounts,
        "resources": {kind: dict(amounts) for kind, amounts in resources.items()},
        "securityContext": dict(SECURITY),
    }


def _python(module: Sequence[str]) -> list[str]:
    return ["python", "-m", f"elastic_tfjob.{module[0]}", *module[1:]]


def pin(pod: dict[str, Any], node: str) -> None:
    """Pins the pod to a node. The user's own required affinity is narrowed and must still match, so a pod whose node no
    longer fits stays pending, and kube-scheduler reports why."""
    affinity = pod["spec"].setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    terms = required.get("nodeSelectorTerms") or [{}]
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    required["nodeSelectorTerms"] = [
        {**term, "matchFields": [*(term.get("matchFields") or ()), here]} for term in terms
    ]


def tolerate_loan(pod: dict[str, Any]) -> None:
    """Allows the pod on a node that another pool has lent."""
    toleration = {"key": LOANED_TAINT, "operator": "Exists", "effect": "NoSchedule"}
    pod["spec"]["tolerations"] = [*(pod["spec"].get("tolerations") or ()), toleration]


def set_cpu(pod: dict[str, Any], request_millicores: int, limit_millicores: int) -> None:
    """Sets the CPU of the container that trains, in millicores; a limit of 0 means none."""
    trainer_of(pod)["resources"] = with_cpu(
        trainer_of(pod).get("resources") or {}, request_millicores, limit_millicores
    )


def with_cpu(resources: Mapping[str, Any], request_millicores: int, limit_millicores: int) -> dict[str, Any]:
    """Returns a container's resources with this CPU, in millicores."""
    requests = {**(resources.get("requests") or {}), "cpu": f"{request_millicores}m"}
    limits = {**(resources.get("limits") or {}), **({"cpu": f"{limit_millicores}m"} if limit_millicores else {})}
    return {**resources, "requests": requests, **({"limits": limits} if limits else {})}


def trainer_of(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the container that trains, of a pod or a template; empty if there is none."""
    containers: list[dict[str, Any]] = (pod.get("spec") or {}).get("containers") or []
    return next((container for container in containers if container.get("name") == CONTAINER), {})
