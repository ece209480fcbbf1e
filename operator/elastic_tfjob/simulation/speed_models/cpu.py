"""CPU that replicas hold, and a speed that follows it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol, runtime_checkable

from elastic_tfjob.scheduling.room import more_replicas
from elastic_tfjob.scheduling.shared_cpu import takes_turns, usable_cpu
from elastic_tfjob.scheduling.snapshot import (
    AS_REQUESTED,
    PS,
    UNPLACED,
    WORKER,
    Counts,
    Cpu,
    JobSpec,
    Node,
    Placement,
    ReplicaGroup,
    counts_of,
)
from elastic_tfjob.simulation.speed_models.base import FixedTrueSpeed, TrueSpeed
from elastic_tfjob.simulation.speed_models.ps import MEASURED_TASKS, MODELS, PsModel
from elastic_tfjob.simulation.workload import WorkloadJob

Cores = Mapping[str, Sequence[float]]
"""CPUs that each replica holds, or can use in its turn, by type."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Steps per second, and by type the mean part of the CPU they can use that its replicas use."""

    steps_per_s: float
    use: Mapping[str, float]


@runtime_checkable
class CpuBound(Protocol):
    """A TrueSpeed that depends on the CPU that replicas can use in their turns."""

    def pace(self, cores: Cores) -> Pace: ...


def cores_held(groups: Sequence[ReplicaGroup], placement: Placement, cpu: Cpu) -> dict[str, list[float]]:
    """CPUs of each replica in `placement`: what `cpu` says, else what it requests."""
    return usable_cores(groups, placement, cpu, shared=False)


def usable_cores(
    groups: Sequence[ReplicaGroup], placement: Placement, cpu: Cpu, *, shared: bool
) -> dict[str, list[float]]:
    """CPUs that each replica can use in its turn: what it holds, or where `shared` what its job does on its node."""
    usable = usable_cpu(groups, placement, cpu, shared=shared)
    return {type_: [millicores / 1000 for millicores in each] for type_, each in usable.items()}


def used_of_held(
    spec: JobSpec, cpu_demand: float | None, placement: Placement, cpu: Cpu, part: float
) -> dict[str, float]:
    """By type, CPU used over CPU held of a job whose containers share their nodes' CPUs, and which works at this part
    of its undisturbed rate. A type that requests no CPU holds none: it is missing."""
    use = {}
    for type_, each in cores_held(spec.groups, placement, cpu).items():
        if all(each):
            can = cpu_demand if cpu_demand is not None else spec.requested_cpu(type_) / 1000
            use[type_] = len(each) * can * part / sum(each)
    return use


# -- Containers that share a node's CPUs -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CpuShareSpeedModel:
    """SpeCon's setting (arXiv 2010.11307): short CPU-bound jobs whose requests do not bound what they use.

    One step is one second undisturbed. The CPUs of a node are shared out in proportion to the CPU that containers
    hold, which is what they request unless a plan says otherwise; what one cannot use goes to the others. A container
    works in proportion to what it gets; a job is as slow as its slowest container. NodeSpeeds keeps the shares.
    """

    name: str = "cpu-share"
    contended: bool = True

    def true_speed(self, job: WorkloadJob) -> TrueSpeed:
        if job.duration_s is None:
            raise ValueError(f"job {job.key}: the speed model cpu-share needs a duration")
        return FixedTrueSpeed(job.duration_s)


# -- Parameter-server training whose replicas are as fast as the CPU they hold -----------------------------------------
# Requests are limits, as under kips live.
#
# The form of the speed model `ps` with CPU in it. What workers do, in parts (a) and each whole (b), goes with the CPU
# of workers; what PSs do for each of them (c) with that of PSs; the network (d, e) does not:
#
#     1/f = (a/w + b)/k_w + c w/(p k_p) + d w + e p        k: CPU held / CPU with which the rest was measured


@dataclass(frozen=True, slots=True)
class CpuModel:
    """`form` was measured with workers of `worker` and PSs of `ps` CPUs. `synchronous` workers wait for the slowest in
    each step; else each goes its own way.
    """

    form: PsModel
    worker: float
    ps: float
    synchronous: bool = True


CPU_MODELS: dict[str, CpuModel] = {
    **{name: CpuModel(form, 2.0, 2.0) for name, form in MODELS.items()},
    "digits": CpuModel(PsModel(0.08, 0.0, 0.008, 0.0, 0.0, 1, 1.0, accelerator=False), 1.0, 1.0, synchronous=False),
}
"""DL2's models, measured with 2 CPUs per replica, and the handwritten digits of the live benchmark: CPU alone."""


