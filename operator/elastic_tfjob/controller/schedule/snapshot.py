"""From what the caches hold to what the core decides on. Pure.

A managed job is described with what it has been *promised*: the size and nodes of its target, or of its pods where they
are bound. What stands on the nodes at this moment may be more or less, while jobs are on their way; `ScheduledJob.held`
says that, and nothing is promised on top of it (see loop.py).

What is promised is believed for a while: a node that kube-scheduler refuses (unfit.py) is as good as lost, what pods do
not give up is taken for good, and room that nobody moves into is given to others.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, TypeVar

from elastic_tfjob.api.annotations import OPERATOR_ANNOTATIONS, PREFIX, Elasticity
from elastic_tfjob.api.limits import MAX_REPLICAS, MAX_STEPS
from elastic_tfjob.api.tfjob import TFJobSpec
from elastic_tfjob.controller.job.inject import sidecar_request
from elastic_tfjob.controller.job.rescale import chief_of
from elastic_tfjob.controller.objects.annotations import STATE_ANNOTATION, TARGET_ANNOTATION, State, Target
from elastic_tfjob.controller.objects.cluster import ForeignPod, Node
from elastic_tfjob.controller.objects.observed import Job, Pod, required_terms
from elastic_tfjob.controller.objects.quantities import cpu_of, requests_of
from elastic_tfjob.controller.objects.reports import Report
from elastic_tfjob.controller.objects.service import Record
from elastic_tfjob.controller.objects.status import parse_time
from elastic_tfjob.controller.objects.unfit import Pair
from elastic_tfjob.scheduling import snapshot as core
from elastic_tfjob.scheduling.constraints import ANYWHERE, Constraints, Requirement, Toleration
from elastic_tfjob.scheduling.resources import NOTHING, Resources
from elastic_tfjob.speed.optimus import OnlineSpeed, believe

__all__ = [
    "JobRequest",
    "Role",
    "ScheduledJob",
    "Usage",
    "annotated",
    "asked_for",
    "assemble",
    "candidate",
    "promised",
    "set_aside",
    "terms",
]

Role = tuple[str, int]
"""Replica type, in the spec's spelling, and index."""
Usage = Mapping[str, Resources]
"""By node."""

T = TypeVar("T")

_ENDED: Final = ("Succeeded", "Failed")
# The one field that required node affinity may name beside labels; given to the core as one more label.
_NAME: Final = "metadata.name"
# So long pods may take to give up what they were told to, in seconds; then it counts as theirs.
_GIVE_UP_S: Final = 60.0
# So long room is kept, in seconds, for pods that are not there and of which nobody says why.
_PROMISE_S: Final = 300.0
# What a node is called in the place of a replica that cannot have it: no node's name has a space.
REFUSED: Final = " refused by kube-scheduler"
# Replicas that use more than so many times the CPU they request are busy, however many times it is.
_MOST_USE: Final = 100.0
# Steps per second between which a measurement can be believed.
_SLOWEST, _FASTEST = 1e-9, 1e9


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What a job's spec and its user's annotations ask for. `beside` is the CPU in millicores, per type, of all in the
    pod but the container that trains. `queue`: of a job that Kueue admits, which then has its declared size at most.

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

    @property
    def problems(self) -> list[str]:
        """What a person asks for and cannot have."""
        declared = self.declared
        return [
            f"{PREFIX}{annotation}: {wanted} is ignored: Kueue admitted {declared[name]} {name} (queue {self.queue}), "
            "and more would be beyond its quota; suspend the job, change its replicas and resume it instead"
            for name, annotation in ((core.PS, "target-ps"), (core.WORKER, "target-workers"))
            if self.queue and name in declared and (wanted := self.elasticity.asked(name) or 0) > self.bounds(name)[1]
        ]


