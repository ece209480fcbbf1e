"""Live jobs as workloads to learn on: from what an operator wrote down of its rounds (scheduling/experience.py).

Each job comes when it came, has its bounds, and is as fast at each size as it was measured to be. What policies are
told of it is that, too: of a size that nobody measured nothing is known, as in the cluster.
"""

import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from random import Random
from typing import Final, Literal

import numpy as np

from elastic_tfjob.api.reading import MAX_DURATION_S, Fields, cut
from elastic_tfjob.learning.episodes import Episode, draw
from elastic_tfjob.learning.training import (
    Drawn,
    TrainingPlan,
    TrainingState,
    begin,
    cost,
    load,
    replace_file,
    save,
    train,
)
from elastic_tfjob.scheduling.experience import MOST_LINE_BYTES, ExperienceJob, ExperienceRound, of_line
from elastic_tfjob.scheduling.profiles.dl2.network import Network, as_bytes, read
from elastic_tfjob.scheduling.resources import total_of
from elastic_tfjob.scheduling.snapshot import WORKER, JobSpec, Node, Placement, ReplicaGroup, counts_of
from elastic_tfjob.simulation.live_job import Costs
from elastic_tfjob.simulation.speed_models.base import TrueSpeed
from elastic_tfjob.simulation.workload import WorkloadJob
from elastic_tfjob.speed.optimus import OnlineSpeed, believe
from elastic_tfjob.speed.prediction import size_of

__all__ = ["LEAST_JOBS", "ContinuedTraining", "Recorded", "Update", "follow", "read_experience", "recorded_of"]

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
    last: ExperienceRound | None = None
    newest: dict[tuple[str, float], ExperienceJob] = {}
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


def _groups(seen: ExperienceJob) -> tuple[ReplicaGroup, ...]:
    """Within its bounds, with a worker at least: one that may have none would wait for ever under a policy that adds
    nothing."""
    if not seen.resizable:
        return tuple(replace(group, minimum=group.count, maximum=group.count) for group in seen.groups)
    return tuple(
        replace(group, minimum=max(1, group.minimum), maximum=max(1, group.maximum)) if group.type == WORKER else group
        for group in seen.groups
    )


def _cluster(moment: ExperienceRound | None) -> tuple[Node, ...]:
    kinds = moment.nodes if moment is not None else ()
    frees = list(islice((free for free, number in kinds for _ in range(number)), MOST_NODES))
    return tuple(Node(f"node-{k:05}", free, free) for k, free in enumerate(frees))


# -- `train-policy --follow`: learns from live jobs, for ever, and hands over weights that are not worse ---------------
# An update trains on recorded and on drawn workloads in turn. What comes out is accepted if it is not worse than what
# decides now on the jobs that were held back, nor on drawn workloads that nothing was chosen on. What decides now are
# the weights that were handed over last; where there are none, it is the profile `hull`. Before each update these
# weights are compared with what they replaced, on the newest jobs: where they are worse there, that comes back.

HELD_WORKLOADS: Final = 6
WORSE: Final = 0.01
"""So much worse than what was before them on the newest jobs, and that comes back."""
ONE_LINE: Final = 1 << 16

Outcome = Literal["accepted", "refused", "rolled back", "failed"]
Decides = Network | None
"""None: the profile `hull`, as under `dl2` where no weights can be used."""


@dataclass(frozen=True, slots=True)
class ContinuedTraining:
    """Where experience is read and weights are handed over; an update is due after `jobs` new ones, and `plan` says how
    it learns. `poll_s`: so often it is looked whether there are."""

    experience: Path
    output: Path
    plan: TrainingPlan
    jobs: int = LEAST_JOBS
    poll_s: float = 30.0

    def beside(self, what: str) -> Path:
        return self.output.with_name(f"{self.output.name}.{what}")


@dataclass(frozen=True, slots=True)
class Update:
    """What became of an attempt. `held` and `drawn`: change of the mean completion time beside what decided until
    then, as a part (-0.02: 2 % shorter); of a roll-back, that of going back. `until_s`: the arrival of the newest job
    in it. `why` it failed, if it did."""

    number: int
    outcome: Outcome
    jobs: int
    held: float
    drawn: float
    until_s: float
    unreadable: int = 0
    why: str = ""

    def __str__(self) -> str:
        passed = f"; {self.unreadable} lines or jobs could not be read" if self.unreadable else ""
        if self.outcome == "failed":
            return f"update {self.number}, {self.jobs} live jobs: failed, {self.why}{passed}"
        return (
            f"update {self.number}, {self.jobs} live jobs: {self.outcome}, completion times {self.held:+.1%} on live "
            f"jobs that were held back, {self.drawn:+.1%} on drawn workloads{passed}"
        )


class Mixed:
    """Recorded and drawn workloads in turn. What is handed over is judged on others of both kinds (`held`, `drawn`):
    were it chosen on them, too, that would say little."""

    def __init__(self, recorded: Recorded, plan: TrainingPlan) -> None:
        self._recorded, self._drawn = recorded, Drawn(plan)
        self.held = [recorded.episode("held", k) for k in range(HELD_WORKLOADS)]
        self.drawn = judges(plan)
        self.select = [*(recorded.episode("train", -1 - k) for k in range(HELD_WORKLOADS)), *self._drawn.select]

    def train(self, number: int) -> Episode:
        return self._drawn.train(number) if number % 2 else self._recorded.episode("train", number)


