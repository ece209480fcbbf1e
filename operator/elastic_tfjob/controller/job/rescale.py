"""From one size of a running job to another: prepare beside it, then switch. Pure.

                                    target
        Waiting ──target──▶ Stable ────────▶ Preparing ──ready──▶ Checkpointing ──committed──▶ Switching ──┐
           ▲                 ▲ ▲ │               │ anything wrong      │ refused                  first step │
           │ target empty    │ │ │               ▼                     ▼                                     │
           │                 │ └─┼────────── RollingBack ◀─────────────┘                                     │
           │                 └───┼───────────────────────────────────────────────────────────────────────────┘
           │                     │ no launcher                          all pods gone
           └──────────── Recreating ────────────────────────────────▶ Switching
                             ▲                                            │
                             └────────────── no first step ───────────────┘

Until the chief's launcher has committed the switch, training has not stopped and everything can be undone. The launcher
decides alone, in the pod: its program has saved and the new one stands ready, or not. The operator only learns which,
so neither its death nor a slow API server prolongs the pause. The next rescale begins when the chief has made a step
and all pods have heard which generation runs.

A size that is committed and never makes a step is left again: all pods are recreated at the last size that trained.
That happens once. If no step follows there either, the job is left to its restart policy.

A phase is stored before anything is done that follows from it: `advance` gives what the stored phase calls for, and
perhaps the next state. So it can be killed anywhere and goes on from the annotation.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from elastic_tfjob.controller.job import stopping
from elastic_tfjob.controller.job.commands import TOLD_AT_ONCE, TOLD_S, run_commands, send_commands
from elastic_tfjob.controller.job.decision import Count, Event
from elastic_tfjob.controller.job.injection import injection_when_started
from elastic_tfjob.controller.job.moves import (
    coming_indexes,
    describe_change,
    describe_cpu,
    describe_role,
    describe_stay,
    moves,
    on_one_line,
)
from elastic_tfjob.controller.job.pods import Role
from elastic_tfjob.controller.job.prepare import (
    all_heard,
    all_run,
    cannot_prepare,
    choose_mode,
    fails_for_good,
    has_failed_to_prepare,
    has_no_room,
    is_prepared,
    is_preparing,
    is_silent,
    known_deaths,
    lost_replica,
    never_begins,
    refused_a_node,
    reports_no_steps,
    runs_a_program,
    templates_digest,
)
from elastic_tfjob.controller.job.reconcile_pass import RescaleInput, Transition, pods_of, pods_of_both, roles_of
from elastic_tfjob.controller.objects.annotations import resized, simplest
from elastic_tfjob.controller.objects.command import STOP_COMMAND
from elastic_tfjob.controller.objects.reports import Report
from elastic_tfjob.controller.objects.state import Deaths, Next, Phase, Refused, Rescaled, State, Trained
from elastic_tfjob.controller.objects.status import format_time
from elastic_tfjob.controller.objects.stop import PREEMPT
from elastic_tfjob.controller.objects.target import Cpu, Target, words
from elastic_tfjob.scheduling.plan import cause_of

# -- A job at rest and its target: what it takes over at once, and what begins a rescale -------------------------------

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


# So often containers end while a size is prepared, before it is given up: once it may be by chance.
_DEATHS: Final = 2


def advance(s: RescaleInput) -> Transition:
    """One step of the rescale, or none where there is nothing to do."""
    step = _advance(s)
    return replace(step, state=_with_trained(s, step.state))


def _advance(s: RescaleInput) -> Transition:
    match s.state.phase:
        case "Waiting":
            return admit(s)
        case "Stable":
            return follow_target(s)
        case "Preparing":
            return _preparing(s)
        case "Checkpointing":
            return _checkpointing(s)
        case "RollingBack":
            return _rolling_back(s)
        case "Switching":
            return _switching(s)
        case "Recreating":
            return _recreating(s)


def _with_trained(s: RescaleInput, state: State) -> State:
    """The state, which remembers the newest generation that has made a step. Of a program that reports no steps, that
    is one whose pods have all run."""
    known = state.trained.generation if state.trained is not None else None
    if known == state.generation or state.generation != s.state.generation or not state.replicas:
        return state
    report = s.report(s.chief)
    if _has_begun(s, report) or (state.phase == "Stable" and reports_no_steps(s, report) and all_run(s)):
        return replace(state, trained=Trained(state.generation))
    return state


def _has_begun(s: RescaleInput, report: Report | None) -> bool:
    """Whether the chief has made a step of the generation that runs."""
    return report is not None and report.generation == s.state.generation and report.first_step_at is not None


def _preparing(s: RescaleInput) -> Transition:
    coming = s.coming
    pods = s.by_role
    running = set(roles_of(s.state))
    added = [role for role in roles_of(coming) if role not in running]
    # The host names of added pods exist when they run: a program that looked for them before would be told that they do
    # not, and name services remember that for half a minute.
    ready_to_begin = all(role in pods and pods[role].phase == "Running" for role in added)
    told = added
    if ready_to_begin:
        told = [role for role in roles_of(coming) if role not in running or runs_a_program(s, role)]
    step = Transition(s.state, pods_of_both(s.state, coming), send_commands(s, told, "prepare", coming), again_s=1.0)
    if problem := _withdrawn(s) or lost_replica(s, [s.chief, *roles_of(coming)]):
        return _roll_back(s, step, problem)
    if no_room := has_no_room(s, added):
        back = _roll_back(s, step, f"the new {no_room}")
        return replace(back, state=replace(back.state, next=replace(coming, no_room=True)))
    if problem := cannot_prepare(s, added):
        return _roll_back(s, step, problem)
    missing = [role for role in roles_of(coming) if not is_prepared(s, role)]
    if (ended := s.restarts - coming.restarts) >= _DEATHS:
        # What is prepared takes the container down with it: by its memory, say.
        why = f"containers of the running size have ended {ended} times while the next one was prepared"
        return _roll_back(s, step, why, blamed=roles_of(s.state))
    if missing and s.unheard_s > s.timeouts.prepare_s:
        names = ", ".join(describe_role(role) for role in missing[:5])
        # It may wait for what the running one has: a lock. Those that are added may wait for it.
        stuck = [role for role in missing if role in running and is_preparing(s, role)] if ready_to_begin else []
        return _roll_back(s, step, f"not ready after {s.timeouts.prepare_s:.0f} s: {names}", blamed=stuck)
    if missing:
        return step
    chief = pods.get(s.chief)
    ends = chief.last_end if chief is not None else None
    counted = replace(coming, restarts=_restarts(s), chief_deaths=ends.deaths if ends is not None else 0)
    return replace(step, state=replace(_enter(s, "Checkpointing"), next=counted))


def _checkpointing(s: RescaleInput) -> Transition:
    coming = s.coming
    # Where whole programs wait, only the chief has something to do; of spares, servers start with it.
    told = roles_of(coming) if coming.mode == "spare" else [s.chief]
    commands = send_commands(s, told, "switch", coming)
    step = Transition(s.state, pods_of_both(s.state, coming), commands, again_s=1.0)
    chief, report = s.by_role.get(s.chief), s.report(s.chief)
    if report is not None and report.generation == coming.generation:
        return replace(step, state=_committed(s))
    if chief is not None and fails_for_good(s, s.chief):
        # Whether it had committed nobody can tell any more; and a program that it ran for us may be what failed.
        here = Trained(s.state.generation, s.state.replicas, s.state.nodes, s.state.cpu)
        return _return(s, step, here, f"{describe_role(s.chief)}: {chief.last_end or 'the pod failed'}")
    if chief is None or chief.terminating or chief.phase != "Running":
        return _roll_back(s, step, f"{describe_role(s.chief)} ended before it had saved")
    if lost := lost_replica(s, [s.chief, *roles_of(coming)]):
        return _roll_back(s, step, lost)
    if report is not None and report.switch is not None and report.switch.generation == coming.generation:
        if report.switch.state == "refused":
            return _roll_back(s, step, f"no checkpoint: {report.switch.why}")
        if report.switch.state == "committed":
            return replace(step, state=_committed(s))
    # The launcher gives up first; this is for a launcher that cannot be heard.
    if s.unheard_s > s.timeouts.checkpoint_s + s.timeouts.cancel_s:
        return _roll_back(
            s, step, f"no checkpoint after {s.elapsed_s:.0f} s, and no word from {describe_role(s.chief)}"
        )
    return step


def _rolling_back(s: RescaleInput) -> Transition:
    """The chief first: only when it has given up can the others, for until then it may still commit. One that is lost
    is ended, and not waited for: whatever it does, it never trains again."""
    coming, lost = s.coming, s.lost(s.chief)
    commands = send_commands(s, [s.chief], "run", None)
    # What was added stays until it is certain which way it goes.
    step = Transition(s.state, pods_of_both(s.state, coming), commands, again_s=1.0)
    chief, report = s.by_role.get(s.chief), s.report(s.chief)
    gone = chief is None or chief.ended
    if report is not None and report.generation == coming.generation and not gone:
        return replace(step, state=_committed(s))
    cancelled = (
        report is not None
        and report.generation == s.state.generation
        and report.prepared is None
        and (report.switch is None or report.switch.state != "saving")
    )
    if gone or cancelled or (lost and chief is not None and chief.terminating):
        now = format_time(s.now)
        refused = Refused(coming.generation, s.state.reason, now, coming.no_room)
        back = replace(s.state, phase="Stable", since=now, next=None, refused=refused, cpu=_cpu_left(s))
        return replace(step, state=back)
    if (lost or s.unheard_s > s.timeouts.cancel_s) and chief is not None and not chief.terminating:
        # Nobody can tell what it does: made anew, it goes on from the newest checkpoint.
        return replace(step, delete=(chief,))
    return step


def _cpu_left(s: RescaleInput) -> Cpu:
    """CPU of the size that stays, without what its pods gave up for the one that did not come: a plan may have given
    that to other jobs, and the next one says what these pods get."""
    left: dict[str, tuple[int, ...]] = {}
    for name, values in s.state.cpu.items():
        pods = [s.by_role.get((name, index)) for index in s.state.pods(name)]
        held = [pod.cpu.request if pod is not None else 0 for pod in pods]
        left[name] = tuple(min(value, has or value) for value, has in zip(values, held, strict=False))
    return left


def _switching(s: RescaleInput) -> Transition:
    coming, state = s.coming, s.state
    step = Transition(state, pods_of(state), run_commands(s), again_s=1.0)
    chief, report = s.by_role.get(s.chief), s.report(s.chief)
    heard = _has_begun(s, report)
    silent = is_silent(s, report) and chief is not None and chief.phase == "Running"
    limit_s = s.timeouts.recreate_s if coming.mode == "recreate" else s.timeouts.switch_s
    chief_lost = s.lost(s.chief)
    late = chief_lost or s.unheard_s > limit_s
    # What it waits for in vain on a node that the operator chose, it gets elsewhere; but only a Stable job is placed.
    refused = "" if heard else refused_a_node(s, [role for role, pod in s.by_role.items() if pod.pinned])
    failed = ""
    if (state.way_back is not None or coming.returns) and not (heard or silent or refused or chief_lost):
        failed = never_begins(s, limit_s)
        if state.way_back is not None:
            return _return(s, step, state.way_back, failed) if failed else step
    if not ((heard and all_heard(s)) or silent or late or refused or failed):
        return step
    downtime_s = report.downtime_s if heard and report is not None else None
    if downtime_s is None and coming.mode == "recreate" and not (late or refused):
        downtime_s = s.elapsed_s
    lost = report.lost_steps if heard and report is not None else None
    now = format_time(s.now)
    done = Rescaled(state.generation, now, coming.before, coming.replicas, coming.mode, downtime_s, lost, coming.reason)
    settled = replace(
        state,
        phase="Stable",
        since=now,
        reason=coming.reason,
        next=None,
        rescales=state.rescales + 1,
        last_downtime_s=downtime_s,
        history=state.remember(done),
        forgiven=state.forgiven + max(0, _restarts(s) - coming.restarts),
        deaths=state.deaths.without(coming.mode) if heard and state.deaths is not None else state.deaths,
    )
    change = f"{describe_change(coming.before, coming.replicas)} ({coming.mode})"
    if refused and not late:
        event = Event("Warning", "Rescaled", f"{change}, but {refused}")
    elif failed:
        settled = replace(settled, trained=None)  # it has been tried once; from here on this is a job like any other
        message = f"{change}, but no step was made there either: {on_one_line(failed)}. Its restart policy decides now"
        event = Event("Warning", "ReturnFailed", message)
    elif chief_lost:
        event = Event("Warning", "Rescaled", f"{change}, but {lost_replica(s, [s.chief])}: {coming.reason}")
    elif late and not heard:
        event = Event("Warning", "Rescaled", f"{change}, but no step was seen for {limit_s:.0f} s: {coming.reason}")
    else:
        pause = "" if downtime_s is None else f" in {downtime_s:.2f} s"
        steps = "" if lost is None else f", {lost} steps lost"
        event = Event("Normal", "Rescaled", f"{change}{pause}{steps}: {coming.reason}")
    return replace(step, state=settled, events=(event,), tallies=(Count("rescales", label=state.cause(coming)),))


def _return(s: RescaleInput, step: Transition, back: Trained, why: str) -> Transition:
    """Recreate all pods at the last size that trained. The size that failed has lost nothing, as it made no step."""
    coming, state = s.coming, s.state
    why = on_one_line(why)
    newest = max(coming.generation, s.target.generation if s.target is not None else 0)
    returns = Next(
        generation=newest + 1,
        slot=state.slot,
        mode="recreate",
        replicas=back.replicas,
        before=coming.replicas,
        nodes=back.nodes,
        cpu=back.cpu,
        reason="returns to the last size that trained",
        returns=True,
    )
    refused = Refused(coming.generation, why, format_time(s.now))
    undone = replace(_enter(s, "Recreating"), reason=why, next=returns, refused=refused)
    where = words(back.replicas) if back.replicas != coming.replicas else "the nodes before"
    change = describe_change(coming.before, coming.replicas)
    message = f"{change} ({coming.mode}), but no step was made: {why}. Training continues at {where}"
    event, tally = Event("Warning", "RescaleUndone", message), Count("roll_backs", label=state.cause(coming))
    return replace(step, state=undone, events=(event,), tallies=(tally,), hold=True, again_s=0.0)


def _restarts(s: RescaleInput) -> int:
    """Restarts of all containers of the job, as `backoffLimit` counts them."""
    return sum(pod.restarts for pod in s.by_role.values() if pod.phase == "Running")


def _recreating(s: RescaleInput) -> Transition:
    """The chief goes first, while its parameter servers are there to be saved. Before, all pods are marked: those that
    end because the chief is gone have not failed. A chief that is lost is not waited for: the others hold room that
    somebody else needs. Pods are made when all of the old ones are gone, that one included."""
    coming, pods = s.coming, s.by_role
    chief = pods.get(s.chief)
    step = Transition(s.state, pods_of_both(s.state, coming), hold=True, again_s=5.0)
    stop = s.state.stop if not coming.replicas else None
    if stop is not None and not stop.ended:
        verdict = stopping.judge(s.saving, stop)
        commands = send_commands(s, [s.chief], "save", None) if not verdict.stop.ended else {}
        state = replace(s.state, stop=verdict.stop)
        return replace(
            step, state=state, commands=commands, events=verdict.events, tallies=verdict.tallies, again_s=1.0
        )
    unmarked = [role for role, pod in pods.items() if not (pod.stopped_by_us or pod.terminating or pod.ended)]
    if unmarked and s.elapsed_s < s.timeouts.recreate_s:  # an API server may refuse marks for ever
        return replace(step, commands=dict.fromkeys(unmarked[:TOLD_AT_ONCE], STOP_COMMAND), again_s=TOLD_S)
    lost = s.lost(s.chief)
    if chief is not None and not (chief.ended or lost):
        return replace(step, delete=(chief,))
    if pods:
        events: tuple[Event, ...] = ()
        if lost and any(not pod.terminating for role, pod in pods.items() if role != s.chief):
            message = (
                f"{describe_role(s.chief)} is on a node that does not answer, so the other pods do not wait for it"
            )
            events = (Event("Warning", "ChiefLost", message),)
        return replace(step, delete=tuple(pods.values()), events=events)
    if coming.replicas and coming.generation == s.state.generation:  # the same pods, without what was injected
        return replace(step, state=replace(_enter(s, "Stable"), next=None), again_s=0.0)
    if coming.replicas:
        begun = replace(_committed(s), injection=injection_when_started(s.state.injection))
        # The pause counts from the end of the old pods. The limit of the first step does not, where a lost node kept
        # one of them for long: the new size is not to blame.
        if s.elapsed_s < s.timeouts.recreate_s / 2:
            begun = replace(begun, since=s.state.since)
        return replace(step, state=begun)
    waiting = replace(
        s.state,
        phase="Waiting",
        replicas={},
        nodes={},
        cpu={},
        since=format_time(s.now),
        next=None,
        slot=0,
        indexes={},
        trained=None,
        forgiven=0,
    )
    if stop is None:
        return replace(step, state=waiting)
    over = stopping.stopped(stop, s.now)
    return replace(step, state=replace(waiting, reason=stop.reason), events=over.events, tallies=over.tallies)


def _enter(s: RescaleInput, phase: Phase) -> State:
    return replace(s.state, phase=phase, since=format_time(s.now))


def _roll_back(s: RescaleInput, step: Transition, why: str, *, blamed: Sequence[Role] = ()) -> Transition:
    """`blamed`: replicas beside whose programs another one does not come up."""
    coming = s.coming
    why = on_one_line(why)
    message = describe_stay(s.state.replicas, coming.replicas, why)
    if s.state.causes.get(coming.generation) == "asked":
        message = f"{message}. What was asked for is tried again, later each time"
    state = replace(_enter(s, "RollingBack"), reason=why, deaths=_deaths(s, why, blamed))
    event, tally = Event("Warning", "RescaleRolledBack", message), Count("roll_backs", label=s.state.cause(coming))
    return replace(step, state=state, events=(event,), tallies=(tally,))


def _deaths(s: RescaleInput, why: str, blamed: Sequence[Role]) -> Deaths | None:
    """What is remembered of programs that died while they were prepared: beside one that runs, and no others. A
    replica that is added has nothing beside it, so it dies of something else."""
    coming, running = s.coming, set(roles_of(s.state))
    failed = blamed or [role for role in roles_of(coming) if has_failed_to_prepare(s, role)]
    if coming.mode == "recreate" or not failed or not running.issuperset(failed):
        return s.state.deaths
    known = known_deaths(s) or Deaths(templates_digest(s.spec))
    return known.count(coming.mode, why)


def _committed(s: RescaleInput) -> State:
    """The chief decided for the coming size, or all pods before it are gone: from here on it is the job's size."""
    coming, state = s.coming, s.state
    trained = state.trained
    if trained is not None and trained.generation == state.generation:
        trained = replace(trained, replicas=state.replicas, nodes=state.nodes, cpu=state.cpu)
    step = size_of(_enter(s, "Switching"), coming)
    if coming.mode != "recreate":
        return replace(step, trained=trained)
    return replace(step, trained=trained, next=replace(coming, restarts=0, chief_deaths=0), forgiven=0)


def _withdrawn(s: RescaleInput) -> str:
    """Why the size that the job is on its way to is not wanted any more."""
    coming, target = s.coming, s.target
    moves_only = coming.replicas == s.state.replicas
    if not (s.elastic or (s.stoppable and moves_only)):
        return "the job's annotations do not allow rescaling any more"
    if target is None or target.replicas != coming.replicas:
        wanted = words(target.replicas) if target is not None else "no size"
        return f"{wanted} is wanted now"
    if moves_only and target.generation > coming.generation:
        return "other nodes are wanted now"
    return ""
