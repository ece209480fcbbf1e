"""One job as a row of a table. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final

from elastic_tfjob.api.reading import MAX_WORD, after, cut
from elastic_tfjob.api.words import JOB_STATES, JobState, ReasonCode
from elastic_tfjob.controller.job.pods import chief_of, general_name
from elastic_tfjob.controller.model.deadline_status import NoticesSent, Verdict, deadline_of
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.kueue import Growth
from elastic_tfjob.controller.model.reports import Report
from elastic_tfjob.controller.model.state import StoredState
from elastic_tfjob.controller.model.status import JobStatus, format_time, moment_of
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.controller.model.usage import UsageRecord
from elastic_tfjob.controller.planning.job_view import view_of
from elastic_tfjob.controller.planning.request import JobRequest, job_request
from elastic_tfjob.scheduling.queue import Entry, entry
from elastic_tfjob.scheduling.reasons import Fact, Why, code_of, facts_of
from elastic_tfjob.scheduling.rules import Order

__all__ = [
    "JOB_STATES",
    "JobRow",
    "JobState",
    "LiveRow",
    "QueueRow",
    "ReadJob",
    "bounded",
    "counts",
    "job_row",
    "live_row",
    "place_in_order",
    "queue_rows",
    "see",
    "total_steps",
]

# Most replica types in a row; the API defines five.
_TYPES: Final = 16
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_PROBLEMS: Final = 3
_PROBLEM: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A TFJob. Times are in RFC 3339 format."""

    namespace: Annotated[str, "namespace of the TFJob"]
    name: Annotated[str, "name of the TFJob"]
    uid: Annotated[str, "uid of the TFJob"]
    created: Annotated[str | None, "creation time"]
    state: Annotated[JobState, "state of the job"]
    phase: Annotated[str, "phase of the current rescale, or Waiting, or Stable; empty: no size has been decided yet"]
    reason: Annotated[str, "reason for its size, its waiting or its failure"]
    reason_code: Annotated[ReasonCode | None, "code of the scheduler's reason; null: the reason has no code"]
    reason_facts: Annotated[Mapping[str, Fact], "facts of the scheduler's reason, by name"]
    generation: Annotated[int, "number of its size, which increases with each rescale"]
    replicas: Annotated[Mapping[str, int], "current replicas, by type"]
    wanted: Annotated[Mapping[str, int], "target replicas, by type; none: the job waits"]
    orders: Annotated[Mapping[str, int], "replicas for which it asks an autoscaler for nodes, by type"]
    bounds: Annotated[Mapping[str, tuple[int, int]], "minimum and maximum replicas, by type"]
    elastic: Annotated[bool, "whether its size may change during training"]
    step: Annotated[int | None, "training steps done, as stored last"]
    total_steps: Annotated[int | None, "total training steps"]
    steps_per_s: Annotated[float | None, "training steps per second, as stored last"]
    starts: Annotated[
        str | None, "how its next program will start: fork (from a running interpreter), or exec with the reason"
    ]
    figures_at: Annotated[str | None, "time at which steps and speed were stored"]
    eta: Annotated[str | None, "expected end of training"]
    deadline: Annotated[str | None, "deadline of the job"]
    verdict: Annotated[Verdict | None, "forecast of whether it meets its deadline; null: none yet"]
    slack_s: Annotated[
        float | None,
        "seconds from the expected end to the deadline, from the last forecast or else from eta; negative: late",
    ]
    waits_since: Annotated[str | None, "start of waiting, if it waits"]
    started: Annotated[str | None, "time of its first start"]
    ended: Annotated[str | None, "time of its end"]
    rescales: Annotated[int, "number of rescales so far"]
    last_downtime_s: Annotated[float | None, "seconds for which the last rescale paused training"]
    memory_used: Annotated[
        Mapping[str, int], "bytes that a replica uses at most, over the last 3 minutes, by type, as stored last"
    ]
    memory_limit: Annotated[Mapping[str, int], "memory limit of that replica in bytes, by type; missing: it has none"]
    memory_kills: Annotated[Mapping[str, int], "replicas or processes that were killed for memory so far, by type"]
    stops: Annotated[int, "how often the running job was stopped"]
    moves: Annotated[int, "how often replicas moved to other nodes while the job ran"]
    queue: Annotated[str, "Kueue queue of the job; empty: not managed by Kueue"]
    growth: Annotated[str, "why Kueue admits no more replicas, if the profile would use more; else empty"]
    growth_code: Annotated[ReasonCode | None, "code of that reason"]
    problems: Annotated[tuple[str, ...], "problems of its spec or annotations, the first few"]


