"""The operator's configuration: the key `config.yaml` of a ConfigMap. Changes take effect without a restart.

profile: kips              # the scheduling policy; `fixed` works as upstream does
scope: annotated           # jobs with an elastic.kubeflow.org/ annotation, or all
profiles: {kips: {cooldown_s: 60}}
rescale: {prepare_timeout_s: 300}
memory: {headroom: 0.1}    # of replicas with max-memory
status: {interval_s: 5, max_requests_per_s: 50}
query: {max_open_requests: 64}
injected: {requests: {cpu: 10m, memory: 32Mi}}    # resources of the injected container
pools: {inference: {namespaces: [serving], headroom: 1}}    # nodes with the label elastic.kubeflow.org/pool=inference
autoscaling: {draining: {example.com/maintenance: 600}}    # more taints that drain a node, with the notice in seconds
kueue: {growth: workloads}    # jobs may use free quota of their Kueue queue
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from elastic_tfjob.api.quantity import is_quantity, millicores, quantity
from elastic_tfjob.api.reading import (
    MAX_CONFIGURATION_BYTES,
    MAX_DURATION_S,
    MAX_PROBLEM_LENGTH,
    MAX_PROBLEMS,
    cut,
    describe,
    document,
)
from elastic_tfjob.api.scenario import keys_at, wrong_places
from elastic_tfjob.api.words import did_you_mean
from elastic_tfjob.controller.model.cluster import (
    AUTOSCALED_LABELS,
    LOANED_TAINT,
    POOL_LABEL,
    POOL_NAME,
    KubeNode,
    selects,
)
from elastic_tfjob.controller.model.injection import DEFAULT_RESOURCES, RESOURCES, ContainerResources
from elastic_tfjob.scheduling.contract import refusals
from elastic_tfjob.scheduling.given_up import CompactionTimes
from elastic_tfjob.scheduling.memory_limit import MemoryRule
from elastic_tfjob.scheduling.profiles import ProfileParameters, all_profiles, build, parse_profile, there_are
from elastic_tfjob.scheduling.profiles.elastic import ElasticSettings
from elastic_tfjob.scheduling.snapshot import OrderRules
from elastic_tfjob.scheduling.steps.teams import TeamRules

__all__ = [
    "FIXED",
    "AutoscalingSettings",
    "Configuration",
    "InjectedResources",
    "KueueSettings",
    "MemoryLimits",
    "OrderSettings",
    "PoolSettings",
    "QueryLimits",
    "RescaleLimits",
    "StatusPolling",
    "parse_configuration",
    "team_rules",
]

STOP_COOLDOWN_S: Final = 60.0
FIXED: Final = "fixed"
# The core's name for nodes that are in no pool.
OWN_POOL: Final = "training"
# Parameters about loans, and their values without loans.
_ABOUT_LOANS: Final = {"lend": "none", "reclaim": "first"}
# A label key: up to 63 characters, with a DNS name before it.
_TAINT_KEY: Final = re.compile(
    r"(?:[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[-\w.]{0,61}[A-Za-z0-9])?", re.ASCII
)
_LABEL: Final = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_./]{0,316}(=[-A-Za-z0-9_.]{0,63})?")
Seconds = Annotated[float, Field(gt=0, le=MAX_DURATION_S)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class RescaleLimits(_Model):
    """Seconds that each phase of a rescale may take before it is rolled back."""

    prepare_timeout_s: Seconds = Field(300.0, description="seconds until the new size is prepared next to the old one")
    checkpoint_timeout_s: Seconds = Field(120.0, description="seconds until the chief has saved a checkpoint")
    switch_timeout_s: Seconds = Field(
        300.0, description="seconds until the first step at the new size; after that, the job returns to its old size"
    )
    recreate_timeout_s: Seconds = Field(600.0, description="as switch_timeout_s, if all pods were recreated")
    stop_timeout_s: Seconds = Field(
        120.0,
        description="seconds until a job that is being stopped has saved; after that, it stops without a new "
        "checkpoint",
    )


class MemoryLimits(_Model):
    """When the operator raises the memory of a job with `max-memory`, and how far."""

    headroom: float = Field(
        0.1, ge=0, le=0.9, description="part of a replica's memory that its forecast use leaves free; at least 192 MiB"
    )
    horizon_s: Seconds = Field(60.0, description="seconds for which the growth of the last 3 minutes is forecast")
    step: float = Field(1.25, ge=1.05, le=4, description="raised memory, by the forecast use")
    after_kill: float = Field(1.5, ge=1.05, le=4, description="memory after a kill, by the memory before it")

    @property
    def rule(self) -> MemoryRule:
        """The rule that follows."""
        return MemoryRule(headroom=self.headroom, horizon_s=self.horizon_s, step=self.step, after_kill=self.after_kill)


class StatusPolling(_Model):
    """How often the operator polls the status of pods."""

    interval_s: float = Field(
        5.0, ge=0.01, le=86_400, description="seconds between two polls of a pod; longer if there are many pods"
    )
    max_requests_per_s: float = Field(50.0, ge=1, le=10_000, description="polls per second of all pods together")


class QueryLimits(_Model):
    """Limits of the query API (--query-bind-address)."""

    max_open_requests: int = Field(64, ge=1, le=10_000, description="concurrent requests; further ones get status 503")
    max_streams: int = Field(
        100,
        ge=0,
        le=180,
        description="open live streams, not counted in max_open_requests; further ones get status 503",
    )
    max_streams_per_user: int = Field(
        10,
        ge=1,
        le=180,
        description="open live streams of one user, except with --query-auth=none; further ones get status 429",
    )
    allow_cache_s: float = Field(60.0, ge=0, le=3600, description="seconds for which a granted access review is cached")
    deny_cache_s: float = Field(5.0, ge=0, le=3600, description="seconds for which a denied access review is cached")
    max_reviews_per_s: float = Field(
        20.0,
        ge=1,
        le=1000,
        description="reviews of unknown tokens per second; client addresses take turns",
    )
    max_access_reviews_per_s: float = Field(
        100.0, ge=1, le=10_000, description="reviews of users' rights per second; users take turns"
    )


def _amounts(found: dict[str, str]) -> dict[str, str]:
    for name, text in found.items():
        if name not in RESOURCES:
            raise ValueError(f"{describe(name)} is not a resource; allowed: {', '.join(RESOURCES)}")
        if not is_quantity(text):
            raise ValueError(f"{name}: {describe(text)} is not a quantity such as 100m or 64Mi")
    return found


Amounts = Annotated[dict[str, str], Field(max_length=len(RESOURCES)), AfterValidator(_amounts)]


class InjectedResources(_Model):
    """Resources of the container that is injected into each pod of an elastic job (docs/elastic.md)."""

    requests: Amounts = Field(dict(DEFAULT_RESOURCES["requests"]), description="quantities by resource, as in a pod")
    limits: Amounts = Field(dict(DEFAULT_RESOURCES["limits"]), description="quantities by resource, as in a pod")

    @model_validator(mode="after")
    def _within_limits(self) -> "InjectedResources":
        for name, limit in self.limits.items():
            if quantity(self.requests.get(name, "0")) > quantity(limit):
                raise ValueError(f"requests.{name}: {self.requests[name]} is above limits.{name}: {limit}")
        return self

    @property
    def resources(self) -> ContainerResources:
        """The resources as in a container spec."""
        return {"requests": dict(self.requests), "limits": dict(self.limits)}


class PoolSettings(_Model):
    """A pool whose nodes may be lent to loanable jobs (docs/loans.md)."""

    namespaces: tuple[Annotated[str, Field(min_length=1, max_length=63)], ...] = Field(
        min_length=1,
        max_length=8,
        description="namespaces whose pods belong to the pool; only their pending pods recall nodes",
    )
    headroom: int = Field(1, ge=0, le=10_000, description="idle nodes that are not lent")
    hold_s: float = Field(
        600.0, ge=10, le=MAX_DURATION_S, description="seconds for which a returned node is not lent again"
    )
    grace_s: Seconds = Field(
        120.0,
        description="seconds from a recall until jobs that are still on the node are stopped; after that, their pods "
        "are deleted",
    )
    accelerator_speed: float = Field(
        1.0, ge=0.01, le=100, description="training speed of the pool's accelerators, relative to those of other nodes"
    )


def _pool_name(name: str) -> str:
    if not POOL_NAME.fullmatch(name) or name == OWN_POOL:
        raise ValueError(f"a pool name must be a value of the label {POOL_LABEL} other than {OWN_POOL}")
    return name


def _taint_key(key: str) -> str:
    if not _TAINT_KEY.fullmatch(key):
        raise ValueError(f"{describe(key)} is not the key of a taint such as karpenter.sh/disrupted")
    if key.startswith("node.kubernetes.io/") or key == LOANED_TAINT:
        raise ValueError(f"{describe(key)} says nothing about a removal of the node")
    return key


TaintKey = Annotated[str, Field(min_length=1, max_length=317), AfterValidator(_taint_key)]
PoolName = Annotated[str, AfterValidator(_pool_name)]


class OrderSettings(_Model):
    """How waiting jobs ask an autoscaler for nodes: by placeholder pods (docs/autoscaling.md)."""

    when: Literal["auto", "always", "never"] = Field(
        "auto", description="auto: if the cluster has the API of an autoscaler, or a node the label of one"
    )
    size: Literal["declared", "smallest"] = Field(
        "declared", description="what a job that has less asks for: its declared size, or its smallest one"
    )
    jobs: int = Field(0, ge=0, le=100_000, description="most jobs that ask at the same time; 0: all")
    pods: int = Field(1000, ge=1, le=10_000, description="most placeholder pods of all jobs")
    cpu: str = Field("0", description="most CPU that all placeholders request; 0: no limit")
    timeout_s: Seconds = Field(
        900.0, description="seconds that a placeholder waits for a node; then its job asks again after retry_s"
    )
    retry_s: Seconds = Field(300.0, description="seconds until a job asks again, doubling up to 1,800")

    @field_validator("cpu")
    @classmethod
    def _quantity(cls, text: str) -> str:
        return _amounts({"cpu": text})["cpu"]

    def asks(self, nodes: Iterable[KubeNode], *, autoscaler: bool) -> bool:
        """Whether jobs order nodes in a cluster of these nodes. `autoscaler`: whether it serves an autoscaler's API."""
        if self.when != "auto":
            return self.when == "always"
        return autoscaler or any(not AUTOSCALED_LABELS.isdisjoint(node.labels) for node in nodes)

    def rules(self, failed: frozenset[str], since_s: Mapping[str, float], lead_s: float) -> OrderRules:
        """The rules of a round; the arguments as for OrderRules."""
        return OrderRules(self.size, self.jobs, self.pods, millicores(self.cpu), failed, since_s, lead_s)


