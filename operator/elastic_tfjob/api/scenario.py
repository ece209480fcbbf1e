"""The schema of a scenario file, which describes jobs to generate instead of listing them as a trace does."""

import itertools
import re
from collections.abc import Iterable
from math import inf
from typing import Annotated, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from elastic_tfjob.api.reading import (
    MAX_DURATION_S,
    MAX_ENTRIES,
    MAX_MILLICORES,
    MAX_POD_BYTES,
    MAX_REPLICAS,
    MAX_WORD,
    describe,
    few,
)
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
Labels = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=317)], Annotated[str, Field(max_length=63)]],
    Field(max_length=MAX_ENTRIES),
]


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


class MemoryUse(_Model):
    """The memory that a parameter server uses: at first (default: half of its `memory_gib`), more for each hour of
    training at the declared size, and once more after so many seconds of it. `max_gib`: up to where it may be raised,
    as by the annotation max-memory."""

    used_gib: Number | None = None
    growth_gib_per_h: Number = 0.0
    jump_s: Number | None = None
    jump_gib: Number | None = None
    max_gib: MemoryGib | None = None

    @model_validator(mode="after")
    def whole_jump(self) -> "MemoryUse":
        if (self.jump_s is None) != (self.jump_gib is None):
            raise ValueError("a jump needs both jump_s and jump_gib")
        return self


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
    node_selector: Labels = Field({}, description="labels that a node must have")
    memory: MemoryUse | None = None

    @model_validator(mode="after")
    def bounded(self) -> "JobClass":
        if self.memory is not None and not (self.ps is not None and self.ps.memory_gib):
            raise ValueError("memory needs ps with memory_gib above 0")
        if self.memory is not None and self.ps is not None and (self.memory.max_gib or inf) < self.ps.memory_gib:
            raise ValueError(f"memory.max_gib {self.memory.max_gib:g} is below ps.memory_gib {self.ps.memory_gib:g}")
        return self

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
    cluster at that time. `notice_s`: how long before the loss the node is drained. Times are seconds of the
    scenario."""

    node: str
    added_s: float | None = Field(None, ge=0)
    lost_s: float | None = Field(None, ge=0)
    back_s: float | None = Field(None, ge=0)
    notice_s: float = Field(0.0, ge=0, le=86_400)

    @model_validator(mode="after")
    def ordered(self) -> "NodeHistory":
        if self.added_s is None and self.lost_s is None:
            raise ValueError("give added_s or lost_s")
        if self.back_s is not None and self.lost_s is None:
            raise ValueError("back_s needs lost_s")
        if self.notice_s and self.lost_s is None:
            raise ValueError("notice_s needs lost_s")
        times = [t for t in (self.added_s, self.lost_s, self.back_s) if t is not None]
        if any(one >= other for one, other in itertools.pairwise(times)):
            raise ValueError("added_s, lost_s and back_s must be in rising order")
        return self


# -- Nodes that an autoscaler adds and removes -------------------------------------------------------------------------

Seconds = Annotated[float, Field(ge=0, le=MAX_DURATION_S)]
Price = Annotated[float, Field(ge=0, le=1e6)]


class Spot(_Model):
    """The cloud takes the node away after a random time, exponential with this mean, and says so `notice_s` before."""

    mean_life_s: Positive
    notice_s: Seconds = 120.0


class NodeTemplate(_Model):
    """A kind of node that the autoscaler can add."""

    name: str = Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$")
    cpus: Cpus = 0.0
    memory_gib: MemoryGib = 0.0
    gpus: Gpus = 0
    labels: Labels = {}
    most: int = Field(MAX_NODES, ge=1, le=MAX_NODES, description="most such nodes at a time")
    lead_s: Number = Field(60.0, description="seconds from the launch until the node is ready")
    price: Price = Field(0.0, description="per hour, from the launch on")
    fails: float = Field(0.0, ge=0, le=1, description="probability that a launch fails")
    retry_s: float = Field(180.0, ge=1, le=MAX_DURATION_S, description="seconds without launches after a failed one")
    remove_after_s: Seconds = Field(
        15.0, description="seconds after which an empty node is removed: Karpenter 15, cluster autoscaler 600"
    )
    spot: Spot | None = None

    @model_validator(mode="after")
    def sensible(self) -> "NodeTemplate":
        if not (self.cpus or self.memory_gib or self.gpus):
            raise ValueError("give cpus, memory_gib or gpus above 0")
        lead = self.lead_s
        smallest = lead if isinstance(lead, float) else min((*(lead.uniform or ()), *(lead.choice or ())), default=0.0)
        if smallest < 0:
            raise ValueError(f"lead_s has {smallest:g}; allowed: 0 or more")
        return self


class NoCapacity(_Model):
    """From `from_s` to `until_s` each launch of these templates fails. Empty: of all templates."""

    from_s: float = Field(ge=0)
    until_s: float = Field(ge=0)
    templates: tuple[str, ...] = Field((), max_length=MAX_ENTRIES)

    @model_validator(mode="after")
    def ordered(self) -> "NoCapacity":
        if self.from_s >= self.until_s:
            raise ValueError(f"until_s {self.until_s:g} is not after from_s {self.from_s:g}")
        return self


class NodeOrders(_Model):
    """How jobs ask for nodes, with the keys of `autoscaling.order` in the ConfigMap."""

    when: Literal["always", "never"] = "always"
    size: Literal["declared", "smallest"] = "declared"
    jobs: int = Field(0, ge=0, le=100_000)
    pods: int = Field(1000, ge=1, le=10_000)
    cpu: float = Field(0.0, ge=0, le=MAX_MILLICORES / 1000)
    timeout_s: float = Field(900.0, ge=1, le=MAX_DURATION_S)
    retry_s: float = Field(300.0, ge=1, le=MAX_DURATION_S)


class NodeCompaction(_Model):
    """How jobs leave nodes, with the keys of `autoscaling.compact` in the ConfigMap."""

    after_s: float = Field(120.0, gt=0, le=MAX_DURATION_S)
    every_s: float = Field(30.0, gt=0, le=MAX_DURATION_S)
    forget_s: float = Field(1800.0, gt=0, le=MAX_DURATION_S)
    headroom: int = Field(0, ge=0, le=100_000)


class Autoscaling(_Model):
    """An autoscaler. It acts `batch_s` after the last new pod without room, at most `batch_most_s` after the first.
    With `consolidate` it also removes nodes whose pods fit on others: their jobs stop, and resume from a checkpoint.
    `compact` null: jobs do not leave nodes to it."""

    templates: tuple[NodeTemplate, ...] = Field(min_length=1, max_length=MAX_ENTRIES)
    order: NodeOrders = NodeOrders()
    compact: NodeCompaction | None = NodeCompaction()
    no_capacity: tuple[NoCapacity, ...] = Field((), max_length=10_000)
    consolidate: bool = False
    batch_s: float = Field(1.0, ge=0.1, le=3600)
    batch_most_s: float = Field(10.0, ge=0.1, le=3600)
    node_price: Price = Field(0.0, description="per hour, of each node that is there from the beginning")

    @model_validator(mode="after")
    def consistent(self) -> "Autoscaling":
        names = [template.name for template in self.templates]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"templates: the name {twice[0]} is there twice")
        for each in self.no_capacity:
            for name in each.templates:
                if name not in names:
                    raise ValueError(
                        f"no_capacity.templates: {describe(name)} is no template; allowed: {', '.join(names)}"
                    )
        if self.batch_most_s < self.batch_s:
            raise ValueError(f"batch_most_s {self.batch_most_s:g} is below batch_s {self.batch_s:g}")
        return self


class Scenario(_Model):
    """A whole scenario file."""

    jobs: int = Field(ge=1, le=MAX_SCENARIO_JOBS)
    arrivals: Arrivals = Arrivals()
    mix: tuple[JobClass, ...] = Field(min_length=1)
    speed_model: str | None = None
    inference: Inference | None = None
    nodes: tuple[NodeHistory, ...] = ()
    autoscaling: Autoscaling | None = None

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
        f"{_place(error['loc'])}{_message_of(error['type'], error['msg'])}{_found(error['type'], error['input'])}."
        f"{_meant(error['type'], error['loc'], error['msg'], error['input'], model)}".rstrip(".")
        for error in errors
        # pydantic also reports a list with invalid items as too short.
        if not (error["type"] == "too_short" and error["loc"] in inside)
    )


def _found(kind: str, value: object) -> str:
    """The value found; not the object that has the wrong key or values, which the place names."""
    whole = isinstance(value, dict) and kind in ("value_error", "extra_forbidden", "missing")
    return "" if whole else f" (found {describe(value)})"


_NO_KEY: Final = re.compile(r".*[\[(].*|float|int|str|bool")
"""Parts of a place that name a type of a union, not a key."""


def _place(place: tuple[int | str, ...]) -> str:
    return ".".join(str(part)[:MAX_WORD] for part in place if not _NO_KEY.fullmatch(str(part))) or "(whole)"


def _meant(kind: str, place: tuple[int | str, ...], message: str, found: object, model: type[BaseModel] | None) -> str:
    if kind == "extra_forbidden" and model is not None:
        return did_you_mean(str(place[-1]), keys_at(model, place[:-1]))
    if kind in ("literal_error", "union_tag_invalid"):
        word = found.get("kind", "") if isinstance(found, dict) else found
        return did_you_mean(str(word), re.findall(r"'([^']+)'", message.partition("expected")[2] or message))
    return ""


def keys_at(model: type[BaseModel], place: Iterable[int | str]) -> list[str]:
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
