"""What-if questions and their answers. Pure.

Questions are untrusted input: each field is checked for type and bounds, and the TFJob is read like one from the API
server."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from elastic_tfjob.api.annotations import OPERATOR_ANNOTATIONS, PREFIX
from elastic_tfjob.api.quantity import quantity
from elastic_tfjob.api.reading import MAX_WORD, Fields, cut, describe
from elastic_tfjob.api.tfjob import GROUP, KIND, VERSION
from elastic_tfjob.api.words import MAX_ADDED_NODES
from elastic_tfjob.controller.model.affinity import NAME_FIELD
from elastic_tfjob.controller.model.cluster import ForeignPod, KubeNode
from elastic_tfjob.controller.model.job import Key, TFJob
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.quantities import allocatable
from elastic_tfjob.controller.model.reports import Report
from elastic_tfjob.controller.model.settings import Configuration
from elastic_tfjob.controller.model.status import format_time
from elastic_tfjob.controller.planning.job_view import JobView, view_of
from elastic_tfjob.controller.planning.lending import concerned
from elastic_tfjob.controller.planning.round import ObservedJob, assemble, describe_all
from elastic_tfjob.controller.query.rows import openapi
from elastic_tfjob.controller.query.rows.listing import BadQuery, QueryRefused, dns_name
from elastic_tfjob.controller.query.rows.what_if import (
    ROWS,
    at_time,
    notes,
    others_in_sum,
    sorted_rows,
    what_if_row,
)
from elastic_tfjob.scheduling import snapshot as core
from elastic_tfjob.scheduling.contract import refusals
from elastic_tfjob.scheduling.resources import NOTHING, Resources
from elastic_tfjob.simulation.foresee import World, foresee
from elastic_tfjob.speed.history import History

__all__ = ["FIELDS", "ClusterCopy", "Question", "tell"]

FIELDS: Final = ("job", "add_nodes", "node_cpu", "node_memory", "profile", "namespace")
_HOSTNAME: Final = "kubernetes.io/hostname"


@dataclass(frozen=True, slots=True)
class Question:
    """A change: a new TFJob, additional nodes, another profile, at least one of them. `node`: the allocatable resources
    of each added node; None: the most common kind. `namespace`: only its rows are returned; empty: all."""

    job: Mapping[str, Any] | None = None
    add_nodes: int = 0
    node: Resources | None = None
    profile: str = ""
    namespace: str = ""

    @classmethod
    def parse(cls, raw: object) -> "Question":
        """Parse a question. Raises only BadQuery."""
        if not isinstance(raw, dict):
            raise BadQuery("body", f"it is {describe(raw)}", f"an object with some of {', '.join(FIELDS)}")
        if unknown := next((name for name in raw if name not in FIELDS), None):
            raise BadQuery(cut(unknown, MAX_WORD), "unknown field", ", ".join(FIELDS))
        try:
            fields = Fields(raw)
            add_nodes = fields.whole("add_nodes", MAX_ADDED_NODES, default=0)
            texts = {name: fields.text(name, MAX_WORD) for name in FIELDS[2:]}
        except ValueError as error:
            raise BadQuery("body", str(error), "see the OpenAPI document") from None
        if texts["namespace"]:
            dns_name("namespace", texts["namespace"])
        question = cls(
            _submitted(raw["job"]) if raw.get("job") is not None else None,
            add_nodes,
            _node(texts["node_cpu"], texts["node_memory"], add_nodes),
            texts["profile"],
            texts["namespace"],
        )
        if question.job is None and not question.add_nodes and not question.profile:
            raise BadQuery("body", "no change is given", "job, add_nodes or profile, or several of them")
        return question

    @property
    def key(self) -> Key | None:
        """Namespace and name of the new job."""
        return (self.job["metadata"]["namespace"], self.job["metadata"]["name"]) if self.job is not None else None


def _node(cpu: str, memory: str, add_nodes: int) -> Resources | None:
    if not cpu and not memory:
        return None
    if not add_nodes:
        raise BadQuery("node_cpu", "add_nodes is missing", "node_cpu together with add_nodes")
    for name, text in (("node_cpu", cpu), ("node_memory", memory)):
        if not quantity(text):
            raise BadQuery(
                name, f"invalid quantity {describe(text)}", "both node_cpu and node_memory, above 0 (16, 500m; 64Gi)"
            )
    return allocatable({"cpu": cpu, "memory": memory})


def _submitted(raw: object) -> Mapping[str, Any]:
    """The new TFJob without annotations that only the operator writes."""
    if not isinstance(raw, dict) or (raw.get("apiVersion"), raw.get("kind")) != (f"{GROUP}/{VERSION}", KIND):
        raise BadQuery("job", "it is not a TFJob", f"an object of apiVersion {GROUP}/{VERSION} and kind {KIND}")
    metadata, spec = raw.get("metadata"), raw.get("spec")
    if not isinstance(metadata, dict) or not isinstance(spec, dict):
        raise BadQuery("job", "metadata or spec is not an object", "a TFJob as for kubectl create")
    found: dict[str, Any] = {}
    for name in ("annotations", "labels"):
        texts = metadata.get(name) or {}
        if not isinstance(texts, dict) or not all(isinstance(each, str) for each in texts.values()):
            raise BadQuery(f"job.metadata.{name}", "a value is not a string", "strings; put numbers in quotes")
        found[name] = texts
    found["annotations"] = {
        name: text
        for name, text in found["annotations"].items()
        if name.removeprefix(PREFIX) not in OPERATOR_ANNOTATIONS
    }
    for name in ("name", "namespace"):
        value = metadata.get(name)
        if not isinstance(value, str):
            raise BadQuery(f"job.metadata.{name}", f"it is {describe(value)}", "a name")
        dns_name(name, value)
        found[name] = value
    return {"metadata": found, "spec": spec}


@dataclass(frozen=True, slots=True)
class ClusterCopy:
    """A copy of the operator's objects at one moment. `reports` is empty if this replica does not poll pods."""

    now: datetime
    jobs: tuple[TFJob, ...]
    pods: tuple[Pod, ...]
    nodes: tuple[KubeNode, ...]
    foreign: tuple[ForeignPod, ...]
    reports: Mapping[Key, Mapping[str, Report]]
    configuration: Configuration
    priorities: Mapping[str, int]
    history: History