@dataclass(frozen=True, slots=True)
class ScheduledJob:
    """A job as the loop sees it. `job` is None for one that the profile does not decide for: all that its pods take is
    then in `others`, as is what pods take that a decided job does not count.

    `followed` tells that the profile decides for it, were it not suspended. `held` is what a decided job takes now or
    has been promised, `taken` the part of it that its pods take; `bound` the nodes of its pods, `awaited` the nodes
    promised to replicas that are not bound yet. `cpu` is what each bound replica holds, in millicores. `refused` are
    kube-scheduler's words where it refuses nodes. Since when (Unix time) the same target has replicas that are not
    bound, and pods that hold more than it says: `awaited_since_s`, `owes_since_s`; None: it has none.
    """

    source: Job | None
    job: core.Job | None = None
    terms: JobRequest | None = None
    target: Target | None = None
    state: State | None = None
    others: Usage = field(default_factory=dict)
    held: Usage = field(default_factory=dict)
    taken: Usage = field(default_factory=dict)
    followed: bool = False
    bound: Mapping[Role, str] = field(default_factory=dict)
    awaited: Mapping[Role, str] = field(default_factory=dict)
    cpu: Mapping[Role, int] = field(default_factory=dict)
    refused: str = ""
    awaited_since_s: float | None = None
    owes_since_s: float | None = None

    @property
    def passing(self) -> bool:
        """Whether time alone may change it: a promise that is not kept, what is owed, a node that is refused."""
        return self.awaited_since_s is not None or self.owes_since_s is not None or bool(self.refused)


def set_aside(found: ScheduledJob) -> ScheduledJob:
    """The job as one that is not decided for: it keeps what it has and what it was promised."""
    if found.job is None:
        return found
    return replace(found, job=None, others=_sum([*found.others.items(), *found.held.items()]), held={}, taken={})


def annotated(job: Job) -> bool:
    """Whether the user wrote any of our annotations."""
    return any(
        name.startswith(PREFIX) and name.removeprefix(PREFIX) not in OPERATOR_ANNOTATIONS for name in job.annotations
    )


def terms(job: Job, before: JobRequest | None = None) -> JobRequest:
    """Read spec and annotations; `before` is reused where they are the same. Raises InvalidTFJob."""
    said = {
        name: text
        for name, text in job.annotations.items()
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) not in OPERATOR_ANNOTATIONS
    }
    digest = blake2b(job.raw_spec, digest_size=16).digest()
    if before is not None and (before.digest, before.said, before.queue) == (digest, said, job.queue):
        return before
    spec = job.spec()
    if spec.total_replicas > MAX_REPLICAS:
        raise ValueError(f"spec.tfReplicaSpecs: {spec.total_replicas} replicas, of which {MAX_REPLICAS} can be placed")
    elasticity = Elasticity.parse(job.annotations, spec)
    added = sidecar_request() if elasticity.reports(spec) else NOTHING
    requests, beside, constraints, classes = {}, {}, [], []
    for name, replica in spec.tf_replica_specs.items():
        pod = replica.template.get("spec") or {}
        requests[name] = requests_of(pod).plus(added)
        beside[name] = requests[name].cpu - cpu_of(pod)[0]
        constraints.append((name, _constraints(pod)))
        classes.append(pod.get("priorityClassName", ""))
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
    )


def _without_templates(spec: TFJobSpec) -> TFJobSpec:
    bare = {name: replica.model_copy(update={"template": {}}) for name, replica in spec.tf_replica_specs.items()}
    return spec.model_copy(update={"tf_replica_specs": bare})


