"""Derives the targets of jobs from a Plan. Pure.

A change becomes a target only if it fits on the nodes in addition to what is used at this moment. A job that is to get
the capacity of another job waits until that job has released it: by then there is a new plan, from a Snapshot with all
reservations.

`view` is the JobView of a job.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, cast

from elastic_tfjob.api.reading import MAX_ANNOTATION_BYTES
from elastic_tfjob.controller.model.annotations import TARGET_ANNOTATION, bytes_of
from elastic_tfjob.controller.model.settings import FIXED
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.controller.planning.core_job import Role
from elastic_tfjob.controller.planning.job_view import JobView
from elastic_tfjob.controller.planning.request import asked_for, decided, refused_target, reserved_size
from elastic_tfjob.controller.planning.reservations import REFUSED, real_name
from elastic_tfjob.scheduling import plan as core
from elastic_tfjob.scheduling.plan import STORED_CAUSES, Plan, substitutes
from elastic_tfjob.scheduling.reasons import Reason, Why, added, as_reason
from elastic_tfjob.scheduling.resources import NOTHING, Resources
from elastic_tfjob.scheduling.room import ANY_NODE
from elastic_tfjob.scheduling.snapshot import NO_MEMORY, OUTGROWN, Memory
from elastic_tfjob.speed.prediction import Rate

__all__ = ["decide", "decide_fixed", "profile_failed", "released", "suspended", "without_plan"]

# Bytes for the annotation's name, and for the job's uid in its value.
_OTHER_BYTES: Final = 256


def _raise(_: str, error: Exception) -> None:
    raise error


def decide(
    plan: Plan, candidates: Mapping[str, JobView], left_out: Callable[[str, Exception], None] = _raise
) -> dict[str, Target]:
    """The targets to write, by the jobs' names in the Snapshot: changes that fit now, the reasons why other jobs wait,
    and the sizes of jobs that run without a target (they started under another profile). `left_out` is called with the
    name and error of each job whose target cannot be derived."""
    # A node that this plan borrows is not lent yet, and no target may use it before.
    free = {name: node.free for name, node in plan.snapshot.nodes.items() if node.loan in ("own", "loaned")}
    for view in candidates.values():
        if view.job is not None:
            for name, taken in view.reserved.items():
                if name in free:
                    free[name] = free[name].minus(taken)
    targets: dict[str, Target | None] = {}
    later: dict[str, Reason] = {}
    for key, change in plan.changes.items():
        view = candidates[key]
        try:
            if not change.nodes:
                if _stoppable(view):
                    targets[key] = replace(_waits(view, change.reason), cause=change.cause or "")
                continue
            needed = _needed(view, change)
            short = next((name for name, more in needed.items() if not more.within(free.get(name, NOTHING))), None)
            if short is not None:
                later[key] = Reason("room-to-come", {"node": short})
                continue
            targets[key] = _holds(view, change, plan.expected_rate(key))
        except Exception as error:
            targets[key] = None
            left_out(key, error)
            continue
        for name, more in needed.items():
            free[name] = free[name].minus(more.positive())
    not_now = plan.changes.keys() - targets.keys()
    waiting = {**plan.waiting, **later}
    for key, view in candidates.items():
        if key in targets or view.job is None:
            continue
        try:
            if view.job.phase == "waiting" and not view.refused and key in waiting:
                targets[key] = _waits(view, waiting[key])
            elif view.job.placement:
                kept = _kept(view)
                targets[key] = view.target if kept is None and key in plan.memory else kept
        except Exception as error:
            left_out(key, error)
    remembering = {
        key: _remembering(target, candidates[key], None if key in not_now else plan.memory.get(key))
        for key, target in targets.items()
        if target is not None
    }
    ordered = _with_orders(plan, candidates, remembering, left_out)
    fitting = {key: _fitting(target, candidates[key]) for key, target in ordered.items()}
    return {key: target for key, target in fitting.items() if _differs(target, candidates[key].target)}


def _with_orders(
    plan: Plan,
    candidates: Mapping[str, JobView],
    targets: Mapping[str, Target],
    left_out: Callable[[str, Exception], None],
) -> dict[str, Target]:
    """The targets with the orders of the plan, and those of jobs of which only the orders change. A job between two
    sizes keeps its orders."""
    found = dict(targets)
    for key, view in candidates.items():
        if view.job is None or view.job.phase == "rescaling" or (known := found.get(key) or view.target) is None:
            continue
        orders = plan.orders.get(key, {})
        if dict(known.orders) != dict(orders):
            found[key] = replace(known, orders=dict(orders))
    return found


def _remembering(target: Target, view: JobView, memory: Memory | None) -> Target:
    """The target with this memory of the profile for the job; None: with the previous memory."""
    if memory is None:
        memory = view.target.memory if view.target is not None else NO_MEMORY
    return target if target.memory == memory else replace(target, memory=memory)


def _stoppable(view: JobView) -> bool:
    """Whether the job can be stopped, and resumed later where it was."""
    return view.request is not None and view.request.stoppable


def without_plan(view: JobView, profile: str) -> Target | None:
    """The target of a job under this profile, as far as no plan is needed for it; None: the job stays as it is."""
    if profile == FIXED:
        return decide_fixed(view)
    return suspended(view) if view.followed else released(view, profile)


def decide_fixed(view: JobView) -> Target | None:
    """The target under profile `fixed`. It is None, except if a person requests another size for a job that has its
    size from this operator, or if the job still waits because of another profile."""
    request, target, state = view.request, view.target, view.state
    if request is None or request.spec.run_policy.suspend:
        return None
    if (start := _started(view, FIXED)) is not None:
        return start
    if target is None and state is None:
        return None
    if request.elasticity.placement == "none":
        return _edited(view, FIXED)
    size, _ = reserved_size(request, target, state, started=True)
    asked, why = asked_for(request, target, state, size)
    wanted = {**size, **asked}
    if request.queue and request.elastic:  # a size that Kueue no longer admits
        wanted = {
            name: min(n, request.bounds(name)[1]) if name in request.declared else n for name, n in wanted.items()
        }
        why = why or Reason("bounds", {})
    declared = _declared(view, wanted)
    if not size or (wanted == dict(size) and (target is None or target.declared == declared or not asked)):
        return None
    cpu = target.cpu if target else {}
    new = Target(
        _generation(view, wanted),
        wanted,
        cpu=cpu,
        reason=why,
        declared=declared,
        cause="asked",
    )
    return _remembering(new, view, None)


def released(view: JobView, profile: str) -> Target | None:
    """The declared size, for a job that no profile decides for (any more), if it waits, or if its spec's replicas were
    edited since it got its size; None for any other job."""
    if view.request is None or view.request.spec.run_policy.suspend:
        return None
    return _started(view, profile) or _edited(view, profile)


def _started(view: JobView, profile: str) -> Target | None:
    """The declared size, if the job waits; else None."""
    target, state = view.target, view.state
    waits = not target.replicas if target is not None else state is not None and state.phase == "Waiting"
    return _as_declared(view, profile) if waits else None


def _edited(view: JobView, profile: str) -> Target | None:
    """The declared size, if the spec's replicas differ from those on which the job's size is based; else None."""
    assert view.request is not None
    seen = decided(view.target, view.state)
    if not seen or dict(seen) == dict(view.request.declared):
        return None
    made = _as_declared(view, profile)
    return made if _differs(made, view.target) else None


def _as_declared(view: JobView, profile: str) -> Target:
    assert view.request is not None
    declared, target = view.request.declared, view.target
    cpu = target.cpu if target is not None and target.replicas else {}
    reason = Reason("released", {"profile": profile})
    seen = declared if _has(view, declared) else decided(target, view.state) or declared
    new = Target(_generation(view, declared), declared, cpu=cpu, reason=reason, declared=seen)
    return _remembering(new, view, None)


def suspended(view: JobView) -> Target | None:
    """The empty target, for a suspended job that the profile decides for; None for any other job."""
    request, target = view.request, view.target
    if view.job is not None or request is None or not view.followed or not request.spec.run_policy.suspend:
        return None
    if target is None or not target.replicas:
        return None
    return _remembering(_waits(view, Reason("suspended")), view, None)


def profile_failed(view: JobView, profile: str) -> Target | None:
    """The empty target with the reason that this profile fails, for a job that waits for it; None for any other job."""
    if view.job is None or view.job.phase != "waiting" or view.refused:
        return None
    target = _remembering(_waits(view, Reason("profile-fails", {"profile": profile})), view, None)
    return target if _differs(target, view.target) else None


def _needed(view: JobView, change: core.Assignment) -> dict[str, Resources]:
    """What a change needs on each node beyond the job's reservations, less what the job itself releases there."""
    assert view.job is not None
    spec, needed = view.job.spec, dict[str, Resources]()

    def shift(node: str, amount: Resources) -> None:
        needed[node] = needed.get(node, NOTHING).plus(amount)

    wanted = dict(_roles(change.nodes))
    replaced = _replaced(view, change)
    for (name, index), node in wanted.items():
        group = spec.group(name)
        if node == ANY_NODE or group is None:
            continue
        values = _millicores(change, name)
        cpu = values[index] if index < len(values) else group.request.cpu_millicores
        runs = replaced.get((name, index), (name, index))
        if view.bound.get(runs) == node:
            # May be negative: replicas release CPU before added replicas start, which otherwise might never fit.
            shift(node, Resources(cpu_millicores=cpu - view.cpu_millicores[runs]))
        elif not (view.pending.get((name, index)) == node or _promised_there(view, name, index, node)):
            shift(node, group.request._replace(cpu_millicores=cpu))
    for role, node in {**view.pending, **view.bound}.items():
        if role not in wanted and role not in replaced.values() and node in needed:
            group = spec.group(role[0])
            assert group is not None
            shift(
                node,
                NOTHING.minus(
                    group.request._replace(cpu_millicores=view.cpu_millicores.get(role, group.request.cpu_millicores))
                ),
            )
    # A change may release one resource of a node and take another. Other jobs get the released one once it is free.
    return {node: amount for node, amount in needed.items() if any(part > 0 for part in amount)}


