"""The simulated world: events in, a round of the decision core where something changed, its plan carried out.

There is no ticking. The truth (speed models' rates, real durations) stays here; a policy sees the Snapshot only.
"""

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import inf

from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.forecasts import Forecast, forecast
from elastic_tfjob.scheduling.plan import Plan, Target
from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.snapshot import (
    AS_REQUESTED,
    PS,
    UNPLACED,
    WORKER,
    Cpu,
    Job,
    JobSpec,
    Node,
    Phase,
    Placement,
    Pool,
    Snapshot,
    counts_of,
)
from elastic_tfjob.simulation.inference import DAY_S, INFERENCE, Demand, InferencePool
from elastic_tfjob.simulation.speed_models.base import SpeedModel, TrueSpeed
from elastic_tfjob.simulation.speed_models.ps_cpu import CpuBound, Pace
from elastic_tfjob.simulation.workload import WorkloadJob
from elastic_tfjob.speed.growth import NOT_REPORTED, Growth
from elastic_tfjob.speed.history import History, Lesson, stem
from elastic_tfjob.speed.model import Speed
from elastic_tfjob.speed.optimus import believe

FINISH, READY, ARRIVE, JUMP, DEMAND, ROUND = range(6)
BOOT_CORES = 1.0
"""CPUs that a program can use while it starts: importing and tracing run on one."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds that a job stands still, and what it loses. `restart_s` holds (up to so many accelerators, seconds)
    rising; the last one goes for all larger jobs. `checkpoint_interval_s` 0: a preempted job loses nothing.

    Where speed follows CPU, `boot_cpu_s` is the CPU time of starting one process of the training program. A job that
    starts waits for it. One that is rescaled trains on meanwhile, with what CPU that leaves, and stands still for
    `rescale_s` only; what it gives up is free for others after that.
    """

    start_s: float = 0.0
    restart_s: tuple[tuple[float, float], ...] = ((inf, 0.0),)
    rescale_s: float = 0.0
    migrate_s: float = 0.0
    checkpoint_interval_s: float = 0.0
    boot_cpu_s: float = 0.0

    def restart(self, accelerators: int) -> float:
        return next((seconds for limit, seconds in self.restart_s if accelerators <= limit), self.restart_s[-1][1])


@dataclass(frozen=True, slots=True)
class Noise:
    """Standard deviations of the logarithm: of a job's real speed, and of the durations a policy is told."""

    speed: float = 0.0
    estimate: float = 0.0


@dataclass(slots=True)
class JobRecord:
    """One job's fate. Times in seconds on the workload's clock; `finish_s` None: it did not finish."""

    key: str
    submit_s: float
    deadline_s: float | None
    start_s: float | None = None
    finish_s: float | None = None
    queue_s: float = 0.0
    executed_s: float = 0.0
    preemptions: int = 0
    rescales: int = 0
    migrations: int = 0
    lost_steps: float = 0.0
    forecast: Forecast | None = None
    """Under the plan that started it first."""

    @property
    def jct_s(self) -> float | None:
        return None if self.finish_s is None else self.finish_s - self.submit_s


@dataclass(slots=True)
class Interval:
    """A job on a node for a while, for the Gantt chart."""

    node: str
    key: str
    start_s: float
    end_s: float
    replicas: int


@dataclass(slots=True)
class Sample:
    """The cluster from `time_s` on: jobs waiting and running, and what they hold."""

    time_s: float
    waiting: int
    running: int
    accelerators: int
    cpu: int


@dataclass(slots=True)
class Outcome:
    """What one run gave. Areas are resource times seconds: held, and of CPU also used where the speed model knows."""

    profile: str
    seed: int
    oracle: bool
    records: list[JobRecord]
    first_s: float = 0.0
    last_s: float = 0.0
    accelerator_capacity: int = 0
    cpu_capacity: int = 0
    accelerator_area: float = 0.0
    cpu_area: float = 0.0
    cpu_used_area: float | None = None
    rounds: int = 0
    cpu_s: float = 0.0
    partial: bool = False
    samples: list[Sample] = field(default_factory=list)
    intervals: list[Interval] = field(default_factory=list)


