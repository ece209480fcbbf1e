"""One job as the scheduling loop sees it, from what the caches hold. Pure.

A managed job is described with what it has been *promised*: the size and nodes of its target, or of its pods where they
are bound. What stands on the nodes at this moment may be more or less, while jobs are on their way; `ScheduledJob.held`
says that, and nothing is promised on top of it (see loop.py).

What is promised is believed for a while: a node that kube-scheduler refuses (unfit.py) is as good as lost, what pods do
not give up is taken for good, and room that nobody moves into is given to others.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, TypeVar

from elastic_tfjob.api.reading import UnknownWord
from elastic_tfjob.api.tfjob import TFJobSpec
from elastic_tfjob.controller.job.pods import chief_of
from elastic_tfjob.controller.model.annotations import STATE_ANNOTATION, TARGET_ANNOTATION
from elastic_tfjob.controller.model.cluster import KubeNode
from elastic_tfjob.controller.model.injection import DEFAULT_RESOURCES, ContainerResources
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.reports import WINDOW_S, Report
from elastic_tfjob.controller.model.state import StoredState
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.controller.model.usage import UsageRecord
from elastic_tfjob.controller.planning.core_job import (
    Pair,
    Role,
    cpu_shared,
    cpu_use,
    job_spec,
    last_rescale,
    lesson,
    progress,
    seconds,
    speed,
    step_cpu_s,
)
from elastic_tfjob.controller.planning.request import JobRequest, annotated, asked_for, terms
from elastic_tfjob.controller.planning.reservations import Reservations, occupied, owing, promises, since
from elastic_tfjob.scheduling import snapshot as core
from elastic_tfjob.scheduling.resources import NOTHING, Resources
from elastic_tfjob.scheduling.snapshot import NO_MEMORY
from elastic_tfjob.speed.growth import Growth
from elastic_tfjob.speed.history import Lesson

__all__ = ["JobView", "Usage", "scheduled_job", "set_aside"]

Usage = Mapping[str, Resources]
"""By node."""

T = TypeVar("T")

# So long room is kept, in seconds, for pods that are not there and of which nobody says why; and for such as cannot
# start, which is known of them.
_PROMISE_S: Final = 300.0
_BARRED_S: Final = 20.0
# So long a program may take to show what a step costs, in seconds: some never report a step.
_START_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as the loop sees it. `job` is None for one that the profile does not decide for: all that its pods take is
    then in `others`, as is what pods take that a decided job does not count.

    `followed` tells that the profile decides for it, were it not suspended. `held` is what a decided job takes now or
    has been promised, `taken` the part of it that its pods take, `stands` what those that it keeps request without what
    is lent to them; `bound` the nodes of its pods, `awaited` the nodes promised to replicas that are not bound yet.
    `cpu` is what each bound replica holds, in millicores. `refused` are kube-scheduler's words where it refuses nodes.
    Since when (Unix time) the same target has replicas that are not bound, and pods that hold more than it says:
    `awaited_since_s`, `owes_since_s`; None: it has none. `cordoned` are nodes on which it runs and may not stay, `lost`
    those on which it does not run any more. `lesson` is the name that a job that has succeeded teaches for, and what.
    `weighed_since_s`: since when it is promised the same CPU.
    """

    source: TFJob | None
    job: core.Job | None = None
    terms: JobRequest | None = None
    target: Target | None = None
    state: StoredState | None = None
    others: Usage = field(default_factory=dict)
    held: Usage = field(default_factory=dict)
    taken: Usage = field(default_factory=dict)
    stands: Usage = field(default_factory=dict)
    followed: bool = False
    bound: Mapping[Role, str] = field(default_factory=dict)
    awaited: Mapping[Role, str] = field(default_factory=dict)
    cpu: Mapping[Role, int] = field(default_factory=dict)
    refused: str = ""
    awaited_since_s: float | None = None
    owes_since_s: float | None = None
    cordoned: frozenset[str] = frozenset()
    lost: frozenset[str] = frozenset()
    lesson: tuple[str, Lesson] | None = None
    weighed_since_s: float = float("-inf")

    @property
    def passing(self) -> bool:
        """Whether time alone may change it: a promise that is not kept, what is owed, a node that is refused."""
        return self.awaited_since_s is not None or self.owes_since_s is not None or bool(self.refused)


