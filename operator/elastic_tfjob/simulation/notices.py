"""Drained nodes: they take no more replicas, those on them run on until the node is gone; and how jobs met that."""

from collections import Counter
from collections.abc import Iterable, Mapping

from elastic_tfjob.scheduling.plan import Assignment
from elastic_tfjob.scheduling.room import nodes_of
from elastic_tfjob.scheduling.snapshot import Job, Node
from elastic_tfjob.scheduling.steps.leave import Outcome, outcome_of

__all__ = ["Notices"]


class Notices:
    """The drained nodes of a run: `nodes` by name, `gone_s` the time at which each is gone. `outcomes` counts jobs by
    how they met the end of a node, once for each job and node."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.gone_s: dict[str, float] = {}
        self.outcomes: Counter[Outcome] = Counter()
        self._left: dict[str, dict[str, Outcome]] = {}
        """By drained node, the jobs that have left it."""

    def begin(self, name: str, gone_s: float, nodes: Mapping[str, Node]) -> dict[str, Node]:
        """The node is drained, and gone at `gone_s`. Returns the nodes that still take replicas."""
        self.nodes[name], self.gone_s[name], self._left[name] = nodes[name], gone_s, {}
        return {other: node for other, node in nodes.items() if other != name}

    def standing(self, nodes: Mapping[str, Node]) -> Mapping[str, Node]:
        """All nodes on which replicas run: those that take more, and drained ones."""
        return {**nodes, **self.nodes} if self.nodes else nodes

    def change(self, job: Job, target: Assignment) -> None:
        """A plan changes a job: it may leave drained nodes."""
        for name in nodes_of(job.placement) & self.nodes.keys() - nodes_of(target.nodes):
            self._left[name][job.key] = outcome_of(job.counts, target)

    def save(self, name: str, jobs: Iterable[Job]) -> None:
        """These jobs save before the node is gone, since what they prepare elsewhere is not ready."""
        self._left[name] |= {job.key: "saved" for job in jobs}

    def end(self, name: str, there: Iterable[str]) -> None:
        """The node is gone. `there` has the keys of the jobs that still trained on it."""
        if self.nodes.pop(name, None) is None:
            return
        del self.gone_s[name]
        left: dict[str, Outcome] = {**self._left.pop(name), **dict.fromkeys(there, "lost")}
        self.outcomes.update(left.values())
