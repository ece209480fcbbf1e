"""The schema of a scenario file, which describes jobs to generate instead of listing them as a trace does."""

import itertools
import re
from typing import Annotated, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from elastic_tfjob.api.reading import MAX_MILLICORES, MAX_POD_BYTES, MAX_REPLICAS, MAX_WORD, describe, few
from elastic_tfjob.api.words import did_you_mean

MAX_NODES: Final = 100_000
"""Nodes of a simulated pool: twenty times the number that Kubernetes is tested with."""

MAX_GPUS_PER_NODE: Final = 1024

MAX_SCENARIO_JOBS: Final = 10_000_000
"""Jobs that a scenario generates in all replications together; they take about 10 GB of memory."""

# Messages for pydantic's error types whose own messages use Python terms.
_PLAINLY: Final = {
    "extra_forbidden": "is not known",
    "missing": "is missing",
    "dict_type": "should be an object with keys",
    "model_type": "should be an object with keys",
    "list_type": "should be a list",
    "tuple_type": "should be a list",
    "string_type": "should be a string",
    "float_type": "should be a number",
    "float_parsing": "should be a number",
    "int_type": "should be a whole number",
    "int_parsing": "should be a whole number",
    "int_from_float": "should be a whole number",
    "bool_type": "should be true or false",
    "bool_parsing": "should be true or false",
}

TEAM_NAME: Final = r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$"
"""A namespace, or nothing."""

