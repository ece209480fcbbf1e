"""Describes one job for the scheduling loop, from the cached objects. Pure.

The description of a managed job contains its *reservations*: the size and nodes of its target, or of its pods where
they are bound. While the job is rescaled, its pods may use more or less than that. `JobView.reserved` covers both, and
no plan gives any of it to another job.

A reservation is temporary: a node that kube-scheduler rejects counts as lost, capacity that pods fail to release counts
as used by them, and capacity for pods that do not start in time is given to other jobs.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Final, TypeVar

from elastic_tfjob.api.reading import UnknownWord
from elastic_tfjob.api.tfjob import TFJobSpec
from elastic_tfjob.controller.job.pods import chief_of, general_name, roles_of
from elastic_tfjob.controller.model.annotations import STATE_ANNOTATION, TARGET_ANNOTATION
from elastic_tfjob.controller.model.cluster import KubeNode
from elastic_tfjob.controller.model.injection import DEFAULT_RESOURCES, ContainerResources
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.memory import raised_memory
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.reports import WINDOW_S, Report
from elastic_tfjob.controller.model.speed_conditions import cpu_shared
from elastic_tfjob.controller.model.state import StoredState
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.controller.model.usage import UsageRecord
from elastic_tfjob.controller.planning.core_job import (
    Pair,
    Role,
    cpu_use,
    job_spec,
    last_rescale,
    lesson,
    progress,
    seconds,
    speed,
    step_cpu_s,
)
from elastic_tfjob.controller.planning.request import JobRequest, annotated, asked_for, job_request
from elastic_tfjob.controller.planning.reservations import (
    Reservations,
    occupied,
    overdue_release,
    reservations_of,
    since,
)
from elastic_tfjob.scheduling import snapshot as core
from elastic_tfjob.scheduling.resources import NOTHING, Resources
from elastic_tfjob.scheduling.shared_cpu import slowest_usable, takes_turns
from elastic_tfjob.scheduling.snapshot import NO_MEMORY
from elastic_tfjob.scheduling.steps.leave import LAST_CHANCE_S
from elastic_tfjob.speed.growth import Growth
from elastic_tfjob.speed.history import Conditions, Lesson

__all__ = ["JobView", "Usage", "set_aside", "view_of"]

Usage = Mapping[str, Resources]
"""Resources by node name."""

T = TypeVar("T")

# Seconds that capacity stays reserved for missing pods, and for missing pods that are known to be unable to start.
_RESERVED_S: Final = 300.0
_BARRED_S: Final = 20.0
# Seconds after which the CPU use of a program counts although the cost of a step is unknown: some programs never report
# a step.
_START_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as the scheduling loop sees it.

    `job` is None if the profile does not decide for the job; `other_usage` then has everything that its pods use.
    Otherwise `other_usage` has what pods with the job's name use beyond its reservations.

    `followed`: the profile decides for the job as soon as it is not suspended. `reserved` is what the job uses now or
    has been assigned, `used` is the part of it that its pods use, and `floor` is what the pods that it keeps request,
    without lent CPU. `bound` has the node of each bound pod, `pending` the intended node of each replica that is not
    bound yet, and `cpu_millicores` the CPU of each bound replica. `refused`: kube-scheduler's message, if it rejects a
    node of the job.

    Times are Unix times. `pending_since_s`: since when some replicas of the present target are not bound;
    `overdue_since_s`: since when pods hold more than the present target allows; None: not so. `cpu_since_s`: since when
    the job has had the same CPU. `cordoned` are the nodes on which the job runs but may not stay; `lost` are the nodes
    of its pods that no longer exist or are unusable. `lesson`: what the history learns from a succeeded job, with the
    model name to store it under.
    """

    source: TFJob | None
    job: core.Job | None = None
    request: JobRequest | None = None
    target: Target | None = None
    state: StoredState | None = None
    other_usage: Usage = field(default_factory=dict)
    reserved: Usage = field(default_factory=dict)
    used: Usage = field(default_factory=dict)
    floor: Usage = field(default_factory=dict)
    followed: bool = False
    bound: Mapping[Role, str] = field(default_factory=dict)
    pending: Mapping[Role, str] = field(default_factory=dict)
    cpu_millicores: Mapping[Role, int] = field(default_factory=dict)
    refused: str = ""
    pending_since_s: float | None = None
    overdue_since_s: float | None = None
    cordoned: Mapping[str, str] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()
    lesson: tuple[str, Lesson] | None = None
    cpu_since_s: float = float("-inf")

    @property
    def may_change(self) -> bool:
        """Whether the view may change by time alone: for a reservation without pods, an overdue release, or a rejected
        node."""
        return self.pending_since_s is not None or self.overdue_since_s is not None or bool(self.refused)