@dataclass(frozen=True, slots=True)
class ReadJob:
    """The parts of a job. None: the part does not exist or is invalid, which `problems` then says."""

    job: TFJob
    status: JobStatus
    request: JobRequest | None
    target: Target | None
    state: StoredState | None
    record: UsageRecord
    problems: tuple[str, ...]
    growth: Growth | None = None

    @property
    def chief(self) -> str:
        """The name of the pod that leads the training."""
        role = chief_of(self.request.spec, self.state) if self.request is not None else ("Worker", 0)
        return general_name(self.job.name, *role)


def see(job: TFJob, before: JobRequest | None = None) -> ReadJob:
    """Read all parts of a job, whatever their content. `before`: the request from an earlier reading, reused if it is
    unchanged."""
    problems: list[str] = []
    request, target, state = None, None, None
    growth = _growth(job, problems)
    try:
        request = job_request(job, before, admitted=growth.admitted if growth is not None else {})
        problems += [*request.elasticity.problems, *request.problems]
    except Exception as error:  # users write the spec
        problems.append(str(error) or type(error).__name__)
    types = request.declared if request is not None else {}
    try:
        target = Target.of(job.annotations, job.uid, types) if types else None
    except ValueError as error:
        problems.append(str(error))
    try:
        state = StoredState.of(job.annotations, job.uid, types) if types else None
        problems += state.problems if state is not None else ()
    except ValueError as error:
        problems.append(str(error))
    record = UsageRecord.of(job.annotations, job.uid)
    return ReadJob(job, job.status(), request, target, state, record, tuple(_few(problems)), growth)


def _growth(job: TFJob, problems: list[str]) -> Growth | None:
    """What Kueue admits for the job with growth; None: only what is declared."""
    try:
        return Growth.of(job.annotations, job.uid) if job.queue else None
    except ValueError as error:
        problems.append(str(error))
        return None


def job_row(job: TFJob | ReadJob) -> JobRow:
    """The row of a job. Never raises."""
    seen = see(job) if isinstance(job, TFJob) else job
    job, status, request, state = seen.job, seen.status, seen.request, seen.state
    shown, reason = _state(seen)
    eta = moment_of(state.eta) if state is not None else None
    due_s = deadline_of(job)
    deadline = format_time(after(_EPOCH, max(0.0, due_s))) if due_s is not None else None
    judged = NoticesSent.of(job.annotations, job.uid).judged if deadline is not None else None
    if judged is not None and judged.deadline == deadline:
        verdict, slack_s = judged.verdict, judged.slack_s
    else:  # no forecast yet, or one for an earlier deadline
        verdict, slack_s = None, due_s - eta.timestamp() if due_s is not None and eta is not None else None
    grows = seen.growth.reason if seen.growth is not None and shown in ("Running", "Rescaling") else ""
    holds = _holds(seen, shown)
    wanted = seen.target.replicas if seen.target is not None else holds
    return JobRow(
        namespace=job.namespace,
        name=job.name,
        uid=job.uid,
        created=job.created or None,
        state=shown,
        phase=state.phase if state is not None else "",
        reason=cut(str(reason)),
        reason_code=code_of(reason),
        reason_facts=facts_of(reason),
        generation=state.generation if state is not None else 0,
        replicas=counts(holds),
        wanted={} if status.finished else counts(wanted),
        orders={} if status.finished or seen.target is None else counts(seen.target.orders),
        bounds=bounded(request),
        elastic=request is not None and request.elastic,
        step=state.step if state is not None else None,
        total_steps=total_steps(seen),
        steps_per_s=state.steps_per_s if state is not None and shown in ("Running", "Rescaling") else None,
        starts=state.starts if state is not None and shown in ("Running", "Rescaling") else None,
        figures_at=state.metrics_at if state is not None else None,
        eta=format_time(eta) if eta is not None else None,
        deadline=deadline,
        verdict=verdict,
        slack_s=slack_s,
        waits_since=_waits_since(seen) if shown == "Waiting" else None,
        started=status.start_time,
        ended=status.completion_time,
        rescales=state.rescales if state is not None else 0,
        last_downtime_s=state.last_downtime_s if state is not None else None,
        memory_used=_memory(state, "highest"),
        memory_limit=_memory(state, "limit"),
        memory_kills=_memory(state, "kills"),
        stops=seen.record.stops,
        moves=seen.record.moves,
        queue=job.queue,
        growth=cut(str(grows)),
        growth_code=code_of(grows),
        problems=seen.problems,
    )


