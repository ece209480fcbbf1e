"""The scheduling loop. Each round describes the jobs that changed, makes one plan for all jobs, and patches the target
annotation of each job whose target changes.

No job can stop the scheduling of other jobs: a job that makes the code fail gets an event with the error, is
quarantined, and is tried again later. Computations that grow with the number of jobs run in a thread.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from elastic_tfjob.api.tfjob import CONTROLLER_NAME, OPERATOR_NAME_LABEL
from elastic_tfjob.controller.kube import metrics
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.configuration import LearnedHistory
from elastic_tfjob.controller.kube.events import EventRecorder
from elastic_tfjob.controller.kube.informer import Informer
from elastic_tfjob.controller.kube.reports import Reports
from elastic_tfjob.controller.kube.supervise import excerpt, unending
from elastic_tfjob.controller.model.cluster import ACTIVE_AND_BOUND, ForeignPod, KubeNode
from elastic_tfjob.controller.model.job import Key, TFJob
from elastic_tfjob.controller.model.owned_objects import NodeOrder
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.settings import Configuration
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.controller.planning.job_view import JobView
from elastic_tfjob.controller.planning.round import (
    Described,
    ObservedJob,
    PlannedRound,
    ReservationFailures,
    describe_all,
    plan_round,
)
from elastic_tfjob.controller.planning.targets import profile_failed, without_plan
from elastic_tfjob.controller.schedule.autoscaling import Autoscaling
from elastic_tfjob.controller.schedule.experience_log import ExperienceLog
from elastic_tfjob.controller.schedule.fallback_planning import plan_with_fallback
from elastic_tfjob.controller.schedule.growth import QuotaGrowth
from elastic_tfjob.controller.schedule.job_entry import JobEntry
from elastic_tfjob.controller.schedule.job_events import JobEvents
from elastic_tfjob.controller.schedule.loans import Loans
from elastic_tfjob.controller.schedule.notices import NodeNotices
from elastic_tfjob.controller.schedule.profile_health import ProfileHealth
from elastic_tfjob.controller.schedule.profile_reload import ProfileReload
from elastic_tfjob.controller.schedule.team_metrics import TeamMetrics
from elastic_tfjob.controller.schedule.writers import TargetWriter
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profile import LIVE_INTERVAL_S
from elastic_tfjob.scheduling.profile_errors import ProfileError
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import Snapshot

__all__ = ["Scheduler", "wait_for_next_round"]

log = structlog.get_logger(__name__)

_SPACING_S: Final = 1.0
"""Minimum seconds between the starts of two rounds."""
_WRITES_S: Final = 1.0
"""Seconds that a round waits for its writes. A write that a slow webhook delays continues during the next rounds."""
_SUSPECTED_S: Final = 3600.0
"""Seconds after a job has made planning fail in which changed jobs of its namespace are first tried alone."""


async def wait_for_next_round(
    wake: asyncio.Event, begun_s: float, interval_s: float, spacing_s: float, *, on_change: bool
) -> None:
    """Returns when the next round should start: when `wake` is set, but at least `spacing_s` after the last round began
    (`begun_s`, monotonic), and after `interval_s` at the latest. Without `on_change`, at the next multiple of the
    interval."""
    interval_s = max(interval_s, spacing_s)
    if on_change:
        # Not wait_for: in Python 3.11 it swallows a cancellation that arrives together with the awaited result.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(interval_s):
                await wake.wait()
        await asyncio.sleep(max(0.0, begun_s + spacing_s - time.monotonic()))
    else:
        await asyncio.sleep(interval_s - time.time() % interval_s)
    wake.clear()


class Scheduler:
    """The scheduling loop. `touched` and `configured` wake it; `run` acts while this replica leads. `experience`: the
    directory of the experience log; empty: none. `barred`: uids of jobs whose pods cannot be created. `profile_failing`
    is called with the words of an error if the profile fails for all jobs, and with None once it works again."""

    def __init__(
        self,
        api: ApiClient,
        jobs: Informer[TFJob],
        pods: Informer[Pod],
        *,
        reports: Reports,
        recorder: EventRecorder,
        configuration: Callable[[], Configuration],
        namespace: str = "",
        priorities: Callable[[], Mapping[str, int]] = dict,
        memory: LearnedHistory | None = None,
        wants: Callable[[], Mapping[str, int]] = dict,
        experience: str = "",
        barred: Callable[[], frozenset[str]] = frozenset,
        profile_failing: Callable[[str | None], None] = lambda _: None,
        orders: Callable[[], Iterable[NodeOrder]] = tuple,
        autoscaled: Callable[[], bool] = lambda: False,
    ) -> None:
        self._jobs = jobs
        self._pods = pods
        self._reports = reports
        self._configuration = configuration
        self._priorities = priorities
        self._memory = memory if memory is not None else LearnedHistory()
        self._barred = barred
        self._nodes = Informer(api, "/api/v1/nodes", self._parse_node, lambda _: None, touched=self._cluster_touched)
        # For an operator of a single namespace, pods of TFJobs in other namespaces are foreign.
        self._by_uid = bool(namespace)
        selector = "" if namespace else f"{OPERATOR_NAME_LABEL}!={CONTROLLER_NAME}"
        self._foreign = Informer(
            api,
            "/api/v1/pods",
            ForeignPod.parse,
            lambda _: None,
            selector=selector,
            fields=ACTIVE_AND_BOUND,
            touched=self._cluster_touched,
        )
        self._wake = asyncio.Event()
        self._runs = False
        # Jobs to describe in the next round.
        self._dirty: set[Key] = set()
        self._entries: dict[Key, JobEntry] = {}
        self._manages_jobs = False
        self._failures = ReservationFailures()
        self.autoscaling: Final = Autoscaling(
            jobs,
            self._nodes,
            recorder,
            orders=orders,
            present=autoscaled,
            held=self._held,
            partial=self._by_uid,
            wake=self.wake,
        )
        # Namespaces with a job that made planning fail, and until when (monotonic seconds) they are suspected.
        self._suspected: dict[str, float] = {}
        self._snapshot: Snapshot | None = None
        self._plan_made: Plan | None = None
        self.teams = TeamMetrics()
        # The nodes' capacities, the priority classes and the cordoned nodes: every job's description depends on them.
        self._cluster_info: tuple[Mapping[str, Resources], Mapping[str, int], Mapping[str, str]] = {}, {}, {}
        self._described_at = 0.0
        # Increased by each reset: a round that began before a reset is abandoned.
        self._epoch = 0
        self._profile = ProfileReload()
        self._health = ProfileHealth(profile_failing)
        self._experience = ExperienceLog(experience)
        self._writer = TargetWriter(
            api,
            jobs,
            entries=self._entries,
            touched=self.touched,
            later=self._dirty_later,
            failed=self._quarantine,
        )
        self._events = JobEvents(api, jobs, recorder, self._entries)
        self.forecast: Final = self._events.forecast
        self._notices = NodeNotices(self._nodes, jobs, pods, recorder, self.touched)
        self.growth: Final = QuotaGrowth(
            api, jobs, pods, recorder, namespace=namespace, touched=self.touched, wake=self.wake
        )
        self._loans = Loans(api, self._nodes, recorder, wants=wants, owned=self._owned, touched=lambda _: self.wake())

    @property
    def nodes(self) -> Informer[KubeNode]:
        """The nodes. They are read once a profile decides for jobs, or once other code runs this informer."""
        return self._nodes

    @property
    def foreign(self) -> Informer[ForeignPod]:
        """The pods that use capacity of nodes and belong to no TFJob; read when `nodes` are."""
        return self._foreign

    def _parse_node(self, raw: Mapping[str, Any]) -> KubeNode:
        return self._as_configured(KubeNode.parse(raw))

    def _as_configured(self, node: KubeNode) -> KubeNode:
        settings = self._configuration().autoscaling
        return node.configured(settings.draining, settings.spot)

    # -- What wakes the loop -------------------------------------------------------------------------------------------

    def touched(self, key: Key) -> None:
        """Notes that a job, one of its pods or one of its reports has changed."""
        if self._runs:  # `run` starts with all jobs anyway
            self._dirty.add(key)
            self._wake.set()

    def _dirty_later(self, key: Key) -> None:
        self._dirty.add(key)

    def _cluster_touched(self, _: Key) -> None:
        # Thousands of foreign pods may start and end: they wake the loop only if it has something to decide.
        if self._manages_jobs or self._configuration().pools:
            self._wake.set()

    def wake(self) -> None:
        """Wakes the loop because something else that a round depends on has changed."""
        self._wake.set()

    def configured(self) -> None:
        """Plans from scratch, since the configuration has changed."""
        for node in self._nodes:
            self._nodes.assume(self._as_configured(node))
        self._reset()
        self._failures.clear()
        self._health.reset()
        self.autoscaling.clear()
        self._wake.set()

    def _reset(self) -> None:
        """Makes the next round describe all jobs again and plan from scratch."""
        self._epoch += 1
        self._snapshot = None
        for entry in self._entries.values():
            entry.view, entry.not_tried = None, False
        self._dirty.update(self._jobs.keys, self._pods.keys, self._entries)

    # -- The loop ------------------------------------------------------------------------------------------------------

    async def run(self, holds: Callable[[], bool]) -> None:
        """Runs rounds without end. A round decides only if `holds` returns True: this replica leads."""
        self._runs = True
        self._reset()
        async with asyncio.TaskGroup() as group:
            watching = False
            while True:
                configuration = self._configuration()
                if configuration.decides and not watching:
                    watching = True
                    group.create_task(unending(self._nodes.run), name="nodes")
                    group.create_task(unending(self._foreign.run), name="foreign-pods")
                    await self._nodes.synced.wait()
                    await self._foreign.synced.wait()
                if watching:
                    await self._loans.follow(configuration, group)
                    await self.growth.follow(configuration, group)
                begun = time.monotonic()
                if holds():
                    try:
                        await self._round(configuration, group)
                    except ProfileError as error:
                        metrics.SCHEDULING_FAILURES.inc()
                        self._profile_failed(error, configuration, group)
                    except Exception:
                        metrics.SCHEDULING_FAILURES.inc()
                        log.exception("bug: the scheduling round failed; jobs keep what they have")
                        self._reset()
                parameters = configuration.parameters
                interval_s = parameters.interval_s or LIVE_INTERVAL_S
                await wait_for_next_round(self._wake, begun, interval_s, _SPACING_S, on_change=parameters.on_change)

    def _profile_failed(self, error: ProfileError, configuration: Configuration, group: asyncio.TaskGroup) -> None:
        """Reports that the round failed in the profile's code, also to the jobs that wait for the profile. Jobs keep
        what they have."""
        if configuration is self._configuration():  # otherwise the failed profile is no longer in use
            self._health.failed(error)
            for key, target in self._without_profile(configuration).items():
                self._writer.begin(key, target, time.time(), group)
        self._reset()

    async def _round(self, configuration: Configuration, group: asyncio.TaskGroup) -> None:
        with metrics.SCHEDULING_SECONDS.time():
            epoch = self._epoch
            targets = await self._decide(configuration)
            if epoch != self._epoch:
                return
            now = time.time()
            begun = [self._writer.begin(key, target, now, group) for key, target in targets.items()]
            begun += self._loans.write(group)
            if self.growth.concerned:
                views = {entry.key: entry.view for entry in self._entries.values() if entry.view is not None}
                profile, is_written = self._profile.of(configuration), self._writer.is_writing
                await self.growth.step(
                    views, self._snapshot, profile, configuration, is_written=is_written, group=group
                )
            plan, self._plan_made = self._plan_made, None
            await self._events.look(plan, group)
            self._experience.note(plan, configuration.parameters.interval_s)
            self.teams.note(plan)
            if tasks := [task for task in begun if task is not None]:
                await asyncio.wait(tasks, timeout=_WRITES_S)

    async def _decide(self, configuration: Configuration) -> dict[Key, Target]:
        """The targets to write: of changed jobs that need no plan, and of the plan."""
        epoch = self._epoch
        if configuration.decides and await self._profile.follow(configuration):
            self._snapshot = None
        if epoch != self._epoch:
            return {}
        self._notices.follow()
        now = time.monotonic()
        changed, self._dirty = self._dirty, set()
        changed |= {entry.key for entry in self._entries.values() if entry.retried(now)}
        if configuration.decides:
            await self._describe(self._outdated(changed, configuration), configuration)
            if again := self._failures.changed((entry.key for entry in self._managed()), time.monotonic()):
                await self._describe(again, configuration)
        else:
            await self._describe(changed, configuration)
        if epoch != self._epoch:
            return {}
        targets = self._without_plan(changed, configuration)
        if configuration.decides and (self._manages_jobs or self._loans.concerns(configuration)):
            return {**targets, **await self._plan(configuration, changed)}
        self._loans.without_plan(configuration, self._foreign, self._pods, self._views())
        self._snapshot = None
        return targets

    def _managed(self) -> Iterable[JobEntry]:
        return (entry for entry in self._entries.values() if entry.managed)

    def _views(self) -> list[JobView]:
        return [entry.view for entry in self._entries.values() if entry.view is not None]

    def _held(self, name: str) -> int | None:
        """The replicas that a job, by its name in the Snapshot, has; None: it does not exist."""
        namespace, _, job_name = name.partition("/")
        key = namespace, job_name
        if self._jobs.one(key) is None:
            return None
        entry = self._entries.get(key)
        found = entry.view.job if entry is not None and entry.view is not None else None
        return sum(found.counts.values()) if found is not None else 0

    def _owned(self, pod: Pod) -> bool:
        return any(job.uid == pod.owner for job in self._jobs.of_job(pod.key))

    # -- 1. Describe jobs ----------------------------------------------------------------------------------------------

    def _outdated(self, changed: set[Key], configuration: Configuration) -> set[Key]:
        """The jobs to describe again: in every round, jobs that changed; once per interval also jobs with a new report,
        and jobs whose description may change by time alone; all managed jobs if nodes or priorities have changed. This
        saves work, since only a few of ten thousand jobs change at a time. Between two descriptions, a job's progress
        is predicted."""
        now = time.monotonic()
        usable = {node.name: node.allocatable for node in self._loans.usable()}
        info = usable, dict(self._priorities()), self._loans.cordoned()
        if info != self._cluster_info:
            self._cluster_info, self._described_at = info, now
            return changed | {entry.key for entry in self._managed()}
        if now - self._described_at < (configuration.parameters.interval_s or LIVE_INTERVAL_S):
            return changed
        self._described_at = now
        reported = self._reports.renewed()
        return changed | {entry.key for entry in self._managed() if entry.may_change or entry.key in reported}

    async def _describe(self, keys: set[Key], configuration: Configuration) -> None:
        """Updates the entries of these jobs, and drops the entries of jobs that no longer exist."""
        nodes = {node.name: node for node in self._loans.usable()}
        observed: dict[Key, ObservedJob] = {}
        for key in keys:
            job, pods = self._jobs.one(key), self._pods.of_job(key)
            entry = self._entries.get(key)
            if job is None and not pods:
                if entry is not None:
                    self._drop(entry)
                continue
            if entry is None:
                entry = self._entries[key] = JobEntry(key)
            admitted = self.growth.admitted(job)
            observed[key] = ObservedJob(
                job, pods, self._reports.of_job(key), entry.view, entry.rejected_nodes, admitted
            )
        epoch, now = self._epoch, datetime.now(UTC)
        described = await asyncio.to_thread(
            describe_all,
            observed,
            nodes,
            now,
            configuration.scope == "all",
            self._priorities(),
            cordoned=self._loans.cordoned(),
            leaving=self._notices.leaving,
            failed=self._failures.counts(time.monotonic()),
            barred=self._barred(),
            configured=configuration.injected.resources,
        )
        if epoch != self._epoch:
            return
        needs = self._profile.of(configuration).needs
        for key, each in described.items():
            self._update(self._entries[key], each)
            self._events.by_needs(key, each.found, now.timestamp(), needs)
        phases = Counter(view.job.phase for view in self._views() if view.job is not None)
        self._manages_jobs = bool(phases)
        for phase in ("waiting", "running", "rescaling"):
            metrics.SCHEDULED_JOBS.labels(phase).set(phases[phase])

    def _drop(self, entry: JobEntry) -> None:
        """Drops a job that no longer exists and has no pods."""
        del self._entries[entry.key]
        self._failures.follow(entry.key, entry.view, None, time.monotonic())
        self._events.follow(entry, None)

    def _update(self, entry: JobEntry, described: Described) -> None:
        view, before = described.found, entry.view
        entry.view, entry.rejected_nodes = view, described.rejected_nodes
        if described.error is None:
            self._failures.follow(entry.key, before, view, time.monotonic())
        self._events.follow(entry, view.source)
        if before is not None and (view.request is not before.request or view.target != before.target):
            entry.quarantine = None  # the change may have removed the cause of the failure
        if view.lesson is not None:
            self._memory.learn(entry.key[0], *view.lesson)
        if described.error is not None:
            self._quarantine(entry.key, described.error)
            return
        try:
            self._writer.note_refusal(entry, view)
        except Exception as error:
            self._quarantine(entry.key, error)
            return
        if described.again_s is not None:
            asyncio.get_running_loop().call_later(described.again_s, self.touched, entry.key)
        self._events.described(entry, view)

    def _quarantine(self, key: Key, error: BaseException) -> None:
        """Decides nothing for a job for a while; longer each time."""
        namespace, name = key
        log.warning("job skipped by the scheduler", namespace=namespace, job=name, error=excerpt(error))
        entry = self._entries.get(key)
        if entry is None:
            return
        entry.failed(time.monotonic())
        source = entry.view.source if entry.view is not None else None
        if (job := source if source is not None else self._jobs.one(key)) is not None:
            self._events.skipped(job, error, entry.quarantine.delay_s if entry.quarantine is not None else 0.0)

    # -- 2. Decide -----------------------------------------------------------------------------------------------------

    def _without_plan(self, changed: set[Key], configuration: Configuration) -> dict[Key, Target]:
        """The targets of changed jobs for which no plan is needed."""
        now = time.monotonic()
        targets: dict[Key, Target] = {}
        for key in changed:
            entry = self._entries.get(key)
            if entry is None or entry.view is None or entry.quarantined(now):
                continue
            try:
                target = without_plan(entry.view, configuration.profile)
            except Exception as error:
                self._quarantine(key, error)
                continue
            if target is not None:
                targets[key] = target
        return targets

    def _without_profile(self, configuration: Configuration) -> dict[Key, Target]:
        """The targets of the jobs that wait while the profile fails: their reason says so."""
        found = (
            (entry.key, profile_failed(entry.view, configuration.profile)) for entry in self._managed() if entry.view
        )
        return {key: target for key, target in found if target is not None}

    async def _plan(self, configuration: Configuration, changed: set[Key]) -> dict[Key, Target]:
        """The targets that the profile's plan changes. A job that was not in the last plan counts as changed. A job is
        doubtful if the last search had no time for it, or if it changed and is in a suspected namespace."""
        profile = self._profile.of(configuration)
        own = {pod.uid for pod in self._pods} if self._by_uid else set()
        foreign = [pod for pod in self._foreign if pod.uid not in own]
        nodes = {node.name: node for node in sorted(self._loans.usable(), key=lambda node: node.name)}
        cluster = self._loans.cluster(configuration, foreign, self._pods, self._views())
        cluster_rules, marks = self.autoscaling.begin(configuration, foreign)
        leaving = self._notices.leaving
        epoch, now = self._epoch, time.monotonic()
        jobs = {
            f"{entry.key[0]}/{entry.key[1]}": (entry.key, entry.view)
            for entry in self._entries.values()
            if entry.view is not None
        }
        tried = {entry.key: entry for entry in self._managed() if not entry.quarantined(now)}
        changed = changed | {key for key, entry in tried.items() if not entry.planned}
        first = {key for key, entry in tried.items() if entry.not_tried}
        self._suspected = {namespace: until for namespace, until in self._suspected.items() if now < until}
        doubtful = first | {key for key in tried if key in changed and key[0] in self._suspected}

        def plan(considered: Mapping[str, JobView], evolved: Snapshot | None) -> PlannedRound:
            return plan_round(
                considered,
                nodes,
                foreign,
                profile,
                now_s=time.time(),
                previous=evolved,
                history=self._memory.history,
                cluster=cluster,
                cluster_rules=cluster_rules,
                marks=marks,
                leaving=leaving,
            )

        planning = plan_with_fallback(
            plan,
            jobs,
            tried,
            changed=changed,
            doubtful=doubtful,
            first=first,
            previous=self._snapshot,
            raised=self._health.raised,
        )
        self._snapshot = None  # frees memory: the search has the Snapshot, and drops it as soon as it is useless
        planned, failed, not_tried = await planning
        if epoch != self._epoch:
            return {}
        now = time.monotonic()
        self._suspected |= {namespace: now + _SUSPECTED_S for namespace, _ in failed}
        if not_tried:
            self._wake.set()
        self._snapshot, self._plan_made = planned.snapshot, planned.plan
        self._loans.decided(cluster, planned.lent, planned.plan.loans)
        self.autoscaling.decided(planned.plan)
        failed |= {jobs[name][0]: error for name, error in planned.failed.items()}
        for key, error in failed.items():
            self._quarantine(key, error)
        left = frozenset(not_tried)
        for key, entry in self._entries.items():
            entry.not_tried, entry.planned = key in left, False
            if key in tried and key not in left and key not in failed:
                entry.worked(now)
        self._notices.met(planned.plan, planned.targets)
        targets = {jobs[name][0]: target for name, target in planned.targets.items()}
        of_profile = [error for error in failed.values() if isinstance(error, ProfileError)]
        for each in of_profile:
            self._health.raised(each)
        worked = tried.keys() - failed.keys() - left
        skipped = any(entry.quarantine is not None for entry in self._managed())
        if of_profile and not worked:
            self._health.failed(of_profile[0])
            return {**targets, **self._without_profile(configuration)}
        if worked or not skipped:  # a round in which all jobs are skipped proves nothing
            self._health.worked(for_all=not skipped)
        return targets
