"""Two speed models for parameter-server training of eight models: `ps` and `ps-measured`.

`ps` uses the synchronous formula of Optimus, 1/f = a/w + b + c w/p + d w + e p, with f in samples per second. Its
coefficients are a non-negative least squares fit to the 803 speeds that DL2's authors measured (github pengyanghua/DL2,
config_speed.txt); the median error is 2 to 7 %. `ps-measured` follows these measurements more closely (see below).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from math import exp, log
from random import Random
from typing import Final, Literal

from elastic_tfjob.scheduling.snapshot import PS, WORKER, Placement
from elastic_tfjob.simulation.speed_models.base import SpeedModel, TrueSpeed
from elastic_tfjob.simulation.workload import WorkloadJob

__all__ = ["PS_FORMULA", "SURFACES", "PsMeasuredTrueSpeed", "ps_measured", "samples_per_s"]

MEASURED_TASKS = 24
"""The maximum number of PSs and workers together of one job in DL2's measurements."""


@dataclass(frozen=True, slots=True)
class PsModel:
    """The coefficients of one model. `epoch` is the number of samples per epoch in DL2's unit of work, `length` the
    model's number of epochs as a share of the longest.

    `accelerator`: whether a worker uses one. Sizes above MEASURED_TASKS were not measured. They have the speed of the
    size with MEASURED_TASKS replicas and the same ratio of PSs to workers, as the linear terms mean nothing so far
    outside the measured range.
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
    """The true speed under `ps`. A step is one sample."""

    total_steps: float
    model: PsModel

    def rate(self, placement: Placement) -> float:
        return self.model.samples_per_s(len(placement.get(PS, ())), len(placement.get(WORKER, ())))

    def steps_per_s(self, counts: Mapping[str, int]) -> float | None:
        return self.model.samples_per_s(counts.get(PS, 0), counts.get(WORKER, 0))


def ps_speed(job: WorkloadJob) -> TrueSpeed:
    """The job's speed under `ps`. Its work is its steps (samples), or else the steps that its declared size does in its
    duration."""
    model = MODELS.get(job.model)
    if model is None:
        raise ValueError(
            f"job {job.key}: the speed model ps does not know model {job.model!r}; allowed: {', '.join(MODELS)}"
        )
    return PsTrueSpeed(_samples(job, "ps", model.samples_per_s), model)


def _samples(job: WorkloadJob, name: str, samples_per_s: Callable[[int, int], float]) -> float:
    """The job's work in samples. `samples_per_s`: the speed with these numbers of PS and workers; `name`: the speed
    model, for the error."""
    if job.total_steps is not None:
        return job.total_steps
    counts = {group.type: group.count for group in job.groups}
    rate = samples_per_s(counts.get(PS, 0), counts.get(WORKER, 0))
    if job.duration_s is None or rate <= 0:
        raise ValueError(
            f"job {job.key}: the speed model {name} needs steps, or a duration and at least 1 PS and 1 worker"
        )
    return job.duration_s * rate


PS_FORMULA = SpeedModel("ps", ps_speed)


# -- `ps-measured`: parameter-server training with measured speeds that Optimus' formula does not give -----------------
# Let p and w be the numbers of PSs and workers, P and W their logarithms, `one` 1 for one PS and one worker (which
# share a node) and else 0, and r the logarithm of a residual:
#
#     log(samples/s) = c0 + c1 P + c2 W + c3 P^2 + c4 P W + c5 W^2 + c6 one + r
#
# The coefficients are a fit of least relative errors to 795 of the 803 speeds that DL2's authors measured (github
# pengyanghua/DL2, config_speed.txt; the other 8 have no speed); its median error is 1 to 6 % by model. Residuals are
# drawn once for each model and size; their median size is that error. The speed model `ps` is the fit of Optimus'
# formula to the same measurements.

OracleSpeed = Literal["truth", "fit"]


@dataclass(frozen=True, slots=True)
class Surface:
    """`c`: the coefficients c0 to c6 above. `residual`: the standard deviation of r, which is the median error divided
    by 0.6745."""

    c: tuple[float, float, float, float, float, float, float]
    residual: float


SURFACES: Final[Mapping[str, Surface]] = {
    "resnet-50": Surface((2.966, 0.6798, -0.1297, -0.0988, 0.09793, -0.133, -0.2068), 0.073),
    "vgg-16": Surface((2.068, 0.6924, 0.2051, -0.09664, 0.01238, -0.2391, 0.1886), 0.061),
    "resnext-110": Surface((5.757, 0.3291, -0.2326, -0.06938, 0.1303, -0.1367, 0.1907), 0.081),
    "inception-bn": Surface((5.0, 0.3893, 0.1834, -0.1008, 0.1641, -0.2415, 0.1344), 0.049),
    "seq2seq": Surface((5.317, 0.6685, 0.4898, -0.1247, -0.05658, -0.2567, 0.3056), 0.075),
    "cnn-text-classification": Surface((4.074, 0.1977, 0.3943, -0.05109, 0.03175, -0.1619, 0.05136), 0.019),
    "dssm": Surface((6.172, 0.002183, 0.8883, 0.001455, -0.01501, -0.222, -0.036), 0.059),
    "wlm": Surface((5.027, 0.8116, 0.1599, -0.1566, -0.003253, -0.1934, 0.0604), 0.046),
}


@lru_cache(maxsize=65536)
def samples_per_s(model: str, ps: int, workers: int, seed: int = 0) -> float:
    """Samples per second of this model; 0 without a PS or a worker. More than MEASURED_TASKS replicas were not
    measured; such sizes have the speed of MEASURED_TASKS replicas with the same ratio of PSs to workers. Raises
    KeyError for an unknown model."""
    surface = SURFACES[model]
    if ps < 1 or workers < 1:
        return 0.0
    shrink = min(1.0, MEASURED_TASKS / (ps + workers))
    p, w = log(max(1.0, ps * shrink)), log(max(1.0, workers * shrink))
    r = Random(f"{seed} {model} {round(exp(p))} {round(exp(w))}").gauss(0.0, surface.residual)
    terms = (1.0, p, w, p * p, p * w, w * w, float(ps == workers == 1))
    return exp(sum(c * term for c, term in zip(surface.c, terms, strict=True)) + r)


@dataclass(frozen=True, slots=True)
class PsMeasuredTrueSpeed:
    """The true speed under `ps-measured`. A step is one sample. `oracle_speed`: the speed that a policy with the oracle
    gets: the truth, or the fit of Optimus' formula."""

    total_steps: float
    model: str
    seed: int = 0
    oracle_speed: OracleSpeed = "truth"

    def rate(self, placement: Placement) -> float:
        return samples_per_s(self.model, len(placement.get(PS, ())), len(placement.get(WORKER, ())), self.seed)

    def steps_per_s(self, counts: Mapping[str, int]) -> float | None:
        ps, workers = counts.get(PS, 0), counts.get(WORKER, 0)
        if self.oracle_speed == "fit":
            return MODELS[self.model].samples_per_s(ps, workers)
        return samples_per_s(self.model, ps, workers, self.seed)


def ps_measured_speed(job: WorkloadJob, seed: int = 0, oracle_speed: OracleSpeed = "truth") -> TrueSpeed:
    """The job's speed under `ps-measured`. Its work is its steps (samples), or else the steps that its declared size
    does in its duration."""
    if job.model not in SURFACES:
        raise ValueError(
            f"job {job.key}: the speed model ps-measured does not know model {job.model!r}; allowed: "
            f"{', '.join(SURFACES)}"
        )
    samples = _samples(job, "ps-measured", lambda ps, workers: samples_per_s(job.model, ps, workers, seed))
    return PsMeasuredTrueSpeed(samples, job.model, seed, oracle_speed)


def ps_measured(seed: int = 0, oracle_speed: OracleSpeed = "truth") -> SpeedModel:
    """The speed model `ps-measured`. `seed` determines the residuals. `oracle_speed` must be `truth` if policies
    measure speeds before a job starts."""
    return SpeedModel("ps-measured", partial(ps_measured_speed, seed=seed, oracle_speed=oracle_speed))
