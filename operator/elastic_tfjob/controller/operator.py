"""The operator's process: informers fill a queue of jobs, and workers reconcile them while this replica leads."""

import asyncio
import contextlib
import gc
import math
import signal
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal

import aiohttp
import structlog

from elastic_tfjob.controller import LEASE_NAME
from elastic_tfjob.controller.job.decision import Observed, ReconcileSettings, Timeouts
from elastic_tfjob.controller.job.progress import NUMBERS_S
from elastic_tfjob.controller.jobset import JobSets
from elastic_tfjob.controller.kube.autoscaler import AutoscalerDiscovery
from elastic_tfjob.controller.kube.client import ApiClient, in_cluster, load_configuration
from elastic_tfjob.controller.kube.configuration import LearnedHistory, LiveConfiguration
from elastic_tfjob.controller.kube.events import EventRecorder
from elastic_tfjob.controller.kube.executor import Executor
from elastic_tfjob.controller.kube.informer import Caches, Informer
from elastic_tfjob.controller.kube.leader import LeaderElection
from elastic_tfjob.controller.kube.queue import KeyQueue
from elastic_tfjob.controller.kube.reconciler import Reconciler
from elastic_tfjob.controller.kube.reports import Reports, ask_directly, ask_through_proxy, open_session
from elastic_tfjob.controller.kube.startup import PriorityClasses, find_rivals, own_image, own_namespace, own_object
from elastic_tfjob.controller.kube.supervise import Supervisor, collect_less, serve_probes, watch_loop
from elastic_tfjob.controller.model.cluster import ConfigMap, ForeignPod, KubeNode
from elastic_tfjob.controller.model.job import Key, TFJob
from elastic_tfjob.controller.model.owned_objects import DisruptionBudget, NodeOrder, PodGroup, Service
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.settings import Configuration
from elastic_tfjob.controller.query.gate import Auth, gate_of
from elastic_tfjob.controller.query.server import QueryServer, Source
from elastic_tfjob.controller.schedule.loop import Scheduler
from elastic_tfjob.scheduling.profiles import installed_profiles

__all__ = ["Operator", "Options", "run"]

log = structlog.get_logger(__name__)

AnyInformer = (
    Informer[TFJob]
    | Informer[Pod]
    | Informer[Service]
    | Informer[PodGroup]
    | Informer[DisruptionBudget]
    | Informer[NodeOrder]
    | Informer[ConfigMap]
)

# Delay between a pod's report and the reconciliation of its job. It is short because a rescale waits for reports. It is
# not 0, so a report does not shorten the backoff of a job that failed to reconcile (see KeyQueue.add).
_REPORTED_S: Final = 0.005
_STOP_S: Final = 8.0
# Thresholds of the garbage collector, which takes 30 ms per 100,000 objects; Python's defaults are 700, 10, 10.
_THRESHOLDS: Final = (10_000, 10, 10)

EXIT_OK: Final = 0
EXIT_LOST_LEADERSHIP: Final = 1
EXIT_RIVAL: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The operator's options. Addresses are `host:port` (`[host]:port` for IPv6), `:port` for all interfaces of IPv4
    and IPv6, or `0` for no server. `threads` limits the jobs and API requests in flight of one namespace. The limit for
    all namespaces is twice as high, so a slow namespace does not delay the rest."""

    kubeconfig: str | None = None
    namespace: str = ""
    metrics_address: str = ":8080"
    health_address: str = ":8081"
    leader_elect: bool = False
    leader_election_id: str = LEASE_NAME
    leader_election_namespace: str = ""
    gang_scheduler: str = ""
    cluster_domain: str = ""
    threads: int = 32
    qps: float = 0
    burst: int = 0
    take_over: bool = False
    config_map: str = ""
    status_via: Literal["auto", "direct", "proxy"] = "auto"
    image: str = ""
    query_address: str = "0"
    query_auth: Auth = "none"
    query_user_header: str = "kubeflow-userid"
    experience: str = ""
    jobsets: bool = False


async def run(options: Options) -> int:
    """Run the operator until SIGTERM, SIGINT or the loss of leadership. Returns the exit code of the process."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    installed = installed_profiles()
    for name, package in installed.packages.items():
        log.info("installed profile", profile=name, package=package)
    for problem in installed.problems:
        log.error(
            "installed profile is not available", profile=problem.profile, package=problem.package, why=problem.why
        )
    configuration = await load_configuration(options.kubeconfig)
    async with ApiClient(configuration, concurrency=2 * options.threads, qps=options.qps, burst=options.burst) as api:
        rivals = await find_rivals(api, own=own_namespace())
        for rival in rivals:
            log.warning("another controller handles TFJobs", found=rival)
        if rivals and not options.take_over:
            log.error(
                "not started, because two controllers would change the same jobs; use --take-over to start anyway"
            )
            return EXIT_RIVAL
        return await Operator(api, options).run(stop)


