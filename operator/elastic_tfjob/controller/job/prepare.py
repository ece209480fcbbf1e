"""Chooses a job's rescaling mode: `live`, `overlap`, `spare` or `recreate`. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Final

import orjson

from elastic_tfjob.api.tfjob import TFJobSpec
from elastic_tfjob.api.words import count_in_words
from elastic_tfjob.controller.job.context import ReconcileContext
from elastic_tfjob.controller.job.inject import needs_accelerator
from elastic_tfjob.controller.job.memory import request_memory_beside
from elastic_tfjob.controller.job.moves import Move, describe_role, on_one_line
from elastic_tfjob.controller.job.pods import Role, roles_of
from elastic_tfjob.controller.model.pod import Pod, retried
from elastic_tfjob.controller.model.reports import Prepared, Report
from elastic_tfjob.controller.model.state import MOST_DEATHS, Deaths
from elastic_tfjob.controller.model.status import moment_of
from elastic_tfjob.controller.model.target import Mode

# Memory of a second program, by what the first one holds: a parameter server receives its values in parts, and for a
# moment has some of them twice. Measured: 1.2 and 1.3.
_SECOND_PROGRAM: Final = 1.0
_SECOND_SERVER: Final = 1.4
# Bytes that are asked for beyond what two programs use: the first one goes on growing.
_MARGIN: Final = 128 << 20
# A program that makes steps has told its launcher that it can be rescaled; after this time, the launcher has checked
# it.
_MODES_S: Final = 5.0
# A program that was started fewer seconds ago may still construct ElasticCheckpoint, whatever its launcher reports.
_HOOK_S: Final = 30.0
# Seconds for which a change of workers waits until all pods are heard, before another program is started for it.
_ALL_HEARD_S: Final = 20.0
# Modes in which a program starts beside the running one, best first.
_TWO_PROGRAMS: Final[tuple[Mode, ...]] = ("overlap", "spare")


def choose_mode(
    ctx: ReconcileContext, moving: Sequence[Move] = (), *, numbered: bool = True, live: bool = True
) -> tuple[Mode | None, str]:
    """Returns the best rescaling mode that is allowed and possible, and why it is no better one, unless the user chose
    it. The mode is None if it is not known yet; the text is then what is waited for. `moving` replicas get a second pod
    beside theirs if these pods can be `numbered`. Without `live`, that mode was tried before."""
    chief, report = ctx.by_role.get(ctx.chief), ctx.report(ctx.chief)
    chief_moves = any(each.role == ctx.chief for each in moving)
    if ctx.target is not None and ctx.target.cause == "notice":
        return "recreate", "the node is taken away before new pods could be ready"
    if not numbered:
        return "recreate", "additional pods would exceed the limit of replicas or of the length of names"
    if ctx.job.queue and (name := _beyond_admitted(ctx, moving)):
        admitted = count_in_words(_admitted(ctx, name), name)
        return (
            "recreate",
            f"Kueue admitted only {admitted} (queue {ctx.job.queue}), so no pods can be prepared beside them",
        )
    if ctx.allowed_mode == "recreate" or not ctx.launcher or chief is None or chief.phase != "Running":
        return "recreate", ""
    if report is None or report.generation != ctx.current.generation or report.first_step_at is None:
        if _without_hook(ctx, chief, report):
            return "recreate", "the program does not use ElasticCheckpoint"
        heard = report is not None and report.generation == ctx.current.generation
        if heard and ctx.target is not None and ctx.target.cause == "repair":
            # The job's nodes are being removed, and a recall has a time limit; only the time since the start is lost.
            return "recreate", f"{describe_role(ctx.chief)} has made no step yet"
        limit_s = ctx.timeouts.hook_s
        if min(ctx.unheard_s, _running_s(ctx, chief)) > limit_s:
            return "recreate", f"{describe_role(ctx.chief)} has not reported a step for {limit_s:.0f} s"
        step = f"waiting until {describe_role(ctx.chief)} reports a step, at most {limit_s:.0f} s"
        return None, f"{step}; after that its pods are recreated"
    if _needs_room_of_its_own(ctx, moving):
        return "recreate", "its new pods fit only after old pods have ended"
    if not report.modes and report.at - report.first_step_at < _MODES_S:
        return None, f"waiting until the launcher of {describe_role(ctx.chief)} reports its modes"
    if chief_moves and "leave" not in report.modes:
        return "recreate", f"{describe_role(ctx.chief)} moves, and its launcher is older than that"
    if chief_moves and ctx.current.chief_alone == templates_digest(ctx.declared):
        return (
            "recreate",
            f"the next pod of {describe_role(ctx.chief)} did not start beside it, perhaps for its volume",
        )
    roles, leaving = roles_of(ctx.current), {each.role for each in moving}
    reports = [found for role in roles if (found := ctx.report(role)) is not None]
    # A pod that is moved runs no second program.
    two = {role: found for role in roles if role not in leaving and (found := ctx.report(role)) is not None}
    offered = set.intersection(*(set(each.modes) for each in two.values())) if two else {"overlap"}
    why_not_live = ""
    if live and not chief_moves and ctx.allowed_mode == "live" and _only_workers_change(ctx, moving):
        may = not needs_accelerator(ctx.declared)
        if may and "live" in report.modes:
            # A pod of an older operator would replace its program, so all must be heard.
            all_known = [each.generation for each in reports] == [ctx.current.generation] * len(roles)
            live_everywhere = all("live" in each.modes for each in reports)
            if all_known and live_everywhere and not any(map(ctx.lost, roles)):
                return "live", ""
            if not all_known and ctx.unheard_s < _ALL_HEARD_S:
                return None, "waiting until all pods report their modes"
        elif may and report.at - report.first_step_at < _MODES_S:
            # Its launcher learns this some time after the program has constructed ElasticCheckpoint.
            return None, f"waiting until the launcher of {describe_role(ctx.chief)} has checked mode live"
        why_not_live = f"not live: {on_one_line(report.not_live)}" if report.not_live else ""
    deaths, needed = known_deaths(ctx), _memory_for_two(two)
    failed_modes: list[Mode] = [mode for mode in _TWO_PROGRAMS if deaths is not None and deaths.too_many(mode)]
    overlap = ctx.allowed_mode in ("live", "overlap") and "overlap" in offered and not needs_accelerator(ctx.declared)
    if overlap and "overlap" not in failed_modes:
        waits_for = request_memory_beside(ctx, needed) if needed else ""
        if waits_for or not needed:
            return (None, waits_for) if waits_for else ("overlap", why_not_live)
    # The next parameter servers take their variables while the former ones still have them.
    twice = "PS" in needed
    # A new pod has nothing to gain by a spare.
    spare = "spare" in offered and "spare" not in failed_modes and not (chief_moves or twice)
    left: Mode = "spare" if spare else "recreate"
    if failed_modes and deaths is not None:
        names = " and ".join(failed_modes)
        return left, f"in mode {names}, {MOST_DEATHS} programs failed to start beside the running one: {deaths.reason}"
    return left, "a parameter server has no memory for its variables twice" if twice else why_not_live


def _only_workers_change(ctx: ReconcileContext, moving: Sequence[Move]) -> bool:
    before, after = ctx.current.replicas, ctx.target.replicas if ctx.target is not None else {}
    changing = {name for name in {*before, *after} if before.get(name, 0) != after.get(name, 0)}
    return changing | {each.name for each in moving} == {"Worker"}


def known_deaths(ctx: ReconcileContext) -> Deaths | None:
    """Returns the deaths of prepared programs for the job's present templates: an edit of the templates may have
    repaired the program."""
    deaths = ctx.current.deaths
    return deaths if deaths is not None and deaths.template == templates_digest(ctx.declared) else None


def templates_digest(spec: TFJobSpec) -> str:
    """Returns a digest of the pod templates, in 16 characters."""
    templates = {name: replica.template for name, replica in spec.tf_replica_specs.items()}
    return blake2b(orjson.dumps(templates, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()


def _beyond_admitted(ctx: ReconcileContext, moving: Sequence[Move]) -> str:
    """Returns a replica type that would have more pods than Kueue admitted, while pods are prepared beside moving
    ones; empty if there is none."""
    coming = ctx.target.replicas if ctx.target is not None else ctx.current.replicas
    beside = Counter(each.name for each in moving)
    most = {name: max(ctx.current.replicas.get(name, 0), coming.get(name, 0)) for name in beside}
    return next((name for name, more in beside.items() if most[name] + more > _admitted(ctx, name)), "")


def _admitted(ctx: ReconcileContext, name: str) -> int:
    """The pods of a type that Kueue admitted for the job."""
    return ctx.admitted.get(name, ctx.declared_counts[name])


def _needs_room_of_its_own(ctx: ReconcileContext, moving: Sequence[Move]) -> bool:
    """Whether the last change was refused because its new pods did not fit, and this change both adds and removes
    pods."""
    refused, target = ctx.current.refused, ctx.target
    if refused is None or not refused.no_room or refused.generation < ctx.current.generation or target is None:
        return False
    names = {*target.replicas, *ctx.current.replicas}
    changes = [target.replicas.get(name, 0) - ctx.current.replicas.get(name, 0) for name in names]
    return bool(moving) or min(changes) < 0 < max(changes)


def _without_hook(ctx: ReconcileContext, chief: Pod, report: Report | None) -> bool:
    """Whether the chief's program has had time to construct ElasticCheckpoint, and has not. A program that reported
    steps before will report them again when its pod is recreated, however long its imports take."""
    if report is None or report.hook is not False or ctx.current.step is not None:
        return False
    return _running_s(ctx, chief) >= _HOOK_S


def _running_s(ctx: ReconcileContext, chief: Pod) -> float:
    """Returns the seconds since the chief's container was last started."""
    began = moment_of(chief.running_since)
    return ctx.elapsed_s if began is None else (ctx.now - began).total_seconds()


