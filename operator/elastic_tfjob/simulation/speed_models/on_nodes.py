"""What nodes do to the jobs on them: their accelerators' speed, and CPUs that containers share."""

from collections.abc import Iterable, Mapping

from elastic_tfjob.scheduling.snapshot import JobSpec, Node, Placement


class NodeSpeeds:
    """For one run. `contended`: containers share the CPUs of their nodes."""

    def __init__(self, nodes: Mapping[str, Node], *, contended: bool) -> None:
        self.contended = contended
        self._uneven = any(node.accelerator_speed != 1 for node in nodes.values())
        self._wanted: dict[str, float] = {}
        """CPUs that all containers on a node would use if they could."""
        self._jobs: dict[str, dict[str, None]] = {}
        """Keys of the jobs on a node, in the order in which they came."""

    def changed(self, nodes: Mapping[str, Node]) -> None:
        """Nodes came or went."""
        self._uneven = any(node.accelerator_speed != 1 for node in nodes.values())

    def slowdown(self, rate: float, placement: Placement, nodes: Mapping[str, Node]) -> float:
        """What is left of a job's undisturbed rate there: it is as slow as its slowest replica."""
        if self._uneven:
            rate *= min(
                (nodes[name].accelerator_speed for names in placement.values() for name in names if name in nodes),
                default=1.0,
            )
        if self.contended:
            rate *= min(
                cpu_share(nodes[name].capacity.cpu / 1000, self._wanted[name])
                for names in placement.values()
                for name in names
            )
        return rate

    def moved(self, spec: JobSpec, cpu_demand: float | None, old: Placement, new: Placement) -> None:
        """Follow a job. `cpu_demand` is the CPUs that one container would use; None: what it requests."""
        if self.contended:
            self._count(spec, cpu_demand, old, -1)
            self._count(spec, cpu_demand, new, 1)

    def _count(self, spec: JobSpec, cpu_demand: float | None, placement: Placement, sign: int) -> None:
        for group in spec.groups:
            wanted = cpu_demand if cpu_demand is not None else group.request.cpu / 1000
            for name in placement.get(group.type, ()):
                self._wanted[name] = self._wanted.get(name, 0.0) + sign * wanted
                if sign > 0:
                    self._jobs.setdefault(name, {})[spec.key] = None
                else:
                    self._jobs.get(name, {}).pop(spec.key, None)

    def beside(self, names: Iterable[str]) -> list[str]:
        """Keys of the jobs on these nodes, each once."""
        return list({key: None for name in sorted(names) for key in self._jobs.get(name, ())})


def cpu_share(cpus: float, wanted: float) -> float:
    """The part of what it wants that each container gets on a node of `cpus` where all together want `wanted`."""
    return 1.0 if wanted <= cpus else cpus / wanted