class Operator:
    """One replica of the operator."""

    def __init__(self, api: ApiClient, options: Options) -> None:
        self._api = api
        self._options = options
        self._settings = ReconcileSettings(options.gang_scheduler, options.cluster_domain, image=options.image)
        self._queue = KeyQueue(2 * options.threads)
        self._supervisor = Supervisor()
        self._election: LeaderElection | None = None
        if options.leader_elect:
            self._election = LeaderElection(
                api,
                namespace=options.leader_election_namespace or own_namespace(),
                name=options.leader_election_id,
                identity=f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}",
            )
        fenced = api.fenced(self._left_s)
        self._priorities = PriorityClasses(api)
        self._asked_image = asyncio.Event()
        self._leads = False
        self._leads_since = 0.0
        self._caches = Caches.of(
            api,
            namespace=options.namespace,
            gang_scheduler=options.gang_scheduler,
            look_at=self._look_at,
            job_touched=self._job_touched,
            pods_touched=self._pods_touched,
        )
        self._recorder = EventRecorder(api, busy=lambda: len(self._queue) > 0)
        self._live = LiveConfiguration(
            api,
            options.config_map,
            self._recorder,
            self._configured,
            wanted=self._pools_want,
            one_namespace=bool(options.namespace),
        )
        self._session: aiohttp.ClientSession | None = None
        self._reports = Reports(
            self._ask,
            self._caches.pods.of_job,
            self._reported,
            lambda: self._live.current.status,
            # A job that makes progress is reconciled at intervals, only to store its training metrics.
            progressed=partial(self._look_at, after_s=NUMBERS_S),
        )
        self._autoscaler = AutoscalerDiscovery(api)
        self._memory = LearnedHistory(fenced if options.config_map else None, options.config_map.rpartition("/")[0])
        self._scheduler = Scheduler(
            fenced,
            self._caches.jobs,
            self._caches.pods,
            reports=self._reports,
            recorder=self._recorder,
            configuration=lambda: self._live.current,
            namespace=options.namespace,
            priorities=lambda: self._priorities.values,
            memory=self._memory,
            wants=lambda: self._live.wants,
            experience=options.experience,
            barred=lambda: self._executor.refused_pods.jobs,
            profile_failing=self._live.profile_failing,
            orders=lambda: self._caches.orders if self._caches.orders is not None else (),
            autoscaled=lambda: self._autoscaler.present,
        )
        self._executor = Executor(fenced, self._caches, self._recorder, gang_scheduler=options.gang_scheduler)
        self._reconciler = Reconciler(
            api,
            self._caches,
            queue=self._queue,
            executor=self._executor,
            reports=self._reports,
            recorder=self._recorder,
            observe=self._observe,
            settings=lambda: self._settings,
            holds=self._holds,
        )
        self._jobsets: JobSets | None = None
        if options.jobsets:
            self._jobsets = JobSets(
                fenced, self._caches.jobs, self._recorder, namespace=options.namespace, may_write=self._goes_on
            )
        self._query: QueryServer | None = None
        if options.query_address != "0":
            gate = gate_of(options.query_auth, api, lambda: self._live.current.query, options.query_user_header)
            self._query = QueryServer(self._source(), gate)

    def _source(self) -> Source:
        """The objects that the query API reads. Every replica has them, except for pod reports: only the leader polls
        pods."""
        return Source(
            jobs=self._caches.jobs,
            pods=self._caches.pods,
            nodes=self._scheduler.nodes,
            foreign=self._scheduler.foreign,
            configuration=lambda: self._live.current,
            priorities=lambda: self._priorities.values,
            reports=lambda: self._reports.of_job if self._leads else None,
            history=lambda: self._memory.history,
            missing=self._not_read,
            teams=lambda: self._scheduler.teams.teams if self._leads else {},
            given_up=lambda: self._scheduler.autoscaling.given_up if self._leads else (),
        )

    def _not_read(self) -> str:
        extra: list[AnyInformer | Informer[KubeNode] | Informer[ForeignPod]]
        extra = [*self._needed, self._scheduler.nodes, self._scheduler.foreign]
        missing = [informer.resource for informer in extra if not informer.synced.is_set()]
        return f"the operator has not yet read these objects: {', '.join(missing)}" if missing else ""

    @property
    def _informers(self) -> list[AnyInformer]:
        caches = self._caches
        found: list[AnyInformer | None]
        found = [
            caches.jobs,
            caches.pods,
            caches.services,
            caches.pod_groups,
            caches.budgets,
            caches.orders,
            self._live.informer,
        ]
        return [informer for informer in found if informer is not None]

    @property
    def _needed(self) -> list[AnyInformer]:
        """The informers that must be synced before this replica acts. PodDisruptionBudgets are not needed: an operator
        that was upgraded without its new rights cannot read them, and then works without budgets."""
        return [informer for informer in self._informers if informer is not self._caches.budgets]

    def _holds(self) -> bool:
        """Whether this replica may act."""
        return self._election is None or self._election.holds()

    def _left_s(self) -> float:
        """Seconds that a write of this replica may take; infinite without leader election."""
        return math.inf if self._election is None else self._election.left_s()

    def _goes_on(self) -> bool:
        """Whether this replica may act and is not stopping."""
        return self._holds() and not self._reconciler.stopping

    def _look_at(self, key: Key, after_s: float = 0.0) -> None:
        """Queue a job if this replica leads. A standby replica queues nothing, or the keys of deleted jobs would
        accumulate for months; it queues all existing jobs when it becomes the leader."""
        if self._leads:
            self._queue.add(key, after_s)

    def _job_touched(self, key: Key) -> None:
        self._scheduler.touched(key)
        if self._jobsets is not None:
            self._jobsets.touched(key)

    def _pods_touched(self, key: Key) -> None:
        self._reports.pods_changed(key)
        self._scheduler.touched(key)

    def _reported(self, key: Key) -> None:
        self._look_at(key, _REPORTED_S)
        self._scheduler.touched(key)

    def _configured(self, configuration: Configuration) -> None:
        limits = configuration.rescale
        before, self._settings = (
            self._settings,
            replace(
                self._settings,
                wait_for_target=configuration.decides,
                shares_cpu=configuration.shares_cpu,
                all_jobs=configuration.scope == "all",
                resources=configuration.injected.resources,
                memory=configuration.memory.rule,
                timeouts=Timeouts(
                    prepare_s=limits.prepare_timeout_s,
                    checkpoint_s=limits.checkpoint_timeout_s,
                    switch_s=limits.switch_timeout_s,
                    recreate_s=limits.recreate_timeout_s,
                    stop_s=limits.stop_timeout_s,
                ),
            ),
        )
        if self._settings != before:
            self._look_at_all()
        self._scheduler.configured()

    def _pools_want(self) -> None:
        self._scheduler.wake()

    def _look_at_all(self) -> None:
        for key in self._caches.jobs.keys:
            self._look_at(key)

    async def _ask(self, pod: Pod) -> bytes:
        via = self._options.status_via
        if via == "proxy" or (via == "auto" and not in_cluster(self._options.kubeconfig)):
            return await ask_through_proxy(self._api, pod.status_port)(pod)
        assert self._session is not None
        return await ask_directly(self._session, pod.status_port)(pod)

    def _keep(self, name: str, run: Callable[[], Awaitable[object]]) -> asyncio.Task[None]:
        return asyncio.create_task(self._supervisor.keep(name, run), name=name)

    async def run(self, stop: asyncio.Event) -> int:
        """Serve until `stop` is set (0) or leadership is lost (1)."""
        options = self._options
        gc.set_threshold(*_THRESHOLDS)
        serving = serve_probes(
            options.metrics_address,
            options.health_address,
            alive=self._alive,
            ready=self._ready,
            failed=lambda: self._caches.failed_pods() if self._leads else [],
            status=lambda: {"leads": self._leads, **self._live.status()},
        )
        asked = self._query.serve(options.query_address) if self._query is not None else contextlib.nullcontext()
        async with serving, asked, open_session() as self._session:
            background = [self._keep(informer.resource, informer.run) for informer in self._informers]
            background.append(self._keep("events", self._recorder.run))
            background.append(self._keep("loop", watch_loop))
            if self._jobsets is not None:
                background.append(self._keep("jobsets", self._jobsets.informer.run))
            if self._query is not None:
                for informer in (self._scheduler.nodes, self._scheduler.foreign):
                    background.append(self._keep(f"query-{informer.resource}", informer.run))
                background.append(self._keep("query", self._query.run))
            if self._options.gang_scheduler or self._options.config_map or self._query is not None:
                background.append(self._keep("priorities", self._priorities.follow))
            background.append(self._keep("image", self._learn_image))
            background.append(self._keep("own-object", self._learn_own_object))
            lead = asyncio.create_task(self._lead())
            stopped = asyncio.create_task(stop.wait())
            try:
                await asyncio.wait([lead, stopped], return_when=asyncio.FIRST_COMPLETED)
                return EXIT_OK if stop.is_set() else lead.result()
            finally:
                # The tasks that act end first, then the background tasks that they need until the end, such as the
                # writers of events.
                for running in ((lead, stopped), background):
                    for each in running:
                        each.cancel()
                    await asyncio.gather(*running, return_exceptions=True)
                log.info("stopped")

    def _alive(self) -> str:
        stuck = self._supervisor.stuck
        return f"failing repeatedly: {', '.join(stuck)}" if stuck else ""

    def _ready(self) -> str:
        missing = [informer.resource for informer in self._needed if not informer.synced.is_set()]
        return f"not yet read: {', '.join(missing)}" if missing else ""

    async def _lead(self) -> int:
        """Act while this replica leads. Returns the exit code after a loss of leadership. Cancellation stops
        gracefully."""
        election = self._election
        for informer in self._needed:
            await informer.synced.wait()
        await self._asked_image.wait()
        if election is not None:
            self._reconciler.doubt_all(await election.acquire())
        collect_less()
        self._leads, self._leads_since = True, time.monotonic()
        self._look_at_all()
        workers = [self._keep(f"worker-{i}", self._reconciler.work) for i in range(2 * self._options.threads)]
        workers.append(self._keep("reports", self._reports.run))
        workers.append(self._keep("memory", self._memory.keep))
        if self._jobsets is not None:
            workers.append(self._keep("run-jobsets", self._jobsets.run))
        workers.append(self._keep("autoscaler", self._autoscaler.run))
        workers.append(self._keep("budgets", self._look_once_budgets_are_known))
        workers.append(self._keep("scheduler", lambda: self._scheduler.run(self._goes_on)))
        forever: Coroutine[Any, Any, object] = election.keep() if election else asyncio.Event().wait()
        keep = asyncio.create_task(forever)
        try:
            await asyncio.wait([keep])
            self._api.abandon()
            return EXIT_LOST_LEADERSHIP
        except asyncio.CancelledError:
            # Jobs in work are finished, no further job is started, and the lease is held until then.
            self._reconciler.stopping = True
            busy = asyncio.create_task(self._queue.idle())
            await asyncio.wait([busy], timeout=_STOP_S)
            busy.cancel()
            await self._recorder.drain(1.0)
            raise
        finally:
            for task in (keep, *workers):
                task.cancel()
            await asyncio.gather(keep, *workers, return_exceptions=True)
            if election is not None and self._reconciler.stopping:
                await election.release()

    async def _look_once_budgets_are_known(self) -> None:
        budgets = self._caches.budgets
        if budgets is not None and not budgets.synced.is_set():
            await budgets.synced.wait()
            self._look_at_all()
        await asyncio.Event().wait()

    def _observe(self, job: TFJob, now: datetime) -> Observed:
        """The current observation of a job, from the caches."""
        key, groups = job.key, self._caches.pod_groups
        budgets, orders = self._caches.budgets, self._caches.orders
        return Observed(
            job=job,
            now=now,
            pods=self._caches.pods.of_job(key),
            services=self._caches.services.of_job(key),
            pod_group=groups.one(key) if groups is not None else None,
            budget=budgets.one(key) if budgets is not None else None,
            orders=orders.of_job(key) if orders is not None else (),
            admitted=self._scheduler.growth.admitted(job),
            budget_known=budgets is not None and budgets.synced.is_set(),
            priorities=self._priorities.values,
            reports=self._reports.of_job(key),
            listened_s=time.monotonic() - self._leads_since,
            refused=self._executor.refused,
            forecast=partial(self._scheduler.forecast, key),
            refused_pods=self._executor.refused_pods.of_job(job.uid),
            admission=self._executor.admission(job.uid),
            injection=self._executor.trials.found.get(job.uid),
        )

    async def _learn_own_object(self) -> None:
        """Find the operator's own Deployment or pod. Until then, and outside a cluster, only the ConfigMap gets events
        about the configuration."""
        if (own := await own_object(self._api)) is not None:
            self._live.known(own)
        await asyncio.Event().wait()

    async def _learn_image(self) -> None:
        """Find the operator's own image. Until then, and outside a cluster, no launcher is injected."""
        if not self._settings.image and (image := await own_image(self._api, self._asked_image)):
            self._settings = replace(self._settings, image=image)
            self._look_at_all()
        self._asked_image.set()
        await asyncio.Event().wait()