def set_aside(view: JobView) -> JobView:
    """The view of this job if the profile does not decide for it: its use and its reservations still count."""
    if view.job is None:
        return view
    return replace(
        view,
        job=None,
        other_usage=_sum([*view.other_usage.items(), *view.reserved.items()]),
        reserved={},
        used={},
        floor={},
    )


def view_of(
    job: TFJob | None,
    pods: Iterable[Pod],
    *,
    nodes: Mapping[str, KubeNode],
    now: datetime,
    all_jobs: bool = False,
    reports: Mapping[str, Report] | None = None,
    priorities: Mapping[str, int] | None = None,
    before: JobView | None = None,
    rejected_nodes: Mapping[Pair, str] | None = None,
    cordoned: Mapping[str, str] = MappingProxyType({}),
    leaving: Mapping[str, float] = MappingProxyType({}),
    failed: int = 0,
    barred: bool = False,
    configured: ContainerResources = DEFAULT_RESOURCES,
    admitted: Mapping[str, int] = MappingProxyType({}),
) -> JobView:
    """The view of a job. `before` is its previous view, which saves work and has the start times of reservations.

    `rejected_nodes` are nodes that kube-scheduler refuses for the job; `cordoned` nodes get no new pods, and those of
    them in `leaving` are gone at that Unix time. `failed`: the
    number of reservations in the job's namespace that failed lately; each halves the time that capacity is reserved for
    the job, and a job without a bound pod then comes after all other jobs. `barred`: the job's pods cannot be created.
    `configured`: the resources of injected containers; `admitted`: as in JobRequest. Raises InvalidTFJob and
    ValueError.
    """
    pods = tuple(pods)
    active = [pod for pod in pods if not pod.ended and pod.node]
    everything = _sum((pod.node, pod.requests) for pod in active)
    follows = job is not None and (all_jobs or annotated(job))
    if job is None or job.deleting or not (follows or _remembered(job)):
        return JobView(job, other_usage=everything)
    request = job_request(
        job,
        before.request if before else None,
        before.request.injection if before and before.request else None,
        configured,
        admitted,
        memory=before.request.memory if before and before.request else {},
    )
    spec, now_s = request.spec, now.timestamp()
    try:
        target, state = _written(job, spec, before)
    except UnknownWord:  # the reconcile loop skips and reports this job: no target may be written for it
        return JobView(job, other_usage=everything)
    injection = state.injection if state is not None else None
    memory = raised_memory(state.memory) if state is not None and not job.queue else {}
    if (injection, memory) != (request.injection, request.memory):
        request = job_request(job, None, injection, configured, admitted, memory=memory)
    ours = spec.managed_here() and not job.status().finished
    followed = ours and follows and request.elasticity.placement != "none"
    record = UsageRecord.of(job.annotations, job.uid)
    if not followed or spec.run_policy.suspend:
        taught = lesson(job, request, state, record)
        return JobView(
            job,
            None,
            request if ours else None,
            target,
            state,
            other_usage=everything,
            followed=followed,
            lesson=taught,
        )
    # A previous description with another uid is of a deleted job that had the same name.
    same = before is not None and before.source is not None and before.source.uid == job.uid
    observed = _Observed(job, request, target, state, record, reports or {}, before if same else None, now_s)
    own = _own(job, spec, active)
    late = _prepares_too_late(target, state, own, leaving, now_s)
    reservations = reservations_of(
        request,
        None if late else target,
        replace(state, phase="Stable", next=None) if late and state is not None else state,
        own,
        nodes=nodes,
        rejected_nodes=rejected_nodes or {},
        cordoned=cordoned,
        now_s=now_s,
    )
    asked, why = asked_for(request, target, state, reservations.size)
    superseded = any(reservations.size.get(name, 0) != count for name, count in asked.items())
    decided_spec = job_spec(
        job,
        request,
        asked=asked,
        why=str(why),
        report=observed.report,
        state=state,
        priorities=priorities or {},
        rejected_nodes=rejected_nodes or {},
        last=failed > 0 and not reservations.kept,
    )
    decided = _core_job(decided_spec, observed, reservations, _phase(reservations, superseded=superseded))
    made = _with_nodes(decided, observed, reservations, active)
    bound = made.bound.values()
    made = replace(
        made,
        cordoned={node: cordoned[node] for node in sorted(bound) if node in cordoned},
        lost=frozenset(node for node in bound if node not in nodes and node not in cordoned),
    )
    # A request for fewer replicas (say, because a quota admits no more) is still followed: it needs no capacity.
    fewer = superseded and all(count <= reservations.size.get(name, 0) for name, count in asked.items())
    barred = barred or reservations.blocked or any(pod.gated and pod.owner == job.uid for pod in pods)
    patience_s = _BARRED_S if barred else max(_BARRED_S, _RESERVED_S / 2 ** min(failed, 8))
    if made.pending_since_s is not None and now_s - made.pending_since_s >= patience_s and not fewer:
        # Other jobs get the capacity of the missing pods: only what the job's pods use still counts.
        return set_aside(replace(made, reserved=made.used))
    return made


