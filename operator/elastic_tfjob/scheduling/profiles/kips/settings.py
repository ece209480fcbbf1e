"""The parameters of kips."""

from pydantic import Field, model_validator

from elastic_tfjob.api.limits import MAX_ENTRIES
from elastic_tfjob.scheduling.parameters import SHARE_CPU, CostParameters, Seconds
from elastic_tfjob.scheduling.stages.place.catalogue import PlaceName
from elastic_tfjob.scheduling.toolkit.cpu_in_place import CpuRule


class Settings(CostParameters):
    """What may be set; see KipsParameters."""

    place: PlaceName = Field("pack", description="which nodes replicas go to; count looks at totals only")
    interval_s: Seconds = Field(15.0, description="longest time between two rounds; 0: only when something changes")
    cooldown_s: Seconds = Field(30.0, description="least time between two rescales of one job")
    min_gain: float = Field(0.1, ge=0, lt=1, description="least relative gain in speed for which a running job grows")
    sample_points: int = Field(
        0, ge=0, le=MAX_ENTRIES, description="sizes measured before a job starts (simulation without oracle)"
    )
    busy: float = Field(0.8, gt=0, le=1, description="CPU used / held from which on replicas lack CPU")
    idle: float = Field(0.3, ge=0, lt=1, description="CPU used / held below which replicas leave CPU idle")
    patience_s: Seconds = Field(
        30.0, description="who waits longer may take all beyond others' minimum, not only beyond their declared size"
    )
    cpu_growth: float = Field(4.0, ge=1, description="most that a replica's CPU is raised at once, times what it holds")
    min_idle: float = Field(0.05, ge=0, le=1, description="idle CPU is lent from this part of a node's CPU on")
    share_cpu: bool = Field(True, description=SHARE_CPU)
    min_efficiency: float = Field(
        0.5, ge=0, le=1, description="least gain of one more replica, relative to a gain in proportion"
    )

    @property
    def cpu_rule(self) -> CpuRule:
        """How idle CPU is lent."""
        return CpuRule(self.busy, self.idle, self.cpu_growth, self.min_idle)

    @model_validator(mode="after")
    def apart(self) -> "Settings":
        if self.idle >= self.busy:
            raise ValueError(f"idle, {self.idle:g}, must be below busy, {self.busy:g}")
        return self