def candidate(
    job: Job | None,
    pods: Iterable[Pod],
    *,
    nodes: Mapping[str, Node],
    now: datetime,
    all_jobs: bool = False,
    reports: Mapping[str, Report] | None = None,
    priorities: Mapping[str, int] | None = None,
    before: ScheduledJob | None = None,
    unfit: Mapping[Pair, str] | None = None,
) -> ScheduledJob:
    """What is to be decided for a job; `before` is its last candidate, to save work and to know for how long promises
    stand. `unfit` are nodes that kube-scheduler refuses it. Raises InvalidTFJob and ValueError."""
    active = [pod for pod in pods if pod.phase not in _ENDED and pod.node]
    everything = _sum((pod.node, pod.requests) for pod in active)
    follows = job is not None and (all_jobs or annotated(job))
    if job is None or job.deleting or not (follows or _remembered(job)):
        return ScheduledJob(job, others=everything)
    found = terms(job, before.terms if before else None)
    spec, unfit, now_s = found.spec, unfit or {}, now.timestamp()
    target, state = _stored(Target.of, job, spec), _stored(State.of, job, spec)
    ours = spec.managed_here() and not job.status().finished
    followed = ours and follows and found.elasticity.placement != "none"
    if not followed or spec.run_policy.suspend:
        return ScheduledJob(job, None, found if ours else None, target, state, others=everything, followed=followed)

    spelling = {name.lower(): name for name in spec.tf_replica_specs}
    by_role = {
        (spelling[pod.replica_type], pod.index): pod
        for pod in active
        if pod.owner == job.uid and pod.replica_type in spelling and pod.index is not None
    }
    size, on_its_way = promised(found, target, state, started=bool(by_role))
    placement: dict[str, tuple[str, ...]] = {}
    awaited: dict[Role, str] = {}
    covered: list[tuple[str, Resources]] = []
    lost, refused = False, ""
    cpu = _promised_cpu(found, target, state, size, nodes)
    for name in spec.tf_replica_specs:
        there = []
        for index in range(size.get(name, 0)):
            role = name, index
            pod = by_role.get(role)
            wanted = target.nodes.get(name, ()) if target is not None else ()
            node = wanted[index] if index < len(wanted) else ""
            if pod is not None and (pod.node in nodes or node not in nodes):
                node = pod.node
            elif pod is not None:  # its node is lost: it will be made anew on the other one
                covered.append((node, _request(found, cpu, role)))
            else:
                if not on_its_way and (why := unfit.get((name.lower(), node))) is not None:
                    refused, node = why or "no words", f"{node}{REFUSED}"
                awaited[role] = node
                lost = lost or (bool(node) and node not in nodes)
                covered.append((node, _request(found, cpu, role)))
            there.append(node)
        if there:
            placement[name] = tuple(there)
    kept = {role: pod for role, pod in by_role.items() if role[1] < size.get(role[0], 0)}
    if refused and not kept:  # nothing of it stands anywhere, so it may begin anew as a whole
        size, placement, awaited, covered, cpu = {}, {}, {}, [], {}
    owed = {
        role: over
        for role, pod in kept.items()
        if any(over := pod.requests.minus(_request(found, cpu, role)).positive())
    }
    same = before is not None and before.target == target
    owes_since_s = _since(bool(owed), before.owes_since_s if before is not None and same else None, now_s)
    if owes_since_s is None or now_s - owes_since_s < _GIVE_UP_S:
        owed = {}
    awaits = bool(awaited) and not (lost or on_its_way)
    awaited_since_s = _since(awaits, before.awaited_since_s if before is not None and same else None, now_s)
    taken = [(pod.node, pod.requests.minus(owed.get(role, NOTHING))) for role, pod in kept.items()]
    extra = {pod.uid for pod in active} - {pod.uid for pod in kept.values()}
    others = [(pod.node, pod.requests) for pod in active if pod.uid in extra]
    others += [(kept[role].node, over) for role, over in owed.items()]
    asked, why = asked_for(found, target, state, size)
    phase: core.Phase = "waiting" if not placement else "running"
    superseded = any(size.get(name, 0) != count for name, count in asked.items())
    # A job that starts is between two targets, too: till its pods are bound. One whose node is gone waits in vain.
    if on_its_way or (awaited and not lost):
        phase = "running" if superseded and placement else "rescaling"
    record = Record.of(job.annotations, job.uid)
    since_s = _begun(job, state, record, phase, now_s)
    report = reports.get(_pod_name(job, spec)) if reports else None
    steps, observed_s, steps_per_s = _progress(state, report, since_s)
    made = ScheduledJob(
        job,
        core.Job(
            spec=_job_spec(
                job, found, asked=asked, why=why, report=report, state=state, priorities=priorities or {}, unfit=unfit
            ),
            placement=placement,
            phase=phase,
            steps=steps,
            observed_s=observed_s,
            steps_per_s=steps_per_s if placement else 0.0,
            since_s=since_s,
            service=record.service,
            executed_s=record.executed_s,
            rescaled_s=_last_rescale(state),
            speed=_speed(found, state, report, size, cpu),
            cpu=cpu,
            cpu_use=_cpu_use(by_role, reports or {}),
        ),
        found,
        target,
        state,
        others=_sum(others),
        held=_sum([*covered, *taken]),
        taken=_sum(taken),
        followed=True,
        bound={role: pod.node for role, pod in by_role.items()},
        awaited=awaited,
        cpu={role: pod.requests.cpu for role, pod in by_role.items()},
        refused=refused,
        awaited_since_s=awaited_since_s,
        owes_since_s=owes_since_s,
    )
    # A person who asks for fewer (a quota admits no more) is followed all the same: that needs no room.
    fewer = superseded and all(count <= size.get(name, 0) for name, count in asked.items())
    if awaited_since_s is not None and now_s - awaited_since_s >= _PROMISE_S and not fewer:
        # Others need not wait for it: what its pods take counts, and what they may take later does not.
        return set_aside(replace(made, held=made.taken))
    return made


