"""The decision, and what all profiles have in common.

`schedule` turns a Snapshot into a Plan by the steps of a Profile. A profile is written as a class of ProfileParameters:
what a user may set, and `stages`, which composes an order and steps.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from elastic_tfjob.api.reading import MAX_DURATION_S, MAX_ENTRIES
from elastic_tfjob.scheduling.lend import BorrowOffered, Reclaim
from elastic_tfjob.scheduling.places import PLACES, PlaceName
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profile import Profile, Step
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.rules import Need, Order
from elastic_tfjob.scheduling.snapshot import Snapshot
from elastic_tfjob.scheduling.steps.compact import give_up_node
from elastic_tfjob.scheduling.steps.order_nodes import order_nodes
from elastic_tfjob.scheduling.steps.repair import repair, repair_candidates, repair_late
from elastic_tfjob.scheduling.steps.requested_size import explain_unmet_sizes, resize_as_requested, size_requests
from elastic_tfjob.scheduling.steps.sizes import LIVE_PAUSE_S, ChangeCosts
from elastic_tfjob.scheduling.validation import validate


def schedule(snapshot: Snapshot, profile: Profile) -> Plan:
    """Decide for every job in the Snapshot. No clock, no I/O, no randomness but the Snapshot's seed.

    1. `lend`, so that borrowed nodes count at once and returned nodes no longer do.
    2. `resize_as_requested` and `repair`, the same for every profile: sizes that a person asks for, replicas of lost
       nodes. Then `give_up_node`, where an autoscaler removes nodes: replicas leave one of them.
    3. The profile's own steps, which take jobs by its Order and nodes by its Place.
    4. Sizes and repairs that had no room in 2, since the steps may have made some.
    5. `order_nodes`, where an autoscaler may add nodes: for replicas that found no room.

    Raises what a step raises, and InvalidPlanError for a plan that cannot be carried out.
    """
    round_ = Round(snapshot, profile)
    if profile.begin is not None:
        profile.begin(round_)
    if profile.lend is not None:
        profile.lend(round_)
    resize_as_requested(round_, snapshot.index("size requests", size_requests))
    repair(round_, snapshot.index("repair candidates", repair_candidates))
    give_up_node(round_)
    for step in profile.steps:
        try:
            step(round_)
        except SystemExit as error:  # would end the operator, which plans for other profiles' jobs, too
            raise RuntimeError(f"profile {profile.name}: a step ended the program") from error
    repair_late(round_)
    explain_unmet_sizes(round_)
    if round_.changes:
        validate(round_)
    order_nodes(round_)
    return round_.plan()


# -- From parameters to a profile --------------------------------------------------------------------------------------

Seconds = Annotated[float, Field(ge=0, le=MAX_DURATION_S)]


@dataclass(frozen=True, slots=True)
class Stages:
    """The composition of a profile: the `order` of jobs, the `steps` of a round, and what they need from their
    environment.

    `drifts`: the steps' decisions change with the clock alone, so a round is due at every interval. `shares_cpu`: the
    replicas of a job on one node share the CPU that it holds there."""

    order: Order
    steps: tuple[Step, ...]
    needs: frozenset[Need]
    drifts: bool = False
    shares_cpu: bool = False


def needs(*words: Need) -> frozenset[Need]:
    return frozenset(words)


SHARE_CPU: Final = "the CPU limit of each replica is all CPU that its job holds on the node"
"""The description of the parameter `share_cpu`."""


class ProfileParameters(BaseModel, ABC):
    """The parameters of every profile, set in the ConfigMap or by `--set PROFILE.PARAM=VALUE`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)

    place: PlaceName = Field("best-fit", description="rule that places replicas on nodes; count: totals only")
    interval_s: Seconds = Field(0.0, description="most seconds between two rounds; 0: a round only after a change")
    on_change: bool = Field(True, description="false: a change waits for the next multiple of interval_s")
    oracle: bool = Field(False, description="the policy gets true durations and speeds (simulation only)")
    lend: Literal["none", "offered"] = Field("none", description="borrow nodes that the inference pool offers")
    reclaim: Reclaim = Field(
        "first",
        description="nodes that return to their pool: the first; otherwise idle nodes, nodes whose jobs can shrink, "
        "then by preemption cost, jobs on the node, a search for the fewest stops, or at random",
    )

    stop_cooldown_s: Seconds = Field(
        0.0,
        description="least seconds between a job's stop, resumption and next stop; the operator's default is 60",
    )

    @property
    def files(self) -> tuple[str, ...]:
        """Files that `stages` reads. When one changes, the operator builds the profile again."""
        return ()

    @abstractmethod
    def stages(self) -> Stages:
        """The order and the steps with these parameters."""

    def _needs(self) -> Iterable[Need]:
        if self.oracle:
            yield "oracle"
        if self.lend == "offered":
            yield from ("loans", "stop")  # the return of a borrowed node stops the jobs on it
        if self.reclaim != "first":
            yield "loans"
        if self.place == "count":
            yield "totals"

    def profile(self, name: str) -> Profile:
        """The profile with these parameters, under its name in the registry."""
        stages = self.stages()
        return Profile(
            name=name,
            lend=BorrowOffered(self.reclaim) if self.lend == "offered" else None,
            order=stages.order,
            steps=stages.steps,
            place=PLACES[self.place],
            needs=stages.needs | frozenset(self._needs()),
            drifts=stages.drifts,
            shares_cpu=stages.shares_cpu,
            interval_s=self.interval_s,
            on_change=self.on_change,
            oracle=self.oracle,
            stop_cooldown_s=self.stop_cooldown_s,
        )


