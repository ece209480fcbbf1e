"""Scenarios: a YAML file that says what jobs to make, instead of a trace that lists them."""

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import PS, WORKER, ReplicaGroup
from elastic_tfjob.simulation.formats import GIB, WorkloadError
from elastic_tfjob.simulation.inference import DAY_S, HOUR_S, InferencePool
from elastic_tfjob.simulation.workload import LossCurve, Workload, WorkloadJob

Positive = Annotated[float, Field(gt=0)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Lognormal(_Model):
    median: Positive
    sigma: Positive


class Distribution(_Model):
    """A number, or exactly one of these."""

    uniform: tuple[float, float] | None = None
    exponential: Positive | None = Field(None, description="its mean")
    lognormal: Lognormal | None = None
    choice: tuple[float, ...] | None = None

    @model_validator(mode="after")
    def one(self) -> "Distribution":
        if sum(v is not None for v in (self.uniform, self.exponential, self.lognormal, self.choice)) != 1:
            raise ValueError("give exactly one of uniform, exponential, lognormal, choice")
        return self

    def draw(self, rng: random.Random) -> float:
        if self.uniform is not None:
            return rng.uniform(*self.uniform)
        if self.exponential is not None:
            return rng.expovariate(1 / self.exponential)
        if self.lognormal is not None:
            return rng.lognormvariate(math.log(self.lognormal.median), self.lognormal.sigma)
        assert self.choice is not None
        return rng.choice(self.choice)


Number = float | Distribution


def draw(number: Number, rng: random.Random) -> float:
    return number if isinstance(number, (int, float)) else number.draw(rng)


class Arrivals(_Model):
    """When jobs come: `fixed` one every `every_s`; `uniform` in [0, window_s]; `poisson` at `per_hour`; `burst` all at
    once; `diurnal` Poisson whose rate swings between 0 and twice `per_hour` with its peak at 15:00."""

    kind: Literal["fixed", "uniform", "poisson", "burst", "diurnal"] = "poisson"
    every_s: Positive = 30.0
    window_s: Positive = 200.0
    per_hour: Positive = 30.0

    def times(self, n: int, rng: random.Random) -> list[float]:
        match self.kind:
            case "fixed":
                return [k * self.every_s for k in range(n)]
            case "uniform":
                return sorted(rng.uniform(0, self.window_s) for _ in range(n))
            case "burst":
                return [0.0] * n
            case "poisson" | "diurnal":
                return list(self._poisson(n, rng))

    def _poisson(self, n: int, rng: random.Random) -> Iterator[float]:
        """Thinning: candidates at the highest rate, kept with the rate of their time over it."""
        t, given, swing = 0.0, 0, self.kind == "diurnal"
        highest = self.per_hour * (2 if swing else 1)
        while given < n:
            t += rng.expovariate(highest / HOUR_S)
            rate = self.per_hour * (1 + math.cos(2 * math.pi * (t - 15 * HOUR_S) / DAY_S)) if swing else highest
            if rng.random() * highest <= rate:
                given += 1
                yield t


class Replicas(_Model):
    """`count` replicas, elastic between `min` and `max` (the count itself where not given), each asking for this."""

    count: Number = 1
    min: int | None = Field(None, ge=1)
    max: int | None = Field(None, ge=1)
    cpus: float = Field(0.0, ge=0)
    memory_gib: float = Field(0.0, ge=0)
    gpus: int = Field(0, ge=0)

    def group(self, type_: str, rng: random.Random) -> ReplicaGroup:
        count = max(1, round(draw(self.count, rng)))
        low, high = self.min or count, self.max or count
        request = Resources(round(self.cpus * 1000), round(self.memory_gib * GIB), self.gpus)
        return ReplicaGroup(type_, request, min(max(count, low), high), low, high)


class Loss(_Model):
    b0: Positive
    b1: Positive
    b2: float = Field(0.0, ge=0)


class JobClass(_Model):
    """One kind of job. Its length is `duration_s` at the declared size, or `steps`. `deadline_factor` sets a deadline
    at arrival plus this times the duration."""

    name: str
    weight: Positive = 1.0
    model: str = ""
    batch_size: int = Field(0, ge=0)
    workers: Replicas
    ps: Replicas | None = None
    duration_s: Number | None = None
    steps: Number | None = None
    deadline_factor: Number | None = None
    priority: int = 0
    loanable: bool = False
    cpu_demand: Positive | None = Field(None, description="CPUs one replica uses if it can; default: its request")
    loss: Loss | None = None

    @model_validator(mode="after")
    def length(self) -> "JobClass":
        if self.duration_s is None and self.steps is None:
            raise ValueError("give duration_s or steps")
        if self.deadline_factor is not None and self.duration_s is None:
            raise ValueError("deadline_factor needs duration_s")
        return self


class Inference(_Model):
    """The second pool of nodes, with a daily swing of its own demand."""

    nodes: int = Field(ge=1)
    gpus_per_node: int = Field(8, ge=0)
    cpus_per_node: float = Field(64.0, ge=0)
    memory_gib_per_node: float = Field(512.0, ge=0)
    accelerator_speed: Positive = 1.0
    headroom: float = Field(0.02, ge=0, lt=1)


class Scenario(_Model):
    """A whole scenario file."""

    jobs: int = Field(ge=1)
    arrivals: Arrivals = Arrivals()
    mix: tuple[JobClass, ...] = Field(min_length=1)
    world: str | None = None
    inference: Inference | None = None

    def generate(self, seed: int) -> tuple[WorkloadJob, ...]:
        """The jobs of one seed; the same seed gives the same jobs."""
        rng = random.Random(seed)
        weights = [kind.weight for kind in self.mix]
        width = len(str(self.jobs - 1))
        return tuple(
            self._job(f"{kind.name}-{k:0{width}}", t, kind, rng)
            for k, t in enumerate(self.arrivals.times(self.jobs, rng))
            for kind in rng.choices(self.mix, weights)
        )

    def _job(self, key: str, t: float, kind: JobClass, rng: random.Random) -> WorkloadJob:
        groups = [kind.workers.group(WORKER, rng)]
        if kind.ps is not None:
            groups.append(kind.ps.group(PS, rng))
        duration = None if kind.duration_s is None else max(1.0, draw(kind.duration_s, rng))
        deadline = None
        if kind.deadline_factor is not None and duration is not None:
            deadline = t + draw(kind.deadline_factor, rng) * duration
        return WorkloadJob(
            key=key,
            submit_s=t,
            groups=tuple(groups),
            duration_s=duration,
            total_steps=None if kind.steps is None else max(1.0, draw(kind.steps, rng)),
            deadline_s=deadline,
            priority=kind.priority,
            model=kind.model,
            batch_size=kind.batch_size,
            loanable=kind.loanable,
            cpu_demand=kind.cpu_demand,
            loss=None if kind.loss is None else LossCurve(kind.loss.b0, kind.loss.b1, kind.loss.b2),
        )

    def inference_pool(self) -> InferencePool | None:
        pool = self.inference
        if pool is None:
            return None
        each = Resources(round(pool.cpus_per_node * 1000), round(pool.memory_gib_per_node * GIB), pool.gpus_per_node)
        return InferencePool(pool.nodes, each, pool.accelerator_speed, headroom=pool.headroom)

    def workload(self, name: str, seed: int) -> Workload:
        return Workload(name, "scenario", self.generate(seed))


def read_scenario(path: Path) -> Scenario:
    """Raises WorkloadError that names the file, the place in it, the value and what is allowed."""
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as e:
        raise WorkloadError(f"{path}: cannot be read: {e}") from e
    except yaml.YAMLError as e:
        raise WorkloadError(f"{path}: not YAML: {e}") from e
    try:
        return Scenario.model_validate(content)
    except ValidationError as e:
        lines = [
            f"  {'.'.join(map(str, error['loc'])) or '(file)'}: {error['msg']} (found {error['input']!r})"
            for error in e.errors()
        ]
        raise WorkloadError(f"{path}: {len(lines)} thing(s) wrong in the scenario:\n" + "\n".join(lines)) from e
