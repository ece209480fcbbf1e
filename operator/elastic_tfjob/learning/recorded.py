"""Training on live jobs, from the experience files that an operator writes (scheduling/experience.py); and the loop of
`train-policy --follow`, which updates weights continuously.

Each job has its recorded arrival time, bounds and measured speed at each size. Policies know the same speeds: the speed
at a size that was never measured is unknown, as in the cluster.
"""

import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from random import Random
from typing import Final, Literal

import numpy as np

from elastic_tfjob.api.reading import MAX_DURATION_S, Fields, cut
from elastic_tfjob.learning.episodes import Episode, draw
from elastic_tfjob.learning.idle import wait_for_idle_cpu
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
from elastic_tfjob.simulation.engine import SimulationInput
from elastic_tfjob.simulation.live_job import Costs
from elastic_tfjob.simulation.speed_models.base import SpeedModel, TrueSpeed
from elastic_tfjob.simulation.workload import WorkloadJob
from elastic_tfjob.speed.optimus import OnlineSpeed, believe
from elastic_tfjob.speed.prediction import size_of

__all__ = ["LEAST_JOBS", "ContinuedTraining", "Recorded", "Update", "follow", "read_experience", "recorded_of"]

LEAST_JOBS: Final = 8
"""The minimum number of jobs for training: two are held back, and the rest form one workload."""
MOST_JOBS: Final = 2000
"""The maximum number of jobs used, the newest ones. Old jobs say little about future ones."""
HELD: Final = 0.25
"""The share of the jobs, the newest ones, on which weights are judged; no weights are trained on them."""
WINDOW: Final = (4, 16)
"""The number of consecutive jobs in one workload (minimum, maximum)."""
GAPS: Final = 0.5
"""The standard deviation of the logarithm of a random factor on the times between arrivals, so that a policy is also
trained on loads other than the recorded one."""
COSTS: Final = Costs(rescale_s=1.0)
SLOT_S: Final = 60.0
"""The slot length in seconds for a profile without an interval."""
LEAST_SLOT_S: Final = 5.0
LONGEST_SLOTS: Final = 100
"""The maximum work of a job, in slots at its best speed. A tenant may write any number of steps, and the best choice of
sizes is the same for jobs of weeks as for jobs of hours."""
SLOWEST: Final = 0.05
"""The minimum speed of a size, as a fraction of the best size's speed."""
MOST_NODES: Final = 2000

Part = Literal["train", "held", "all"]


@dataclass(frozen=True, slots=True)
class RecordedTrueSpeed:
    """The true speed of a recorded job. A size that was not measured has the speed of the nearest measured size, but
    policies do not know it."""

    total_steps: float
    belief: OnlineSpeed

    def rate(self, placement: Placement) -> float:
        return self.belief.steps_per_s(counts_of(placement)) or 0.0

    def steps_per_s(self, counts: Mapping[str, int]) -> float | None:
        fitted = self.belief.fit is not None and self.belief.fit.confident
        return self.belief.steps_per_s(counts) if fitted or size_of(counts) in self.belief.measured else None


def recorded_speed(job: WorkloadJob, speeds: Mapping[str, OnlineSpeed]) -> TrueSpeed:
    if job.total_steps is None:
        raise ValueError(f"job {job.key}: its number of steps is unknown")
    return RecordedTrueSpeed(job.total_steps, speeds[job.key])


@dataclass(frozen=True, slots=True)
class Recorded:
    """The recorded jobs in order of arrival, their measured `speeds` by key, and the latest state of the cluster.
    `unreadable`: the number of lines skipped."""

    jobs: tuple[WorkloadJob, ...]
    nodes: tuple[Node, ...]
    slot_s: float
    speeds: Mapping[str, OnlineSpeed]
    unreadable: int = 0

    @property
    def until_s(self) -> float:
        """The arrival time of the newest job in seconds."""
        return self.jobs[-1].submit_s if self.jobs else 0.0

    def after(self, moment_s: float) -> "Recorded":
        """The record with only the jobs that arrived after this time."""
        return replace(self, jobs=tuple(job for job in self.jobs if job.submit_s > moment_s))

    @property
    def fingerprint(self) -> str:
        """A hash of the record. A training that was interrupted is not continued with a different record."""
        content = repr((self.jobs, self.nodes, self.slot_s, sorted(self.speeds.items(), key=lambda each: each[0])))
        return sha256(content.encode("utf-8", "replace")).hexdigest()[:16]

    def part(self, part: Part) -> tuple[WorkloadJob, ...]:
        if part == "all":
            return self.jobs
        held = max(2, round(HELD * len(self.jobs)))
        return self.jobs[-held:] if part == "held" else self.jobs[:-held]

    def episode(self, part: Part, seed: int) -> Episode:
        """An episode of consecutive jobs of this part, chosen by seed. Jobs of `train` arrive faster or slower than
        recorded."""
        rng, jobs = Random(f"{part} {seed}"), self.part(part)
        number = min(len(jobs), rng.randint(*WINDOW))
        begin = rng.randint(0, len(jobs) - number)
        some = jobs[begin : begin + number]
        factor = math.exp(rng.gauss(0.0, GAPS)) if part == "train" else 1.0
        shifted = tuple(replace(job, submit_s=(job.submit_s - some[0].submit_s) * factor) for job in some)
        model = SpeedModel("recorded", partial(recorded_speed, speeds=self.speeds))
        return Episode(SimulationInput(shifted, self.nodes, model, COSTS, seed=seed), self.slot_s)


