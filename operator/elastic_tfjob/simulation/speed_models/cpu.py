"""Speed models in which speed depends on CPU: `cpu-share` (containers share a node's CPUs) and `ps-cpu`
(parameter-server training as fast as the CPU that its replicas hold); and the CPU cost of starting programs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
from elastic_tfjob.simulation.speed_models.base import SpeedModel, fixed_speed
from elastic_tfjob.simulation.speed_models.ps import MEASURED_TASKS, MODELS, PsModel
from elastic_tfjob.simulation.workload import WorkloadJob

Cores = Mapping[str, Sequence[float]]
"""CPUs that each replica holds, or can use while it computes, by replica type."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Steps per second, and for each replica type the mean used fraction of the CPU that its replicas can use."""

    steps_per_s: float
    use: Mapping[str, float]


@runtime_checkable
class CpuBound(Protocol):
    """A TrueSpeed that depends on the CPU that replicas can use while they compute."""

    def pace(self, cores: Cores) -> Pace: ...


def cores_held(groups: Sequence[ReplicaGroup], placement: Placement, cpu: Cpu) -> dict[str, list[float]]:
    """CPUs of each replica in `placement`: the value in `cpu`, else its request."""
    return usable_cores(groups, placement, cpu, shared=False)


def usable_cores(
    groups: Sequence[ReplicaGroup], placement: Placement, cpu: Cpu, *, shared: bool
) -> dict[str, list[float]]:
    """CPUs that each replica can use while it computes: those that it holds, or with `shared` those that its job holds
    on its node."""
    usable = usable_cpu(groups, placement, cpu, shared=shared)
    return {type_: [millicores / 1000 for millicores in each] for type_, each in usable.items()}


def used_of_held(
    spec: JobSpec, cpu_demand: float | None, placement: Placement, cpu: Cpu, part: float
) -> dict[str, float]:
    """The ratio of CPU used to CPU held by replica type, for a job whose containers share their nodes' CPUs and which
    runs at the fraction `part` of its undisturbed rate. Types that request no CPU hold none and are omitted."""
    use = {}
    for type_, each in cores_held(spec.groups, placement, cpu).items():
        if all(each):
            can = cpu_demand if cpu_demand is not None else spec.requested_cpu(type_) / 1000
            use[type_] = len(each) * can * part / sum(each)
    return use


# -- Containers that share a node's CPUs -------------------------------------------------------------------------------


CPU_SHARE = SpeedModel("cpu-share", partial(fixed_speed, name="cpu-share"), contended=True)
"""SpeCon's setting (arXiv 2010.11307): short CPU-bound jobs whose requests do not limit their CPU use.

One step is one second at undisturbed speed. A node's CPUs are divided in proportion to the CPU that its containers
hold, which is their request unless a plan changes it; CPU that a container cannot use goes to the other containers. A
container's speed is proportional to the CPU that it gets; a job is as slow as its slowest container. NodeSpeeds
computes the shares."""


# -- `ps-cpu`: parameter-server training in which speed is proportional to the CPU that replicas hold ------------------
# Requests are limits, as in a live cluster under kips.
#
# This is the formula of the speed model `ps` with added CPU factors. The work of workers, both divided among them (a)
# and done by each of them (b), scales with the workers' CPU; the work of PSs per worker (c) scales with the PSs' CPU;
# the network terms (d, e) do not depend on CPU:
#
#     1/f = (a/w + b)/k_w + c w/(p k_p) + d w + e p        k: CPU held / CPU with which the rest was measured


@dataclass(frozen=True, slots=True)
class CpuModel:
    """A model's speed formula. `form` was measured with `worker_cores` per worker and `ps_cores` per PS. `synchronous`
    workers wait for the slowest worker in each step; asynchronous ones proceed independently.
    """

    form: PsModel
    worker_cores: float
    ps_cores: float
    synchronous: bool = True


CPU_MODELS: dict[str, CpuModel] = {
    **{name: CpuModel(form, 2.0, 2.0) for name, form in MODELS.items()},
    "digits": CpuModel(PsModel(0.08, 0.0, 0.008, 0.0, 0.0, 1, 1.0, accelerator=False), 1.0, 1.0, synchronous=False),
}
"""DL2's models, measured with 2 CPUs per replica, and the live benchmark's model of handwritten digits, which uses CPU
alone."""


