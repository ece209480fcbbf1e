"""Which jobs are bound by the CPU of their replicas."""

from collections.abc import Callable, Iterable, Mapping

from elastic_tfjob.scheduling.snapshot import EVALUATOR, Job, Node, Snapshot

__all__ = ["BusyJobs", "Use", "busy_view"]

Use = Mapping[str, float]
"""How busy replica types are: the part of their CPU that they use."""


class BusyJobs:
    """A view of the running jobs that are bound by the CPU of their replicas, with how busy each type is.

    They are where types together use nearly all their CPU (types that work in turns share the time), or nearly all
    they requested: CPU that was lent on top may be more than the program can use.
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
        use = {t: u for t, u in after.cpu_use.items() if t != EVALUATOR and after.placement.get(t)}
        if sum(use.values()) < self.busy:
            for type_, u in use.items():
                requested = after.spec.requested_cpu(type_) * len(after.placement[type_])
                use[type_] = min(1.0, u * after.held_cpu(type_) / requested) if requested else u
            if sum(use.values()) < self.busy:
                return
        self.uses[after.spec.key] = use

    def change_nodes(self, nodes: Mapping[str, Node]) -> bool:
        return True


def busy_view(busy: float) -> Callable[[Snapshot], BusyJobs]:
    """`busy`: CPU used / held from which on replicas lack CPU."""
    return lambda snapshot: BusyJobs(busy, snapshot.jobs.values())
