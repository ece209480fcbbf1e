"""The kubeflow.org/v1 TFJob as users write it.

The models describe only `spec`. Pod templates stay plain dictionaries, because the operator passes them on unread. The
operator writes status itself (controller/model/status.py). As in upstream, defaults are applied in memory and never
written to the API object."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema, field_validator
from pydantic.alias_generators import to_camel

from elastic_tfjob.api.reading import (
    MAX_AFFINITY_VALUES,
    MAX_ALL_TEMPLATES_VALUES,
    MAX_DEPTH,
    MAX_PLACEMENT_TERMS,
    MAX_QUANTITY_EXPONENT,
    MAX_QUANTITY_LENGTH,
    MAX_REPLICA_TYPES,
    MAX_REPLICAS,
    MAX_RESOURCE_NAMES,
    MAX_TEMPLATE_VALUES,
    MAX_WORD,
    cut,
    describe,
    few,
)
from elastic_tfjob.api.words import REPLICA_TYPES

__all__ = [
    "COMPLETION_INDEX_LABEL",
    "CONTAINER",
    "CONTROLLER_NAME",
    "GROUP",
    "JOB_NAME_LABEL",
    "JOB_ROLE_LABEL",
    "KIND",
    "MAX_NAME",
    "OPERATOR_NAME_LABEL",
    "PLURAL",
    "PORT",
    "PORT_NAME",
    "REPLICATED_JOB_LABEL",
    "REPLICA_INDEX_LABEL",
    "REPLICA_TYPES",
    "REPLICA_TYPE_LABEL",
    "VERSION",
    "InvalidTFJob",
    "ReplicaSpec",
    "RunPolicy",
    "SchedulingPolicy",
    "TFJobSpec",
    "nameable",
    "oversized",
    "oversized_jobset",
    "trains_in",
]


# -- Size limits of a spec ---------------------------------------------------------------------------------------------
# They bound the cost of creating pods from a template, and of planning. Kubernetes admits specs of 1.5 MB, which can be
# half a million objects. Each pod copies them all, and each reconciliation and scheduling round reads some. The limits
# are checked before anything else, in bounded time: nothing here recurses, and a walk ends at the limit.

_REQUIRED: Final = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"


# Fields of a pod spec with quantities, at any depth: objects of quantities, and single quantities.
_QUANTITIES: Final = ("limits", "requests", "overhead")
_QUANTITY: Final = ("sizeLimit", "divisor")
_EXPONENT: Final = re.compile(r"[eE][+-]?0*([0-9]+)$")


def oversized(spec: object) -> Iterator[str]:
    """Parts of a TFJob's spec, as the API sends it, that are too large: where, how large, and what is allowed. Values
    of a wrong type are ignored."""
    spec = _object(spec)
    policy = _object(_object(spec.get("runPolicy")).get("schedulingPolicy"))
    yield from _many("spec.runPolicy.schedulingPolicy.minResources", policy.get("minResources"), MAX_RESOURCE_NAMES)
    types = _object(spec.get("tfReplicaSpecs"))
    if len(types) > MAX_REPLICA_TYPES:
        yield f"spec.tfReplicaSpecs: {len(types)} replica types; allowed: {MAX_REPLICA_TYPES}"
        return
    total, each_fits = 0, True
    for name, replica in types.items():
        path = f"spec.tfReplicaSpecs[{cut(str(name), MAX_WORD)}].template"
        template = _object(_object(replica).get("template"))
        values, problem = _walk(template)
        total += values
        if problem:
            each_fits = False
            yield f"{path}: {problem}"
        else:
            yield from _lists(template, path)
    if each_fits and total > MAX_ALL_TEMPLATES_VALUES:
        yield (
            f"spec.tfReplicaSpecs: the templates of all types together have {total} values (keys and entries of "
            f"lists); allowed: {MAX_ALL_TEMPLATES_VALUES}"
        )


def oversized_jobset(spec: object) -> Iterator[str]:
    """The same for a JobSet's spec, whose replicated jobs are one replica type each."""
    jobs = _list(_object(spec).get("replicatedJobs"))
    if len(jobs) > MAX_REPLICA_TYPES:
        yield f"spec.replicatedJobs: {len(jobs)} replicated jobs; allowed: {MAX_REPLICA_TYPES}"
        return
    for job in map(_object, jobs):
        path = f"spec.replicatedJobs[{cut(str(job.get('name')), MAX_WORD)}].template.spec.template"
        template = _object(_object(_object(job.get("template")).get("spec")).get("template"))
        _, problem = _walk(template)
        if problem:
            yield f"{path}: {problem}"
        else:
            yield from _lists(template, path)