@dataclass(frozen=True, slots=True)
class PsCpuTrueSpeed:
    """The true speed of one job. `max_cores`: the CPUs that one replica can use at most. The requests in
    `groups` are what replicas hold unless a plan changes it."""

    total_steps: float
    model: CpuModel
    groups: tuple[ReplicaGroup, ...]
    max_cores: float | None = None

    def rate(self, placement: Placement) -> float:
        return self.steps_per_s(counts_of(placement))

    def steps_per_s(self, counts: Counts) -> float:
        return self.pace(
            {g.type: [g.request.cpu_millicores / 1000] * counts.get(g.type, 0) for g in self.groups}
        ).steps_per_s

    def pace(self, cores: Cores) -> Pace:
        model, form = self.model, self.model.form
        usable = {type_: [self._usable(type_, held) for held in each] for type_, each in cores.items()}
        workers, servers = usable.get(WORKER, []), usable.get(PS, [])
        if not workers or not servers or not min(workers) or not min(servers):
            return Pace(0.0, {})
        shrink = min(1.0, MEASURED_TASKS / (len(workers) + len(servers)))
        w, p = len(workers) * shrink, len(servers) * shrink
        pace_w = (min(workers) if model.synchronous else sum(workers) / len(workers)) / model.worker_cores
        pace_p = min(servers) / model.ps_cores
        rate = 1 / ((form.a / w + form.b) / pace_w + form.c * w / (p * pace_p) + form.d * w + form.e * p)
        use = dict.fromkeys(cores, 0.0)
        # CPU-seconds of a step divided by those held. Asynchronous workers compute all the time.
        use[WORKER] = rate * (form.a / w + form.b) * len(workers) * model.worker_cores / sum(cores[WORKER])
        use[PS] = rate * form.c * w / p * len(servers) * model.ps_cores / sum(cores[PS])
        return Pace(rate, {type_: min(1.0, u) for type_, u in use.items()})

    def _usable(self, type_: str, held_cores: float) -> float:
        most = self.max_cores
        if most is None:
            most = next(g.request.cpu_millicores / 1000 for g in self.groups if g.type == type_)
        return min(held_cores, most)


def ps_cpu_speed(job: WorkloadJob) -> PsCpuTrueSpeed:
    """The job's speed under `ps-cpu`. Its work is its steps, or else the steps that its declared size does in its
    duration with the CPU that it requests."""
    model = CPU_MODELS.get(job.model)
    if model is None:
        raise ValueError(
            f"job {job.key}: the speed model ps-cpu does not know model {job.model!r}; allowed: {', '.join(CPU_MODELS)}"
        )
    speed = PsCpuTrueSpeed(job.total_steps or 0.0, model, job.groups, job.cpu_demand)
    if job.total_steps is not None:
        return speed
    rate = speed.steps_per_s({group.type: group.count for group in job.groups})
    if job.duration_s is None or rate <= 0:
        raise ValueError(f"job {job.key}: needs steps, or a duration and at least 1 PS and 1 worker with CPU")
    return PsCpuTrueSpeed(job.duration_s * rate, model, job.groups, job.cpu_demand)


PS_CPU = SpeedModel("ps-cpu", ps_cpu_speed)


# -- Effects of nodes on the speed of their jobs: accelerator speed, and CPUs shared by containers ---------------------

Container = tuple[str, str, int]
"""Key of the job, replica type, index."""


