"""The state of a job as it is stored in its annotations, and the room that there is for it. Pure."""

from dataclasses import replace
from typing import Final

from elastic_tfjob.api.reading import MAX_ANNOTATION_BYTES
from elastic_tfjob.controller.job.decision import SaveState
from elastic_tfjob.controller.job.injection import injection_when_started
from elastic_tfjob.controller.job.moves import switched_with_moves
from elastic_tfjob.controller.job.progress import NOT_KNOWN, with_end, with_speed
from elastic_tfjob.controller.job.reconcile_pass import Pass
from elastic_tfjob.controller.objects.annotations import (
    ETA_ANNOTATION,
    INDEXES_ANNOTATION,
    STATE_ANNOTATION,
    STEP_ANNOTATION,
    UID_ANNOTATION,
    bytes_of,
    claim,
)
from elastic_tfjob.controller.objects.outcomes import CAUSES_ANNOTATION, OUTCOMES_ANNOTATION
from elastic_tfjob.controller.objects.quantities import requests_of
from elastic_tfjob.controller.objects.service import RECORD_ANNOTATION, Record, continued
from elastic_tfjob.controller.objects.state import Phase, State

# What the operator writes into a job's annotations beside its state takes so many bytes at most; and so much it grows.
_OF_STATE: Final = (
    STATE_ANNOTATION,
    INDEXES_ANNOTATION,
    CAUSES_ANNOTATION,
    OUTCOMES_ANNOTATION,
    STEP_ANNOTATION,
    ETA_ANNOTATION,
    UID_ANNOTATION,
    RECORD_ANNOTATION,
)
_OF_STATE_BYTES: Final = sum(map(len, _OF_STATE)) + 512
_STATE_GROWS: Final = 4096


def stored_or_first(p: Pass) -> State:
    """The stored state; the first one of a job whose state is not stored yet, was overwritten with nonsense, or
    has no size although the job does not wait for one: it waited, and was suspended until no profile decided for
    it any more. A phase of which it is not known since when it lasts begins now: else it would have no limit."""
    if p.stored is None or (p.stored.phase == "Stable" and not p.stored.replicas):
        generation = p.stored.generation if p.stored is not None else 0
        return replace(_first_state(p), generation=generation)
    return p.stored if p.stored.since else replace(p.stored, since=p.now)


def _first_state(p: Pass) -> State:
    """Of a job that has no size yet."""
    declared = {name: replica.count for name, replica in p.declared.tf_replica_specs.items()}
    if p.waits_for_target:
        return State("Waiting", since=p.now)
    return State("Stable", replicas=declared, since=p.now, reason="as declared")


def settle_state(p: Pass, phase: Phase) -> None:
    """A job that is finished or suspended is on its way nowhere. How fast it was is remembered: figures are refreshed
    once a minute, so a short job would else teach those of its name nothing."""
    if p.stored is None:
        return
    report = p.chief_report
    fast = with_speed(p.stored, p.stored, report) if report is not None else p.stored
    state = with_end(replace(fast, phase=phase, next=None, stop=None), NOT_KNOWN)
    if phase == "Waiting":
        state = replace(state, replicas={}, nodes={}, cpu={}, slot=0, reason="suspended", indexes={})
        state = replace(state, trained=None, forgiven=0)
    if p.spec.run_policy.suspend:
        state = replace(state, injection=injection_when_started(state.injection))
    if (state.phase, state.replicas) != (p.stored.phase, p.stored.replicas):
        state = replace(state, since=p.now)
    if report is not None and report.step is not None:
        state = replace(state, step=report.step)
    save_state(p, state)


def room_for(p: Pass, state: State) -> bool:
    """Whether the job's annotations leave room for a state; else it runs as a job that follows no target."""
    if p.stored is not None or _size_of(state.to_json()) + _STATE_GROWS <= _room(p):
        return True
    p.event(
        "Warning",
        "StateNotStored",
        f"The job's annotations leave {_room(p)} bytes of {MAX_ANNOTATION_BYTES} that Kubernetes admits: too "
        "few for the operator's state, so the job runs with its declared replicas and is not rescaled",
    )
    return False


def save_state(p: Pass, state: State) -> None:
    """Store the state, and what users read of it, as far as they differ from what is stored."""
    text = _fitting(p, state)
    wanted = {
        **claim(p.job.annotations, p.job.uid),
        STATE_ANNOTATION: text,
        INDEXES_ANNOTATION: state.indexes_json,
        CAUSES_ANNOTATION: state.causes_json,
        OUTCOMES_ANNOTATION: state.outcomes_json,
        STEP_ANNOTATION: None if state.step is None else str(state.step),
        ETA_ANNOTATION: state.eta,
        RECORD_ANNOTATION: _record(p, state),
    }
    changed = {name: value for name, value in wanted.items() if p.job.annotations.get(name) != value}
    if changed:
        p.actions.append(SaveState(changed))


def _room(p: Pass) -> int:
    """Bytes that the state may have."""
    others = bytes_of(p.job.annotations, but=_OF_STATE)
    return max(0, MAX_ANNOTATION_BYTES - others - _OF_STATE_BYTES)


def _fitting(p: Pass, state: State) -> str:
    """The state's text. Where it does not fit beside the job's other annotations, nodes are left out first, so that
    pods run where kube-scheduler finds room for them, then the past."""
    beside = sum(_size_of(text or "") for text in (state.indexes_json, state.causes_json, state.outcomes_json))
    room, text = _room(p) - beside, state.to_json()
    if _size_of(text) <= room:
        return text
    coming = replace(state.next, nodes={}) if state.next is not None else None
    p.event(
        "Warning",
        "StateNotStored",
        f"The state of {sum(state.replicas.values())} replicas with their nodes has {_size_of(text)} bytes, and "
        f"there is room for {room}: kube-scheduler chooses the nodes of pods that are made from now on",
    )
    trained = replace(state.trained, nodes={}) if state.trained is not None else None
    small = replace(state, nodes={}, next=coming, trained=trained)
    text = small.to_json()
    if _size_of(text) > room:
        text = replace(small, history=(), speeds={}, speed_cpu={}).to_json()
    return text


def _record(p: Pass, state: State) -> str:
    """The record of service once this state holds."""
    ended = p.spec.run_policy.suspend or p.status.finished
    before, after = (p.stored.replicas if p.stored is not None else {}), {} if ended else state.replicas
    held = accelerators = 0
    for name, count in after.items():
        replica = p.declared.tf_replica_specs.get(name)
        held += count
        accelerators += (
            count * requests_of(replica.template.get("spec") or {}).accelerators if replica is not None else 0
        )
    record = Record.of(p.job.annotations, p.job.uid)
    report = p.chief_report
    if report is not None and (p.stored is None or state.numbers_at != p.stored.numbers_at):
        record = replace(record, loss=report.growth(record.loss))
    moved = p.stored is not None and switched_with_moves(p.stored, state)
    return continued(record, before, after, accelerators or held, p.time, ended=ended, moved=moved).to_json()


def _size_of(text: str) -> int:
    return len(text.encode())
