"""Describes one job for the decision core: its spec, progress and speed, from its annotations and reports. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from elastic_tfjob.api.annotations import Elasticity
from elastic_tfjob.api.reading import MAX_STEPS
from elastic_tfjob.controller.model.affinity import NAME_FIELD
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.reports import Report
from elastic_tfjob.controller.model.state import StoredState
from elastic_tfjob.controller.model.status import moment_of, parse_time
from elastic_tfjob.controller.model.usage import UsageRecord
from elastic_tfjob.controller.planning.request import JobRequest, memory_needs
from elastic_tfjob.scheduling import snapshot as core
from elastic_tfjob.scheduling.resources import ANYWHERE, Constraints, Requirement, Resources
from elastic_tfjob.speed.history import Conditions, Lesson, Size, stem
from elastic_tfjob.speed.optimus import OnlineSpeed, believe

__all__ = [
    "PATIENCE_S",
    "Pair",
    "RejectedNodes",
    "Role",
    "active",
    "by_task",
    "cpu_use",
    "job_spec",
    "judge",
    "last_rescale",
    "lesson",
    "model_of",
    "progress",
    "seconds",
    "speed",
    "step_cpu_s",
    "verdict_due_s",
]

# -- Nodes that kube-scheduler refuses for a job's pods, for reasons that the core does not model ----------------------
# The operator pins a pod to the node that the core chose. The core does not model all constraints (zones of volumes,
# host ports, topology spread, a foreign pod that was bound first). kube-scheduler enforces them: if a pinned pod stays
# unschedulable, its replica type cannot use that node. The pair of replica type and node is then avoided for a while,
# twice as long each time that it fails again.

Pair = tuple[str, str]
"""Replica type, in lower case as in the pods' labels, and node name."""

PATIENCE_S: Final = 10.0
"""Seconds that a pinned pod must stay unschedulable before its node is rejected: a pod that leaves the node takes a
moment to end."""
# Seconds for which a pair is avoided: the first time, and at most.
_FIRST_S: Final = 60.0
_LONGEST_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class RejectedNodes:
    """A replica type avoids a node until `until_s` (Unix time), for `delay_s` seconds in total, since kube-scheduler
    reported `why`."""

    until_s: float
    delay_s: float
    why: str


def judge(known: Mapping[Pair, RejectedNodes], pods: Iterable[Pod], now_s: float) -> dict[Pair, RejectedNodes]:
    """Updates a job's rejected nodes from its pods. A pod that is bound to a node proves that its replica type can use
    the node. An entry is kept for `delay_s` after `until_s`: if the pair fails again in that time, the delay doubles.
    """
    found = {pair: each for pair, each in known.items() if now_s < each.until_s + each.delay_s}
    refused: dict[Pair, str] = {}
    for pod in pods:
        if pod.node:
            found.pop((pod.replica_type, pod.node), None)
        elif _waited_s(pod, now_s) >= PATIENCE_S:
            refused.setdefault((pod.replica_type, pod.pinned), pod.unschedulable)
    for pair, why in refused.items():
        before = found.get(pair)
        if before is not None and now_s < before.until_s:
            continue
        delay_s = _FIRST_S if before is None else min(2 * before.delay_s, _LONGEST_S)
        found[pair] = RejectedNodes(now_s + delay_s, delay_s, why)
    return found


def active(known: Mapping[Pair, RejectedNodes], now_s: float) -> dict[Pair, str]:
    """The pairs to avoid now, each with kube-scheduler's message."""
    return {pair: each.why for pair, each in known.items() if now_s < each.until_s}


def verdict_due_s(pods: Iterable[Pod], now_s: float) -> float | None:
    """Seconds until the next pod has been unschedulable for PATIENCE_S; None: no pod waits for that."""
    waited = [_waited_s(pod, now_s) for pod in pods if not pod.node]
    return min((PATIENCE_S - each for each in waited if 0 <= each < PATIENCE_S), default=None)


def _waited_s(pod: Pod, now_s: float) -> float:
    """Seconds since kube-scheduler reported a pinned pod as unschedulable; -1 for any other pod."""
    if not pod.pinned or not pod.unschedulable_at or pod.phase != "Pending" or pod.terminating:
        return -1.0
    at = moment_of(pod.unschedulable_at)
    return -1.0 if at is None else max(0.0, now_s - at.timestamp())


Role = tuple[str, int]
"""Replica type, in the spec's spelling, and task index. The job's state says which pod has this task."""

