"""The unfinished jobs of a simulation: how events and plans change them, and when their next events are due.

The true values (the speed models' rates, real durations) stay in this module; a policy sees only `LiveJob.seen_at`.
"""

from collections.abc import Mapping, Sequence
from math import inf
from random import Random
from typing import Final

from elastic_tfjob.scheduling.plan import Assignment
from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.room import more_replicas, nodes_of, room_index
from elastic_tfjob.scheduling.snapshot import PS, UNPLACED, Job, JobSpec, Node, Placement, Snapshot
from elastic_tfjob.simulation.event_queue import COOLED, FINISH, JUMP, MEMORY, READY, EventQueue, on_lost_node
from elastic_tfjob.simulation.live_job import Costs, LiveJob, Noise
from elastic_tfjob.simulation.memory import KILL, MOST_KILLS, RAISE, LimitRules, PsMemory, lacking_nodes, with_memory
from elastic_tfjob.simulation.result import JobRecord, RunResult
from elastic_tfjob.simulation.speed_models.base import SpeedModel
from elastic_tfjob.simulation.speed_models.cpu import Boot, Boots, CpuBound, NodeSpeeds, used_of_held
from elastic_tfjob.simulation.utilisation import Stays, Utilisation
from elastic_tfjob.simulation.workload import WorkloadJob
from elastic_tfjob.speed.history import History, stem

__all__ = ["LiveJobs"]


# -- Arrival of a job: its true speed, and what its policy knows -------------------------------------------------------


def arrive(
    work: WorkloadJob,
    sequence: int,
    *,
    speed_model: SpeedModel,
    profile: Profile,
    noise: Noise,
    random: Random,
    now: float,
) -> LiveJob:
    """The job, waiting from `now` on. With the oracle, its policy knows true speeds and durations. Without it, a
    profile with `sample_points` knows the speeds measured in a few brief runs. The estimates of steps and of duration
    have the same error, so a policy that knows the speeds cannot work out the error from the two."""
    true_speed = speed_model.true_speed(work)
    total, oracle = true_speed.total_steps, profile.oracle
    error = lognormal(noise.estimate, random)
    estimated_steps = total * error
    duration = work.estimated_s
    if oracle:
        rate = true_speed.steps_per_s({group.type: group.count for group in work.groups})
        duration = estimated_steps / rate if rate else None
    spec = JobSpec(
        key=work.key,
        arrival_s=work.submit_s,
        groups=work.groups,
        sequence=sequence,
        priority=work.priority,
        deadline_s=work.deadline_s,
        total_steps=estimated_steps,
        duration_s=duration,
        loanable=work.loanable,
        constraints=work.constraints,
        model=work.model or stem(work.key.rpartition("/")[2]),
    )
    live = LiveJob(
        work=work,
        spec=spec,
        true_speed=true_speed,
        record=JobRecord(work.key, work.submit_s, work.deadline_s),
        factor=lognormal(noise.speed, random),
        speed=true_speed if oracle else None,
        observed_s=now,
        since_s=now,
        silent=noise.silent > 0 and random.random() < noise.silent,
        ps_memory=PsMemory.of(work, true_speed) if work.memory is not None else None,
    )
    if live.ps_memory is not None:
        live.ps_memory.silent = live.silent
    if hasattr(true_speed, "pace") and isinstance(true_speed, CpuBound):  # hasattr is the faster check
        live.bound = true_speed
    if not oracle and profile.sample_points and spec.elastic:
        live.measure(profile.sample_points, random)
    return live


def lognormal(sigma: float, random: Random) -> float:
    """A random factor whose logarithm has the standard deviation `sigma`. For 0 it is 1 and no number is drawn."""
    return random.lognormvariate(0.0, sigma) if sigma > 0 else 1.0


NODES_WITH_NEIGHBOURS: Final = 0.5


def free_of_neighbours(most: float, seed: int, placement: Placement, drawn_s: float) -> float:
    """The part of the CPU that programs which nobody sees leave to a job, on its node with most of them. They were
    drawn at `drawn_s`."""

    def hidden(node: str) -> float:
        random = Random(f"neighbours-{seed}-{node}-{drawn_s}")
        return most * random.random() if random.random() < NODES_WITH_NEIGHBOURS else 0.0

    return 1.0 - max((hidden(node) for node in nodes_of(placement)), default=0.0)


