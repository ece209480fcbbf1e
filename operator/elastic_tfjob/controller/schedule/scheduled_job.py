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

from elastic_tfjob.api.fields import UnknownWord
from elastic_tfjob.api.tfjob import TFJobSpec
from elastic_tfjob.controller.job.rescale_input import chief_of
from elastic_tfjob.controller.objects.annotations import STATE_ANNOTATION, TARGET_ANNOTATION
from elastic_tfjob.controller.objects.cluster import Node
from elastic_tfjob.controller.objects.job import Job
from elastic_tfjob.controller.objects.pod import Pod
from elastic_tfjob.controller.objects.reports import Report
from elastic_tfjob.controller.objects.service import Record
from elastic_tfjob.controller.objects.state import State
from elastic_tfjob.controller.objects.target import Target
from elastic_tfjob.controller.objects.unfit import Pair
from elastic_tfjob.controller.schedule.core_job import (
    Role,
    by_task,
    cpu_use,
    job_spec,
    last_rescale,
    lesson,
    progress,
    seconds,
    speed,
)
from elastic_tfjob.controller.schedule.request import (
    JobRequest,
    annotated,
    asked_for,
    promised,
    refused_target,
    terms,
)
from elastic_tfjob.scheduling import snapshot as core
from elastic_tfjob.scheduling.memory import NO_MEMORY
from elastic_tfjob.scheduling.resources import NOTHING, Resources
from elastic_tfjob.speed.growth import Growth
from elastic_tfjob.speed.history import Lesson

__all__ = ["REFUSED", "ScheduledJob", "Usage", "scheduled_job", "set_aside"]

Usage = Mapping[str, Resources]
"""By node."""

T = TypeVar("T")

# So long pods may take to give up what they were told to, in seconds; then it counts as theirs.
_GIVE_UP_S: Final = 60.0
# So long room is kept, in seconds, for pods that are not there and of which nobody says why; and so long a job that
# stops is expected to leave.
_PROMISE_S: Final = 300.0
# What a node is called in the place of a replica that cannot have it: no node's name has a space.
REFUSED: Final = " refused by kube-scheduler"


