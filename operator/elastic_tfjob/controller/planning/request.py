"""What a job's spec and its user's annotations ask of scheduling. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from elastic_tfjob.api.annotations import OPERATOR_ANNOTATIONS, PREFIX, Elasticity
from elastic_tfjob.api.reading import MAX_REPLICAS
from elastic_tfjob.api.tfjob import TFJobSpec
from elastic_tfjob.api.words import count_in_words
from elastic_tfjob.controller.job.checkpoint_place import place_of
from elastic_tfjob.controller.job.inject import injected, is_adapted, requests_with, resources_of
from elastic_tfjob.controller.model.affinity import constraints_of
from elastic_tfjob.controller.model.injection import DEFAULT_RESOURCES, ContainerResources, Injection
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.quantities import cpu_of, has_pod_level_resources
from elastic_tfjob.controller.model.state import StoredState
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.scheduling import snapshot as core
from elastic_tfjob.scheduling.reasons import Reason, Why
from elastic_tfjob.scheduling.resources import Constraints, Resources

__all__ = ["JobRequest", "annotated", "asked_for", "decided", "refused_target", "reserved_size", "terms"]


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What a job's spec and its user's annotations ask for. `beside` is the CPU in millicores, per type, of all in the
    pod but the container that trains. `queue`: of a job that Kueue admits, which then has its declared size at most.
    `pod_level`: a template has resources of the whole pod, and Kubernetes resizes none of its pods in place.
    `classes` are the PriorityClasses that the templates name, in the order of the types; empty: none is named. `place`
    is where its checkpoints are, where that is known (checkpoint_place.py).

    It is kept for each job, so `spec` is without the templates: what they say is in other fields. `digest` is of the
    whole spec."""

    digest: bytes
    said: Mapping[str, str]
    spec: TFJobSpec
    elasticity: Elasticity
    elastic: bool
    stoppable: bool
    requests: Mapping[str, Resources]
    beside: Mapping[str, int]
    constraints: tuple[tuple[str, Constraints], ...]
    classes: tuple[str, ...] = ()
    queue: str = ""
    place: str | None = None
    pod_level: bool = False
    injection: Injection | None = None

    @property
    def declared(self) -> dict[str, int]:
        """Replicas per type as the spec says."""
        return {name: replica.count for name, replica in self.spec.tf_replica_specs.items()}

    def bounds(self, name: str) -> tuple[int, int]:
        """The least and the most replicas of a type that the job may have."""
        count = self.spec.tf_replica_specs[name].count
        if not self.elastic:
            return count, count
        least, most = self.elasticity.bounds(name, count)
        most = min(most, count if self.queue else MAX_REPLICAS)
        return min(least, most), most

    def priority(self, priorities: Mapping[str, int]) -> int:
        """The least priority that any of the job's pods may have; `priorities` are by class, of pods without one by "".

        A class of a type that gets no pods proves nothing: no quota ever sees it. Nor does the highest of several: one
        replica of many could have it."""
        named = zip(self.spec.tf_replica_specs, self.classes, strict=True)
        found = [priorities.get(class_, 0) for name, class_ in named if self.bounds(name)[1] > 0]
        return min(found, default=priorities.get("", 0))

    def pod_cpu(self, name: str, container: int) -> int:
        """Millicores of a whole pod of this type, of which the container that trains has `container`."""
        return container + self.beside[name]

    def container_cpu(self, name: str, pod: int) -> int:
        """Millicores of the container that trains, in a pod of this type that has `pod`."""
        return max(1, pod - self.beside[name])

    @property
    def problems(self) -> list[str]:
        """Requests that cannot be followed, in words for events."""
        declared = self.declared
        return [
            f"{PREFIX}{annotation}: {wanted} is ignored: Kueue admitted only {count_in_words(declared[name], name)} "
            f"(queue {self.queue}); change replicas in the spec instead, so that Kueue admits the job again"
            for name, annotation in ((core.PS, "target-ps"), (core.WORKER, "target-workers"))
            if self.queue and name in declared and (wanted := self.elasticity.asked(name) or 0) > self.bounds(name)[1]
        ]


def annotated(job: TFJob) -> bool:
    """Whether the user wrote any annotation of this operator."""
    return any(
        name.startswith(PREFIX) and name.removeprefix(PREFIX) not in OPERATOR_ANNOTATIONS for name in job.annotations
    )