def set_aside(scheduled: JobView) -> JobView:
    """The job as one that is not decided for: it keeps what it has and what it was promised."""
    if scheduled.job is None:
        return scheduled
    return replace(
        scheduled,
        job=None,
        others=_sum([*scheduled.others.items(), *scheduled.held.items()]),
        held={},
        taken={},
        stands={},
    )


def scheduled_job(
    job: TFJob | None,
    pods: Iterable[Pod],
    *,
    nodes: Mapping[str, KubeNode],
    now: datetime,
    all_jobs: bool = False,
    reports: Mapping[str, Report] | None = None,
    priorities: Mapping[str, int] | None = None,
    before: JobView | None = None,
    unfit: Mapping[Pair, str] | None = None,
    cordoned: Collection[str] = (),
    failed: int = 0,
    barred: bool = False,
    configured: ContainerResources = DEFAULT_RESOURCES,
) -> JobView:
    """What is to be decided for a job; `before` is what it was before, to save work and to know for how long promises
    stand. `unfit` are nodes that kube-scheduler refuses it, `cordoned` those that run what is there and get
    nothing more. So many promises to its namespace `failed` lately: each halves for how long room is kept for it, and
    while it has no pod on a node it comes after all others. `barred`: its pods cannot be made. What is injected into
    them is `configured` to ask for so much. Raises InvalidTFJob and ValueError."""
    pods = tuple(pods)
    active = [pod for pod in pods if not pod.ended and pod.node]
    everything = _sum((pod.node, pod.requests) for pod in active)
    follows = job is not None and (all_jobs or annotated(job))
    if job is None or job.deleting or not (follows or _remembered(job)):
        return JobView(job, others=everything)
    request = terms(
        job, before.terms if before else None, before.terms.injection if before and before.terms else None, configured
    )
    spec, now_s = request.spec, now.timestamp()
    try:
        target, state = _written(job, spec, before)
    except UnknownWord:  # the reconcile loop leaves it alone, and says so: no target may be written for it
        return JobView(job, others=everything)
    if (injection := state.injection if state is not None else None) != request.injection:
        request = terms(job, None, injection, configured)
    ours = spec.managed_here() and not job.status().finished
    followed = ours and follows and request.elasticity.placement != "none"
    record = UsageRecord.of(job.annotations, job.uid)
    if not followed or spec.run_policy.suspend:
        taught = lesson(job, request, state, record)
        return JobView(
            job, None, request if ours else None, target, state, others=everything, followed=followed, lesson=taught
        )
    # Of a job that was recreated under its name, what is in memory tells nothing: it is another one's.
    same = before is not None and before.source is not None and before.source.uid == job.uid
    look = _Look(job, request, target, state, record, reports or {}, before if same else None, now_s)
    promise = promises(
        request, target, state, _own(job, spec, active), nodes=nodes, unfit=unfit or {}, cordoned=cordoned
    )
    asked, why = asked_for(request, target, state, promise.size)
    superseded = any(promise.size.get(name, 0) != count for name, count in asked.items())
    told = job_spec(
        job,
        request,
        asked=asked,
        why=str(why),
        report=look.report,
        state=state,
        priorities=priorities or {},
        unfit=unfit or {},
        last=failed > 0 and not promise.kept,
    )
    decided = _core_job(told, look, promise, _phase(promise, superseded=superseded))
    made = _with_nodes(decided, look, promise, active)
    bound = made.bound.values()
    made = replace(
        made,
        cordoned=frozenset(node for node in bound if node in cordoned),
        lost=frozenset(node for node in bound if node not in nodes and node not in cordoned),
    )
    # A person who asks for fewer (a quota admits no more) is followed all the same: that needs no room.
    fewer = superseded and all(count <= promise.size.get(name, 0) for name, count in asked.items())
    barred = barred or promise.blocked or any(pod.gated and pod.owner == job.uid for pod in pods)
    patience_s = _BARRED_S if barred else max(_BARRED_S, _PROMISE_S / 2 ** min(failed, 8))
    if made.awaited_since_s is not None and now_s - made.awaited_since_s >= patience_s and not fewer:
        # Others need not wait for it: what its pods take counts, and what they may take later does not.
        return set_aside(replace(made, held=made.taken))
    return made