def read_experience(directory: Path) -> Recorded:
    """The jobs recorded in the files of this directory. Raises OSError if they cannot be read."""
    return recorded_of(_lines(directory))


def _lines(directory: Path) -> Iterator[str]:
    """The lines of all files, the oldest first."""
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
    """The jobs recorded in these lines. A line that cannot be parsed is skipped, as the last one may be incomplete."""
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
        beliefs,
        unreadable,
    )


def _believed(rates: Mapping[tuple[int, int], float]) -> OnlineSpeed:
    best = max((rate for (_, workers), rate in rates.items() if workers > 0), default=0.0)
    return believe({size: max(rate, SLOWEST * best) for size, rate in rates.items() if rate > 0})


def _groups(seen: ExperienceJob) -> tuple[ReplicaGroup, ...]:
    """The job's replica groups within its bounds, with a minimum of one worker. A job with a minimum of no worker would
    wait forever under a policy that adds nothing."""
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


# -- `train-policy --follow`: continuous training on live jobs, which publishes weights if they are not worse ----------
# An update trains on recorded and on drawn workloads alternately. The new weights are accepted if they are not worse
# than the current policy, both on the jobs that were held back and on drawn workloads that no choice was based on. The
# current policy is the weights published last, or without any the profile `hull`. Before each update the current
# weights are compared with the policy that they replaced, on the newest jobs: if they are worse, the earlier policy is
# restored.

HELD_WORKLOADS: Final = 6
WORSE: Final = 0.01
"""The relative increase of the completion time on the newest jobs at which the earlier policy is restored."""
ONE_LINE: Final = 1 << 16

Outcome = Literal["accepted", "refused", "rolled back", "failed"]
Decides = Network | None
"""The policy that decides. None: the profile `hull`, which `dl2` uses if it has no usable weights."""


@dataclass(frozen=True, slots=True)
class ContinuedTraining:
    """The settings of continuous training: where experience is read and weights are published. An update is due after
    `jobs` new jobs and trains according to `plan`. `poll_s`: the seconds between two checks for new jobs. `wait_s`: an
    update waits for idle CPU between its iterations, in all at most this long."""

    experience: Path
    output: Path
    plan: TrainingPlan
    jobs: int = LEAST_JOBS
    poll_s: float = 30.0
    wait_s: float = 0.0

    def beside(self, what: str) -> Path:
        return self.output.with_name(f"{self.output.name}.{what}")


@dataclass(frozen=True, slots=True)
class Update:
    """The result of an update attempt. `held` and `drawn`: the relative change of the mean completion time against the
    previous policy (-0.02: 2 % shorter), on held-back jobs and on drawn workloads; for a roll-back, the change due to
    the roll-back. `until_s`: the arrival time of the newest job used. `why`: the reason of a failure. `cpu_s`: its CPU
    time."""

    number: int
    outcome: Outcome
    jobs: int
    held: float
    drawn: float
    until_s: float
    unreadable: int = 0
    why: str = ""
    cpu_s: float = field(default=0.0, compare=False)

    def __str__(self) -> str:
        passed = f"; {self.unreadable} lines or jobs could not be read" if self.unreadable else ""
        if self.outcome == "failed":
            return f"update {self.number}, {self.jobs} live jobs: failed: {self.why}{passed}"
        return (
            f"update {self.number}, {self.jobs} live jobs: {self.outcome}; mean completion time {self.held:+.1%} on "
            f"held-back live jobs, {self.drawn:+.1%} on simulated workloads{passed}"
        )


