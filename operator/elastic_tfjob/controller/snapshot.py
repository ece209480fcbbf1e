"""From what the caches hold to what the core decides on. Pure.

A managed job is described with what it has been *promised*: the size and nodes of its target, or of its pods where they
are bound. What stands on the nodes at this moment may be more or less, while jobs are on their way; `Candidate.held`
says that, and nothing is promised on top of it (see scheduler.py).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from elastic_tfjob.api.annotations import OPERATOR_ANNOTATIONS, PREFIX, Elasticity
from elastic_tfjob.api.tfjob import TFJobSpec
from elastic_tfjob.controller.cluster import ForeignPod, Node
from elastic_tfjob.controller.elastic import STATE_ANNOTATION, TARGET_ANNOTATION, State, Target
from elastic_tfjob.controller.inject import sidecar_request
from elastic_tfjob.controller.observed import Job, Pod, required_terms
from elastic_tfjob.controller.reports import Report
from elastic_tfjob.controller.rescale import chief_of
from elastic_tfjob.controller.resources import cpu_of, requests_of
from elastic_tfjob.controller.status import parse_time
from elastic_tfjob.scheduling import snapshot as core
from elastic_tfjob.scheduling.constraints import ANYWHERE, Constraints, Requirement, Toleration
from elastic_tfjob.scheduling.resources import NOTHING, Resources
from elastic_tfjob.speed.optimus import OnlineSpeed, believe

__all__ = [
    "Candidate",
    "Role",
    "Terms",
    "Usage",
    "annotated",
    "asked_for",
    "assemble",
    "candidate",
    "promised",
    "terms",
]

Role = tuple[str, int]
"""Replica type, in the spec's spelling, and index."""
Usage = Mapping[str, Resources]
"""By node."""

_ENDED: Final = ("Succeeded", "Failed")
# The one field that required node affinity may name beside labels; given to the core as one more label.
_NAME: Final = "metadata.name"


