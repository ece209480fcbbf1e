"""What nodes do to the jobs on them: their accelerators' speed, and CPUs that containers share."""

from collections.abc import Iterable, Mapping, Sequence

from elastic_tfjob.scheduling.snapshot import AS_REQUESTED, Cpu, JobSpec, Node, Placement

Container = tuple[str, str, int]
"""Key of the job, replica type, index."""


class NodeSpeeds:
    """For one run. `contended`: containers share the CPUs of their nodes as Linux shares them out: in proportion to
    their weights, none more than it can use, and nothing is left idle that somebody could use."""

    def __init__(self, nodes: Mapping[str, Node], *, contended: bool) -> None:
        self.contended = contended
        self._uneven = any(node.accelerator_speed != 1 for node in nodes.values())
        self._containers: dict[str, dict[Container, tuple[float, float]]] = {}
        """By node, in the order in which they came: the CPUs that each can use, and its weight."""
        self._given: dict[str, dict[Container, float]] = {}
        """By node: the CPUs that each gets; a node where something changed is missing."""

    def changed(self, nodes: Mapping[str, Node]) -> None:
        """Nodes came or went."""
        self._uneven = any(node.accelerator_speed != 1 for node in nodes.values())
        self._given.clear()

    def slowdown(self, key: str, placement: Placement, nodes: Mapping[str, Node]) -> float:
        """The part of its undisturbed rate at which a job works there: it is as slow as its slowest replica."""
        part = 1.0
        if self._uneven:
            part = min(
                (nodes[name].accelerator_speed for names in placement.values() for name in names if name in nodes),
                default=1.0,
            )
        if self.contended:
            part *= min(
                self._shares(name, nodes[name])[key, type_, k] / self._containers[name][key, type_, k][0]
                for type_, names in placement.items()
                for k, name in enumerate(names)
            )
        return part

    def moved(
        self,
        spec: JobSpec,
        cpu_demand: float | None,
        old: Placement,
        new: Placement,
        cpu: Cpu = AS_REQUESTED,
    ) -> None:
        """Follow a job. `cpu_demand` is the CPUs that one container can use; None: what it requests. Its weight is the
        CPU that it holds; what one that requests none can use."""
        if not self.contended:
            return
        for type_, names in old.items():
            for k, name in enumerate(names):
                del self._containers[name][spec.key, type_, k]
                self._given.pop(name, None)
        for type_, names in new.items():
            requested = spec.requested_cpu(type_) / 1000
            wanted = cpu_demand if cpu_demand is not None else requested
            held = cpu.get(type_, ())
            for k, name in enumerate(names):
                weight = (held[k] / 1000 if k < len(held) else requested) or wanted
                # One that can use nothing is not slowed down, and slows nobody down.
                self._containers.setdefault(name, {})[spec.key, type_, k] = (wanted or TINY, weight or TINY)
                self._given.pop(name, None)

    def _shares(self, name: str, node: Node) -> Mapping[Container, float]:
        given = self._given.get(name)
        if given is None:
            there = self._containers[name]
            shares = shared_out(node.capacity.cpu / 1000, list(there.values()))
            given = self._given[name] = dict(zip(there, shares, strict=True))
        return given

    def beside(self, names: Iterable[str]) -> list[str]:
        """Keys of the jobs on these nodes, each once."""
        return list({key: None for name in sorted(names) for key, _, _ in self._containers.get(name, ())})


TINY = 1e-9


def shared_out(cpus: float, containers: Sequence[tuple[float, float]]) -> list[float]:
    """What each of (CPUs that it can use, weight) gets of `cpus`: in proportion to weights, what one cannot use goes to
    the others."""
    if sum(wanted for wanted, _ in containers) <= cpus:
        return [wanted for wanted, _ in containers]
    shares = [0.0] * len(containers)
    weights = sum(weight for _, weight in containers)
    for i in sorted(range(len(containers)), key=lambda i: containers[i][0] / containers[i][1]):
        wanted, weight = containers[i]
        shares[i] = min(wanted, cpus * weight / weights)
        cpus -= shares[i]
        weights -= weight
    return shares
