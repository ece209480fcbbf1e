"""Optimus: marginal gain of one more PS or worker."""

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Literal

from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Counts, Job
from elastic_tfjob.scheduling.stages.allocate.settle import candidates, settle


@dataclass(frozen=True, slots=True)
class MarginalGain:
    """Optimus' allocation (Peng et al., EuroSys'18, section 4.1). Every job gets its minimum in the profile's order;
    then the PS or worker goes, one at a time, to the job whose finish it brings nearest: (Q/f(p,w) - Q/f(p',w')) with
    Q remaining steps and f steps per second, `per_resource` divided by the unit's dominant share. It ends when no
    gain is above 0. When the best unit does not fit, the job leaves (`next`) or all ends (`stop`, DL2's simulator).
    A job of unknown speed or work stays at its minimum.
    """

    per_resource: bool = True
    on_full: Literal["next", "stop"] = "next"
    drifts: bool = True

    def allocate(self, round_: Round) -> None:
        jobs, free = candidates(round_)
        total = round_.room.total
        sizes: dict[str, Counts] = {}
        heap: list[tuple[float, int, str]] = []
        for k, job in enumerate(jobs):
            demand = job.spec.demand(job.spec.minimum)
            if not demand.within(free):
                if self.on_full == "stop":
                    break
                continue
            free = free.minus(demand)
            sizes[job.key] = job.spec.minimum
            unit = self.best_unit(job, job.spec.minimum, round_.now, total)
            if unit is not None:
                heap.append((-unit[0], k, unit[1]))
        heapify(heap)
        while heap:
            _, k, type_ = heappop(heap)
            job = jobs[k]
            group = job.spec.group(type_)
            assert group is not None
            if not group.request.within(free):
                if self.on_full == "stop":
                    break
                continue
            free = free.minus(group.request)
            size = sizes[job.key]
            sizes[job.key] = size = {**size, type_: size.get(type_, 0) + 1}
            unit = self.best_unit(job, size, round_.now, total)
            if unit is not None:
                heappush(heap, (-unit[0], k, unit[1]))
        settle(round_, jobs, sizes, "marginal gain")

    def best_unit(self, job: Job, counts: Counts, now: float, total: Resources) -> tuple[float, str] | None:
        """(gain in seconds, or seconds per dominant share, type) of the better of one more PS or worker, if above 0."""
        spec, speed = job.spec, job.speed
        if speed is None or spec.total_steps is None:
            return None
        rate = speed.steps_per_s(counts)
        if not rate:
            return None
        left = max(0.0, spec.total_steps - job.steps_at(now))
        best: tuple[float, str] | None = None
        for type_ in (WORKER, PS):
            group = spec.group(type_)
            if group is None or counts.get(type_, 0) >= group.maximum:
                continue
            more = speed.steps_per_s({**counts, type_: counts.get(type_, 0) + 1})
            if not more:
                continue
            gain = left / rate - left / more
            if self.per_resource:
                share = group.request.dominant_share(total)
                gain = gain / share if share else gain
            if gain > 0 and (best is None or gain > best[0]):
                best = gain, type_
        return best