def bounded(request: JobRequest | None) -> dict[str, tuple[int, int]]:
    """The minimum and maximum replicas, by type."""
    return {} if request is None else {name: request.bounds(name) for name in sorted(request.declared)[:_TYPES]}


def counts(found: Mapping[str, int]) -> dict[str, int]:
    """Replicas by type, for a limited number of types."""
    return {cut(name, MAX_WORD): found[name] for name in sorted(found)[:_TYPES] if found[name]}


def _memory(state: StoredState | None, figure: str) -> dict[str, int]:
    found = state.memory if state is not None else {}
    return counts({name: getattr(each, figure) or 0 for name, each in found.items()})


def _state(seen: ReadJob) -> tuple[JobState, Why]:
    """The state of a job, and the reason."""
    status, state, target = seen.status, seen.state, seen.target
    last = status.conditions[-1] if status.conditions else None
    message = last.message or last.reason if last is not None else ""
    if status.is_true("Failed"):
        failed = status.get("Failed")
        return "Failed", failed.message if failed is not None else message
    if status.is_true("Succeeded"):
        return "Succeeded", message
    if seen.job.deleting:
        return "Terminating", "the job is being deleted"
    if seen.request is None:
        return "Pending", seen.problems[0] if seen.problems else message
    if seen.request.spec.run_policy.suspend:
        by = f": Kueue has not admitted the job yet (queue {seen.job.queue})" if seen.job.queue else ""
        return "Suspended", f"spec.runPolicy.suspend is true{by}"
    waits = target is not None and not target.replicas
    if target is not None and waits:
        holds = state is not None and state.phase != "Waiting" and any(state.replicas.values())
        return "Stopping" if holds else "Waiting", target.reason
    if state is not None and state.rescaling:
        return "Rescaling", state.next.reason if state.next is not None else state.reason
    if state is not None and state.phase == "Waiting" and target is None:
        return "Waiting", state.reason
    why = target.reason if target is not None else state.reason if state is not None else ""
    if status.is_true("Restarting"):
        return "Restarting", message
    if status.is_true("Running"):
        return "Running", why or message
    if target is not None or status.is_true("Created"):
        return "Starting", why or message
    return "Pending", message


def _holds(seen: ReadJob, shown: JobState) -> Mapping[str, int]:
    """The current replicas of a job."""
    if seen.request is None or shown in ("Succeeded", "Failed", "Suspended", "Waiting", "Pending"):
        return {}
    state = seen.state
    if state is not None and state.replicas:
        return state.replicas if state.phase != "Waiting" else {}
    return seen.request.declared if shown in ("Running", "Restarting") else {}