class ElasticParameters(ProfileParameters):
    """The parameters of all profiles that resize jobs."""

    cooldown_s: Seconds = Field(0.0, description="least seconds between two resizes of one job")
    min_gain: float = Field(0.0, ge=0, lt=1, description="least relative gain in speed for which a running job grows")
    repack: bool = Field(False, description="a resize places all replicas of the job again (simulation only)")
    sample_points: int = Field(
        8, ge=0, le=MAX_ENTRIES, description="sizes measured before a job starts (simulation without oracle)"
    )

    def _needs(self) -> Iterable[Need]:
        yield from super()._needs()
        yield "resize"
        if self.repack:
            yield from ("move", "repack")
        if self.sample_points:
            yield "samples"
        if self.min_gain:
            yield "speed"

    def profile(self, name: str) -> Profile:
        return replace(
            super().profile(name),
            cooldown_s=self.cooldown_s,
            min_gain=self.min_gain,
            repack=self.repack,
            sample_points=self.sample_points,
            learns=True,
        )


class CostParameters(ElasticParameters):
    """The parameters of all profiles that weigh the cost of a rescale."""

    rescale_pause_s: Seconds = Field(1.0, description="expected pause of a resize, in seconds")
    prepare_cpu_s: Seconds = Field(12.0, description="CPU-seconds to start one process of the new size")
    prepare_kept_cpu_s: Seconds = Field(
        12.0, description="CPU-seconds to start one process for a replica that stays, which may fork it"
    )

    live_pause_s: Seconds = Field(
        LIVE_PAUSE_S, description="expected pause where only workers change, of a program that stays, in seconds"
    )

    @property
    def costs(self) -> ChangeCosts:
        """What a rescale costs."""
        return ChangeCosts(
            self.rescale_pause_s,
            self.prepare_cpu_s,
            start_kept_cpu_s=self.prepare_kept_cpu_s,
            live_pause_s=self.live_pause_s,
        )


class TryingParameters(ElasticParameters):
    """The parameters of all profiles that decide by speeds alone."""

    try_sizes: int = Field(
        5,
        ge=0,
        le=MAX_ENTRIES,
        description="while no job waits, a running job tries other sizes until its speed is known at this many; "
        "needs a cooldown_s of 60 or more",
    )
    try_part: float = Field(0.1, ge=0, le=1, description="most part of a job's time that it spends on sizes it tries")


class GoodputParameters(ElasticParameters):
    """The parameters that `pollux` and `sia` have in common."""

    place: PlaceName = Field("pack", description="rule that places replicas on nodes; count: totals only")
    interval_s: Seconds = Field(60.0, description="most seconds between two rounds; 0: a round only after a change")
    on_change: bool = Field(False, description="false: a change waits for the next multiple of interval_s")
    repack: bool = Field(True, description="the policy also chooses nodes (simulation only); else `place` does")
    restart_s: Seconds = Field(30.0, description="expected seconds without training after a change")
    growth: int = Field(
        2, ge=0, le=1000, description="a job gets at most this times the most workers that it had so far; 0: any number"
    )