def terms(
    job: TFJob,
    before: JobRequest | None = None,
    injection: Injection | None = None,
    configured: ContainerResources = DEFAULT_RESOURCES,
) -> JobRequest:
    """Read spec and annotations; `before` is reused where they are the same. `injection` is what the job's namespace
    admits of what is injected, which is `configured` to ask for so much. Raises InvalidTFJob."""
    said = {
        name: text
        for name, text in job.annotations.items()
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) not in OPERATOR_ANNOTATIONS
    }
    digest = blake2b(job.raw_spec, digest_size=16).digest()
    basis = (digest, said, job.queue, injection)
    if before is not None and (before.digest, before.said, before.queue, before.injection) == basis:
        return before
    spec = job.spec()
    if spec.total_replicas > MAX_REPLICAS:
        raise ValueError(f"spec.tfReplicaSpecs: {spec.total_replicas} replicas in total; allowed: {MAX_REPLICAS}")
    elasticity = Elasticity.parse(job.annotations, spec, job.name)
    what, resources = injected(elasticity, spec, injection), resources_of(injection, configured, job.queue)
    requests, beside, constraints, classes = {}, {}, [], []
    for name, replica in spec.tf_replica_specs.items():
        pod = replica.template.get("spec") or {}
        requests[name] = requests_with(what, pod, resources, adapted=is_adapted(injection))
        beside[name] = requests[name].cpu - cpu_of(pod).request
        constraints.append((name, constraints_of(pod)))
        classes.append(pod.get("priorityClassName") or "")
    return JobRequest(
        digest,
        said,
        _without_templates(spec),
        elasticity,
        elasticity.elastic(spec),
        elasticity.stoppable(spec),
        requests,
        beside,
        tuple(constraints),
        tuple(classes),
        job.queue,
        place_of(spec, elasticity.checkpoint_dir),
        pod_level=any(
            has_pod_level_resources(replica.template.get("spec") or {}) for replica in spec.tf_replica_specs.values()
        ),
        injection=injection,
    )


def _without_templates(spec: TFJobSpec) -> TFJobSpec:
    bare = {name: replica.model_copy(update={"template": {}}) for name, replica in spec.tf_replica_specs.items()}
    return spec.model_copy(update={"tf_replica_specs": bare})


def reserved_size(
    found: JobRequest, target: Target | None, state: StoredState | None, *, started: bool
) -> tuple[Mapping[str, int], bool]:
    """The replicas that are reserved for a job, and whether it is on its way there."""
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
    """Whether a job is to go from its state to a target of a newer generation. One with the same replicas and nodes is
    taken over as it is."""
    if target.generation <= state.generation or state.phase == "Waiting":
        return False
    if target.replicas == state.replicas:
        moves = bool(state.nodes) and dict(target.nodes) != dict(state.nodes)
        return moves and (found.elastic or found.stoppable)
    return found.elastic or (found.stoppable and not target.replicas)


def refused_target(target: Target, state: StoredState) -> bool:
    """Whether the job keeps the size of its state instead of its target's: it has given that up, or has returned from
    it to the size before, under a newer generation."""
    refused = state.refused.generation if state.refused is not None else -1
    return (
        target.generation < state.generation
        or target.generation == refused
        or refused > target.generation > state.generation
    )


def decided(target: Target | None, state: StoredState | None) -> Mapping[str, int]:
    """The spec's replicas that the job's size follows from: those before an edit, until the job has what that asks
    for. Empty: it has no size yet."""
    if target is not None:
        return target.declared
    return state.replicas if state is not None else {}


def asked_for(
    found: JobRequest, target: Target | None, state: StoredState | None, size: Mapping[str, int]
) -> tuple[dict[str, int], Why]:
    """The replicas per type that a person asks for, and the reason of that request: by annotation, or by an edit of the
    spec of a job that has a size already (which counts until the job has that size)."""
    declared, seen = found.declared, decided(target, state)
    annotations = {core.PS: "target-ps", core.WORKER: "target-workers"}
    asked: dict[str, int] = {}
    by_annotation: dict[str, int] = {}
    edited: dict[str, int] = {}
    # A job that is only placed is scaled by edits of its spec as upstream does it, whatever their type.
    for name in annotations if found.elastic else declared:
        if name not in declared:
            continue
        least, most = found.bounds(name)
        wanted = found.elasticity.asked(name) if found.elastic else None
        if wanted is not None and wanted <= most:
            asked[name] = max(wanted, least)
            by_annotation[annotations[name]] = wanted
        elif size and seen.get(name, declared[name]) != declared[name]:
            asked[name] = min(max(declared[name], least), most)
            edited[name] = declared[name]
    return asked, Reason("requested-size", {"annotations": by_annotation, "spec": edited}) if asked else ""