def _replaced(view: JobView, change: core.Assignment) -> dict[Role, Role]:
    """The replicas whose part another one takes over, which the change would drop and which is on the node already."""
    assert view.job is not None
    bound = {
        name: [view.bound.get((name, index), "") for index in range(len(names))]
        for name, names in view.job.placement.items()
    }
    return {(name, k): (name, j) for (name, k), j in substitutes(bound, change.nodes).items()}


def _promised_there(view: JobView, name: str, index: int, node: str) -> bool:
    """Whether a replica on a lost node already has a reservation on this node."""
    assert view.job is not None
    names = view.job.placement.get(name, ())
    return index < len(names) and names[index] == node


def _millicores(change: core.Assignment, name: str) -> tuple[int, ...]:
    return tuple(cast("Iterable[int]", change.cpu.get(name, ())))


def _roles(nodes: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[Role, str]]:
    for name, names in nodes.items():
        for index, node in enumerate(names):
            yield (name, index), node


def _holds(view: JobView, change: core.Assignment, expects: Rate | None = None) -> Target:
    """The target with the replicas, nodes, CPU and reason that the plan assigns to the job."""
    assert view.job is not None
    assert view.request is not None
    replicas = {group.type: len(change.nodes.get(group.type, ())) for group in view.job.spec.groups}
    replaced = _replaced(view, change)
    moving = [role for role, node in _roles(change.nodes) if role not in replaced and _moves(view, role, node)]
    anywhere = any(node in (ANY_NODE, "") for _, node in _roles(change.nodes))
    reason = _with_nodes(as_reason(change.reason), view)
    if expects is not None:
        reason = added(reason, expects=expects.steps_per_s, expects_by=expects.source)
    cpu = {
        name: tuple(view.request.container_cpu(name, value) for value in _millicores(change, name))
        for name in change.cpu
    }
    return Target(
        _generation(view, replicas, moves=bool(moving)),
        replicas,
        {} if anywhere else {name: tuple(real_name(node) for node in names) for name, names in change.nodes.items()},
        cpu,
        reason,
        _declared(view, replicas),
        change.cause if change.cause is not None and change.cause in STORED_CAUSES else "",
        expects=expects.steps_per_s if expects is not None else None,
    )


