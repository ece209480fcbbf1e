"""The kubeflow.org/v1 TFJob as users write it.

The models describe `spec` alone: pod templates stay plain dictionaries because the operator passes them on unread, and
status is the operator's own (controller/model/status.py). Defaults are applied in memory and never written back to
the API object, as upstream does.
"""

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


# -- How much a spec may hold beside its replicas ----------------------------------------------------------------------
# What it costs to make a pod of a template, and to plan for it.
#
# A spec of 1.5 MB, which Kubernetes admits, is half a million objects where it is made of small ones; each pod is a
# copy of them all, and each pass and each round reads some. This is looked at before anything else of a spec is, in
# time that the limits bound whatever the spec is: nothing here recurses, and a walk ends where there is too much.

_REQUIRED: Final = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"


# Where a pod's spec holds quantities, at whatever depth: objects of them, and single ones.
_QUANTITIES: Final = ("limits", "requests", "overhead")
_QUANTITY: Final = ("sizeLimit", "divisor")
_EXPONENT: Final = re.compile(r"[eE][+-]?0*([0-9]+)$")


def oversized(spec: object) -> Iterator[str]:
    """What of a TFJob's spec, as the API sends it, is more than is allowed: where, how much, and what is allowed. What
    is of another type than it should be is passed over."""
    spec = _object(spec)
    policy = _object(_object(spec.get("runPolicy")).get("schedulingPolicy"))
    yield from _many("spec.runPolicy.schedulingPolicy.minResources", policy.get("minResources"), MAX_RESOURCE_NAMES)
    types = _object(spec.get("tfReplicaSpecs"))
    if len(types) > MAX_REPLICA_TYPES:
        yield f"spec.tfReplicaSpecs: {len(types)} replica types, allowed are {MAX_REPLICA_TYPES}"
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
            f"lists), allowed are {MAX_ALL_TEMPLATES_VALUES}"
        )


def oversized_jobset(spec: object) -> Iterator[str]:
    """The same of a JobSet's spec, whose replicated jobs are one replica type each."""
    jobs = _list(_object(spec).get("replicatedJobs"))
    if len(jobs) > MAX_REPLICA_TYPES:
        yield f"spec.replicatedJobs: {len(jobs)} replicated jobs, allowed are {MAX_REPLICA_TYPES}"
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
            return f"{where}: a quantity of {len(amount)} characters, allowed are {MAX_QUANTITY_LENGTH}"
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
        yield f"{path}: {len(requirements)} expressions of all terms together, allowed are {MAX_PLACEMENT_TERMS}"
    if values > MAX_AFFINITY_VALUES:
        yield f"{path}: {values} values of all expressions together, allowed are {MAX_AFFINITY_VALUES}"


def _many(path: str, found: object, most: int) -> Iterator[str]:
    if isinstance(found, dict | list) and len(found) > most:
        yield f"{path}: {len(found)} entries, allowed are {most}"


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


GROUP: Final = "kubeflow.org"
VERSION: Final = "v1"
KIND: Final = "TFJob"
PLURAL: Final = "tfjobs"

# The container that trains, and the port its TensorFlow server listens on.
CONTAINER: Final = "tensorflow"
# What Trainer v2 and its SDK call it, and the labels by which they find the pods of a TrainJob.
NODE_CONTAINER: Final = "node"
JOBSET_NAME_LABEL: Final = "jobset.sigs.k8s.io/jobset-name"
REPLICATED_JOB_LABEL: Final = "jobset.sigs.k8s.io/replicatedjob-name"
COMPLETION_INDEX_LABEL: Final = "batch.kubernetes.io/job-completion-index"
PORT_NAME: Final = "tfjob-port"
PORT: Final = 2222

# What downstream tools (Kueue, Katib, the Python SDK) select pods by: upstream's words, kept to the letter.
CONTROLLER_NAME: Final = "tfjob-controller"
OPERATOR_NAME_LABEL: Final = "training.kubeflow.org/operator-name"
JOB_NAME_LABEL: Final = "training.kubeflow.org/job-name"
REPLICA_TYPE_LABEL: Final = "training.kubeflow.org/replica-type"
REPLICA_INDEX_LABEL: Final = "training.kubeflow.org/replica-index"
JOB_ROLE_LABEL: Final = "training.kubeflow.org/job-role"

# In the order in which upstream evaluates their state.
REPLICA_TYPES: Final = ("Chief", "Evaluator", "Master", "PS", "Worker")

# The one value of runPolicy.managedBy that means "this operator"; unset means it too.
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
"""Characters of a Service's name, which is a DNS label. Each replica's pod and Service have the same name."""


