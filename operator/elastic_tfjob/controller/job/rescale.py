"""Changes the size of a running job: prepare the next size beside the running one, then switch. Pure.

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

Training has not stopped, and everything can be undone, until the chief's launcher has committed the switch. The
launcher decides alone, in the pod: either its program has saved and the new one is ready, or not. The operator only
learns the result, so neither an operator crash nor a slow API server prolongs the pause. The next rescale begins when
the chief has made a step and all pods know which generation runs.

If a committed size never makes a step, all pods are recreated at the last size that trained. This happens once. If no
step follows there either, the job is left to its restart policy.

A phase is stored before any action that follows from it. `advance` returns the actions that the stored phase calls for,
and perhaps the next state. The operator can therefore be killed at any point and continues from the annotation.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from elastic_tfjob.controller.job import stopping
from elastic_tfjob.controller.job.commands import run_commands, send_commands
from elastic_tfjob.controller.job.context import COMMANDS_INTERVAL_S, COMMANDS_PER_PASS, ReconcileContext
from elastic_tfjob.controller.job.cpu import holds_more
from elastic_tfjob.controller.job.follow_target import admit, follow_target, size_of
from elastic_tfjob.controller.job.injection import injection_when_started
from elastic_tfjob.controller.job.memory import killed_since
from elastic_tfjob.controller.job.moves import (
    describe_change,
    describe_role,
    describe_stay,
    on_one_line,
)
from elastic_tfjob.controller.job.pods import Pods, Role, pods_of, pods_of_both, roles_of
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
    may_hand_over,
    misses_checkpoints,
    never_begins,
    refused_a_node,
    reports_no_steps,
    runs_a_program,
    templates_digest,
)
from elastic_tfjob.controller.model.command import STOP_COMMAND
from elastic_tfjob.controller.model.reports import Report
from elastic_tfjob.controller.model.state import (
    MOST_DEATHS,
    Deaths,
    Next,
    Phase,
    Refused,
    Rescaled,
    StoredState,
    Trained,
)
from elastic_tfjob.controller.model.status import moment_of
from elastic_tfjob.controller.model.target import Cpu, words

# Number of container ends, while a size is prepared, after which the size is given up: a single one may be chance.
_DEATHS: Final = 2
# Seconds for which added pods wait until running ones have given up lent CPU. kube-scheduler would find no room for
# them, and try again only after a while.
_GIVES_UP_CPU_S: Final = 3.0


def advance(ctx: ReconcileContext) -> StoredState:
    """Does one step of the rescale, if there is one to do: adds its actions to the context, and returns the state to
    store."""
    return _with_trained(ctx, _advance(ctx))


def _advance(ctx: ReconcileContext) -> StoredState:
    match ctx.current.phase:
        case "Waiting":
            return admit(ctx)
        case "Stable":
            return follow_target(ctx)
        case "Preparing":
            return _preparing(ctx)
        case "Checkpointing":
            return _checkpointing(ctx)
        case "RollingBack":
            return _rolling_back(ctx)
        case "Switching":
            return _switching(ctx)
        case "Recreating":
            return _recreating(ctx)


def _with_trained(ctx: ReconcileContext, state: StoredState) -> StoredState:
    """Returns the state with the newest generation that has made a step. If the program reports no steps, this is the
    newest generation whose pods have all run."""
    known = state.trained.generation if state.trained is not None else None
    if known == state.generation or state.generation != ctx.current.generation or not state.replicas:
        return state
    report = ctx.report(ctx.chief)
    if _has_begun(ctx, report) or (state.phase == "Stable" and reports_no_steps(ctx, report) and all_run(ctx)):
        return replace(state, trained=Trained(state.generation))
    return state


def _has_begun(ctx: ReconcileContext, report: Report | None) -> bool:
    """Whether the chief has made a step of the running generation."""
    return report is not None and report.generation == ctx.current.generation and report.first_step_at is not None


def _preparing(ctx: ReconcileContext) -> StoredState:
    coming = ctx.coming
    pods = ctx.by_role
    running = set(roles_of(ctx.current))
    added = [role for role in roles_of(coming) if role not in running]
    # A new pod of such a role follows when the old one has ended.
    ending = {role for role in added if role in pods and pods[role].terminating}
    # Added pods have host names only when they run. A program that looked them up earlier would get a negative answer,
    # which name services cache for half a minute.
    ready_to_begin = not ending and all(role in pods and pods[role].phase == "Running" for role in added)
    # In mode `live` the other programs stay. The chief's takes part, so that its report tells when it has given up.
    changing = [*added, ctx.chief] if coming.mode == "live" else roles_of(coming)
    if ctx.chief_moves:
        changing.append(ctx.chief)  # for the same reason
    recipients = added
    if ready_to_begin:
        recipients = [role for role in changing if role not in running or runs_a_program(ctx, role)]
    ctx.wanted = pods_of_both(ctx.current, coming)
    if pods.keys().isdisjoint(added) and ctx.elapsed_s < _GIVES_UP_CPU_S and holds_more(ctx, coming):
        ctx.wanted = pods_of(ctx.current)
    ctx.send(send_commands(ctx, recipients, "prepare", coming))
    ctx.look_again(1.0)
    there = [role for role in roles_of(coming) if role not in ending or pods[role].unreachable]
    if problem := _withdrawn(ctx) or lost_replica(ctx, [ctx.chief, *there]):
        return _roll_back(ctx, problem)
    if no_room := has_no_room(ctx, added):
        back = _roll_back(ctx, f"the new {no_room}")
        return replace(back, next=replace(coming, no_room=True))
    since = moment_of(ctx.current.since)
    two = running.intersection(roles_of(coming))  # a pod that is moved runs no second program
    if coming.mode == "overlap" and since is not None and (killed := killed_since(ctx, since, two)):
        return _roll_back(ctx, f"{killed[0]} had no memory for a second program: the kernel killed one", for_good=True)
    if problem := cannot_prepare(ctx, [role for role in added if role not in ending]):
        return _roll_back(ctx, problem)
    missing = [role for role in changing if not is_prepared(ctx, role)]
    if (ended := ctx.restarts - coming.restarts) >= _DEATHS:
        # The prepared program brings the container down with it, for example by its memory.
        why = f"containers of running pods ended {ended} times while the next size was prepared"
        return _roll_back(ctx, why, blamed=roles_of(ctx.current))
    if missing and ctx.unheard_s > ctx.timeouts.prepare_s:
        names = ", ".join(
            f"{describe_role(role)}{' (its old pod has not ended)' if role in ending else ''}" for role in missing[:5]
        )
        # A prepared program may wait for something that the running one holds, such as a lock. It may also wait for the
        # added pods, so it is blamed only once these run.
        stuck = [role for role in missing if role in running and is_preparing(ctx, role)] if ready_to_begin else []
        back = _roll_back(ctx, f"not ready after {ctx.timeouts.prepare_s:.0f} s: {names}", blamed=stuck)
        next_chief = pods.get(ctx.coming_chief)
        if ctx.chief_moves and next_chief is not None and next_chief.node and next_chief.phase == "Pending":
            # It may wait for a volume that one node at a time can mount.
            back = replace(back, chief_alone=templates_digest(ctx.declared))
        return back
    if problem := misses_checkpoints(ctx):
        # A file system may show another machine's files late.
        return _roll_back(ctx, problem) if ctx.unheard_s > ctx.timeouts.cancel_s else ctx.current
    if missing:
        return ctx.current
    chief = pods.get(ctx.coming_chief)
    ends = chief.last_end if chief is not None else None
    counted = replace(coming, restarts=_restarts(ctx), chief_deaths=ends.deaths if ends is not None else 0)
    prepare_s = ctx.elapsed_s if added else ctx.current.prepare_s
    return replace(_enter(ctx, "Checkpointing"), next=counted, prepare_s=prepare_s)


def _checkpointing(ctx: ReconcileContext) -> StoredState:
    coming = ctx.coming
    # In mode `overlap` complete programs are ready, so only the chief has to act. In mode `spare` the programs of all
    # replicas start together with the chief's.
    recipients = roles_of(coming) if coming.mode == "spare" else [ctx.chief]
    if ctx.chief_moves:
        recipients.append(ctx.coming_chief)
    # A chief's pod that is gone may have left for the next one: until that is certain, none takes its place.
    ctx.wanted, ctx.hold = pods_of_both(ctx.current, coming), ctx.chief_moves
    ctx.send(send_commands(ctx, recipients, "switch", coming))
    ctx.look_again(1.0)
    chief, report = ctx.chief_pod, ctx.chief_report
    if _is_committed(ctx):
        return _committed(ctx)
    if (chief is None or chief.ended or chief.terminating) and ctx.next_chief_unheard:
        return ctx.current
    if chief is not None and fails_for_good(ctx, ctx.chief):
        # It is no longer known whether the chief had committed, and the failure may come from a program that it ran for
        # us.
        here = Trained(ctx.current.generation, ctx.current.replicas, ctx.current.nodes, ctx.current.cpu)
        return _return(ctx, here, f"{describe_role(ctx.chief)}: {chief.last_end or 'the pod failed'}")
    if chief is None or chief.terminating or chief.phase != "Running":
        return _roll_back(ctx, f"{describe_role(ctx.chief)} ended before it saved a checkpoint")
    if lost := lost_replica(ctx, [ctx.chief, *roles_of(coming)]):
        return _roll_back(ctx, lost)
    if report is not None and report.switch is not None and report.switch.generation == coming.generation:
        if report.switch.state == "refused" and coming.mode == "live":
            return _fall_back(ctx, report.switch.why)
        if report.switch.state == "refused":
            return _roll_back(ctx, f"no checkpoint: {report.switch.why}")
    # The launcher gives up first; this limit is for a launcher that does not answer.
    if ctx.unheard_s > ctx.timeouts.checkpoint_s + ctx.timeouts.cancel_s:
        return _roll_back(ctx, f"no checkpoint and no answer from {describe_role(ctx.chief)} for {ctx.elapsed_s:.0f} s")
    return ctx.current


def _is_committed(ctx: ReconcileContext) -> bool:
    """Whether the chief's launcher has decided the switch: it runs the coming generation, or it has left for a chief in
    another pod, which may run already."""
    reports, coming = (ctx.chief_report, ctx.report(ctx.coming_chief)), ctx.coming.generation
    return any(
        report is not None
        and (
            report.generation == coming
            or (report.switch is not None and (report.switch.generation, report.switch.state) == (coming, "committed"))
        )
        for report in reports
    )


def _fall_back(ctx: ReconcileContext, why: str) -> StoredState:
    """The chief's program kept its workers: the same size is prepared beside it. Its added pods stay."""
    coming, state = ctx.coming, ctx.current
    mode, _ = choose_mode(ctx, live=False)
    if mode not in ("overlap", "spare"):
        return _roll_back(ctx, f"the workers did not change: {why}")
    change = describe_change(coming.before, coming.replicas)
    ctx.event("Normal", "Rescaling", f"{change} ({mode}): {coming.reason}; not live: {on_one_line(why)}")
    return replace(_enter(ctx, "Preparing"), next=replace(coming, mode=mode, slot=1 - state.slot))