def tell(
    taken: ClusterCopy, question: Question, cpu_s: float, *, allowed: Collection[str] | None, nodes_shown: bool
) -> openapi.WhatIf:
    """Simulate the future without and with the change, for at most `cpu_s` of CPU time each. `allowed`: the namespaces
    whose jobs are listed (None: all). `nodes_shown`: whether the answer has the size of an added node. Raises
    QueryRefused, which says why there is no answer."""
    configuration = taken.configuration
    if configuration.pools or any(concerned(node, configuration.pools) for node in taken.nodes):
        raise QueryRefused(
            422, "no forecast is possible while nodes are lent between pools, because recalls are unpredictable"
        )
    then = _with_profile(configuration, question.profile)
    nodes = {node.name: node for node in sorted(taken.nodes, key=lambda node: node.name) if node.usable}
    own = {pod.uid for pod in taken.pods}
    foreign = [pod for pod in taken.foreign if pod.uid not in own]
    described = _described(taken, nodes)
    snapshot = assemble(described.values(), nodes, foreign, taken.now.timestamp())
    now = World(
        snapshot.now, snapshot.nodes, snapshot.jobs, taken.history, configuration.profile, configuration.parameters
    )
    changed = replace(now, profile=then.profile, parameters=then.parameters)
    if then.profile != configuration.profile:  # a profile cannot use another profile's memory of a job
        changed = replace(changed, jobs={key: replace(job, memory={}) for key, job in now.jobs.items()})
    problems: tuple[str, ...] = ()
    if question.job is not None:
        submitted = _new(question, taken, then, described, nodes)
        assert submitted.job is not None
        assert submitted.request is not None
        changed = replace(changed, jobs={**changed.jobs, submitted.job.key: submitted.job})
        problems = (*submitted.request.elasticity.problems, *submitted.request.problems)
    added = _added(question, nodes, foreign) if question.add_nodes else {}
    changed = replace(changed, nodes={**changed.nodes, **added})
    courses = foresee(now, cpu_s), foresee(changed, cpu_s)
    unmanaged = sum(bool(each.other_usage) and each.job is None for each in described.values())
    unforeseen = sum(fate.source is None for fate in courses[1].fates.values())
    rows = [what_if_row(job, *courses) for job in changed.jobs.values()]
    shown = {row.namespace for row in rows} if allowed is None else set(allowed)
    if question.namespace:
        shown &= {question.namespace}
    mine = sorted_rows(row for row in rows if row.namespace in shown)
    profiles = configuration.profile, then.profile
    return openapi.WhatIf(
        at=format_time(taken.now),
        profile_now=profiles[0],
        profile_then=profiles[1],
        nodes_added=len(added),
        node=next((_words(node.capacity) for node in added.values() if nodes_shown), None),
        items=tuple(mine[:ROWS]),
        total=len(mine),
        changed=sum(bool(row.later_s) for row in mine),
        others=others_in_sum(rows, shown),
        until_now=at_time(courses[0].until_s),
        until_then=at_time(courses[1].until_s),
        problems=problems,
        notes=tuple(notes(unforeseen, unmanaged, profiles)),
    )