def _prepares_too_late(
    target: Target | None,
    state: StoredState | None,
    pods: Mapping[Role, Pod],
    leaving: Mapping[str, float],
    now_s: float,
) -> bool:
    """Whether a job prepares its next size while a node of its present one is about to be gone. It then counts as
    running at its present size, so that a plan may take it off the node by a quicker way."""
    if not leaving or state is None or state.phase != "Preparing" or state.next is None:
        return False
    if target is not None and target.generation > state.next.generation:
        return False  # a plan has done so
    nodes = {pods[role].node for role in roles_of(state) if role in pods}
    return any(leaving[name] - now_s <= LAST_CHANCE_S for name in nodes if name in leaving)


@dataclass(frozen=True, slots=True)
class _Observed:
    """The observations at `now_s` (Unix time) of a job that the profile decides for. `before`: its previous view."""

    job: TFJob
    request: JobRequest
    target: Target | None
    state: StoredState | None
    record: UsageRecord
    reports: Mapping[str, Report]
    before: JobView | None
    now_s: float

    @property
    def report(self) -> Report | None:
        """The chief's last report."""
        if not self.reports:
            return None
        return self.reports.get(general_name(self.job.name, *chief_of(self.request.spec, self.state)))

    @property
    def same_target(self) -> JobView | None:
        """The previous view, if the job's target was the same apart from the profile's memory."""
        before = self.before
        return before if before is not None and _but_memory(before.target) == _but_memory(self.target) else None

    def pending_since_s(self, reservations: Reservations) -> float | None:
        """Since when (Unix time) the job's reservations wait for pods; None: they do not. For a job that never had a
        bound pod, a changed target does not restart the time: otherwise its user could keep capacity reserved by
        changing the size again and again."""
        before, same = self.before, self.same_target
        if same is None and before is not None and before.job is not None and not (before.bound or reservations.pods):
            same = before
        return since(reservations.waits_for_pods, same.pending_since_s if same is not None else None, self.now_s)

    def cpu_since_s(self, reservations: Reservations) -> float:
        """Since when (Unix time) the job has had its present CPU; -inf: unknown."""
        before = self.before
        if before is None or before.job is None:
            return float("-inf")
        return before.cpu_since_s if before.job.cpu == reservations.cpu else self.now_s