def _rolling_back(ctx: ReconcileContext) -> StoredState:
    """Cancels the switch at the chief first, which may commit until it has given up; the other pods follow. A lost
    chief is deleted without waiting for it: whatever it does, it never trains again."""
    coming, lost = ctx.coming, ctx.lost(ctx.chief)
    # Added pods stay until it is certain whether the switch was committed.
    ctx.wanted, ctx.hold = pods_of_both(ctx.current, coming), ctx.chief_moves
    ctx.send(send_commands(ctx, [ctx.chief], "run", None))
    ctx.look_again(1.0)
    chief, report = ctx.chief_pod, ctx.chief_report
    gone = chief is None or chief.ended
    if (ctx.chief_moves or not gone) and _is_committed(ctx):
        return _committed(ctx)
    cancelled = (
        report is not None
        and report.generation == ctx.current.generation
        and report.prepared is None
        and (report.switch is None or report.switch.state not in ("changing", "saving"))
    )
    gone = gone or (lost and chief is not None and chief.terminating)
    if gone and ctx.chief_moves and (pod := ctx.by_role.get(ctx.coming_chief)) and not pod.ended:
        # It may have begun by the chief's word. It saves if it has, and ends before the chief's next pod begins.
        if not ctx.next_chief_unheard:
            ctx.delete_pods((pod,), mark=True)
        return ctx.current
    if gone or cancelled:
        refused = Refused(coming.generation, ctx.current.reason, ctx.now_text, coming.no_room)
        return replace(_enter(ctx, "Stable"), next=None, refused=refused, cpu=_cpu_left(ctx))
    if (lost or ctx.unheard_s > ctx.timeouts.cancel_s) and chief is not None and not chief.terminating:
        # The chief's state is unknown. Once recreated, it continues from the newest checkpoint.
        ctx.delete_pods((chief,), mark=True)
    return ctx.current