@dataclass(slots=True)
class _Live:
    """A job in the simulation: the truth, and where it stands."""

    work: WorkloadJob
    spec: JobSpec
    true_speed: TrueSpeed
    record: JobRecord
    factor: float
    speed: Speed | None
    placement: Placement = field(default_factory=dict)
    steps: float = 0.0
    observed_s: float = 0.0
    rate: float = 0.0
    since_s: float = 0.0
    service: float = 0.0
    rescaled_s: float = -inf
    version: int = 0
    held: int = 0
    accelerators: int = 0
    cpu: int = 0
    seen: dict[tuple[int, int], float] = field(default_factory=dict)
    """Measured steps per second by (PSs, workers), where the policy has to learn them."""
    seen_cpu: dict[tuple[int, int], float] = field(default_factory=dict)
    bound: CpuBound | None = None
    """Set where speed follows the CPU that replicas hold."""
    cpu_held: Cpu = field(default_factory=dict)
    use: Mapping[str, float] = field(default_factory=dict)
    boot: "_Boot | None" = None
    busy: float = 0.0
    """CPUs that it uses."""
    loss: Growth = NOT_REPORTED


@dataclass(slots=True)
class _Boot:
    """A program on its way up: beside the one that trains in `placement`, if any. `part` is what was left at
    `since_s`, of `takes_s` in all with the CPU held now."""

    placement: Placement
    cpu: Cpu
    pause_s: float
    not_before_s: float
    since_s: float
    part: float = 1.0
    takes_s: float = 0.0
    version: int = 0


Progress = Callable[[float, int, int], None]
"""Called with the simulated time, jobs done and jobs in all."""


