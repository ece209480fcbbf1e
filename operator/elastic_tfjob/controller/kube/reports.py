"""Polls `/status` of the pods' exporters, more often while a job is being rescaled.

Pods are not trusted. A pod that does not answer, sends an invalid answer or redirects costs its own job a report and
its namespace a share of the requests; it does not affect other namespaces.
"""

import asyncio
import contextlib
import heapq
import ipaddress
import math
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import aiohttp
import structlog
from aiolimiter import AsyncLimiter

from elastic_tfjob.api.reading import MAX_STATUS_BYTES
from elastic_tfjob.controller.kube import metrics
from elastic_tfjob.controller.kube.client import ApiClient, read_whole
from elastic_tfjob.controller.kube.errors import ApiError
from elastic_tfjob.controller.kube.queue import FairQueue, fair_share
from elastic_tfjob.controller.kube.supervise import cancels, excerpt, trace, unending
from elastic_tfjob.controller.model.job import Key
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.reports import WINDOW_S, Report
from elastic_tfjob.controller.model.settings import StatusPolling

__all__ = ["Reports", "RollingAverages", "ask_directly", "ask_through_proxy", "open_session"]

# -- Rolling averages of CPU use and speed from successive answers of an exporter --------------------------------------
# In cores, and in steps per second.

# Shorter spans give no usable average: the first of the current CPU use, the second of the CPU cost of a step.
_LEAST_WINDOW_S: Final = 4.0
_LEAST_LATELY_S: Final = 10.0
# Minimum distance of two stored readings by the pod's clock: their number is bounded however often the pod is polled.
_APART_S: Final = WINDOW_S / 64
# Time constant of the exponential averages. The CPU cost of a step is nearly constant, but its measurement over half a
# minute is not.
_LATELY_S: Final = 120.0


class RollingAverages:
    """Averages of one pod. `use_cores` covers a window of up to WINDOW_S seconds. `mean_cores` and `mean_steps_per_s`
    are exponential averages over the last minutes, both of the same period. All restart when the pod's conditions
    change: its generation, its first step, the end of its first slow steps or its CPU limit."""

    __slots__ = ("_cpu_s", "_last", "_runs", "_seconds", "_steps", "_used")

    def __init__(self) -> None:
        self._runs: tuple[object, ...] | None = None
        self.clear()

    def clear(self) -> None:
        """Discard all readings, because they describe different conditions, such as the start of the program."""
        self._used: list[tuple[float, float]] = []
        self._last: tuple[float, float, int] | None = None
        self._seconds = self._cpu_s = self._steps = 0.0

    def take(self, report: Report) -> Report:
        """The report with its averages; an average is None if the readings cover too short a time."""
        runs = report.generation, report.first_step_at, report.steady, report.cpu.limit_cores
        if self._runs != runs:
            self._runs = runs
            self.clear()
        usage_s, at = report.cpu.usage_s, report.cpu.at or report.at
        if usage_s is None:
            return report
        last = self._last
        if last is not None and (at < last[0] or usage_s < last[1]):  # a different clock or process
            self.clear()
            last = None
        used = self._used
        if last is None or at > last[0]:
            if not used or at >= used[-1][0] + _APART_S:
                used.append((at, usage_s))
            self._count(at, usage_s, report.step or 0)
        old = 0
        while len(used) > old + 2 and used[old + 1][0] <= at - WINDOW_S:
            old += 1
        del used[:old]
        span_s = at - used[0][0]
        cores = (usage_s - used[0][1]) / span_s if span_s >= _LEAST_WINDOW_S else None
        lately = self._seconds >= _LEAST_LATELY_S
        return replace(
            report,
            cpu=replace(report.cpu, use_cores=cores),
            mean_cores=self._cpu_s / self._seconds if lately else None,
            mean_steps_per_s=self._steps / self._seconds if lately else None,
        )

    def _count(self, at_s: float, usage_s: float, step: int) -> None:
        if self._last is not None:
            seconds = at_s - self._last[0]
            kept = math.exp(-seconds / _LATELY_S)
            self._seconds = kept * self._seconds + seconds
            self._cpu_s = kept * self._cpu_s + usage_s - self._last[1]
            self._steps = kept * self._steps + max(0, step - self._last[2])
        self._last = at_s, usage_s, step