def _cpu_left(ctx: ReconcileContext) -> Cpu:
    """Returns the CPU of the size that stays, without the CPU that its pods gave up for the size that failed: a plan
    may have given that to other jobs. The next plan sets the CPU of these pods."""
    left: dict[str, tuple[int, ...]] = {}
    for name, values in ctx.current.cpu.items():
        pods = [ctx.by_role.get((name, index)) for index in ctx.current.pods(name)]
        held = [pod.cpu.request_millicores if pod is not None else 0 for pod in pods]
        left[name] = tuple(min(value, has or value) for value, has in zip(values, held, strict=False))
    return left


def _switching(ctx: ReconcileContext) -> StoredState:
    coming, state = ctx.coming, ctx.current
    ctx.look_again(1.0)
    chief, report = ctx.chief_pod, ctx.chief_report
    heard = _has_begun(ctx, report)
    silent = is_silent(ctx, report) and chief is not None and chief.phase == "Running"
    saves = report is not None and report.handing_over
    limit_s = ctx.timeouts.recreate_s if saves or coming.mode == "recreate" else ctx.timeouts.switch_s
    chief_lost = ctx.lost(ctx.chief)
    late = chief_lost or ctx.unheard_s > limit_s
    if coming.mode == "overlap" and not late and may_hand_over(ctx, report):
        # The old pods' programs have the values, until the chief's previous one has saved them.
        ctx.wanted = _and_all_there(ctx, pods_of(state))
        ctx.send(send_commands(ctx, [ctx.chief], "run", None))
    else:
        ctx.wanted = pods_of(state)
        ctx.send(run_commands(ctx))
    # A pinned pod that cannot be scheduled is placed elsewhere, but only a Stable job is placed.
    refused = "" if heard else refused_a_node(ctx, [role for role, pod in ctx.by_role.items() if pod.pinned])
    failed = ""
    if (state.way_back is not None or coming.returns) and not (heard or silent or refused or chief_lost):
        failed = never_begins(ctx, limit_s)
        if state.way_back is not None:
            return _return(ctx, state.way_back, failed) if failed else state
    if not ((heard and all_heard(ctx) and not saves) or silent or late or refused or failed):
        return state
    downtime_s = report.downtime_s if heard and report is not None else None
    if downtime_s is None and coming.mode == "recreate" and not (late or refused):
        downtime_s = ctx.elapsed_s
    lost = report.lost_steps if heard and report is not None else None
    now = ctx.now_text
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
        forgiven=state.forgiven + max(0, _restarts(ctx) - coming.restarts),
        deaths=state.deaths.without(coming.mode) if heard and state.deaths is not None else state.deaths,
    )
    in_memory = ", in memory" if report is not None and report.switch is not None and report.switch.in_memory else ""
    change = f"{describe_change(coming.before, coming.replicas)} ({coming.mode}{in_memory})"
    if refused and not late:
        ctx.event("Warning", "Rescaled", f"{change}, but {refused}")
    elif failed:
        settled = replace(settled, trained=None)  # the return was tried once; from now on the usual rules apply
        message = (
            f"{change}, but no step was made at this size either: {on_one_line(failed)}. From now on its restart "
            "policy applies"
        )
        ctx.event("Warning", "ReturnFailed", message)
    elif chief_lost:
        ctx.event("Warning", "Rescaled", f"{change}, but {lost_replica(ctx, [ctx.chief])}: {coming.reason}")
    elif late and not heard:
        ctx.event("Warning", "Rescaled", f"{change}, but no step was reported for {limit_s:.0f} s: {coming.reason}")
    else:
        pause = "" if downtime_s is None else f" in {downtime_s:.2f} s"
        steps = "" if lost is None else f", {lost} steps lost"
        ctx.event("Normal", "Rescaled", f"{change}{pause}{steps}: {coming.reason}")
    ctx.count("rescales", label=state.cause(coming))
    return settled


