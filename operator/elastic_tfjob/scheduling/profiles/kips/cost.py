"""What a rescale costs, and whom replicas are taken from."""

from elastic_tfjob.scheduling.profiles.kips.busy import requested_cpu
from elastic_tfjob.scheduling.profiles.kips.settings import Settings
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Counts, Job
from elastic_tfjob.scheduling.toolkit.sizes import movable

IDLE, SURPLUS, NEEDED = range(3)
"""Whom replicas are taken from first: who leaves them idle; has more than declared; has more than its minimum."""


def worth(job: Job, saved: float, settings: Settings, now: float) -> bool:
    """Whether a rescale costs less than it saves of the time left; with 0 saved: than the time left itself.

    The cost is the pause, and that of starting the new program beside the running one, which takes its CPU time at
    the pace of the slowest replica: half of what is trained meanwhile, and of the other half what the new size
    would have saved. One that has yet to make a step trains nothing meanwhile: its start was in vain. A job of
    unknown length is expected to run as long again as it has run.
    """
    slowest = min((min(job.cpu.get(t, ()), default=0) or requested_cpu(job.spec, t) for t in job.placement), default=0)
    starting = 1000 * settings.prepare_cpu_s / slowest if slowest else 0.0
    lost = (1 + saved) / 2 if job.steps_per_s > 0 else 1.0
    cost = settings.rescale_pause_s + starting * lost
    ran = job.executed_s + max(0.0, now - job.since_s)
    left: float | None = None
    if job.spec.total_steps is not None:
        left = job.remaining_s(now)
    elif job.spec.duration_s is not None:
        left = max(0.0, job.spec.duration_s - ran)
    return (ran if left is None else left) * (saved or 1.0) > cost


class IdleFirst:
    """Who gives: whoever leaves workers idle, then who has more than declared; who needs them only if that must be."""

    def __init__(self, round_: Round, settings: Settings) -> None:
        self._round = round_
        self._settings = settings

    def gives(self, donor: Job, needed: bool) -> bool:
        held = self._round.placement(donor)
        if not donor.spec.elastic or not held:
            return False
        floor = self.floor(donor, needed)
        if all(len(names) <= floor.get(t, 0) for t, names in held.items()):
            return False
        if not donor.placement:
            return True
        grew = any(len(names) > len(donor.placement.get(t, ())) for t, names in held.items())
        return not grew and movable(donor, self._round) and worth(donor, 0.0, self._settings, self._round.now)

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

    def why(self, donor: Job) -> str:
        return f"workers use {donor.cpu_use[WORKER]:.0%} of their CPU, " if self._idles(donor) else ""

    def _idles(self, job: Job) -> bool:
        """Whether it leaves its workers' CPU idle as it trains: before the first step they wait for their chief."""
        return job.steps_per_s > 0 and job.cpu_use.get(WORKER, 1.0) < self._settings.idle