@dataclass(frozen=True, slots=True)
class ScheduledJob:
    """A job as the loop sees it. `job` is None for one that the profile does not decide for: all that its pods take is
    then in `others`, as is what pods take that a decided job does not count.

    `followed` tells that the profile decides for it, were it not suspended. `held` is what a decided job takes now or
    has been promised, `taken` the part of it that its pods take; `bound` the nodes of its pods, `awaited` the nodes
    promised to replicas that are not bound yet. `cpu` is what each bound replica holds, in millicores. `refused` are
    kube-scheduler's words where it refuses nodes. Since when (Unix time) the same target has replicas that are not
    bound, and pods that hold more than it says: `awaited_since_s`, `owes_since_s`; None: it has none. `cordoned` are
    nodes on which it runs and may not stay, `lost` those on which it does not run any more. `lesson` is the name that a
    job that has succeeded teaches for, and what.
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
    cordoned: frozenset[str] = frozenset()
    lost: frozenset[str] = frozenset()
    lesson: tuple[str, Lesson] | None = None

    @property
    def passing(self) -> bool:
        """Whether time alone may change it: a promise that is not kept, what is owed, a node that is refused."""
        return self.awaited_since_s is not None or self.owes_since_s is not None or bool(self.refused)


def set_aside(found: ScheduledJob) -> ScheduledJob:
    """The job as one that is not decided for: it keeps what it has and what it was promised."""
    if found.job is None:
        return found
    return replace(found, job=None, others=_sum([*found.others.items(), *found.held.items()]), held={}, taken={})


def scheduled_job(
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
    cordoned: Collection[str] = (),
) -> ScheduledJob:
    """What is to be decided for a job; `before` is what it was before, to save work and to know for how long promises
    stand. `unfit` are nodes that kube-scheduler refuses it, `cordoned` those that run what is there and get
    nothing more. Raises InvalidTFJob and ValueError."""
    active = [pod for pod in pods if not pod.ended and pod.node]
    everything = _sum((pod.node, pod.requests) for pod in active)
    follows = job is not None and (all_jobs or annotated(job))
    if job is None or job.deleting or not (follows or _remembered(job)):
        return ScheduledJob(job, others=everything)
    found = terms(job, before.terms if before else None)
    spec, unfit, now_s = found.spec, unfit or {}, now.timestamp()
    if before is not None and before.source is job and before.terms is not None:
        target, state = before.target, before.state  # it is the same object, which was read before
    else:
        try:
            target, state = _stored(Target.of, job, spec), _stored(State.of, job, spec)
        except UnknownWord:  # the reconcile loop leaves it alone, and says so: no target may be written for it
            return ScheduledJob(job, others=everything)
    ours = spec.managed_here() and not job.status().finished
    followed = ours and follows and found.elasticity.placement != "none"
    if not followed or spec.run_policy.suspend:
        taught = lesson(job, found, state, Record.of(job.annotations, job.uid))
        return ScheduledJob(
            job, None, found if ours else None, target, state, others=everything, followed=followed, lesson=taught
        )

    spelling = {name.lower(): name for name in spec.tf_replica_specs}
    by_index = {
        (spelling[pod.replica_type], pod.index): pod
        for pod in active
        if pod.owner == job.uid and pod.replica_type in spelling and pod.index is not None
    }
    size, on_its_way = promised(found, target, state, started=bool(by_index))
    by_role = by_task(by_index, state)
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
            # It runs on a cordoned node, and is not on its way: it is to be moved away, perhaps once more.
            stays = pod is not None and pod.node in cordoned and found.stoppable and not (on_its_way or pod.terminating)
            if pod is not None and (pod.node in nodes or node not in nodes or stays):
                if on_its_way and node in nodes and node != pod.node:  # it moves: room is kept for it there, too
                    covered.append((node, _request(found, cpu, role)))
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
    same = before is not None and _but_memory(before.target) == _but_memory(target)
    stops = on_its_way and not size
    owes_since_s = _since(bool(owed) or stops, before.owes_since_s if before is not None and same else None, now_s)
    owes_s = now_s - owes_since_s if owes_since_s is not None else 0.0
    if owes_s < _GIVE_UP_S:
        owed = {}
    awaits = bool(awaited) and not (lost or on_its_way)
    awaited_since_s = _since(awaits, before.awaited_since_s if before is not None and same else None, now_s)
    taken = [(pod.node, pod.requests.minus(owed.get(role, NOTHING))) for role, pod in kept.items()]
    extra = {pod.uid for pod in active} - {pod.uid for pod in kept.values()}
    # The room of a job that saves before it stops is given away already, though nobody can move in yet: else a plan
    # would take the next job's room, too.
    leaves = [(pod.node, pod.requests) for pod in by_role.values() if stops and owes_s < _PROMISE_S]
    extra -= {pod.uid for pod in by_role.values()} if leaves else set()
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
    steps, observed_s, steps_per_s = progress(state, report, since_s)
    made = ScheduledJob(
        job,
        core.Job(
            spec=job_spec(
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
            migrations=record.moves,
            rescaled_s=last_rescale(state),
            speed=speed(found, state, report, size, cpu),
            cpu=cpu,
            cpu_use=cpu_use(by_role, reports or {}),
            loss=_loss(before, record, report),
            stops=record.stops,
            stopped_s=_moment_s(record.stopped),
            resumed_s=_moment_s(record.resumed),
            memory=target.memory if target is not None else NO_MEMORY,
        ),
        found,
        target,
        state,
        others=_sum(others),
        held=_sum([*covered, *taken, *leaves]),
        taken=_sum(taken),
        followed=True,
        bound={role: pod.node for role, pod in by_role.items()},
        awaited=awaited,
        cpu={role: pod.requests.cpu for role, pod in by_role.items()},
        refused=refused,
        awaited_since_s=awaited_since_s,
        owes_since_s=owes_since_s,
        cordoned=frozenset(pod.node for pod in by_role.values() if pod.node in cordoned),
        lost=frozenset(pod.node for pod in by_role.values() if pod.node not in nodes and pod.node not in cordoned),
    )
    # A person who asks for fewer (a quota admits no more) is followed all the same: that needs no room.
    fewer = superseded and all(count <= size.get(name, 0) for name, count in asked.items())
    if awaited_since_s is not None and now_s - awaited_since_s >= _PROMISE_S and not fewer:
        # Others need not wait for it: what its pods take counts, and what they may take later does not.
        return set_aside(replace(made, held=made.taken))
    return made


def _but_memory(target: Target | None) -> Target | None:
    """What a target asks of the job: what a profile remembers asks for nothing."""
    return replace(target, memory=NO_MEMORY) if target is not None and target.memory else target


def _moment_s(time: str) -> float:
    """When something was last; long ago where it never was."""
    at_s = seconds(time or None)
    return float("-inf") if at_s is None else at_s


def _loss(before: ScheduledJob | None, record: Record, report: Report | None) -> Growth:
    """How the loss falls: from what is known of it, in memory or in the job's record, and the newest report."""
    known = record.loss
    if before is not None and before.job is not None and before.job.loss.at_s > known.at_s:
        known = before.job.loss
    return known if report is None else report.growth(known)


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
        return seconds(record.placed or None) or seconds(job.status().start_time) or now_s
    if state is not None and state.phase == "Waiting" and state.since:
        return seconds(state.since) or now_s
    return seconds(job.created) or now_s


def _promised_cpu(
    found: JobRequest, target: Target | None, state: State | None, size: Mapping[str, int], nodes: Mapping[str, Node]
) -> dict[str, tuple[int, ...]]:
    """Millicores of whole pods, per type where any replica's differ from the request. CPU is lent on top of requests,
    within a node: what is written there beside that counts as the request."""
    most = max((node.allocatable.cpu for node in nodes.values()), default=0)
    if target is None or (state is not None and refused_target(target, state)):
        given = state.cpu if state is not None else {}
    else:
        given = target.cpu
    cpu = {}
    for name, values in given.items():
        if name in found.requests:
            request = found.requests[name].cpu
            whole = [found.pod_cpu(name, value) for value in values]
            each = tuple(
                whole[index] if index < len(whole) and request <= whole[index] <= most else request
                for index in range(size.get(name, 0))
            )
            if any(value != request for value in each):
                cpu[name] = each
    return cpu


def _request(found: JobRequest, cpu: Mapping[str, tuple[int, ...]], role: Role) -> Resources:
    request = found.requests[role[0]]
    values = cpu.get(role[0], ())
    return request._replace(cpu=values[role[1]]) if role[1] < len(values) else request


def _pod_name(job: Job, spec: TFJobSpec) -> str:
    name, index = chief_of(spec)
    return f"{job.name}-{name.lower()}-{index}"


def _stored(read: Callable[[Mapping[str, str], str, Collection[str]], T | None], job: Job, spec: TFJobSpec) -> T | None:
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