@dataclass(frozen=True, slots=True)
class _Look:
    """What is known of a job that the profile decides for, at `now_s`; `before` is what it was at the last look."""

    job: TFJob
    terms: JobRequest
    target: Target | None
    state: StoredState | None
    record: UsageRecord
    reports: Mapping[str, Report]
    before: JobView | None
    now_s: float

    @property
    def report(self) -> Report | None:
        """What the replica that leads the training said last."""
        return self.reports.get(_pod_name(self.job, self.terms.spec)) if self.reports else None

    @property
    def same_target(self) -> JobView | None:
        """The job at the last look, if its target was the same: for so long something lasts."""
        before = self.before
        return before if before is not None and _but_memory(before.target) == _but_memory(self.target) else None

    def awaited_since_s(self, promise: Reservations) -> float | None:
        """Since when somebody may move into what it is promised. Other words for it, while none of its pods has been on
        a node, are no new promise: a user could write them again and again."""
        before, same = self.before, self.same_target
        if same is None and before is not None and before.job is not None and not (before.bound or promise.pods):
            same = before
        return since(promise.awaits, same.awaited_since_s if same is not None else None, self.now_s)

    def weighed_since_s(self, promise: Reservations) -> float:
        """Since when it is promised the CPU that it is promised now."""
        before = self.before
        if before is None or before.job is None:
            return float("-inf")
        return before.weighed_since_s if before.job.cpu == promise.cpu else self.now_s


def _core_job(spec: core.JobSpec, look: _Look, promise: Reservations, phase: core.Phase) -> core.Job:
    """What a profile sees of it."""
    state, record, report = look.state, look.record, look.report
    since_s = _begun(look.job, state, record, phase, look.now_s)
    steps, observed_s, steps_per_s = progress(state, report, since_s)
    limited = all(pod.cpu.limit for pod in promise.pods.values())  # where a limit changes, use is measured anew
    use: Mapping[str, float] = {}
    cost_s = 0.0
    if phase == "running":
        use = cpu_use(promise.pods, look.reports, promise.cpu, promise.requests)
        cost_s = step_cpu_s(promise.pods, look.reports, report)
        if not (limited or cost_s) and _starts(report, look.now_s - since_s):
            use = {}  # of a start, which takes all the CPU there is: what weights are for comes after it
    return core.Job(
        spec=spec,
        placement=promise.placement,
        phase=phase,
        steps=steps,
        observed_s=observed_s,
        steps_per_s=steps_per_s if promise.placement else 0.0,
        since_s=since_s,
        service=record.service,
        executed_s=record.executed_s,
        migrations=record.moves,
        rescaled_s=last_rescale(state),
        speed=speed(look.terms, state, report, promise.size, promise.cpu),
        cpu=promise.cpu,
        cpu_use=use,
        step_cpu_s=cost_s,
        cpu_settled=limited or look.now_s - look.weighed_since_s(promise) >= WINDOW_S,
        cpu_limited=limited,
        cpu_shared=limited and cpu_shared(promise.pods),
        loss=_loss(look.before, record, report),
        stops=record.stops,
        stopped_s=_moment_s(record.stopped),
        resumed_s=_moment_s(record.resumed),
        memory=look.target.memory if look.target is not None else NO_MEMORY,
        warm_start=report is not None and report.forks,
    )


def _starts(report: Report | None, placed_s: float) -> bool:
    """Whether a program that does not say what a step costs has made no step, or no other than its first ones."""
    if report is not None and report.first_step_at is not None:
        placed_s = report.at - report.first_step_at
    return placed_s < _START_S


