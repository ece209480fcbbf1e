"""Which jobs are bound by the CPU of their replicas."""

from collections.abc import Callable, Iterable, Mapping

from elastic_tfjob.scheduling.shared_cpu import use_in_turn
from elastic_tfjob.scheduling.snapshot import EVALUATOR, Job, Node, Snapshot

__all__ = ["BusyJobs", "Use", "busy_view"]

Use = Mapping[str, float]
"""How busy replica types are: the part of their CPU that they use."""


class BusyJobs:
    """A view of the running jobs that are bound by the CPU of their replicas, with how busy each type is.

    They are where types together use nearly all their CPU (types that work in turns share the time), or nearly all
    they requested: CPU that was lent or is shared on top may be more than the program can use.
    """

    def __init__(self, busy: float, jobs: Iterable[Job]) -> None:
        self.busy = busy
        self.uses: dict[str, Use] = {}
        self.silent: dict[str, None] = {}
        """Those that hold something but have yet to make a step."""
        for job in jobs:
            self.change(None, job, 0.0)

    def change(self, before: Job | None, after: Job | None, now: float) -> None:
        if before is not None:
            self.uses.pop(before.spec.key, None)
            self.silent.pop(before.spec.key, None)
        if after is None or not after.placement:
            return
        if after.steps_per_s <= 0:
            total = after.spec.total_steps
            if total is None or after.steps < total:  # one whose steps are done only has to end
                self.silent[after.spec.key] = None
            return
        use = _of_trainers(after, use_in_turn(after))
        if sum(use.values()) < self.busy:
            use = _of_requested(after)
            # Types that share their CPU do not hold each other up: one alone has to use all that a replica is made for.
            if (max(use.values(), default=0.0) if after.cpu_shared else sum(use.values())) < self.busy:
                return
        self.uses[after.spec.key] = use

    def change_nodes(self, nodes: Mapping[str, Node]) -> bool:
        return True


def _of_trainers(job: Job, use: Use) -> dict[str, float]:
    return {type_: u for type_, u in use.items() if type_ != EVALUATOR and job.placement.get(type_)}


def _of_requested(job: Job) -> dict[str, float]:
    use = _of_trainers(job, job.cpu_use)
    for type_, u in use.items():
        requested = job.spec.requested_cpu(type_) * len(job.placement[type_])
        use[type_] = min(1.0, u * job.held_cpu(type_) / requested) if requested else u
    return use


def busy_view(busy: float) -> Callable[[Snapshot], BusyJobs]:
    """`busy`: CPU used / held from which on replicas lack CPU."""
    return lambda snapshot: BusyJobs(busy, snapshot.jobs.values())
