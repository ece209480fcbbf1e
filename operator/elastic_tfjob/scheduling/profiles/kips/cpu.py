"""CPU in place: what replicas hold beyond their requests, from the idle CPU of their nodes."""

from collections.abc import Iterable, Iterator
from math import isfinite, sqrt

from elastic_tfjob.scheduling.profiles.kips.adjustment import Adjustment
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.snapshot import Cpu, Job
from elastic_tfjob.scheduling.toolkit.cpu_grants import Claim


def count_as_free(adjustment: Adjustment) -> None:
    """CPU beyond requests counts as free: it was only lent."""
    round_ = adjustment.round
    for job in adjustment.lent:
        if round_.cpu(job):
            round_.assign(job, round_.placement(job), Reason("cpu-as-requested"))


def keep_for_leaving(adjustment: Adjustment) -> None:
    """Replicas that leave hold what they request until those that come run as the new size: it is lent to nobody
    before. Where none come nobody needs the room: who stays gets more CPU only when that size runs."""
    round_ = adjustment.round
    room = round_.room
    for job in adjustment.resized():
        now = round_.placement(job)
        if all(len(names) <= len(job.placement.get(type_, ())) for type_, names in now.items()):
            continue
        for type_, names in job.placement.items():
            for name in names[len(now.get(type_, ())) :]:
                i = room.index.get(name)
                if i is not None:
                    room.take_cpu(i, min(room.cpu[i], job.spec.requested_cpu(type_)))


def give_back_used(adjustment: Adjustment) -> None:
    """Replicas get back the CPU they had, less what they leave idle."""
    adjustment.grants.water_fill(claim for job in adjustment.lent for claim in _had(adjustment, job, trim=True))


def raise_busy(adjustment: Adjustment) -> None:
    """Replicas that use all they have get more."""
    round_, grants = adjustment.round, adjustment.grants
    claims = {job.key: list(_wants_more(adjustment, job)) for job in _adjustable(adjustment)}
    grants.water_fill((claim for each in claims.values() for claim in each), adjustment.settings.min_idle)
    adjustment.short = [
        round_.job(key)
        for key, each in claims.items()
        if not each or any(grants.held(c.job, c.type, c.index) < c.want for c in each)
    ]


def boot(adjustment: Adjustment) -> None:
    """What starts gets idle CPU of its nodes: what the next size needs is CPU to start with, in every replica alike."""
    resized = adjustment.resized()
    for job in resized:
        adjustment.grants.withdraw(job)
    adjustment.grants.water_fill(_starting(adjustment, resized), adjustment.settings.min_idle)


def give_back_idle(adjustment: Adjustment) -> None:
    """What is still idle goes back to where it was."""
    adjustment.grants.water_fill(claim for job in adjustment.lent for claim in _had(adjustment, job, trim=False))


def grant(adjustment: Adjustment) -> None:
    """All that was lent becomes part of the plan."""
    for job in {job.key: job for job in (*adjustment.lent, *adjustment.grants.jobs.values())}.values():
        cpu = adjustment.grants.cpu(job)
        adjustment.round.grant(job, cpu, _reason(adjustment, job, cpu))


def millicores(amount: float) -> int:
    """In whole ones; none where the amount is no number that CPU can be."""
    return int(amount) if isfinite(amount) else 0


def _adjustable(adjustment: Adjustment) -> Iterator[Job]:
    """Jobs bound by the CPU of their replicas that this round has not touched."""
    round_ = adjustment.round
    for key in adjustment.busy:
        job = round_.job(key)
        stays = round_.placement(job) == job.placement
        if job.phase == "running" and job.spec.resizable and stays and key not in adjustment.ranked:
            yield job


def _had(adjustment: Adjustment, job: Job, *, trim: bool) -> Iterator[Claim]:
    """The CPU it held, where its replicas stay; with `trim` less what they leave idle."""
    settings, placement = adjustment.settings, adjustment.round.placement(job)
    for type_, each in job.cpu.items():
        group, use = job.spec.group(type_), job.cpu_use.get(type_)
        now, before = placement.get(type_, ()), job.placement.get(type_, ())
        if group is None:
            continue
        for k, held in enumerate(each[: len(now)]):
            if now[k] == before[k]:
                want = held
                if trim and use is not None and use < settings.idle:
                    used = millicores(held * use / ((settings.idle + settings.busy) / 2))
                    want = max(group.request.cpu, used)
                yield Claim(job, type_, k, min(want, held))


def _wants_more(adjustment: Adjustment, job: Job) -> Iterator[Claim]:
    """Types at their limit may use several times what they hold. Where none is, types take turns: then a step is
    shortest where each has CPU by the root of its work, and the busiest may use several times its request."""
    settings = adjustment.settings
    if job.spec.fixed_cpu:
        return
    limits = [type_ for type_, use in job.cpu_use.items() if use >= settings.busy]
    for type_ in limits:
        for k in range(len(job.placement.get(type_, ()))):
            yield Claim(job, type_, k, millicores(adjustment.grants.held(job, type_, k) * settings.cpu_growth))
    if limits or sum(job.cpu_use.values()) < settings.busy:
        return
    replicas = {type_: n for type_, n in job.counts.items() if n and type_ in job.cpu_use}
    work = {type_: job.cpu_use[type_] * job.held_cpu(type_) / n for type_, n in replicas.items()}
    most = max(work.values(), default=0.0) or 1.0  # replicas without CPU of their own have no work, and want none
    for type_, n in replicas.items():
        part = work[type_] / most
        root = sqrt(part) if part > 0 else 0.0
        want = millicores(job.spec.requested_cpu(type_) * settings.cpu_growth * root)
        for k in range(n):
            yield Claim(job, type_, k, want)


def _starting(adjustment: Adjustment, resized: Iterable[Job]) -> Iterator[Claim]:
    """Replicas of jobs that start, change their size or have yet to make a step: importing and tracing use all the
    CPU there is."""
    round_ = adjustment.round
    silent = [round_.job(key) for key in adjustment.silent]
    for job in {job.key: job for job in (*resized, *silent)}.values():
        if not job.spec.resizable or job.spec.fixed_cpu or job.phase == "rescaling":
            continue
        for type_, names in round_.placement(job).items():
            want = millicores(job.spec.requested_cpu(type_) * adjustment.settings.cpu_growth)
            for k in range(len(names)):
                yield Claim(job, type_, k, want)


def _reason(adjustment: Adjustment, job: Job, cpu: Cpu) -> Reason:
    had: dict[str, int] = {}
    has: dict[str, int] = {}
    for type_, names in adjustment.round.placement(job).items():
        asked = (job.spec.requested_cpu(type_),) * len(names)
        before, after = sum(job.cpu.get(type_, asked)), sum(cpu.get(type_, asked))
        if before != after:
            had[type_], has[type_] = before, after
    return Reason("cpu", {"had": had, "has": has, "use": {t: use for t, use in job.cpu_use.items() if t in has}})
