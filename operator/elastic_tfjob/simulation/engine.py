"""The event loop of the simulator: it handles events, runs a scheduling round after a change, and carries out the plan.

The simulation is event-driven, without time steps. The jobs' changes and true speeds are in live_jobs.py; a policy sees
only the Snapshot.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from elastic_tfjob.api.scenario import Autoscaling
from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.forecasts import forecast
from elastic_tfjob.scheduling.plan import Assignment, Loan, Plan
from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.room import nodes_of
from elastic_tfjob.scheduling.snapshot import NOTHING_LEARNED, Job, Node, Pool, Snapshot
from elastic_tfjob.scheduling.steps.leave import LAST_CHANCE_S
from elastic_tfjob.scheduling.steps.teams import TeamRules
from elastic_tfjob.simulation.autoscaler import lives_of
from elastic_tfjob.simulation.autoscaling import Scaling
from elastic_tfjob.simulation.event_queue import (
    ARRIVE,
    AUTOSCALE,
    COOLED,
    DEMAND,
    FINISH,
    JUMP,
    MEMORY,
    NODES,
    NOTICE,
    READY,
    SPEED_CHANGE,
    EventQueue,
    NodeChange,
    NodeScript,
)
from elastic_tfjob.simulation.live_job import NO_COSTS, NO_NOISE, Costs, LiveJob, Noise
from elastic_tfjob.simulation.live_jobs import LiveJobs
from elastic_tfjob.simulation.memory import OPERATORS, LimitRules, leaving, on_real_nodes, stays_taken
from elastic_tfjob.simulation.notices import Notices
from elastic_tfjob.simulation.result import JobRecord, RunResult
from elastic_tfjob.simulation.scenario import DAY_S, INFERENCE, Demand, InferencePool
from elastic_tfjob.simulation.speed_models.base import SpeedModel
from elastic_tfjob.simulation.teams import TeamRecorder, teams_in
from elastic_tfjob.simulation.utilisation import Utilisation
from elastic_tfjob.simulation.workload import WorkloadJob
from elastic_tfjob.speed.history import History

# -- Loans of nodes, which take effect at once -------------------------------------------------------------------------


def carry_out_loans(
    loans: Iterable[Loan], nodes: Mapping[str, Node], pools: Mapping[str, Pool]
) -> tuple[dict[str, Node], dict[str, Pool]]:
    """The nodes and the pools' demand after these loans and returns."""
    nodes, pools = dict(nodes), dict(pools)
    for loan in loans:
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
    return nodes, pools


# -- The forecast for each job under the plan that starts it first -----------------------------------------------------


class FirstStartForecast:
    """The first starts of the jobs of one run. They are recorded during the run; the forecasts are computed after it,
    so that the run's CPU time does not include them."""

    def __init__(self) -> None:
        self._noted: list[tuple[JobRecord, Job, Assignment, float, History]] = []

    def note(self, record: JobRecord, snapshot: Snapshot, key: str, target: Assignment) -> None:
        self._noted.append((record, snapshot.jobs[key], target, snapshot.now, snapshot.history))

    def forecast(self, nodes: Mapping[str, Node]) -> None:
        for record, job, target, now, history in self._noted:
            past = history.past(job.spec.scope, job.spec.model)
            record.forecast = forecast(job, now, placement=target.nodes, cpu=target.cpu, past=past, nodes=nodes)


Progress = Callable[[float, int, int], None]
"""A callback with the simulated time (seconds), the number of finished jobs and the total number of jobs."""

REPORT_S = 0.2
"""Real seconds between two calls of the progress callback if rounds are slow."""


@dataclass(frozen=True, slots=True)
class SimulationInput:
    """The jobs, the cluster and their behaviour: everything that a run needs besides the profile.

    `speed_model`: the true speeds. `costs`: the pauses of starts, rescales and moves. `inference`: the pool that lends
    nodes, if there is one. `seed`: for the noise, the demand of the pool, the autoscaler and the profile's own draws.
    `autoscaling`: the autoscaler, if there is one. `teams`: the terms by which the result says what each team got;
    None: it does not. `limits`: how limits follow the memory that jobs use."""

    jobs: Sequence[WorkloadJob]
    nodes: Sequence[Node]
    speed_model: SpeedModel
    costs: Costs = NO_COSTS
    noise: Noise = NO_NOISE
    inference: InferencePool | None = None
    node_changes: Sequence[NodeChange] = ()
    seed: int = 0
    autoscaling: Autoscaling | None = None
    teams: TeamRules | None = None
    limits: LimitRules = OPERATORS


