"""A job that is not rescaling, and its target: what it adopts at once, and what begins a rescale. Pure."""

from dataclasses import replace
from typing import Final

from elastic_tfjob.controller.job import stopping
from elastic_tfjob.controller.job.commands import run_commands
from elastic_tfjob.controller.job.context import ReconcileContext
from elastic_tfjob.controller.job.injection import injection_when_started
from elastic_tfjob.controller.job.moves import (
    coming_indexes,
    describe_change,
    describe_cpu,
    describe_stay,
    moves,
    on_one_line,
    taken_over,
)
from elastic_tfjob.controller.job.pods import pods_of
from elastic_tfjob.controller.job.prepare import all_run, choose_mode, known_deaths
from elastic_tfjob.controller.model.annotations import resized, simplest
from elastic_tfjob.controller.model.state import PREEMPT, Next, Refused, StoredState
from elastic_tfjob.controller.model.target import Target, words
from elastic_tfjob.scheduling.plan import cause_of
from elastic_tfjob.scheduling.reasons import added

# A new operator has asked each pod once after this time; only then does it report that it waits for a pod's answer.
_LISTENED_S: Final = 5.0


def admit(ctx: ReconcileContext) -> StoredState:
    """A waiting job starts with its target's size; without one it keeps waiting, with the target's reason."""
    state, target = ctx.current, ctx.target
    ctx.wanted, ctx.hold = {}, True
    if target is None or not target.replicas:
        reason = target.reason if target is not None else "waiting for the first scheduling round"
        if target is not None and str(reason) != str(state.reason):
            ctx.event("Normal", "Waiting", str(reason))
        return replace(state, reason=reason)
    ctx.event("Normal", "Admitted", f"Starts with {words(target.replicas)}: {target.reason}")
    cause = cause_of({}, target.replicas, moved=False, stopped=state.stop is not None)
    ctx.count("starts", label=cause)
    return replace(
        state,
        phase="Stable",
        generation=target.generation,
        replicas=target.replicas,
        nodes=target.nodes,
        cpu=target.cpu,
        since=ctx.now_text,
        reason=target.reason,
        next=None,
        indexes={},
        injection=injection_when_started(state.injection),
    )


def follow_target(ctx: ReconcileContext) -> StoredState:
    """A Stable job adopts new nodes or CPU at once, and begins a rescale to reach a new size."""
    state, target = ctx.current, ctx.target
    ctx.wanted = pods_of(state)
    ctx.send(run_commands(ctx))
    if state.stop is not None:
        late = ctx.unheard_s > ctx.timeouts.hook_s or (not ctx.launcher and all_run(ctx))
        if stopping.resumed(ctx, state.stop, late=late):
            ctx.look_again(0.0)
            return replace(state, stop=None)
    if target is None or target.generation < state.generation:
        # The target is older than the job's return to its present size.
        return state
    tried = state.refused.generation if state.refused is not None else -1
    newer = target.generation > max(state.generation, tried)
    moving = moves(state, target, ctx.by_role) if newer and (ctx.elastic or ctx.stoppable) else ()
    same = target.replicas == state.replicas
    if same and not moving:
        # The pods are not on the nodes of a move that was refused.
        return state if state.refused is not None and target.generation == tried else _adopt(ctx, target)
    if not same and not ctx.elastic and target.replicas == ctx.declared_counts:
        return _as_declared(ctx, target)
    may = ctx.elastic or (ctx.stoppable and (same or not target.replicas))
    if not may or target.generation <= max(state.generation, tried):
        return state
    replaced = taken_over(state, target, ctx.by_role)
    indexes = coming_indexes(ctx.job.name, state, target.replicas, moving, replaced, pods=ctx.by_role)
    mode, why = choose_mode(ctx, moving, numbered=indexes is not None) if target.replicas else ("recreate", "")
    change = describe_change(state.replicas, target.replicas, moving)
    if mode is None:
        if ctx.listened_s >= _LISTENED_S:
            ctx.event("Normal", "RescalePending", f"{change}: {why}")
        ctx.look_again(1.0)
        return state
    died = mode not in ("live", "overlap") and known_deaths(ctx) is not None
    coming = Next(
        generation=target.generation,
        slot=state.slot if mode in ("live", "recreate") else 1 - state.slot,
        mode=mode,
        replicas=target.replicas,
        before=state.replicas,
        nodes=target.nodes,
        cpu=target.cpu,
        reason=added(target.reason, also=why) if died and why else target.reason,
        # When all pods are recreated, they are renumbered.
        indexes=indexes or {} if mode != "recreate" else {},
        restarts=ctx.restarts if mode != "recreate" else 0,
        saved=ctx.newest_checkpoint if mode != "recreate" and any(each.role == ctx.chief for each in moving) else None,
    )
    if mode == "recreate" and target.replicas:
        # Once the first pod has ended nothing trains, so the API server is asked now whether it would refuse any pod of
        # the new size.
        answer = ctx.admission.get(target.generation)
        if answer is None:
            ctx.tries = size_of(state, coming)
            ctx.look_again(0.0)
            return state
        if answer:
            return _not_admitted(ctx, target, answer)
    begun = replace(
        state,
        phase="Recreating" if mode == "recreate" else "Preparing",
        since=ctx.now_text,
        next=coming,
        causes={**state.causes, coming.generation: target.cause} if target.cause else state.causes,
    )
    if not target.replicas:
        stop = stopping.begin(ctx, target.generation, target.cause or PREEMPT, target.reason)
        return replace(begun, stop=stop)
    ctx.event("Normal", "Rescaling", f"{change} ({mode}): {target.reason}" + (f"; {why}" if why else ""))
    return begun