def _core_job(spec: core.JobSpec, observed: _Observed, reservations: Reservations, phase: core.Phase) -> core.Job:
    """The job as a profile sees it."""
    state, record, report = observed.state, observed.record, observed.report
    since_s = _begun(observed.job, state, record, phase, observed.now_s)
    steps, observed_s, steps_per_s = progress(state, report, since_s)
    limited = all(
        pod.cpu.limit_millicores for pod in reservations.pods.values()
    )  # use is measured afresh after a limit changes
    use: Mapping[str, float] = {}
    cost_s = 0.0
    if phase == "running":
        use = cpu_use(reservations.pods, observed.reports, reservations.cpu, reservations.requests)
        cost_s = step_cpu_s(reservations.pods, observed.reports, report)
        if not (limited or cost_s) and _starts(report, observed.now_s - since_s):
            use = {}  # a starting program uses all CPU it can get, which says nothing about its training
    shared = limited and cpu_shared(pod for (name, _), pod in reservations.pods.items() if takes_turns(name))
    usable = slowest_usable(spec.groups, reservations.placement, reservations.cpu, shared=shared)
    return core.Job(
        spec=spec,
        placement=reservations.placement,
        phase=phase,
        steps=steps,
        observed_s=observed_s,
        steps_per_s=steps_per_s if reservations.placement else 0.0,
        since_s=since_s,
        service=record.service,
        executed_s=record.executed_s,
        migrations=record.moves,
        rescaled_s=last_rescale(state),
        speed=speed(
            observed.request,
            state,
            report,
            reservations.size,
            Conditions.of(usable),
        ),
        cpu=reservations.cpu,
        cpu_use=use,
        step_cpu_s=cost_s,
        cpu_settled=limited or observed.now_s - observed.cpu_since_s(reservations) >= WINDOW_S,
        cpu_limited=limited,
        cpu_shared=shared,
        loss=_loss(observed.before, record, report),
        stops=record.stops,
        stopped_s=_moment_s(record.stopped),
        resumed_s=_moment_s(record.resumed),
        memory=observed.target.memory if observed.target is not None else NO_MEMORY,
        warm_start=report is not None and report.forks,
        live_workers=report is not None and "live" in report.modes and _may_live(observed),
        prepare_s=state.prepare_s if state is not None else None,
    )


def _may_live(observed: _Observed) -> bool:
    """Whether the user allows that workers join and leave the running program."""
    return observed.request.elasticity.rescale in (None, "live")


def _starts(report: Report | None, placed_s: float) -> bool:
    """Whether a program whose cost per step is unknown is still starting: less than _START_S since its first step, or
    without a reported step since its placement, `placed_s` seconds ago."""
    if report is not None and report.first_step_at is not None:
        placed_s = report.at - report.first_step_at
    return placed_s < _START_S


def _with_nodes(decided: core.Job, observed: _Observed, reservations: Reservations, active: Iterable[Pod]) -> JobView:
    """The job's description, with its use and reservations by node."""
    same = observed.same_target
    overdue = overdue_release(reservations, same.overdue_since_s if same is not None else None, observed.now_s)
    takes = occupied(reservations, overdue, active)
    return JobView(
        observed.job,
        decided,
        observed.request,
        observed.target,
        observed.state,
        other_usage=_sum(takes.other_usage),
        reserved=_sum([*reservations.room, *takes.used, *takes.leaves]),
        used=_sum(takes.used),
        floor=_sum(
            (pod.node, Resources(*map(min, pod.requests, reservations.requests[role[0]])))
            for role, pod in reservations.kept.items()
            # The node may not have what a pod asks for that has outgrown it.
            if reservations.placement[role[0]][role[1]] == pod.node
        ),
        followed=True,
        bound={role: pod.node for role, pod in reservations.pods.items()},
        pending=reservations.pending,
        cpu_millicores={role: pod.requests.cpu_millicores for role, pod in reservations.pods.items()},
        refused=reservations.refused,
        pending_since_s=observed.pending_since_s(reservations),
        overdue_since_s=overdue.since_s,
        cpu_since_s=observed.cpu_since_s(reservations),
    )