def _memory_for_two(reports: Mapping[Role, Report]) -> dict[str, int]:
    """Returns the bytes that replicas need for a second program, by the types that have less."""
    needed: dict[str, int] = {}
    for (name, _), report in reports.items():
        memory = report.memory
        if memory.used_bytes is None or memory.limit_bytes is None:
            continue
        held = memory.used_bytes if memory.held_bytes is None else memory.held_bytes
        wanted = memory.used_bytes + round(held * (_SECOND_SERVER if name == "PS" else _SECOND_PROGRAM))
        if wanted > memory.limit_bytes:
            needed[name] = max(wanted + _MARGIN, needed.get(name, 0))
    return needed


# -- Progress of a rescale's pods, as reported by them and by kube-scheduler -------------------------------------------

# Number of program ends with an error after which a size is given up.
_DEATHS: Final = 2


def is_silent(ctx: ReconcileContext, report: Report | None) -> bool:
    """Whether the first step of the newly started program is never reported: without a launcher, or after `recreate` of
    a program that has never reported a step, once all of its pods run."""
    if ctx.launcher and (
        ctx.coming.mode != "recreate" or ctx.current.step is not None or (report is not None and report.hook)
    ):
        return False
    return all_run(ctx)


def reports_no_steps(ctx: ReconcileContext, report: Report | None) -> bool:
    """Whether it is known that the running program never reports a step."""
    return not ctx.launcher or (ctx.current.step is None and report is not None and report.hook is False)


