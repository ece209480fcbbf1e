"""A job that follows a target: whether it does, and the step that brings it closer. Pure."""

from copy import copy
from dataclasses import replace

from elastic_tfjob.controller.job import inject
from elastic_tfjob.controller.job.commands import TOLD_AT_ONCE, TOLD_S
from elastic_tfjob.controller.job.cpu import possible_cpu
from elastic_tfjob.controller.job.decision import SendCommand, TryPods
from elastic_tfjob.controller.job.figures import NUMBERS_S, tells_numbers, with_numbers
from elastic_tfjob.controller.job.injection import injection_settled, why_not
from elastic_tfjob.controller.job.outcome import with_outcome
from elastic_tfjob.controller.job.reconcile_pass import Pass
from elastic_tfjob.controller.job.replicas import creation
from elastic_tfjob.controller.job.rescale import advance
from elastic_tfjob.controller.job.rescale_input import RescaleInput
from elastic_tfjob.controller.job.stored_state import room_for, save_state, stored_or_first
from elastic_tfjob.controller.objects.state import State
from elastic_tfjob.controller.objects.target import Target


def state_of(p: Pass) -> State | None:
    """The state of a job that follows a target; None for one that does not, or has no room for a state."""
    if not (p.waits_for_target or p.elastic or p.stored):
        return None
    state = stored_or_first(p)
    return state if room_for(p, state) else None


def follow(p: Pass) -> None:
    """Take the size that the job runs with from its state, and the next step from its target."""
    stored_first = injection_settled(p)
    if (state := p.state) is None:
        return
    situation = _rescale_input(p, state)
    step = advance(situation)
    if stored_first:
        step = replace(step, hold=True)
        p.look_again(0.0)
    p.step = step
    p.events += step.events
    p.counts += step.tallies
    if state.replicas:
        p.spec = p.sizes.spec(state.replicas)
    for role, command in step.commands.items():
        pod = situation.by_role[role]
        p.actions.append(SendCommand(pod.name, pod.uid, command))
    if len(step.commands) >= TOLD_AT_ONCE:
        p.look_again(TOLD_S)
    p.delete_pods(step.delete, mark=True)
    if step.tries is not None:
        p.actions.append(_attempt(p, state, step.tries))
    report = p.chief_report
    kept = with_numbers(state, step.state, report, p.elasticity.total_steps, p.time, planned=p.forecast)
    kept, tallies = with_outcome(kept, situation.target, report, p.time)
    p.counts += tallies
    save_state(p, kept)
    if step.state.phase != state.phase:
        p.look_again(0.0)
    elif step.again_s is not None:
        p.look_again(step.again_s)
    elif not tells_numbers(kept, report):
        p.look_again(NUMBERS_S)  # nobody wakes us again for what it was too early to store


def _rescale_input(p: Pass, state: State) -> RescaleInput:
    rescale = p.elasticity.rescale
    return RescaleInput(
        job=p.job,
        spec=p.declared,
        sizes=p.sizes,
        state=state,
        target=_target(p, state),
        now=p.time,
        pods=p.pods,
        reports=p.reports,
        listened_s=p.listened_s,
        elastic=p.elastic,
        stoppable=p.stoppable,
        launcher=_has_launcher(p),
        mode=rescale if rescale in ("overlap", "spare", "recreate") else "overlap",  # type: ignore[arg-type]
        timeouts=p.settings.timeouts,
        refused_pods=p.refused_pods,
        admission=p.admission,
    )


def _attempt(p: Pass, before: State, after: State) -> TryPods:
    """One pod of each type of the size to come, a new one where there is one: those of a type differ in their index."""
    coming = copy(p)
    coming.state = after
    more = {name for name, count in after.replicas.items() if count > before.replicas.get(name, 0)}
    fewer = any(count > after.replicas.get(name, 0) for name, count in before.replicas.items())
    counts = {name: count for name, count in after.replicas.items() if count}
    pods = tuple(creation(coming, name, after.pods(name)[-1]) for name in counts)
    return TryPods(after.generation, pods, tuple(counts.values()), quota=bool(more) and not fewer)


def _target(p: Pass, state: State) -> Target | None:
    """The job's target, with the CPU that its pods can have."""
    target = p.own(Target.of)
    if target is None or not p.refused or target.replicas != state.replicas:
        return target
    p.look_again(min((until - p.time).total_seconds() for until in p.refused.values()))
    return replace(target, cpu=possible_cpu(p, target.cpu))


def _has_launcher(p: Pass) -> bool:
    """Whether all of the job's pods have a launcher; the user is told why where they could and have not."""
    launcher = inject.has_launcher(p.elasticity, p.declared)
    if p.elasticity.injected(p.declared) == "none":
        return launcher
    if types := inject.on_windows(p.declared):
        message = (
            f"{', '.join(types)}: pods run on Windows, so nothing is injected, and rescales stop the job (recreate)"
        )
        p.event("Warning", "LauncherNotInjected", message)
    if p.state is not None and p.state.injection is not None and p.state.injection.refused:
        p.event("Warning", "LauncherNotInjected", why_not(p.state.injection))
        return False
    if launcher and not p.settings.image:
        p.event("Warning", "LauncherNotInjected", "the operator does not know its own image: give it --image")
        return False
    if missing := inject.without_command(p.declared):
        message = f"{', '.join(missing)}: container tensorflow has no command, so rescales stop the job (recreate)"
        p.event("Warning", "LauncherNotInjected", message)
    return launcher