def _and_all_there(ctx: ReconcileContext, wanted: Pods) -> Pods:
    """These pods, and all that exist, without that of a chief that has left for another pod: servers of an earlier size
    may hold values that the chief saves."""
    there = [role for role, pod in ctx.by_role.items() if not pod.leads]
    return {name: sorted({*indexes, *(at for kind, at in there if kind == name)}) for name, indexes in wanted.items()}


def _return(ctx: ReconcileContext, back: Trained, why: str) -> StoredState:
    """Recreates all pods at the last size that trained. The failed size has lost no progress, as it made no step."""
    coming, state = ctx.coming, ctx.current
    why = on_one_line(why)
    newest = max(coming.generation, ctx.target.generation if ctx.target is not None else 0)
    returns = Next(
        generation=newest + 1,
        slot=state.slot,
        mode="recreate",
        replicas=back.replicas,
        before=coming.replicas,
        nodes=back.nodes,
        cpu=back.cpu,
        reason="returns to the last size at which it trained",
        returns=True,
    )
    where = f"with {words(back.replicas)}" if back.replicas != coming.replicas else "on its previous nodes"
    change = describe_change(coming.before, coming.replicas)
    message = f"{change} ({coming.mode}), but no step was made: {why}. Training continues {where}"
    ctx.event("Warning", "RescaleUndone", message)
    ctx.count("roll_backs", label=state.cause(coming))
    ctx.wanted, ctx.hold = _and_all_there(ctx, pods_of(state)), True
    refused = Refused(coming.generation, why, ctx.now_text)
    return replace(_enter(ctx, "Recreating"), reason=why, next=returns, refused=refused)