def all_run(ctx: ReconcileContext) -> bool:
    """Whether every pod of the job's present size runs, or has succeeded."""
    return all(
        role in ctx.by_role and ctx.by_role[role].phase in ("Running", "Succeeded") for role in roles_of(ctx.current)
    )


def may_hand_over(ctx: ReconcileContext, report: Report | None) -> bool:
    """Whether the chief's previous program may still need the other replicas' previous ones: it saves the values that
    it gave in memory. Not known before the chief is heard."""
    heard = report is not None and report.generation == ctx.current.generation
    return ctx.launcher and (not heard or (report is not None and report.handing_over))


def never_begins(ctx: ReconcileContext, limit_s: float) -> str:
    """Returns why the new size makes no first step; empty while it still may."""
    if refused := ctx.refusal(roles_of(ctx.current)):
        return refused
    for role in roles_of(ctx.current):
        if fails_for_good(ctx, role):
            return f"{describe_role(role)}: {ctx.by_role[role].last_end or 'the pod failed'}"
    chief = ctx.by_role.get(ctx.chief)
    # One end may be chance. For the second one, the program was started for this size alone.
    ended = chief.last_end if chief is not None else None
    if ended is not None and ended.deaths - ctx.coming.chief_deaths >= _DEATHS:
        return f"{describe_role(ctx.chief)}: {ended}"
    if ctx.unheard_s <= limit_s or (_runs_s(ctx, chief) <= limit_s and ctx.unheard_s <= ctx.timeouts.recreate_s):
        return ""
    unheard = f"none was reported for {ctx.unheard_s:.0f} s"
    if no_node := _finds_no_node(ctx):
        return f"{unheard}; {no_node}"
    if missing := [
        role for role in roles_of(ctx.current) if role not in ctx.by_role or ctx.by_role[role].phase == "Pending"
    ]:
        return f"{unheard}; {describe_role(missing[0])} is not running"
    ends = ((role, ctx.by_role[role].last_end) for role in (ctx.chief, *roles_of(ctx.current)) if role in ctx.by_role)
    return next((f"{unheard}; {describe_role(role)}: {end}" for role, end in ends if end is not None), unheard)


