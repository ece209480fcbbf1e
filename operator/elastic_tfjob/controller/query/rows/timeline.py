"""What happened to one job, and why, in order of time. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from elastic_tfjob.api.reading import cut
from elastic_tfjob.controller.model.status import moment_of
from elastic_tfjob.controller.model.target import Target, words
from elastic_tfjob.controller.query.rows.jobs import ReadJob, counts
from elastic_tfjob.scheduling.plan import Cause, cause_of

__all__ = ["Happening", "Size", "sizes", "timeline"]

Kind = Literal["created", "condition", "rescaled", "rescaling", "refused", "decided", "stopping", "stopped", "resumed"]

# The API server bounds how long a status is, not how many conditions are in it.
_CONDITIONS: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """One thing that happened. `before`, `after`, `mode`, `downtime_s` and `lost_steps` are of changes of size."""

    at: Annotated[str | None, "when; null: decided, and not begun yet"]
    kind: Annotated[Kind, "what it was"]
    text: Annotated[str, "what happened, in words"]
    reason: Annotated[str, "why"] = ""
    cause: Annotated[Cause | None, "why in one word, of what a plan or a person decided, as metrics count it"] = None
    before: Annotated[Mapping[str, int], "replicas before, by type"] = field(default_factory=dict)
    after: Annotated[Mapping[str, int], "replicas after, by type"] = field(default_factory=dict)
    mode: Annotated[str | None, "how a change of size was made: overlap, spare or recreate"] = None
    downtime_s: Annotated[float | None, "seconds for which training stood still"] = None
    lost_steps: Annotated[int | None, "steps that were lost"] = None
    expected_steps_per_s: Annotated[float | None, "of a change of size: the speed that its plan expected"] = None
    measured_steps_per_s: Annotated[float | None, "the speed that the job then had, a minute after the change"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size that a job had from a moment on."""

    at: Annotated[str, "since when"]
    replicas: Annotated[Mapping[str, int], "replicas, by type"]


def timeline(seen: ReadJob) -> tuple[Happening, ...]:
    """All that the job's objects remember: its conditions, its last ten rescales, its last stop, what is under way."""
    found = [each for each in _happenings(seen) if each.at is None or moment_of(each.at) is not None]
    return tuple(sorted(found, key=_when))


def sizes(seen: ReadJob) -> tuple[Size, ...]:
    """The sizes as far back as the state remembers, for a step chart; the last one holds until now."""
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
            text=f"From {words(counts(done.before))} to {words(counts(done.after))}",
            reason=str(done.reason),
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
        text = f"Size {state.refused.generation} was rolled back"
        yield Happening(at=state.refused.at, kind="refused", text=text, reason=str(state.refused.reason))
    yield from _stops(seen)
    if state.next is not None:
        coming = state.next
        yield Happening(
            at=state.since or None,
            kind="rescaling",
            text=f"{state.phase}: from {words(counts(coming.before))} to {words(counts(coming.replicas))}",
            reason=str(coming.reason),
            cause=state.cause(coming),
            before=counts(coming.before),
            after=counts(coming.replicas),
            mode=coming.mode,
        )
    elif target is not None and not target.replicas:
        if state.stop is None:  # else that has told it
            since = state.since if state.phase == "Waiting" else ""
            yield _decided(seen, target, at=since or None)
    elif target is not None and target.generation > state.generation and state.refused is None:
        yield _decided(seen, target)
    if record.resumed and moment_of(record.resumed) is not None:
        yield Happening(at=record.resumed, kind="resumed", text="It holds nodes again after a stop")


def _stops(seen: ReadJob) -> Iterator[Happening]:
    stop = seen.state.stop if seen.state is not None else None
    if stop is None:
        if seen.record.stopped:
            yield Happening(at=seen.record.stopped, kind="stopped", text="All was taken from it while it ran")
        return
    text = "A checkpoint is asked for, then its pods end"
    yield Happening(at=stop.asked or None, kind="stopping", text=text, reason=str(stop.reason), cause=stop.cause)
    if stop.ended:
        where = f" at step {stop.saved}" if stop.saved is not None else ""
        text = f"Its pods ended{where}"
        yield Happening(
            at=stop.ended, kind="stopped", text=text, reason=str(stop.reason), cause=stop.cause, lost_steps=stop.lost
        )


def _decided(seen: ReadJob, target: Target, at: str | None = None) -> Happening:
    has = seen.state.replicas if seen.state is not None else {}
    shall = any(target.replicas.values())
    told: Cause | None = target.cause or None
    if told is None and (shall or any(has.values())):  # else it has nothing and goes on waiting
        told = cause_of(has, target.replicas, moved=True, stopped=bool(seen.record.stopped))
    text = f"It shall have {words(counts(target.replicas))}" if shall else "It shall wait"
    return Happening(at=at, kind="decided", text=text, reason=str(target.reason), cause=told)