def _walk(template: Mapping[str, Any]) -> tuple[int, str]:
    """How many keys and entries of lists there are at all depths, and what is wrong with them. Level by level, so that
    no more than the limit is ever held."""
    values, level = 0, [template]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for each in level:
            values += len(each)
            if values > MAX_TEMPLATE_VALUES:
                return values, f"more than {MAX_TEMPLATE_VALUES} values (keys and entries of lists), the most allowed"
            if problem := _quantities(each):
                return values, problem
            inner = each.values() if isinstance(each, dict) else each
            below += [value for value in inner if isinstance(value, dict | list)]
        if not below:
            return values, ""
        level = below
    return values, f"nested deeper than {MAX_DEPTH} levels, the most allowed"


def _quantities(found: object) -> str:
    """What is wrong with the quantities that an object has, whatever they are for."""
    if not isinstance(found, dict):
        return ""
    amounts = [(key, found[key]) for key in _QUANTITY if key in found]
    for name in _QUANTITIES:
        amounts += [(f"{name}[{cut(str(key), MAX_WORD)}]", amount) for key, amount in _object(found.get(name)).items()]
    for where, amount in amounts:
        if not isinstance(amount, str):
            continue
        if len(amount) > MAX_QUANTITY_LENGTH:
            return f"{where}: a quantity of {len(amount)} characters; allowed: {MAX_QUANTITY_LENGTH}"
        exponent = _EXPONENT.search(amount)
        if exponent is not None and int(exponent.group(1)) > MAX_QUANTITY_EXPONENT:
            return f"{where}: {amount} has an exponent beyond {MAX_QUANTITY_EXPONENT}, the most allowed"
    return ""


def _lists(template: Mapping[str, Any], path: str) -> Iterator[str]:
    """Lists that rounds compare with each node, and names of resources, each of which is read. The walk has bounded
    them all together."""
    pod, path = _object(template.get("spec")), f"{path}.spec"
    for name in ("nodeSelector", "tolerations"):
        yield from _many(f"{path}.{name}", pod.get(name), MAX_PLACEMENT_TERMS)
    yield from _many(f"{path}.overhead", pod.get("overhead"), MAX_RESOURCE_NAMES)
    for name in ("limits", "requests"):
        yield from _many(f"{path}.resources.{name}", _object(pod.get("resources")).get(name), MAX_RESOURCE_NAMES)
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(_list(pod.get(kind))):
            resources = _object(_object(container).get("resources"))
            for name in ("limits", "requests"):
                where = f"{path}.{kind}[{index}].resources.{name}"
                yield from _many(where, resources.get(name), MAX_RESOURCE_NAMES)
    if "affinity" in pod:
        yield from _affinity(pod, f"{path}.{_REQUIRED}")


def _affinity(pod: Mapping[str, Any], path: str) -> Iterator[str]:
    found: Any = pod
    for name in _REQUIRED.split("."):
        found = _object(found).get(name)
    terms = _list(found)
    requirements = [
        each
        for term in terms
        for part in ("matchExpressions", "matchFields")
        for each in _list(_object(term).get(part))
    ]
    values = sum(len(_list(_object(each).get("values"))) for each in requirements)
    yield from _many(path, terms, MAX_PLACEMENT_TERMS)
    if len(requirements) > MAX_PLACEMENT_TERMS:
        yield f"{path}: {len(requirements)} expressions in all terms; allowed: {MAX_PLACEMENT_TERMS}"
    if values > MAX_AFFINITY_VALUES:
        yield f"{path}: {values} values in all expressions; allowed: {MAX_AFFINITY_VALUES}"


def _many(path: str, found: object, most: int) -> Iterator[str]:
    if isinstance(found, dict | list) and len(found) > most:
        yield f"{path}: {len(found)} entries; allowed: {most}"


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


GROUP: Final = "kubeflow.org"
VERSION: Final = "v1"
KIND: Final = "TFJob"
PLURAL: Final = "tfjobs"

# The training container, and the port of its TensorFlow server.
CONTAINER: Final = "tensorflow"
# The training container's name in Trainer v2 and its SDK, and their labels of a TrainJob's pods.
NODE_CONTAINER: Final = "node"
JOBSET_NAME_LABEL: Final = "jobset.sigs.k8s.io/jobset-name"
REPLICATED_JOB_LABEL: Final = "jobset.sigs.k8s.io/replicatedjob-name"
COMPLETION_INDEX_LABEL: Final = "batch.kubernetes.io/job-completion-index"
PORT_NAME: Final = "tfjob-port"
PORT: Final = 2222