def _selector(text: str) -> str:
    for part in text.split(",") if text else ():
        if not _LABEL.fullmatch(part.strip()):
            raise ValueError(f"{describe(part)} is not a label; allowed: KEY or KEY=VALUE, separated by commas")
    return text


Selector = Annotated[str, Field(max_length=1000), AfterValidator(_selector)]
Price = Annotated[float, Field(gt=0, le=1e6)]


class CompactSettings(_Model):
    """How jobs leave nodes, so that an autoscaler removes them (docs/autoscaling.md)."""

    nodes: Selector = Field(
        "karpenter.sh/nodepool",
        description="labels of the nodes that an autoscaler removes once they are empty: KEY or KEY=VALUE, separated "
        "by commas; empty: jobs leave no node",
    )
    after_s: Seconds = Field(120.0, description="seconds for which no job lacks room before jobs leave a node")
    every_s: Seconds = Field(30.0, description="seconds from one node to the next")
    forget_s: Seconds = Field(
        1800.0, description="seconds after which jobs use such a node again if no autoscaler has removed it"
    )
    headroom: int = Field(0, ge=0, le=100_000, description="number of these nodes that jobs do not leave")
    prices: dict[Selector, Price] = Field(
        default_factory=dict,
        max_length=64,
        description="price per hour of nodes with these labels, written as for nodes; the first that matches. Jobs "
        "leave dear nodes first; without prices those with most CPU",
    )

    @property
    def times(self) -> CompactionTimes:
        """The times and the headroom."""
        return CompactionTimes(self.after_s, self.every_s, self.forget_s, self.headroom)

    def price(self, labels: Mapping[str, str]) -> float:
        """The price of a node with these labels per hour; 0: not known."""
        return next((price for selector, price in self.prices.items() if selects(selector, labels)), 0.0)


