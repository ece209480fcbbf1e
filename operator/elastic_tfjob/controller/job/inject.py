"""What the operator adds to a pod: the launcher, the exporter beside it, a pinned node, other CPU. Pure.

See docs/elastic.md for what they do. The user's image is not touched: the launcher, which needs only Python 3.9, is
copied from the operator's image. The exporter does that as soon as it starts (a postStart hook, which kubelet waits for
before it starts the next container): an init container of its own would take a second or two of each pod's start. Only
a pod without the exporter has one.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from elastic_tfjob.api.annotations import Elasticity
from elastic_tfjob.api.tfjob import CONTAINER, PORT, TFJobSpec
from elastic_tfjob.controller.job.pods import on_host_network, port_on_host, program_port, trainer_port
from elastic_tfjob.controller.objects.command import COMMAND_ANNOTATION
from elastic_tfjob.controller.objects.loan import LOANED_TAINT
from elastic_tfjob.controller.objects.pod import STATUS_PORT, STATUS_PORT_NAME
from elastic_tfjob.controller.objects.quantities import amounts, requests_of
from elastic_tfjob.scheduling.resources import Resources

__all__ = [
    "has_launcher",
    "inject",
    "needs_accelerator",
    "pin",
    "set_cpu",
    "sidecar_request",
    "tolerate_loan",
    "trainer_of",
]

_FOLDER: Final = "/elastic-tfjob"
_COMMAND_FOLDER: Final = "/elastic-tfjob-command"
_VOLUME: Final = "elastic-tfjob"
_COMMAND_VOLUME: Final = "elastic-tfjob-command"
# What Trainer v2 gives the program of a TrainJob so that it may tell of its progress.
_TRAINER_ENV: Final = "KUBEFLOW_TRAINER_SERVER_"
_TRAINER_VOLUME: Final = "kubeflow-trainer-token"
# On the host's network, from the port in TF_CONFIG to the exporter's: 2222 has the usual one.
_STATUS_AWAY: Final = STATUS_PORT - PORT
_SECOND_PORT_NAME: Final = "elastic-tfjob-2"
_LAUNCHER: Final = ("python3", f"{_FOLDER}/launcher.pyz", "--")
_INSTALL: Final = ("runtime.install", _FOLDER)

_SECURITY: Final[Mapping[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}
# No CPU of its own (it uses 2 millicores), so that a pod which asks for all that a node has still fits there. The 0 is
# written out, as a namespace with a quota admits no container without a request.
_SIDECAR_RESOURCES: Final[Mapping[str, Any]] = {
    "requests": {"cpu": "0", "memory": "32Mi"},
    "limits": {"memory": "96Mi"},
}
# In the pods of a job that Kueue admitted, which holds what its templates say and nothing more.
_UNCOUNTED: Final[Mapping[str, Any]] = {**_SIDECAR_RESOURCES, "requests": {"cpu": "0", "memory": "0"}}


def has_launcher(elasticity: Elasticity, spec: TFJobSpec) -> bool:
    """Whether all of a job's pods get the launcher and the exporter, so that it can be rescaled without stopping."""
    return elasticity.injected(spec) == "both" and not without_command(spec)


def without_command(spec: TFJobSpec) -> list[str]:
    """The replica types whose program the launcher cannot start: an image's entrypoint is not known to the operator."""
    return [name for name, replica in spec.tf_replica_specs.items() if not trainer_of(replica.template).get("command")]


def needs_accelerator(spec: TFJobSpec) -> bool:
    """Whether a replica holds a device that two programs cannot share."""
    return any(
        requests_of(replica.template.get("spec") or {}).accelerators for replica in spec.tf_replica_specs.values()
    )


def sidecar_request(queue: str = "") -> Resources:
    """What the exporter adds to a pod's requests, given the Kueue queue that admits the job."""
    return amounts((_UNCOUNTED if queue else _SIDECAR_RESOURCES)["requests"])


def inject(pod: dict[str, Any], what: str, image: str, checkpoint_dir: str | None, queue: str = "") -> None:
    """Add to a rendered pod: `what` is launcher, sidecar, both or none; `queue` the Kueue queue that admits the job."""
    if what == "none":
        return
    spec = pod["spec"]
    spec["volumes"] = [*(spec.get("volumes") or ()), {"name": _VOLUME, "emptyDir": {}}]
    shared = {"name": _VOLUME, "mountPath": _FOLDER}
    trainer = trainer_of(pod)
    trainer["volumeMounts"] = [*(trainer.get("volumeMounts") or ()), shared]
    trainer["env"] = [*(trainer.get("env") or ()), {"name": "ELASTIC_TFJOB_DIR", "value": _FOLDER}]
    if checkpoint_dir is not None:
        trainer["env"].append({"name": "ELASTIC_TFJOB_CHECKPOINT_DIR", "value": checkpoint_dir})
    launches = what in ("launcher", "both") and bool(trainer.get("command"))
    if launches:
        _add_launcher(spec, trainer)
    added = []
    if what in ("sidecar", "both"):
        port = port_on_host(trainer_port(trainer), _STATUS_AWAY) if on_host_network(spec) else STATUS_PORT
        added.append(_exporter(trainer, image, shared, queue, port=port, installs=launches))
    elif launches:
        added.append(_container("install", image, _INSTALL, [shared], queue))
    spec["initContainers"] = [*added, *(spec.get("initContainers") or ())]