# Upstream's labels, unchanged: downstream tools (Kueue, Katib, the Python SDK) select pods by them.
CONTROLLER_NAME: Final = "tfjob-controller"
OPERATOR_NAME_LABEL: Final = "training.kubeflow.org/operator-name"
JOB_NAME_LABEL: Final = "training.kubeflow.org/job-name"
REPLICA_TYPE_LABEL: Final = "training.kubeflow.org/replica-type"
REPLICA_INDEX_LABEL: Final = "training.kubeflow.org/replica-index"
JOB_ROLE_LABEL: Final = "training.kubeflow.org/job-role"

# The value of runPolicy.managedBy that means this operator; unset means the same.
MANAGED_BY_OPERATOR: Final = "kubeflow.org/training-operator"
MANAGED_BY_MULTIKUEUE: Final = "kueue.x-k8s.io/multikueue"

QUANTITY_PATTERN: Final = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)


Int32 = Annotated[int, WithJsonSchema({"type": "integer", "format": "int32"})]
Int64 = Annotated[int, WithJsonSchema({"type": "integer", "format": "int64"})]
Quantity = Annotated[
    int | str,
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": QUANTITY_PATTERN,
            "x-kubernetes-int-or-string": True,
        }
    ),
]


MAX_NAME: Final = 63
"""Maximum characters of a Service name, a DNS label. A replica's pod and Service have the same name."""


class InvalidTFJob(ValueError):
    """An invalid spec. `problems` has a few short lines with the field path, the error and the value found."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = few(problems)
        super().__init__("; ".join(self.problems))


class _Model(BaseModel):
    # Unknown fields are ignored: the CRD prunes them, and an operator older than the CRD must not fail on a newer
    # field.
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")


class SchedulingPolicy(_Model):
    """How a gang scheduler treats the job. Used only when the operator runs with `--gang-scheduler-name`."""

    min_available: Int32 | None = Field(
        None, description="Number of pods that must be placed together. Default: all pods."
    )
    queue: str | None = Field(None, description="Queue of the gang scheduler. Immutable.")
    min_resources: dict[str, Quantity] | None = Field(
        None, description="Resources that must be free before the gang starts. Default: computed from the templates."
    )
    priority_class: str | None = Field(None, description="PriorityClass of the PodGroup (not of the pods).")
    schedule_timeout_seconds: Int32 | None = Field(
        None, description="Seconds that the gang may wait for placement (scheduler-plugins only)."
    )


class RunPolicy(_Model):
    """When the job ends, and what happens to its pods afterwards."""

    clean_pod_policy: str | None = Field(
        None,
        description="Which pods and services to delete when the job has finished: None (the default), Running (pods "
        "that are Running or Pending) or All.",
    )
    ttl_seconds_after_finished: Int32 | None = Field(
        None, description="Seconds after the job's end until the TFJob is deleted. Default: never."
    )
    active_deadline_seconds: Int64 | None = Field(
        None, description="Seconds from startTime after which the job fails. Default: no limit."
    )
    backoff_limit: Int32 | None = Field(
        None,
        description="Total number of container restarts in the running pods after which the job fails. Default: no "
        "limit.",
    )
    scheduling_policy: SchedulingPolicy | None = Field(None, description="Gang scheduling.")
    suspend: bool = Field(
        False,
        description="true deletes all pods and services and keeps the job; false starts the job again.",
    )
    managed_by: str | None = Field(
        None,
        description="The controller that runs this job; all others ignore it. Immutable.",
        json_schema_extra={"enum": [MANAGED_BY_OPERATOR, MANAGED_BY_MULTIKUEUE]},
    )


def nameable(job: str, replica_type: str) -> int:
    """How many replicas of a type can have a name (`JOB-TYPE-INDEX`) of at most MAX_NAME characters."""
    digits = MAX_NAME - len(f"{job}-{replica_type}-")
    return 10 ** min(digits, 6) if digits > 0 else 0


def trains_in(labels: Mapping[str, str] | None) -> str:
    """The training container in a pod with these labels: `node` in pods of a TrainJob, otherwise `tensorflow`."""
    return NODE_CONTAINER if labels and REPLICATED_JOB_LABEL in labels else CONTAINER


class ReplicaSpec(_Model):
    """A replica type: number of replicas, template and restart policy."""

    replicas: Int32 | None = Field(None, description="Number of replicas. Default: 1.")
    template: dict[str, Any] = Field(
        default_factory=dict, description="Pod template. The training container must be named `tensorflow`."
    )
    restart_policy: str | None = Field(
        None,
        description="Never (the default), OnFailure, Always, or ExitCode: exit codes of 128 and above are retried, 1 "
        "to 127 "
        "fail the job.",
    )

    @property
    def count(self) -> int:
        """The number of replicas, with the default applied."""
        return 1 if self.replicas is None else self.replicas

    @property
    def restart(self) -> str:
        """The restart policy, with the default applied."""
        return self.restart_policy or "Never"

    def containers(self) -> list[dict[str, Any]]:
        """The template's containers; empty if it has none."""
        containers: list[dict[str, Any]] = (self.template.get("spec") or {}).get("containers") or []
        return containers