log = structlog.get_logger(__name__)

# Polling intervals of a job that is being rescaled: of the pod that leads its training, and of its other pods.
_CHIEF_S: Final = 0.1
_OTHERS_S: Final = 0.5
# Least polling interval of a pod whose memory grows towards its limit.
_FAST_S: Final = 1.0
_MAX_BACKOFF_S: Final = 60.0
_MAX_FOLLOWED_BACKOFF_S: Final = 2.0
# For a pod that has never answered and does not even refuse the connection: each request costs the whole timeout.
_MAX_SILENT_BACKOFF_S: Final = 10.0
_TIMEOUT_S: Final = 2.0
_PROXY_TIMEOUT_S: Final = 5.0
# Requests in flight of all jobs and of one job. One namespace gets at most half of the total.
_IN_FLIGHT: Final = 64
_OF_JOB: Final = 16

Ask = Callable[[Pod], Awaitable[bytes]]
"""Fetches `/status` of a pod as bytes. May raise any error, usually ApiError, aiohttp.ClientError, TimeoutError or
OSError."""


def open_session(headers: Mapping[str, str] | None = None) -> aiohttp.ClientSession:
    """A session for ask_directly: it keeps no cookies and decompresses nothing."""
    return aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False, headers=headers)


def ask_directly(session: aiohttp.ClientSession, port: int) -> Ask:
    """Polls pods at their own address, for an operator inside the cluster."""
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    headers = {"Accept-Encoding": "identity"}

    async def ask(pod: Pod) -> bytes:
        address = ipaddress.ip_address(pod.ip)  # rejects anything but an address: pod status is not trusted
        if "%" in pod.ip:  # an IPv6 zone may contain any text, also a port and a path
            raise ValueError(f"not a pod's address: {pod.ip[:60]!r}")
        host = f"[{address}]" if address.version == 6 else str(address)
        url = f"http://{host}:{port}/status"
        async with session.get(url, timeout=timeout, headers=headers, allow_redirects=False) as response:
            if response.status != 200:
                raise aiohttp.ClientPayloadError(f"the answer is {response.status}")
            return await read_whole(response, MAX_STATUS_BYTES)

    return ask


def ask_through_proxy(api: ApiClient, port: int) -> Ask:
    """Polls pods through the API server's proxy, for an operator outside the cluster."""

    async def ask(pod: Pod) -> bytes:
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}:{port}/proxy/status"
        return await api.raw(path, _PROXY_TIMEOUT_S, MAX_STATUS_BYTES)

    return ask


class _Source:
    """A polled pod. `due_s` is the time of its next request on the event loop's clock, None if it is not polled now.
    `asked` is True while its request is queued or in flight, `silent` if the last request timed out."""

    __slots__ = ("asked", "chief", "due_s", "failures", "means", "pod", "report", "silent")

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        self.chief = False
        self.due_s: float | None = None
        self.asked = False
        self.failures = 0
        self.silent = False
        self.report: Report | None = None
        self.means = RollingAverages()

    def take(self, report: Report) -> bool:
        """Store a new report with its averages. Returns whether the program has just completed its first step, or the
        slow steps that follow a start."""
        before, self.report = self.report, self.means.take(report)
        if report.first_step_at is None:
            return False
        return before is None or (before.first_step_at, before.steady) != (report.first_step_at, report.steady)


@dataclass(slots=True)
class _Line:
    """A job's pods that are due: `through` counts its requests queued or in flight, `waiting` has the other pods."""

    through: int = 0
    waiting: deque[_Source] = field(default_factory=deque)