def _with_nodes(reason: Reason, view: JobView) -> Reason:
    """The reason with facts about nodes: which lost nodes are gone, cordoned, being drained, refused by kube-scheduler,
    or without memory for a replica, and kube-scheduler's message. A replica that fits on no other node keeps a refused
    node, which may become usable."""
    gone = reason.facts.get("gone")
    if reason.code == "lost" and isinstance(gone, tuple):
        refused = tuple(real_name(node) for node in gone if node.endswith(REFUSED))
        no_memory = tuple(real_name(node) for node in gone if node.endswith(OUTGROWN))
        cordoned = tuple(node for node in gone if view.cordoned.get(node) == "")
        draining = tuple(node for node in gone if view.cordoned.get(node))
        left = tuple(node for node in gone if real_name(node) == node and node not in view.cordoned)
        reason = added(reason, gone=left, cordoned=cordoned, draining=draining, refused=refused, no_memory=no_memory)
    return added(reason, kube_scheduler=view.refused) if view.refused else reason


def _waits(view: JobView, why: Why) -> Target:
    assert view.request is not None
    return Target(_generation(view, {}), {}, reason=why, declared=view.request.declared)


def _kept(view: JobView) -> Target | None:
    """The target of a job that stays as it is: its present size if it has no target, else its target with the present
    replicas of its spec. None: its target needs no write."""
    assert view.job is not None
    assert view.request is not None
    if view.target is not None:
        declared = _declared(view, view.target.replicas)
        return None if declared == view.target.declared else replace(view.target, declared=declared)
    if view.job.phase == "rescaling" and view.state is not None and view.state.rescaling:
        return None
    change = core.Assignment(view.job.placement, Reason("profile-begins"))
    return replace(_holds(view, change), generation=view.state.generation if view.state is not None else 0)