class InvalidTFJob(ValueError):
    """A spec that no TFJob may have; `problems` has a line each: field path, what is wrong, what was found. There are
    no more than a few, none of them long."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = few(problems)
        super().__init__("; ".join(self.problems))


class _Model(BaseModel):
    # Unknown fields are ignored: the CRD has pruned them already, and an operator that is older than the CRD must not
    # fail on a newer field.
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")


class SchedulingPolicy(_Model):
    """How a gang scheduler treats the job. Used only when the operator runs with `--gang-scheduler-name`."""

    min_available: Int32 | None = Field(None, description="Pods that must be placed together; default: all of them.")
    queue: str | None = Field(None, description="Queue of the gang scheduler. Immutable.")
    min_resources: dict[str, Quantity] | None = Field(
        None, description="Resources that must be free before the gang starts; default: computed from the templates."
    )
    priority_class: str | None = Field(None, description="PriorityClass of the PodGroup (not of the pods).")
    schedule_timeout_seconds: Int32 | None = Field(
        None, description="Seconds the gang may wait for its pods to be placed (scheduler-plugins only)."
    )


class RunPolicy(_Model):
    """When the job ends and what happens to its pods then."""

    clean_pod_policy: str | None = Field(
        None,
        description="Which pods and services to delete once the job has finished: None (the default), Running (pods "
        "that are Running or Pending) or All.",
    )
    ttl_seconds_after_finished: Int32 | None = Field(
        None, description="Delete the TFJob so many seconds after it finished. Default: never."
    )
    active_deadline_seconds: Int64 | None = Field(
        None, description="Fail the job when it has been active for longer than this, in seconds from startTime."
    )
    backoff_limit: Int32 | None = Field(
        None, description="Fail the job when the containers of its running pods were restarted so many times in all."
    )
    scheduling_policy: SchedulingPolicy | None = Field(None, description="Gang scheduling.")
    suspend: bool = Field(
        False,
        description="true removes all pods and services and keeps the job; false again starts it anew.",
    )
    managed_by: str | None = Field(
        None,
        description="The controller that runs this job; others ignore it. Immutable.",
        json_schema_extra={"enum": [MANAGED_BY_OPERATOR, MANAGED_BY_MULTIKUEUE]},
    )


def nameable(job: str, replica_type: str) -> int:
    """How many replicas of a type can have a name (`JOB-TYPE-INDEX`) that is no longer than MAX_NAME; 0: none can."""
    digits = MAX_NAME - len(f"{job}-{replica_type}-")
    return 10 ** min(digits, 6) if digits > 0 else 0


def trains_in(labels: Mapping[str, str] | None) -> str:
    """The container that trains in a pod with these labels: `tensorflow`, in pods of a TrainJob `node`."""
    return NODE_CONTAINER if labels and REPLICATED_JOB_LABEL in labels else CONTAINER


class ReplicaSpec(_Model):
    """One type of replica: how many, from which template, restarted when."""

    replicas: Int32 | None = Field(None, description="Number of replicas; default 1.")
    template: dict[str, Any] = Field(
        default_factory=dict, description="Pod template; the container that trains is named `tensorflow`."
    )
    restart_policy: str | None = Field(
        None,
        description="Never (the default), OnFailure, Always, or ExitCode: exit codes from 128 up are retried, 1 to 127 "
        "fail the job.",
    )

    @property
    def count(self) -> int:
        """Replicas with the default applied."""
        return 1 if self.replicas is None else self.replicas

    @property
    def restart(self) -> str:
        """Restart policy with the default applied."""
        return self.restart_policy or "Never"

    def containers(self) -> list[dict[str, Any]]:
        """The template's containers; empty where the template has none."""
        containers: list[dict[str, Any]] = (self.template.get("spec") or {}).get("containers") or []
        return containers


class TFJobSpec(_Model):
    """`spec` of a TFJob, with the keys of `tfReplicaSpecs` in upstream's spelling whatever their case was."""

    run_policy: RunPolicy = Field(default_factory=RunPolicy, description="When the job ends, and what is deleted then.")
    success_policy: str | None = Field(
        None,
        description="When a job without a chief succeeds: empty (the default): worker 0 has; AllWorkers: all have.",
    )
    enable_dynamic_worker: bool = Field(
        False,
        description="Workers may come and go: TF_CONFIG is sparse, and a failed worker does not fail the job.",
    )
    tf_replica_specs: dict[str, ReplicaSpec] = Field(
        description="Replica type (Chief, Master, Evaluator, PS, Worker) to its replicas.",
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
        """Read `spec` as the API sends it. Raises InvalidTFJob for what admission refuses, in upstream's words, so that
        a cluster whose CRD has no rules (upstream's has none) is as safe; and for more replicas than a job may have
        and for templates that are too large, which the CRD admits as upstream's does."""
        # First, and alone: whatever else looks at a spec looks at all of it.
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
        """cleanPodPolicy with the default applied."""
        return self.run_policy.clean_pod_policy or "None"

    @property
    def has_chief(self) -> bool:
        """True when a Chief or Master decides whether the job runs and succeeds."""
        return "Chief" in self.tf_replica_specs or "Master" in self.tf_replica_specs

    @property
    def total_replicas(self) -> int:
        """Replicas over all types."""
        return sum(spec.count for spec in self.tf_replica_specs.values())

    def managed_here(self) -> bool:
        """False when another controller was named to run this job."""
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
        yield f"spec.tfReplicaSpecs: {total} replicas of all types together, allowed are {MAX_REPLICAS}"
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