def _exporter(
    trainer: Mapping[str, Any], image: str, shared: dict[str, Any], queue: str, *, port: int, installs: bool
) -> dict[str, Any]:
    module = ("exporter", f"--dir={_FOLDER}", f"--port={port}")
    exporter = _container("exporter", image, module, [shared], queue)
    exporter["restartPolicy"] = "Always"
    exporter["ports"] = [{"name": STATUS_PORT_NAME, "containerPort": port}]
    if installs:
        exporter["command"].append("--launcher")
        exporter["lifecycle"] = {"postStart": {"exec": {"command": _python(_INSTALL)}}}
    _tell_trainer(trainer, exporter)
    return exporter


def _tell_trainer(trainer: Mapping[str, Any], exporter: dict[str, Any]) -> None:
    """In pods of a TrainJob the exporter tells Trainer v2 of the progress, as Trainer asks the program to."""
    told = [each for each in trainer.get("env") or () if str(each.get("name")).startswith(_TRAINER_ENV)]
    if told:
        mounts = [each for each in trainer.get("volumeMounts") or () if each.get("name") == _TRAINER_VOLUME]
        exporter["env"] = told
        exporter["volumeMounts"] = [*exporter["volumeMounts"], *mounts]


def _add_launcher(spec: dict[str, Any], trainer: dict[str, Any]) -> None:
    command = {"fieldRef": {"fieldPath": f"metadata.annotations['{COMMAND_ANNOTATION}']"}, "path": "command"}
    spec["volumes"].append({"name": _COMMAND_VOLUME, "downwardAPI": {"items": [command]}})
    trainer["volumeMounts"].append({"name": _COMMAND_VOLUME, "mountPath": _COMMAND_FOLDER, "readOnly": True})
    trainer["env"].append({"name": "ELASTIC_TFJOB_COMMAND", "value": f"{_COMMAND_FOLDER}/command"})
    trainer["command"] = [*_LAUNCHER, *trainer["command"]]
    if on_host_network(spec):
        # Kept free on the node from the start: the program beside the first needs it.
        second = program_port(trainer_port(trainer), 1, host=True)
        trainer["ports"] = [*(trainer.get("ports") or ()), {"name": _SECOND_PORT_NAME, "containerPort": second}]


def _container(
    name: str, image: str, module: Sequence[str], mounts: list[dict[str, Any]], queue: str
) -> dict[str, Any]:
    return {
        "name": f"elastic-tfjob-{name}",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": _python(module),
        "volumeMounts": mounts,
        "resources": dict(_UNCOUNTED if queue else _SIDECAR_RESOURCES),
        "securityContext": dict(_SECURITY),
    }


def _python(module: Sequence[str]) -> list[str]:
    return ["python", "-m", f"elastic_tfjob.{module[0]}", *module[1:]]


def pin(pod: dict[str, Any], node: str) -> None:
    """Have the pod bound to that node and no other. The user's own required affinity must still match: it is narrowed,
    so that a node which no longer fits leaves the pod pending and says why."""
    affinity = pod["spec"].setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    terms = required.get("nodeSelectorTerms") or [{}]
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    required["nodeSelectorTerms"] = [
        {**term, "matchFields": [*(term.get("matchFields") or ()), here]} for term in terms
    ]


def tolerate_loan(pod: dict[str, Any]) -> None:
    """Let the pod be bound to a node that another pool has lent."""
    toleration = {"key": LOANED_TAINT, "operator": "Exists", "effect": "NoSchedule"}
    pod["spec"]["tolerations"] = [*(pod["spec"].get("tolerations") or ()), toleration]


def set_cpu(pod: dict[str, Any], request: int, limit: int) -> None:
    """Give the container that trains so many millicores; a limit of 0 is none."""
    trainer_of(pod)["resources"] = with_cpu(trainer_of(pod).get("resources") or {}, request, limit)


def with_cpu(resources: Mapping[str, Any], request: int, limit: int) -> dict[str, Any]:
    """A container's resources with other CPU."""
    requests = {**(resources.get("requests") or {}), "cpu": f"{request}m"}
    limits = {**(resources.get("limits") or {}), **({"cpu": f"{limit}m"} if limit else {})}
    return {**resources, "requests": requests, **({"limits": limits} if limits else {})}


def trainer_of(pod: Mapping[str, Any]) -> dict[str, Any]:
    """The container that trains, of a pod or a template; empty where there is none."""
    containers: list[dict[str, Any]] = (pod.get("spec") or {}).get("containers") or []
    return next((container for container in containers if container.get("name") == CONTAINER), {})