def _with_nodes(decided: core.Job, look: _Look, promise: Reservations, active: Iterable[Pod]) -> JobView:
    """The job with what it takes on nodes, and for how long promises stand."""
    same = look.same_target
    owes = owing(promise, same.owes_since_s if same is not None else None, look.now_s)
    takes = occupied(promise, owes, active)
    return JobView(
        look.job,
        decided,
        look.terms,
        look.target,
        look.state,
        others=_sum(takes.others),
        held=_sum([*promise.room, *takes.taken, *takes.leaves]),
        taken=_sum(takes.taken),
        stands=_sum(
            (pod.node, Resources(*map(min, pod.requests, promise.requests[role[0]])))
            for role, pod in promise.kept.items()
        ),
        followed=True,
        bound={role: pod.node for role, pod in promise.pods.items()},
        awaited=promise.awaited,
        cpu={role: pod.requests.cpu for role, pod in promise.pods.items()},
        refused=promise.refused,
        awaited_since_s=look.awaited_since_s(promise),
        owes_since_s=owes.since_s,
        weighed_since_s=look.weighed_since_s(promise),
    )


def _own(job: TFJob, spec: TFJobSpec, active: Iterable[Pod]) -> dict[Role, Pod]:
    """The pods that are the job's own, by type and index."""
    spelling = {name.lower(): name for name in spec.tf_replica_specs}
    return {
        (spelling[pod.replica_type], pod.index): pod
        for pod in active
        if pod.owner == job.uid and pod.replica_type in spelling and pod.index is not None
    }


def _phase(promise: Reservations, *, superseded: bool) -> core.Phase:
    """`superseded`: a person asks for another size than the one that it goes to."""
    # A job that starts is between two targets, too: till its pods are bound. One whose node is gone waits in vain.
    if promise.on_its_way or (promise.awaited and not promise.lost):
        return "running" if superseded and promise.placement else "rescaling"
    return "running" if promise.placement else "waiting"


def _but_memory(target: Target | None) -> Target | None:
    """What a target asks of the job: what a profile remembers asks for nothing."""
    return replace(target, memory=NO_MEMORY) if target is not None and target.memory else target


def _moment_s(time: str) -> float:
    """When something was last; long ago where it never was."""
    at_s = seconds(time or None)
    return float("-inf") if at_s is None else at_s


def _loss(before: JobView | None, record: UsageRecord, report: Report | None) -> Growth:
    """How the loss falls: from what is known of it, in memory or in the job's record, and the newest report.

    The record has a reading a minute or so, and the last of both may be one: what has more of them knows more."""
    known = record.loss
    if before is not None and before.job is not None:
        known = max(before.job.loss, known, key=lambda each: (each.readings, each.at_s))
    return known if report is None else report.growth(known)


def _remembered(job: TFJob) -> bool:
    """Whether the operator has decided something for this job before."""
    return TARGET_ANNOTATION in job.annotations or STATE_ANNOTATION in job.annotations


def _begun(job: TFJob, state: StoredState | None, record: UsageRecord, phase: core.Phase, now_s: float) -> float:
    """Since when (Unix time) the job has what it holds, or waits."""
    if phase != "waiting":
        return seconds(record.placed or None) or seconds(job.status().start_time) or now_s
    if state is not None and state.phase == "Waiting" and state.since:
        return seconds(state.since) or now_s
    return seconds(job.created) or now_s


def _pod_name(job: TFJob, spec: TFJobSpec) -> str:
    name, index = chief_of(spec)
    return f"{job.name}-{name.lower()}-{index}"


def _written(job: TFJob, spec: TFJobSpec, before: JobView | None) -> tuple[Target | None, StoredState | None]:
    """What the operator has decided for a job, and how far that is. Raises UnknownWord as `_stored`."""
    if before is not None and before.source is job and before.terms is not None:
        return before.target, before.state  # it is the same object, which was read before
    return _stored(Target.of, job, spec), _stored(StoredState.of, job, spec)


def _stored(
    read: Callable[[Mapping[str, str], str, Collection[str]], T | None], job: TFJob, spec: TFJobSpec
) -> T | None:
    """A Target or State; nonsense that somebody wrote there counts as nothing, and is written anew. Raises UnknownWord
    for what a newer operator may have written."""
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
