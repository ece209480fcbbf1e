"""CPU beyond what replicas request: idle CPU of their nodes, lent in place."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import UNPLACED, Cpu, Job


class Claim(NamedTuple):
    """One replica that could use up to `want` millicores where it is."""

    job: Job
    type: str
    replica: int
    want: int


class Grants:
    """What replicas hold beyond their requests while a round decides; takes it from the Round's FreeCapacity at once.

    CPU goes where it gains most: from equal use, the replica with the least CPU gains most from the next millicore,
    so the lowest of a node are raised together, as water fills a vessel.
    """

    def __init__(self, round_: Round) -> None:
        self._round = round_
        self._extra: dict[tuple[str, str, int], int] = {}
        self.jobs: dict[str, Job] = {}

    def held(self, job: Job, type_: str, index: int) -> int:
        group = job.spec.group(type_)
        assert group is not None
        return group.request.cpu + self._extra.get((job.key, type_, index), 0)

    def water_fill(self, claims: Iterable[Claim], least: float = 0.0) -> None:
        """Fill the claims from what is idle on their nodes, where that is at least this part of the node's CPU."""
        room, per_node = self._round.room, dict[int, list[Claim]]()
        job, placement = None, UNPLACED
        for claim in claims:
            if claim.job is not job:  # those of a job come together
                job, placement = claim.job, self._round.placement(claim.job)
            names = placement.get(claim.type, ())
            at = room.index.get(names[claim.replica]) if claim.replica < len(names) else None
            if at is not None and room.cpu[at] > 0:
                per_node.setdefault(at, []).append(claim)
        for at, there in per_node.items():
            if room.cpu[at] < least * room.usable[at].cpu:
                continue
            held = [self.held(c.job, c.type, c.replica) for c in there]
            level = water_fill(room.cpu[at], held, [c.want for c in there])
            room.take_cpu(at, sum(level) - sum(held))
            for claim, before, after in zip(there, held, level, strict=True):
                if after > before:
                    key = (claim.job.key, claim.type, claim.replica)
                    self._extra[key] = self._extra.get(key, 0) + after - before
                    self.jobs[claim.job.key] = claim.job

    def withdraw(self, job: Job) -> None:
        """Take back all that is lent to a job whose first replicas stay where they are."""
        if self.jobs.pop(job.key, None) is None:
            return
        placement, room = self._round.placement(job), self._round.room
        for type_, names in placement.items():
            for k, name in enumerate(names):
                extra = self._extra.pop((job.key, type_, k), 0)
                if extra:
                    room.take_cpu(room.index[name], -extra)

    def cpu(self, job: Job) -> Cpu:
        """What the job's replicas hold, for the types where any has more than it requests."""
        result = {}
        for type_, names in self._round.placement(job).items():
            each = tuple(self.held(job, type_, k) for k in range(len(names)))
            if any((job.key, type_, k) in self._extra for k in range(len(names))):
                result[type_] = each
        return result


def water_fill(idle: int, held: Sequence[int], want: Sequence[int]) -> list[int]:
    """What each holds after `idle` is poured over them: the lowest first, none above its want, none below before."""
    if sum(max(0, w - h) for h, w in zip(held, want, strict=True)) <= idle:
        return [max(h, w) for h, w in zip(held, want, strict=True)]
    low, high = 0, max(want)
    while high - low > 1:  # the highest level that what is idle reaches
        level = (low + high) // 2
        poured = sum(max(0, min(w, level) - h) for h, w in zip(held, want, strict=True))
        low, high = (level, high) if poured <= idle else (low, level)
    return [max(h, min(w, low)) for h, w in zip(held, want, strict=True)]
