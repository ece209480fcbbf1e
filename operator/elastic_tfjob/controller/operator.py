"""The operator's process: informers feed a queue of jobs, workers reconcile them while this replica leads."""

import asyncio
import gc
import os
import signal
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Literal

import aiohttp
import structlog

from elastic_tfjob.api.tfjob import CONTROLLER_NAME, OPERATOR_NAME_LABEL
from elastic_tfjob.controller.job.decision import Event, Observed, Settings, Timeouts
from elastic_tfjob.controller.job.gang import group_version
from elastic_tfjob.controller.job.inject import STATUS_PORT
from elastic_tfjob.controller.job.reconcile import reconcile
from elastic_tfjob.controller.job.rescale import NUMBERS_S
from elastic_tfjob.controller.kube import metrics
from elastic_tfjob.controller.kube.client import ApiClient, in_cluster, load_configuration
from elastic_tfjob.controller.kube.configuration import LiveConfiguration
from elastic_tfjob.controller.kube.errors import ApiError, Conflict, Fenced, NotFound, Unavailable
from elastic_tfjob.controller.kube.events import Recorder
from elastic_tfjob.controller.kube.executor import Caches, Executor, jobs_path
from elastic_tfjob.controller.kube.informer import Informer
from elastic_tfjob.controller.kube.leader import LeaderElection
from elastic_tfjob.controller.kube.memory import Memory
from elastic_tfjob.controller.kube.polling import Reports, ask_directly, ask_through_proxy, open_session
from elastic_tfjob.controller.kube.probes import serve_probes
from elastic_tfjob.controller.kube.queue import KeyQueue
from elastic_tfjob.controller.kube.rivals import find_rivals
from elastic_tfjob.controller.kube.supervise import Supervisor, cancels, excerpt, trace, watch_loop
from elastic_tfjob.controller.objects.annotations import STATE_ANNOTATION, State, mine
from elastic_tfjob.controller.objects.cluster import ConfigMap
from elastic_tfjob.controller.objects.observed import Budget, Job, Key, Pod, PodGroup, Service
from elastic_tfjob.controller.objects.settings import Configuration
from elastic_tfjob.controller.schedule.loop import FIXED, Scheduler

__all__ = ["Operator", "Options", "run"]

log = structlog.get_logger(__name__)

AnyInformer = (
    Informer[Job] | Informer[Pod] | Informer[Service] | Informer[PodGroup] | Informer[Budget] | Informer[ConfigMap]
)

# Pods of a job change state together: one look at all of them instead of one for each.
_SETTLE_S: Final = 0.05
# Of what pods report each moment counts for a rescale. But it is no reason to forget that a job has failed, so it is
# for later, however little (see KeyQueue.add).
_REPORTED_S: Final = 0.005
_STOP_S: Final = 8.0
# Of the garbage collector; Python's own are 700, 10, 10. A look at 100,000 objects takes some 30 ms.
_THRESHOLDS: Final = (10_000, 10, 10)
# How long a job waits whose turn came while this replica was not sure to lead.
_NOT_SURE_S: Final = 1.0
_PRIORITIES_S: Final = 60.0
# What the operator does not learn of its own image at the first try it asks for again, later each time.
_IMAGE_S: Final = 1.0
_MAX_IMAGE_S: Final = 60.0
_SELECTOR: Final = f"{OPERATOR_NAME_LABEL}={CONTROLLER_NAME}"
_SERVICE_ACCOUNT_NAMESPACE: Final = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

EXIT_OK: Final = 0
EXIT_LOST_LEADERSHIP: Final = 1
EXIT_RIVAL: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says. Addresses are `host:port` (`[host]:port` for IPv6), `:port` for all interfaces of
    IPv4 and IPv6, or `0` for no server. `threads`: jobs and API requests in flight of one namespace; of all together
    twice as many, so that what one namespace makes slow is not waited for in the others."""

    kubeconfig: str | None = None
    namespace: str = ""
    metrics_address: str = ":8080"
    health_address: str = ":8081"
    leader_elect: bool = False
    leader_election_id: str = "elastic-tfjob-operator"
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


async def run(options: Options) -> int:
    """Run the operator until a signal or the loss of leadership; returns the process's exit code."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    configuration = await load_configuration(options.kubeconfig)
    async with ApiClient(configuration, concurrency=2 * options.threads, qps=options.qps, burst=options.burst) as api:
        rivals = await find_rivals(api)
        for rival in rivals:
            log.warning("another controller of TFJobs", found=rival)
        if rivals and not options.take_over:
            log.error("not started: two controllers would fight over the same jobs; --take-over starts all the same")
            return EXIT_RIVAL
        return await Operator(api, options).run(stop)