class NodeSpeeds:
    """The slowdown of jobs by their nodes in one run. `contended`: containers share their nodes' CPUs as under Linux:
    in proportion to their weights, no container gets more than it can use, and no CPU is idle that a container could
    use."""

    def __init__(self, nodes: Mapping[str, Node], *, contended: bool) -> None:
        self.contended = contended
        self._uneven = any(node.accelerator_speed != 1 for node in nodes.values())
        self._containers: dict[str, dict[Container, tuple[float, float]]] = {}
        """For each node its containers, in order of arrival, with the CPUs that each can use and its weight."""
        self._given: dict[str, dict[Container, float]] = {}
        """For each node the CPUs that each container gets. Nodes with changed containers are missing until the shares
        are computed again."""

    def changed(self, nodes: Mapping[str, Node]) -> None:
        """The set of nodes has changed."""
        self._uneven = any(node.accelerator_speed != 1 for node in nodes.values())
        self._given.clear()

    def slowdown(self, key: str, placement: Placement, nodes: Mapping[str, Node]) -> float:
        """The fraction of its undisturbed rate at which a job runs in this placement. It is as slow as its slowest
        replica."""
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
        """Update the containers of a job after a move. `cpu_demand` is the number of CPUs that one container can use;
        None: its request. A container's weight is the CPU that it holds; if it requests none, the CPU that it can
        use."""
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
                # A container that can use no CPU is not slowed down, and does not slow down other containers.
                self._containers.setdefault(name, {})[spec.key, type_, k] = (wanted or TINY, weight or TINY)
                self._given.pop(name, None)

    def _shares(self, name: str, node: Node) -> Mapping[Container, float]:
        given = self._given.get(name)
        if given is None:
            there = self._containers[name]
            shares = shared_out(node.capacity.cpu_millicores / 1000, list(there.values()))
            given = self._given[name] = dict(zip(there, shares, strict=True))
        return given

    def beside(self, names: Iterable[str]) -> list[str]:
        """Keys of the jobs on these nodes, each once."""
        return list({key: None for name in sorted(names) for key, _, _ in self._containers.get(name, ())})


TINY = 1e-9


def shared_out(cores: float, containers: Sequence[tuple[float, float]]) -> list[float]:
    """Divides `cores` among containers (CPUs that it can use, weight) in proportion to the weights. CPU that a
    container cannot use goes to the other containers."""
    if sum(wanted for wanted, _ in containers) <= cores:
        return [wanted for wanted, _ in containers]
    shares = [0.0] * len(containers)
    weights = sum(weight for _, weight in containers)
    for i in sorted(range(len(containers)), key=lambda i: containers[i][0] / containers[i][1]):
        wanted, weight = containers[i]
        shares[i] = min(wanted, cores * weight / weights)
        cores -= shares[i]
        weights -= weight
    return shares


# -- The CPU cost of starting a training program, which a program that trains at the same time loses -------------------
# A starting job waits for its program. A rescaling job continues to train meanwhile; the resources that it gives up are
# free for other jobs only when the new program has started.

BOOT_CORES = 1.0
"""CPUs that a program can use while it starts. Importing and tracing run on one CPU."""


@dataclass(slots=True)
class Boot:
    """A starting program. It runs beside the program that still trains in `placement`, if any. At `since_s` the
    fraction `part` of the start was left; the whole start takes `takes_s` seconds with the CPU held now. `version`
    distinguishes the latest predicted end from outdated ones. `begun_s`: when the change began. `workers_from`: the
    running program stays, and only workers from this index on start; None: another program starts everywhere."""

    placement: Placement
    cpu: Cpu
    pause_s: float
    not_before_s: float
    since_s: float
    part: float = 1.0
    takes_s: float = 0.0
    version: int = 0
    begun_s: float = 0.0
    workers_from: int | None = None


@dataclass(frozen=True, slots=True)
class Training:
    """Steps per second, the used fraction of the CPU held by replica type, and the CPUs used in all."""

    steps_per_s: float
    use: Mapping[str, float]
    busy_cores: float


@dataclass(frozen=True, slots=True)
class CpuPool:
    """CPUs that one replica holds, or that a job's replicas on one node share."""

    cores: float
    replicas: Sequence[tuple[str, int, float]]
    """(replica type, index, CPUs held) of each replica."""

    def used(self, use: Mapping[str, float], counts: Mapping[str, int]) -> float:
        """CPUs of this pool used by the first `counts[type]` replicas of each type."""
        return sum(held * use.get(type_, 0.0) for type_, k, held in self.replicas if k < counts.get(type_, 0))


