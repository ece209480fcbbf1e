"""The time at which drained nodes are gone, and how jobs meet it. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from elastic_tfjob.controller.model.cluster import KubeNode
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.steps.leave import Outcome, outcome_of

__all__ = ["Notices"]


class Notices:
    """When the operator first saw the sign that drains a node, and which jobs were on such nodes. It is lost with the
    process: a sign that the node's object dates keeps its time, any other one begins anew."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], float] = {}
        """By uid and sign of a node, Unix time."""
        self._there: dict[str, dict[str, Outcome | None]] = {}
        """By node, the jobs that were on it during its notice, and how they left it; None: they have not."""

    def leaving(self, nodes: Iterable[KubeNode], now_s: float) -> dict[str, float]:
        """By drained node with a notice, the Unix time at which it is gone."""
        drained = [node for node in nodes if node.cordoned and node.draining]
        signs = [(node.uid, node.draining) for node in drained]
        self._seen = {sign: self._seen.get(sign, now_s) for sign in signs}
        ends = ((node.name, node.gone_s(self._seen[sign])) for node, sign in zip(drained, signs, strict=True))
        return {name: at for name, at in ends if at is not None}

    def met(
        self,
        leaving: Mapping[str, float],
        there: Mapping[str, Collection[str]],
        plan: Plan,
        targets: Mapping[str, Target],
    ) -> tuple[list[tuple[str, str]], Counter[Outcome]]:
        """Follows the jobs on drained nodes through a round whose `plan` became `targets`, both by the jobs' names in
        the Snapshot. `there` has the jobs with running pods by node, for these nodes and those that were drained.
        Returns the pairs of job and node that are new, and the outcomes for nodes that are gone, or no longer drained:
        each job counts once for each node."""
        new: list[tuple[str, str]] = []
        for name in leaving:
            known = self._there.setdefault(name, {})
            new += [(key, name) for key in there.get(name, ()) if key not in known]
            known |= {key: None for key in there.get(name, ()) if key not in known}
            for key in known.keys() & plan.changes.keys() & targets.keys():
                known[key] = outcome_of(plan.snapshot.jobs[key].counts, plan.changes[key])
        ended: Counter[Outcome] = Counter()
        for name in [name for name in self._there if name not in leaving]:
            for key, left in self._there.pop(name).items():
                stays = key in there.get(name, ())
                if stays and name not in plan.snapshot.nodes:
                    ended["lost"] += 1
                elif left is not None and not stays:
                    ended[left] += 1
        return new, ended

    @property
    def followed(self) -> Collection[str]:
        """The nodes of which `met` follows jobs."""
        return self._there.keys()