def total_steps(seen: ReadJob) -> int | None:
    """The total training steps: from the annotation, or else as the program reported."""
    declared = seen.request.elasticity.total_steps if seen.request is not None else None
    return declared if declared is not None else seen.state.total_steps if seen.state is not None else None


def _waits_since(seen: ReadJob) -> str | None:
    if seen.state is not None and seen.state.phase == "Waiting" and seen.state.since:
        return seen.state.since
    return seen.job.created or None


def _few(problems: Iterable[str]) -> list[str]:
    found = list(problems)
    kept = [cut(problem, _PROBLEM) for problem in found[:_PROBLEMS]]
    return kept if len(found) <= _PROBLEMS else [*kept, f"and {len(found) - _PROBLEMS} more"]


# -- Live training metrics from a job's pods ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRow:
    """The last report of the pod that made the latest step. Times are by the pod's clock."""

    step: Annotated[int | None, "training steps done"]
    steps_per_s: Annotated[float | None, "training steps per second at this size"]
    loss: Annotated[float | None, "training loss; null: not reported, or not a number"]
    loss_problem: Annotated[str, "nan or inf, if the loss is not a number"]
    checkpoint_step: Annotated[int | None, "step of the newest complete checkpoint"]
    checkpoint_at: Annotated[str | None, "time at which that checkpoint was complete"]


def live_row(reports: Mapping[str, Report]) -> LiveRow | None:
    """A job's training metrics from the last reports of its pods, by pod name; None: no pod has made a step."""
    found = [report for report in reports.values() if report.step is not None]
    if not found:
        return None
    last = max(found, key=lambda report: (report.last_step_at or 0.0, report.step or 0))
    saved = last.checkpoint
    at = saved.at if saved is not None else None
    return LiveRow(
        step=last.step,
        steps_per_s=last.steps_per_s,
        loss=last.loss,
        loss_problem=last.loss_problem,
        checkpoint_step=saved.step if saved is not None else None,
        checkpoint_at=format_time(after(_EPOCH, max(0.0, at))) if at is not None else None,
    )


# -- The queue of waiting jobs -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """A waiting job. `position` counts all waiting jobs, including those that the user may not see."""

    position: Annotated[int, "place in the profile's order, from 1; a later job may start first if it fits"]
    namespace: Annotated[str, "namespace of the TFJob"]
    name: Annotated[str, "name of the TFJob"]
    waits_since: Annotated[str | None, "start of waiting"]
    reason: Annotated[str, "reason for waiting"]
    reason_code: Annotated[ReasonCode | None, "code of the scheduler's reason; null: the reason has no code"]
    priority: Annotated[int, "priority of its PriorityClass; the lowest possible while the job waits behind all others"]
    deadline: Annotated[str | None, "deadline of the job"]
    bounds: Annotated[Mapping[str, tuple[int, int]], "minimum and maximum replicas, by type"]
    stops: Annotated[int, "how often the running job was stopped"]


def place_in_order(
    job: TFJob, order: Order, priorities: Mapping[str, int], now: datetime, *, all_jobs: bool
) -> Entry | None:
    """The sort key of a waiting job, smallest first; None: the profile does not schedule the job. Keys with the same
    `now` are comparable. Raises what `view_of` raises."""
    found = view_of(job, (), nodes={}, now=now, all_jobs=all_jobs, priorities=priorities)
    return entry(order, found.job, now.timestamp()) if found.job is not None else None


def queue_rows(waiting: Iterable[tuple[Entry, JobRow]]) -> list[QueueRow]:
    """The queue, in the order in which jobs are served."""
    return [
        QueueRow(
            position=position,
            namespace=row.namespace,
            name=row.name,
            waits_since=row.waits_since,
            reason=row.reason,
            reason_code=row.reason_code,
            priority=int(-place[0]),
            deadline=row.deadline,
            bounds=row.bounds,
            stops=row.stops,
        )
        for position, (place, row) in enumerate(sorted(waiting, key=lambda each: each[0]), 1)
    ]