class Simulation:
    """A simulation of one profile on one workload. `run` returns the RunResult; after an exception `outcome` holds the
    partial results.

    `present` are the jobs that already exist at `start_s`, when `history` is known (see foresee.py)."""

    def __init__(
        self,
        inputs: SimulationInput,
        profile: Profile,
        *,
        present: Sequence[LiveJob] = (),
        start_s: float = 0.0,
        history: History = NOTHING_LEARNED,
        trace: bool = False,
        check: Callable[[Plan], None] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.profile = profile
        self.check = check
        self.progress = progress
        self.jobs = sorted(inputs.jobs, key=lambda job: job.submit_s)
        inference, seed = inputs.inference, inputs.seed
        cluster = {node.name: node for node in (*inputs.nodes, *(inference.build() if inference else ()))}
        own = [node for node in cluster.values() if node.loan == "own"]
        self._first_nodes = tuple(cluster.values())
        self._script = NodeScript(inputs.node_changes, cluster)
        self._demand = Demand(inference, seed) if inference else None
        start = start_s if present or not self.jobs else self.jobs[0].submit_s
        self._scaling = Scaling(inputs.autoscaling, profile, seed) if inputs.autoscaling is not None else None
        self.snapshot = Snapshot(start, cluster, {}, seed, history=history)
        self.outcome = RunResult.begun(profile, seed, start, own, pool=inference is not None)
        if inputs.teams is not None:
            names = teams_in([job.key for job in inputs.jobs], inputs.teams)
            self.outcome.teams = TeamRecorder(inputs.teams, teams=names)
        self._present = present
        self._queue = EventQueue()
        self._utilisation = Utilisation(self.outcome, trace=trace)
        self._live = LiveJobs(
            cluster,
            inputs.speed_model,
            profile,
            costs=inputs.costs,
            noise=inputs.noise,
            limits=inputs.limits,
            seed=seed,
            history=history,
            queue=self._queue,
            utilisation=self._utilisation,
            outcome=self.outcome,
        )
        self._speed_change_s = (
            inputs.noise.speed_every_s if inputs.noise.speed > 0 or inputs.noise.neighbours > 0 else 0.0
        )
        self._pools = self.snapshot.pools
        self._done = 0
        self._last_round = -inf
        self._moved_s = -inf
        self._arrived = 0
        self._scripted = 0
        """Number of node changes carried out."""
        self._look_s = -inf
        """When the autoscaler looks next."""
        self._losses = any(job.loss for job in self.jobs)
        self._first_starts = FirstStartForecast()
        self._notices = Notices()
        self.outcome.interruptions = self._notices.outcomes

    # ---- the loop

    def run(self) -> RunResult:
        """Simulate until all jobs have finished, or no remaining event can let a job finish."""
        begin = time.process_time()
        try:
            for k, work in enumerate(self.jobs):
                self._queue.add(work.submit_s, ARRIVE, place=k)
            for k, change in enumerate(self._script.changes):
                self._queue.add(change.at_s, NODES, place=k)
            for at_s, k in self._script.notices:
                self._queue.add(at_s, NOTICE, place=k)
            if self._demand is not None and self.jobs:
                self._queue.add(self.jobs[0].submit_s, DEMAND)
            if self._speed_change_s and self.jobs:
                self._queue.add(
                    (self.jobs[0].submit_s // self._speed_change_s + 1) * self._speed_change_s, SPEED_CHANGE
                )
            if self._present:
                now = self.snapshot.now
                present = self._live.take_over(self._present, self.snapshot.nodes, now)
                self.snapshot = self.snapshot.evolve(now, changed=present)
                self._queue.round_now(now)
            self._loop()
        except KeyboardInterrupt:
            self.outcome.partial = True
            raise
        finally:
            self.outcome.cpu_s = time.process_time() - begin
            self._utilisation.close()
            self._account_nodes()
            self._first_starts.forecast(self.snapshot.nodes)
            self.outcome.compared = self._live.stays.compared(self.snapshot.nodes)
        return self.outcome

    def _loop(self) -> None:
        queue, jobs, live = self._queue, self._live, self._live.by_key
        interval, on_change, drifts = self.profile.interval_s, self.profile.on_change, self.profile.drifts
        last_report, reported_s = 0, time.monotonic()
        while queue.events:
            now = queue.events[0][0]
            changed: list[Job] = []
            removed: list[str] = []
            round_due = scripted = speeds_changed = False
            nodes: Mapping[str, Node] | None = None
            pools = self.snapshot.pools
            touched: set[str] = set()
            while queue.due(now):
                _, kind, k, version, key = queue.take()
                if kind == ARRIVE:
                    changed.append(jobs.arrive(self.jobs[k], k, now))
                    self._arrived += 1
                elif kind == FINISH:
                    if key in live and live[key].version == version:
                        touched |= nodes_of(live[key].placement)
                        jobs.finish(live[key], now)
                        removed.append(key)
                        self._done += 1
                elif kind == READY:
                    if key in live and (boot := live[key].boot) is not None and boot.version == version:
                        changed.append(jobs.ready(live[key], boot, now))
                elif kind == MEMORY:
                    if key in live and live[key].version == version:
                        on = nodes_of(live[key].placement)
                        if (seen := jobs.memory(live[key], k, self.snapshot, now)) is not None:
                            changed.append(seen)
                        else:  # the job has failed
                            touched |= on
                            changed = [job for job in changed if job.spec.key != key]
                            removed.append(key)
                            self._done += 1
                elif kind == JUMP:
                    if key in live and live[key].version == version:
                        round_due = round_due or on_change
                        self._wake(now, interval if not on_change else 0.0)
                        jobs.push_jump(live[key], now)
                elif kind == NODES:
                    change = self._script.changes[k]
                    if self._scaling is not None and change.node is None:
                        self._node_ends(change.name, now)
                    self._notices.end(change.name, jobs.training_on(change.name))
                    nodes = self._script.carried_out(k, self.snapshot.nodes if nodes is None else nodes)
                    scripted = True
                    self._scripted = max(self._scripted, k + 1)
                elif kind == NOTICE:
                    change, had = self._script.changes[k], self.snapshot.nodes if nodes is None else nodes
                    if change.name in had:
                        nodes = self._notices.begin(change.name, change.at_s, had)
                        if (last_s := change.at_s - LAST_CHANCE_S) > now:
                            queue.add(last_s, NOTICE, place=k)
                    elif change.name in self._notices.nodes:  # else it was removed before
                        late = jobs.save_before_end(change.name, now)
                        self._notices.save(change.name, late)
                        changed += late
                    round_due = round_due or on_change
                    self._wake(now, interval if not on_change else 0.0)
                elif kind == COOLED:
                    if key in live:
                        round_due = round_due or on_change
                        self._wake(now, interval if not on_change else 0.0)
                elif kind == DEMAND:
                    assert self._demand is not None
                    if not self._stuck(now):
                        nodes, demand = self._demand.step(now, self.snapshot.nodes if nodes is None else nodes)
                        pools = {INFERENCE: demand}
                        queue.add(now + self._demand.pool.period_s, DEMAND)
                elif kind == SPEED_CHANGE:
                    speeds_changed = True
                    if queue.events:  # otherwise the simulation is over
                        queue.add(now + self._speed_change_s, SPEED_CHANGE)
                elif kind == AUTOSCALE:  # the autoscaler looks after each event
                    self._look_s = -inf
                    round_due |= self._scaling is not None and self._scaling.round_s <= now
                elif now == queue.round_at_s:
                    round_due = True
                    queue.round_at_s = inf
            if nodes is not None and nodes == self.snapshot.nodes and pools == self.snapshot.pools:
                nodes = None
            news = bool(changed or removed) or nodes is not None
            if jobs.contended and touched:
                changed += jobs.share(touched, self._standing, now)
            if round_due and self._losses:
                known = {job.key for job in changed}
                changed += [job.seen_at(now) for key, job in live.items() if job.work.loss and key not in known]
            if news or round_due:
                self.snapshot = self.snapshot.evolve(
                    now,
                    changed=changed,
                    removed=removed,
                    nodes=nodes,
                    pools=pools,
                    history=jobs.history,
                    leaving=dict(self._notices.gone_s),
                )
            if scripted:
                followed = jobs.follow_nodes(self._standing, now)
                self.snapshot = self.snapshot.evolve(now, changed=followed)
            if speeds_changed:
                self.snapshot = self.snapshot.evolve(now, changed=jobs.draw_speeds(self._standing, now))
            if round_due or (news and on_change):
                self._decide(now)
            elif news:
                self._wake(now, interval)
            if interval and drifts and live and queue.round_at_s == inf and not self._stuck(now):
                self._wake(now, interval)
            if self._scaling is not None and not self._stuck(now):
                self._autoscale(self._scaling, now)
            # Reports every 200 rounds if rounds are fast, else every REPORT_S, so that a stop does not wait for 200
            # slow rounds.
            if self.progress is not None and (
                self.outcome.rounds - last_report >= 200 or time.monotonic() - reported_s >= REPORT_S
            ):
                last_report, reported_s = self.outcome.rounds, time.monotonic()
                self.progress(now, self._done, len(self.jobs))

    @property
    def _standing(self) -> Mapping[str, Node]:
        """All nodes on which replicas run."""
        return self._notices.standing(self.snapshot.nodes)

    def _stuck(self, now: float) -> bool:
        """Whether no job will ever run again: all have arrived, none will finish, and for some time no round changed
        that.

        The time is eight days with an inference pool, whose demand may still free a node, a day with an autoscaler,
        which may still get one, else three rounds.
        """
        if self._live.will_finish or self._arrived < len(self.jobs) or self._scripted < self._script.known:
            return False
        last_s = max(self.jobs[-1].submit_s if self.jobs else -inf, self._script.last_s)
        patience_s = 3 * self.profile.interval_s
        if self._scaling is not None and self._scaling.asks:
            patience_s = DAY_S
            last_s = max([last_s, *(each.until_s for each in self._scaling.settings.no_capacity)])
        return now - max(self._moved_s, last_s) > (8 * DAY_S if self._demand else patience_s)

    def _autoscale(self, scaling: Scaling, now: float) -> None:
        """Let the autoscaler look at this moment, and schedule what it does."""
        changes = scaling.look(self.snapshot, self._live.in_use, now)
        ready_s = {change.name: change.at_s for change in changes if change.node is not None}
        for change in changes:
            k = self._script.add(change)
            self._queue.add(change.at_s, NODES, place=k)
            if change.notice_s:
                self._queue.add(max(ready_s.get(change.name, now), change.at_s - change.notice_s), NOTICE, place=k)
        if scaling.look_s < inf and scaling.look_s != self._look_s:
            self._look_s = scaling.look_s
            self._queue.add(max(now, scaling.look_s), AUTOSCALE)

    def _node_ends(self, name: str, now: float) -> None:
        """A node leaves the cluster: note whether the cloud takes it away, and jobs with it."""
        assert self._scaling is not None
        if self._scaling.autoscaler.ends(name, now):
            self.outcome.taken_away += 1
            self.outcome.taken_with_pods += name in self._live.in_use

    def _account_nodes(self) -> None:
        """Note the lives of all nodes, for their hours and cost. Nodes that nobody removes count until the last job has
        finished."""
        outcome, scaling = self.outcome, self._scaling
        if scaling is None and not any(node.price for node in self._first_nodes):
            return
        outcome.lives = lives_of(self._first_nodes, self._script.changes[: self._script.known], outcome.first_s)
        for life in outcome.lives:
            life.until_s = max(life.from_s, min(life.until_s, outcome.last_s))
        if scaling is not None:
            for life in scaling.autoscaler.lives:
                life.until_s = max(life.from_s, min(life.until_s, self.snapshot.now))
            outcome.lives += scaling.autoscaler.lives
            outcome.added = len(scaling.autoscaler.lives)
            outcome.failed_launches = scaling.autoscaler.failures
            outcome.failed_orders = scaling.failed_orders

    def _wake(self, now: float, interval: float) -> None:
        had_one = self.snapshot.now == now and self._last_round == now
        self._queue.round_by_clock(now, interval, had_one=had_one)

    def _decide(self, now: float) -> None:
        self._last_round = now
        if self._scaling is not None:
            self.snapshot = self._scaling.begin(self.snapshot, now)
        plan = self._planned(now)
        self.outcome.rounds += 1
        if self._scaling is not None and self._scaling.decided(plan, now):
            self._queue.round_now(now)
        nodes, pools = self._lend(plan, now) if plan.loans else (None, self.snapshot.pools)
        if nodes is not None or pools is not self._pools:
            self._pools = pools
            self._utilisation.lend(nodes or self.snapshot.nodes, pools, now)
        if plan.changes:
            self._moved_s = now
            self.outcome.changes.update(target.cause for target in plan.changes.values() if target.cause is not None)
            self.outcome.scaled_in += sum(target.why.code == "node-shrinks" for target in plan.changes.values())
        live, cluster = self._live.by_key, self._standing
        lost = {key: live[key].record.lost_s for key in plan.changes}
        for key, memory in plan.memory.items():
            live[key].memory = memory
        if plan.changes or plan.memory or nodes is not None:
            # Running jobs are changed first, as their resources are free only after the change.
            first = sorted(plan.changes.items(), key=lambda change: not live[change[0]].placement)
            for key, target in first:
                if target.nodes and (record := live[key].record).start_s is None:
                    self._first_starts.note(record, plan.snapshot, key, target)
                self._live.stays.change(live[key], target, self.snapshot)
                if self._notices.nodes:
                    self._notices.change(self.snapshot.jobs[key], target)
            changed = {key: live[key].seen_at(now) for key in plan.memory if key not in plan.changes}
            changed |= {key: self._live.carry_out(live[key], target, cluster, now) for key, target in first}
            if self._live.contended:
                held = (self.snapshot.jobs[key].placement for key in plan.changes)
                touched = nodes_of(*held, *(target.nodes for target in plan.changes.values()))
                changed.update((job.key, job) for job in self._live.share(touched, cluster, now))
            self.snapshot = self.snapshot.evolve(now, changed=changed.values(), nodes=nodes, pools=pools)
        if (teams := self.outcome.teams) is not None:
            teams.reclaimed(plan, {key: live[key].record.lost_s - before for key, before in lost.items()})
            teams.look(self.snapshot)
        self._utilisation.sample(len(live), now)

    def _planned(self, now: float) -> Plan:
        """The plan. It takes replicas off nodes without the memory that they ask for, as off lost nodes. What they hold
        there stays taken."""
        before, outgrown = self.snapshot, self._live.outgrown()
        if outgrown:
            nodes = dict(before.nodes)
            for key, (names, in_force) in outgrown.items():
                taken = (name for name in names if name in nodes)
                nodes |= {name: stays_taken(nodes[name], before.jobs[key], in_force) for name in taken}
            marked = [leaving(before.jobs[key], names) for key, (names, _) in outgrown.items()]
            self.snapshot = before.evolve(now, changed=marked, nodes=nodes, pools=before.pools)
        plan = schedule(self.snapshot, self.profile)
        if self.check is not None:
            self.check(plan)
        if outgrown:
            real = [before.jobs[key] for key in outgrown]
            self.snapshot = self.snapshot.evolve(now, changed=real, nodes=before.nodes, pools=before.pools)
            changes = {key: on_real_nodes(target) for key, target in plan.changes.items() if key in outgrown}
            plan = replace(plan, changes={**plan.changes, **changes})
        return plan

    def _lend(self, plan: Plan, now: float) -> tuple[dict[str, Node], dict[str, Pool]]:
        """Carry out the loans. If a return preempts jobs, another round follows at once."""
        nodes, pools = carry_out_loans(plan.loans, self.snapshot.nodes, self.snapshot.pools)
        self.outcome.returned += sum(loan.action == "return" for loan in plan.loans)
        if any(loan.action == "return" for loan in plan.loans) and plan.changes:
            self._queue.round_now(now)
        return nodes, pools