@dataclass(frozen=True, slots=True)
class PsCpuTrueSpeed:
    """`most` is the CPUs that one replica can use, `groups` what replicas ask for, which they hold unless told."""

    total_steps: float
    model: CpuModel
    groups: tuple[ReplicaGroup, ...]
    most: float | None = None

    def rate(self, placement: Placement) -> float:
        return self.steps_per_s(counts_of(placement))

    def steps_per_s(self, counts: Counts) -> float:
        return self.pace({g.type: [g.request.cpu / 1000] * counts.get(g.type, 0) for g in self.groups}).steps_per_s

    def pace(self, cores: Cores) -> Pace:
        model, form = self.model, self.model.form
        usable = {type_: [self._usable(type_, held) for held in each] for type_, each in cores.items()}
        workers, servers = usable.get(WORKER, []), usable.get(PS, [])
        if not workers or not servers or not min(workers) or not min(servers):
            return Pace(0.0, {})
        shrink = min(1.0, MEASURED_TASKS / (len(workers) + len(servers)))
        w, p = len(workers) * shrink, len(servers) * shrink
        pace_w = (min(workers) if model.synchronous else sum(workers) / len(workers)) / model.worker
        pace_p = min(servers) / model.ps
        rate = 1 / ((form.a / w + form.b) / pace_w + form.c * w / (p * pace_p) + form.d * w + form.e * p)
        use = dict.fromkeys(cores, 0.0)
        # CPU-seconds of a step over those held; where workers do not wait for each other all compute all the time.
        use[WORKER] = rate * (form.a / w + form.b) * len(workers) * model.worker / sum(cores[WORKER])
        use[PS] = rate * form.c * w / p * len(servers) * model.ps / sum(cores[PS])
        return Pace(rate, {type_: min(1.0, u) for type_, u in use.items()})

    def _usable(self, type_: str, held: float) -> float:
        most = self.most
        if most is None:
            most = next(g.request.cpu / 1000 for g in self.groups if g.type == type_)
        return min(held, most)


@dataclass(frozen=True, slots=True)
class PsCpuSpeedModel:
    """A job's work is its steps, or what its declared size with the CPU it asks for does in its duration."""

    name: str = "ps-cpu"
    contended: bool = False

    def true_speed(self, job: WorkloadJob) -> TrueSpeed:
        model = CPU_MODELS.get(job.model)
        if model is None:
            raise ValueError(
                f"job {job.key}: the speed model ps-cpu knows no model {job.model!r}, only {', '.join(CPU_MODELS)}"
            )
        speed = PsCpuTrueSpeed(job.total_steps or 0.0, model, job.groups, job.cpu_demand)
        if job.total_steps is not None:
            return speed
        rate = speed.steps_per_s({group.type: group.count for group in job.groups})
        if job.duration_s is None or rate <= 0:
            raise ValueError(f"job {job.key}: needs steps, or a duration and at least 1 PS and 1 worker with CPU")
        return PsCpuTrueSpeed(job.duration_s * rate, model, job.groups, job.cpu_demand)


# -- What nodes do to the jobs on them: their accelerators' speed, and CPUs that containers share ----------------------

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


# -- A training program that starts costs CPU, and one that trains beside it has that much less ------------------------
# A job that starts waits for its program. One that is rescaled trains on meanwhile, and what it gives up is free for
# others only after that.

BOOT_CORES = 1.0
"""CPUs that a program can use while it starts: importing and tracing run on one."""


@dataclass(slots=True)
class Boot:
    """A program on its way up: beside the one that trains in `placement`, if any. `part` is what was left at
    `since_s`, of `takes_s` in all with the CPU held now. `version` tells its latest end from those foreseen before."""

    placement: Placement
    cpu: Cpu
    pause_s: float
    not_before_s: float
    since_s: float
    part: float = 1.0
    takes_s: float = 0.0
    version: int = 0


@dataclass(frozen=True, slots=True)
class Training:
    """Steps per second, by type the part of the CPU held that is used, and the CPUs used by all that runs."""

    steps_per_s: float
    use: Mapping[str, float]
    busy: float


@dataclass(frozen=True, slots=True)
class CpuPool:
    """CPUs that one replica holds, or that those of one node share: by type, with their index."""

    cores: float
    replicas: Sequence[tuple[str, int, float]]
    """Each with what it holds of them."""

    def used(self, use: Mapping[str, float], counts: Mapping[str, int]) -> float:
        """CPUs that the first replicas of each type use of them, so many as `counts` says."""
        return sum(held * use.get(type_, 0.0) for type_, k, held in self.replicas if k < counts.get(type_, 0))


def pools(groups: Sequence[ReplicaGroup], placement: Placement, cpu: Cpu, *, shared: bool) -> list[CpuPool]:
    """What replicas share, as usable_cpu() has it."""
    found: dict[tuple[str, ...], list[tuple[str, int, float]]] = {}
    for type_, each in cores_held(groups, placement, cpu).items():
        alone = not (shared and takes_turns(type_))
        for k, (name, held) in enumerate(zip(placement[type_], each, strict=False)):
            found.setdefault((type_, str(k)) if alone else (name,), []).append((type_, k, held))
    return [CpuPool(sum(held for _, _, held in replicas), replicas) for replicas in found.values()]