def _declared(view: JobView, replicas: Mapping[str, int]) -> Mapping[str, int]:
    """The spec's replicas, once the job has the size that an edit of them requests. Until then the replicas before the
    edit, so that a size that is not possible yet is requested again."""
    assert view.request is not None
    asked, _ = asked_for(view.request, view.target, view.state, replicas)
    followed = all(replicas.get(name, 0) == count for name, count in asked.items()) and _has(view, asked)
    return view.request.declared if followed else decided(view.target, view.state)


def _has(view: JobView, size: Mapping[str, int]) -> bool:
    """Whether a job runs with these replicas and is not changing to another size. True for a job without replicas,
    which will start with them."""
    state = view.state
    if state is None or not state.replicas:
        return True
    return state.phase == "Stable" and all(state.replicas.get(name, 0) == count for name, count in size.items())


def _moves(view: JobView, role: Role, node: str) -> bool:
    """Whether a replica runs on another node and can move to this one; from a lost node no replica can move."""
    assert view.job is not None
    there = view.bound.get(role, node)
    return there != node and node not in (ANY_NODE, "") and there not in view.lost and view.job.spec.movable


def _generation(view: JobView, replicas: Mapping[str, int], *, moves: bool = False) -> int:
    """The generation of a new target. It is one more than the last if the size changes, if running replicas move, or if
    the job gave up its target for the size of its state, which may be newer. The first start has generation 0, however
    long the job waited for it."""
    target, state = view.target, view.state
    known = [target.generation if target is not None else 0]
    if state is not None:
        known.append(state.generation)
        known += [each.generation for each in (state.next, state.refused) if each is not None]
    last = max(known)
    has_run = target is not None and (target.generation > 0 or bool(target.replicas))
    has_run = has_run or (state is not None and bool(state.replicas))
    left = target is not None and state is not None and refused_target(target, state)
    size = target.replicas if target is not None else (state.replicas if state is not None else {})
    return last + 1 if has_run and (left or moves or dict(size) != dict(replicas)) else last


def _fitting(target: Target, view: JobView) -> Target:
    """The target, without its nodes if the job's other annotations leave no space for them: the API server would reject
    the target, and the job would never start. A target without nodes requests no move, so its generation may stay."""
    if not target.nodes or view.source is None:  # most targets are of waiting jobs and need no measurement
        return target
    taken = bytes_of(view.source.annotations, but=(TARGET_ANNOTATION,)) + _OTHER_BYTES
    if taken + len(target.to_json().encode()) <= MAX_ANNOTATION_BYTES:
        return target
    known = view.target
    same = known is not None and not known.nodes and dict(known.replicas) == dict(target.replicas)
    return replace(
        target,
        nodes={},
        generation=known.generation if known is not None and same else target.generation,
        reason=Reason("no-space-for-names", {"reason": str(target.reason)}),
    )


def _differs(wanted: Target, known: Target | None) -> bool:
    """Whether a target is new. The reason counts only for a job that waits. The profile's memory counts, though it
    requires nothing of the job."""
    if known is None:
        return True
    same = wanted.generation == known.generation and all(
        dict(getattr(wanted, name)) == dict(getattr(known, name))
        for name in ("replicas", "nodes", "cpu", "declared", "orders")
    )
    # Reasons are compared as texts: a fact, such as the bytes of free memory, may change although the text does not.
    new_reason = not wanted.replicas and str(wanted.reason) != str(known.reason)
    return not same or wanted.memory != known.memory or new_reason