def _not_admitted(ctx: ReconcileContext, target: Target, answer: str) -> StoredState:
    """The job keeps its size, because the API server would refuse pods of the new one."""
    state, why = ctx.current, on_one_line(answer)
    message = describe_stay(state.replicas, target.replicas, f"the API server refuses its pods: {why}")
    ctx.event("Warning", "RescaleRolledBack", message)
    cause = target.cause or cause_of(state.replicas, target.replicas, moved=True, stopped=False)
    ctx.count("roll_backs", label=cause)
    ctx.look_again(0.0)
    return replace(state, refused=Refused(target.generation, why, ctx.now_text), reason=why)


def size_of(state: StoredState, coming: Next) -> StoredState:
    """Returns the state of a job that has reached the coming size."""
    return replace(
        state,
        generation=coming.generation,
        slot=coming.slot,
        replicas=coming.replicas,
        nodes=coming.nodes,
        cpu=coming.cpu,
        indexes=coming.indexes,
    )


def _as_declared(ctx: ReconcileContext, target: Target) -> StoredState:
    """A job that is placed but not elastic is scaled by an edit of its spec, as upstream does: pods are added and
    removed, and the remaining ones get no command."""
    state = ctx.current
    indexes = simplest({name: resized(state.pods(name), count) for name, count in target.replicas.items()})
    change = f"From {words(state.replicas)} to {words(target.replicas)}"
    ctx.event("Normal", "Scaled", f"{change}, after an edit of the spec: {target.reason}")
    ctx.look_again(0.0)
    return replace(state, replicas=target.replicas, nodes=target.nodes, reason=target.reason, indexes=indexes)


def _adopt(ctx: ReconcileContext, target: Target) -> StoredState:
    """Adopts nodes or CPU for the job's present size. This is no rescale, so they apply at once."""
    state = ctx.current
    cpu = target.cpu if ctx.elastic else state.cpu
    if (state.nodes, state.cpu) == (target.nodes, cpu):
        return state
    if state.cpu != cpu:
        ctx.event("Normal", "CPUAdjusted", f"{describe_cpu(cpu) or 'as requested'}: {target.reason}")
    return replace(state, nodes=target.nodes, cpu=cpu, reason=target.reason)