def pools(groups: Sequence[ReplicaGroup], placement: Placement, cpu: Cpu, *, shared: bool) -> list[CpuPool]:
    """The CPU pools of a job's replicas, with the same rule as usable_cpu()."""
    found: dict[tuple[str, ...], list[tuple[str, int, float]]] = {}
    for type_, each in cores_held(groups, placement, cpu).items():
        alone = not (shared and takes_turns(type_))
        for k, (name, held) in enumerate(zip(placement[type_], each, strict=False)):
            found.setdefault((type_, str(k)) if alone else (name,), []).append((type_, k, held))
    return [CpuPool(sum(held for _, _, held in replicas), replicas) for replicas in found.values()]


class Boots:
    """The starting programs of all jobs. `cpu_s` is the CPU time of starting one process, `kept_cpu_s` that of one in a
    replica that stays."""

    def __init__(self, cpu_s: float, kept_cpu_s: float | None = None) -> None:
        self._cpu_s = cpu_s
        self._kept_cpu_s = cpu_s if kept_cpu_s is None else kept_cpu_s
        self._warm = kept_cpu_s is not None
        self._released: dict[str, float] = {}
        """For each node the time at which the replicas that leave it in a rescale are gone."""
        self._version = 0

    def begin(
        self,
        old: Placement,
        old_cpu: Cpu,
        new: Placement,
        pause_s: float,
        now: float,
        *,
        instead: Boot | None = None,
        workers_from: int | None = None,
    ) -> Boot:
        """Start a program in `new` beside the one in `old`. It waits until leaving replicas are gone from its nodes. If
        the program in `old` was itself still starting (`instead`), that start is discarded, and no program trains
        beside the new one."""
        if instead is not None and not instead.placement:
            pause_s = max(pause_s, instead.pause_s)
            return Boot(UNPLACED, {}, pause_s, self.free_s(more_replicas(new, old), now), now, begun_s=now)
        free_s = self.free_s(more_replicas(new, old), now)
        return Boot(old, old_cpu, pause_s, free_s, now, begun_s=now, workers_from=workers_from)

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
        """The time at which the program has started, with the CPU that it holds from `now` on. Updates `boot` and
        increments its version."""
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
        """Seconds until the slowest process has started. A program that trains beside it uses at most half of the
        CPU."""
        takes_s, kept = 0.0, counts_of(boot.placement)
        for pool in where:
            spare = pool.cores - min(pool.used(use, kept), pool.cores / 2)
            cpu_s = sum(self._start_cpu_s(boot, t, k, added=k >= kept.get(t, 0)) for t, k, _ in pool.replicas)
            most = BOOT_CORES * len(pool.replicas)
            takes_s = max(takes_s, cpu_s / min(spare, most) if spare else inf if cpu_s else 0.0)
        return takes_s

    def _start_cpu_s(self, boot: Boot, type_: str, index: int, *, added: bool) -> float:
        """CPU time for the start of a replica's process."""
        if boot.workers_from is not None:
            return self._cpu_s if type_ == WORKER and index >= boot.workers_from else 0.0
        return self._cpu_s if added else self._kept_cpu_s

    def cores(self, boot: Boot, where: Iterable[CpuPool], use: Mapping[str, float]) -> float:
        """CPUs that the start takes from each replica that trains beside it. A warm start ends long before the added
        replicas have started, so this is the mean over the whole start."""
        if boot.workers_from is not None:
            return 0.0
        if not self._warm:
            return BOOT_CORES
        takes_s = self._takes_s(boot, where, use)
        return min(BOOT_CORES, self._kept_cpu_s / takes_s) if takes_s else 0.0

    def free_s(self, names: Iterable[str], now: float) -> float:
        """The time at which all replicas that leave these nodes in rescales are gone."""
        return max((self._released.get(name, now) for name in names), default=now)

    def gone(self, names: Iterable[str], now: float) -> None:
        """The replicas that were to leave these nodes in a rescale are gone now."""
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
    """Speed and CPU use of a job with the true speed `factor` times `bound` in `placement`, or in the placement where
    `boot` began. `shared`: its replicas share the CPU that the job holds on a node."""
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