class AutoscalingSettings(_Model):
    """What a cluster whose nodes come and go does with them (docs/autoscaling.md)."""

    order: OrderSettings = OrderSettings()
    compact: CompactSettings = CompactSettings()
    draining: dict[TaintKey, Annotated[float, Field(ge=1, le=MAX_DURATION_S)] | None] = Field(
        default_factory=dict,
        max_length=32,
        description="keys of taints on nodes that will be removed, each with the seconds from the taint to the end of "
        "the node's pods (null: no limit is known), besides those of Karpenter, the cluster autoscaler and the notices "
        "of AWS, GKE and AKS, whose seconds it may change; jobs leave such a node as a cordoned one",
    )
    spot: Selector = Field(
        "",
        description="labels of nodes that may be taken away at any time, written as for compact.nodes, besides the "
        "spot nodes of Karpenter, AWS, GKE and AKS; leaders and parameter servers prefer other nodes",
    )


class KueueSettings(_Model):
    """How jobs with a Kueue queue use its quota (docs/kueue.md)."""

    growth: Literal["none", "workloads"] = Field(
        "none",
        description="workloads: a job may have more replicas than declared, each by a Workload of lowest priority",
    )
    pending: int = Field(2, ge=1, le=100, description="Workloads of one job that wait for Kueue at the same time")
    hold_s: Seconds = Field(120.0, description="seconds after which quota that a job does not use is returned")
    reclaim_after_s: float = Field(
        0.0,
        ge=0,
        le=MAX_DURATION_S,
        description="seconds after which a job that is smaller than declared returns the quota, until Kueue admits it "
        "again; 0: never",
    )

    @model_validator(mode="after")
    def _may_grow_back(self) -> "KueueSettings":
        if self.reclaim_after_s and self.growth == "none":
            raise ValueError("reclaim_after_s needs growth: workloads, without which a job never grows back")
        return self


