"""Decides whether launcher and exporter are injected into a job's pods: as its namespace admits them, and the same for
all of its pods. Pure.

The API server may refuse a pod with them; kube/trials.py then asks it what it would admit. The answer is stored in the
job's state before any pod is made accordingly, so that another operator continues with the same. Pods of the other kind
are recreated: a job in which only some pods can get a `prepare` command would wait for the other pods.
"""

from dataclasses import replace
from typing import Final

from elastic_tfjob.controller.job.context import ReconcileContext
from elastic_tfjob.controller.model.injection import Injection
from elastic_tfjob.controller.model.state import Next, StoredState
from elastic_tfjob.controller.model.status import format_time, moment_of

__all__ = ["injection_settled", "injection_when_started", "why_not"]

# Seconds after which a job without any pod tries injection again: a quota may have changed.
_AGAIN_S: Final = 300.0
# Characters of the API server's message in an event, which has space for 1,024.
_SENTENCE: Final = 500


def injection_settled(ctx: ReconcileContext) -> bool:
    """Adopts what the API server was found to admit. Returns whether that is new, and has to be stored before any pod
    is made accordingly. While a size is prepared or switched to, the job keeps its present injection: a refusal is then
    a reason to roll back."""
    state = ctx.state
    if state is None or not _is_settled(state):
        return False
    found, known = ctx.found_injection, state.injection
    if known is not None and known.refused:
        ctx.state = replace(state, injection=None) if _may_try_again(ctx, known) else _all_without(ctx, state)
        return ctx.state is not state
    if found is None:
        return False
    ctx.state = replace(state, injection=replace(found, at=ctx.now_text, recreated=False))
    if found.recreated and found.resources:
        ctx.state = _all_recreated(ctx, ctx.state, "its pods fit into the namespace's quota if they request less")
    if found.resources:
        ctx.event(
            "Normal",
            "InjectionAdapted",
            f"The injected containers get requests and limits that the namespace admits: {_words(found)}",
        )
    else:
        ctx.state = _all_without(ctx, ctx.state)
    return True


def injection_when_started(injection: Injection | None) -> Injection | None:
    """Returns the injection of a job whose pods are all recreated: a refused one is tried again, adapted resources are
    kept."""
    return None if injection is None or injection.refused else replace(injection, tries=0)


def why_not(injection: Injection) -> str:
    """Returns why pods run without launcher and exporter, and what would change that; empty if they have them."""
    if not injection.refused:
        return ""
    return (
        f"the namespace refuses pods with launcher and exporter, so they run without: {injection.refused[:_SENTENCE]}. "
        "Rescales stop the job (recreate). Let the namespace admit the container elastic-tfjob-exporter "
        "(docs/elastic.md#namespaces-with-rules); the operator retries when the job's pods are recreated"
    )


def _is_settled(state: StoredState) -> bool:
    recreated = state.phase == "Switching" and state.next is not None and state.next.mode == "recreate"
    return state.phase == "Stable" or recreated


def _may_try_again(ctx: ReconcileContext, injection: Injection) -> bool:
    since = moment_of(injection.at)
    if ctx.pods:
        return False
    left_s = _AGAIN_S - (ctx.now - since).total_seconds() if since is not None else 0.0
    if left_s > 0:
        ctx.look_again(left_s)
    return left_s <= 0


def _all_without(ctx: ReconcileContext, state: StoredState) -> StoredState:
    """Returns the state in which all pods are recreated without injected containers, if some have them."""
    return _all_recreated(ctx, state, "some of its pods are refused with launcher and exporter, so all run without")


def _all_recreated(ctx: ReconcileContext, state: StoredState, why: str) -> StoredState:
    if not any(pod.injected and not pod.ended for pod in ctx.pods):
        return state
    same = Next(
        generation=state.generation,
        slot=state.slot,
        mode="recreate",
        replicas=state.replicas,
        before=state.replicas,
        nodes=state.nodes,
        cpu=state.cpu,
        reason=why,
        indexes=state.indexes,
    )
    return replace(state, phase="Recreating", since=format_time(ctx.now), next=same)


def _words(injection: Injection) -> str:
    return ", ".join(f"{kind} {dict(amounts)}" for kind, amounts in injection.resources.items())
