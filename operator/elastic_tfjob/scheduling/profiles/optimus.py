"""Optimus: marginal gain of one more PS or worker."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from elastic_tfjob.scheduling.parameters import Stages, TryingParameters, needs
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Counts, Job
from elastic_tfjob.scheduling.stages.order.fifo import Fifo
from elastic_tfjob.scheduling.stages.place.catalogue import PlaceName
from elastic_tfjob.scheduling.toolkit.apply_sizes import apply_rows, candidates
from elastic_tfjob.scheduling.toolkit.progressive_filling import Increments, OnFull, OpenIncrements, fill
from elastic_tfjob.scheduling.toolkit.try_sizes import TrySizes


@dataclass(frozen=True, slots=True)
class MarginalGain:
    """Optimus' allocation (Peng et al., EuroSys'18, section 4.1). Every job gets its minimum in the profile's order;
    then the PS or worker goes, one at a time, to the job whose finish it brings nearest: (Q/f(p,w) - Q/f(p',w')) with
    Q remaining steps and f steps per second, `per_resource` divided by the unit's dominant share. A job stops where
    its gain is not above 0. Where a table has no speed for one more, the unit is as many as the next size that it has.
    When a unit does not fit, the job leaves (`next`) or all ends (`stop`, DL2's simulator). A job of unknown speed or
    work stays at its minimum.
    """

    per_resource: bool = True
    on_full: OnFull = "next"

    def __call__(self, round_: Round) -> None:
        jobs, free = candidates(round_, OpenIncrements, self.sizes_of, self)
        lengths = jobs.lengths
        keys = jobs.keys * np.repeat(jobs.steps_left(round_.now), lengths)
        # Minima are worth the same to all: their keys come first, whatever is left.
        keys[np.cumsum(lengths) - lengths] = -np.inf
        apply_rows(round_, jobs, fill(jobs, keys, free, self.on_full), Reason("marginal-gain"))

    def sizes_of(self, job: Job, total: Resources) -> Increments:
        """Increments of one PS or worker each, or as many as the next known size has more; the key is minus the gain
        per remaining step, never below the one before: a better one behind a worse one is reached right after it.
        """
        spec, size = job.spec, job.spec.minimum
        sizes, keys, demand = [size], [0.0], [spec.demand(size)]
        while (unit := self.best_unit(job, size, total)) is not None:
            gain, size = unit
            sizes.append(size)
            keys.append(-gain if len(keys) == 1 else max(-gain, keys[-1]))
            demand.append(spec.demand(size).minus(spec.demand(sizes[-2])))
        return Increments(sizes, np.array(keys), np.array(demand, dtype=np.int64))

    def best_unit(self, job: Job, counts: Counts, total: Resources) -> tuple[float, Counts] | None:
        """(gain per remaining step, size) with the better of one more PS or worker, if above 0."""
        spec, speed = job.spec, job.speed
        if speed is None or spec.total_steps is None or not spec.elastic:
            return None
        rate = speed.steps_per_s(counts)
        if not rate:
            return None
        best: tuple[float, Counts] | None = None
        for type_ in (WORKER, PS):
            group = spec.group(type_)
            if group is None:
                continue
            n = counts.get(type_, 0)
            for count in range(1, group.maximum - n + 1):
                size = {**counts, type_: n + count}
                more = speed.steps_per_s(size)
                if more is None:
                    continue
                gain = (1 / rate - 1 / more) / count if more else 0.0
                if self.per_resource:
                    share = group.request.dominant_share(total)
                    gain = gain / share if share else gain
                if gain > 0 and (best is None or gain > best[0]):
                    best = gain, size
                break
        return best


class OptimusParameters(TryingParameters):
    """Optimus: one PS or worker at a time to the job whose finish it brings nearest."""

    place: PlaceName = Field("even", description="which nodes replicas go to; count looks at totals only")
    per_resource: bool = Field(True, description="gain per amount of the unit's dominant resource (the paper)")
    on_full: Literal["next", "stop"] = Field("next", description="when the best unit does not fit: try others, or stop")
    repack: bool = Field(True, description="a resized job is placed anew as a whole")

    def stages(self) -> Stages:
        steps = (MarginalGain(self.per_resource, self.on_full), TrySizes(self.try_sizes))
        return Stages(Fifo(), steps, needs("speed", "stop"), drifts=True)