class Configuration(_Model):
    """The whole configuration."""

    profile: str = Field("fixed", description="scheduling policy")
    scope: Literal["annotated", "all"] = Field(
        "annotated", description="which jobs the profile schedules: those with an elastic annotation, or all"
    )
    profiles: dict[str, dict[str, Any]] = Field(default_factory=dict, description="parameters by profile")
    rescale: RescaleLimits = RescaleLimits()
    memory: MemoryLimits = MemoryLimits()
    status: StatusPolling = StatusPolling()
    query: QueryLimits = QueryLimits()
    injected: InjectedResources = InjectedResources()
    pools: dict[PoolName, PoolSettings] = Field(
        default_factory=dict, max_length=16, description="pools that lend nodes, by the value of the node label"
    )
    autoscaling: AutoscalingSettings = AutoscalingSettings()
    kueue: KueueSettings = KueueSettings()

    @field_validator("profile")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in all_profiles():
            raise ValueError(there_are(name))
        return name

    @model_validator(mode="after")
    def _parameters_fit(self) -> "Configuration":
        for name, settings in self.profiles.items():
            if name not in all_profiles():
                raise ValueError(f"profiles.{name}: {there_are(name)}")
            if parse_profile(name, settings).place == "count":
                raise ValueError(f"profiles.{name}.place: count is allowed in simulations only")
            asked = next((part for part, idle in _ABOUT_LOANS.items() if settings.get(part, idle) != idle), None)
            if asked is not None and not self.pools:
                raise ValueError(f"profiles.{name}.{asked}: borrowing needs pools, and none is configured")
        if self.kueue.growth != "none" and not self.decides:
            raise ValueError(
                f"kueue: profile {self.profile} gives jobs no size; choose another profile, or remove kueue"
            )
        settings = self.profiles.get(self.profile, {})
        lends = build(self.profile, parse_profile(self.profile, settings)).lend is not None
        if self.pools and (not self.decides or not lends):
            raise ValueError(f"pools: profile {self.profile} borrows no nodes; set profiles.{self.profile}.lend")
        if lends and not self.pools:
            raise ValueError(
                f"profile {self.profile} borrows nodes, but no pool is configured; set profiles.{self.profile}.lend: "
                "none"
            )
        return self

    @property
    def decides(self) -> bool:
        """Whether the profile decides for jobs: all do but `fixed`."""
        return self.profile != FIXED

    @property
    def shares_cpu(self) -> bool:
        """Whether the replicas of a job on the same node share their CPU under this profile."""
        return build(self.profile, self.parameters).shares_cpu

    @property
    def parameters(self) -> ProfileParameters:
        """The parameters of the chosen profile. A live job takes a while to stop and start again, so the default of
        stop_cooldown_s is STOP_COOLDOWN_S."""
        settings = self.profiles.get(self.profile, {})
        return parse_profile(self.profile, {"stop_cooldown_s": STOP_COOLDOWN_S, **settings})