class Simulation:
    """One profile on one workload. `run` returns the Outcome; after an exception `outcome` holds what is known."""

    def __init__(
        self,
        jobs: Sequence[WorkloadJob],
        nodes: Iterable[Node],
        speed_model: SpeedModel,
        profile: Profile,
        *,
        costs: Costs | None = None,
        noise: Noise | None = None,
        inference: InferencePool | None = None,
        seed: int = 0,
        trace: bool = False,
        check: Callable[[Plan], None] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.speed_model = speed_model
        self.profile = profile
        self.costs = costs or Costs()
        self.noise = noise or Noise()
        self.trace = trace
        self.check = check
        self.progress = progress
        self.random = random.Random(seed)
        self.jobs = sorted(jobs, key=lambda job: job.submit_s)
        cluster = {node.name: node for node in (*nodes, *(inference.build() if inference else ()))}
        own = [node for node in cluster.values() if node.loan == "own"]
        self._demand = Demand(inference, seed) if inference else None
        self._uneven = any(node.accelerator_speed != 1 for node in cluster.values())
        start = self.jobs[0].submit_s if self.jobs else 0.0
        self.snapshot = Snapshot(start, cluster, {}, seed)
        self.outcome = Outcome(
            profile.name,
            seed,
            profile.oracle,
            [],
            start,
            start,
            sum(node.free.accelerators for node in own),
            sum(node.free.cpu for node in own),
        )
        self._live: dict[str, _Live] = {}
        self._heap: list[tuple[float, int, int, int, str]] = []
        self._counter = 0
        self._used_accelerators = 0
        self._used_cpu = 0
        self._running = 0
        self._accounted_s = self._now = start
        self._history = self.snapshot.history
        self._round_at = inf
        self._done = 0
        self._open: dict[tuple[str, str], Interval] = {}
        self._last_round = -inf
        self._moved_s = -inf
        self._arrived = 0
        self._losses = any(job.loss for job in self.jobs)
        self._cpu_wanted: dict[str, float] = {}
        self._on_node: dict[str, dict[str, None]] = {}
        self._busy = 0.0
        self._released: dict[str, float] = {}
        self._boots = 0
        self._starts: list[tuple[JobRecord, Job, Target, float, History]] = []

    # ---- the loop

    def run(self) -> Outcome:
        """Simulate until every job has finished, or no event is left that could let one finish."""
        begin = time.process_time()
        try:
            for k, work in enumerate(self.jobs):
                heappush(self._heap, (work.submit_s, ARRIVE, k, 0, ""))
            if self._demand is not None and self.jobs:
                heappush(self._heap, (self.jobs[0].submit_s, DEMAND, 0, 0, ""))
            self._loop()
        except KeyboardInterrupt:
            self.outcome.partial = True
            raise
        finally:
            self.outcome.cpu_s = time.process_time() - begin
            self._close()
            self._forecast()
        return self.outcome

    def _loop(self) -> None:
        heap, live = self._heap, self._live
        interval, on_change, drifts = self.profile.interval_s, self.profile.on_change, self.profile.drifts
        last_report = 0
        while heap:
            now = self._now = heap[0][0]
            changed: list[Job] = []
            removed: list[str] = []
            round_due = False
            nodes: Mapping[str, Node] | None = None
            pools = self.snapshot.pools
            touched: set[str] = set()
            while heap and heap[0][0] == now:
                _, kind, k, version, key = heappop(heap)
                if kind == ARRIVE:
                    changed.append(self._arrive(self.jobs[k], k, now))
                elif kind == FINISH:
                    if key in live and live[key].version == version:
                        touched.update(*live[key].placement.values())
                        self._finish(live[key], now)
                        del live[key]
                        removed.append(key)
                elif kind == READY:
                    if key in live and (boot := live[key].boot) is not None and boot.version == version:
                        changed.append(self._ready(live[key], boot, now))
                elif kind == JUMP:
                    if key in live and live[key].version == version:
                        round_due = round_due or on_change
                        self._wake(now, interval if not on_change else 0.0)
                        self._push_jump(live[key], now)
                elif kind == DEMAND:
                    assert self._demand is not None
                    if not self._stuck(now):
                        nodes, demand = self._demand.step(now, self.snapshot.nodes)
                        pools = {INFERENCE: demand}
                        heappush(heap, (now + self._demand.pool.period_s, DEMAND, 0, 0, ""))
                elif now == self._round_at:
                    round_due = True
                    self._round_at = inf
            if nodes is not None and nodes == self.snapshot.nodes and pools == self.snapshot.pools:
                nodes = None
            news = bool(changed or removed) or nodes is not None
            if self.speed_model.contended and touched:
                changed += self._share(touched, now)
            if round_due and self._losses:
                known = {job.key for job in changed}
                changed += [self._job(job) for key, job in live.items() if job.work.loss and key not in known]
            if news or round_due:
                self.snapshot = self.snapshot.evolve(
                    now, changed=changed, removed=removed, nodes=nodes, pools=pools, history=self._history
                )
            if round_due or (news and on_change):
                self._decide(now)
            elif news:
                self._wake(now, interval)
            if interval and drifts and live and self._round_at == inf and not self._stuck(now):
                self._wake(now, interval)
            if self.progress is not None and self.outcome.rounds - last_report >= 200:
                last_report = self.outcome.rounds
                self.progress(now, self._done, len(self.jobs))

    def _stuck(self, now: float) -> bool:
        """Whether no job will ever run again: all have come, none runs, and no round changed that for long enough.

        Long enough is over a week where the inference pool's demand may still let a node go, else a few rounds.
        """
        if self._running or self._arrived < len(self.jobs):
            return False
        return now - max(self._moved_s, self.jobs[-1].submit_s) > (
            8 * DAY_S if self._demand else 3 * self.profile.interval_s
        )

    def _wake(self, now: float, interval: float) -> None:
        """Have a round at the next multiple of the interval, `now` excluded unless it is one and had none yet."""
        if interval <= 0 or self._round_at != inf:
            return
        at = (now // interval) * interval
        if at < now or (at == now and self.snapshot.now == now and self._last_round == now):
            at += interval
        self._round_at = at
        heappush(self._heap, (at, ROUND, 0, 0, ""))

    def _decide(self, now: float) -> None:
        self._last_round = now
        plan = schedule(self.snapshot, self.profile)
        self.outcome.rounds += 1
        if self.check is not None:
            self.check(plan)
        nodes, pools = self._lend(plan, now) if plan.loans else (None, self.snapshot.pools)
        if plan.changes:
            self._moved_s = now
        if plan.changes or nodes is not None:
            # Those that run first: what they give up is free for others only when they have.
            first = sorted(plan.changes.items(), key=lambda change: not self._live[change[0]].placement)
            for key, target in first:
                if target.nodes and (record := self._live[key].record).start_s is None:
                    self._starts.append((record, plan.snapshot.jobs[key], target, now, self._history))
            changed = {key: self._carry_out(self._live[key], target, now) for key, target in first}
            if self.speed_model.contended:
                held = (self.snapshot.jobs[key].placement for key in plan.changes)
                touched = {
                    name
                    for placement in (*held, *(target.nodes for target in plan.changes.values()))
                    for names in placement.values()
                    for name in names
                }
                changed.update((job.key, job) for job in self._share(touched, now))
            self.snapshot = self.snapshot.evolve(now, changed=changed.values(), nodes=nodes, pools=pools)
        if self.trace:
            self._sample(now)

    # ---- what happens to a job

    def _arrive(self, work: WorkloadJob, k: int, now: float) -> Job:
        self._arrived += 1
        true_speed = self.speed_model.true_speed(work)
        total, oracle = true_speed.total_steps, self.profile.oracle
        error = self._lognormal(self.noise.estimate)
        duration = work.estimated_s
        if oracle:
            rate = true_speed.steps_per_s({group.type: group.count for group in work.groups})
            duration = total / rate * error if rate else None
        spec = JobSpec(
            key=work.key,
            arrival_s=work.submit_s,
            groups=work.groups,
            sequence=k,
            priority=work.priority,
            deadline_s=work.deadline_s,
            total_steps=total,
            duration_s=duration,
            loanable=work.loanable,
            model=work.model or stem(work.key.rpartition("/")[2]),
        )
        record = JobRecord(work.key, work.submit_s, work.deadline_s)
        self.outcome.records.append(record)
        live = _Live(work, spec, true_speed, record, self._lognormal(self.noise.speed), true_speed if oracle else None)
        if hasattr(true_speed, "pace") and isinstance(true_speed, CpuBound):  # the first is quick to say no
            live.bound = true_speed
            self.outcome.cpu_used_area = self.outcome.cpu_used_area or 0.0
        if not oracle and self.profile.sample_points and spec.elastic:
            self._measure(live)
        live.observed_s = live.since_s = now
        self._live[work.key] = live
        return self._job(live)

    def _measure(self, live: _Live) -> None:
        """Run the job briefly at a few sizes, smallest first, as Optimus does before it schedules a job."""
        spec, sizes = live.spec, {tuple(live.spec.minimum.items()): None}
        for _ in range(4 * self.profile.sample_points):
            if len(sizes) >= self.profile.sample_points:
                break
            size = {g.type: self.random.randint(g.minimum, g.maximum) for g in spec.groups}
            sizes[tuple(size.items())] = None
        for items in sizes:
            counts = dict(items)
            rate = live.true_speed.steps_per_s(counts)
            if rate:
                live.seen[counts.get(PS, 0), counts.get(WORKER, 0)] = rate * live.factor
        live.speed = believe(live.seen)

    def _observe(self, live: _Live) -> None:
        """What running at its present size tells about the job's speed."""
        size = (len(live.placement.get(PS, ())), len(live.placement.get(WORKER, ())))
        if live.seen.get(size) != live.rate:
            live.seen[size] = live.rate
            if live.bound is not None:
                workers = self._cores(live, live.placement, live.cpu_held).get(WORKER, [0.0])
                live.seen_cpu[size] = 1000 * sum(workers) / len(workers)
            live.speed = believe(live.seen, cpu=live.seen_cpu)

    def _finish(self, live: _Live, now: float) -> None:
        record = live.record
        record.executed_s += now - live.since_s
        record.finish_s = now
        self._learn(live)
        self._release(live, now)
        self._hold(live, UNPLACED, now)
        self.outcome.last_s = now
        self._done += 1

    def _learn(self, live: _Live) -> None:
        """What the job that has just finished teaches about those like it."""
        size = (len(live.placement.get(PS, ())), len(live.placement.get(WORKER, ())))
        seen = live.seen or ({size: live.rate} if size[1] else {})
        lesson = Lesson(live.spec.key, live.true_speed.total_steps, live.record.executed_s, seen, live.seen_cpu)
        self._history = self._history.learned(live.spec.scope, live.spec.model, lesson)

    def _release(self, ended: _Live, now: float) -> None:
        """Jobs that were to start where `ended` would have left once its rescale was through need not wait for that."""
        if ended.boot is None or not (left := set(_more(ended.boot.placement, ended.placement))):
            return
        self._released |= dict.fromkeys(left, now)
        for other in self._live.values():
            if (boot := other.boot) is not None and other is not ended:
                awaited = _more(other.placement, boot.placement)
                if not left.isdisjoint(awaited) and boot.not_before_s > now:
                    boot.not_before_s = self._free_s(awaited, now)
                    self._boot(other, other.placement, other.cpu_held, boot.pause_s, now)

    def _free_s(self, names: Iterable[str], now: float) -> float:
        """When what leaves these nodes by rescales is gone."""
        return max((self._released.get(name, now) for name in names), default=now)

    def _carry_out(self, live: _Live, target: Target, now: float) -> Job:
        record, new, old = live.record, target.nodes, live.placement
        if old:
            live.steps += live.rate * max(0.0, now - live.observed_s)
        if new != old:
            if old:
                live.service += live.held * (now - live.since_s)
                record.executed_s += now - live.since_s
            else:
                record.queue_s += now - live.since_s
            live.since_s = now
        pause, resized = 0.0, _counts(old) != _counts(new)
        if old and new == old:
            pass  # CPU alone, in place
        elif not new:
            record.preemptions += 1
            interval = self.costs.checkpoint_interval_s
            if interval > 0:
                kept = interval * live.rate
                lost = live.steps % kept if kept > 0 else 0.0
                live.steps -= lost
                record.lost_steps += lost
        elif not old:
            if record.start_s is None:
                record.start_s = now
                pause = self.costs.start_s
            else:
                pause = self.costs.restart(live.spec.demand(counts_of(new)).accelerators)
        elif resized:
            record.rescales += 1
            live.rescaled_s = now
            pause = self.costs.rescale_s
        else:
            record.migrations += 1
            live.rescaled_s = now
            pause = self.costs.migrate_s
        if target.promoted:
            live.service = 0.0
        held_before = live.cpu_held
        live.cpu_held = target.cpu
        self._hold(live, new, now)
        if live.bound is not None:
            return self._boot(live, old, held_before, pause, now)
        live.rate = self._rate(live)
        if live.seen and live.rate:
            self._observe(live)
        live.observed_s = now + pause
        self._plan_finish(live)
        if new:
            self._push_jump(live, now)
        return self._job(live)

    def _plan_finish(self, live: _Live) -> None:
        live.version += 1
        if live.rate > 0:
            at = live.observed_s + max(0.0, live.true_speed.total_steps - live.steps) / live.rate
            heappush(self._heap, (at, FINISH, 0, live.version, live.spec.key))

    def _push_jump(self, live: _Live, now: float) -> None:
        at = self.profile.order.next_jump_s(self._job(live), now)
        if at is not None:
            heappush(self._heap, (max(at, now), JUMP, 0, live.version, live.spec.key))

    def _job(self, live: _Live) -> Job:
        return Job(
            live.spec,
            live.placement,
            self._phase(live),
            live.steps,
            live.observed_s,
            live.rate,
            live.since_s,
            live.service,
            live.record.executed_s,
            live.rescaled_s,
            live.record.migrations,
            live.speed,
            self._loss(live),
            live.cpu_held,
            live.use,
        )

    def _phase(self, live: _Live) -> Phase:
        if not live.placement:
            return "waiting"
        return "rescaling" if live.boot is not None and live.boot.placement else "running"

    def _loss(self, live: _Live) -> Growth:
        """How the loss falls where the job is; nobody hears of it but while the job trains."""
        curve, now = live.work.loss, self._now
        if curve is not None and live.placement:
            steps = live.steps + live.rate * max(0.0, now - live.observed_s)
            live.loss = live.loss.read(steps, curve.at(steps), now)
        return live.loss

    def _lognormal(self, sigma: float) -> float:
        return self.random.lognormvariate(0.0, sigma) if sigma > 0 else 1.0

    def _lend(self, plan: Plan, now: float) -> tuple[dict[str, Node], dict[str, Pool]]:
        """Carry out the loans; those preempted by a return get another round at once."""
        nodes, pools = dict(self.snapshot.nodes), dict(self.snapshot.pools)
        for loan in plan.loans:
            node = nodes[loan.node]
            pool = pools[node.pool]
            if loan.action == "borrow":
                nodes[loan.node] = replace(node, loan="loaned")
                pools[node.pool] = replace(pool, spare=pool.spare - 1)
            elif pool.wanted:
                nodes[loan.node] = replace(node, loan="busy")
                pools[node.pool] = replace(pool, wanted=pool.wanted - 1)
            else:
                nodes[loan.node] = replace(node, loan="offered")
                pools[node.pool] = replace(pool, spare=pool.spare + 1)
        if any(loan.action == "return" for loan in plan.loans) and plan.changes:
            heappush(self._heap, (now, ROUND, 0, 0, ""))
            self._round_at = now
        return nodes, pools

    # ---- speed that follows CPU

    def _boot(self, live: _Live, old: Placement, old_cpu: Cpu, pause: float, now: float) -> Job:
        """Start what the job's new placement needs; with the same placement only the CPU has changed."""
        new = live.placement
        if not new:
            live.boot = None
        elif new != old:
            self._boots += 1
            live.boot = _Boot(old, old_cpu, pause, self._free_s(_more(new, old), now), now, version=self._boots)
        live.observed_s = max(live.observed_s, now) if new == old else now
        self._pace(live, now)
        if (boot := live.boot) is not None:
            if boot.takes_s:
                boot.part = max(0.0, boot.part - max(0.0, now - boot.since_s) / boot.takes_s)
            boot.since_s = max(now, boot.not_before_s)
            boot.takes_s = self._takes(live, boot)
            at = boot.since_s + boot.part * boot.takes_s
            self._boots += 1
            boot.version = self._boots
            for name in _more(boot.placement, new):
                self._released[name] = at
            heappush(self._heap, (at, READY, 0, boot.version, live.spec.key))
        elif live.rate and self.profile.learns:
            self._observe(live)
        self._plan_finish(live)
        return self._job(live)

    def _takes(self, live: _Live, boot: _Boot) -> float:
        """Seconds until the slowest process has started, beside one that trains with at most half of the CPU."""
        slowest = inf
        for type_, each in self._cores(live, live.placement, live.cpu_held).items():
            kept = len(boot.placement.get(type_, ()))
            for k, held in enumerate(each):
                spare = held - min(held * live.use.get(type_, 0.0), held / 2) if k < kept else held
                slowest = min(slowest, spare, BOOT_CORES)
        return self.costs.boot_cpu_s / slowest if slowest else inf

    def _ready(self, live: _Live, boot: _Boot, now: float) -> Job:
        live.steps += live.rate * max(0.0, now - live.observed_s)
        live.boot = None
        live.observed_s = now + boot.pause_s
        self._pace(live, now)
        if live.rate and self.profile.learns:
            self._observe(live)
        self._plan_finish(live)
        return self._job(live)

    def _pace(self, live: _Live, now: float) -> None:
        """The rate now, how busy replicas are, and the CPU that takes."""
        assert live.bound is not None
        boot = live.boot
        placement, cpu = (live.placement, live.cpu_held) if boot is None else (boot.placement, boot.cpu)
        cores = self._cores(live, placement, cpu)
        pace = live.bound.pace(cores) if placement else Pace(0.0, {})
        live.rate, live.use = pace.steps_per_s * live.factor, pace.use
        busy = sum(pace.use.get(type_, 0.0) * sum(each) for type_, each in cores.items())
        if boot is not None:
            for type_, each in cores.items():
                left = min(max(held - BOOT_CORES, held / 2) / held for held in each if held)
                if (use := pace.use.get(type_, 0.0)) > left:
                    live.rate = min(live.rate, pace.steps_per_s * live.factor * left / use)
            new = self._cores(live, live.placement, live.cpu_held)
            busy = max(busy, sum(min(held, BOOT_CORES) for each in new.values() for held in each))
        self._account(now)
        self._busy += busy - live.busy
        live.busy = busy

    def _cores(self, live: _Live, placement: Placement, cpu: Cpu) -> dict[str, list[float]]:
        cores = {}
        for group in live.spec.groups:
            n = len(placement.get(group.type, ()))
            if n:
                each = cpu.get(group.type, (group.request.cpu,) * n)
                cores[group.type] = [held / 1000 for held in each[:n]]
        return cores

    # ---- contention

    def _share(self, nodes: set[str], now: float) -> list[Job]:
        """New rates of the jobs on these nodes, from what their containers want of each node's CPUs."""
        changed = []
        for key in {key: None for name in sorted(nodes) for key in self._on_node.get(name, ())}:
            live = self._live[key]
            rate = self._rate(live)
            if rate != live.rate:
                live.steps += live.rate * max(0.0, now - live.observed_s)
                live.observed_s = max(now, live.observed_s)
                live.rate = rate
                self._plan_finish(live)
                changed.append(self._job(live))
        return changed

    def _rate(self, live: _Live) -> float:
        """Steps per second where the job is now, in the company it has there."""
        placement = live.placement
        if not placement:
            return 0.0
        rate = live.true_speed.rate(placement) * live.factor
        nodes = self.snapshot.nodes
        if self._uneven:
            rate *= min(
                nodes[name].accelerator_speed for names in placement.values() for name in names if name in nodes
            )
        if self.speed_model.contended:
            rate *= min(
                cpu_share(nodes[name].capacity.cpu / 1000, self._cpu_wanted[name])
                for names in placement.values()
                for name in names
            )
        return rate

    def _crowd(self, live: _Live, sign: int) -> None:
        """Count the job's containers in, or out, on the nodes where it runs."""
        for group in live.spec.groups:
            wanted = live.work.cpu_demand if live.work.cpu_demand is not None else group.request.cpu / 1000
            for name in live.placement.get(group.type, ()):
                self._cpu_wanted[name] = self._cpu_wanted.get(name, 0.0) + sign * wanted
                if sign > 0:
                    self._on_node.setdefault(name, {})[live.spec.key] = None
                else:
                    self._on_node.get(name, {}).pop(live.spec.key, None)

    # ---- accounts

    def _hold(self, live: _Live, new: Placement, now: float) -> None:
        self._account(now)
        self._running += bool(new) - bool(live.placement)
        self._used_accelerators -= live.accelerators
        self._used_cpu -= live.cpu
        if self.trace:
            self._gantt(live, new, now)
        if self.speed_model.contended:
            self._crowd(live, -1)
            live.placement = new
            self._crowd(live, 1)
        live.placement = new
        if new:
            counts = counts_of(new)
            demand = live.spec.demand(counts)
            live.accelerators, live.cpu = demand.accelerators, demand.cpu + live.spec.extra_cpu(live.cpu_held)
            live.held = demand.accelerators or sum(counts.values())
        else:
            live.accelerators = live.cpu = live.held = 0
            live.cpu_held = AS_REQUESTED
            self._busy -= live.busy
            live.busy = 0.0
        self._used_accelerators += live.accelerators
        self._used_cpu += live.cpu

    def _account(self, now: float) -> None:
        passed = now - self._accounted_s
        if passed > 0:
            self.outcome.accelerator_area += passed * self._used_accelerators
            self.outcome.cpu_area += passed * self._used_cpu
            if self.outcome.cpu_used_area is not None:
                self.outcome.cpu_used_area += passed * 1000 * self._busy
            self._accounted_s = now

    def _sample(self, now: float) -> None:
        self.outcome.samples.append(
            Sample(now, len(self._live) - self._running, self._running, self._used_accelerators, self._used_cpu)
        )

    def _gantt(self, live: _Live, new: Placement, now: float) -> None:
        key = live.spec.key
        before, after = _per_node(live.placement), _per_node(new)
        for node in before.keys() | after.keys():
            if before.get(node) == after.get(node):
                continue
            if node in before:
                interval = self._open.pop((key, node))
                interval.end_s = now
                if now > interval.start_s:
                    self.outcome.intervals.append(interval)
            if node in after:
                self._open[key, node] = Interval(node, key, now, now, after[node])

    def _forecast(self) -> None:
        """What was forecast of each job when it started: no part of the run, whose CPU time is measured."""
        for record, job, target, now, history in self._starts:
            past = history.past(job.spec.scope, job.spec.model)
            nodes = self.snapshot.nodes
            record.forecast = forecast(job, now, placement=target.nodes, cpu=target.cpu, past=past, nodes=nodes)

    def _close(self) -> None:
        """Account for what still runs when a run ends early."""
        now = self._accounted_s
        for interval in self._open.values():
            interval.end_s = max(now, interval.start_s)
            self.outcome.intervals.append(interval)
        self.outcome.intervals.sort(key=lambda i: (i.node, i.start_s, i.key))
        if self.outcome.partial:
            self.outcome.last_s = max(self.outcome.last_s, now)


def cpu_share(cpus: float, wanted: float) -> float:
    """The part of what it wants that each container gets on a node of `cpus` where all together want `wanted`."""
    return 1.0 if wanted <= cpus else cpus / wanted


def _counts(placement: Placement) -> dict[str, int]:
    return {type_: len(names) for type_, names in placement.items() if names}


def _more(one: Placement, other: Placement) -> list[str]:
    """The nodes where `one` has more replicas than `other`."""
    has, had = _per_node(one), _per_node(other)
    return [name for name, n in has.items() if n > had.get(name, 0)]


def _per_node(placement: Placement) -> dict[str, int]:
    counts: dict[str, int] = {}
    for names in placement.values():
        for name in names:
            counts[name] = counts.get(name, 0) + 1
    return counts