class Reports:
    """The newest Report of each running pod with an exporter.

    `changed` is called with a job's key when a report of one of its pods has news other than progress; `progressed` is
    called when the pod that leads its training reports only progress. The request rate never exceeds
    `polling().max_requests_per_s`.
    """

    def __init__(
        self,
        ask: Ask,
        pods: Callable[[Key], tuple[Pod, ...]],
        changed: Callable[[Key], None],
        polling: Callable[[], StatusPolling],
        progressed: Callable[[Key], None] = lambda _: None,
    ) -> None:
        self._ask = ask
        self._progressed = progressed
        self._pods = pods
        self._changed = changed
        self._polling = polling
        self._sources: dict[Key, dict[str, _Source]] = {}
        self._counts: Counter[str] = Counter()  # number of polled pods by namespace
        self._followed: set[Key] = set()
        self._renewed: set[Key] = set()
        self._later: list[tuple[float, int, Key, _Source]] = []
        self._due: dict[Key, _Line] = {}
        self._questions: FairQueue[tuple[Key, _Source]] = FairQueue(_IN_FLIGHT)
        self._number = 0
        self._asks = False
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()
        self._rate = 1.0
        self._limiter = AsyncLimiter(1, 1)

    def of_job(self, key: Key) -> Mapping[str, Report]:
        """The newest reports of a job's pods, by pod name. A report stays until its pod is deleted, also after the pod
        has ended. May be called in a thread while pods change."""
        sources = tuple(self._sources.get(key, {}).items())
        return {name: source.report for name, source in sources if source.report is not None}

    def renewed(self) -> set[Key]:
        """The jobs whose pods have sent a report since the last call."""
        found, self._renewed = self._renewed, set()
        return found

    def follow(self, key: Key, closely: bool = True) -> None:
        """Poll the pods of a job that is being rescaled several times per second, until called with `closely=False`."""
        if closely == (key in self._followed):
            return
        if not closely:
            self._followed.discard(key)
            return
        self._followed.add(key)
        for source in self._sources.get(key, {}).values():
            if source.due_s is not None:
                self._queue(key, source, 0.0)

    def pods_changed(self, key: Key) -> None:
        """Update the polled pods of a job after its pods have changed."""
        pods = self._pods(key)
        present = {pod.name: pod for pod in pods if pod.exporter}
        sources = self._sources.get(key, {})
        if not present and not sources:
            return
        sources = self._sources.setdefault(key, sources)
        for name in [name for name, source in sources.items() if name not in present]:
            self._stop(sources.pop(name))
        for name, pod in present.items():
            source = sources.get(name)
            if source is None or source.pod.uid != pod.uid:
                if source is not None:
                    self._stop(source)
                source = sources[name] = _Source(pod)
            ends = pod.lingers and not source.pod.lingers
            source.pod = pod
            source.chief = pod.leads
            running = (pod.phase == "Running" or pod.lingers) and bool(pod.ip)
            if running and source.due_s is None:
                self._counts[key[0]] += 1
                self._queue(key, source, 0.0)
            elif not running:
                self._stop(source)
            elif ends:  # get the last step while the exporter still runs
                self._queue(key, source, 0.0)
        if not sources:
            del self._sources[key]
            self._followed.discard(key)
            self._renewed.discard(key)

    def _stop(self, source: _Source) -> None:
        if source.due_s is not None:
            source.due_s = None
            namespace = source.pod.namespace
            self._counts[namespace] -= 1
            if not self._counts[namespace]:
                del self._counts[namespace]

    def _queue(self, key: Key, source: _Source, after_s: float) -> None:
        source.due_s = asyncio.get_running_loop().time() + after_s
        # A standby replica queues nothing: when it starts to poll, it queues all pods that exist then.
        if not self._asks:
            return
        self._number += 1
        heapq.heappush(self._later, (source.due_s, self._number, key, source))
        self._wake.set()

    async def run(self) -> None:
        """Poll without end."""
        self._asks = True
        self._restart()
        async with asyncio.TaskGroup() as group:
            for _ in range(_IN_FLIGHT):
                group.create_task(unending(self._ask_all))
            loop = asyncio.get_running_loop()
            while True:
                self._wake.clear()
                wait_s = self._later[0][0] - loop.time() if self._later else None
                if wait_s is None or wait_s > 0:
                    # wait_for in Python 3.11 swallows a cancellation that arrives at the moment its awaitable ends, so
                    # this task would never end.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(wait_s):
                            await self._wake.wait()
                    continue
                due, _, key, source = heapq.heappop(self._later)
                if source.due_s == due and not source.asked:  # otherwise a newer entry replaces this one
                    source.asked = True
                    line = self._due.setdefault(key, _Line())
                    (line.waiting.appendleft if source.chief else line.waiting.append)(source)
                    self._let_through(key, line)

    def _restart(self) -> None:
        """Discard the queues of an earlier run; all polled pods are due now."""
        self._due.clear()
        self._questions = FairQueue(_IN_FLIGHT)
        self._later.clear()
        for key, sources in self._sources.items():
            for source in sources.values():
                source.asked = False
                if source.due_s is not None:
                    self._queue(key, source, 0.0)

    def _let_through(self, key: Key, line: _Line) -> None:
        """Queue requests to a job's pods, up to the limit per job."""
        while line.waiting and line.through < _OF_JOB:
            line.through += 1
            source = line.waiting.popleft()
            self._questions.add(key[0], (key, source), urgent=source.chief)
        if not line.through:
            del self._due[key]

    async def _ask_all(self) -> None:
        while True:
            # One task at a time, so that the rate limit admits requests in the order of the queue.
            async with self._turn:
                namespace, (key, source) = await self._questions.take()
                await self._limit()
            due = source.due_s
            try:
                if source.due_s is not None:  # it is still polled
                    await self._question(key, source)
            finally:
                source.asked = False
                self._questions.done(namespace)
                line = self._due[key]
                line.through -= 1
                self._let_through(key, line)
            if source.due_s is not None:  # at once if another request was queued during this one
                self._queue(key, source, self._interval_s(key, source) if source.due_s == due else 0.0)

    async def _limit(self) -> None:
        """Wait until the rate limit permits another request."""
        rate = self._polling().max_requests_per_s
        if rate != self._rate:
            self._rate, self._limiter = rate, AsyncLimiter(rate, 1)
        await self._limiter.acquire()

    async def _question(self, key: Key, source: _Source) -> None:
        """Poll a pod. An error counts as a failure of this pod and does not affect other pods."""
        before = source.report
        where = {"pod": source.pod.name, "namespace": source.pod.namespace}
        silent = False
        try:
            begins = source.take(Report.parse(await self._ask(source.pod), time.time()))
            if begins and source.chief:  # earlier CPU use of the other pods belongs to the start
                for other in self._sources.get(key, {}).values():
                    if other is not source:
                        other.means.clear()
        except (ApiError, aiohttp.ClientError, TimeoutError, OSError) as error:
            result, silent = "failed", isinstance(error, TimeoutError) or "TimeoutError" in str(error)
            log.debug("no answer", **where, error=excerpt(error))
        except ValueError as error:
            result = "nonsense"
            log.debug("report not valid", **where, error=excerpt(error))
        except (Exception, asyncio.CancelledError) as error:
            if cancels(error):
                raise
            result = "nonsense"
            log.warning("unexpected error in a pod's report", **where, error=excerpt(error), trace=trace(error))
        else:
            result = "ok"
        source.silent = silent
        source.failures = 0 if result == "ok" else source.failures + 1
        metrics.STATUS_REQUESTS.labels(result).inc()
        after = source.report
        if source.due_s is None or after is None or after is before:
            return
        self._renewed.add(key)
        if before is None or before.news != after.news:
            self._changed(key)
        elif source.chief and (before.step, before.steps_per_s) != (after.step, after.steps_per_s):
            self._progressed(key)

    def _interval_s(self, key: Key, source: _Source) -> float:
        limits = self._polling()
        followed = key in self._followed
        if followed:
            base_s = _CHIEF_S if source.chief else _OTHERS_S
        else:
            # Pods of one namespace that are polled per interval, however many it has.
            share = fair_share(self._counts.values(), limits.max_requests_per_s * limits.interval_s)
            fast = source.report is not None and source.report.memory.changes_fast
            least_s = min(limits.interval_s, max(_FAST_S, limits.interval_s / 5)) if fast else limits.interval_s
            base_s = max(least_s, limits.interval_s * self._counts[key[0]] / share)
        if not followed:
            longest_s = max(_MAX_BACKOFF_S, base_s)
        elif source.silent and source.report is None:
            longest_s = _MAX_SILENT_BACKOFF_S
        else:
            longest_s = _MAX_FOLLOWED_BACKOFF_S
        return min(base_s * 2.0 ** min(source.failures, 10), longest_s)
