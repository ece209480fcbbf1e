"""TFJobs of older API versions as TFJobs of v1, and what had to be changed for that. Pure.

What the job did under its own version is kept: a default that was another one then is written out, and a field that no
API server of that version kept is removed. Versions: v1alpha1 (a list of replicas; also in the group tensorflow.org),
v1alpha2, v1beta1 and v1beta2 (policies beside the replicas), early files of v1 that still have fields of those.
"""

import copy
import re
from typing import Any, Final

from elastic_tfjob.api.reading import describe, few
from elastic_tfjob.api.strict import Misfit, Strict
from elastic_tfjob.api.tfjob import CONTAINER, GROUP, KIND, PORT, PORT_NAME, REPLICA_TYPES, VERSION, RunPolicy

__all__ = ["CannotConvert", "converted"]

_GROUPS: Final = (GROUP, "tensorflow.org")
_OLDER: Final = ("v1alpha1", "v1alpha2", "v1beta1", "v1beta2")
_POLICIES: Final = {
    **{str(field.alias): str(field.alias) for field in RunPolicy.model_fields.values()},
    "ttlSecondsAfterFinishing": "ttlSecondsAfterFinished",
    "cleanupPodPolicy": "cleanPodPolicy",
}
_SERVERS_OWN: Final = ("uid", "resourceVersion", "selfLink", "creationTimestamp", "generation", "managedFields")
_OTHERS_OWN: Final = ("kubectl.kubernetes.io/last-applied-configuration", "ksonnet.io/managed")
_OLD_GPU: Final = "alpha.kubernetes.io/nvidia-gpu"
_GPU: Final = "nvidia.com/gpu"


