"""The simulated world: events in, a round of the decision core where something changed, its plan carried out.

There is no ticking. The truth (speed models' rates, real durations) stays here; a policy sees the Snapshot only.
"""

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf

from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.placements import more_replicas, nodes_of
from elastic_tfjob.scheduling.plan import Plan, Target
from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.snapshot import NOTHING_LEARNED, UNPLACED, Job, Node, Placement, Pool, Snapshot
from elastic_tfjob.simulation.accounts import Accounts
from elastic_tfjob.simulation.agenda import ARRIVE, COOLED, DEMAND, FINISH, JUMP, NODES, READY, Agenda
from elastic_tfjob.simulation.arrival import arrive
from elastic_tfjob.simulation.calibration import Stays
from elastic_tfjob.simulation.costs import Costs, Noise
from elastic_tfjob.simulation.inference import DAY_S, INFERENCE, Demand, InferencePool
from elastic_tfjob.simulation.live_job import LiveJob
from elastic_tfjob.simulation.loans import carry_out_loans
from elastic_tfjob.simulation.node_changes import NodeChange, NodeScript, on_lost_node
from elastic_tfjob.simulation.outcome import Outcome
from elastic_tfjob.simulation.speed_models.base import SpeedModel
from elastic_tfjob.simulation.speed_models.boot import Boot, Boots
from elastic_tfjob.simulation.speed_models.cpu import used_of_held
from elastic_tfjob.simulation.speed_models.on_nodes import NodeSpeeds
from elastic_tfjob.simulation.starts import Starts
from elastic_tfjob.simulation.workload import WorkloadJob
from elastic_tfjob.speed.history import History

Progress = Callable[[float, int, int], None]
"""Called with the simulated time, jobs done and jobs in all."""


