"""The operator's configuration: the key `config.yaml` of a ConfigMap, which it follows without a restart.

profile: kips              # which policy decides; `fixed` does as upstream does
scope: annotated           # jobs with an elastic.kubeflow.org/ annotation, or all
profiles: {kips: {cooldown_s: 60}}
rescale: {prepare_timeout_s: 300}
status: {interval_s: 5, max_requests_per_s: 50}
query: {max_open_requests: 64}
injected: {requests: {cpu: 10m, memory: 32Mi}}    # what the container beside each elastic pod's asks for
pools: {inference: {namespaces: [serving], headroom: 1}}    # nodes with the label elastic.kubeflow.org/pool=inference
"""

import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from elastic_tfjob.api.reading import (
    MAX_CONFIGURATION_BYTES,
    MAX_DURATION_S,
    MAX_PROBLEM_LENGTH,
    MAX_PROBLEMS,
    cut,
    describe,
    document,
)
from elastic_tfjob.api.scenario import wrong_places
from elastic_tfjob.api.words import did_you_mean
from elastic_tfjob.controller.model.cluster import POOL_LABEL, POOL_NAME
from elastic_tfjob.controller.model.injection import DEFAULT_RESOURCES, RESOURCES, ContainerResources
from elastic_tfjob.controller.model.quantities import is_quantity, quantity
from elastic_tfjob.scheduling.profiles import ProfileParameters, all_profiles, build, parse_profile, there_are

__all__ = [
    "FIXED",
    "Configuration",
    "InjectedResources",
    "PoolSettings",
    "QueryLimits",
    "RescaleLimits",
    "StatusPolling",
    "parse_configuration",
]

