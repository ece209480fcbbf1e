"""Parameter-server training whose replicas are as fast as the CPU they hold: requests are limits, as under kips live.

The form of the speed model `ps` with CPU in it. What workers do, in parts (a) and each whole (b), goes with the CPU of
workers; what PSs do for each of them (c) with that of PSs; the network (d, e) does not:

    1/f = (a/w + b)/k_w + c w/(p k_p) + d w + e p        k: CPU held / CPU with which the rest was measured
"""

from dataclasses import dataclass

from elastic_tfjob.scheduling.snapshot import PS, WORKER, Counts, Placement, ReplicaGroup, counts_of
from elastic_tfjob.simulation.speed_models.base import TrueSpeed
from elastic_tfjob.simulation.speed_models.cpu import Cores, Pace
from elastic_tfjob.simulation.speed_models.ps import MEASURED_TASKS, MODELS, PsModel
from elastic_tfjob.simulation.workload import WorkloadJob


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
