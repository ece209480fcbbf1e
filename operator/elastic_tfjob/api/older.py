"""Conversion of TFJobs of older API versions to v1, with a list of the changes. Pure.

The job keeps its behaviour: defaults that have changed are written out, and fields that no API server of that version
stored are removed. Versions: v1alpha1 (a list of replicas; also in the group tensorflow.org), v1alpha2, v1beta1 and
v1beta2 (policies next to the replicas), and early v1 files with fields of those."""

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
    """A TFJob cannot be converted to v1; `problems` has a line per reason."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = few(problems)
        super().__init__("; ".join(self.problems))


def converted(raw: dict[str, Any], strict: Strict) -> tuple[dict[str, Any], list[str]]:
    """The job as v1 (`strict` has the schema of v1), and a line per change; no lines: the job is unchanged. Raises
    CannotConvert."""
    group, _, version = str(raw.get("apiVersion")).rpartition("/")
    if group not in _GROUPS or version not in (*_OLDER, VERSION):
        known = ", ".join((*_OLDER, VERSION))
        raise CannotConvert([f"apiVersion is {describe(raw.get('apiVersion'))}; allowed: {known} of {GROUP}"])
    conversion = _Conversion(copy.deepcopy(raw), version)
    conversion.run(strict)
    if conversion.problems:
        raise CannotConvert(conversion.problems)
    return conversion.job, conversion.changes


class _Conversion:
    """One job during conversion. `changes` has the changes, `problems` the reasons why it cannot be converted."""

    def __init__(self, job: dict[str, Any], version: str) -> None:
        self.job = job
        self.changes: list[str] = []
        self.problems: list[str] = []
        self._version = version

    def run(self, strict: Strict) -> None:
        self._head()
        spec = self.job.get("spec")
        if not isinstance(spec, dict):
            self.problems.append(f"spec is {describe(spec)}; allowed: an object")
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
            self.changes.append(f"apiVersion: changed from {job['apiVersion']} to {wanted}")
            job["apiVersion"] = wanted
        if job.get("kind") != KIND:
            self.changes.append(f"kind: changed from {job['kind']} to {KIND}")
            job["kind"] = KIND
        if self._version == VERSION:
            return
        if job.pop("status", None):
            self.changes.append("status: removed, because the operator writes it")
        metadata = job.get("metadata")
        if isinstance(metadata, dict):
            removed = [name for name in _SERVERS_OWN if metadata.pop(name, None) is not None]
            notes = metadata.get("annotations")
            if isinstance(notes, dict):
                removed += [f"annotations[{name}]" for name in _OTHERS_OWN if notes.pop(name, None) is not None]
            if removed:
                self.changes.append(f"metadata: {', '.join(removed)} removed, because they belong to the old object")

    def _replicas(self, spec: dict[str, Any]) -> None:
        """Turn `replicaSpecs`, a list in v1alpha1, into `tfReplicaSpecs`, and give types v1's spelling."""
        place = "replicaSpecs" if "replicaSpecs" in spec and spec.get("tfReplicaSpecs") is None else "tfReplicaSpecs"
        old = spec.pop(place, None)
        spec["tfReplicaSpecs"] = self._from_list(place, old) if isinstance(old, list) else old
        if place == "replicaSpecs" or isinstance(old, list):
            self.changes.append(f"spec.{place}: changed to spec.tfReplicaSpecs, an object by replica type")
        types = spec.get("tfReplicaSpecs")
        if not isinstance(types, dict):
            self.problems.append(f"spec.tfReplicaSpecs is {describe(types)}; allowed: an object by replica type")
            return
        canonical = {name.lower(): name for name in REPLICA_TYPES}
        found: dict[str, Any] = {}
        for name, replica in types.items():
            right = str(canonical.get(name.lower(), name))
            if right != name:
                self.changes.append(f"spec.tfReplicaSpecs: {name} renamed to {right}")
            if right in found:
                self.problems.append(f"spec.tfReplicaSpecs: {right} is given twice")
            if not isinstance(replica, dict):
                self.problems.append(f"spec.tfReplicaSpecs[{right}] is {describe(replica)}; allowed: an object")
                continue
            if right.lower() == str(replica.get("tfReplicaType") or "").lower():
                del replica["tfReplicaType"]  # redundant: the key has the type
            self._port(f"spec.tfReplicaSpecs[{right}]", replica, replica.pop("tfPort", None))
            found[right] = replica
        spec["tfReplicaSpecs"] = found
        if "Master" in found and self._version != VERSION:
            self.changes.append(
                "spec.tfReplicaSpecs[Master]: kept, so that TF_CONFIG names it as before. TensorFlow 2 expects a "
                "chief; rename it to Chief if the program does too"
            )

    def _from_list(self, place: str, old: list[Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for index, entry in enumerate(old):
            where = f"spec.{place}[{index}]"
            if not isinstance(entry, dict):
                self.problems.append(f"{where} is {describe(entry)}; allowed: an object")
                continue
            replica = dict(entry)
            name = str(replica.pop("tfReplicaType", None) or "MASTER")
            if name in found:
                self.problems.append(f"{where}: tfReplicaType {name} is given twice; v1 allows one entry per type")
            if replica.pop("isDefaultPS", None) or not isinstance(replica.get("template"), dict):
                self.problems.append(
                    f"{where}: {name} has no template, because the v1alpha1 operator supplied its program. "
                    "Add a template that starts a TensorFlow server"
                )
                continue
            pod = replica["template"].get("spec")
            if "restartPolicy" not in replica and isinstance(pod, dict) and pod.get("restartPolicy"):
                replica["restartPolicy"] = pod.pop("restartPolicy")
                self.changes.append(
                    f"{where}.template.spec.restartPolicy: moved next to replicas, because v1 ignores it in the "
                    "template"
                )
            found[name] = replica
        return found

    def _port(self, where: str, replica: dict[str, Any], port: Any) -> None:
        trainer = next((each for each in _containers(replica) if each.get("name") == CONTAINER), None)
        if isinstance(port, str) and port.isdecimal():
            port = int(port)
        given = (trainer.get("ports") or ()) if trainer is not None else ()
        if trainer is None or not isinstance(given, list | tuple) or port in (None, PORT):
            return
        # v1 finds TensorFlow's port by this name, which another port may have.
        others = [
            {key: value for key, value in each.items() if (key, value) != ("name", PORT_NAME)}
            for each in given
            if isinstance(each, dict) and (each.get("containerPort"), each.get("protocol", "TCP")) != (port, "TCP")
        ]
        trainer["ports"] = [*others, {"name": PORT_NAME, "containerPort": port}]
        self.changes.append(f"{where}.tfPort: moved to the port {PORT_NAME} of the container {CONTAINER}")

    def _policies(self, spec: dict[str, Any]) -> None:
        """Move policies from spec into runPolicy."""
        if spec.get("runPolicy") is None:
            spec.pop("runPolicy", None)
        policy = spec.get("runPolicy", {})
        if not isinstance(policy, dict):
            self.problems.append(f"spec.runPolicy is {describe(policy)}; allowed: an object")
            return
        for owner, place in ((spec, "spec"), (policy, "spec.runPolicy")):
            for old, new in _POLICIES.items():
                if old not in owner or (owner is policy and old == new):
                    continue
                value = owner.pop(old)
                if value is None:
                    self.changes.append(f"{place}.{old}: removed, because it is null")
                elif policy.get(new) not in (None, value):
                    both = f"{describe(value)} and {describe(policy[new])}"
                    self.problems.append(f"{place}.{old} and spec.runPolicy.{new} differ: {both}")
                else:
                    policy[new] = value
                    self.changes.append(f"{place}.{old}: moved to spec.runPolicy.{new}")
        if self._version != VERSION and policy.get("cleanPodPolicy") is None:
            policy["cleanPodPolicy"] = "Running"
            self.changes.append(
                f"spec.runPolicy.cleanPodPolicy: set to Running, the default in {self._version}; v1's default is None"
            )
        if policy:
            # runPolicy comes first, where people expect it.
            rest = {name: value for name, value in spec.items() if name != "runPolicy"}
            spec.clear()
            spec.update(runPolicy=policy, **rest)

    def _leftovers(self, spec: dict[str, Any]) -> None:
        """Fields of v1alpha1 that v1 has elsewhere or not at all."""
        types = spec["tfReplicaSpecs"]
        if scheduler := spec.pop("schedulerName", None):
            for replica in types.values():
                pod = replica.get("template", {}).get("spec") if isinstance(replica.get("template"), dict) else None
                if isinstance(pod, dict):
                    pod.setdefault("schedulerName", scheduler)
            self.changes.append("spec.schedulerName: moved to the template of each replica type")
        if image := spec.pop("tfImage", None):
            without = [each for replica in types.values() for each in _containers(replica) if not each.get("image")]
            for container in without:
                container["image"] = image
            use = "moved to containers without an image" if without else "removed, because all containers have an image"
            self.changes.append(f"spec.tfImage: {use}")
        if spec.pop("tensorboard", spec.pop("tensorBoard", None)) is not None:
            self.changes.append(
                "spec.tensorboard: removed, because v1 does not start TensorBoard; run it as a Deployment"
            )
        self._termination(spec.pop("terminationPolicy", None), types)

    def _termination(self, policy: Any, types: dict[str, Any]) -> None:
        """The replica whose end ends the job. In v1 it is always the chief, or worker 0 without a chief."""
        if policy is None:
            return
        chief = policy.get("chief") if isinstance(policy, dict) else None
        chief = chief if isinstance(chief, dict) else {}
        name, index = str(chief.get("replicaName") or "MASTER").lower(), chief.get("replicaIndex") or 0
        leads = next((each for each in ("Chief", "Master") if each in types), "Worker")
        if (name, index) in ((leads.lower(), 0), ("chief" if leads == "Master" else "master", 0)):
            self.changes.append(f"spec.terminationPolicy: removed, because in v1 a job ends when its {leads} 0 does")
        else:
            problem = f"in v1 a job ends when its {leads} 0 does"
            self.problems.append(f"spec.terminationPolicy names {describe(name)} {describe(index)}: {problem}")

    def _containers(self, where: str, replica: dict[str, Any]) -> None:
        containers = _containers(replica)
        if len(containers) == 1 and containers[0].get("name") != CONTAINER:
            change = f"{where}: container {describe(containers[0].get('name'))} renamed to {CONTAINER}, as v1 requires"
            self.changes.append(change)
            containers[0]["name"] = CONTAINER
        for container in containers:
            resources = container.get("resources")
            for part in (resources or {}).values() if isinstance(resources, dict) else ():
                if isinstance(part, dict) and _OLD_GPU in part:
                    part.setdefault(_GPU, part.pop(_OLD_GPU))
                    self.changes.append(f"{where}: {_OLD_GPU} renamed to {_GPU}")

    def _schema(self, strict: Strict) -> None:
        """Remove fields that v1 does not have, and convert values of a wrong type if nothing is lost."""
        for misfit in list(strict.misfits(self.job)):
            owner, key = _owner(self.job, misfit)
            if misfit.unknown:
                del owner[key]
                hint = f"; did you mean {misfit.right}?" if misfit.right else ""
                self.changes.append(f"{misfit.path}: removed, because v1 has no such field{hint}")
                continue
            value = None if misfit.kind == "" else _of_kind(misfit.kind, owner[key])
            if value is None:
                self.problems.append(f"{misfit.path}: {misfit.text}{f': {misfit.right}' if misfit.right else ''}")
            else:
                self.changes.append(f"{misfit.path}: changed from {describe(owner[key])} to {describe(value)}")
                owner[key] = value


def _owner(job: Any, misfit: Misfit) -> tuple[Any, Any]:
    found = job
    for part in misfit.at[:-1]:
        found = found[part]
    return found, misfit.at[-1]


def _of_kind(kind: str, value: object) -> object:
    """The same value in another type; None if it cannot be converted."""
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
