"""A job in the simulation: its true speed, its state, and the view of it that a policy gets; and the costs of
changes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf
from random import Random
from typing import Final

from elastic_tfjob.scheduling.shared_cpu import slowest_usable
from elastic_tfjob.scheduling.snapshot import (
    PS,
    UNPLACED,
    WORKER,
    Cpu,
    Job,
    JobSpec,
    Memory,
    Phase,
    Placement,
    counts_of,
)
from elastic_tfjob.simulation.memory import PsMemory
from elastic_tfjob.simulation.result import JobRecord
from elastic_tfjob.simulation.speed_models.base import TrueSpeed
from elastic_tfjob.simulation.speed_models.cpu import Boot, Boots, CpuBound, Training, training
from elastic_tfjob.simulation.workload import WorkloadJob
from elastic_tfjob.speed.growth import NOT_REPORTED, Growth
from elastic_tfjob.speed.history import Conditions, Lesson, sighted
from elastic_tfjob.speed.model import Speed
from elastic_tfjob.speed.optimus import believe

# -- Costs of changing a job, and noise on speeds and estimates --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Costs:
    """The pauses of a job (seconds) and the training that it loses. `restart_s` holds pairs (maximum number of
    accelerators, seconds) in rising order; the last pair applies to all larger jobs. With `checkpoint_interval_s` 0 a
    preempted job loses nothing. A move loses the training of the last `migrate_lost_s` seconds.

    In speed models where speed follows CPU, `boot_cpu_s` is the CPU time of starting one process of the training
    program. A starting job waits for it. A rescaling job continues to train with the remaining CPU and stands still for
    `rescale_s` only; the resources that it gives up are free after that. `boot_kept_cpu_s` is the CPU time for a
    replica that stays and has already imported what the new program imports; None: the same as for an added replica.

    `live_pause_s`: the pause of a job whose workers join and leave its running program (LiveJob.live_workers), where
    nothing else changes.
    """

    start_s: float = 0.0
    restart_s: tuple[tuple[float, float], ...] = ((inf, 0.0),)
    rescale_s: float = 0.0
    migrate_s: float = 0.0
    migrate_lost_s: float = 0.0
    checkpoint_interval_s: float = 0.0
    boot_cpu_s: float = 0.0
    boot_kept_cpu_s: float | None = None
    live_pause_s: float | None = None

    def restart(self, accelerators: int) -> float:
        return next((seconds for limit, seconds in self.restart_s if accelerators <= limit), self.restart_s[-1][1])


NO_COSTS: Final = Costs()

UNDONE_S: Final = 300.0
"""A change of size counts as undone if the job returns to its former size within this time."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Standard deviations of the logarithm of a job's real speed (`speed`) and of the durations and steps given to the
    policy (`estimate`). `speed_every_s`: seconds after which the speed is drawn again; 0: it is drawn once per job.
    `neighbours`: the largest part of a node's CPU, below 1, that other programs use unseen: half of the nodes have some
    (drawn again as the speed), and a job's replicas wait for the one with least CPU.
    `silent`: the share of jobs, 0 to 1, whose programs and exporters report nothing: no step, no speed, no CPU use, no
    loss."""

    speed: float = 0.0
    speed_every_s: float = 0.0
    estimate: float = 0.0
    silent: float = 0.0
    neighbours: float = 0.0


NO_NOISE: Final = Noise()


@dataclass(slots=True)
class LiveJob:
    """A simulated job. `factor` is its real speed divided by `true_speed`. `steps` is the number of steps done at
    `observed_s`; after that it makes `steps_per_s`. `version` distinguishes the latest predicted finish
    event from outdated ones."""

    work: WorkloadJob
    spec: JobSpec
    true_speed: TrueSpeed
    record: JobRecord
    factor: float
    speed: Speed | None
    """The speed as the policy knows it."""
    placement: Placement = field(default_factory=dict)
    steps: float = 0.0
    observed_s: float = 0.0
    steps_per_s: float = 0.0
    since_s: float = 0.0
    service: float = 0.0
    rescaled_s: float = -inf
    stopped_s: float = -inf
    resumed_s: float = -inf
    version: int = 0
    held: int = 0
    """The growth of `service` per second: the job's accelerators, or its replicas if it uses no accelerators."""
    accelerators: int = 0
    cpu_millicores: int = 0
    seen: dict[tuple[int, int], float] = field(default_factory=dict)
    """Measured steps per second by (PSs, workers), for a policy that learns speeds."""
    seen_under: dict[tuple[int, int], Conditions] = field(default_factory=dict)
    bound: CpuBound | None = None
    """Set in speed models where speed follows the CPU that replicas hold."""
    cpu_held: Cpu = field(default_factory=dict)
    use: Mapping[str, float] = field(default_factory=dict)
    boot: Boot | None = None
    busy_cores: float = 0.0
    """The CPU that the job uses."""
    warm_start: bool = False
    live_workers: bool = False
    cpu_limited: bool = True
    cpu_shared: bool = False
    loss: Growth = NOT_REPORTED
    memory: Memory = field(default_factory=dict)
    prepare_s: float | None = None
    """How long the last added or moved replica took to start its program beside a running one; None: not known."""
    left: tuple[dict[str, int], float] | None = None
    """The size that the job had before its last change of size, and when it left it."""
    lost: bool = False
    """Whether the job stands still because one of its nodes is lost."""
    silent: bool = False
    """Whether the job reports nothing about its training."""
    ps_memory: PsMemory | None = None
    """None: its use of memory is not simulated."""

    @property
    def phase(self) -> Phase:
        if not self.placement:
            return "waiting"
        return "rescaling" if self.boot is not None and self.boot.placement else "running"

    @property
    def size(self) -> tuple[int, int]:
        """(PSs, workers)."""
        return len(self.placement.get(PS, ())), len(self.placement.get(WORKER, ()))

    def seen_at(self, now: float) -> Job:
        """The job as a policy sees it."""
        return Job(
            spec=self.spec,
            placement=self.placement,
            phase=self.phase,
            steps=0.0 if self.silent else self.steps,
            observed_s=self.observed_s,
            steps_per_s=0.0 if self.silent else self.steps_per_s,
            since_s=self.since_s,
            service=self.service,
            executed_s=self.record.executed_s,
            rescaled_s=self.rescaled_s,
            migrations=self.record.migrations,
            speed=self.speed,
            loss=self._loss_at(now),
            cpu=self.cpu_held,
            cpu_use={} if self.silent else self.use,
            stops=self.record.preemptions,
            stopped_s=self.stopped_s,
            resumed_s=self.resumed_s,
            memory=self.memory,
            warm_start=self.warm_start,
            live_workers=self.live_workers,
            cpu_limited=self.cpu_limited,
            cpu_shared=self.cpu_shared,
            prepare_s=self.prepare_s,
        )

    def _loss_at(self, now: float) -> Growth:
        """The loss curve as reported so far. The loss is reported only while the job trains."""
        curve = self.work.loss
        if curve is not None and self.placement and not self.silent:
            steps = self.steps_at(now)
            self.loss = self.loss.read(steps, curve.at(steps), now)
        return self.loss

    def train_until(self, now: float) -> None:
        """Count the steps done between `observed_s` and `now`. A pause that ends after `now` continues."""
        self.steps, self.observed_s = self.steps_at(now), max(self.observed_s, now)
        if self.ps_memory is not None:
            self.ps_memory.count(self.record, self.steps, now)

    def steps_at(self, now: float) -> float:
        """Steps done by `now`."""
        return self.steps + self.steps_per_s * max(0.0, now - self.observed_s)

    def trains(self) -> None:
        """The job trains from `observed_s` on, if it has a speed: note its first step."""
        if self.placement and not self.lost and self.record.first_step_s is None:
            self.record.first_step_s = self.observed_s

    def _not_before(self, now: float) -> None:
        """A change at this time ends a start that has not come to its first step."""
        if self.record.first_step_s is not None and self.record.first_step_s > now:
            self.record.first_step_s = None

    def back_to_checkpoint(self, interval_s: float, most_s: float = inf) -> None:
        """Lose the steps since the last checkpoint. The job saves one every `interval_s` seconds (0: nothing is lost),
        and the last one `most_s` ago at most."""
        if interval_s > 0:
            kept = interval_s * self.steps_per_s
            since = self.steps % kept if kept > 0 else 0.0
            self.lose(since if most_s == inf else min(since, most_s * self.steps_per_s))

    def lose(self, steps: float) -> None:
        """Subtract steps that have to be done again, and record the loss."""
        self.steps -= steps
        self.record.lost_steps += steps
        self.record.lost_s += steps / self.steps_per_s if self.steps_per_s > 0 else 0.0

    def lose_node(self, checkpoint_interval_s: float, now: float) -> None:
        """The program ends because one of its nodes is lost; it will resume later from its last checkpoint."""
        self.train_until(now)
        self._not_before(now)
        self.back_to_checkpoint(checkpoint_interval_s)
        self.record.lost_nodes += 1
        if self.boot is not None:
            self.boot.placement = UNPLACED

    def killed_for_memory(self, checkpoint_interval_s: float, most_s: float, now: float) -> None:
        """The kernel kills a parameter server, and the program ends with it. At most `most_s` of training are lost."""
        self._not_before(now)
        self.back_to_checkpoint(checkpoint_interval_s, most_s)
        if self.ps_memory is not None:
            self.ps_memory.counted_steps = self.steps
        self.record.memory_kills += 1

    def workers_from(self, new: Placement, *, saves: bool = False) -> int | None:
        """Where the program stays in a change to `new`, in which only workers join, leave or move: the index from which
        workers start; None where another program starts. Of workers that move, all count."""
        before = self.placement
        others = all(before.get(type_) == new.get(type_) for type_ in {*before, *new} - {WORKER})
        was, are = before.get(WORKER, ()), new.get(WORKER, ())
        leads = self.spec.leader != WORKER or was[:1] == are[:1]
        if not (self.live_workers and was and are and others and leads) or self.lost or saves or self.boot is not None:
            return None
        return 0 if len(was) == len(are) else len(was)

    def change_to(self, new: Placement, costs: Costs, now: float, *, saves: bool = False, stays: bool = False) -> float:
        """Account for a change to `new`, which the caller carries out. `saves`: all replicas end once they have saved,
        before the node of one is gone. `stays`: the program stays. Returns the length of the pause in seconds."""
        record, old = self.record, self.placement
        resized = _counts(old) != _counts(new)
        live_s = costs.live_pause_s if stays else None
        if old:
            self.train_until(now)
            self._not_before(now)
        if new != old and (resized or not self.lost):  # otherwise the resources held are the same
            if old:
                self.service += self.held * (now - self.since_s)
                record.executed_s += now - self.since_s
            else:
                record.queue_s += now - self.since_s
            self.since_s = now
        if old and new == old:
            return 0.0  # only the CPU share changes, in place
        if not new:
            record.preemptions += 1
            self.stopped_s = now
            if not saves:
                self.back_to_checkpoint(costs.checkpoint_interval_s)
            return 0.0
        if not old:
            if record.start_s is None:
                record.start_s = now
                return costs.start_s
            self.resumed_s = now
            return costs.restart(self.spec.demand(counts_of(new)).accelerators)
        restart_s = costs.restart(self.spec.demand(counts_of(new)).accelerators)
        if self.lost and not resized:
            return restart_s
        self.rescaled_s = now
        if resized:
            record.rescales += 1
            if self.left is not None and self.left[0] == _counts(new) and now - self.left[1] <= UNDONE_S:
                record.undone += 1
            self.left = _counts(old), now
            return restart_s if self.lost or saves else costs.rescale_s if live_s is None else live_s
        record.migrations += 1
        if live_s is not None:
            return live_s
        if saves:
            return restart_s
        self.lose(min(self.steps, costs.migrate_lost_s * self.steps_per_s))
        return costs.migrate_s

    def training(self, boots: Boots, undisturbed: float = 1.0) -> Training:
        """Speed and CPU use with the CPU that the job holds. Only for jobs whose speed follows their CPU.
        `undisturbed`: the factor on the speed that hidden neighbours leave."""
        assert self.bound is not None
        return training(
            self.bound,
            factor=self.factor * undisturbed,
            groups=self.spec.groups,
            placement=UNPLACED if self.lost else self.placement,
            cpu=self.cpu_held,
            boot=self.boot,
            boots=boots,
            shared=self.cpu_shared,
        )

    # ---- measurements for the policy

    def measure(self, points: int, random: Random) -> None:
        """Run the job briefly at `points` sizes, smallest first, as Optimus does before it schedules a job. A tabled
        speed model knows only some sizes. If too few of the random sizes are in its table, further sizes are tried in
        rising order, with all replica types growing together."""
        spec, sizes = self.spec, {tuple(self.spec.minimum.items()): None}
        for _ in range(4 * points):
            if len(sizes) >= points:
                break
            size = {g.type: random.randint(g.minimum, g.maximum) for g in spec.groups}
            sizes[tuple(size.items())] = None
        most = max(group.maximum - group.minimum for group in spec.groups)
        more = ({g.type: min(g.minimum + k, g.maximum) for g in spec.groups} for k in range(1, most + 1))
        for counts in chain(map(dict, sizes), more):
            if len(self.seen) >= points:
                break
            if rate := self.true_speed.steps_per_s(counts):
                self.seen[counts.get(PS, 0), counts.get(WORKER, 0)] = rate * self.factor
        self.speed = believe(self.seen)

    def observe(self) -> None:
        """Record the job's speed at its current size and update the policy's estimate."""
        if self.silent:
            return
        size, under = self.size, Conditions()
        if self.bound is not None:
            usable = slowest_usable(self.spec.groups, self.placement, self.cpu_held, shared=self.cpu_shared)
            under = Conditions.of(usable)
        rate, known = self.seen.get(size), self.seen_under.get(size, Conditions())
        # The same speed with other CPU is a new measurement, too: it shows that CPU does not help at this size.
        if rate != self.steps_per_s or replace(known, spread=0.0) != under:
            self.seen_under[size] = sighted(None if rate is None else (rate, known), self.steps_per_s, under)
            self.seen[size] = self.steps_per_s
            self.speed = believe(self.seen, conditions=self.seen_under)

    def lesson(self) -> Lesson:
        """The measurements of this finished job, used for predictions about similar jobs."""
        size = self.size
        seen = self.seen or ({size: self.steps_per_s} if size[1] and not self.silent else {})
        steps = None if self.silent else self.true_speed.total_steps
        return Lesson(self.spec.key, steps, self.record.executed_s, seen, self.seen_under)


def _counts(placement: Placement) -> dict[str, int]:
    return {type_: len(names) for type_, names in placement.items() if names}