Positive = Annotated[float, Field(gt=0, le=1e16)]
Cpus = Annotated[float, Field(ge=0, le=MAX_MILLICORES / 1000)]
MemoryGib = Annotated[float, Field(ge=0, le=MAX_POD_BYTES / 2**30)]
Gpus = Annotated[int, Field(ge=0, le=MAX_GPUS_PER_NODE)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Lognormal(_Model):
    median: Positive
    sigma: float = Field(gt=0, le=10)


class Distribution(_Model):
    """A random number, drawn for each job. Exactly one kind must be given."""

    uniform: tuple[float, float] | None = None
    exponential: Positive | None = Field(None, description="its mean")
    lognormal: Lognormal | None = None
    choice: tuple[float, ...] | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def one(self) -> "Distribution":
        if sum(v is not None for v in (self.uniform, self.exponential, self.lognormal, self.choice)) != 1:
            raise ValueError("give exactly one of uniform, exponential, lognormal, choice")
        return self


Number = float | Distribution


class Arrivals(_Model):
    """When jobs arrive. `fixed`: one every `every_s`; `uniform`: in [0, window_s]; `poisson`: at the rate `per_hour`;
    `burst`: all at once; `diurnal`: Poisson with a rate between 0 and twice `per_hour`, which peaks at 15:00."""

    kind: Literal["fixed", "uniform", "poisson", "burst", "diurnal"] = "poisson"
    every_s: Positive = 30.0
    window_s: Positive = 200.0
    per_hour: Positive = 30.0


class Replicas(_Model):
    """`count` replicas, elastic between `min` and `max` (default: the count), each with these requests."""

    count: Number = 1
    min: int | None = Field(None, ge=1, le=MAX_REPLICAS)
    max: int | None = Field(None, ge=1, le=MAX_REPLICAS)
    cpus: Cpus = 0.0
    memory_gib: MemoryGib = 0.0
    gpus: Gpus = 0

    @model_validator(mode="after")
    def ordered(self) -> "Replicas":
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self


class Loss(_Model):
    """l(k) = 1 / (b0 k + b1) + b2 after k steps."""

    b0: Positive
    b1: Positive
    b2: float = Field(0.0, ge=0)


class JobClass(_Model):
    """One kind of job. Its length is `duration_s` at the declared size, or `steps`. With `deadline_factor` the deadline
    is the arrival plus this factor times the duration. `team`: whose jobs these are, as a namespace of a live cluster.
    """

    name: str
    team: str = Field("", pattern=TEAM_NAME)
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
    """A second pool of nodes, whose own demand varies over the day."""

    nodes: int = Field(ge=1, le=MAX_NODES)
    gpus_per_node: Gpus = 8
    cpus_per_node: Cpus = 64.0
    memory_gib_per_node: MemoryGib = 512.0
    accelerator_speed: Positive = 1.0
    headroom: float = Field(0.02, ge=0, lt=1)


class PoolFile(Inference):
    """A pool file: an inference pool, and the share of jobs that may run on its lent nodes."""

    loanable: float | None = Field(None, ge=0, le=1)


class NodeHistory(_Model):
    """Changes of a node: it is lost at `lost_s` and returns at `back_s`, if given. A node with `added_s` joins the
    cluster at that time. Times are seconds of the scenario."""

    node: str
    added_s: float | None = Field(None, ge=0)
    lost_s: float | None = Field(None, ge=0)
    back_s: float | None = Field(None, ge=0)

    @model_validator(mode="after")
    def ordered(self) -> "NodeHistory":
        if self.added_s is None and self.lost_s is None:
            raise ValueError("give added_s or lost_s")
        if self.back_s is not None and self.lost_s is None:
            raise ValueError("back_s needs lost_s")
        times = [t for t in (self.added_s, self.lost_s, self.back_s) if t is not None]
        if any(one >= other for one, other in itertools.pairwise(times)):
            raise ValueError("added_s, lost_s and back_s must be in rising order")
        return self


class Scenario(_Model):
    """A whole scenario file."""

    jobs: int = Field(ge=1, le=MAX_SCENARIO_JOBS)
    arrivals: Arrivals = Arrivals()
    mix: tuple[JobClass, ...] = Field(min_length=1)
    speed_model: str | None = None
    inference: Inference | None = None
    nodes: tuple[NodeHistory, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def renamed(cls, content: object) -> object:
        """`world` is what `speed_model` was called: read for one more release."""
        if isinstance(content, dict) and content.get("speed_model") is None and "world" in content:
            return {**{k: v for k, v in content.items() if k != "world"}, "speed_model": content["world"]}
        return content


def parse_scenario(content: object) -> Scenario:
    """Raises ValueError with a line per problem: the place, the error and the value found."""
    try:
        return Scenario.model_validate(content)
    except ValidationError as e:
        raise ValueError("\n".join(wrong_places(e, Scenario))) from e


def parse_pool(content: object) -> PoolFile:
    """Raises ValueError as `parse_scenario` does."""
    try:
        return PoolFile.model_validate(content)
    except ValidationError as e:
        raise ValueError("\n".join(wrong_places(e, PoolFile))) from e


def wrong_places(e: ValidationError, model: type[BaseModel] | None = None) -> list[str]:
    """A limited number of lines, one per error: the place, the error and the value found. With `model`, the line also
    suggests the nearest key."""
    errors = e.errors(include_url=False, include_context=False)
    inside = {error["loc"][:length] for error in errors for length in range(1, len(error["loc"]))}
    return few(
        f"{_place(error['loc'])}{_message_of(error['type'], error['msg'])} "
        f"(found {describe(error['input'])}){_meant(error['type'], error['loc'], error['msg'], error['input'], model)}"
        for error in errors
        # pydantic also reports a list with invalid items as too short.
        if not (error["type"] == "too_short" and error["loc"] in inside)
    )


_NO_KEY: Final = re.compile(r".*[\[(].*|float|int|str|bool")
"""Parts of a place that name a type of a union, not a key."""


def _place(place: tuple[int | str, ...]) -> str:
    return ".".join(str(part)[:MAX_WORD] for part in place if not _NO_KEY.fullmatch(str(part))) or "(whole)"


def _meant(kind: str, place: tuple[int | str, ...], message: str, found: object, model: type[BaseModel] | None) -> str:
    if kind == "extra_forbidden" and model is not None:
        return did_you_mean(str(place[-1]), _keys_at(model, place[:-1]))
    if kind in ("literal_error", "union_tag_invalid"):
        word = found.get("kind", "") if isinstance(found, dict) else found
        return did_you_mean(str(word), re.findall(r"'([^']+)'", message.partition("expected")[2] or message))
    return ""


def _keys_at(model: type[BaseModel], place: tuple[int | str, ...]) -> list[str]:
    """The known keys at a place of the model. Parts of the place that are not keys, such as types of a union, are
    skipped."""
    models = [model]
    for part in place:
        inner = [
            each
            for one in models
            if part in one.model_fields
            for each in _models_in(one.model_fields[str(part)].annotation)
        ]
        models = inner or models
    return [key for each in models for key in each.model_fields]


def _models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for each in get_args(annotation) for model in _models_in(each)]


def _message_of(kind: str, message: str) -> str:
    """The message after the place, for people who write YAML and do not know pydantic."""
    problem = _PLAINLY.get(kind, message).removeprefix("Value error, ")
    return (
        f" {problem.removeprefix('Input ')}"
        if problem.startswith(("is ", "Input should ", "should "))
        else f": {problem}"
    )
