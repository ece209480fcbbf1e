"""Reads a job's scheduling request from its spec and its user's annotations. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from types import MappingProxyType

from elastic_tfjob.api.annotations import OPERATOR_ANNOTATIONS, PREFIX, Elasticity
from elastic_tfjob.api.reading import MAX_REPLICAS
from elastic_tfjob.api.tfjob import TFJobSpec
from elastic_tfjob.api.words import count_in_words
from elastic_tfjob.controller.job.checkpoint_place import place_of
from elastic_tfjob.controller.job.inject import injected, is_adapted, requests_with, resources_of
from elastic_tfjob.controller.model.affinity import constraints_of
from elastic_tfjob.controller.model.injection import DEFAULT_RESOURCES, ContainerResources, Injection
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.memory import least_replicas, with_memory
from elastic_tfjob.controller.model.quantities import cpu_of, has_pod_level_resources
from elastic_tfjob.controller.model.state import StoredState
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.scheduling import snapshot as core
from elastic_tfjob.scheduling.reasons import Reason, Why
from elastic_tfjob.scheduling.resources import Constraints, Resources

__all__ = ["JobRequest", "annotated", "asked_for", "decided", "job_request", "refused_target", "reserved_size"]


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job's scheduling request, from its spec, its user's annotations and its quota.

    `annotations` are the user's annotations for this operator. `other_millicores` is the CPU, per type, of all the
    pod's containers except the training container. `queue`: the queue of a job that Kueue admits; its size never
    exceeds the admitted one. `pod_level`: a template sets resources of the whole pod, so Kubernetes
    resizes none of the job's pods in place. `classes` are the PriorityClasses of the templates, in the order of the
    types; empty: the template names none. `admitted`: with growth, the most replicas per type that Kueue admits at the
    moment; empty: the declared ones. `memory`: the bytes to which each replica's memory is raised, by type. `place` is
    where the job's checkpoints are, if that is known (checkpoint_place.py).

    One request stays in memory for each job. To save space `spec` has no templates: what matters of them is in other
    fields. `digest` is of the whole spec."""

    digest: bytes
    annotations: Mapping[str, str]
    spec: TFJobSpec
    elasticity: Elasticity
    elastic: bool
    stoppable: bool
    requests: Mapping[str, Resources]
    other_millicores: Mapping[str, int]
    constraints: tuple[tuple[str, Constraints], ...]
    classes: tuple[str, ...] = ()
    queue: str = ""
    place: str | None = None
    pod_level: bool = False
    injection: Injection | None = None
    admitted: Mapping[str, int] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)

    @property
    def declared(self) -> dict[str, int]:
        """The spec's replicas per type."""
        return {name: replica.count for name, replica in self.spec.tf_replica_specs.items()}

    def bounds(self, name: str) -> tuple[int, int]:
        """The minimum and maximum replicas of a type that the job may have."""
        count = self.spec.tf_replica_specs[name].count
        if not self.elastic:
            return count, count
        least, most = self.elasticity.bounds(name, count)
        most = min(most, self.admitted.get(name, count) if self.queue else MAX_REPLICAS)
        return min(least, most), most

    @property
    def may_grow(self) -> bool:
        """Whether the job could use more quota of Kueue than it has."""
        return any(self.most_wanted(name) > self.bounds(name)[1] for name in self.declared)

    def most_wanted(self, name: str) -> int:
        """The maximum replicas of a type that the job may have if quota is free."""
        count = self.spec.tf_replica_specs[name].count
        return min(self.elasticity.bounds(name, count)[1], MAX_REPLICAS) if self.elastic else count

    def priority(self, priorities: Mapping[str, int]) -> int:
        """The lowest priority that any of the job's pods may have. `priorities` are by PriorityClass; the key "" has
        the priority of pods without a class.

        The class of a type without pods is ignored, since no quota is ever checked for it. The highest of several
        classes would prove nothing either: a user could give it to one replica of many."""
        named = zip(self.spec.tf_replica_specs, self.classes, strict=True)
        found = [priorities.get(class_, 0) for name, class_ in named if self.bounds(name)[1] > 0]
        return min(found, default=priorities.get("", 0))

    def pod_cpu(self, name: str, container_millicores: int) -> int:
        """Millicores of a whole pod of this type whose training container has `container_millicores`."""
        return container_millicores + self.other_millicores[name]

    def container_cpu(self, name: str, pod_millicores: int) -> int:
        """Millicores of the training container in a pod of this type that has `pod_millicores` in total."""
        return max(1, pod_millicores - self.other_millicores[name])

    @property
    def problems(self) -> list[str]:
        """The user's requests that cannot be followed, as texts for events."""
        declared = self.declared
        return [
            f"{PREFIX}{annotation}: {wanted} is ignored: Kueue admitted only {count_in_words(declared[name], name)} "
            f"(queue {self.queue}); change replicas in the spec instead, so that Kueue admits the job again"
            for name, annotation in ((core.PS, "target-ps"), (core.WORKER, "target-workers"))
            if self.queue and name in declared and (wanted := self.elasticity.asked(name) or 0) > self.bounds(name)[1]
            if not self.may_come(name, wanted)
        ]

    def may_come(self, name: str, wanted: int) -> bool:
        """Whether growth may bring a size that a person requests: until then the job has as much of it as is
        admitted."""
        return bool(self.admitted) and wanted <= self.most_wanted(name)


