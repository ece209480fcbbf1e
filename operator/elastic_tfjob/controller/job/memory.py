"""The memory of a job's replicas: reports kills, and raises memory before the next one. Pure.

Memory is raised for all replicas of a type, so that a pod that comes later has it too. It is stored before any pod is
resized. Where it cannot be raised, a parameter server more is requested, and the chief saves before the kill.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from math import inf
from typing import Final, NamedTuple

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.api.reading import after
from elastic_tfjob.api.words import bytes_in_words
from elastic_tfjob.controller.job.context import ReconcileContext
from elastic_tfjob.controller.job.decision import Change, ResizeMemory
from elastic_tfjob.controller.job.pods import Role
from elastic_tfjob.controller.model.memory import (
    UNSEEN,
    TypeMemory,
    memory_of,
    raised_to,
    why_not_resized,
    without_effect,
)
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.reports import MemoryUse
from elastic_tfjob.controller.model.state import StoredState
from elastic_tfjob.controller.model.status import format_time, moment_of
from elastic_tfjob.scheduling.memory_limit import AGAIN_S, GIVE_UP_S, after_kill, even, fits, forecast, raised, short

# The kubelet and the launcher may both report one kill, so many seconds apart at most.
_SAME_KILL: Final = timedelta(seconds=10)
# How long kills of a job without a state are reported.
_RECENT: Final = timedelta(minutes=10)
# Seconds between two saves of a job that is about to be killed.
_SAVE_S: Final = 60.0
# Seconds for which a change waits for the memory of a second program.
_BESIDE_S: Final = 15.0
# Memory of a pod that may be given back again exceeds its use by this factor.
_SPARE: Final = 1.25


class _Kill(NamedTuple):
    at: datetime
    pod: Pod
    what: str


def follow_memory(ctx: ReconcileContext, state: StoredState, *, numbers_due: bool) -> StoredState:
    """Returns the state with the kills that are new, the memory that these and the forecasts call for and, if
    `numbers_due` or one of these changes, the present use."""
    for problem in without_effect(ctx.elasticity, ctx.written) if ctx.elasticity.max_memory else ():
        ctx.event("Warning", "InvalidAnnotation", problem)
    found = dict(state.memory)
    for name in ctx.declared.tf_replica_specs:
        before = state.memory.get(name, UNSEEN)
        known = _settled(ctx, name, _with_kills(ctx, name, before), state)
        known = _beside(ctx, name, _raised(ctx, name, known, more_kills=_again(before, known)), state)
        if numbers_due or known != before:
            known = _with_use(known, _uses(ctx, name))
        if known != before:
            found[name] = known
    return replace(state, memory=found) if found != state.memory else state


def report_kills(ctx: ReconcileContext) -> None:
    """Reports the kills of a job without a state."""
    for name in ctx.declared.tf_replica_specs:
        for kill in _kills(ctx, name):
            if ctx.now - kill.at < _RECENT:
                ctx.event("Warning", "OutOfMemory", f"{kill.what} {_outlook(ctx, name, kill.pod)}")


def resize_memory(ctx: ReconcileContext) -> None:
    """Gives running pods the memory of their type, in place."""
    for name, replica in ctx.declared.tf_replica_specs.items():
        spec = replica.template.get("spec") or {}
        known = ctx.state.memory.get(name) if ctx.state is not None else None
        if known is None or why_not_resized(spec):
            continue
        wanted = memory_of(spec)
        most = raised_to(wanted, known.beside or 0)
        for pod in ctx.of_type(name):
            if pod.phase != "Running" or pod.terminating or not pod.memory.bound:
                continue
            report = ctx.reports.get(pod.name)
            used = report.memory.used_bytes if report is not None else None
            to = most if known.beside_at else wanted
            change: Change = "less-memory" if to.bound < pod.memory.bound else "memory"
            # A pending raise that was given up is taken back.
            may = to.bound < pod.memory.bound if pod.no_memory_at else to.bound > pod.memory.bound
            if not may and change == "less-memory" and known.beside and pod.memory == most:
                # The kubelet refuses less than is used, and the kernel would kill.
                may = _SPARE * (used or inf) <= to.bound
            if may and to != pod.memory and (pod.uid, change) not in ctx.refused:
                ctx.actions.append(ResizeMemory(pod.name, pod.uid, to, container=pod.trains, change=change))


def request_memory_beside(ctx: ReconcileContext, needed: Mapping[str, int]) -> str:
    """Requests that each replica of these types has so many bytes, while a second program starts beside its own.
    Returns what is waited for; empty if that much is not allowed, or does not come in time."""
    for name, wanted in needed.items():
        since = moment_of(ctx.current.memory.get(name, UNSEEN).beside_at)
        late = since is not None and not 0 <= (ctx.now - since).total_seconds() <= _BESIDE_S
        if wanted > _most(ctx, name, 0) or late:
            return ""
    ctx.beside = needed
    ctx.look_again(1.0)
    return "waiting for the memory of a second program"


def killed_since(ctx: ReconcileContext, since: datetime, roles: Collection[Role]) -> list[str]:
    """Returns the names of pods of these replicas that were killed for memory since then, or had a process killed."""
    found = ((name, kill) for name in ctx.declared.tf_replica_specs for kill in _kills(ctx, name) if kill.at >= since)
    return [kill.pod.name for name, kill in found if (name, kill.pod.index) in roles]


# -- Kills -------------------------------------------------------------------------------------------------------------


def _with_kills(ctx: ReconcileContext, name: str, before: TypeMemory) -> TypeMemory:
    """Reports the kills since the last known one."""
    known, there = before, {str(pod.index) for pod in ctx.of_type(name)}
    for kill in sorted(_kills(ctx, name), key=lambda each: each.at):
        index = str(kill.pod.index)
        last = moment_of(known.killed.get(index))
        if last is not None and kill.at <= last + _SAME_KILL:
            continue
        killed = {each: at for each, at in known.killed.items() if each in there}
        known = replace(known, kills=known.kills + 1, killed={**killed, index: format_time(kill.at)})
        said = f"{kill.what} {_outlook(ctx, name, kill.pod)}"
        # With their number, since repetitions of an event are not written for a while.
        said += f" ({known.kills} kills of {name} so far)" if known.kills > 1 else ""
        ctx.event("Warning", "OutOfMemory", said)
        ctx.count("memory_kills", label=name)
    return known


def _again(before: TypeMemory, known: TypeMemory) -> bool:
    """Whether there are kills since `before`, and not only of replicas that shared their limit with one killed then."""
    at, last = (max(filter(None, map(moment_of, each.killed.values())), default=None) for each in (known, before))
    return known.kills > before.kills and (at is None or last is None or at > last + _SAME_KILL)


def _kills(ctx: ReconcileContext, name: str) -> Iterator[_Kill]:
    for pod in ctx.of_type(name):
        report = ctx.reports.get(pod.name)
        at = moment_of(pod.last_end.killed_at) if pod.last_end is not None else None
        if at is not None:
            yield _Kill(at, pod, f"{pod.name} was killed for memory at its limit of {_limit(pod)}.")
        # A pod's clock may have any time; no kill comes after the report of it.
        killed_at = report.memory.killed_at if report is not None else None
        if report is not None and killed_at is not None and killed_at <= report.at:
            at = after(datetime.fromtimestamp(report.received_at_s, ctx.now.tzinfo), killed_at - report.at)
            what = f"A process in {pod.name} was killed for memory at the pod's limit of {_limit(pod)}."
            yield _Kill(at, pod, what)


def _limit(pod: Pod) -> str:
    return bytes_in_words(pod.memory.limit) if pod.memory.limit else "nothing (the node ran out of memory)"


def _outlook(ctx: ReconcileContext, name: str, pod: Pod) -> str:
    """What follows from a kill, or what the user can do."""
    most, bound = ctx.elasticity.most_memory(name), pod.memory.bound
    if most is None:
        return f"Raise the limit in the template, or let the operator raise it: {PREFIX}max-memory"
    return _why_short(ctx, name, bound) if bound >= _most(ctx, name, bound) else "Its memory is raised"


# -- Raises ------------------------------------------------------------------------------------------------------------


def _most(ctx: ReconcileContext, name: str, limit: int) -> int:
    """The bytes that the operator may give each replica of a type that has `limit` now."""
    most = ctx.elasticity.most_memory(name)
    spec = ctx.declared.tf_replica_specs[name].template.get("spec") or {}
    # Kueue does not know of resizes, and has admitted no more.
    return limit if most is None or ctx.job.queue or why_not_resized(spec) else most


def _settled(ctx: ReconcileContext, name: str, known: TypeMemory, state: StoredState) -> TypeMemory:
    """The memory of a type after its last raise, which is in force, or cannot be so in time."""
    since = moment_of(known.raised_at)
    if known.before is None or since is None:
        return known
    there = [pod for pod in ctx.of_type(name) if not pod.terminating]
    pods = [pod for pod in there if pod.phase == "Running"]
    without_node = [pod for pod in there if pod.unschedulable_at and not pod.node]
    refused = any(each.startswith(f"{ctx.job.name}-{name.lower()}-") for each in ctx.refused_pods)
    full = bool(without_node) or any(pod.no_memory_at for pod in pods)
    if not refused and not full and all(pod.memory.bound >= (known.raised or 0) for pod in pods):
        # Without pods, as in a stopped job, nothing is known; those that come have it from their template.
        return replace(known, before=None, raised_at="") if pods else known
    if state.phase != "Stable" or ctx.now - since < timedelta(seconds=GIVE_UP_S):
        ctx.look_again(GIVE_UP_S)
        return known
    why = "no node has room for more" if full else "the API server refuses more (events FailedCreatePod, ResizeRefused)"
    message = f"{name} keeps {bytes_in_words(known.before)} for each replica: {why}"
    ctx.event("Warning", "MemoryShort", message)
    # What kube-scheduler has no node for keeps its request until it is created again.
    ctx.delete_pods(pod for pod in without_node if pod.memory.bound > (known.before or 0))
    template = memory_of(ctx.written.tf_replica_specs[name].template.get("spec") or {}).bound
    back = known.before if known.before > template else None
    return replace(known, raised=back, before=None, raised_at=ctx.now_text)


def _raised(ctx: ReconcileContext, name: str, known: TypeMemory, *, more_kills: bool) -> TypeMemory:
    """The memory of a type after its kills and by its forecast."""
    if ctx.elasticity.most_memory(name) is None:
        return known
    asked = memory_of(ctx.declared.tf_replica_specs[name].template.get("spec") or {})
    if not (limit := asked.bound):
        return known
    most, rule, uses = _most(ctx, name, limit), ctx.settings.memory, _uses(ctx, name)
    use = max(uses, key=lambda each: forecast(rule, each), default=MemoryUse())
    failed_at = moment_of(known.raised_at) if known.before is None else None
    if failed_at is not None and ctx.now - failed_at < timedelta(seconds=AGAIN_S):
        most = limit
    if more_kills:
        wanted = after_kill(rule, limit, most)
    elif fits(rule, limit, use):
        return known
    else:
        wanted = raised(rule, limit, use, most)
    if wanted > limit:
        if not more_kills:
            said = f"{name} uses {bytes_in_words(use.highest_bytes or 0)} of {bytes_in_words(limit)}"
            said += f", {bytes_in_words(forecast(rule, use))} soon"
            ctx.event("Normal", "MemoryRaised", f"{said}: each replica gets {bytes_in_words(wanted)}")
        ctx.count("memory_raises", label=name)
        before = known.before if known.before is not None else limit
        return replace(known, raised=wanted, before=before, raised_at=ctx.now_text)
    # Beyond its request alone, nothing kills a replica.
    return _prepared_for_kill(ctx, name, known, uses) if asked.limit and short(rule, limit, use) else known


def _prepared_for_kill(ctx: ReconcileContext, name: str, known: TypeMemory, uses: list[MemoryUse]) -> TypeMemory:
    """The memory of a type that will soon be killed, and may have no more: a parameter server more takes a part of it,
    and the chief saves."""
    limit, count = memory_of(ctx.declared.tf_replica_specs[name].template["spec"]).bound, ctx.current.replicas.get(name)
    what = _why_short(ctx, name, limit)
    may = name == "PS" and ctx.elastic and ctx.elasticity.asked(name) is None and not ctx.job.queue and even(uses)
    if may and count and count < ctx.elasticity.bounds(name, ctx.declared_counts[name])[1]:
        known = replace(known, replicas=count + 1)
        what = f"{count + 1} PS are requested, among which the variables are divided"
    ctx.event("Warning", "MemoryShort", f"{name} will soon use all its memory. {what}")
    saved_at = moment_of(known.saved_at)
    if saved_at is None or ctx.now - saved_at >= timedelta(seconds=_SAVE_S):
        known = replace(known, saved_at=ctx.now_text)
    return known


def _why_short(ctx: ReconcileContext, name: str, limit: int) -> str:
    """Why no more memory is given, and what the user can do."""
    if ctx.job.queue:
        return f"Kueue's queue {ctx.job.queue} has admitted {bytes_in_words(limit)}: raise it in the template"
    if why := why_not_resized(ctx.declared.tf_replica_specs[name].template.get("spec") or {}):
        return f"Its template {why}: raise its memory there"
    if (ctx.elasticity.most_memory(name) or 0) > limit:
        return f"More than {bytes_in_words(limit)} could not be had: see the events"
    return f"{PREFIX}max-memory allows no more than {bytes_in_words(limit)}: raise it, or allow more PS (max-ps)"


# -- A second program --------------------------------------------------------------------------------------------------


def _beside(ctx: ReconcileContext, name: str, known: TypeMemory, state: StoredState) -> TypeMemory:
    """The memory of a type with that of a second program, while one is started beside the first."""
    if (wanted := ctx.beside.get(name)) is not None:
        beside = max(wanted, known.beside or 0) if known.beside_at else wanted
        return replace(known, beside=beside, beside_at=known.beside_at or ctx.now_text)
    # Another type may still wait for its memory, or the API server be asked about the size (ctx.tries).
    if known.beside is None or ctx.beside or ctx.tries or (state.next is not None and state.next.mode == "overlap"):
        return known
    most = raised_to(memory_of(ctx.declared.tf_replica_specs[name].template.get("spec") or {}), known.beside)
    holds = any(pod.memory == most and (pod.uid, "less-memory") not in ctx.refused for pod in ctx.of_type(name))
    # This pass may still lend it.
    return replace(known, beside_at="") if holds or known.beside_at else replace(known, beside=None)


# -- Use ---------------------------------------------------------------------------------------------------------------


def _uses(ctx: ReconcileContext, name: str) -> list[MemoryUse]:
    reports = (ctx.reports.get(pod.name) for pod in ctx.of_type(name) if not pod.ended)
    return [report.memory for report in reports if report is not None]


def _with_use(known: TypeMemory, uses: list[MemoryUse]) -> TypeMemory:
    most = max(uses, key=lambda use: use.highest_bytes or 0, default=None)
    if most is None or most.highest_bytes is None:
        return known
    return replace(known, highest=most.highest_bytes, growth_per_s=most.growth_bytes_per_s, limit=most.limit_bytes)
