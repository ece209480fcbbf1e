"""Which jobs are bound by the CPU of their replicas."""

from collections.abc import Callable, Iterable, Mapping

from elastic_tfjob.scheduling.profiles.kips.settings import Settings
from elastic_tfjob.scheduling.snapshot import EVALUATOR, Job, JobSpec, Node, Snapshot

Use = Mapping[str, float]
"""How busy replica types are: the part of their CPU that they use."""


class BusyJobs:
    """A view of the running jobs that are bound by the CPU of their replicas, with how busy each type is.

    They are where types together use nearly all their CPU (types that work in turns share the time), or nearly all
    they requested: CPU that was lent on top may be more than the program can use.
    """

    def __init__(self, settings: Settings, jobs: Iterable[Job]) -> None:
        self.busy = settings.busy
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
                requested = requested_cpu(after.spec, type_) * len(after.placement[type_])
                use[type_] = min(1.0, u * held_cpu(after, type_) / requested) if requested else u
            if sum(use.values()) < self.busy:
                return
        self.uses[after.spec.key] = use

    def change_nodes(self, nodes: Mapping[str, Node]) -> bool:
        return True


def busy_view(settings: Settings) -> Callable[[Snapshot], BusyJobs]:
    return lambda snapshot: BusyJobs(settings, snapshot.jobs.values())


def requested_cpu(spec: JobSpec, type_: str) -> int:
    """Millicores that one replica of the type requests."""
    group = spec.group(type_)
    return group.request.cpu if group is not None else 0


def held_cpu(job: Job, type_: str) -> int:
    """Millicores that a type's replicas hold together while their use is measured."""
    return sum(job.cpu.get(type_, ())) or requested_cpu(job.spec, type_) * len(job.placement.get(type_, ()))
