"""Replicas for jobs that use all they have."""

from collections.abc import Hashable
from heapq import heapify, heappop

from elastic_tfjob.scheduling.forecasts import beside_unseen
from elastic_tfjob.scheduling.profiles.kips.adjustment import Adjustment
from elastic_tfjob.scheduling.profiles.kips.back import rested
from elastic_tfjob.scheduling.reasons import Fact, Reason
from elastic_tfjob.scheduling.shared_cpu import usable_types
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Counts, Job
from elastic_tfjob.scheduling.toolkit.sizes import movable
from elastic_tfjob.speed.prediction import Prediction
from elastic_tfjob.speed.utilisation import speedup

Unit = tuple[float, str, str, Counts, float]
"""Minus the gain, the job, the type that one more is of, the size that makes, and the speed there."""


def grow(adjustment: Adjustment) -> None:
    """One worker or PS at a time to the job that gains most for what it takes, as long as there is room and no job
    waits for it."""
    if adjustment.blocked:
        return
    round_ = adjustment.round
    idle: dict[str, int] = {}
    units: list[Unit] = []
    speeds: dict[str, Prediction] = {}
    for job in adjustment.short:
        if job.spec.elastic and movable(job, round_) and rested(job, round_):
            speeds[job.key] = growth(adjustment, job)
            units += _units(adjustment, job, job.counts, 1.0, speeds[job.key])
    heapify(units)
    grown: dict[str, tuple[Counts, float]] = {}
    full: set[Hashable] = set()
    while units:
        _, key, type_, counts, factor = heappop(units)
        job, speed = round_.job(key), speeds[key]
        kind = (job.spec.group(type_), job.spec.constraints, job.spec.constraints_by_type)
        if kind in full:
            continue
        if key not in idle:
            idle[key] = round_.room.free_cpu_for(job.spec)
        facts: dict[str, Fact] = {"use": _use(job, counts), "idle_millicores": idle[key], "gain": factor - 1}
        if not round_.resize(job, counts, Reason("busy", facts)):
            full.add(kind)
            continue
        grown[key] = counts, factor
        units = [unit for unit in units if unit[1] != key]  # its other types start from another size now
        units += _units(adjustment, job, counts, factor, speed)
        heapify(units)
    for key, (_, factor) in grown.items():
        job = round_.job(key)
        if factor < 1 + adjustment.settings.min_gain or not adjustment.worth(job, 1 - 1 / factor):
            round_.assign(job, job.placement, Reason("keeps"))


def _units(adjustment: Adjustment, job: Job, held: Counts, factor: float, speed: Prediction) -> list[Unit]:
    units: list[Unit] = []
    for type_ in (WORKER, PS):
        group, n = job.spec.group(type_), held.get(type_, 0)
        if group is None or not n or n >= group.maximum:
            continue
        counts = {**held, type_: n + 1}
        then = speed.factor(counts)
        gain = then / factor - 1
        if gain * n < adjustment.settings.min_efficiency or not adjustment.worth(job, 1.0):
            continue
        share = group.request.dominant_share(adjustment.round.room.total)
        units.append((-gain / share if share else -gain, job.key, type_, counts, then))
    return units


def growth(adjustment: Adjustment, job: Job) -> Prediction:
    """What is known about the job's speed at other sizes, after the CPU that this round grants it."""
    grants, more = adjustment.grants, {}
    granted = {t: tuple(grants.held(job, t, k) for k in range(len(names))) for t, names in job.placement.items()}
    now, then = usable_types(job), usable_types(job, granted)
    for type_ in job.placement:
        before, after = now.get(type_), then.get(type_)
        if before and after:  # of no CPU nothing can be told: a type that has none is taken to be as busy as it was
            more[type_] = after / before
    use = adjustment.busy[job.key]
    faster = speedup(use, more)
    use = {type_: min(1.0, u / more.get(type_, 1.0) * faster) for type_, u in use.items()}
    workers = len(job.placement.get(WORKER, ()))
    cpu = {WORKER: sum(grants.held(job, WORKER, k) for k in range(workers)) / workers} if workers else {}
    return Prediction(
        job.counts,
        job.steps_per_s * faster,
        use,
        cpu,
        job.speed,
        min_gain=adjustment.settings.min_gain,
        unseen=beside_unseen(job, adjustment.round.snapshot.nodes),
    )


def _use(job: Job, counts: Counts) -> dict[str, float]:
    """How busy the types are that grow."""
    grows = (type_ for type_ in (WORKER, PS) if counts.get(type_, 0) > len(job.placement.get(type_, ())))
    return {type_: job.cpu_use[type_] for type_ in grows if type_ in job.cpu_use}
