"""Flexible replicas: those beyond a job's minimum, which leave without a stop."""

from collections.abc import Iterable, Mapping

from elastic_tfjob.scheduling.resources import NOTHING, Resources
from elastic_tfjob.scheduling.snapshot import Job, JobSpec, Node, Placement, Shape, Snapshot

__all__ = ["Tails", "tails_view"]


class Tails:
    """A view: per node what flexible replicas hold there, by job; and the elastic jobs that run, by shape.

    A round has it follow what it changes (`hold`), and takes that back when it is over (`restore`).
    """

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.on: dict[str, dict[str, Resources]] = {}
        """By node and key."""
        self.total: dict[str, Resources] = {}
        """By node, of all jobs."""
        self.elastic: dict[Shape, dict[str, None]] = {}
        """Keys of the jobs that run and may have another size, by shape."""
        self._of: dict[str, Placement] = {}
        self._changed: dict[str, Job] = {}
        for job in jobs:
            self.change(None, job, 0.0)

    def change(self, before: Job | None, after: Job | None, now: float) -> None:
        if before is not None and after is not None:
            same = before.placement == after.placement and before.spec is after.spec and before.phase == after.phase
            if same:
                return
        if before is not None:
            self._drop(before.spec)
        if after is not None and after.spec.elastic and after.placement and after.phase == "running":
            self._take(after.spec, after.placement)

    def change_nodes(self, nodes: Mapping[str, Node]) -> bool:
        return True

    def hold(self, job: Job, placement: Placement) -> None:
        """From now on in this round the job, which the Snapshot has otherwise, holds this."""
        if not job.spec.elastic:
            return
        self._changed.setdefault(job.spec.key, job)
        self._drop(job.spec)
        if placement:
            self._take(job.spec, placement)

    def restore(self) -> None:
        """As the Snapshot has it."""
        for job in self._changed.values():
            self._drop(job.spec)
            self.change(None, job, 0.0)
        self._changed.clear()

    def _take(self, spec: JobSpec, placement: Placement) -> None:
        tail = {type_: names[spec.minimum.get(type_, 0) :] for type_, names in placement.items()}
        self._of[spec.key] = tail
        self.elastic.setdefault(spec.shape, {})[spec.key] = None
        self._book(spec, tail, 1)

    def _drop(self, spec: JobSpec) -> None:
        tail = self._of.pop(spec.key, None)
        if tail is None:
            return
        alike = self.elastic[spec.shape]
        del alike[spec.key]
        if not alike:
            del self.elastic[spec.shape]
        self._book(spec, tail, -1)

    def _book(self, spec: JobSpec, tail: Placement, sign: int) -> None:
        for type_, names in tail.items():
            group = spec.group(type_)
            if group is None:
                continue
            for name in set(names):
                held = group.request.times(sign * names.count(name))
                there = self.on.setdefault(name, {})
                there[spec.key] = there.get(spec.key, NOTHING).plus(held)
                if there[spec.key] == NOTHING:
                    del there[spec.key]
                if there:
                    self.total[name] = self.total.get(name, NOTHING).plus(held)
                else:
                    del self.on[name]
                    self.total.pop(name, None)


def tails_view(snapshot: Snapshot) -> Tails:
    return Tails(snapshot.jobs.values())