class Boots:
    """The programs of all jobs that start. `cpu_s` is the CPU time of starting one process, `kept_cpu_s` that of one in
    a replica that stays."""

    def __init__(self, cpu_s: float, kept_cpu_s: float | None = None) -> None:
        self._cpu_s = cpu_s
        self._kept_cpu_s = cpu_s if kept_cpu_s is None else kept_cpu_s
        self._warm = kept_cpu_s is not None
        self._released: dict[str, float] = {}
        """By node: when what leaves it by a rescale is gone."""
        self._version = 0

    def begin(
        self, old: Placement, old_cpu: Cpu, new: Placement, pause_s: float, now: float, *, instead: Boot | None = None
    ) -> Boot:
        """A program in `new` beside the one in `old`; it waits until what leaves its nodes is gone. Where that one was
        still starting, as `instead`, its start was in vain: nothing trains beside the new one."""
        if instead is not None and not instead.placement:
            return Boot(UNPLACED, {}, max(pause_s, instead.pause_s), self.free_s(more_replicas(new, old), now), now)
        return Boot(old, old_cpu, pause_s, self.free_s(more_replicas(new, old), now), now)

    def foresee(
        self,
        boot: Boot,
        *,
        groups: Sequence[ReplicaGroup],
        placement: Placement,
        cpu: Cpu,
        use: Mapping[str, float],
        shared: bool,
        now: float,
    ) -> float:
        """When it is up, with the CPU that it holds from `now` on: `boot` is told, and a new version of it begins."""
        if boot.takes_s:
            boot.part = max(0.0, boot.part - max(0.0, now - boot.since_s) / boot.takes_s)
        boot.since_s = max(now, boot.not_before_s)
        boot.takes_s = self._takes_s(boot, pools(groups, placement, cpu, shared=shared), use)
        at = boot.since_s + boot.part * boot.takes_s
        self._version += 1
        boot.version = self._version
        for name in more_replicas(boot.placement, placement):
            self._released[name] = at
        return at

    def _takes_s(self, boot: Boot, where: Iterable[CpuPool], use: Mapping[str, float]) -> float:
        """Seconds until the slowest process has started, beside one that trains with at most half of the CPU."""
        takes_s, kept = 0.0, counts_of(boot.placement)
        for pool in where:
            spare = pool.cores - min(pool.used(use, kept), pool.cores / 2)
            cpu_s = sum(self._kept_cpu_s if k < kept.get(t, 0) else self._cpu_s for t, k, _ in pool.replicas)
            most = BOOT_CORES * len(pool.replicas)
            takes_s = max(takes_s, cpu_s / min(spare, most) if spare else inf)
        return takes_s

    def cores(self, boot: Boot, where: Iterable[CpuPool], use: Mapping[str, float]) -> float:
        """CPUs that the start takes from each replica that trains beside it. With a warm start that is done long before
        the replicas that are added have started, so this is the mean over all that time."""
        if not self._warm:
            return BOOT_CORES
        takes_s = self._takes_s(boot, where, use)
        return min(BOOT_CORES, self._kept_cpu_s / takes_s) if takes_s else 0.0

    def free_s(self, names: Iterable[str], now: float) -> float:
        """When what leaves these nodes by rescales is gone."""
        return max((self._released.get(name, now) for name in names), default=now)

    def gone(self, names: Iterable[str], now: float) -> None:
        """What was to leave these nodes by a rescale is gone at once."""
        self._released |= dict.fromkeys(names, now)


def training(
    bound: CpuBound,
    *,
    factor: float,
    groups: Sequence[ReplicaGroup],
    placement: Placement,
    cpu: Cpu,
    boot: Boot | None,
    boots: Boots,
    shared: bool = False,
) -> Training:
    """How a job of real speed `factor` times `bound` trains in `placement`, or beside `boot` where that began.
    `shared`: its replicas share the CPU that it holds on a node."""
    trains, held_cpu = (placement, cpu) if boot is None else (boot.placement, boot.cpu)
    cores = cores_held(groups, trains, held_cpu)
    usable = usable_cores(groups, trains, held_cpu, shared=True) if shared else cores
    pace = bound.pace(usable) if trains else Pace(0.0, {})
    rate = pace.steps_per_s * factor
    use = {type_: used * _part(usable[type_], cores[type_]) for type_, used in pace.use.items()}
    busy = sum(use.get(type_, 0.0) * sum(each) for type_, each in cores.items())
    if boot is not None:
        starting = cores_held(groups, placement, cpu)
        taken = boots.cores(boot, pools(groups, placement, cpu, shared=shared), use)
        counts = counts_of(trains)
        for pool in pools(groups, trains, held_cpu, shared=shared):
            if pool.cores:
                left = max(pool.cores - taken * len(pool.replicas), pool.cores / 2) / pool.cores
                if (part := pool.used(use, counts) / pool.cores) > left:
                    rate = min(rate, pace.steps_per_s * factor * left / part)
        kept = {type_: len(cores.get(type_, ())) for type_ in starting}
        busy = max(
            busy,
            sum(
                min(held, taken if k < kept[type_] else BOOT_CORES)
                for type_, each in starting.items()
                for k, held in enumerate(each)
            ),
        )
    return Training(rate, use, busy)


def _part(usable: Sequence[float], held: Sequence[float]) -> float:
    return sum(usable) / sum(held) if any(held) else 1.0