def _remembered(job: Job) -> bool:
    """Whether the operator has decided something for this job before."""
    return TARGET_ANNOTATION in job.annotations or STATE_ANNOTATION in job.annotations


def _since(holds: bool, before_s: float | None, now_s: float) -> float | None:
    """Since when something holds that holds now or not."""
    if not holds:
        return None
    return now_s if before_s is None else before_s


def _begun(job: Job, state: State | None, record: Record, phase: core.Phase, now_s: float) -> float:
    """Since when (Unix time) the job has what it holds, or waits."""
    if phase != "waiting":
        return _seconds(record.placed or None) or _seconds(job.status().start_time) or now_s
    if state is not None and state.phase == "Waiting" and state.since:
        return _seconds(state.since) or now_s
    return _seconds(job.created) or now_s


def promised(
    found: JobRequest, target: Target | None, state: State | None, *, started: bool
) -> tuple[Mapping[str, int], bool]:
    """The replicas that a job has or shall get, and whether it is on its way there."""
    if target is None:
        if state is not None and state.replicas:
            return state.replicas, state.rescaling
        return (found.declared if started else {}), False
    if state is None:
        return target.replicas, False
    if _refused(target, state):
        return state.replicas, state.rescaling
    may = found.elastic or (found.stoppable and not target.replicas)
    coming = may and target.generation > state.generation and state.phase != "Waiting"
    return target.replicas, state.rescaling or coming


def _refused(target: Target, state: State) -> bool:
    return state.refused is not None and state.refused.generation >= target.generation > state.generation


def asked_for(
    found: JobRequest, target: Target | None, state: State | None, size: Mapping[str, int]
) -> tuple[dict[str, int], str]:
    """The replicas per type that a person asks for, and in which words: by annotation, or by an edit of the spec of a
    job that has a size already (which holds until a target has followed it)."""
    declared = found.declared
    decided = target.declared if target is not None else (state.replicas if state is not None else {})
    annotations = {core.PS: "target-ps", core.WORKER: "target-workers"}
    asked: dict[str, int] = {}
    said = []
    # A job that is only placed is scaled by edits of its spec as upstream does it, whatever their type.
    for name in annotations if found.elastic else declared:
        if name not in declared:
            continue
        least, most = found.bounds(name)
        wanted = found.elasticity.asked(name) if found.elastic else None
        if wanted is not None and wanted <= most:
            asked[name] = max(wanted, least)
            said.append(f"{annotations[name]}={wanted}")
        elif size and decided.get(name, declared[name]) != declared[name]:
            asked[name] = min(max(declared[name], least), most)
            said.append(f"spec has {declared[name]} {name}")
    return asked, f"asked for by a person: {', '.join(said)}" if said else ""


def assemble(
    candidates: Iterable[ScheduledJob],
    nodes: Mapping[str, Node],
    foreign: Iterable[ForeignPod],
    now_s: float,
    previous: core.Snapshot | None = None,
) -> core.Snapshot:
    """The Snapshot; evolved from the previous one where no node changed."""
    used = {name: [0] * len(NOTHING) for name in nodes}
    jobs: dict[str, core.Job] = {}
    for each in candidates:
        if each.job is not None:
            jobs[each.job.key] = each.job
        for name, taken in each.others.items():
            _add(used, name, taken)
    for pod in foreign:
        _add(used, pod.node, pod.requests)
    free: dict[str, core.Node] = {}
    for name, node in nodes.items():
        capacity = node.allocatable
        left = capacity.minus(Resources(*used[name])).positive()
        free[name] = core.Node(name, capacity, left, labels={**node.labels, _NAME: name}, taints=node.taints)
    if previous is None:
        return core.Snapshot(now_s, free, jobs)
    return previous.evolve(
        now_s,
        changed=[job for key, job in jobs.items() if previous.jobs.get(key) != job],
        removed=[key for key in previous.jobs if key not in jobs],
        nodes=None if free == previous.nodes else free,
    )


# Parts of a job


