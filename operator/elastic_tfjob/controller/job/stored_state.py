"""Stores a job's state in its annotations, within their size limit. Pure."""

from dataclasses import replace
from typing import Final

from elastic_tfjob.api.reading import MAX_ANNOTATION_BYTES
from elastic_tfjob.controller.job.context import ReconcileContext
from elastic_tfjob.controller.job.decision import SaveState
from elastic_tfjob.controller.job.injection import injection_when_started
from elastic_tfjob.controller.job.moves import switched_with_moves
from elastic_tfjob.controller.job.progress import NOT_KNOWN, with_end, with_speed
from elastic_tfjob.controller.model.annotations import (
    ETA_ANNOTATION,
    RECORD_ANNOTATION,
    STATE_ANNOTATION,
    STEP_ANNOTATION,
    bytes_of,
)
from elastic_tfjob.controller.model.quantities import requests_of
from elastic_tfjob.controller.model.state import Phase, StoredState
from elastic_tfjob.controller.model.usage import UsageRecord, continued
from elastic_tfjob.scheduling.reasons import Reason

# The names of the operator's annotations, their bytes besides the state's text at most, and the growth of the state.
_OF_STATE: Final = (STATE_ANNOTATION, STEP_ANNOTATION, ETA_ANNOTATION, RECORD_ANNOTATION)
_OF_STATE_BYTES: Final = sum(map(len, _OF_STATE)) + 640
_STATE_GROWS: Final = 4096


def stored_or_first(ctx: ReconcileContext) -> StoredState:
    """Returns the stored state. Returns a first state if none is stored, if it was overwritten with invalid text, or if
    it has no size although the job does not wait for one: such a job waited, and was suspended until no profile decided
    for it. A phase without a known start begins now; otherwise it would have no time limit."""
    if ctx.stored is None or (ctx.stored.phase == "Stable" and not ctx.stored.replicas):
        generation = ctx.stored.generation if ctx.stored is not None else 0
        return replace(_first_state(ctx), generation=generation)
    return ctx.stored if ctx.stored.since else replace(ctx.stored, since=ctx.now_text)


def _first_state(ctx: ReconcileContext) -> StoredState:
    """Returns the state of a job that has no size yet."""
    declared = {name: replica.count for name, replica in ctx.declared.tf_replica_specs.items()}
    if ctx.waits_for_target:
        return StoredState("Waiting", since=ctx.now_text)
    return StoredState("Stable", replicas=declared, since=ctx.now_text, reason=Reason("as-declared"))


def settle_state(ctx: ReconcileContext, phase: Phase) -> None:
    """Ends the rescale of a finished or suspended job. Its speed is recorded once more: figures are updated once a
    minute, so a short job would otherwise teach later jobs of its name nothing."""
    if ctx.stored is None:
        return
    report = ctx.chief_report
    fast = with_speed(ctx.stored, ctx.stored, report, ctx.speed_conditions) if report is not None else ctx.stored
    state = with_end(replace(fast, phase=phase, next=None, stop=None), NOT_KNOWN)
    if phase == "Waiting":
        state = replace(state, replicas={}, nodes={}, cpu={}, slot=0, reason=Reason("suspended"), indexes={})
        state = replace(state, trained=None, forgiven=0)
    if ctx.spec.run_policy.suspend:
        state = replace(state, injection=injection_when_started(state.injection))
    if (state.phase, state.replicas) != (ctx.stored.phase, ctx.stored.replicas):
        state = replace(state, since=ctx.now_text)
    if report is not None and report.step is not None:
        state = replace(state, step=report.step)
    save_state(ctx, state)


def room_for(ctx: ReconcileContext, state: StoredState) -> bool:
    """Whether the job's annotations leave space for a state; otherwise the job runs without following a target."""
    if ctx.stored is not None or _size_of(state.to_json(ctx.job.uid)) + _STATE_GROWS <= _room(ctx):
        return True
    ctx.event(
        "Warning",
        "StateNotStored",
        f"The job's annotations leave {_room(ctx)} of {MAX_ANNOTATION_BYTES} bytes, too few for the operator's state. "
        "The job runs with its declared replicas and is not rescaled",
    )
    return False


def save_state(ctx: ReconcileContext, state: StoredState) -> None:
    """Stores the state, and the annotations that users read, if they differ from the stored ones."""
    wanted = {
        STATE_ANNOTATION: _fitting(ctx, state),
        STEP_ANNOTATION: None if state.step is None else str(state.step),
        ETA_ANNOTATION: state.eta,
        RECORD_ANNOTATION: _record(ctx, state),
    }
    changed = {name: value for name, value in wanted.items() if ctx.job.annotations.get(name) != value}
    if changed:
        ctx.actions.append(SaveState(changed))


def _room(ctx: ReconcileContext) -> int:
    """Returns the bytes that the state may have."""
    others = bytes_of(ctx.job.annotations, but=_OF_STATE)
    return max(0, MAX_ANNOTATION_BYTES - others - _OF_STATE_BYTES)


def _fitting(ctx: ReconcileContext, state: StoredState) -> str:
    """Returns the state's text. If it does not fit beside the job's other annotations, nodes are left out first, so
    that kube-scheduler chooses the pods' nodes, then the history."""
    uid = ctx.job.uid
    room, text = _room(ctx), state.to_json(uid)
    if _size_of(text) <= room:
        return text
    coming = replace(state.next, nodes={}) if state.next is not None else None
    ctx.event(
        "Warning",
        "StateNotStored",
        f"The operator's state with the nodes of {sum(state.replicas.values())} replicas has {_size_of(text)} bytes, "
        f"and the job's annotations leave {room}. kube-scheduler chooses the nodes of new pods",
    )
    trained = replace(state.trained, nodes={}) if state.trained is not None else None
    small = replace(state, nodes={}, next=coming, trained=trained)
    text = small.to_json(uid)
    if _size_of(text) > room:
        text = replace(small, history=(), speeds={}, speed_conditions={}).to_json(uid)
    return text


def _record(ctx: ReconcileContext, state: StoredState) -> str:
    """Returns the usage record for this state."""
    ended = ctx.spec.run_policy.suspend or ctx.status.finished
    before, after = (ctx.stored.replicas if ctx.stored is not None else {}), {} if ended else state.replicas
    held = accelerators = 0
    for name, count in after.items():
        replica = ctx.declared.tf_replica_specs.get(name)
        held += count
        accelerators += (
            count * requests_of(replica.template.get("spec") or {}).accelerators if replica is not None else 0
        )
    record = UsageRecord.of(ctx.job.annotations, ctx.job.uid)
    report = ctx.chief_report
    if report is not None and (ctx.stored is None or state.metrics_at != ctx.stored.metrics_at):
        record = replace(record, loss=report.growth(record.loss))
    moved = ctx.stored is not None and switched_with_moves(ctx.stored, state)
    record = continued(record, before, after, accelerators or held, ctx.now, ended=ended, moved=moved)
    return record.to_json(ctx.job.uid)


def _size_of(text: str) -> int:
    return len(text.encode())