def judges(plan: TrainingPlan) -> list[Episode]:
    """The same drawn workloads for each update: who is never worse on them does not get worse little by little."""
    return [draw("judge", k, plan.models) for k in range(plan.select)]


def follow(course: ContinuedTraining) -> Iterator[Update | None]:
    """The updates, as they come; None each time that there was not enough to learn from, so that the caller may end.
    Raises OSError where experience cannot be read, or weights not be written."""
    last = _last(course.beside("updates.jsonl"))
    number, until_s = (last.number, last.until_s) if last is not None else (0, float("-inf"))
    looked: object = None
    while True:
        if (stamps := _stamps(course.experience)) == looked:
            yield None
            continue
        looked, recorded = stamps, read_experience(course.experience)
        newer = recorded.after(until_s)
        if len(recorded.jobs) < LEAST_JOBS or len(newer.jobs) < course.jobs:
            yield None
            continue
        number, until_s = number + 1, recorded.until_s
        try:
            update = rolled_back(course, newer, number) or updated(course, recorded, number)
        except ValueError as error:  # noted, so that nobody tries the same for ever
            update = Update(
                number, "failed", len(recorded.jobs), 0.0, 0.0, until_s, recorded.unreadable, cut(f"{error}")
            )
        yield _noted(course, update)


def _stamps(experience: Path) -> object:
    """What tells that something was written."""
    file = experience / "experience.jsonl"
    if not file.exists():
        return "nothing"
    stat = file.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


def updated(course: ContinuedTraining, recorded: Recorded, number: int) -> Update:
    """Learn from these jobs, and hand over what comes out if it is not worse."""
    plan = replace(course.plan, seed=course.plan.seed + number, workloads=recorded.fingerprint)
    workloads = Mixed(recorded, plan)
    now = decides(course.output)
    candidate = _trained(course, plan, shipped() if now is None else now, workloads)
    held, drawn = (_change(candidate, now, each) for each in (workloads.held, workloads.drawn))
    better = held <= 0 and drawn <= 0 and min(held, drawn) < 0
    update = _update(number, "accepted" if better else "refused", recorded, held, drawn)
    if better:
        said = {"plan": asdict(plan), "update": number, "jobs": len(recorded.jobs), "held": held, "drawn": drawn}
        before = b"" if now is None else as_bytes(now, {"replaced_by_update": number})
        replace_file(course.beside("before"), before)
        replace_file(course.output, as_bytes(candidate, said))
    course.beside("state").unlink(missing_ok=True)
    return update


def rolled_back(course: ContinuedTraining, newer: Recorded, number: int) -> Update | None:
    """Where the weights in use are worse than what was before them, on jobs that came after all that either learned
    from, that comes back: other weights, or `hull` (an empty file), for which they are removed."""
    kept, now = course.beside("before"), decides(course.output)
    if not kept.exists() or now is None:
        return None
    before = decides(kept)
    if before is None and kept.stat().st_size:  # broken: nobody knows what it was
        return None
    held = _change(before, now, [newer.episode("all", k) for k in range(HELD_WORKLOADS)])
    if held >= -WORSE:
        return None
    drawn = _change(before, now, judges(course.plan))
    if before is None:
        course.output.unlink()
        kept.unlink()
    else:
        os.replace(kept, course.output)
    return _update(number, "rolled back", newer, held, drawn)


def decides(file: Path) -> Decides:
    """What decides where the operator is given this file: its weights, or `hull` where there are none to be used."""
    found = read(str(file))
    return None if isinstance(found, str) else found


def shipped() -> Network:
    """Where learning begins. Raises OSError where the package lacks it."""
    if isinstance(found := read(""), str):
        raise OSError(found)
    return found


def _trained(course: ContinuedTraining, plan: TrainingPlan, current: Network, workloads: Mixed) -> Network:
    """What training from these weights ends with. One that was stopped in this update goes on."""
    kept = course.beside("state")
    state = begun = _resumed(kept, plan) or begin(plan, current, workloads)
    save(begun, kept)
    for state in train(begun, workloads):
        save(state, kept)
    return state.network


def _resumed(kept: Path, plan: TrainingPlan) -> TrainingState | None:
    try:
        state = load(kept) if kept.exists() else None
    except ValueError:
        return None
    return state if state is not None and state.plan == plan else None


def _change(ours: Decides, theirs: Decides, episodes: Sequence[Episode]) -> float:
    return float(np.expm1(cost(ours, episodes) - cost(theirs, episodes)))


def _update(number: int, outcome: Outcome, recorded: Recorded, held: float, drawn: float) -> Update:
    return Update(number, outcome, len(recorded.jobs), held, drawn, recorded.until_s, recorded.unreadable)


def _noted(course: ContinuedTraining, update: Update) -> Update:
    with course.beside("updates.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"at": time.time(), **asdict(update)}) + "\n")
    return update


def _last(path: Path) -> Update | None:
    """The last attempt that is noted there; None where there is none that can be read."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - ONE_LINE))
        lines = file.read().decode("utf-8", "replace").splitlines()
    for line in reversed(lines):
        try:
            fields = Fields(json.loads(line))
            until_s = fields.number("until_s", float(MAX_DURATION_S) * 10)
            number = fields.whole("number", 2**31)
        except (ValueError, RecursionError):
            continue
        if until_s is not None:
            return Update(number, "refused", 0, 0.0, 0.0, until_s)
    return None