class Simulation:
    """One profile on one workload. `run` returns the Outcome; after an exception `outcome` holds what is known.

    `present` are jobs that are there already at `start_s`, when `history` is known (see present.py)."""

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
        node_changes: Sequence[NodeChange] = (),
        present: Sequence[LiveJob] = (),
        start_s: float = 0.0,
        history: History = NOTHING_LEARNED,
        seed: int = 0,
        trace: bool = False,
        check: Callable[[Plan], None] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.speed_model = speed_model
        self.profile = profile
        self.costs = costs or Costs()
        self.noise = noise or Noise()
        self.check = check
        self.progress = progress
        self.random = random.Random(seed)
        self.jobs = sorted(jobs, key=lambda job: job.submit_s)
        cluster = {node.name: node for node in (*nodes, *(inference.build() if inference else ()))}
        own = [node for node in cluster.values() if node.loan == "own"]
        self._script = NodeScript(node_changes, cluster)
        self._demand = Demand(inference, seed) if inference else None
        self._node_speeds = NodeSpeeds(cluster, contended=speed_model.contended)
        start = start_s if present or not self.jobs else self.jobs[0].submit_s
        self.snapshot = Snapshot(start, cluster, {}, seed, history=history)
        self.outcome = Outcome.begun(profile, seed, start, own, pool=inference is not None)
        self._present = present
        self._live: dict[str, LiveJob] = {}
        self._agenda = Agenda()
        self._lost = 0
        """Jobs that stand still, as a node of theirs is lost."""
        self._endless = 0
        """Jobs that hold something, and of which nobody knows when they end."""
        self._accounts = Accounts(self.outcome, trace=trace)
        self._pools = self.snapshot.pools
        self._boots = Boots(self.costs.boot_cpu_s, self.costs.boot_kept_cpu_s)
        self._history = self.snapshot.history
        self._done = 0
        self._last_round = -inf
        self._moved_s = -inf
        self._arrived = 0
        self._scripted = 0
        """Changes of nodes that have come true."""
        self._losses = any(job.loss for job in self.jobs)
        self._starts = Starts()
        self._stays = Stays()

    # ---- the loop

    def run(self) -> Outcome:
        """Simulate until every job has finished, or no event is left that could let one finish."""
        begin = time.process_time()
        try:
            for k, work in enumerate(self.jobs):
                self._agenda.add(work.submit_s, ARRIVE, place=k)
            for k, change in enumerate(self._script.changes):
                self._agenda.add(change.at_s, NODES, place=k)
            if self._demand is not None and self.jobs:
                self._agenda.add(self.jobs[0].submit_s, DEMAND)
            if self._present:
                self._take_over(self._present, self.snapshot.now)
            self._loop()
        except KeyboardInterrupt:
            self.outcome.partial = True
            raise
        finally:
            self.outcome.cpu_s = time.process_time() - begin
            self._accounts.close()
            self._starts.forecast(self.snapshot.nodes)
            self.outcome.compared = self._stays.compared(self.snapshot.nodes)
        return self.outcome

    def _loop(self) -> None:
        agenda, live = self._agenda, self._live
        interval, on_change, drifts = self.profile.interval_s, self.profile.on_change, self.profile.drifts
        contended, last_report = self._node_speeds.contended, 0
        while agenda.events:
            now = agenda.events[0][0]
            changed: list[Job] = []
            removed: list[str] = []
            round_due = scripted = False
            nodes: Mapping[str, Node] | None = None
            pools = self.snapshot.pools
            touched: set[str] = set()
            while agenda.due(now):
                _, kind, k, version, key = agenda.take()
                if kind == ARRIVE:
                    changed.append(self._arrive(self.jobs[k], k, now))
                elif kind == FINISH:
                    if key in live and live[key].version == version:
                        touched |= nodes_of(live[key].placement)
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
                elif kind == NODES:
                    nodes = self._script.carried_out(k, nodes or self.snapshot.nodes)
                    scripted = True
                    self._scripted = k + 1
                elif kind == COOLED:
                    if key in live:
                        round_due = round_due or on_change
                        self._wake(now, interval if not on_change else 0.0)
                elif kind == DEMAND:
                    assert self._demand is not None
                    if not self._stuck(now):
                        nodes, demand = self._demand.step(now, nodes or self.snapshot.nodes)
                        pools = {INFERENCE: demand}
                        agenda.add(now + self._demand.pool.period_s, DEMAND)
                elif now == agenda.round_at:
                    round_due = True
                    agenda.round_at = inf
            if nodes is not None and nodes == self.snapshot.nodes and pools == self.snapshot.pools:
                nodes = None
            news = bool(changed or removed) or nodes is not None
            if contended and touched:
                changed += self._share(touched, now)
            if round_due and self._losses:
                known = {job.key for job in changed}
                changed += [job.seen_at(now) for key, job in live.items() if job.work.loss and key not in known]
            if news or round_due:
                self.snapshot = self.snapshot.evolve(
                    now, changed=changed, removed=removed, nodes=nodes, pools=pools, history=self._history
                )
            if scripted:
                self.snapshot = self.snapshot.evolve(now, changed=self._follow_nodes(now))
            if round_due or (news and on_change):
                self._decide(now)
            elif news:
                self._wake(now, interval)
            if interval and drifts and live and agenda.round_at == inf and not self._stuck(now):
                self._wake(now, interval)
            if self.progress is not None and self.outcome.rounds - last_report >= 200:
                last_report = self.outcome.rounds
                self.progress(now, self._done, len(self.jobs))

    def _stuck(self, now: float) -> bool:
        """Whether no job will ever run again: all have come, none runs, and no round changed that for long enough.

        Long enough is over a week where the inference pool's demand may still let a node go, else a few rounds.
        """
        changes = self._script.changes
        if (
            self._accounts.running > self._lost + self._endless
            or self._arrived < len(self.jobs)
            or self._scripted < len(changes)
        ):
            return False
        last_s = max(self.jobs[-1].submit_s if self.jobs else -inf, changes[-1].at_s if changes else -inf)
        return now - max(self._moved_s, last_s) > (8 * DAY_S if self._demand else 3 * self.profile.interval_s)

    def _wake(self, now: float, interval: float) -> None:
        had_one = self.snapshot.now == now and self._last_round == now
        self._agenda.round_by_clock(now, interval, had_one=had_one)

    def _decide(self, now: float) -> None:
        self._last_round = now
        plan = schedule(self.snapshot, self.profile)
        self.outcome.rounds += 1
        if self.check is not None:
            self.check(plan)
        nodes, pools = self._lend(plan, now) if plan.loans else (None, self.snapshot.pools)
        if nodes is not None or pools is not self._pools:
            self._pools = pools
            self._accounts.lend(nodes or self.snapshot.nodes, pools, now)
        if plan.changes:
            self._moved_s = now
            self.outcome.changes.update(target.cause for target in plan.changes.values() if target.cause is not None)
            self.outcome.scaled_in += sum(target.why.code == "node-shrinks" for target in plan.changes.values())
        for key, memory in plan.memory.items():
            self._live[key].memory = memory
        if plan.changes or plan.memory or nodes is not None:
            # Those that run first: what they give up is free for others only when they have.
            first = sorted(plan.changes.items(), key=lambda change: not self._live[change[0]].placement)
            for key, target in first:
                if target.nodes and (record := self._live[key].record).start_s is None:
                    self._starts.note(record, plan.snapshot, key, target)
            changed = {key: self._live[key].seen_at(now) for key in plan.memory if key not in plan.changes}
            changed |= {key: self._carry_out(self._live[key], target, now) for key, target in first}
            if self._node_speeds.contended:
                held = (self.snapshot.jobs[key].placement for key in plan.changes)
                touched = nodes_of(*held, *(target.nodes for target in plan.changes.values()))
                changed.update((job.key, job) for job in self._share(touched, now))
            self.snapshot = self.snapshot.evolve(now, changed=changed.values(), nodes=nodes, pools=pools)
        self._accounts.sample(len(self._live), now)

    # ---- what happens to a job

    def _arrive(self, work: WorkloadJob, k: int, now: float) -> Job:
        self._arrived += 1
        live = arrive(
            work, k, speed_model=self.speed_model, profile=self.profile, noise=self.noise, random=self.random, now=now
        )
        self.outcome.records.append(live.record)
        if live.bound is not None:
            live.warm_start = self.costs.boot_kept_cpu_s is not None
            self.outcome.cpu_used_area = self.outcome.cpu_used_area or 0.0
        self._live[work.key] = live
        return live.seen_at(now)

    def _take_over(self, present: Sequence[LiveJob], now: float) -> None:
        """Go on with jobs as they are, and have a round."""
        for live in present:
            self._live[live.spec.key] = live
            self.outcome.records.append(live.record)
            if not (placement := live.placement):
                continue
            live.placement = UNPLACED
            self._hold(live, placement, now)
            if live.bound is not None:
                self._follow_cpu(live, now)
            else:
                live.rate = self._rate(live)
                self._plan_finish(live)
            self._push_jump(live, now)
        self.snapshot = self.snapshot.evolve(now, changed=[live.seen_at(now) for live in present])
        self._agenda.round_now(now)

    def _finish(self, live: LiveJob, now: float) -> None:
        record = live.record
        self._stays.end(live, now)
        record.executed_s += now - live.since_s
        record.finish_s = now
        self._history = self._history.learned(live.spec.scope, live.spec.model, live.lesson())
        self._release(live, now)
        self._hold(live, UNPLACED, now)
        self.outcome.last_s = now
        self._done += 1

    def _release(self, ended: LiveJob, now: float) -> None:
        """Jobs that were to start where `ended` would have left once its rescale was through need not wait for that."""
        if ended.boot is None or not (left := set(more_replicas(ended.boot.placement, ended.placement))):
            return
        self._boots.gone(left, now)
        for other in self._live.values():
            if (boot := other.boot) is not None and other is not ended:
                awaited = more_replicas(other.placement, boot.placement)
                if not left.isdisjoint(awaited) and boot.not_before_s > now:
                    boot.not_before_s = self._boots.free_s(awaited, now)
                    other.observed_s = max(other.observed_s, now)
                    self._follow_cpu(other, now)

    def _carry_out(self, live: LiveJob, target: Target, now: float) -> Job:
        new, old = target.nodes, live.placement
        self._stays.change(live, target, self.snapshot)
        pause = live.change_to(new, self.costs, now)
        # A change does not end the pause of a start, a move or another change: that goes on to its end at least.
        until_s = max(live.observed_s, now) if old and new else now
        was_lost, live.lost = live.lost, on_lost_node(new, self.snapshot.nodes)
        self._lost += live.lost - was_lost
        self._push_cooled(live, now)
        held_before = live.cpu_held
        live.cpu_held = target.cpu
        self._hold(live, new, now)
        if live.bound is not None:
            if not new or live.lost:
                live.boot = None
            elif new != old:
                was = UNPLACED if was_lost else old
                live.boot = self._boots.begin(was, held_before, new, pause, now, instead=live.boot)
            live.observed_s = until_s
            self._follow_cpu(live, now)
            if live.boot is None:
                self._stays.trains(live)
            return live.seen_at(now)
        live.rate = self._rate(live)
        if live.rate and (live.seen or (self.profile.learns and not self.profile.oracle)):
            live.observe()
        live.observed_s = max(until_s, now + pause)
        self._stays.trains(live)
        self._plan_finish(live)
        if new:
            self._push_jump(live, now)
        return live.seen_at(now)

    def _follow_nodes(self, now: float) -> list[Job]:
        """Jobs whose nodes were lost, or are there again, now that the Snapshot has the nodes as they are."""
        nodes, changed = self.snapshot.nodes, []
        self._node_speeds.changed(nodes)
        for live in self._live.values():
            boot, lost = live.boot, on_lost_node(live.placement, nodes)
            trained_there = boot is not None and on_lost_node(boot.placement, nodes)
            if lost == live.lost and not trained_there:
                continue
            if lost or trained_there:
                self._stays.lost(live)
                live.lose_node(self.costs.checkpoint_interval_s, now)
            if lost:
                live.boot = None
            self._lost += lost - live.lost
            pause = 0.0 if lost else self.costs.restart(live.accelerators)
            live.lost = lost
            live.observed_s = now + pause
            if live.bound is None:
                live.rate = self._rate(live)
                self._plan_finish(live)
            else:
                if not lost and not trained_there:
                    live.boot = self._boots.begin(UNPLACED, live.cpu_held, live.placement, pause, now)
                live.observed_s = now
                self._follow_cpu(live, now)
            self._push_jump(live, now)
            changed.append(live.seen_at(now))
        return changed

    def _push_cooled(self, live: LiveJob, now: float) -> None:
        """Have a round when a job that was stopped or resumed just now may be resumed or stopped again."""
        if (cooldown_s := self.profile.stop_cooldown_s) and now in (live.stopped_s, live.resumed_s):
            self._agenda.add(now + cooldown_s, COOLED, key=live.spec.key)

    def _plan_finish(self, live: LiveJob) -> None:
        live.version += 1
        if live.rate > 0 and live.true_speed.total_steps < inf:
            at = live.observed_s + max(0.0, live.true_speed.total_steps - live.steps) / live.rate
            self._agenda.add(at, FINISH, version=live.version, key=live.spec.key)

    def _push_jump(self, live: LiveJob, now: float) -> None:
        if (at := self.profile.order.next_jump_s(live.seen_at(now), now)) is not None:
            self._agenda.add(max(at, now), JUMP, version=live.version, key=live.spec.key)

    def _lend(self, plan: Plan, now: float) -> tuple[dict[str, Node], dict[str, Pool]]:
        """Carry out the loans; those preempted by a return get another round at once."""
        nodes, pools = carry_out_loans(plan.loans, self.snapshot.nodes, self.snapshot.pools)
        self.outcome.returned += sum(loan.action == "return" for loan in plan.loans)
        if any(loan.action == "return" for loan in plan.loans) and plan.changes:
            self._agenda.round_now(now)
        return nodes, pools

    # ---- speed that follows CPU

    def _follow_cpu(self, live: LiveJob, now: float) -> None:
        """Go on with the CPU that the job holds now: its rate, and when it or the program that starts will be done."""
        self._pace(live, now)
        if (boot := live.boot) is not None:
            at = self._boots.foresee(
                boot, groups=live.spec.groups, placement=live.placement, cpu=live.cpu_held, use=live.use, now=now
            )
            self._agenda.add(at, READY, version=boot.version, key=live.spec.key)
        elif live.rate and self.profile.learns:
            live.observe()
        self._plan_finish(live)

    def _ready(self, live: LiveJob, boot: Boot, now: float) -> Job:
        live.train_until(now)
        live.boot = None
        live.observed_s = max(live.observed_s, now + boot.pause_s)
        self._stays.trains(live)
        self._follow_cpu(live, now)
        return live.seen_at(now)

    def _pace(self, live: LiveJob, now: float) -> None:
        made = live.training(self._boots)
        live.rate, live.use = made.steps_per_s, made.use
        self._accounts.use(live, made.busy, now)

    # ---- contention

    def _share(self, nodes: set[str], now: float) -> list[Job]:
        """New rates of the jobs on these nodes, from what their containers want of each node's CPUs."""
        changed = []
        for key in self._node_speeds.beside(nodes):
            live = self._live[key]
            rate = self._rate(live)
            if rate != live.rate:
                live.train_until(now)
                live.observed_s = max(now, live.observed_s)
                live.rate = rate
                self._plan_finish(live)
                changed.append(live.seen_at(now))
        return changed

    def _rate(self, live: LiveJob) -> float:
        """Steps per second where the job is now, in the company it has there."""
        placement = live.placement
        if not placement or live.lost:
            return 0.0
        part = self._node_speeds.slowdown(live.spec.key, placement, self.snapshot.nodes)
        if self._node_speeds.contended:
            live.use = used_of_held(live.spec, live.work.cpu_demand, placement, live.cpu_held, part)
        return live.true_speed.rate(placement) * live.factor * part

    def _hold(self, live: LiveJob, new: Placement, now: float) -> None:
        self._node_speeds.moved(live.spec, live.work.cpu_demand, live.placement, new, live.cpu_held)
        if live.true_speed.total_steps == inf:
            self._endless += bool(new) - bool(live.placement)
        self._accounts.hold(live, new, now)