def fails_for_good(ctx: ReconcileContext, role: Role) -> bool:
    """Whether a replica's pod has failed by itself, and its restart policy does not replace it."""
    pod = ctx.by_role.get(role)
    if (
        pod is None
        or pod.terminating
        or pod.stopped_by_us
        or pod.not_installed
        or pod.shut_down
        or pod.phase != "Failed"
    ):
        return False
    return not retried(ctx.declared.tf_replica_specs[role[0]].restart, pod.exit_code)


def _runs_s(ctx: ReconcileContext, chief: Pod | None) -> float:
    """Returns the seconds that the chief's program has run at this size. A restarted container, or a pod that was
    drained, gets the full time for its first step again."""
    if chief is None or chief.phase != "Running":
        return 0.0
    began = moment_of(chief.running_since)
    return ctx.elapsed_s if began is None else (ctx.now - began).total_seconds()


def _finds_no_node(ctx: ReconcileContext) -> str:
    """Returns the first replica for which kube-scheduler finds no node, with its message; empty if there is none."""
    for role in roles_of(ctx.current):
        pod = ctx.by_role.get(role)
        if pod is not None and pod.unschedulable and not pod.node:
            return f"{describe_role(role)} cannot be scheduled: {pod.unschedulable}"
    return ""


def cannot_prepare(ctx: ReconcileContext, added: Sequence[Role]) -> str:
    """Returns why the coming size cannot be prepared; empty while it still may."""
    coming, pods = ctx.coming, ctx.by_role
    for role in added:
        pod = pods.get(role)
        if pod is not None and pod.phase in ("Failed", "Succeeded"):
            return f"the new {describe_role(role)} ended"
    for role in roles_of(coming):
        if failed := has_failed_to_prepare(ctx, role):
            return f"{describe_role(role)} could not be prepared: {failed.why}"
    return ""