def _job_spec(
    job: Job,
    found: JobRequest,
    *,
    asked: Mapping[str, int],
    why: str,
    report: Report | None,
    state: State | None,
    priorities: Mapping[str, int],
    unfit: Mapping[Pair, str],
) -> core.JobSpec:
    elasticity, created = found.elasticity, _seconds(job.created) or 0.0
    groups = []
    for name, replica in found.spec.tf_replica_specs.items():
        least, most = found.bounds(name)
        if name in asked:
            least = most = asked[name]
        count = min(max(replica.count, least), most)
        groups.append(core.ReplicaGroup(name, found.requests[name], count, least, most))
    deadline = elasticity.deadline
    deadline_s = None
    if deadline is not None:
        deadline_s = deadline.timestamp() if isinstance(deadline, datetime) else created + deadline.total_seconds()
    where = tuple((name, _elsewhere(name, constraints, unfit)) for name, constraints in found.constraints)
    distinct = {constraints for _, constraints in where}
    steps = (
        elasticity.total_steps
        or (report.total_steps if report is not None else None)
        or (state.total_steps if state is not None else None)
    )
    expected = elasticity.estimated_duration
    return core.JobSpec(
        key=f"{job.namespace}/{job.name}",
        arrival_s=created,
        groups=tuple(groups),
        priority=max((priorities.get(name, 0) for name in found.classes), default=0),
        deadline_s=deadline_s,
        total_steps=None if steps is None else float(min(steps, MAX_STEPS)),
        duration_s=expected.total_seconds() if expected is not None else None,
        resizable=found.elastic or bool(asked),
        stoppable=found.stoppable,
        reports=elasticity.reports(found.spec),
        fixed_cpu=bool(found.queue) or not found.elastic,
        constraints=next(iter(distinct)) if len(distinct) == 1 else ANYWHERE,
        constraints_by_type=where if len(distinct) > 1 else (),
        asked=why,
    )


def _elsewhere(name: str, constraints: Constraints, unfit: Mapping[Pair, str]) -> Constraints:
    """The constraints of a type, less the nodes that it cannot have."""
    nodes = tuple(sorted(node for type_, node in unfit if type_ == name.lower()))
    if not nodes:
        return constraints
    not_there = Requirement(_NAME, "NotIn", nodes)
    # A term without requirements matches nothing, and stays such a one.
    terms_ = tuple((*term, not_there) if term else term for term in constraints.affinity) or ((not_there,),)
    return replace(constraints, affinity=terms_)


def _constraints(pod: Mapping[str, Any]) -> Constraints:
    affinity = tuple(
        tuple(
            Requirement(each["key"], each["operator"], tuple(each.get("values") or ()))
            for part in ("matchExpressions", "matchFields")
            for each in term.get(part) or ()
        )
        for term in required_terms(pod)
    )
    selector = dict(pod.get("nodeSelector") or {})
    if pod.get("nodeName"):
        selector[_NAME] = pod["nodeName"]
    tolerations = tuple(
        Toleration(each.get("key", ""), each.get("operator") or "Equal", each.get("value", ""), each.get("effect", ""))
        for each in pod.get("tolerations") or ()
    )
    return Constraints(tuple(sorted(selector.items())), affinity, tolerations)


def _progress(state: State | None, report: Report | None, since_s: float) -> tuple[float, float, float]:
    """Steps done, when that was known (Unix seconds), and steps a second: the newest of what the program reports and
    what the state remembers; else none since the start. A program's first seconds tell no speed: what is taken from a
    job that seems to have long to go would be taken from one that is nearly done."""
    if report is not None and report.step is not None:
        return float(report.step), report.received_at, report.speed_of(report.generation) or 0.0
    if state is not None and state.step is not None:
        return float(state.step), _seconds(state.numbers_at) or since_s, state.steps_per_s or 0.0
    return 0.0, since_s, 0.0