@dataclass(frozen=True, slots=True)
class Terms:
    """What a job's spec and its user's annotations ask for. `beside` is the CPU in millicores, per type, of all in the
    pod but the container that trains."""

    raw_spec: bytes
    said: Mapping[str, str]
    spec: TFJobSpec
    elasticity: Elasticity
    elastic: bool
    requests: Mapping[str, Resources]
    beside: Mapping[str, int]
    constraints: tuple[tuple[str, Constraints], ...]

    @property
    def declared(self) -> dict[str, int]:
        """Replicas per type as the spec says."""
        return {name: replica.count for name, replica in self.spec.tf_replica_specs.items()}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job as the loop sees it. `job` is None for one that the profile does not decide for: all that its pods take is
    then in `others`, as is what pods take that a decided job does not count.

    `held` is what a decided job takes now or has been promised, `bound` the nodes of its pods, `awaited` the nodes
    promised to replicas that are not bound yet. `cpu` is what each bound replica holds, in millicores.
    """

    source: Job | None
    job: core.Job | None = None
    terms: Terms | None = None
    target: Target | None = None
    state: State | None = None
    others: Usage = field(default_factory=dict)
    held: Usage = field(default_factory=dict)
    bound: Mapping[Role, str] = field(default_factory=dict)
    awaited: Mapping[Role, str] = field(default_factory=dict)
    cpu: Mapping[Role, int] = field(default_factory=dict)


def annotated(job: Job) -> bool:
    """Whether the user wrote any of our annotations."""
    return any(
        name.startswith(PREFIX) and name.removeprefix(PREFIX) not in OPERATOR_ANNOTATIONS for name in job.annotations
    )


def terms(job: Job, before: Terms | None = None) -> Terms:
    """Read spec and annotations; `before` is reused where they are the same. Raises InvalidTFJob."""
    said = {
        name: text
        for name, text in job.annotations.items()
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) not in OPERATOR_ANNOTATIONS
    }
    if before is not None and before.raw_spec == job.raw_spec and before.said == said:
        return before
    spec = job.spec()
    elasticity = Elasticity.parse(job.annotations, spec)
    added = sidecar_request() if elasticity.injected(spec) in ("sidecar", "both") else (0, 0, 0)
    requests, beside, constraints = {}, {}, []
    for name, replica in spec.tf_replica_specs.items():
        pod = replica.template.get("spec") or {}
        requests[name] = Resources(*requests_of(pod)).plus(Resources(*added))
        beside[name] = requests[name].cpu - cpu_of(pod)[0]
        constraints.append((name, _constraints(pod)))
    return Terms(job.raw_spec, said, spec, elasticity, elasticity.elastic(spec), requests, beside, tuple(constraints))


def candidate(
    job: Job | None,
    pods: Iterable[Pod],
    *,
    nodes: Mapping[str, Node],
    now: datetime,
    all_jobs: bool = False,
    reports: Mapping[str, Report] | None = None,
    priorities: Mapping[str, int] | None = None,
    before: Candidate | None = None,
) -> Candidate:
    """What is to be decided for a job; `before` is its last candidate, to save work. Raises InvalidTFJob."""
    active = [pod for pod in pods if pod.phase not in _ENDED and pod.node]
    if job is None or job.deleting or not (all_jobs or annotated(job)):
        return Candidate(job, others=_sum((pod.node, pod.requests) for pod in active))
    found = terms(job, before.terms if before else None)
    spec = found.spec
    target, state = _stored(Target, job, TARGET_ANNOTATION), _stored(State, job, STATE_ANNOTATION)
    ours = spec.managed_here() and found.elasticity.placement != "none" and not job.status().finished
    if not ours or spec.run_policy.suspend:
        everything = _sum((pod.node, pod.requests) for pod in active)
        return Candidate(job, None, found if ours else None, target, state, others=everything)

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
    lost = False
    cpu = _promised_cpu(found, target, state, size)
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
                awaited[role] = node
                lost = lost or (bool(node) and node not in nodes)
                covered.append((node, _request(found, cpu, role)))
            there.append(node)
        if there:
            placement[name] = tuple(there)
    kept = {role: pod for role, pod in by_role.items() if role[1] < size.get(role[0], 0)}
    extra = {pod.uid for pod in active} - {pod.uid for pod in kept.values()}
    asked, why = asked_for(found, target, state, size)
    phase: core.Phase = "waiting" if not placement else "running"
    # A job that starts is between two targets, too: till its pods are bound. One whose node is gone waits in vain.
    if on_its_way or (awaited and not lost):
        superseded = bool(asked) and any(size.get(name, 0) != count for name, count in asked.items())
        phase = "running" if superseded and placement else "rescaling"
    since_s = _seconds(job.status().start_time) or now.timestamp()
    report = reports.get(_pod_name(job, spec)) if reports else None
    steps, observed_s, steps_per_s = _progress(state, report, since_s)
    return Candidate(
        job,
        core.Job(
            spec=_job_spec(job, found, asked=asked, why=why, report=report, state=state, priorities=priorities or {}),
            placement=placement,
            phase=phase,
            steps=steps,
            observed_s=observed_s,
            steps_per_s=steps_per_s,
            since_s=since_s,
            rescaled_s=_last_rescale(state),
            speed=_speed(found, state, report, size, cpu),
            cpu=cpu,
            cpu_use=_cpu_use(by_role, reports or {}),
        ),
        found,
        target,
        state,
        others=_sum((pod.node, pod.requests) for pod in active if pod.uid in extra),
        held=_sum([*covered, *((pod.node, Resources(*pod.requests)) for pod in kept.values())]),
        bound={role: pod.node for role, pod in by_role.items()},
        awaited=awaited,
        cpu={role: pod.requests[0] for role, pod in by_role.items()},
    )


def promised(
    found: Terms, target: Target | None, state: State | None, *, started: bool
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
    coming = found.elastic and target.generation > state.generation and state.phase != "Waiting"
    return target.replicas, state.rescaling or coming


def _refused(target: Target, state: State) -> bool:
    return state.refused is not None and state.refused.generation >= target.generation > state.generation


def asked_for(
    found: Terms, target: Target | None, state: State | None, size: Mapping[str, int]
) -> tuple[dict[str, int], str]:
    """The replicas per type that a person asks for, and in which words: by annotation, or by an edit of the spec of a
    job that has a size already (which holds until a target has followed it)."""
    if not found.elastic:
        return {}, ""
    declared = found.declared
    decided = target.declared if target is not None else (state.replicas if state is not None else {})
    asked: dict[str, int] = {}
    said = []
    for name, annotation in ((core.PS, "target-ps"), (core.WORKER, "target-workers")):
        if name not in declared:
            continue
        wanted = found.elasticity.asked(name)
        if wanted is not None:
            asked[name] = wanted
            said.append(f"{annotation}={wanted}")
        elif size and decided.get(name, declared[name]) != declared[name]:
            least, most = found.elasticity.bounds(name, declared[name])
            asked[name] = min(max(declared[name], least), most)
            said.append(f"spec has {declared[name]} {name}")
    return asked, f"asked for by a person: {', '.join(said)}" if said else ""


def assemble(
    candidates: Iterable[Candidate],
    nodes: Mapping[str, Node],
    foreign: Iterable[ForeignPod],
    now_s: float,
    previous: core.Snapshot | None = None,
) -> core.Snapshot:
    """The Snapshot; evolved from the previous one where no node changed."""
    used: dict[str, list[int]] = {name: [0, 0, 0] for name in nodes}
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
        capacity = Resources(*node.allocatable)
        left = Resources(*(max(0, have - take) for have, take in zip(capacity, used[name], strict=True)))
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
    found: Terms,
    *,
    asked: Mapping[str, int],
    why: str,
    report: Report | None,
    state: State | None,
    priorities: Mapping[str, int],
) -> core.JobSpec:
    elasticity, created = found.elasticity, _seconds(job.created) or 0.0
    groups = []
    for name, replica in found.spec.tf_replica_specs.items():
        least, most = elasticity.bounds(name, replica.count) if found.elastic else (replica.count, replica.count)
        if name in asked:
            least = most = asked[name]
        count = min(max(replica.count, least), most)
        groups.append(core.ReplicaGroup(name, found.requests[name], count, least, most))
    deadline = elasticity.deadline
    deadline_s = None
    if deadline is not None:
        deadline_s = deadline.timestamp() if isinstance(deadline, datetime) else created + deadline.total_seconds()
    distinct = {constraints for _, constraints in found.constraints}
    classes = (
        (r.template.get("spec") or {}).get("priorityClassName", "") for r in found.spec.tf_replica_specs.values()
    )
    expected = elasticity.estimated_duration
    return core.JobSpec(
        key=f"{job.namespace}/{job.name}",
        arrival_s=created,
        groups=tuple(groups),
        priority=max((priorities.get(name, 0) for name in classes), default=0),
        deadline_s=deadline_s,
        total_steps=elasticity.total_steps
        or (report.total_steps if report is not None else None)
        or (state.total_steps if state is not None else None),
        duration_s=expected.total_seconds() if expected is not None else None,
        loanable=elasticity.loanable,
        rescalable=found.elastic,
        constraints=next(iter(distinct)) if len(distinct) == 1 else ANYWHERE,
        constraints_by_type=found.constraints if len(distinct) > 1 else (),
        asked=why,
    )


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
    found: Terms,
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
        if ps.isdecimal() and workers.isdecimal():
            lent = state.speed_cpu.get(text)
            seen[int(ps), int(workers)] = rate, request if lent is None else lent + beside
    now = report.speed_of(state.generation) if state.phase == "Stable" and report is not None else None
    if now:
        held = cpu.get(core.WORKER) or (request,)
        seen[size.get(core.PS, 0), size.get(core.WORKER, 0)] = now, sum(held) // len(held)
    # Two digits of a speed are what can be measured; so most rounds need no new fit.
    told = tuple((each, float(f"{rate:.2g}"), held) for each, (rate, held) in sorted(seen.items()))
    return _believe(told) if told else None


@lru_cache(maxsize=8192)
def _believe(seen: tuple[tuple[tuple[int, int], float, int], ...]) -> OnlineSpeed:
    return believe({size: rate for size, rate, _ in seen}, cpu={size: float(cpu) for size, _, cpu in seen})


def _promised_cpu(
    found: Terms, target: Target | None, state: State | None, size: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """Millicores of whole pods, per type where any replica's differ from the request."""
    if target is None or (state is not None and _refused(target, state)):
        given = state.cpu if state is not None else {}
    else:
        given = target.cpu
    cpu = {}
    for name, values in given.items():
        if name in found.requests:
            request, beside = found.requests[name].cpu, found.beside[name]
            each = tuple(
                values[index] + beside if index < len(values) else request for index in range(size.get(name, 0))
            )
            if any(value != request for value in each):
                cpu[name] = each
    return cpu


def _request(found: Terms, cpu: Mapping[str, tuple[int, ...]], role: Role) -> Resources:
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
    return {name: used / held for name, (used, held) in sums.items()}


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


def _stored(kind: Any, job: Job, annotation: str) -> Any:
    """A Target or State; nonsense that somebody wrote there counts as nothing, and is written anew."""
    try:
        return kind.parse(job.annotations.get(annotation))
    except ValueError:
        return None


def _seconds(time: str | None) -> float | None:
    return parse_time(time).timestamp() if time else None


def _sum(parts: Iterable[tuple[str, tuple[int, int, int]]]) -> dict[str, Resources]:
    total: dict[str, Resources] = {}
    for node, amount in parts:
        if node:
            total[node] = total.get(node, NOTHING).plus(Resources(*amount))
    return total


def _add(used: dict[str, list[int]], node: str, amount: tuple[int, int, int]) -> None:
    if (sums := used.get(node)) is not None:
        for i in range(3):
            sums[i] += amount[i]