class Mixed:
    """Recorded and drawn workloads alternately. Weights are judged on separate workloads of both kinds (`held`,
    `drawn`), because a judgement on the workloads used for the choice would mean little."""

    def __init__(self, recorded: Recorded, plan: TrainingPlan) -> None:
        self._recorded, self._drawn = recorded, Drawn(plan)
        self.held = [recorded.episode("held", k) for k in range(HELD_WORKLOADS)]
        self.drawn = judges(plan)
        self.select = [*(recorded.episode("train", -1 - k) for k in range(HELD_WORKLOADS)), *self._drawn.select]

    def train(self, number: int) -> Episode:
        return self._drawn.train(number) if number % 2 else self._recorded.episode("train", number)


def judges(plan: TrainingPlan) -> list[Episode]:
    """The drawn workloads for judging, which are the same for each update, so that the policy cannot get worse in small
    steps."""
    return [draw("judge", k, plan.models) for k in range(plan.select)]


def follow(course: ContinuedTraining) -> Iterator[Update | None]:
    """Yields each update, and None after each check without enough new jobs, so that the caller can stop. Raises
    OSError if experience cannot be read or weights cannot be written."""
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
        begun_s = time.process_time()
        try:
            update = rolled_back(course, newer, number) or updated(course, recorded, number)
        except ValueError as error:  # recorded, so that the same attempt is not repeated forever
            update = Update(
                number, "failed", len(recorded.jobs), 0.0, 0.0, until_s, recorded.unreadable, cut(f"{error}")
            )
        yield _noted(course, replace(update, cpu_s=round(time.process_time() - begun_s, 1)))


def _stamps(experience: Path) -> object:
    """A value that changes when experience is written."""
    file = experience / "experience.jsonl"
    if not file.exists():
        return "nothing"
    stat = file.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


def updated(course: ContinuedTraining, recorded: Recorded, number: int) -> Update:
    """Train on these jobs, and publish the new weights if they are not worse."""
    plan = replace(course.plan, seed=course.plan.seed + number, workloads=recorded.fingerprint)
    workloads = Mixed(recorded, plan)
    now = decides(course.output)
    candidate = _trained(course, plan, shipped() if now is None else now, workloads)
    held, drawn = (_change(candidate, now, each) for each in (workloads.held, workloads.drawn))
    better = held <= 0 and drawn <= 0 and min(held, drawn) < 0
    update = _update(number, "accepted" if better else "refused", recorded, held, drawn)
    if better:
        metadata = {"plan": asdict(plan), "update": number, "jobs": len(recorded.jobs), "held": held, "drawn": drawn}
        before = b"" if now is None else as_bytes(now, {"replaced_by_update": number})
        replace_file(course.beside("before"), before)
        replace_file(course.output, as_bytes(candidate, metadata))
    course.beside("state").unlink(missing_ok=True)
    return update


def rolled_back(course: ContinuedTraining, newer: Recorded, number: int) -> Update | None:
    """Restore the earlier policy if the current weights are worse than it, on jobs that arrived after all jobs on which
    either was trained. The earlier policy is other weights, or `hull` (an empty file), for which the weights file is
    removed."""
    kept, now = course.beside("before"), decides(course.output)
    if not kept.exists() or now is None:
        return None
    before = decides(kept)
    if before is None and kept.stat().st_size:  # the file is broken: the earlier policy is unknown
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
    """The policy of an operator with this file: its weights, or `hull` if the file has no usable weights."""
    found = read(str(file))
    return None if isinstance(found, str) else found


def shipped() -> Network:
    """The network shipped with the package, from which training starts. Raises OSError if it is missing."""
    if isinstance(found := read(""), str):
        raise OSError(found)
    return found


def _trained(course: ContinuedTraining, plan: TrainingPlan, current: Network, workloads: Mixed) -> Network:
    """The network after training from the weights `current`. An interrupted training of this update is resumed."""
    kept = course.beside("state")
    state = begun = _resumed(kept, plan) or begin(plan, current, workloads)
    save(begun, kept)
    waited_s = wait_for_idle_cpu(course.wait_s)
    for state in train(begun, workloads):
        save(state, kept)
        waited_s += wait_for_idle_cpu(course.wait_s - waited_s)
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
    """The last attempt recorded in this file; None if there is no readable one."""
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