def _restarts(ctx: ReconcileContext) -> int:
    """Returns the restarts of all containers of the job, as `backoffLimit` counts them."""
    return sum(pod.restarts for pod in ctx.by_role.values() if pod.phase == "Running")


def _recreating(ctx: ReconcileContext) -> StoredState:
    """Deletes the chief first, while its parameter servers still run, so that it can save. Before that, all pods are
    marked: pods that end because the chief is gone have not failed. A lost chief is not waited for, since the other
    pods hold capacity that other jobs need. New pods are created when all old ones are gone, a lost chief included."""
    coming, pods, state = ctx.coming, ctx.by_role, ctx.current
    chief = ctx.chief_pod
    ctx.wanted, ctx.hold = pods_of_both(state, coming), True
    if chief is not None and not chief.ended:
        ctx.wanted = _and_all_there(ctx, ctx.wanted)
    stop = state.stop if not coming.replicas else None
    if stop is not None and not stop.ended:
        stop = stopping.judge(ctx, stop)
        if not stop.ended:
            ctx.send(send_commands(ctx, [ctx.chief], "save", None))
        ctx.look_again(1.0)
        return replace(state, stop=stop)
    unmarked = [role for role, pod in pods.items() if not (pod.stopped_by_us or pod.terminating or pod.ended)]
    if unmarked and ctx.elapsed_s < ctx.timeouts.recreate_s:  # an API server may refuse marks permanently
        ctx.send(dict.fromkeys(unmarked[:COMMANDS_PER_PASS], STOP_COMMAND))
        ctx.look_again(COMMANDS_INTERVAL_S)
        return state
    ctx.look_again(5.0)
    lost = ctx.lost(ctx.chief)
    if chief is not None and not (chief.ended or lost):
        ctx.delete_pods((chief,), mark=True)
        return state
    if pods:
        if lost and any(not pod.terminating for role, pod in pods.items() if role != ctx.chief):
            away = f"{describe_role(ctx.chief)} is on a node that does not answer"
            ctx.event("Warning", "ChiefLost", f"{away}, so the other pods do not wait for it")
        ctx.delete_pods(pods.values(), mark=True)
        return state
    if coming.replicas and coming.generation == state.generation:  # the same pods, without the injected containers
        ctx.look_again(0.0)
        return replace(_enter(ctx, "Stable"), next=None)
    if coming.replicas:
        begun = replace(_committed(ctx), injection=injection_when_started(state.injection))
        # The pause is counted from the end of the old pods. The time limit of the first step is not, if a lost node
        # kept one of them for long: that delay is not the new size's fault.
        return replace(begun, since=state.since) if ctx.elapsed_s < ctx.timeouts.recreate_s / 2 else begun
    if stop is not None:
        stopping.stopped(ctx, stop)
    return replace(
        _enter(ctx, "Waiting"),
        reason=stop.reason if stop is not None else state.reason,
        replicas={},
        nodes={},
        cpu={},
        next=None,
        slot=0,
        indexes={},
        trained=None,
        forgiven=0,
    )