class TFJobSpec(_Model):
    """`spec` of a TFJob. The keys of `tfReplicaSpecs` get upstream's spelling, whatever their case."""

    run_policy: RunPolicy = Field(
        default_factory=RunPolicy, description="When the job ends, and what is deleted afterwards."
    )
    success_policy: str | None = Field(
        None,
        description="When a job without a chief succeeds: empty (the default): when worker 0 succeeds; AllWorkers: "
        "when all workers succeed.",
    )
    enable_dynamic_worker: bool = Field(
        False,
        description="true allows workers to be added and removed: TF_CONFIG is sparse, and a failed worker does not "
        "fail the job.",
    )
    tf_replica_specs: dict[str, ReplicaSpec] = Field(
        description="Replicas by type: Chief, Master, Evaluator, PS, Worker.",
    )

    @field_validator("tf_replica_specs", mode="before")
    @classmethod
    def _canonical_types(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        canonical = {name.lower(): name for name in REPLICA_TYPES}
        return {canonical.get(str(key).lower(), key): spec for key, spec in value.items()}

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> "TFJobSpec":
        """Read `spec` as the API sends it. Raises InvalidTFJob, with upstream's messages, for whatever admission
        refuses, so that clusters whose CRD has no rules (as upstream's) are also safe. It also raises for too many
        replicas and too large templates, which the CRD admits as upstream's does."""
        # Size limits come first, because everything else reads the whole spec.
        if too_large := list(oversized(raw)):
            raise InvalidTFJob(too_large)
        try:
            spec = cls.model_validate(raw)
        except ValidationError as error:
            raise InvalidTFJob(
                [
                    f"spec.{'.'.join(map(str, item['loc']))}: {item['msg']}, got {describe(item['input'])}"
                    for item in error.errors(include_url=False)
                ]
            ) from error
        if problems := list(_problems(spec)):
            raise InvalidTFJob(problems)
        return spec

    @property
    def clean_pod_policy(self) -> str:
        """The cleanPodPolicy, with the default applied."""
        return self.run_policy.clean_pod_policy or "None"

    @property
    def has_chief(self) -> bool:
        """Whether a Chief or Master decides that the job runs and succeeds."""
        return "Chief" in self.tf_replica_specs or "Master" in self.tf_replica_specs

    @property
    def total_replicas(self) -> int:
        """The number of replicas of all types."""
        return sum(spec.count for spec in self.tf_replica_specs.values())

    def managed_here(self) -> bool:
        """Whether this operator runs the job; False: another controller is named."""
        return self.run_policy.managed_by in (None, MANAGED_BY_OPERATOR)


def _problems(spec: TFJobSpec) -> Iterable[str]:
    if "Chief" in spec.tf_replica_specs and "Master" in spec.tf_replica_specs:
        yield "spec.tfReplicaSpecs: Forbidden: must not have more than 1 Chief or Master role"
    for name, replica in spec.tf_replica_specs.items():
        if not 0 < len(name) <= MAX_NAME:
            yield f"spec.tfReplicaSpecs: a replica type has 1 to {MAX_NAME} characters, got {describe(name)}"
        if replica.count < 0:
            yield f"spec.tfReplicaSpecs[{name}].replicas: must not be negative, got {replica.count}"
    if (total := spec.total_replicas) > MAX_REPLICAS:
        yield f"spec.tfReplicaSpecs: {total} replicas in total; allowed: {MAX_REPLICAS}"
    for name, replica in spec.tf_replica_specs.items():
        path = f"spec.tfReplicaSpecs[{name}].template.spec.containers"
        containers = replica.containers()
        if not containers:
            yield f"{path}: Required value: must be specified"
        if not any(container.get("name") == CONTAINER for container in containers):
            yield f"{path}: Required value: must have at least one container with name {CONTAINER}"
        for index, container in enumerate(containers):
            if not container.get("image"):
                yield f"{path}[{index}].image: Required value: must be required"
