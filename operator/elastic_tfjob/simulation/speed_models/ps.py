"""Parameter-server training: the synchronous Optimus form with coefficients of eight models.

The coefficients are a non-negative least squares fit to the 803 speeds that DL2's authors measured (github
pengyanghua/DL2, config_speed.txt): 1/f = a/w + b + c w/p + d w + e p in samples per second, median error 2 to 7 %.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from elastic_tfjob.scheduling.snapshot import PS, WORKER, Placement
from elastic_tfjob.simulation.speed_models.base import TrueSpeed
from elastic_tfjob.simulation.workload import WorkloadJob

MEASURED_TASKS = 24
"""The most PSs and workers of one job in DL2's measurements."""


@dataclass(frozen=True, slots=True)
class PsModel:
    """`epoch` is samples per epoch in DL2's unit of work, `length` the model's epochs as a share of the longest.

    `accelerator`: whether a worker uses one. Sizes above MEASURED_TASKS were not measured: there the same ratio of PSs
    to workers at MEASURED_TASKS stands for them, as the linear terms mean nothing so far out.
    """

    a: float
    b: float
    c: float
    d: float
    e: float
    epoch: int
    length: float
    accelerator: bool = True

    def samples_per_s(self, ps: int, workers: int) -> float:
        if ps < 1 or workers < 1:
            return 0.0
        shrink = min(1.0, MEASURED_TASKS / (ps + workers))
        p, w = ps * shrink, workers * shrink
        return 1 / (self.a / w + self.b + self.c * w / p + self.d * w + self.e * p)


MODELS: dict[str, PsModel] = {
    "resnet-50": PsModel(3.94e-3, 1.306e-2, 1.317e-2, 2.304e-4, 0, 115, 0.30),
    "vgg-16": PsModel(1.695e-2, 1.816e-2, 2.523e-2, 4.237e-3, 0, 115, 0.96),
    "resnext-110": PsModel(5.393e-4, 1.22e-3, 8.627e-4, 1.556e-4, 9.112e-6, 390, 0.05),
    "inception-bn": PsModel(3.105e-3, 1.204e-3, 1.3e-3, 1.516e-4, 2.197e-5, 120, 0.54),
    "seq2seq": PsModel(1.038e-3, 8.451e-4, 3.787e-4, 2.054e-4, 0, 780, 0.95),
    "cnn-text-classification": PsModel(7.464e-3, 6.891e-3, 4.75e-4, 3.388e-4, 0, 193, 0.46, accelerator=False),
    "dssm": PsModel(1.55e-3, 4.598e-4, 0, 2.852e-5, 8.803e-7, 349, 0.33, accelerator=False),
    "wlm": PsModel(5.874e-4, 1.496e-3, 9.914e-4, 1.924e-4, 0, 165, 0.23),
}


@dataclass(frozen=True, slots=True)
class PsTrueSpeed:
    """A step is one sample."""

    total_steps: float
    model: PsModel

    def rate(self, placement: Placement) -> float:
        return self.model.samples_per_s(len(placement.get(PS, ())), len(placement.get(WORKER, ())))

    def steps_per_s(self, counts: Mapping[str, int]) -> float | None:
        return self.model.samples_per_s(counts.get(PS, 0), counts.get(WORKER, 0))


@dataclass(frozen=True, slots=True)
class PsSpeedModel:
    """A job's work is its steps (samples), or what its declared size does in its duration."""

    name: str = "ps"
    contended: bool = False

    def true_speed(self, job: WorkloadJob) -> TrueSpeed:
        model = MODELS.get(job.model)
        if model is None:
            raise ValueError(
                f"job {job.key}: the speed model ps knows no model {job.model!r}, only {', '.join(MODELS)}"
            )
        if job.total_steps is not None:
            return PsTrueSpeed(job.total_steps, model)
        counts = {group.type: group.count for group in job.groups}
        rate = model.samples_per_s(counts.get(PS, 0), counts.get(WORKER, 0))
        if job.duration_s is None or rate <= 0:
            raise ValueError(
                f"job {job.key}: the speed model ps needs steps, or a duration and at least 1 PS and 1 worker"
            )
        return PsTrueSpeed(job.duration_s * rate, model)