def _enter(ctx: ReconcileContext, phase: Phase) -> StoredState:
    return replace(ctx.current, phase=phase, since=ctx.now_text)


def _roll_back(ctx: ReconcileContext, why: str, *, blamed: Sequence[Role] = (), for_good: bool = False) -> StoredState:
    """Begins the rollback. `blamed` are replicas in which a second program cannot start beside the running one, and
    `for_good` says that it never will."""
    coming = ctx.coming
    why = on_one_line(why)
    message = describe_stay(ctx.current.replicas, coming.replicas, why)
    if ctx.current.causes.get(coming.generation) == "asked":
        message = f"{message}. The operator retries the requested size, after longer and longer pauses"
    ctx.event("Warning", "RescaleRolledBack", message)
    ctx.count("roll_backs", label=ctx.current.cause(coming))
    return replace(_enter(ctx, "RollingBack"), reason=why, deaths=_deaths(ctx, why, blamed, for_good=for_good))


def _deaths(ctx: ReconcileContext, why: str, blamed: Sequence[Role], *, for_good: bool) -> Deaths | None:
    """Returns the stored deaths of programs that were prepared beside a running one. An added replica has no running
    program beside it, so its deaths have another cause and are not counted."""
    coming, running = ctx.coming, set(roles_of(ctx.current))
    failed = blamed or [role for role in roles_of(coming) if has_failed_to_prepare(ctx, role)]
    if not for_good and (coming.mode == "recreate" or not failed or not running.issuperset(failed)):
        return ctx.current.deaths
    known = known_deaths(ctx) or Deaths(templates_digest(ctx.declared))
    for _ in range(MOST_DEATHS if for_good else 1):
        known = known.count(coming.mode, why)
    return known


def _committed(ctx: ReconcileContext) -> StoredState:
    """Makes the coming size the job's size: the chief has committed it, or all old pods are gone."""
    coming, state = ctx.coming, ctx.current
    trained = state.trained
    if trained is not None and trained.generation == state.generation:
        trained = replace(trained, replicas=state.replicas, nodes=state.nodes, cpu=state.cpu)
    step = size_of(_enter(ctx, "Switching"), coming)
    if coming.mode != "recreate":
        # A chief that moves has left with this checkpoint, or a newer one.
        saved = (max(ctx.newest_checkpoint or 0, coming.saved or 0) or None) if ctx.chief_moves else None
        return replace(step, trained=trained, next=replace(coming, saved=saved))
    return replace(step, trained=trained, next=replace(coming, restarts=0, chief_deaths=0), forgiven=0)


def _withdrawn(ctx: ReconcileContext) -> str:
    """Returns why the coming size is no longer wanted; empty if it still is."""
    coming, target = ctx.coming, ctx.target
    moves_only = coming.replicas == ctx.current.replicas
    if not (ctx.elastic or (ctx.stoppable and moves_only)):
        return "the job's annotations no longer allow rescaling"
    if target is None or target.replicas != coming.replicas:
        return f"the target is now {words(target.replicas)}" if target is not None else "the target was removed"
    if moves_only and target.generation > coming.generation:
        return "the target now has other nodes"
    return ""
