"""Whom replicas are taken from."""

from collections.abc import Mapping

from elastic_tfjob.scheduling.profiles.kips.settings import Settings
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Counts, Job
from elastic_tfjob.scheduling.toolkit.sizes import movable

IDLE, SURPLUS, NEEDED = range(3)
"""Whom replicas are taken from first: who leaves them idle; has more than declared; has more than its minimum."""


class IdleFirst:
    """Who gives: whoever leaves workers idle, then who has more than declared; who needs them only if that must be."""

    def __init__(self, round_: Round, settings: Settings) -> None:
        self._round = round_
        self._settings = settings
        self._costs = settings.costs

    def gives(self, donor: Job, needed: bool) -> bool:
        held = self._round.placement(donor)
        if not donor.spec.elastic or not held:
            return False
        floor = self.floor(donor, needed)
        for type_, names in held.items():
            if len(names) > floor.get(type_, 0):
                break
        else:
            return False
        if not donor.placement:
            return True
        grew = any(len(names) > len(donor.placement.get(t, ())) for t, names in held.items())
        return not grew and movable(donor, self._round) and self._costs.worth(donor, 0.0, self._round.now)

    def floor(self, donor: Job, needed: bool) -> Counts:
        return donor.spec.minimum if needed or self._idles(donor) else donor.spec.declared

    def rank(self, donor: Job) -> tuple[float, ...]:
        """Idle, then beyond declared; whose last worker is far from its PS; who has most."""
        held = self._round.placement(donor)
        workers, declared = held.get(WORKER, ()), donor.spec.declared.get(WORKER, 0)
        kind = IDLE if self._idles(donor) else SURPLUS if len(workers) > declared else NEEDED
        beside_ps = bool(workers) and workers[-1] in held.get(PS, ())
        least = max(1, donor.spec.minimum.get(WORKER, 0))
        return (kind, beside_ps, -len(workers) / least, -donor.spec.arrival_s, -donor.spec.sequence)

    def facts(self, donor: Job) -> Mapping[str, float]:
        """How little of their CPU its workers use, where that is why it gives first."""
        return {"idle": donor.cpu_use[WORKER]} if self._idles(donor) else {}

    def _idles(self, job: Job) -> bool:
        """Whether it leaves its workers' CPU idle as it trains: before the first step they wait for their chief."""
        return job.steps_per_s > 0 and job.cpu_use.get(WORKER, 1.0) < self._settings.idle