def parse_configuration(text: str) -> Configuration:
    """Read `config.yaml`, whatever its content. Raises only ValueError, which names each wrong place, the error and the
    value."""
    if len(text) > MAX_CONFIGURATION_BYTES:
        raise ValueError(f"it has {len(text)} characters; allowed: {MAX_CONFIGURATION_BYTES}")
    content = document(text)
    if content is None:
        content = {}
    if not isinstance(content, Mapping):
        raise ValueError(f"it must be a mapping of keys to values, not {describe(content)}")
    # A key whose values are all commented out is null in YAML.
    content = {key: value for key, value in content.items() if value is not None}
    try:
        found = Configuration.model_validate(content)
    except ValidationError as error:
        raise ValueError(cut("; ".join(map(_short, wrong_places(error))), MAX_PROBLEMS * MAX_PROBLEM_LENGTH)) from error
    _must_be_met(found)
    return found


def _must_be_met(configuration: Configuration) -> None:
    """Raises ValueError for settings that a live cluster cannot fulfil."""
    configured = {configuration.profile: {}, **configuration.profiles}
    problems = [problem for name, settings in configured.items() for problem in refusals(name, settings)]
    if problems:
        raise ValueError("; ".join(problems))


def _short(problem: str) -> str:
    """The problem without the whole document, and with the known keys."""
    text = problem.removeprefix("(whole): ")
    place, unknown, _ = text.partition(" is not known")
    if unknown and text == problem:  # problems of the whole document name the keys that they allow
        known = keys_at(Configuration, place.split(".")[:-1])
        text = f"{place} is not known; allowed: {', '.join(known)}.{_elsewhere(place, known)}".rstrip(".")
    return text


def _elsewhere(place: str, known: Collection[str]) -> str:
    """A suggestion for an unknown key: the place where it exists, or a key with a similar name."""
    key = place.rpartition(".")[2]
    places = list(_places(Configuration, key))
    profiles = all_profiles()
    if key in ProfileParameters.model_fields or any(key in model.model_fields for model in profiles.values()):
        owners = [name for name, model in profiles.items() if key in model.model_fields]
        owner = "elastic" if "elastic" in owners else owners[0]
        places.append(f"profiles.{owner}.{key}" + (" (or of another profile)" if len(owners) > 1 else ""))
    if places:
        return f" Did you mean {' or '.join(places)}?"
    return did_you_mean(key, known)


def _places(model: type[BaseModel], key: str) -> Iterator[str]:
    """The places of the model and of its parts that have this key."""
    if key in model.model_fields:
        yield key
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from (f"{name}.{place}" for place in _places(field.annotation, key))


def team_rules(configuration: Configuration) -> TeamRules:
    """How teams share the cluster; without teams each namespace is one."""
    found = configuration.parameters
    teams = found.teams if isinstance(found, ElasticSettings) else None
    return TeamRules() if teams is None else teams.rules
