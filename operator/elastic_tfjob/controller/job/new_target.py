"""A job at rest and its target: what it takes over at once, and what begins a rescale. Pure."""

from dataclasses import replace
from typing import Final

from elastic_tfjob.controller.job import stopping
from elastic_tfjob.controller.job.commands import run_commands
from elastic_tfjob.controller.job.decision import Count, Event
from elastic_tfjob.controller.job.describe import describe_change, describe_cpu, describe_stay, on_one_line
from elastic_tfjob.controller.job.injection import injection_when_started
from elastic_tfjob.controller.job.modes import choose_mode, known_deaths
from elastic_tfjob.controller.job.moves import coming_indexes, moves
from elastic_tfjob.controller.job.readiness import all_run
from elastic_tfjob.controller.job.rescale_input import RescaleInput, Transition, pods_of
from elastic_tfjob.controller.objects.indexes import resized, simplest
from elastic_tfjob.controller.objects.size import words
from elastic_tfjob.controller.objects.state import Next, Refused, State
from elastic_tfjob.controller.objects.status import format_time
from elastic_tfjob.controller.objects.stop import PREEMPT
from elastic_tfjob.controller.objects.target import Target
from elastic_tfjob.scheduling.causes import cause_of

# A new operator has asked each pod once after so long: only then it says that it waits for a pod's word.
_LISTENED_S: Final = 5.0


def admit(s: RescaleInput) -> Transition:
    """A job that waits starts with the size that its target has; without one it goes on waiting, and says why."""
    state, target = s.state, s.target
    if target is None or not target.replicas:
        reason = target.reason if target is not None else "not looked at yet"
        said = () if reason == state.reason or target is None else (Event("Normal", "Waiting", reason),)
        return Transition(replace(state, reason=reason), {}, hold=True, events=said)
    begun = replace(
        state,
        phase="Stable",
        generation=target.generation,
        replicas=target.replicas,
        nodes=target.nodes,
        cpu=target.cpu,
        since=format_time(s.now),
        reason=target.reason,
        next=None,
        indexes={},
        injection=injection_when_started(state.injection),
    )
    event = Event("Normal", "Admitted", f"Starts with {words(target.replicas)}: {target.reason}")
    cause = cause_of({}, target.replicas, moved=False, stopped=state.stop is not None)
    return Transition(begun, {}, hold=True, events=(event,), tallies=(Count("starts", label=cause),))