def _words(capacity: Resources) -> str:
    return f"{capacity.cpu_millicores / 1000:g} CPU, {capacity.memory_bytes / (1 << 30):.3g} GiB"


def _with_profile(configuration: Configuration, name: str) -> Configuration:
    """The configuration with another profile and that profile's parameters."""
    if not name or name == configuration.profile:
        return configuration
    try:
        content = {**configuration.model_dump(exclude_unset=True), "profile": name}
        found = Configuration.model_validate(content)
        if wrong := refusals(name, found.profiles.get(name, {})):
            raise ValueError("; ".join(wrong))
    except ValueError as error:
        text = " ".join(str(error).split())
        raise QueryRefused(400, f"profile {describe(name)} cannot be used here: {cut(text)}", where="profile") from None
    return found


def _described(taken: ClusterCopy, nodes: Mapping[str, KubeNode]) -> dict[Key, JobView]:
    """Each job as the scheduling loop sees it, including resources of pods without a job."""
    pods: dict[Key, list[Pod]] = {}
    for pod in taken.pods:
        pods.setdefault(pod.key, []).append(pod)
    jobs = {job.key: job for job in taken.jobs}
    seen = {
        key: ObservedJob(jobs.get(key), tuple(pods.get(key, ())), taken.reports.get(key, {}), None, {})
        for key in {**jobs, **pods}
    }
    found = describe_all(
        seen,
        nodes,
        taken.now,
        taken.configuration.scope == "all",
        taken.priorities,
        cordoned={node.name: node.draining for node in taken.nodes if node.cordoned},
    )
    return {key: each.found for key, each in found.items()}


def _new(
    question: Question,
    taken: ClusterCopy,
    then: Configuration,
    described: Mapping[Key, JobView],
    nodes: Mapping[str, KubeNode],
) -> JobView:
    """The new job as a waiting job. Raises QueryRefused."""
    assert question.job is not None
    if question.key in described:
        raise QueryRefused(409, "a TFJob of this name, or pods of one, exist already", where="job.metadata.name")
    own = {"uid": "what-if", "resourceVersion": "0", "creationTimestamp": format_time(taken.now)}
    try:
        job = TFJob.parse({**question.job, "metadata": {**question.job["metadata"], **own}})
        job.spec()  # raises for an invalid spec, also of a job that the profile does not schedule
        found = view_of(job, (), nodes=nodes, now=taken.now, all_jobs=then.scope == "all", priorities=taken.priorities)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise QueryRefused(400, f"the API server would refuse this job: {cut(str(error))}", where="job") from None
    if found.job is None:
        raise QueryRefused(
            422, f"profile {then.profile} would not schedule this job: {_undecided(job, then)}", where="job"
        )
    return found


def _undecided(job: TFJob, then: Configuration) -> str:
    spec = job.spec()
    if spec.run_policy.suspend:
        return "it is suspended" + (f", until Kueue admits it (queue {job.queue})" if job.queue else "")
    if not spec.managed_here():
        return "its runPolicy.managedBy names another controller"
    if then.scope != "all" and not any(name.startswith(PREFIX) for name in job.annotations):
        return (
            f"it has no annotation {PREFIX}..., and the operator's scope is annotated, so kube-scheduler places "
            "its pods"
        )
    return f"its annotation {PREFIX}placement is none"


def _added(question: Question, nodes: Mapping[str, KubeNode], foreign: Iterable[ForeignPod]) -> dict[str, core.Node]:
    """The added nodes: of the given size, or of the most common kind with its labels, taints and daemons."""
    model: KubeNode | None = None
    capacity, taken = question.node, NOTHING
    if capacity is None:
        kinds = Counter(node.allocatable for node in nodes.values())
        if not kinds:
            raise QueryRefused(
                422, "the cluster has no node to copy", where="add_nodes", allowed="add_nodes together with node_cpu"
            )
        capacity = max(kinds, key=lambda each: (kinds[each], each))
        model = next(node for node in nodes.values() if node.allocatable == capacity)
        for pod in foreign:
            if pod.stays and pod.node == model.name:
                taken = taken.plus(pod.requests)
    labels = dict(model.labels) if model is not None else {}
    found = {}
    for k in range(question.add_nodes):
        name = f"what-if-{k}"
        named = {**labels, _HOSTNAME: name, NAME_FIELD: name}
        free = capacity.minus(taken).positive()
        found[name] = core.Node(name, capacity, free, labels=named, taints=model.taints if model is not None else ())
    return found