def annotated(job: TFJob) -> bool:
    """Whether the job has any annotation for this operator that its user wrote."""
    return any(
        name.startswith(PREFIX) and name.removeprefix(PREFIX) not in OPERATOR_ANNOTATIONS for name in job.annotations
    )


def job_request(
    job: TFJob,
    before: JobRequest | None = None,
    injection: Injection | None = None,
    configured: ContainerResources = DEFAULT_RESOURCES,
    admitted: Mapping[str, int] = MappingProxyType({}),
    *,
    memory: Mapping[str, int] = MappingProxyType({}),
) -> JobRequest:
    """Reads the request from spec and annotations; returns `before` if they are unchanged. `injection`: which
    injected containers the job's namespace admits; `configured`: their configured resources; `admitted`, `memory`: as
    in JobRequest. Raises InvalidTFJob, and ValueError for more than MAX_REPLICAS replicas."""
    annotations = {
        name: text
        for name, text in job.annotations.items()
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) not in OPERATOR_ANNOTATIONS
    }
    digest = blake2b(job.raw_spec, digest_size=16).digest()
    basis = (digest, annotations, job.queue, injection, memory)
    known = before and (before.digest, before.annotations, before.queue, before.injection, before.memory)
    if before is not None and known == basis:
        return before if before.admitted == admitted else replace(before, admitted=dict(admitted))
    spec = job.spec()
    if spec.total_replicas > MAX_REPLICAS:
        raise ValueError(f"spec.tfReplicaSpecs: {spec.total_replicas} replicas in total; allowed: {MAX_REPLICAS}")
    elasticity = Elasticity.parse(job.annotations, spec, job.name)
    spec = with_memory(spec, memory)
    what, resources = injected(elasticity, spec, injection), resources_of(injection, configured, job.queue)
    requests, other_millicores, constraints, classes = {}, {}, [], []
    for name, replica in spec.tf_replica_specs.items():
        pod = replica.template.get("spec") or {}
        requests[name] = requests_with(what, pod, resources, adapted=is_adapted(injection))
        other_millicores[name] = requests[name].cpu_millicores - cpu_of(pod).request_millicores
        constraints.append((name, constraints_of(pod)))
        classes.append(pod.get("priorityClassName") or "")
    return JobRequest(
        digest,
        annotations,
        _without_templates(spec),
        elasticity,
        elasticity.elastic(spec),
        elasticity.stoppable(spec),
        requests,
        other_millicores,
        tuple(constraints),
        tuple(classes),
        job.queue,
        place_of(spec, elasticity.checkpoint_dir),
        pod_level=any(
            has_pod_level_resources(replica.template.get("spec") or {}) for replica in spec.tf_replica_specs.values()
        ),
        injection=injection,
        admitted=dict(admitted),
        memory=dict(memory),
    )