STOP_COOLDOWN_S: Final = 60.0
FIXED: Final = "fixed"
# What nodes of no other pool are called in the core.
OWN_POOL: Final = "training"
# Parameters that ask for loans, and the value of each that does not.
_ABOUT_LOANS: Final = {"lend": "none", "reclaim": "first"}
_FOUND_OBJECT: Final = re.compile(r" \(found an object of \d+ keys\)$")
Seconds = Annotated[float, Field(gt=0, le=MAX_DURATION_S)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class RescaleLimits(_Model):
    """How long each phase of a rescale may take before it is rolled back, in seconds."""

    prepare_timeout_s: Seconds = Field(300.0, description="until all of the new size is built beside the old")
    checkpoint_timeout_s: Seconds = Field(120.0, description="until the chief has saved")
    switch_timeout_s: Seconds = Field(
        300.0, description="until the new size has made its first step; then the job returns to the size before"
    )
    recreate_timeout_s: Seconds = Field(600.0, description="the same where all pods were recreated")
    stop_timeout_s: Seconds = Field(
        120.0, description="until a job that is stopped has saved; then it stops without a new checkpoint"
    )


class StatusPolling(_Model):
    """How often the pods' exporters are asked for their status."""

    interval_s: float = Field(
        5.0, ge=0.01, le=86_400, description="between two questions to one pod; longer where there are many pods"
    )
    max_requests_per_s: float = Field(50.0, ge=1, le=10_000, description="questions to all pods together")


class QueryLimits(_Model):
    """How much the query API does for those who ask (--query-bind-address)."""

    max_open_requests: int = Field(64, ge=1, le=10_000, description="requests at once; more are answered 503")
    max_streams: int = Field(
        100, ge=0, le=180, description="open live streams, which are not counted above; more are answered 503"
    )
    max_streams_per_user: int = Field(
        10, ge=1, le=180, description="of those, open by one user (--query-auth=none knows none); more are answered 429"
    )
    allow_cache_s: float = Field(
        60.0, ge=0, le=3600, description="for so long what the API server allows somebody is remembered"
    )
    deny_cache_s: float = Field(5.0, ge=0, le=3600, description="for so long what it denies is remembered")
    max_reviews_per_s: float = Field(
        20.0,
        ge=1,
        le=1000,
        description="questions to the API server about tokens that are not known yet; addresses take turns",
    )
    max_access_reviews_per_s: float = Field(
        100.0, ge=1, le=10_000, description="questions to it about what users may see; users take turns"
    )


def _amounts(found: dict[str, str]) -> dict[str, str]:
    for name, text in found.items():
        if name not in RESOURCES:
            raise ValueError(f"{describe(name)}: allowed are {', '.join(RESOURCES)}")
        if not is_quantity(text):
            raise ValueError(f"{name}: {describe(text)} is not an amount such as 100m or 64Mi")
    return found


Amounts = Annotated[dict[str, str], Field(max_length=len(RESOURCES)), AfterValidator(_amounts)]


class InjectedResources(_Model):
    """What the container asks for that is added to each pod of an elastic job (docs/elastic.md)."""

    requests: Amounts = Field(dict(DEFAULT_RESOURCES["requests"]), description="by resource, as in a pod")
    limits: Amounts = Field(dict(DEFAULT_RESOURCES["limits"]), description="by resource, as in a pod")

    @model_validator(mode="after")
    def _within_limits(self) -> "InjectedResources":
        for name, limit in self.limits.items():
            if quantity(self.requests.get(name, "0")) > quantity(limit):
                raise ValueError(f"requests.{name}: {self.requests[name]} is above limits.{name}: {limit}")
        return self

    @property
    def resources(self) -> ContainerResources:
        """As a container has them."""
        return {"requests": dict(self.requests), "limits": dict(self.limits)}


class PoolSettings(_Model):
    """A pool whose nodes may be lent to loanable jobs (docs/loans.md)."""

    namespaces: tuple[Annotated[str, Field(min_length=1, max_length=63)], ...] = Field(
        min_length=1, max_length=8, description="whose pods are the pool's own: only they want nodes back"
    )
    headroom: int = Field(1, ge=0, le=10_000, description="idle nodes that the pool keeps")
    hold_s: float = Field(
        600.0, ge=10, le=MAX_DURATION_S, description="a node that came back is not lent again for so long"
    )
    grace_s: Seconds = Field(
        120.0, description="from a recall until jobs that have not left are stopped, after which pods are deleted"
    )
    accelerator_speed: float = Field(
        1.0, ge=0.01, le=100, description="how fast the pool's accelerators train, those of the other nodes are 1"
    )


def _pool_name(name: str) -> str:
    if not POOL_NAME.fullmatch(name) or name == OWN_POOL:
        raise ValueError(f"a pool is called by a value of the label {POOL_LABEL}, other than {OWN_POOL}")
    return name


PoolName = Annotated[str, AfterValidator(_pool_name)]


class Configuration(_Model):
    """All that may be said."""

    profile: str = Field("fixed", description="the policy that decides")
    scope: Literal["annotated", "all"] = Field("annotated", description="which jobs it decides for")
    profiles: dict[str, dict[str, Any]] = Field(default_factory=dict, description="parameters by profile")
    rescale: RescaleLimits = RescaleLimits()
    status: StatusPolling = StatusPolling()
    query: QueryLimits = QueryLimits()
    injected: InjectedResources = InjectedResources()
    pools: dict[PoolName, PoolSettings] = Field(
        default_factory=dict, max_length=16, description="pools that lend nodes, by the value of the nodes' label"
    )

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
                raise ValueError(f"profiles.{name}.place: count looks at totals only, which is for simulations")
            asked = next((part for part, idle in _ABOUT_LOANS.items() if settings.get(part, idle) != idle), None)
            if asked is not None and not self.pools:
                raise ValueError(f"profiles.{name}.{asked}: there are no pools to borrow from")
        said = self.profiles.get(self.profile, {})
        lends = build(self.profile, parse_profile(self.profile, said)).lend is not None
        if self.pools and (self.profile == FIXED or not lends):
            raise ValueError(f"pools: profile {self.profile} borrows no node; set profiles.{self.profile}.lend")
        if lends and not self.pools:
            raise ValueError(
                f"profile {self.profile} borrows nodes, and there are no pools; set profiles.{self.profile}.lend: none"
            )
        return self

    @property
    def shares_cpu(self) -> bool:
        """Whether the profile has the replicas of a job share the CPU that it holds on a node."""
        return build(self.profile, self.parameters).shares_cpu

    @property
    def parameters(self) -> ProfileParameters:
        """What is set for the chosen profile. A live job needs a while to stop and to start again: where nothing is
        said of that it has STOP_COOLDOWN_S."""
        said = self.profiles.get(self.profile, {})
        return parse_profile(self.profile, {"stop_cooldown_s": STOP_COOLDOWN_S, **said})


def parse_configuration(text: str) -> Configuration:
    """Read `config.yaml`, whatever is in it. Raises ValueError, and nothing else, that names each wrong place, what is
    wrong there and what was found."""
    if len(text) > MAX_CONFIGURATION_BYTES:
        raise ValueError(f"it has {len(text)} characters, allowed are {MAX_CONFIGURATION_BYTES}")
    content = document(text)
    if content is None:
        content = {}
    if not isinstance(content, Mapping):
        raise ValueError(f"not a mapping of keys to values: {describe(content)}")
    # A key whose values are all commented out is null in YAML.
    content = {key: value for key, value in content.items() if value is not None}
    try:
        return Configuration.model_validate(content)
    except ValidationError as error:
        raise ValueError(cut("; ".join(map(_short, wrong_places(error))), MAX_PROBLEMS * MAX_PROBLEM_LENGTH)) from error


def _short(problem: str) -> str:
    """Without the whole document where one key of it is wrong; with what there is."""
    text = _FOUND_OBJECT.sub("", problem.removeprefix("(whole): "))
    place, unknown, _ = text.partition(" is not known")
    models: dict[str, type[BaseModel]] = {
        "rescale": RescaleLimits,
        "status": StatusPolling,
        "query": QueryLimits,
        "injected": InjectedResources,
    }
    if place.startswith("pools."):
        models["pools"] = PoolSettings
    if unknown and "Parameters of" not in text:
        known = models.get(place.partition(".")[0], Configuration).model_fields
        text = f"{place} is not known; there are {', '.join(known)}.{_elsewhere(place, known)}".rstrip(".")
    return text


def _elsewhere(place: str, known: Collection[str]) -> str:
    """Where a key belongs that is not known at this place: it may exist at another one, or be a slip of the pen."""
    key = place.rpartition(".")[2]
    places = [key] if key in Configuration.model_fields else []
    sections: dict[str, type[BaseModel]] = {"rescale": RescaleLimits, "status": StatusPolling, "query": QueryLimits}
    places += [f"{section}.{key}" for section, model in sections.items() if key in model.model_fields]
    profiles = all_profiles()
    if key in ProfileParameters.model_fields or any(key in model.model_fields for model in profiles.values()):
        owners = [name for name, model in profiles.items() if key in model.model_fields]
        owner = "elastic" if "elastic" in owners else owners[0]
        places.append(f"profiles.{owner}.{key}" + (" (or of another profile)" if len(owners) > 1 else ""))
    if places:
        return f" Did you mean {' or '.join(places)}?"
    return did_you_mean(key, known)