def _own(job: TFJob, spec: TFJobSpec, active: Iterable[Pod]) -> dict[Role, Pod]:
    """The pods that the job owns, by type and index."""
    spelling = {name.lower(): name for name in spec.tf_replica_specs}
    return {
        (spelling[pod.replica_type], pod.index): pod
        for pod in active
        if pod.owner == job.uid and pod.replica_type in spelling and pod.index is not None
    }


def _phase(reservations: Reservations, *, superseded: bool) -> core.Phase:
    """The job's phase for the core. `superseded`: a person requests a different size than the job is changing to."""
    # A starting job also counts as rescaling until its pods are bound, except if one of their nodes is lost: a pod can
    # never be bound to a lost node.
    if reservations.on_its_way or (reservations.pending and not reservations.lost):
        return "running" if superseded and reservations.placement else "rescaling"
    return "running" if reservations.placement else "waiting"


def _but_memory(target: Target | None) -> Target | None:
    """The target without the profile's memory, which requires nothing of the job."""
    return replace(target, memory=NO_MEMORY) if target is not None and target.memory else target


def _moment_s(time: str) -> float:
    """The Unix time of a timestamp; -inf for an empty one."""
    at_s = seconds(time or None)
    return float("-inf") if at_s is None else at_s


def _loss(before: JobView | None, record: UsageRecord, report: Report | None) -> Growth:
    """The development of the job's training loss, from the previous view or the usage record, and the newest report.

    The record gets about one reading per minute, so both may end with the same reading: the one with more readings is
    used."""
    known = record.loss
    if before is not None and before.job is not None:
        known = max(before.job.loss, known, key=lambda each: (each.readings, each.at_s))
    return known if report is None else report.growth(known)


def _remembered(job: TFJob) -> bool:
    """Whether the operator has decided something for this job before."""
    return TARGET_ANNOTATION in job.annotations or STATE_ANNOTATION in job.annotations


def _begun(job: TFJob, state: StoredState | None, record: UsageRecord, phase: core.Phase, now_s: float) -> float:
    """Since when (Unix time) the job has been placed, or has been waiting."""
    if phase != "waiting":
        return seconds(record.placed or None) or seconds(job.status().start_time) or now_s
    if state is not None and state.phase == "Waiting" and state.since:
        return seconds(state.since) or now_s
    return seconds(job.created) or now_s


def _written(job: TFJob, spec: TFJobSpec, before: JobView | None) -> tuple[Target | None, StoredState | None]:
    """The job's target and state, from its annotations. Raises UnknownWord as `_stored` does."""
    if before is not None and before.source is job and before.request is not None:
        return before.target, before.state  # the same object has been parsed before
    return _stored(Target.of, job, spec), _stored(StoredState.of, job, spec)


def _stored(
    read: Callable[[Mapping[str, str], str, Collection[str]], T | None], job: TFJob, spec: TFJobSpec
) -> T | None:
    """Reads a Target or State. Invalid text counts as absent, and is overwritten later. Raises UnknownWord for a word
    that a newer operator may have written."""
    try:
        return read(job.annotations, job.uid, spec.tf_replica_specs)
    except UnknownWord:
        raise
    except ValueError:
        return None


def _sum(parts: Iterable[tuple[str, Resources]]) -> dict[str, Resources]:
    total: dict[str, Resources] = {}
    for node, amount in parts:
        if node:
            total[node] = total.get(node, NOTHING).plus(amount)
    return total