class CannotConvert(ValueError):
    """A TFJob that cannot be one of v1; `problems` has a line each."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = few(problems)
        super().__init__("; ".join(self.problems))


def converted(raw: dict[str, Any], strict: Strict) -> tuple[dict[str, Any], list[str]]:
    """The job as one of v1 (`strict` knows its schema), and what was changed, a line each; none: it is as it was.
    Raises CannotConvert."""
    group, _, version = str(raw.get("apiVersion")).rpartition("/")
    if group not in _GROUPS or version not in (*_OLDER, VERSION):
        known = ", ".join((*_OLDER, VERSION))
        raise CannotConvert([f"apiVersion is {describe(raw.get('apiVersion'))}; known are {known} of {GROUP}"])
    conversion = _Conversion(copy.deepcopy(raw), version)
    conversion.run(strict)
    if conversion.problems:
        raise CannotConvert(conversion.problems)
    return conversion.job, conversion.said


class _Conversion:
    """One job while it is changed: `said` has what was changed, `problems` what cannot be."""

    def __init__(self, job: dict[str, Any], version: str) -> None:
        self.job = job
        self.said: list[str] = []
        self.problems: list[str] = []
        self._version = version

    def run(self, strict: Strict) -> None:
        self._head()
        spec = self.job.get("spec")
        if not isinstance(spec, dict):
            self.problems.append(f"spec is {describe(spec)}; allowed is an object")
            return
        self._replicas(spec)
        if self.problems:
            return
        self._policies(spec)
        self._leftovers(spec)
        for name, replica in spec.get("tfReplicaSpecs", {}).items():
            self._containers(f"spec.tfReplicaSpecs[{name}]", replica)
        self._schema(strict)

    def _head(self) -> None:
        job, wanted = self.job, f"{GROUP}/{VERSION}"
        if job.get("apiVersion") != wanted:
            self.said.append(f"apiVersion: {job['apiVersion']} is now {wanted}")
            job["apiVersion"] = wanted
        if job.get("kind") != KIND:
            self.said.append(f"kind: {job['kind']} is now {KIND}")
            job["kind"] = KIND
        if self._version == VERSION:
            return
        if job.pop("status", None):
            self.said.append("status: removed, the operator writes it")
        metadata = job.get("metadata")
        if isinstance(metadata, dict):
            removed = [name for name in _SERVERS_OWN if metadata.pop(name, None) is not None]
            notes = metadata.get("annotations")
            if isinstance(notes, dict):
                removed += [f"annotations[{name}]" for name in _OTHERS_OWN if notes.pop(name, None) is not None]
            if removed:
                self.said.append(f"metadata: {', '.join(removed)} removed, as they belong to the old object")

    def _replicas(self, spec: dict[str, Any]) -> None:
        """`replicaSpecs`, a list in v1alpha1, becomes `tfReplicaSpecs`; names of types get v1's spelling."""
        place = "replicaSpecs" if "replicaSpecs" in spec and spec.get("tfReplicaSpecs") is None else "tfReplicaSpecs"
        old = spec.pop(place, None)
        spec["tfReplicaSpecs"] = self._from_list(place, old) if isinstance(old, list) else old
        if place == "replicaSpecs" or isinstance(old, list):
            self.said.append(f"spec.{place}: is now spec.tfReplicaSpecs, an object by replica type")
        types = spec.get("tfReplicaSpecs")
        if not isinstance(types, dict):
            self.problems.append(f"spec.tfReplicaSpecs is {describe(types)}; allowed is an object by replica type")
            return
        canonical = {name.lower(): name for name in REPLICA_TYPES}
        found: dict[str, Any] = {}
        for name, replica in types.items():
            right = str(canonical.get(name.lower(), name))
            if right != name:
                self.said.append(f"spec.tfReplicaSpecs: {name} is now {right}")
            if right in found:
                self.problems.append(f"spec.tfReplicaSpecs: {right} is there twice")
            if not isinstance(replica, dict):
                self.problems.append(f"spec.tfReplicaSpecs[{right}] is {describe(replica)}; allowed is an object")
                continue
            if right.lower() == str(replica.get("tfReplicaType") or "").lower():
                del replica["tfReplicaType"]  # which the key says
            self._port(f"spec.tfReplicaSpecs[{right}]", replica, replica.pop("tfPort", None))
            found[right] = replica
        spec["tfReplicaSpecs"] = found
        if "Master" in found and self._version != VERSION:
            self.said.append(
                "spec.tfReplicaSpecs[Master]: kept, so that TF_CONFIG names it as before; TensorFlow 2 looks for a "
                "chief: rename it to Chief if the program does"
            )

    def _from_list(self, place: str, old: list[Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for index, entry in enumerate(old):
            where = f"spec.{place}[{index}]"
            if not isinstance(entry, dict):
                self.problems.append(f"{where} is {describe(entry)}; allowed is an object")
                continue
            replica = dict(entry)
            name = str(replica.pop("tfReplicaType", None) or "MASTER")
            if name in found:
                self.problems.append(f"{where}: tfReplicaType {name} is there twice: v1 has one entry for each type")
            if replica.pop("isDefaultPS", None) or not isinstance(replica.get("template"), dict):
                self.problems.append(
                    f"{where}: {name} has no template: its program came from the operator of v1alpha1. "
                    "Write a template that starts a TensorFlow server"
                )
                continue
            pod = replica["template"].get("spec")
            if "restartPolicy" not in replica and isinstance(pod, dict) and pod.get("restartPolicy"):
                replica["restartPolicy"] = pod.pop("restartPolicy")
                self.said.append(f"{where}.template.spec.restartPolicy: is now beside replicas, as v1 ignores it there")
            found[name] = replica
        return found

    def _port(self, where: str, replica: dict[str, Any], port: Any) -> None:
        trainer = next((each for each in _containers(replica) if each.get("name") == CONTAINER), None)
        if isinstance(port, str) and port.isdecimal():
            port = int(port)
        given = (trainer.get("ports") or ()) if trainer is not None else ()
        if trainer is None or not isinstance(given, list | tuple) or port in (None, PORT):
            return
        # The port that v1 takes for TensorFlow's has this name; another one may have had it, or this one another name.
        others = [
            {key: value for key, value in each.items() if (key, value) != ("name", PORT_NAME)}
            for each in given
            if isinstance(each, dict) and (each.get("containerPort"), each.get("protocol", "TCP")) != (port, "TCP")
        ]
        trainer["ports"] = [*others, {"name": PORT_NAME, "containerPort": port}]
        self.said.append(f"{where}.tfPort: is now the port {PORT_NAME} of the container {CONTAINER}")

    def _policies(self, spec: dict[str, Any]) -> None:
        """What was beside the replicas and belongs into runPolicy."""
        if spec.get("runPolicy") is None:
            spec.pop("runPolicy", None)
        policy = spec.get("runPolicy", {})
        if not isinstance(policy, dict):
            self.problems.append(f"spec.runPolicy is {describe(policy)}; allowed is an object")
            return
        for owner, place in ((spec, "spec"), (policy, "spec.runPolicy")):
            for old, new in _POLICIES.items():
                if old not in owner or (owner is policy and old == new):
                    continue
                value = owner.pop(old)
                if value is None:
                    self.said.append(f"{place}.{old}: removed, as it is null")
                elif policy.get(new) not in (None, value):
                    both = f"{describe(value)} and {describe(policy[new])}"
                    self.problems.append(f"{place}.{old} and spec.runPolicy.{new} differ: {both}")
                else:
                    policy[new] = value
                    self.said.append(f"{place}.{old}: is now spec.runPolicy.{new}")
        if self._version != VERSION and policy.get("cleanPodPolicy") is None:
            policy["cleanPodPolicy"] = "Running"
            self.said.append(f"spec.runPolicy.cleanPodPolicy: Running, the default of {self._version}; v1's is None")
        if policy:
            # At the top, where people look for it.
            rest = {name: value for name, value in spec.items() if name != "runPolicy"}
            spec.clear()
            spec.update(runPolicy=policy, **rest)

    def _leftovers(self, spec: dict[str, Any]) -> None:
        """Fields of the whole job that v1alpha1 had and v1 has elsewhere, or not at all."""
        types = spec["tfReplicaSpecs"]
        if scheduler := spec.pop("schedulerName", None):
            for replica in types.values():
                pod = replica.get("template", {}).get("spec") if isinstance(replica.get("template"), dict) else None
                if isinstance(pod, dict):
                    pod.setdefault("schedulerName", scheduler)
            self.said.append("spec.schedulerName: is now in the template of each replica type")
        if image := spec.pop("tfImage", None):
            without = [each for replica in types.values() for each in _containers(replica) if not each.get("image")]
            for container in without:
                container["image"] = image
            use = "is now the image of containers without one" if without else "removed, all containers have an image"
            self.said.append(f"spec.tfImage: {use}")
        if spec.pop("tensorboard", spec.pop("tensorBoard", None)) is not None:
            self.said.append("spec.tensorboard: removed, v1 starts none: run TensorBoard as a Deployment of its own")
        self._termination(spec.pop("terminationPolicy", None), types)

    def _termination(self, policy: Any, types: dict[str, Any]) -> None:
        """The replica whose end ends the job: v1 takes the chief, or else worker 0, and nothing else can be said."""
        if policy is None:
            return
        chief = policy.get("chief") if isinstance(policy, dict) else None
        chief = chief if isinstance(chief, dict) else {}
        name, index = str(chief.get("replicaName") or "MASTER").lower(), chief.get("replicaIndex") or 0
        leads = next((each for each in ("Chief", "Master") if each in types), "Worker")
        if (name, index) in ((leads.lower(), 0), ("chief" if leads == "Master" else "master", 0)):
            self.said.append(f"spec.terminationPolicy: removed, as v1 ends a job with its {leads} 0 anyway")
        else:
            said = f"v1 ends a job with its {leads} 0, and nothing else can be chosen"
            self.problems.append(f"spec.terminationPolicy names {describe(name)} {describe(index)}: {said}")

    def _containers(self, where: str, replica: dict[str, Any]) -> None:
        containers = _containers(replica)
        if len(containers) == 1 and containers[0].get("name") != CONTAINER:
            said = f"{where}: container {describe(containers[0].get('name'))} is now {CONTAINER}, as v1 wants it"
            self.said.append(said)
            containers[0]["name"] = CONTAINER
        for container in containers:
            resources = container.get("resources")
            for part in (resources or {}).values() if isinstance(resources, dict) else ():
                if isinstance(part, dict) and _OLD_GPU in part:
                    part.setdefault(_GPU, part.pop(_OLD_GPU))
                    self.said.append(f"{where}: {_OLD_GPU} is now {_GPU}")

    def _schema(self, strict: Strict) -> None:
        """What the schema of v1 does not have is removed; values that are of another type get theirs where nothing is
        lost by it."""
        for misfit in list(strict.misfits(self.job)):
            owner, key = _owner(self.job, misfit)
            if misfit.unknown:
                del owner[key]
                hint = f": was {misfit.right} meant?" if misfit.right else ""
                self.said.append(f"{misfit.path}: removed, as v1 has no such field{hint}")
                continue
            value = None if misfit.kind == "" else _of_kind(misfit.kind, owner[key])
            if value is None:
                self.problems.append(f"{misfit.path}: {misfit.text}{f': {misfit.right}' if misfit.right else ''}")
            else:
                self.said.append(f"{misfit.path}: {describe(owner[key])} is now {describe(value)}")
                owner[key] = value


def _owner(job: Any, misfit: Misfit) -> tuple[Any, Any]:
    found = job
    for part in misfit.at[:-1]:
        found = found[part]
    return found, misfit.at[-1]


def _of_kind(kind: str, value: object) -> object:
    """The same value in another type; None where it is not the same."""
    if kind == "string" and isinstance(value, bool | int | float):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(value, str) and len(value) < 20:
        if kind == "integer" and re.fullmatch(r"-?[0-9]+", value):
            return int(value)
        if kind == "boolean" and value.lower() in ("true", "false"):
            return value.lower() == "true"
    return None


def _containers(replica: dict[str, Any]) -> list[dict[str, Any]]:
    template = replica.get("template")
    pod = template.get("spec") if isinstance(template, dict) else None
    containers = pod.get("containers") if isinstance(pod, dict) else None
    return [each for each in containers if isinstance(each, dict)] if isinstance(containers, list) else []