# The lowest value that a PriorityClass can have.
_LEAST: Final = -(2**31)
# Cap on CPU used over CPU held: any replica above it is simply busy.
_MOST_USE: Final = 100.0
# Cap on the CPU seconds of one step.
_MOST_STEP_CPU_S: Final = 1e9
# Measured steps per second outside this range are ignored.
_SLOWEST, _FASTEST = 1e-9, 1e9


def by_task(pods: Mapping[Role, Pod], state: StoredState | None) -> dict[Role, Pod]:
    """Maps pods, given by type and pod index, to type and task. A task that moves is mapped to its new pod as soon as
    that pod exists."""
    if state is None or not (state.indexes or (state.next is not None and state.next.indexes)):
        return dict(pods)
    found: dict[Role, Pod] = {}
    for each in (state, state.next):
        if each is None:
            continue
        for name in each.replicas:
            for task, index in enumerate(each.pods(name)):
                if (pod := pods.get((name, index))) is not None:
                    found[name, task] = pod
    return found


def job_spec(
    job: TFJob,
    request: JobRequest,
    *,
    asked: Mapping[str, int],
    why: str,
    report: Report | None,
    state: StoredState | None,
    priorities: Mapping[str, int],
    rejected_nodes: Mapping[Pair, str],
    last: bool = False,
) -> core.JobSpec:
    """The job's spec for the decision core. `asked`: the replicas per type that a person requests, for the reason
    `why`. `last`: the job gets the lowest priority, whatever its PriorityClass."""
    elasticity, created = request.elasticity, seconds(job.created) or 0.0
    groups = []
    for name, replica in request.spec.tf_replica_specs.items():
        least, most = request.bounds(name)
        least = max(least, memory_needs(request, state, name))
        if name in asked:
            least = most = asked[name]
        count = min(max(replica.count, least), most)
        groups.append(core.ReplicaGroup(name, request.requests[name], count, least, most))
    where = tuple((name, _elsewhere(name, constraints, rejected_nodes)) for name, constraints in request.constraints)
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
        priority=_LEAST if last else request.priority(priorities),
        deadline_s=elasticity.deadline_s(created),
        total_steps=None if steps is None else float(min(steps, MAX_STEPS)),
        duration_s=expected.total_seconds() if expected is not None else None,
        loanable=elasticity.loanable and request.stoppable,
        resizable=request.elastic or bool(asked),
        stoppable=request.stoppable,
        movable=request.stoppable,
        reports=elasticity.reports(request.spec),
        fixed_cpu=bool(request.queue) or request.pod_level or not request.elastic,
        constraints=next(iter(distinct)) if len(distinct) == 1 else ANYWHERE,
        constraints_by_type=where if len(distinct) > 1 else (),
        asked=why,
        model=model_of(job, elasticity),
    )


def model_of(job: TFJob, elasticity: Elasticity) -> str:
    """The name under which jobs share learned speeds: the annotation `model`, else the stem of the job's name."""
    return elasticity.model or stem(job.name)


def _elsewhere(name: str, constraints: Constraints, rejected_nodes: Mapping[Pair, str]) -> Constraints:
    """The constraints of a replica type, which also exclude its rejected nodes."""
    nodes = tuple(sorted(node for type_, node in rejected_nodes if type_ == name.lower()))
    if not nodes:
        return constraints
    not_there = Requirement(NAME_FIELD, "NotIn", nodes)
    # In Kubernetes a term without requirements matches no node. With a requirement added, it would match nodes.
    terms_ = tuple((*term, not_there) if term else term for term in constraints.affinity) or ((not_there,),)
    return replace(constraints, affinity=terms_)


def progress(state: StoredState | None, report: Report | None, since_s: float) -> tuple[float, float, float]:
    """Steps done, when they were counted (Unix seconds), and steps per second: from the program's report, else from the
    stored state, else zero steps at `since_s`. The first seconds of a program give no speed: a job that is nearly done
    could seem to need a long time, and lose resources for that."""
    if report is not None and report.step is not None:
        return float(report.step), report.received_at_s, report.speed_of(report.generation) or 0.0
    if state is not None and state.step is not None:
        return float(state.step), seconds(state.metrics_at) or since_s, state.steps_per_s or 0.0
    return 0.0, since_s, 0.0


def measured(request: JobRequest, state: StoredState) -> dict[Size, tuple[float, Conditions]]:
    """The steps per second stored in the state, by (PSs, workers), each with its conditions for whole pods."""

    def of_pods(found: Conditions) -> Conditions:
        worker, ps = (
            request.pod_cpu(type_, round(each)) if each and type_ in request.requests else 0.0
            for type_, each in ((core.WORKER, found.worker_millicores), (core.PS, found.ps_millicores))
        )
        return Conditions(float(worker), float(ps), found.spread)

    return {size: (rate, of_pods(found)) for size, (rate, found) in state.measured.items()}