def _without_templates(spec: TFJobSpec) -> TFJobSpec:
    bare = {name: replica.model_copy(update={"template": {}}) for name, replica in spec.tf_replica_specs.items()}
    return spec.model_copy(update={"tf_replica_specs": bare})


def reserved_size(
    found: JobRequest, target: Target | None, state: StoredState | None, *, started: bool
) -> tuple[Mapping[str, int], bool]:
    """The replicas per type that are reserved for a job, and whether the job is still changing to them."""
    if target is None:
        if state is not None and state.replicas:
            return state.replicas, state.rescaling
        return (found.declared if started else {}), False
    if state is None:
        return target.replicas, False
    if refused_target(target, state):
        return state.replicas, state.rescaling
    return target.replicas, state.rescaling or coming(found, target, state)


def coming(found: JobRequest, target: Target, state: StoredState) -> bool:
    """Whether a job is to be resized, moved or stopped for a target of a newer generation than its state. A target with
    the same replicas and nodes is adopted without any change."""
    if target.generation <= state.generation or state.phase == "Waiting":
        return False
    if target.replicas == state.replicas:
        moves = bool(state.nodes) and dict(target.nodes) != dict(state.nodes)
        return moves and (found.elastic or found.stoppable)
    return found.elastic or (found.stoppable and not target.replicas)


def refused_target(target: Target, state: StoredState) -> bool:
    """Whether the job keeps the size of its state instead of its target's: the target was given up, or was rolled back
    to the previous size under a newer generation."""
    refused = state.refused.generation if state.refused is not None else -1
    return (
        target.generation < state.generation
        or target.generation == refused
        or refused > target.generation > state.generation
    )


def decided(target: Target | None, state: StoredState | None) -> Mapping[str, int]:
    """The spec's replicas on which the job's size is based. After an edit, these are the replicas before it, until the
    job has the size that the edit requests. Empty: the job has no size yet."""
    if target is not None:
        return target.declared
    return state.replicas if state is not None else {}


def asked_for(
    found: JobRequest, target: Target | None, state: StoredState | None, size: Mapping[str, int]
) -> tuple[dict[str, int], Why]:
    """The replicas per type that a person requests, and the reason to record for that. A person requests them by
    annotation, or by editing the spec of a job that already has a size; an edit counts until the job has its size. So
    does a request by the job's memory."""
    declared, seen = found.declared, decided(target, state)
    annotations = {core.PS: "target-ps", core.WORKER: "target-workers"}
    asked: dict[str, int] = {}
    by_annotation: dict[str, int] = {}
    edited: dict[str, int] = {}
    divided: dict[str, int] = {}
    # A job that is placed but not elastic is scaled by edits of any replica type, as in the upstream operator.
    for name in annotations if found.elastic else declared:
        if name not in declared:
            continue
        least, most = found.bounds(name)
        wanted = found.elasticity.asked(name) if found.elastic else None
        if wanted is not None and (wanted <= most or found.may_come(name, wanted)):
            asked[name] = max(min(wanted, most), least)
            by_annotation[annotations[name]] = wanted
        elif size and seen.get(name, declared[name]) != declared[name]:
            asked[name] = min(max(declared[name], least), most)
            edited[name] = declared[name]
        elif (needed := memory_needs(found, state, name)) and 0 < size.get(name, 0) < needed:
            asked[name] = divided[name] = needed
    facts = {"annotations": by_annotation, "spec": edited, **({"memory": divided} if divided else {})}
    return asked, Reason("requested-size", facts) if asked else ""


def memory_needs(found: JobRequest, state: StoredState | None, name: str) -> int:
    """The replicas of a type among which its memory must be divided at least; 0: any number."""
    needed = least_replicas(state.memory).get(name, 0) if state is not None and found.elastic else 0
    return min(needed, found.bounds(name)[1]) if needed else 0
