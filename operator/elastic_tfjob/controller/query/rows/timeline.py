"""The timeline of a job: what happened and why, in chronological order. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, TypedDict

from elastic_tfjob.api.reading import cut
from elastic_tfjob.api.words import ReasonCode
from elastic_tfjob.controller.model.status import moment_of
from elastic_tfjob.controller.model.target import Target, words
from elastic_tfjob.controller.query.rows.jobs import ReadJob, counts
from elastic_tfjob.scheduling.plan import Cause, cause_of
from elastic_tfjob.scheduling.reasons import Fact, Why, code_of, facts_of

__all__ = ["Happening", "Size", "sizes", "timeline"]

Kind = Literal["created", "condition", "rescaled", "rescaling", "refused", "decided", "stopping", "stopped", "resumed"]

# The API server limits the size of a status, but not the number of its conditions.
_CONDITIONS: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """An entry of the timeline. `before`, `after`, `mode`, `downtime_s` and `lost_steps` belong to rescales."""

    at: Annotated[str | None, "time; null: decided but not begun"]
    kind: Annotated[Kind, "kind of entry"]
    text: Annotated[str, "what happened, in words"]
    reason: Annotated[str, "reason"] = ""
    reason_code: Annotated[ReasonCode | None, "code of the scheduler's reason; null: the reason has no code"] = None
    reason_facts: Annotated[Mapping[str, Fact], "facts of the scheduler's reason, by name"] = field(
        default_factory=dict
    )
    cause: Annotated[Cause | None, "cause of a decision in one word, as in the metrics"] = None
    before: Annotated[Mapping[str, int], "replicas before, by type"] = field(default_factory=dict)
    after: Annotated[Mapping[str, int], "replicas after, by type"] = field(default_factory=dict)
    mode: Annotated[str | None, "mode of a rescale: live, overlap, spare or recreate"] = None
    downtime_s: Annotated[float | None, "seconds for which training was paused"] = None
    lost_steps: Annotated[int | None, "lost training steps"] = None
    expected_steps_per_s: Annotated[float | None, "expected speed after a rescale"] = None
    measured_steps_per_s: Annotated[float | None, "measured speed one minute after a rescale"] = None


class _ReasonFields(TypedDict):
    reason: str
    reason_code: ReasonCode | None
    reason_facts: Mapping[str, Fact]


def _reason(why: Why) -> _ReasonFields:
    return {"reason": str(why), "reason_code": code_of(why), "reason_facts": facts_of(why)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of a job from a moment on."""

    at: Annotated[str, "start of this size"]
    replicas: Annotated[Mapping[str, int], "replicas, by type"]


def timeline(seen: ReadJob) -> tuple[Happening, ...]:
    """Everything that the job's objects record: conditions, the last ten rescales, the last stop, and the change in
    progress."""
    found = [each for each in _happenings(seen) if each.at is None or moment_of(each.at) is not None]
    return tuple(sorted(found, key=_when))


def sizes(seen: ReadJob) -> tuple[Size, ...]:
    """The sizes as far back as the state records, for a step chart; the last one lasts until now."""
    state, status = seen.state, seen.status
    if state is None:
        return ()
    found: list[Size] = []
    first = state.history[0].before if state.history else state.replicas
    if status.start_time is not None and any(first.values()):
        found.append(Size(at=status.start_time, replicas=counts(first)))
    found += [Size(at=each.at, replicas=counts(each.after)) for each in state.history]
    if seen.record.stopped:
        found.append(Size(at=seen.record.stopped, replicas={}))
    if seen.record.stopped and seen.record.placed:
        found.append(Size(at=seen.record.placed, replicas=counts(state.replicas)))
    if status.completion_time is not None:
        found.append(Size(at=status.completion_time, replicas={}))
    return tuple(sorted(found, key=lambda each: each.at))


def _when(each: Happening) -> tuple[bool, float]:
    at = moment_of(each.at)
    return (at is None, at.timestamp() if at is not None else 0.0)


def _happenings(seen: ReadJob) -> Iterator[Happening]:
    job, state, target, record = seen.job, seen.state, seen.target, seen.record
    if moment_of(job.created) is not None:
        yield Happening(at=job.created, kind="created", text="The job was created")
    for condition in seen.status.conditions[-_CONDITIONS:]:
        is_so = "" if condition.status == "True" else " is over"
        text = cut(f"{condition.type}{is_so}: {condition.message}" if condition.message else condition.type + is_so)
        at = condition.lastTransitionTime
        yield Happening(at=at if moment_of(at) else None, kind="condition", text=text, reason=cut(condition.reason))
    if state is None:
        if target is not None:
            yield _decided(seen, target)
        return
    for done in state.history:
        outcome = state.outcomes.get(done.generation)
        yield Happening(
            at=done.at,
            kind="rescaled",
            text=f"Rescaled from {words(counts(done.before))} to {words(counts(done.after))}",
            **_reason(done.reason),
            cause=state.cause(done),
            before=counts(done.before),
            after=counts(done.after),
            mode=done.mode,
            downtime_s=done.downtime_s,
            lost_steps=done.lost_steps,
            expected_steps_per_s=outcome.expected if outcome is not None else None,
            measured_steps_per_s=outcome.measured if outcome is not None else None,
        )
    if state.refused is not None:
        text = f"The rescale to size {state.refused.generation} was rolled back"
        yield Happening(at=state.refused.at, kind="refused", text=text, **_reason(state.refused.reason))
    yield from _stops(seen)
    if state.next is not None:
        coming = state.next
        yield Happening(
            at=state.since or None,
            kind="rescaling",
            text=f"{state.phase}: from {words(counts(coming.before))} to {words(counts(coming.replicas))}",
            **_reason(coming.reason),
            cause=state.cause(coming),
            before=counts(coming.before),
            after=counts(coming.replicas),
            mode=coming.mode,
        )
    elif target is not None and not target.replicas:
        if state.stop is None:  # otherwise the stop is in the timeline
            since = state.since if state.phase == "Waiting" else ""
            yield _decided(seen, target, at=since or None)
    elif target is not None and target.generation > state.generation and state.refused is None:
        yield _decided(seen, target)
    if record.resumed and moment_of(record.resumed) is not None:
        yield Happening(at=record.resumed, kind="resumed", text="The job has nodes again after a stop")


def _stops(seen: ReadJob) -> Iterator[Happening]:
    stop = seen.state.stop if seen.state is not None else None
    if stop is None:
        if seen.record.stopped:
            yield Happening(at=seen.record.stopped, kind="stopped", text="The running job was stopped")
        return
    text = "A checkpoint is requested, then the pods end"
    yield Happening(at=stop.asked or None, kind="stopping", text=text, **_reason(stop.reason), cause=stop.cause)
    if stop.ended:
        where = f" at step {stop.saved}" if stop.saved is not None else ""
        text = f"The pods ended{where}"
        yield Happening(
            at=stop.ended, kind="stopped", text=text, **_reason(stop.reason), cause=stop.cause, lost_steps=stop.lost
        )


def _decided(seen: ReadJob, target: Target, at: str | None = None) -> Happening:
    has = seen.state.replicas if seen.state is not None else {}
    shall = any(target.replicas.values())
    cause: Cause | None = target.cause or None
    if cause is None and (shall or any(has.values())):  # otherwise the job has no replicas and continues to wait
        cause = cause_of(has, target.replicas, moved=True, stopped=bool(seen.record.stopped))
    text = f"Target: {words(counts(target.replicas))}" if shall else "Target: wait"
    return Happening(at=at, kind="decided", text=text, **_reason(target.reason), cause=cause)