class LiveJobs:
    """The jobs of one run that have arrived and have not finished. Their events go to `queue`, the resources that they
    hold to `utilisation`, their records to `outcome`. `nodes` is the initial cluster; methods that need the current one
    take it as an argument. Methods return the changed jobs as the policy sees them."""

    def __init__(
        self,
        nodes: Mapping[str, Node],
        speed_model: SpeedModel,
        profile: Profile,
        *,
        costs: Costs,
        noise: Noise,
        limits: LimitRules,
        seed: int,
        history: History,
        queue: EventQueue,
        utilisation: Utilisation,
        outcome: RunResult,
    ) -> None:
        self.by_key: dict[str, LiveJob] = {}
        self.history = history
        """What has been learned from finished jobs."""
        self.contended = speed_model.contended
        """Whether a job's speed depends on the other jobs on its nodes."""
        self.stays = Stays()
        """The speeds measured after changes."""
        self._speed_model = speed_model
        self._profile = profile
        self._costs = costs
        self._noise = noise
        self._limits = limits
        self._seed = seed
        self._random = Random(seed)
        self._queue = queue
        self._utilisation = utilisation
        self._outcome = outcome
        self._node_speeds = NodeSpeeds(nodes, contended=speed_model.contended)
        self._boots = Boots(costs.boot_cpu_s, costs.boot_kept_cpu_s)
        self._drawn_s = 0.0
        self._lost = 0
        """Number of jobs that stand still because one of their nodes is lost."""
        self._outgrown: dict[str, tuple[str, ...]] = {}
        """By job, the nodes without the memory that its parameter servers ask for."""
        self._endless = 0
        """Number of jobs that hold resources and whose end is unknown."""

    @property
    def will_finish(self) -> bool:
        """Whether at least one job finishes if nothing else happens."""
        return self._utilisation.running > self._lost + self._endless

    # ---- arrival and end

    def arrive(self, work: WorkloadJob, k: int, now: float) -> Job:
        """The `k`-th job of the workload arrives and waits."""
        live = arrive(
            work,
            k,
            speed_model=self._speed_model,
            profile=self._profile,
            noise=self._noise,
            random=self._random,
            now=now,
        )
        self._outcome.records.append(live.record)
        live.cpu_limited = not self.contended
        live.cpu_shared = self._profile.shares_cpu and live.bound is not None
        if live.bound is not None:
            live.warm_start = self._costs.boot_kept_cpu_s is not None
            live.live_workers = self._costs.live_pause_s is not None and live.spec.group(PS) is not None
            self._outcome.used_millicore_s = self._outcome.used_millicore_s or 0.0
        self.by_key[work.key] = live
        return live.seen_at(now)

    def take_over(self, present: Sequence[LiveJob], nodes: Mapping[str, Node], now: float) -> list[Job]:
        """Take over jobs in their current state, running ones included."""
        for live in present:
            self.by_key[live.spec.key] = live
            self._outcome.records.append(live.record)
            if not (placement := live.placement):
                continue
            live.placement = UNPLACED
            self._hold(live, placement, now)
            if live.bound is not None:
                self._follow_cpu(live, now)
            else:
                live.steps_per_s = self._rate(live, nodes)
                self._plan_finish(live)
            self.push_jump(live, now)
        return [live.seen_at(now) for live in present]

    def finish(self, live: LiveJob, now: float, *, failed: bool = False) -> None:
        """A job has done all its steps, or has failed, and leaves the cluster."""
        record = live.record
        self.stays.end(live, now)
        record.executed_s += now - live.since_s
        record.memory_failed = failed
        if not failed:
            record.finish_s, record.steps = now, live.true_speed.total_steps
            self.history = self.history.learned(live.spec.scope, live.spec.model, live.lesson())
        if live.ps_memory is not None:
            live.train_until(now)
        self._release(live, now)
        self._hold(live, UNPLACED, now)
        self._outcome.last_s = now
        del self.by_key[live.spec.key]

    def _release(self, ended: LiveJob, now: float) -> None:
        """If `ended` was rescaling, it would have left some nodes after the rescale. Jobs that wait to start on these
        nodes no longer have to wait for that."""
        if ended.boot is None or not (left := set(more_replicas(ended.boot.placement, ended.placement))):
            return
        self._boots.gone(left, now)
        for other in self.by_key.values():
            if (boot := other.boot) is not None and other is not ended:
                awaited = more_replicas(other.placement, boot.placement)
                if not left.isdisjoint(awaited) and boot.not_before_s > now:
                    boot.not_before_s = self._boots.free_s(awaited, now)
                    other.train_until(now)
                    self._follow_cpu(other, now)

    # ---- changes

    def carry_out(self, live: LiveJob, target: Assignment, nodes: Mapping[str, Node], now: float) -> Job:
        """Start, stop, move or rescale a job, or change its CPU share, as the plan requires."""
        new, old = target.nodes, live.placement
        saves = target.cause == "notice"
        workers_from = live.workers_from(new, saves=saves)
        pause = live.change_to(new, self._costs, now, saves=saves, stays=workers_from is not None)
        # A change does not shorten the pause of an earlier start, move or change.
        until_s = max(live.observed_s, now) if old and new else now
        was_lost, live.lost = live.lost, on_lost_node(new, nodes)
        self._lost += live.lost - was_lost
        self._push_cooled(live, now)
        held_before = live.cpu_held
        live.cpu_held = target.cpu
        self._hold(live, new, now)
        if (memory := live.ps_memory) is not None and old.get(PS) != new.get(PS):
            if old:
                memory.next_look_s = now
            else:
                memory.starts(now)
        if live.bound is not None:
            if not new or live.lost:
                live.boot = None
            elif new != old:
                was = UNPLACED if was_lost or saves else old
                live.boot = self._boots.begin(
                    was, held_before, new, pause, now, instead=live.boot, workers_from=workers_from
                )
            live.observed_s = until_s
            self._follow_cpu(live, now)
            if live.boot is None:
                live.trains()
                self.stays.trains(live)
            return live.seen_at(now)
        live.steps_per_s = self._rate(live, nodes)
        self._observe(live)
        live.observed_s = max(until_s, now + pause)
        live.trains()
        self.stays.trains(live)
        self._plan_finish(live)
        if new:
            self.push_jump(live, now)
        return live.seen_at(now)

    def follow_nodes(self, nodes: Mapping[str, Node], now: float) -> list[Job]:
        """The jobs affected by a change of the cluster's nodes to `nodes`: their nodes were lost or are back."""
        changed = []
        self._node_speeds.changed(nodes)
        for live in self.by_key.values():
            boot, lost = live.boot, on_lost_node(live.placement, nodes)
            trained_there = boot is not None and on_lost_node(boot.placement, nodes)
            if lost == live.lost and not trained_there:
                continue
            if lost or trained_there:
                self.stays.lost(live)
                live.lose_node(self._costs.checkpoint_interval_s, now)
            if lost:
                live.boot = None
            self._lost += lost - live.lost
            pause = 0.0 if lost else self._costs.restart(live.accelerators)
            live.lost = lost
            live.observed_s = now + pause
            if live.bound is None:
                live.steps_per_s = self._rate(live, nodes)
                live.trains()
                self._plan_finish(live)
            else:
                if not lost and not trained_there:
                    live.boot = self._boots.begin(UNPLACED, live.cpu_held, live.placement, pause, now)
                live.observed_s = now
                self._follow_cpu(live, now)
            self.push_jump(live, now)
            changed.append(live.seen_at(now))
        return changed

    def memory(self, live: LiveJob, event: int, snapshot: Snapshot, now: float) -> Job | None:
        """What happens to the memory of a job's parameter servers. None: the job fails."""
        memory = live.ps_memory
        assert memory is not None
        limit = memory.limit
        live.train_until(now)
        if event == KILL:
            self.stays.lost(live)
            most_s = memory.killed(self._limits, live.steps, now)
            live.killed_for_memory(self._costs.checkpoint_interval_s, most_s, now)
        elif event == RAISE:
            memory.forecast_exceeds(self._limits, live.steps, live.steps_per_s, now)
        live.record.memory_raises += memory.limit > limit
        if event != RAISE and memory.in_force < memory.limit:
            self._outgrown[live.spec.key] = memory.look(self._lacking_nodes(live, memory.limit, snapshot), now)
        live.spec = with_memory(live.spec, memory)
        if event != KILL:
            self._plan_memory(live)
        elif memory.kills > MOST_KILLS:
            self.finish(live, now, failed=True)
            return None
        else:
            self._restart(live, now)
        return live.seen_at(now)

    def outgrown(self) -> dict[str, tuple[list[str], int]]:
        """By job, the nodes that its parameter servers shall leave in this round, and the bytes that each has."""
        keys, self._outgrown = self._outgrown, {}
        found = dict[str, tuple[list[str], int]]()
        for key, names in keys.items():
            if key in self.by_key and (memory := self.by_key[key].ps_memory) is not None:
                there = [name for name in names if name in self.by_key[key].placement.get(PS, ())]
                found |= {key: (there, memory.in_force)} if there else {}
        return found

    def _lacking_nodes(self, live: LiveJob, limit: int, snapshot: Snapshot) -> list[str]:
        place = self._profile.place
        room = snapshot.index(("room", place.rank, place.totals_only), room_index(place.rank, place.totals_only))
        return lacking_nodes(snapshot.jobs[live.spec.key].spec, limit, live.placement, room)

    def _restart(self, live: LiveJob, now: float) -> None:
        """All programs of a job start again where its replicas are."""
        pause = self._costs.restart(live.accelerators)
        if live.bound is not None:
            live.boot = self._boots.begin(UNPLACED, live.cpu_held, live.placement, pause, now)
            live.observed_s = now
            self._follow_cpu(live, now)
        else:
            live.observed_s = now + pause
            live.trains()
            self._plan_finish(live)
        self.push_jump(live, now)

    def training_on(self, name: str) -> list[str]:
        """The keys of the jobs that train on this node."""
        return [
            key
            for key, live in self.by_key.items()
            if name in nodes_of(live.placement if live.boot is None else live.boot.placement)
        ]

    def save_before_end(self, name: str, now: float) -> list[Job]:
        """Jobs that train on this node while they prepare a size elsewhere save and end there: the node is gone before
        they are ready for certain."""
        changed = []
        for key in self.training_on(name):
            live = self.by_key[key]
            if live.boot is not None:
                live.train_until(now)
                live.boot.placement = UNPLACED
                self._follow_cpu(live, now)
                changed.append(live.seen_at(now))
        return changed

    def ready(self, live: LiveJob, boot: Boot, now: float) -> Job:
        """The training program for the job's new size has started."""
        live.train_until(now)
        if boot.placement and more_replicas(live.placement, boot.placement):
            live.prepare_s = now - boot.begun_s
        live.boot = None
        live.observed_s = max(live.observed_s, now + boot.pause_s)
        live.trains()
        self.stays.trains(live)
        self._follow_cpu(live, now)
        return live.seen_at(now)

    def share(self, touched: set[str], nodes: Mapping[str, Node], now: float) -> list[Job]:
        """Recompute the rates of the jobs on these nodes from the CPU demand of the containers on each node."""
        changed = []
        for key in self._node_speeds.beside(touched):
            live = self.by_key[key]
            rate = self._rate(live, nodes)
            if rate != live.steps_per_s:
                live.train_until(now)
                live.steps_per_s = rate
                self._plan_finish(live)
                changed.append(live.seen_at(now))
        return changed

    def draw_speeds(self, nodes: Mapping[str, Node], now: float) -> list[Job]:
        """Draw a new speed factor for each job. It depends only on the seed, the job's key and the time, so it is the
        same under every profile."""
        changed = []
        self._drawn_s = float(now)
        for key, live in self.by_key.items():
            if self._noise.speed:
                live.factor = lognormal(self._noise.speed, Random(f"speed-{self._seed}-{key}-{float(now)}"))
            if not live.placement:
                continue
            live.train_until(now)
            if live.bound is not None:
                self._follow_cpu(live, now)
            else:
                live.steps_per_s = self._rate(live, nodes)
                self._observe(live)
                self._plan_finish(live)
            self.push_jump(live, now)
            changed.append(live.seen_at(now))
        return changed

    def _hold(self, live: LiveJob, new: Placement, now: float) -> None:
        self._node_speeds.moved(live.spec, live.work.cpu_demand, live.placement, new, live.cpu_held)
        if live.true_speed.total_steps == inf:
            self._endless += bool(new) - bool(live.placement)
        self._utilisation.hold(live, new, now)

    @property
    def in_use(self) -> set[str]:
        """The nodes with pods, also with those of a size that the job is about to leave."""
        placements = [live.placement for live in self.by_key.values()]
        return nodes_of(*placements, *(live.boot.placement for live in self.by_key.values() if live.boot is not None))

    # ---- speeds

    def _rate(self, live: LiveJob, nodes: Mapping[str, Node]) -> float:
        """The job's current steps per second, given the other jobs on its nodes."""
        placement = live.placement
        if not placement or live.lost:
            return 0.0
        part = self._node_speeds.slowdown(live.spec.key, placement, nodes)
        if self.contended:
            live.use = used_of_held(live.spec, live.work.cpu_demand, placement, live.cpu_held, part)
        return live.true_speed.rate(placement) * live.factor * self._undisturbed(live) * part

    def _undisturbed(self, live: LiveJob) -> float:
        """The factor on a job's speed that hidden neighbours leave."""
        if not self._noise.neighbours:
            return 1.0
        return free_of_neighbours(self._noise.neighbours, self._seed, live.placement, self._drawn_s)

    def _follow_cpu(self, live: LiveJob, now: float) -> None:
        """Recompute, for the CPU that the job holds now, its rate and the end of the job or of its starting program."""
        training = live.training(self._boots, self._undisturbed(live))
        live.steps_per_s, live.use = training.steps_per_s, training.use
        self._utilisation.use(live, training.busy_cores, now)
        if (boot := live.boot) is not None:
            at = self._boots.foresee(
                boot,
                groups=live.spec.groups,
                placement=live.placement,
                cpu=live.cpu_held,
                use=live.use,
                shared=live.cpu_shared,
                now=now,
            )
            self._queue.add(at, READY, version=boot.version, key=live.spec.key)
        else:
            self._observe(live)
        self._plan_finish(live)

    def _observe(self, live: LiveJob) -> None:
        """Record the job's measured speed, if the profile learns speeds from measurements and has no oracle."""
        if live.steps_per_s and (live.seen or (self._profile.learns and not self._profile.oracle)):
            live.observe()

    # ---- next events

    def _plan_finish(self, live: LiveJob) -> None:
        live.version += 1
        if live.steps_per_s > 0 and live.true_speed.total_steps < inf:
            at = live.observed_s + max(0.0, live.true_speed.total_steps - live.steps) / live.steps_per_s
            self._queue.add(at, FINISH, version=live.version, key=live.spec.key)
        if live.ps_memory is not None:
            self._plan_memory(live)

    def _plan_memory(self, live: LiveJob) -> None:
        memory = live.ps_memory
        assert memory is not None
        trains = live.placement if live.boot is None or not live.boot.placement else live.boot.placement
        if not trains:
            return
        memory.replicas = len(trains[PS])
        done, total = live.steps, live.true_speed.total_steps
        found = memory.next_event(self._limits, done, live.steps_per_s, live.observed_s, total)
        if found is not None:
            at, event = found
            self._queue.add(at, MEMORY, place=event, version=live.version, key=live.spec.key)

    def push_jump(self, live: LiveJob, now: float) -> None:
        """Schedule a round for the next time at which the job's rank in the profile's order jumps, if there is one."""
        if (at := self._profile.order.next_jump_s(live.seen_at(now), now)) is not None:
            self._queue.add(max(at, now), JUMP, version=live.version, key=live.spec.key)

    def _push_cooled(self, live: LiveJob, now: float) -> None:
        """Schedule a round for the end of the cooldown of a job that was just stopped or resumed."""
        if (cooldown_s := self._profile.stop_cooldown_s) and now in (live.stopped_s, live.resumed_s):
            self._queue.add(now + cooldown_s, COOLED, key=live.spec.key)