def _speed(
    found: JobRequest,
    state: State | None,
    report: Report | None,
    size: Mapping[str, int],
    cpu: Mapping[str, tuple[int, ...]],
) -> OnlineSpeed | None:
    if state is None or core.WORKER not in found.requests:
        return None
    request, beside = found.requests[core.WORKER].cpu, found.beside[core.WORKER]
    seen: dict[tuple[int, int], tuple[float, int]] = {}
    for text, rate in state.speeds.items():
        ps, _, workers = text.partition("/")
        if ps.isdecimal() and workers.isdecimal() and max(len(ps), len(workers)) < 10 and _SLOWEST < rate < _FASTEST:
            lent = state.speed_cpu.get(text)
            seen[int(ps), int(workers)] = rate, request if lent is None else lent + beside
    now = report.speed_of(state.generation) if state.phase == "Stable" and report is not None else None
    if now and _SLOWEST < now < _FASTEST:
        held = cpu.get(core.WORKER) or (request,)
        seen[size.get(core.PS, 0), size.get(core.WORKER, 0)] = now, sum(held) // len(held)
    # Two digits of a speed are what can be measured; so most rounds need no new fit.
    told = tuple((each, float(f"{rate:.2g}"), held) for each, (rate, held) in sorted(seen.items()))
    return _believe(told) if told else None


@lru_cache(maxsize=8192)
def _believe(seen: tuple[tuple[tuple[int, int], float, int], ...]) -> OnlineSpeed:
    return believe({size: rate for size, rate, _ in seen}, cpu={size: float(cpu) for size, _, cpu in seen})


def _promised_cpu(
    found: JobRequest, target: Target | None, state: State | None, size: Mapping[str, int], nodes: Mapping[str, Node]
) -> dict[str, tuple[int, ...]]:
    """Millicores of whole pods, per type where any replica's differ from the request. CPU is lent on top of requests,
    within a node: what is written there beside that counts as the request."""
    most = max((node.allocatable.cpu for node in nodes.values()), default=0)
    if target is None or (state is not None and _refused(target, state)):
        given = state.cpu if state is not None else {}
    else:
        given = target.cpu
    cpu = {}
    for name, values in given.items():
        if name in found.requests:
            request, beside = found.requests[name].cpu, found.beside[name]
            each = tuple(
                values[index] + beside if index < len(values) and request <= values[index] + beside <= most else request
                for index in range(size.get(name, 0))
            )
            if any(value != request for value in each):
                cpu[name] = each
    return cpu


def _request(found: JobRequest, cpu: Mapping[str, tuple[int, ...]], role: Role) -> Resources:
    request = found.requests[role[0]]
    values = cpu.get(role[0], ())
    return request._replace(cpu=values[role[1]]) if role[1] < len(values) else request


def _cpu_use(pods: Mapping[Role, Pod], reports: Mapping[str, Report]) -> dict[str, float]:
    """Per type, CPU used over CPU held, of the containers that train and have said."""
    sums: dict[str, list[float]] = {}
    for (name, _), pod in pods.items():
        report = reports.get(pod.name)
        held = pod.cpu[0] or pod.cpu[1]
        if report is not None and report.cpu.use_cores is not None and held:
            total = sums.setdefault(name, [0.0, 0.0])
            total[0] += report.cpu.use_cores
            total[1] += held / 1000
    return {name: min(max(used / held, 0.0), _MOST_USE) for name, (used, held) in sums.items()}


def _last_rescale(state: State | None) -> float:
    """When the size last changed, or was last tried to be."""
    if state is None:
        return float("-inf")
    times = [state.history[-1].at] if state.history else []
    if state.refused is not None:
        times.append(state.refused.at)
    return max((_seconds(time) or 0.0 for time in times), default=float("-inf"))


def _pod_name(job: Job, spec: TFJobSpec) -> str:
    name, index = chief_of(spec)
    return f"{job.name}-{name.lower()}-{index}"


def _stored(read: Callable[[Mapping[str, str], str, Collection[str]], T | None], job: Job, spec: TFJobSpec) -> T | None:
    """A Target or State; nonsense that somebody wrote there counts as nothing, and is written anew."""
    try:
        return read(job.annotations, job.uid, spec.tf_replica_specs)
    except ValueError:
        return None


def _seconds(time: str | None) -> float | None:
    return parse_time(time).timestamp() if time else None


def _sum(parts: Iterable[tuple[str, Resources]]) -> dict[str, Resources]:
    total: dict[str, Resources] = {}
    for node, amount in parts:
        if node:
            total[node] = total.get(node, NOTHING).plus(amount)
    return total


def _add(used: dict[str, list[int]], node: str, amount: Resources) -> None:
    if (sums := used.get(node)) is not None:
        for i, part in enumerate(amount):
            sums[i] += part
