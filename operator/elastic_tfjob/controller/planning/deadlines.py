"""Derives the verdict on a job's deadline from a plan's forecasts. Pure.

Every profile's plan has forecasts. Without a plan (profile `fixed`, a suspended job) the verdict depends on the clock
only. A verdict that could change back counts only after HOLDS_S, since forecasts of a job that has just started or
changed its size are uncertain.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import inf
from typing import Final

from elastic_tfjob.api.reading import MAX_DURATION_S, after
from elastic_tfjob.controller.job.decision import Event
from elastic_tfjob.controller.model.deadline_status import (
    MOST_SLACK_S,
    DeadlineStatus,
    Note,
    NoticesSent,
    Verdict,
    room_for_notices,
    span,
)
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.status import format_time, moment_of
from elastic_tfjob.controller.model.target import words
from elastic_tfjob.scheduling import snapshot as core
from elastic_tfjob.scheduling.forecasts import Attainable, Forecast, attainable, work_left
from elastic_tfjob.scheduling.plan import Plan

__all__ = ["HOLDS_S", "Doubt", "Judged", "judge", "judge_all"]

HOLDS_S: Final = 10.0
"""Seconds for which forecasts must agree with a new verdict before it counts; shortly before the deadline it counts at
once."""
REFRESH_S: Final = 60.0
"""Minimum seconds between two writes that change only the slack."""
NOTES_S: Final = 60.0
"""Seconds that a job gets to report its steps and their total before an event says that they are unknown."""
_TOLERANCE: Final = 0.02
"""Share of the remaining time by which a job may be late before an event says so: no forecast is more accurate."""
_LEAST_TOLERANCE_S: Final = 2.0
_LAST_S: Final = 60.0
"""In these last seconds before the deadline the tolerance may be below _LEAST_TOLERANCE_S: it is the larger of
_TOLERANCE and the time of one step, since it is unknown how far the job is in its present step. With a fixed tolerance,
a job that will miss its deadline by one second would never get an event."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """A verdict that does not count yet; forecasts have agreed with it since `since_s` (Unix time)."""

    verdict: Verdict
    since_s: float


@dataclass(frozen=True, slots=True)
class Judged:
    """The result of one check of a job's deadline. `annotations`: to be written; empty: nothing to write. `events`: to
    be sent after that write. `reached`: the verdict, if this write changes it. `doubt`: to be passed to the next check.
    `final`: the job needs no further check."""

    verdict: Verdict | None = None
    slack_s: float | None = None
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    reached: Verdict | None = None
    doubt: Doubt | None = None
    final: bool = False


@dataclass(frozen=True, slots=True)
class _Assessment:
    """A verdict with its reason in words, and the expected end (Unix time) and slack (seconds)."""

    verdict: Verdict
    why: str = ""
    eta_s: float | None = None
    slack_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Check:
    """The input of one check of a deadline, with the status written before and the verdict in doubt."""

    job: TFJob
    sent: NoticesSent
    deadline: str
    now_s: float
    before: DeadlineStatus | None
    doubt: Doubt | None


def judge_all(
    jobs: Mapping[str, tuple[TFJob, float, Doubt | None]],
    plan: Plan | None,
    now_s: float,
    failed: Callable[[str, Exception], None],
    enough: Callable[[], bool] = lambda: False,
) -> dict[str, Judged]:
    """Judges these jobs, given by their keys in the Snapshot, each with its deadline (Unix time) and doubt. Stops early
    once `enough` returns True. `failed` is called with the key and error of each job that cannot be judged."""
    judged: dict[str, Judged] = {}
    for key, (job, deadline_s, doubt) in jobs.items():
        if enough():
            break
        try:
            judged[key] = judge(job, deadline_s, plan, now_s, key=key, doubt=doubt)
        except Exception as error:
            failed(key, error)
    return judged


def judge(
    job: TFJob, deadline_s: float, plan: Plan | None, now_s: float, *, key: str = "", doubt: Doubt | None = None
) -> Judged:
    """The verdict on one job's deadline, with its annotations and events. `key`: the job's name in the plan's
    Snapshot."""
    sent = NoticesSent.of(job.annotations, job.uid)
    before, deadline = sent.judged, _time(deadline_s)
    if before is not None and before.deadline != deadline:
        before = None  # the stored verdict is about a different deadline
    if before is None and not job.spec().managed_here():
        return Judged(final=True)
    status = job.status()
    if before is not None and before.verdict in ("met", "missed") and status.finished:
        return Judged(before.verdict, final=True)
    known = plan.snapshot.jobs.get(key) if plan is not None else None
    created = moment_of(job.created)
    ended = moment_of(status.completion_time) if status.finished else None
    if status.finished:
        succeeded = status.is_true("Succeeded")
        in_time = succeeded and (ended is None or ended.timestamp() <= deadline_s)
        assessment = _Assessment("met") if in_time else _Assessment("missed", _ended_late(succeeded, ended, deadline_s))
    elif now_s > deadline_s:
        past = created is not None and created.timestamp() >= deadline_s
        assessment = _missed(known, deadline, now_s, past=past)
        if known is not None and plan is not None:
            expected = _expected(known, deadline_s, plan, explain=False)
            assessment = replace(assessment, eta_s=expected.eta_s, slack_s=expected.slack_s)
    elif known is None or plan is None:
        return Judged(before.verdict if before is not None else None, doubt=doubt)
    else:
        assessment = _expected(known, deadline_s, plan)
    look = _Check(job, sent, deadline, now_s, before, doubt)
    return _written(look, assessment, _hints(known, plan, before, now_s), final=status.finished)


def _written(
    look: _Check, assessment: _Assessment, hints: tuple[tuple[Note, ...], tuple[Event, ...]], *, final: bool
) -> Judged:
    job, before, now_s = look.job, look.before, look.now_s
    verdict: Verdict | None = before.verdict if before is not None else None
    new, doubt = _believed(assessment, verdict, look)
    now = _time(now_s)
    notes, events = hints
    if new:
        events = (*_events(assessment), *events)
    elif verdict is None and not notes:
        return Judged(None, assessment.slack_s, doubt=doubt)
    kept: Verdict = assessment.verdict if new else verdict or "unknown"
    status = DeadlineStatus(
        deadline=look.deadline,
        verdict=kept,
        since=now if new or before is None else before.since,
        at=now,
        eta=None if assessment.eta_s is None else _time(assessment.eta_s),
        slack_s=None
        if assessment.slack_s is None
        else round(max(-MOST_SLACK_S, min(assessment.slack_s, MOST_SLACK_S)), 1),
        why=assessment.why if new else (before.why if before is not None else ""),
        sent=tuple(dict.fromkeys((*(before.sent if before is not None else ()), *notes))),
    )
    judged = Judged(kept, assessment.slack_s, doubt=doubt, final=final)
    if not (new or notes or _moved(status, before, now_s)):
        return judged
    if not room_for_notices(job.annotations):
        return judged
    annotations = replace(look.sent, judged=status).to_annotations(job.uid)
    return replace(judged, annotations=annotations, events=events, reached=kept if new else None)


def _believed(assessment: _Assessment, verdict: Verdict | None, look: _Check) -> tuple[bool, Doubt | None]:
    """Whether the assessment is a new verdict that counts, and the doubt for the next check."""
    if verdict in (assessment.verdict, "missed"):
        return False, None
    if assessment.verdict in ("met", "missed"):
        return True, None
    doubt, now_s = look.doubt, look.now_s
    if doubt is None or doubt.verdict != assessment.verdict:
        doubt = Doubt(assessment.verdict, now_s)
    moment = moment_of(look.deadline)
    near = moment is not None and moment.timestamp() - now_s < 2 * HOLDS_S
    if now_s - doubt.since_s >= HOLDS_S or near:
        return True, None
    return False, doubt


def _moved(status: DeadlineStatus, before: DeadlineStatus | None, now_s: float) -> bool:
    """Whether the slack has changed enough to be written."""
    if before is None:
        return True
    at, deadline = moment_of(before.at), moment_of(status.deadline)
    if at is not None and now_s - at.timestamp() < REFRESH_S:
        return False
    if status.slack_s is None or before.slack_s is None:
        return status.slack_s is not before.slack_s
    left = abs(deadline.timestamp() - now_s) if deadline is not None else 0.0
    return abs(status.slack_s - before.slack_s) > max(5.0, 0.05 * max(left, abs(before.slack_s)))


def _expected(known: core.Job, deadline_s: float, plan: Plan, *, explain: bool = True) -> _Assessment:
    """The assessment of an unfinished job by the plan's forecast. Without `explain`, only the expected end and slack
    are computed: no reason in words, and no search for a size that would meet the deadline."""
    forecast, now_s = plan.forecasts[known.key], plan.snapshot.now
    finish = forecast.finish
    if finish is None or not finish.expected_s < inf:
        can = attainable(known, deadline_s, plan.snapshot) if explain else None
        if can is not None and can.least is None:
            return _Assessment("unattainable", _out_of_reach(known, can, deadline_s))
        return _Assessment("unknown", "its end is unknown")
    slack = deadline_s - finish.expected_s
    eta = min(finish.expected_s, now_s + MAX_DURATION_S)
    left_s = deadline_s - now_s
    step_s = 1 / known.steps_per_s if known.steps_per_s > 0 else 0.0
    least_s = _LEAST_TOLERANCE_S if left_s > _LAST_S else min(step_s, _LEAST_TOLERANCE_S)
    tolerance = max(least_s, _TOLERANCE * left_s)
    if slack >= -tolerance or not explain:
        return _Assessment("on-time", "", eta, slack)
    late = f"Expected to end {span(-slack)} after its deadline {_time(deadline_s)}{_as_planned(known, forecast, plan)}"
    can = attainable(known, deadline_s, plan.snapshot)
    if can is None or can.least is not None:
        would = f"; {words(can.least)} from now on would meet it" if can is not None and can.least is not None else ""
        return _Assessment("at-risk", late + would, eta, slack)
    return _Assessment("unattainable", _out_of_reach(known, can, deadline_s), eta, slack)


def _as_planned(known: core.Job, forecast: Forecast, plan: Plan) -> str:
    change = plan.changes.get(known.key)
    counts = change.replicas if change is not None else known.counts
    source = f" (speed: {forecast.source})" if forecast.source is not None else ""
    if any(counts.values()):
        return f" with {words(counts)}{source}"
    until = f" until {_time(forecast.start_s)}" if forecast.start_s is not None else ""
    return f": it waits{until}{source}"


def _out_of_reach(known: core.Job, can: Attainable, deadline_s: float) -> str:
    spec, deadline = known.spec, _time(deadline_s)
    if can.fastest is None:
        begin = f"None of the job's sizes fits the cluster, so it will miss its deadline {deadline}"
    else:
        begin = (
            f"Even with {words(can.fastest)}, its fastest size, the job ends {span(can.late_s)} after its deadline "
            f"{deadline}"
        )
    if can.would_do is None:
        would = "no larger size is known that would meet it"
    else:
        allowed = all(can.would_do.get(group.type, 0) <= group.maximum for group in spec.groups)
        reason = "more than fit the cluster" if allowed else "more than its bounds allow"
        source = f"; speed: {can.source}" if can.source is not None else ""
        would = f"{words(can.would_do)} would meet it ({reason}{source})"
    return f"{begin}; {would}. The job runs anyway"


def _missed(known: core.Job | None, deadline: str, now_s: float, *, past: bool) -> _Assessment:
    if past:
        return _Assessment(
            "missed",
            f"The deadline {deadline} was before the job's creation, so no size can meet it. The job runs anyway",
        )
    left = ""
    if known is not None and (work := work_left(known, now_s)) is not None:
        rate = known.steps_per_s if known.placement else 0.0
        lasts = f", {span(work[0] / rate)} at the present speed" if rate > 0 and work[0] / rate < MAX_DURATION_S else ""
        left = f" with {work[0]:.0f} steps left{lasts}"
    return _Assessment("missed", f"The deadline {deadline} has passed{left}. The job continues")


def _ended_late(succeeded: bool, ended: datetime | None, deadline_s: float) -> str:
    deadline = _time(deadline_s)
    if not succeeded:
        return f"The job failed, so it does not meet its deadline {deadline}"
    late = f"{span(ended.timestamp() - deadline_s)} " if ended is not None else ""
    return f"The job ended {late}after its deadline {deadline}"


def _events(assessment: _Assessment) -> tuple[Event, ...]:
    """The events of a new verdict."""
    match assessment.verdict:
        case "at-risk":
            return (Event("Warning", "DeadlineAtRisk", assessment.why),)
        case "unattainable":
            return (Event("Warning", "DeadlineUnattainable", assessment.why),)
        case "missed":
            return (Event("Warning", "DeadlineMissed", assessment.why),)
        case _:
            return ()


def _hints(
    known: core.Job | None, plan: Plan | None, before: DeadlineStatus | None, now_s: float
) -> tuple[tuple[Note, ...], tuple[Event, ...]]:
    """Events about what the job should declare or report so that its deadline can be met, with the notes that record
    them. Each event is sent once."""
    if known is None or plan is None:
        return (), ()
    spec, sent = known.spec, before.sent if before is not None else ()
    past = plan.snapshot.past(spec)
    hints: dict[Note, str] = {}
    if not spec.stoppable:
        hints["size"] = (
            "The job cannot be stopped or resized, so it keeps its declared size even if it misses its deadline: set a "
            "checkpoint-dir, and no rescale: never"
        )
    # A program reports its total number of steps only after it has started.
    begun_s = known.since_s if known.placement else spec.arrival_s
    if now_s - begun_s >= NOTES_S:
        if spec.total_steps is None and spec.duration_s is None and work_left(known, now_s, past) is None:
            hints["work"] = (
                "The number of steps is unknown, so the operator cannot plan for the deadline: set the annotation "
                "total-steps or estimated-duration"
            )
        if known.placement and known.phase == "running" and not spec.reports:
            hints["speed"] = (
                "The job does not report its steps, so its end can only be guessed: set a checkpoint-dir, or inject: "
                "sidecar, and let the program report its steps"
            )
    new = {note: text for note, text in hints.items() if note not in sent}
    return tuple(new), tuple(Event("Warning", "DeadlineLimited", text) for text in new.values())


def _time(at_s: float) -> str:
    return format_time(after(datetime.fromtimestamp(0, UTC), max(0.0, at_s)))