def has_no_room(ctx: ReconcileContext, added: Sequence[Role]) -> str:
    """Returns the first added replica for which no node or quota has capacity, in words; empty if there is none."""
    return refused_a_node(ctx, added) or ctx.refusal(added)


def has_failed_to_prepare(ctx: ReconcileContext, role: Role) -> Prepared | None:
    """Returns a replica's prepared program of the coming size if it has died, else None."""
    prepared = _prepared(ctx, role)
    return prepared if prepared is not None and prepared.state == "failed" else None


def _prepared(ctx: ReconcileContext, role: Role) -> Prepared | None:
    """Returns a replica's program of the coming size, as its launcher reported it."""
    report = ctx.report(role)
    prepared = report.prepared if report is not None else None
    coming = ctx.coming
    mode = "leave" if role == ctx.chief and ctx.chief_moves else coming.mode
    same = prepared is not None and (prepared.generation, prepared.mode) == (coming.generation, mode)
    return prepared if same else None


def refused_a_node(ctx: ReconcileContext, roles: Iterable[Role]) -> str:
    """Returns the first of these replicas for which kube-scheduler has found no node for so long that it will find
    none, with its message; empty if there is none."""
    for role in roles:
        pod = ctx.by_role.get(role)
        since = moment_of(pod.unschedulable_at) if pod is not None and not pod.node and not pod.terminating else None
        if pod is None or since is None:
            continue
        if min(ctx.elapsed_s, (ctx.now - since).total_seconds()) >= ctx.timeouts.unschedulable_s:
            return f"{describe_role(role)} cannot be scheduled: {pod.unschedulable}"
    return ""


def lost_replica(ctx: ReconcileContext, roles: Iterable[Role]) -> str:
    """Returns the first of these replicas that is lost, in words; empty if there is none."""
    return next((f"{describe_role(role)} is on a node that does not answer" for role in roles if ctx.lost(role)), "")


def is_prepared(ctx: ReconcileContext, role: Role) -> bool:
    """Whether a replica's program of the coming size is ready."""
    prepared, pod = _prepared(ctx, role), ctx.by_role.get(role)
    return pod is not None and not pod.terminating and prepared is not None and prepared.state == "ready"


def misses_checkpoints(ctx: ReconcileContext) -> str:
    """Returns that the chief's next pod is ready, and sees no checkpoint as new as the one that the present pod had
    when the change began; else empty."""
    prepared, saved = _prepared(ctx, ctx.coming_chief), ctx.coming.saved
    if not ctx.chief_moves or prepared is None or prepared.state != "ready":
        return ""
    if (prepared.checkpoint or 0) >= (saved or 0):
        return ""
    before, after = describe_role(ctx.chief), describe_role(ctx.coming_chief)
    sees = "none of the checkpoints" if prepared.checkpoint is None else f"only step {prepared.checkpoint}"
    return f"{after} sees {sees} of {before}, which has saved step {saved}: all nodes must share the checkpoint volume"


def is_preparing(ctx: ReconcileContext, role: Role) -> bool:
    """Whether a replica's program of the coming size has been started and is not ready yet."""
    prepared = _prepared(ctx, role)
    return prepared is not None and prepared.state == "starting"


def runs_a_program(ctx: ReconcileContext, role: Role) -> bool:
    """Whether a replica reports that its program runs. A recreated pod must have started its program first: if
    `prepare` is its launcher's first command, it prepares the coming generation and runs none."""
    report = ctx.report(role)
    return report is not None and report.generation is not None


def all_heard(ctx: ReconcileContext) -> bool:
    """Whether all reporting pods know that the new generation runs. A pod that does not would mistake the next command
    for its first one, and stop the program that trains in favour of the coming one. A lost pod receives nothing, so it
    does not count."""
    reports = (ctx.report(role) for role in roles_of(ctx.current) if role in ctx.by_role and not ctx.lost(role))
    return all(report is None or report.generation in (None, ctx.current.generation) for report in reports)