def follow_target(s: RescaleInput) -> Transition:
    """A Stable job takes over other nodes or CPU at once, and sets out for another size."""
    state, target = s.state, s.target
    stay = Transition(state, pods_of(state), run_commands(s))
    if state.stop is not None:
        late = s.unheard_s > s.timeouts.hook_s or (not s.launcher and all_run(s))
        size, report = words(state.replicas), s.report(s.chief)
        goes_on = stopping.resumed(state.stop, report, state.generation, size, late=late)
        if goes_on is not None:
            again = replace(state, stop=None)
            return replace(stay, state=again, events=goes_on.events, tallies=goes_on.tallies, again_s=0.0)
    if target is None or target.generation < state.generation:
        # Of before the job returned to the size that it has.
        return stay
    tried = state.refused.generation if state.refused is not None else -1
    newer = target.generation > max(state.generation, tried)
    moving = moves(state, target, s.by_role) if newer and (s.elastic or s.stoppable) else ()
    same = target.replicas == state.replicas
    if same and not moving:
        # The nodes of a move that was refused are not those of the pods.
        return stay if state.refused is not None and target.generation == tried else _adopt(s, stay, target)
    if not same and not s.elastic and target.replicas == s.declared:
        return _as_declared(s, stay, target)
    may = s.elastic or (s.stoppable and (same or not target.replicas))
    if not may or target.generation <= max(state.generation, tried):
        return stay
    indexes = coming_indexes(s.job.name, state, target.replicas, moving)
    mode, why = choose_mode(s, moving, numbered=indexes is not None) if target.replicas else ("recreate", "")
    change = describe_change(state.replicas, target.replicas, moving)
    if mode is None:
        pending = f"{change}: {why}"
        said = (Event("Normal", "RescalePending", pending),) if s.listened_s >= _LISTENED_S else ()
        return replace(stay, again_s=1.0, events=said)
    died = mode != "overlap" and known_deaths(s) is not None
    coming = Next(
        generation=target.generation,
        slot=state.slot if mode == "recreate" else 1 - state.slot,
        mode=mode,
        replicas=target.replicas,
        before=state.replicas,
        nodes=target.nodes,
        cpu=target.cpu,
        reason=f"{target.reason}; {why}" if died and why else target.reason,
        # Where all pods are made anew, they are numbered anew.
        indexes=indexes or {} if mode != "recreate" else {},
        restarts=s.restarts if mode != "recreate" else 0,
    )
    if mode == "recreate" and target.replicas:
        # From the end of the first pod on there is nothing that trains, so all that can refuse the others is asked now.
        answer = s.admission.get(target.generation)
        if answer is None:
            return replace(stay, tries=size_of(state, coming), again_s=0.0)
        if answer:
            return _not_admitted(s, stay, target, answer)
    begun = replace(
        state,
        phase="Recreating" if mode == "recreate" else "Preparing",
        since=format_time(s.now),
        next=coming,
        causes={**state.causes, coming.generation: target.cause} if target.cause else state.causes,
    )
    if not target.replicas:
        stop = stopping.asked(
            s.saving, target.generation, words(state.replicas), target.cause or PREEMPT, target.reason
        )
        return replace(stay, state=replace(begun, stop=stop.stop), events=stop.events, tallies=stop.tallies)
    message = f"{change} ({mode}): {target.reason}"
    if why:
        message = f"{message}; {why}"
    return replace(stay, state=begun, events=(Event("Normal", "Rescaling", message),))


def _not_admitted(s: RescaleInput, stay: Transition, target: Target, answer: str) -> Transition:
    """The API server would refuse pods of the size, so the job stays as it is."""
    state, why = s.state, on_one_line(answer)
    message = describe_stay(state.replicas, target.replicas, f"the API server refuses its pods: {why}")
    event = Event("Warning", "RescaleRolledBack", message)
    cause = target.cause or cause_of(state.replicas, target.replicas, moved=True, stopped=False)
    refused = Refused(target.generation, why, format_time(s.now))
    return replace(
        stay,
        state=replace(state, refused=refused, reason=why),
        events=(event,),
        tallies=(Count("roll_backs", label=cause),),
        again_s=0.0,
    )


def size_of(state: State, coming: Next) -> State:
    """The state of a job that has reached the coming size."""
    return replace(
        state,
        generation=coming.generation,
        slot=coming.slot,
        replicas=coming.replicas,
        nodes=coming.nodes,
        cpu=coming.cpu,
        indexes=coming.indexes,
    )


def _as_declared(s: RescaleInput, stay: Transition, target: Target) -> Transition:
    """A job that is only placed is scaled by an edit of its spec as upstream does it: pods come and go, and those that
    stay are told nothing."""
    indexes = simplest({name: resized(s.state.pods(name), count) for name, count in target.replicas.items()})
    size = replace(s.state, replicas=target.replicas, nodes=target.nodes, reason=target.reason, indexes=indexes)
    message = f"From {words(s.state.replicas)} to {words(target.replicas)} as the spec says: {target.reason}"
    return replace(stay, state=size, again_s=0.0, events=(Event("Normal", "Scaled", message),))


def _adopt(s: RescaleInput, stay: Transition, target: Target) -> Transition:
    """Other nodes or CPU for the size that the job has: no rescale, so they hold at once."""
    state = s.state
    cpu = target.cpu if s.elastic else state.cpu
    if (state.nodes, state.cpu) == (target.nodes, cpu):
        return stay
    adopted = replace(stay, state=replace(state, nodes=target.nodes, cpu=cpu, reason=target.reason))
    if state.cpu == cpu:
        return adopted
    message = f"{describe_cpu(cpu) or 'as requested'}: {target.reason}"
    return replace(adopted, events=(Event("Normal", "CPUAdjusted", message),))
