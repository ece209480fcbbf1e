"""Which nodes admit which jobs: by constraints and taints, and by whose node it is."""

from collections.abc import Iterable, Sequence

from elastic_tfjob.scheduling.constraints import ANYWHERE, Constraints
from elastic_tfjob.scheduling.nodes import admitting
from elastic_tfjob.scheduling.snapshot import JobSpec, Node

__all__ = ["Admission", "in_all"]


def in_all(sets: Iterable[frozenset[int] | None]) -> frozenset[int] | None:
    """The nodes that are in each of these sets; None stands for all nodes."""
    restricted = [nodes for nodes in sets if nodes is not None]
    if not restricted:
        return None
    first = restricted[0]
    # Jobs share their sets: where all are one, nothing has to be looked at.
    return first if all(nodes is first for nodes in restricted) else frozenset.intersection(*restricted)


class Admission:
    """Of these nodes, those that admit a job, as indices; None stands for all of them. Jobs of equal constraints share
    one answer, which is found once."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._admitting: dict[tuple[Constraints, bool], frozenset[int] | None] = {}
        self._lent: dict[Constraints, frozenset[int]] = {}
        self.tainted = any(node.taints for node in nodes)
        self.plain = not self.tainted and all(node.loan == "own" for node in nodes)
        """Whether no node is tainted or another's."""

    def nodes_for(self, spec: JobSpec, type_: str | None = None) -> frozenset[int] | None:
        """The nodes where replicas of this type may run; with no type, those where every type may run."""
        if self.plain and spec.constraints is ANYWHERE and not spec.constraints_by_type:
            return None
        if type_ is None and spec.constraints_by_type:
            return in_all(self.nodes_for(spec, group.type) for group in spec.groups)
        constraints = spec.constraints if type_ is None else spec.constraints_of(type_)
        if self.plain and constraints is ANYWHERE:
            return None
        return self._of(constraints, spec.loanable)

    def own(self, spec: JobSpec, type_: str) -> frozenset[int] | None:
        """The same, of our own nodes alone."""
        return self._of(spec.constraints_of(type_), False)

    def lent(self, spec: JobSpec, type_: str) -> frozenset[int]:
        """The same, of nodes that are lent to us alone."""
        if self.plain or not spec.loanable:
            return frozenset()
        constraints = spec.constraints_of(type_)
        if constraints not in self._lent:
            own, both = self._of(constraints, False), self._of(constraints, True)
            everywhere = frozenset(range(len(self._nodes)))
            self._lent[constraints] = (everywhere if both is None else both) - (everywhere if own is None else own)
        return self._lent[constraints]

    def _of(self, constraints: Constraints, loanable: bool) -> frozenset[int] | None:
        key = (constraints, loanable)
        if key not in self._admitting:
            chosen = admitting(self._nodes, constraints, loanable)
            self._admitting[key] = None if len(chosen) == len(self._nodes) else chosen
        return self._admitting[key]