class Operator:
    """One replica."""

    def __init__(self, api: ApiClient, options: Options) -> None:
        self._api = api
        self._options = options
        self._settings = Settings(options.gang_scheduler, options.cluster_domain, image=options.image)
        self._queue = KeyQueue(2 * options.threads)
        # Jobs of which a write found nothing there.
        self._doubted: set[Key] = set()
        self._supervisor = Supervisor()
        self._election: LeaderElection | None = None
        if options.leader_elect:
            self._election = LeaderElection(
                api,
                namespace=options.leader_election_namespace or _own_namespace(),
                name=options.leader_election_id,
                identity=f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}",
            )
        fenced = api.fenced(self._holds)
        self._priorities: dict[str, int] = {}
        self._asked_image = asyncio.Event()
        self._stopping = False
        self._leads = False
        self._leads_since = 0.0
        place = f"/namespaces/{options.namespace}" if options.namespace else ""
        settle = partial(self._look_at, after_s=_SETTLE_S)
        groups = None
        if options.gang_scheduler:
            path = f"/apis/{group_version(options.gang_scheduler)}{place}/podgroups"
            groups = Informer(api, path, PodGroup.parse, self._look_at)
        self._caches = Caches(
            jobs=Informer(api, jobs_path(options.namespace), Job.parse, self._look_at, touched=self._job_touched),
            pods=Informer(
                api, f"/api/v1{place}/pods", Pod.parse, settle, selector=_SELECTOR, touched=self._pods_touched
            ),
            services=Informer(
                api,
                f"/api/v1{place}/services",
                Service.parse,
                settle,
                selector=_SELECTOR,
                metadata_only=True,
            ),
            pod_groups=groups,
            budgets=Informer(
                api,
                f"/apis/policy/v1{place}/poddisruptionbudgets",
                Budget.parse,
                settle,
                selector=_SELECTOR,
                metadata_only=True,
            ),
        )
        self._recorder = Recorder(api, busy=lambda: len(self._queue) > 0)
        self._live = LiveConfiguration(api, options.config_map, self._recorder, self._configured)
        self._session: aiohttp.ClientSession | None = None
        self._reports = Reports(
            self._ask,
            self._caches.pods.of_job,
            self._reported,
            lambda: self._live.current.status,
            # Of a job that makes progress the figures are stored now and then; of others there is nothing to look at.
            progressed=partial(self._look_at, after_s=NUMBERS_S),
        )
        self._memory = Memory(fenced if options.config_map else None, options.config_map.rpartition("/")[0])
        self._scheduler = Scheduler(
            fenced,
            self._caches.jobs,
            self._caches.pods,
            reports=self._reports,
            recorder=self._recorder,
            configuration=lambda: self._live.current,
            namespace=options.namespace,
            priorities=lambda: self._priorities,
            memory=self._memory,
        )
        self._executor = Executor(fenced, self._caches, self._recorder, gang_scheduler=options.gang_scheduler)

    @property
    def _informers(self) -> list[AnyInformer]:
        caches = self._caches
        found: list[AnyInformer | None]
        found = [caches.jobs, caches.pods, caches.services, caches.pod_groups, caches.budgets, self._live.informer]
        return [informer for informer in found if informer is not None]

    @property
    def _needed(self) -> list[AnyInformer]:
        """What has to be read before this replica acts. An operator that was upgraded without its rights reads no
        budgets: jobs then have none, and all else goes on."""
        return [informer for informer in self._informers if informer is not self._caches.budgets]

    def _holds(self) -> bool:
        """Whether this replica may act."""
        return self._election is None or self._election.holds()

    def _look_at(self, key: Key, after_s: float = 0.0) -> None:
        """Queue a job. Whoever does not lead looks at all that there are when it does, and not at those gone by then:
        a replica that stands by for months must not remember each."""
        if self._leads:
            self._queue.add(key, after_s)

    def _job_touched(self, key: Key) -> None:
        self._scheduler.touched(key)

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
                wait_for_target=configuration.profile != FIXED,
                all_jobs=configuration.scope == "all",
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

    def _look_at_all(self) -> None:
        for key in self._caches.jobs.keys:
            self._look_at(key)

    async def _ask(self, pod: Pod) -> bytes:
        via = self._options.status_via
        if via == "proxy" or (via == "auto" and not in_cluster(self._options.kubeconfig)):
            return await ask_through_proxy(self._api, STATUS_PORT)(pod)
        assert self._session is not None
        return await ask_directly(self._session, STATUS_PORT)(pod)

    def _keep(self, name: str, run: Callable[[], Awaitable[object]]) -> asyncio.Task[None]:
        return asyncio.create_task(self._supervisor.keep(name, run), name=name)

    async def run(self, stop: asyncio.Event) -> int:
        """Serve until `stop` is set (0) or leadership is lost (1)."""
        options = self._options
        serving = serve_probes(options.metrics_address, options.health_address, alive=self._alive, ready=self._ready)
        async with serving, open_session() as self._session:
            background = [self._keep(informer.resource, informer.run) for informer in self._informers]
            background.append(self._keep("events", self._recorder.run))
            background.append(self._keep("loop", watch_loop))
            if self._options.gang_scheduler or self._options.config_map:
                background.append(self._keep("priorities", self._follow_priorities))
            background.append(self._keep("image", self._learn_image))
            lead = asyncio.create_task(self._lead())
            stopped = asyncio.create_task(stop.wait())
            try:
                await asyncio.wait([lead, stopped], return_when=asyncio.FIRST_COMPLETED)
                return EXIT_OK if stop.is_set() else lead.result()
            finally:
                # First who acts, then what it needs to end in good order: events are written till the last.
                for running in ((lead, stopped), background):
                    for each in running:
                        each.cancel()
                    await asyncio.gather(*running, return_exceptions=True)
                log.info("stopped")

    def _alive(self) -> str:
        stuck = self._supervisor.stuck
        return f"failing again and again: {', '.join(stuck)}" if stuck else ""

    def _ready(self) -> str:
        missing = [informer.resource for informer in self._needed if not informer.synced.is_set()]
        return f"not yet read: {', '.join(missing)}" if missing else ""

    async def _lead(self) -> int:
        """Act as long as this replica leads. Cancellation is the graceful stop."""
        election = self._election
        for informer in self._needed:
            await informer.synced.wait()
        await self._asked_image.wait()
        if election is not None:
            await election.acquire()
        _collect_less()
        self._leads, self._leads_since = True, time.monotonic()
        self._look_at_all()
        workers = [self._keep(f"worker-{i}", self._work) for i in range(2 * self._options.threads)]
        workers.append(self._keep("reports", self._reports.run))
        workers.append(self._keep("memory", self._memory.keep))
        workers.append(self._keep("budgets", self._look_once_budgets_are_known))
        workers.append(
            self._keep("scheduler", lambda: self._scheduler.run(lambda: self._holds() and not self._stopping))
        )
        forever: Coroutine[Any, Any, object] = election.keep() if election else asyncio.Event().wait()
        keep = asyncio.create_task(forever)
        try:
            await asyncio.wait([keep])
            return EXIT_LOST_LEADERSHIP
        except asyncio.CancelledError:
            # What is being done is finished, nothing new is begun, and the lease is held till then.
            self._stopping = True
            busy = asyncio.create_task(self._queue.idle())
            await asyncio.wait([busy], timeout=_STOP_S)
            busy.cancel()
            await self._recorder.drain(1.0)
            raise
        finally:
            for task in (keep, *workers):
                task.cancel()
            await asyncio.gather(keep, *workers, return_exceptions=True)
            if election is not None and self._stopping:
                await election.release()

    async def _look_once_budgets_are_known(self) -> None:
        budgets = self._caches.budgets
        if budgets is not None and not budgets.synced.is_set():
            await budgets.synced.wait()
            self._look_at_all()
        await asyncio.Event().wait()

    async def _work(self) -> None:
        while not self._stopping:
            key = await self._queue.take()
            try:
                if self._stopping:
                    continue
                if self._holds():
                    with metrics.RECONCILE_SECONDS.time():
                        await self._handle(key)
                else:
                    # Of a process that was paused: either the lease is renewed in a moment, or this one ends.
                    self._queue.add(key, _NOT_SURE_S)
            finally:
                self._queue.done(key)
            # A job without anything to write has let nobody else run so far.
            await asyncio.sleep(0)
        await asyncio.Event().wait()

    async def _handle(self, key: Key) -> None:
        """Reconcile one job. Whatever goes wrong with it is reported and tried again, and touches no other job."""
        job = next(iter(self._caches.jobs.of_job(key)), None)
        if job is None:
            self._queue.forget(key)
            self._doubted.discard(key)
            return
        where = {"namespace": job.namespace, "job": job.name}
        try:
            if key in self._doubted:
                # A job that is gone, where a late watch has not said so yet, gets no pods: it raises NotFound here.
                await self._api.get(f"{jobs_path(job.namespace)}/{job.name}")
                self._doubted.discard(key)
            await self._reconcile(job)
            self._queue.succeeded(key)
        except Conflict as error:
            # The watch brings the newer version; this is for the case that it did so already.
            again_s = self._queue.retry(key)
            log.info("conflict", **where, error=str(error), again_in_s=again_s)
        except Fenced as error:
            self._queue.add(key, _NOT_SURE_S)
            log.warning("not written", **where, error=str(error))
        except (Unavailable, NotFound) as error:
            if isinstance(error, NotFound):
                self._doubted.add(key)
            again_s = self._queue.retry(key)
            log.warning("reconcile failed", **where, error=str(error), again_in_s=again_s)
        except ApiError as error:
            again_s = self._queue.retry(key)
            log.error("refused by the API server", **where, error=str(error), again_in_s=again_s)
        except (Exception, asyncio.CancelledError) as error:
            if cancels(error):
                raise
            again_s = self._queue.retry(key)
            metrics.RECONCILE_FAILURES.inc()
            problem = excerpt(error)
            log.error("bug: reconcile failed", **where, error=problem, trace=trace(error), again_in_s=again_s)
            message = f"The operator cannot deal with this job, which stays as it is until that is mended: {problem}"
            self._recorder.record(job, Event("Warning", "ReconcileFailed", message))

    async def _reconcile(self, job: Job) -> None:
        key = job.key
        now = datetime.now(UTC)
        groups, budgets = self._caches.pod_groups, self._caches.budgets
        decision = reconcile(
            Observed(
                job=job,
                now=now,
                pods=self._caches.pods.of_job(key),
                services=self._caches.services.of_job(key),
                pod_group=next(iter(groups.of_job(key)), None) if groups is not None else None,
                budget=next(iter(budgets.of_job(key)), None) if budgets is not None else None,
                budget_known=budgets is not None and budgets.synced.is_set(),
                priorities=self._priorities,
                reports=self._reports.of_job(key),
                listened_s=time.monotonic() - self._leads_since,
                refused=self._executor.refused,
            ),
            self._settings,
        )
        try:
            await self._executor.carry_out(job, decision)
        finally:
            # Whatever failed, the phase may have been stored.
            for newest in self._caches.jobs.of_job(key):
                self._reports.follow(key, _rescaling(newest))
        # Of a job that failed the retry, at most a minute away, calculates this anew.
        if decision.again_at is not None:
            self._queue.add(key, (decision.again_at - now).total_seconds())

    async def _learn_image(self) -> None:
        """Know the image that holds launcher and exporter: that of the operator's own pod, where nobody said another.
        Until it is known, and outside a cluster, no launcher is injected."""
        name, again_s = os.environ.get("POD_NAME"), _IMAGE_S
        while name and not self._settings.image:
            try:
                pod = await self._api.get(f"/api/v1/namespaces/{_own_namespace()}/pods/{name}")
                containers = pod["spec"]["containers"]
                image = str(next((c for c in containers if c["name"] == "operator"), containers[0])["image"])
            except Exception as error:
                log.warning("own image not known; --image says it", error=excerpt(error), again_in_s=again_s)
            else:
                self._settings = replace(self._settings, image=image)
                self._look_at_all()
                break
            # Jobs that need no launcher are not kept waiting.
            self._asked_image.set()
            await asyncio.sleep(again_s)
            again_s = min(2 * again_s, _MAX_IMAGE_S)
        self._asked_image.set()
        await asyncio.Event().wait()

    async def _follow_priorities(self) -> None:
        while True:
            try:
                answer = await self._api.get("/apis/scheduling.k8s.io/v1/priorityclasses")
                self._priorities = {
                    item["metadata"]["name"]: item["value"]
                    for item in answer.get("items") or ()
                    if isinstance(item.get("value"), int)
                }
            except ApiError as error:
                log.warning("priority classes not read", error=str(error))
            await asyncio.sleep(_PRIORITIES_S)


def _collect_less() -> None:
    """Have the garbage collector look at everything less often: with 10,000 jobs that holds the loop for a second.
    What is there by now stays (modules, and caches that refer to nothing but what is in them) and is not looked at."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


def _rescaling(job: Job) -> bool:
    try:
        state = State.parse(job.annotations.get(STATE_ANNOTATION))
    except ValueError:
        return False
    return state is not None and mine(job.annotations, job.uid) and state.rescaling


def _own_namespace() -> str:
    if namespace := os.environ.get("POD_NAMESPACE"):
        return namespace
    if os.path.exists(_SERVICE_ACCOUNT_NAMESPACE):
        with open(_SERVICE_ACCOUNT_NAMESPACE) as file:
            return file.read().strip()
    return "default"
