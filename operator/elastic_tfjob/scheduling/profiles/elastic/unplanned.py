"""The jobs that give and grow by how busy their replicas are, as under kips: their speed at other sizes is not told."""

from elastic_tfjob.scheduling.profiles.elastic.planned import Planned, told
from elastic_tfjob.scheduling.profiles.kips import KipsParameters
from elastic_tfjob.scheduling.profiles.kips.adjustment import Adjustment
from elastic_tfjob.scheduling.profiles.kips.admit import AS_DECLARED
from elastic_tfjob.scheduling.profiles.kips.back import rested
from elastic_tfjob.scheduling.profiles.kips.donors import IdleFirst
from elastic_tfjob.scheduling.profiles.kips.grow import grow, growth
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Counts, Job
from elastic_tfjob.scheduling.toolkit.cpu_load import CpuLoad, cpu_load_view
from elastic_tfjob.scheduling.toolkit.outside import usable_total
from elastic_tfjob.scheduling.toolkit.sizes import movable

__all__ = ["Resizing", "grow_unplanned", "leave_ranked", "restore"]


class Unplanned(IdleFirst):
    """Who waits gets replicas of jobs that were not planned: what the others have was weighed already. Of these, jobs
    whose speed elsewhere is not told give what they have beyond what their deadline needs."""

    planned = Planned()

    def gives(self, donor: Job, needed: bool) -> bool:
        weighed = donor.key in self.planned.keys and donor.key not in self.planned.least
        return not weighed and super().gives(donor, needed)

    def floor(self, donor: Job, needed: bool) -> Counts:
        floor, least = super().floor(donor, needed), self.planned.least.get(donor.key)
        return floor if least is None else {type_: max(n, least.get(type_, 0)) for type_, n in floor.items()}


class Resizing(Adjustment):
    """What the steps of kips share, with other donors."""

    def __init__(self, round_: Round, settings: KipsParameters) -> None:
        self.donors = Unplanned(round_, settings)
        super().__init__(round_, settings, self.donors)


def restore(resizing: Resizing) -> None:
    """A busy job that has less than it declares gets that: what is free, else what others leave idle or have beyond
    what they declare. So nobody stays small for having started on a full cluster."""
    if resizing.blocked:
        return
    round_ = resizing.round
    for job in sorted(resizing.short, key=lambda job: (job.spec.arrival_s, job.spec.sequence)):
        held, declared = job.counts, job.spec.declared
        wanted = {type_: max(n, declared.get(type_, 0)) for type_, n in held.items()}
        if wanted == held or round_.placement(job) != job.placement or told(job):
            continue
        if not (movable(job, round_) and rested(job, round_)):
            continue
        if _pays(resizing, job, wanted) and not round_.resize(job, wanted, AS_DECLARED):
            resizing.taking.take(
                job,
                {type_: n - held[type_] for type_, n in wanted.items()},
                Reason("makes-room", {"job": job.key, "has": held}),
                lambda job=job, wanted=wanted: round_.resize(job, wanted, AS_DECLARED),  # type: ignore[misc]
                needed=False,
            )


def _pays(resizing: Resizing, job: Job, counts: Counts) -> bool:
    """Whether what it gets makes it faster, for what it takes, as growth has to."""
    settings, total = resizing.settings, usable_total(resizing.round)
    faster = growth(resizing, job).factor(counts)
    held = job.spec.demand(job.counts).dominant_share(total)
    more = job.spec.demand(counts).dominant_share(total) / held - 1 if held else 0.0
    gains = faster - 1 >= max(settings.min_gain, settings.min_efficiency * more)
    return gains and resizing.worth(job, 1 - 1 / faster)


def leave_ranked(adjustment: Adjustment) -> None:
    """Jobs that hold CPU by their rank on a crowded node keep that."""
    round_ = adjustment.round
    load: CpuLoad = round_.snapshot.view("cpu load", cpu_load_view)
    there = {key: round_.job(key) for name in load.crowded() for key in load.there[name]}
    adjustment.ranked = {key for key, job in there.items() if round_.cpu(job)}
    adjustment.lent = [job for job in adjustment.lent if job.key not in adjustment.ranked]


def grow_unplanned(adjustment: Adjustment) -> None:
    """As `grow` of kips, for those that `restore` left as they were."""
    round_ = adjustment.round
    adjustment.short = [job for job in adjustment.short if not told(job) and round_.placement(job) == job.placement]
    grow(adjustment)
