"""What no plan of any profile may break. Functions, so that tests, simulator and fault tests share them."""

from collections import Counter
from collections.abc import Mapping

from elastic_tfjob.scheduling.plan import STOPS, Plan, cause_of
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.room import ANY_NODE, usable_nodes
from elastic_tfjob.scheduling.snapshot import Cpu, JobSpec, Placement


def violations(plan: Plan) -> list[str]:
    """Every broken invariant of a plan, in words; what the Snapshot itself breaks is not held against it."""
    return [
        *over_capacity(plan),
        *outside_bounds(plan),
        *unusable_nodes(plan),
        *forbidden_nodes(plan),
        *changed_while_rescaling(plan),
        *below_request(plan),
        *stopped_for_good(plan),
        *moved_for_good(plan),
        *other_causes(plan),
    ]


def other_causes(plan: Plan) -> list[str]:
    """Each change has the cause that its sizes tell, or one that they cannot tell."""
    broken = []
    for key, target in plan.changes.items():
        job = plan.snapshot.jobs[key]
        moved = target.nodes != job.placement
        told = cause_of(job.counts, target.replicas, moved=moved, stopped=bool(job.stops))
        allowed = (
            STOPS if not target.nodes else (told, *(("repair", "asked", "deadline", "notice") if job.placement else ()))
        )
        if target.cause not in allowed:
            broken.append(f"{key}: {target.cause}, not {told}")
    return broken


def over_capacity(plan: Plan) -> list[str]:
    jobs, nodes = plan.snapshot.jobs, {n.name: n for n in usable_nodes(plan.snapshot.nodes)}
    borrowed = {loan.node for loan in plan.loans if loan.action == "borrow"}
    nodes |= {name: plan.snapshot.nodes[name] for name in borrowed}
    held = _used({key: (job.spec, job.placement, job.cpu) for key, job in jobs.items()})
    used = _used({key: (jobs[key].spec, target.nodes, target.cpu) for key, target in plan.targets.items()})
    total = Resources()
    for node in nodes.values():
        total = total.plus(node.free)
    free = {name: node.free for name, node in nodes.items()} | {ANY_NODE: total}
    # A node may lack room for memory that was raised since: what is there stays.
    return [
        f"{name}: {want} of {free[name]}"
        for name, want in used.items()
        if name in free and not want.within(Resources(*map(max, free[name], held.get(name, Resources()))))
    ]


def _used(placed: Mapping[str, tuple[JobSpec, Placement, Cpu]]) -> dict[str, Resources]:
    used: dict[str, Resources] = {}
    for spec, nodes, held_cpu in placed.values():
        for type_, names in nodes.items():
            group = spec.group(type_)
            assert group is not None
            for name, n in Counter(names).items():
                used[name] = used.get(name, Resources()).plus(group.request.times(n))
            for name, cpu in zip(names, held_cpu.get(type_, ()), strict=type_ in held_cpu):
                used[name] = used[name].plus(Resources(cpu - group.request.cpu_millicores))
    return used


def unusable_nodes(plan: Plan) -> list[str]:
    """Nothing more is put on a node that the cluster has lost, or that is another pool's."""
    usable = {node.name for node in usable_nodes(plan.snapshot.nodes)} | {ANY_NODE}
    usable |= {loan.node for loan in plan.loans if loan.action == "borrow"}
    usable -= {loan.node for loan in plan.loans if loan.action == "return"}
    broken = []
    for key, target in plan.changes.items():
        for type_, names in target.nodes.items():
            had = Counter(plan.snapshot.jobs[key].placement.get(type_, ()))
            for name, n in Counter(names).items():
                if name not in usable and n > had[name]:
                    broken.append(f"{key}: {n} {type_} on {name}, which is not ours")
    return broken


def outside_bounds(plan: Plan) -> list[str]:
    """A gang is complete or nothing, and no type is below its minimum or above its maximum."""
    broken = []
    for key, target in plan.changes.items():
        counts = target.replicas
        for group in plan.snapshot.jobs[key].spec.groups:
            n = counts.get(group.type, 0)
            if counts and not group.minimum <= n <= group.maximum:
                broken.append(f"{key}: {n} {group.type}, allowed {group.minimum} to {group.maximum}")
    return broken


def forbidden_nodes(plan: Plan) -> list[str]:
    broken = []
    for key, target in plan.changes.items():
        spec = plan.snapshot.jobs[key].spec
        for type_, names in target.nodes.items():
            for name in set(names) - {ANY_NODE}:
                node = plan.snapshot.nodes.get(name)
                if node is None:
                    continue  # lost: see unusable_nodes
                lent = node.loan != "own"
                if lent and not spec.loanable and name not in plan.snapshot.jobs[key].placement.get(type_, ()):
                    broken.append(f"{key}: {type_} on {name}, which is lent for loanable jobs")
                if not spec.constraints_of(type_).admit(node.labels, node.taints):
                    broken.append(f"{key}: {type_} on {name}, which its constraints forbid")
    return broken


def below_request(plan: Plan) -> list[str]:
    """CPU in place never goes below the template's request, and only where it may be changed."""
    broken = []
    for key, target in plan.changes.items():
        spec = plan.snapshot.jobs[key].spec
        for type_, each in target.cpu.items():
            group = spec.group(type_)
            assert group is not None
            if len(each) != target.replicas.get(type_) or min(each) < group.request.cpu_millicores:
                broken.append(f"{key}: {type_} holds {each}, requests {group.request.cpu_millicores}")
            if not spec.resizable and target.cpu != plan.snapshot.jobs[key].cpu:
                broken.append(f"{key}: CPU of a job that may not be rescaled")
    return broken


def changed_while_rescaling(plan: Plan) -> list[str]:
    """A job between two targets is left alone, but for a node of its that goes back to its pool."""
    returned = {loan.node for loan in plan.loans if loan.action == "return"}
    return [
        f"{key}: changed while it is rescaled"
        for key in plan.changes
        if (job := plan.snapshot.jobs[key]).phase == "rescaling"
        and returned.isdisjoint(name for names in job.placement.values() for name in names)
    ]


def stopped_for_good(plan: Plan) -> list[str]:
    """All is taken only from a job that has somewhere to go on from."""
    jobs = plan.snapshot.jobs
    return [
        f"{key}: stopped, and cannot go on"
        for key, target in plan.changes.items()
        if not target.nodes and jobs[key].placement and not jobs[key].spec.stoppable
    ]


def moved_for_good(plan: Plan) -> list[str]:
    """No replica that runs, and stays, goes from a node that is there to another one, where its job may not be moved.
    One that `repack` sizes anew is placed as a whole: that is a resize, and only a simulation does it."""
    broken = []
    for key, target in plan.changes.items():
        job = plan.snapshot.jobs[key]
        if job.spec.movable or not target.nodes or target.replicas != job.counts:
            continue
        for type_, names in job.placement.items():
            for k, (before, after) in enumerate(zip(names, target.nodes.get(type_, ()), strict=False)):
                if before != after and before in plan.snapshot.nodes:
                    broken.append(f"{key}: {type_} {k} from {before} to {after}, and may not be moved")
    return broken
