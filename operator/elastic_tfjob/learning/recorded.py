"""Live jobs as workloads to learn on: from what an operator wrote down of its rounds (scheduling/experience.py).

Each job comes when it came, has its bounds, and is as fast at each size as it was measured to be. What policies are
told of it is that, too: of a size that nobody measured nothing is known, as in the cluster.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from random import Random
from typing import Final, Literal

from elastic_tfjob.learning.episodes import Episode
from elastic_tfjob.scheduling.experience import MOST_LINE_BYTES, Moment, Seen, of_line
from elastic_tfjob.scheduling.resources import total_of
from elastic_tfjob.scheduling.snapshot import WORKER, JobSpec, Node, Placement, ReplicaGroup, counts_of
from elastic_tfjob.simulation.costs import Costs
from elastic_tfjob.simulation.speed_models.base import TrueSpeed
from elastic_tfjob.simulation.workload import WorkloadJob
from elastic_tfjob.speed.optimus import OnlineSpeed, believe
from elastic_tfjob.speed.prediction import size_of

__all__ = ["LEAST_JOBS", "Recorded", "read_experience", "recorded_of"]

LEAST_JOBS: Final = 8
"""Of fewer jobs nothing is learned: two are held back, and the others are one workload."""
MOST_JOBS: Final = 2000
"""The newest ones; what was long ago tells little of what comes."""
HELD: Final = 0.25
"""The newest part of the jobs: weights are judged on it, and never follow it."""
WINDOW: Final = (4, 16)
"""Jobs of one workload: consecutive ones."""
GAPS: Final = 0.5
"""Standard deviation of the logarithm of a factor of the times between arrivals, so that a policy meets other loads
than the one that was there."""
COSTS: Final = Costs(rescale_s=1.0)
SLOT_S: Final = 60.0
"""Of a profile that has no interval."""
LEAST_SLOT_S: Final = 5.0
LONGEST_SLOTS: Final = 100
"""What a job has to do at its best speed counts as no more than this many slots: a tenant may write any number of
steps, and how sizes are best handed out hangs on weeks no more than on hours."""
SLOWEST: Final = 0.05
"""No size counts as slower than this part of the best."""
MOST_NODES: Final = 2000

Part = Literal["train", "held", "all"]


@dataclass(frozen=True, slots=True)
class RecordedTrueSpeed:
    """At a size that was not measured a job is as fast as at the nearest that was; but nobody is told that."""

    total_steps: float
    belief: OnlineSpeed

    def rate(self, placement: Placement) -> float:
        return self.belief.steps_per_s(counts_of(placement)) or 0.0

    def steps_per_s(self, counts: Mapping[str, int]) -> float | None:
        fitted = self.belief.fit is not None and self.belief.fit.confident
        return self.belief.steps_per_s(counts) if fitted or size_of(counts) in self.belief.measured else None


@dataclass(frozen=True, slots=True)
class RecordedSpeedModel:
    """Speeds of jobs by their keys."""

    beliefs: Mapping[str, OnlineSpeed]
    name: str = "recorded"
    contended: bool = False

    def true_speed(self, job: WorkloadJob) -> TrueSpeed:
        if job.total_steps is None:
            raise ValueError(f"job {job.key}: its steps are not known")
        return RecordedTrueSpeed(job.total_steps, self.beliefs[job.key])


@dataclass(frozen=True, slots=True)
class Recorded:
    """Jobs in the order in which they came, and the cluster as it was last. `unreadable`: lines that were passed
    over."""

    jobs: tuple[WorkloadJob, ...]
    nodes: tuple[Node, ...]
    slot_s: float
    speeds: RecordedSpeedModel
    unreadable: int = 0

    @property
    def until_s(self) -> float:
        """When the newest job came."""
        return self.jobs[-1].submit_s if self.jobs else 0.0

    def after(self, moment_s: float) -> "Recorded":
        """With the jobs alone that came after that."""
        return replace(self, jobs=tuple(job for job in self.jobs if job.submit_s > moment_s))

    @property
    def fingerprint(self) -> str:
        """What tells it from another: weights that were half trained on one are not trained on with another."""
        told = repr((self.jobs, self.nodes, self.slot_s, sorted(self.speeds.beliefs.items(), key=lambda each: each[0])))
        return sha256(told.encode("utf-8", "replace")).hexdigest()[:16]

    def part(self, part: Part) -> tuple[WorkloadJob, ...]:
        if part == "all":
            return self.jobs
        held = max(2, round(HELD * len(self.jobs)))
        return self.jobs[-held:] if part == "held" else self.jobs[:-held]

    def episode(self, part: Part, seed: int) -> Episode:
        """Consecutive jobs of this part, by seed; those of `train` come faster or slower than they did."""
        rng, jobs = Random(f"{part} {seed}"), self.part(part)
        number = min(len(jobs), rng.randint(*WINDOW))
        begin = rng.randint(0, len(jobs) - number)
        some = jobs[begin : begin + number]
        factor = math.exp(rng.gauss(0.0, GAPS)) if part == "train" else 1.0
        shifted = tuple(replace(job, submit_s=(job.submit_s - some[0].submit_s) * factor) for job in some)
        return Episode(shifted, self.nodes, self.slot_s, self.speeds, seed, COSTS)


def read_experience(directory: Path) -> Recorded:
    """What the files of this directory say. Raises OSError where they cannot be read."""
    return recorded_of(_lines(directory))


def _lines(directory: Path) -> Iterator[str]:
    """The oldest first."""
    closed = sorted(directory.glob("experience.*.jsonl"), key=_number, reverse=True)
    for path in (*closed, directory / "experience.jsonl"):
        if not path.exists():
            continue
        with path.open(encoding="utf-8", errors="replace") as file:
            while line := file.readline(MOST_LINE_BYTES + 1):
                yield line


def _number(path: Path) -> int:
    number = path.name.split(".")[1]
    return int(number) if number.isdecimal() and len(number) < 9 else 0


def recorded_of(lines: Iterable[str]) -> Recorded:
    """What these lines say. One that cannot be read is passed over: the last one may be half written."""
    last: Moment | None = None
    newest: dict[tuple[str, float], Seen] = {}
    speeds: dict[tuple[str, float], dict[tuple[int, int], float]] = {}
    unreadable = 0
    for line in lines:
        try:
            moment = of_line(line)
        except ValueError:
            unreadable += 1
            continue
        last = moment
        unreadable += moment.unreadable
        for seen in moment.jobs:
            known = seen.job, seen.arrival_s
            newest[known] = seen
            speeds.setdefault(known, {}).update({(p, w): rate for p, w, rate in seen.speeds})
    nodes = _cluster(last)
    total = total_of(node.free for node in nodes)
    slot_s = max((last.slot_s if last is not None else 0.0) or SLOT_S, LEAST_SLOT_S)
    jobs: list[WorkloadJob] = []
    beliefs: dict[str, OnlineSpeed] = {}
    for k, (known, seen) in enumerate(sorted(newest.items(), key=lambda each: (each[1].arrival_s, each[0]))):
        belief = _believed(speeds[known])
        if not (belief.measured and seen.total_steps and any(g.type == WORKER and g.count for g in seen.groups)):
            continue
        steps = min(seen.total_steps, LONGEST_SLOTS * slot_s * max(belief.measured.values()))
        job = WorkloadJob(f"{k}/{seen.job}", seen.arrival_s, _groups(seen), total_steps=steps, model=seen.model)
        if JobSpec(job.key, job.submit_s, job.groups).minimum_demand.within(total):
            jobs.append(job)
            beliefs[job.key] = belief
    return Recorded(
        tuple(jobs[-MOST_JOBS:]),
        nodes,
        slot_s,
        RecordedSpeedModel(beliefs),
        unreadable,
    )


def _believed(rates: Mapping[tuple[int, int], float]) -> OnlineSpeed:
    best = max((rate for (_, workers), rate in rates.items() if workers > 0), default=0.0)
    return believe({size: max(rate, SLOWEST * best) for size, rate in rates.items() if rate > 0})


def _groups(seen: Seen) -> tuple[ReplicaGroup, ...]:
    """Within its bounds, with a worker at least: one that may have none would wait for ever under a policy that adds
    nothing."""
    if not seen.resizable:
        return tuple(replace(group, minimum=group.count, maximum=group.count) for group in seen.groups)
    return tuple(
        replace(group, minimum=max(1, group.minimum), maximum=max(1, group.maximum)) if group.type == WORKER else group
        for group in seen.groups
    )


def _cluster(moment: Moment | None) -> tuple[Node, ...]:
    kinds = moment.nodes if moment is not None else ()
    frees = list(islice((free for free, number in kinds for _ in range(number)), MOST_NODES))
    return tuple(Node(f"node-{k:05}", free, free) for k, free in enumerate(frees))