def speed(
    request: JobRequest, state: StoredState | None, report: Report | None, size: Mapping[str, int], under: Conditions
) -> OnlineSpeed | None:
    """The speed model fitted to the job's measured steps per second, including the present speed; None: no measurement.
    `size` has the present replicas per type, `under` the present conditions."""
    if state is None:
        return None
    seen = measured(request, state)
    now = report.speed_of(state.generation) if state.phase == "Stable" and report is not None else None
    if now and _SLOWEST < now < _FASTEST and (workers := size.get(core.WORKER, 0)):
        here = size.get(core.PS, 0), workers
        spread = seen[here][1].spread if here in seen else 0.0
        seen[here] = now, replace(under, spread=spread)
    # A speed is measured to two digits at best. With rounded speeds, most rounds reuse the cached fit.
    rounded = tuple((each, float(f"{rate:.2g}"), found) for each, (rate, found) in sorted(seen.items()))
    return _believe(rounded) if rounded else None


@lru_cache(maxsize=8192)
def _believe(seen: tuple[tuple[Size, float, Conditions], ...]) -> OnlineSpeed:
    return believe({size: rate for size, rate, _ in seen}, conditions={size: found for size, _, found in seen})


def lesson(
    job: TFJob, request: JobRequest, state: StoredState | None, record: UsageRecord
) -> tuple[str, Lesson] | None:
    """What the history learns from a succeeded job, with the model name to store it under. None if the job has not
    succeeded, if its usage record is still open, or if the operator has no state of it."""
    if state is None or record.placed or not job.status().is_true("Succeeded"):
        return None
    seen = measured(request, state)
    steps = state.total_steps if state.total_steps is not None else state.step
    taught = Lesson(
        job.uid,
        None if steps is None else float(steps),
        record.executed_s or None,
        {size: rate for size, (rate, _) in seen.items()},
        {size: found for size, (_, found) in seen.items()},
    )
    return model_of(job, request.elasticity), taught.bounded()


def cpu_use(
    pods: Mapping[Role, Pod], reports: Mapping[str, Report], promised: core.Cpu, requests: Mapping[str, Resources]
) -> dict[str, float]:
    """CPU used over CPU held, by replica type, for the training containers that report their use.

    A container with a limit holds what its pod has now. Without a limit the request is only a weight, which does not
    bound the use. So the use is divided by the CPU that the plan promised: the ratio times the promised CPU is the
    measured use, even while the pod does not have its new weight yet."""
    sums: dict[str, list[float]] = {}
    for (name, index), pod in pods.items():
        report = reports.get(pod.name)
        weights = promised.get(name, ())
        weight = weights[index] if index < len(weights) else requests[name].cpu_millicores
        asked = pod.cpu
        held = (
            (asked.request_millicores or asked.limit_millicores)
            if asked.limit_millicores
            else (weight if asked.request_millicores else 0)
        )
        if report is not None and report.cpu.use_cores is not None and held:
            total = sums.setdefault(name, [0.0, 0.0])
            total[0] += report.cpu.use_cores
            total[1] += held / 1000
    return {name: min(max(used / held, 0.0), _MOST_USE) for name, (used, held) in sums.items()}


def step_cpu_s(pods: Mapping[Role, Pod], reports: Mapping[str, Report], chief: Report | None) -> float:
    """CPU seconds of a step, averaged over the last minutes. 0 during a program's first steps, and while a replica has
    not reported its use or the chief its speed for that time."""
    rate, used = chief.mean_steps_per_s if chief is not None and chief.steady else None, 0.0
    for pod in pods.values():
        report = reports.get(pod.name)
        if report is None or report.mean_cores is None:
            return 0.0
        used += max(0.0, report.mean_cores)
    return min(used / rate, _MOST_STEP_CPU_S) if rate else 0.0


def last_rescale(state: StoredState | None) -> float:
    """When the size last changed, or a change of it last failed (Unix time); -inf: never."""
    if state is None:
        return float("-inf")
    times = [state.history[-1].at] if state.history else []
    if state.refused is not None:
        times.append(state.refused.at)
    return max((seconds(time) or 0.0 for time in times), default=float("-inf"))


def seconds(time: str | None) -> float | None:
    """The Unix time of a timestamp; None for an empty one."""
    return parse_time(time).timestamp() if time else None
