"""The pods' exporters, asked for their `/status` as often as it matters.

A pod is a tenant's ground. One that does not answer, answers nonsense or points elsewhere costs its own job a report,
its namespace a share of the questions, and nobody else anything.
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

# -- What a pod uses and does, from one answer of its exporter to the next ---------------------------------------------
# Means of cores and steps per second.

# A mean over less than this says nothing: of what is used now, and of what a step costs.
_LEAST_WINDOW_S: Final = 4.0
_LEAST_LATELY_S: Final = 10.0
# Between two readings that are kept: what a pod says of its clock, it may say many times a second.
_APART_S: Final = WINDOW_S / 64
# What a step costs is nearly the same all the time, while what is measured of it in half a minute is not.
_LATELY_S: Final = 120.0


class RollingAverages:
    """Of one pod. `use_cores` is over a window that begins anew where the pod may use more or less; `mean_cores` and
    `mean_steps_per_s` are over the last minutes, in which they go together, what is long ago counting ever less."""

    __slots__ = ("_cpu_s", "_last", "_runs", "_seconds", "_steps", "_used")

    def __init__(self) -> None:
        self._runs: tuple[object, ...] | None = None
        self.clear()

    def clear(self) -> None:
        """Begin anew: what was measured so far is of something else, as of a start."""
        self._used: list[tuple[float, float]] = []
        self._last: tuple[float, float, int] | None = None
        self._seconds = self._cpu_s = self._steps = 0.0

    def take(self, report: Report) -> Report:
        """The report with its means, None where too little is known."""
        runs = report.generation, report.first_step_at, report.steady, report.cpu.limit_cores
        if self._runs != runs:
            self._runs = runs
            self.clear()
        usage_s, at = report.cpu.usage_s, report.cpu.at or report.at
        if usage_s is None:
            return report
        last = self._last
        if last is not None and (at < last[0] or usage_s < last[1]):  # another clock, or another process
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

    def _count(self, at: float, usage_s: float, step: int) -> None:
        if self._last is not None:
            seconds = at - self._last[0]
            kept = math.exp(-seconds / _LATELY_S)
            self._seconds = kept * self._seconds + seconds
            self._cpu_s = kept * self._cpu_s + usage_s - self._last[1]
            self._steps = kept * self._steps + max(0, step - self._last[2])
        self._last = at, usage_s, step


log = structlog.get_logger(__name__)

# Of a job that is being rescaled: the pod that leads the training, and the others.
_CHIEF_S: Final = 0.1
_OTHERS_S: Final = 0.5
_MAX_BACKOFF_S: Final = 60.0
_MAX_FOLLOWED_BACKOFF_S: Final = 2.0
# Of a pod that has never answered, and from which not even a refusal comes: each question costs the whole timeout.
_MAX_SILENT_BACKOFF_S: Final = 10.0
_TIMEOUT_S: Final = 2.0
_PROXY_TIMEOUT_S: Final = 5.0
# Questions in flight; those of one namespace are at most half of them, those of one job so many.
_IN_FLIGHT: Final = 64
_OF_JOB: Final = 16

Ask = Callable[[Pod], Awaitable[bytes]]
"""Gets a pod's `/status`. May raise anything; ApiError, aiohttp.ClientError, TimeoutError and OSError are usual."""


def open_session(headers: Mapping[str, str] | None = None) -> aiohttp.ClientSession:
    """For ask_directly: keeps no cookies, unpacks nothing."""
    return aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False, headers=headers)


def ask_directly(session: aiohttp.ClientSession, port: int) -> Ask:
    """By the pod's own address: for an operator inside the cluster."""
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    headers = {"Accept-Encoding": "identity"}

    async def ask(pod: Pod) -> bytes:
        address = ipaddress.ip_address(pod.ip)  # and nothing else, whoever wrote the pod's status
        if "%" in pod.ip:  # the name of an interface behind it may be anything, a port and a path too
            raise ValueError(f"not a pod's address: {pod.ip[:60]!r}")
        host = f"[{address}]" if address.version == 6 else str(address)
        url = f"http://{host}:{port}/status"
        async with session.get(url, timeout=timeout, headers=headers, allow_redirects=False) as response:
            if response.status != 200:
                raise aiohttp.ClientPayloadError(f"the answer is {response.status}")
            return await read_whole(response, MAX_STATUS_BYTES)

    return ask


def ask_through_proxy(api: ApiClient, port: int) -> Ask:
    """Through the API server: for an operator outside."""

    async def ask(pod: Pod) -> bytes:
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}:{port}/proxy/status"
        return await api.raw(path, _PROXY_TIMEOUT_S, MAX_STATUS_BYTES)

    return ask


class _Source:
    """A pod that is asked. `due` is on the event loop's clock; None: it is not to be asked now. `asked`: it waits for
    its question or for the answer. `silent`: nothing at all came back last time."""

    __slots__ = ("asked", "chief", "due", "failures", "means", "pod", "report", "silent")

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        self.chief = False
        self.due: float | None = None
        self.asked = False
        self.failures = 0
        self.silent = False
        self.report: Report | None = None
        self.means = RollingAverages()

    def take(self, report: Report) -> bool:
        """Keep a new report with its means; whether the program has just made its first step, or the first steps that
        cost more than the others."""
        before, self.report = self.report, self.means.take(report)
        if report.first_step_at is None:
            return False
        return before is None or (before.first_step_at, before.steady) != (report.first_step_at, report.steady)


@dataclass(slots=True)
class _Line:
    """A job's pods that are due: how many have been let through, and those that wait for one of them."""

    through: int = 0
    waiting: deque[_Source] = field(default_factory=deque)


class Reports:
    """The newest Report of each running pod that has an exporter.

    `changed` is called with a job's key when a pod of it says more than plain progress, and `progressed` when the pod
    that leads its training says nothing but that. Questions are spread so that they are never more than
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
        self._counts: Counter[str] = Counter()  # of the pods that are asked, by namespace
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
        """The newest reports of a job's pods, by pod name. They outlive the pod's running, not the pod. Also for other
        threads, while pods come and go."""
        sources = tuple(self._sources.get(key, {}).items())
        return {name: source.report for name, source in sources if source.report is not None}

    def renewed(self) -> set[Key]:
        """The jobs of which a pod has answered since this was asked last."""
        found, self._renewed = self._renewed, set()
        return found

    def follow(self, key: Key, closely: bool = True) -> None:
        """Ask the pods of a job that is being rescaled many times a second, until told otherwise."""
        if closely == (key in self._followed):
            return
        if not closely:
            self._followed.discard(key)
            return
        self._followed.add(key)
        for source in self._sources.get(key, {}).values():
            if source.due is not None:
                self._queue(key, source, 0.0)

    def pods_changed(self, key: Key) -> None:
        """Take in that a job's pods have come, gone or changed."""
        pods = self._pods(key)
        present = {pod.name: pod for pod in pods if pod.exporter}
        sources = self._sources.get(key, {})
        if not present and not sources:
            return
        sources = self._sources.setdefault(key, sources)
        for name in [name for name, source in sources.items() if name not in present]:
            self._stop(sources.pop(name))
        led = any(pod.replica_type in ("chief", "master") for pod in pods)
        for name, pod in present.items():
            source = sources.get(name)
            if source is None or source.pod.uid != pod.uid:
                if source is not None:
                    self._stop(source)
                source = sources[name] = _Source(pod)
            ends = pod.lingers and not source.pod.lingers
            source.pod = pod
            source.chief = (
                pod.replica_type in ("chief", "master") if led else (pod.replica_type, pod.index) == ("worker", 0)
            )
            running = (pod.phase == "Running" or pod.lingers) and bool(pod.ip)
            if running and source.due is None:
                self._counts[key[0]] += 1
                self._queue(key, source, 0.0)
            elif not running:
                self._stop(source)
            elif ends:  # how far it got, while there is an exporter to say it
                self._queue(key, source, 0.0)
        if not sources:
            del self._sources[key]
            self._followed.discard(key)
            self._renewed.discard(key)

    def _stop(self, source: _Source) -> None:
        if source.due is not None:
            source.due = None
            namespace = source.pod.namespace
            self._counts[namespace] -= 1
            if not self._counts[namespace]:
                del self._counts[namespace]

    def _queue(self, key: Key, source: _Source, after_s: float) -> None:
        source.due = asyncio.get_running_loop().time() + after_s
        if (
            not self._asks
        ):  # of a replica that stands by: all are asked when it runs, and pods that are gone by then not
            return
        self._number += 1
        heapq.heappush(self._later, (source.due, self._number, key, source))
        self._wake.set()

    async def run(self) -> None:
        """Ask for ever."""
        self._asks = True
        self._begin_anew()
        async with asyncio.TaskGroup() as group:
            for _ in range(_IN_FLIGHT):
                group.create_task(unending(self._ask_all))
            loop = asyncio.get_running_loop()
            while True:
                self._wake.clear()
                wait_s = self._later[0][0] - loop.time() if self._later else None
                if wait_s is None or wait_s > 0:
                    # Not wait_for, which in Python 3.11 swallows a cancellation that comes together with what it waits
                    # for: the run would then never end.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(wait_s):
                            await self._wake.wait()
                    continue
                due, _, key, source = heapq.heappop(self._later)
                if source.due == due and not source.asked:  # else another entry holds by now
                    source.asked = True
                    line = self._due.setdefault(key, _Line())
                    (line.waiting.appendleft if source.chief else line.waiting.append)(source)
                    self._let_through(key, line)

    def _begin_anew(self) -> None:
        """Forget what an earlier run was about to ask: it is due now."""
        self._due.clear()
        self._questions = FairQueue(_IN_FLIGHT)
        self._later.clear()
        for key, sources in self._sources.items():
            for source in sources.values():
                source.asked = False
                if source.due is not None:
                    self._queue(key, source, 0.0)

    def _let_through(self, key: Key, line: _Line) -> None:
        """Queue as many questions to a job's pods as it may have at a time."""
        while line.waiting and line.through < _OF_JOB:
            line.through += 1
            source = line.waiting.popleft()
            self._questions.add(key[0], (key, source), urgent=source.chief)
        if not line.through:
            del self._due[key]

    async def _ask_all(self) -> None:
        while True:
            # One at a time, so that the rate is shared in the order of the queue.
            async with self._turn:
                namespace, (key, source) = await self._questions.take()
                await self._limit()
            due = source.due
            try:
                if source.due is not None:  # it is still to be asked
                    await self._question(key, source)
            finally:
                source.asked = False
                self._questions.done(namespace)
                line = self._due[key]
                line.through -= 1
                self._let_through(key, line)
            if source.due is not None:  # at once, where it was to be asked again while it was asked
                self._queue(key, source, self._interval_s(key, source) if source.due == due else 0.0)

    async def _limit(self) -> None:
        """Wait until another question keeps to the rate."""
        rate = self._polling().max_requests_per_s
        if rate != self._rate:
            self._rate, self._limiter = rate, AsyncLimiter(rate, 1)
        await self._limiter.acquire()

    async def _question(self, key: Key, source: _Source) -> None:
        """Ask a pod. Whatever goes wrong is this pod's failure and no one else's."""
        before = source.report
        where = {"pod": source.pod.name, "namespace": source.pod.namespace}
        silent = False
        try:
            begins = source.take(Report.parse(await self._ask(source.pod), time.time()))
            if begins and source.chief:  # what the others used until then was for the start
                for other in self._sources.get(key, {}).values():
                    if other is not source:
                        other.means.clear()
        except (ApiError, aiohttp.ClientError, TimeoutError, OSError) as error:
            result, silent = "failed", isinstance(error, TimeoutError) or "TimeoutError" in str(error)
            log.debug("no answer", **where, error=excerpt(error))
        except ValueError as error:
            result = "nonsense"
            log.debug("no report", **where, error=excerpt(error))
        except (Exception, asyncio.CancelledError) as error:
            if cancels(error):
                raise
            result = "nonsense"
            log.warning(
                "no report, for a reason that nobody thought of", **where, error=excerpt(error), trace=trace(error)
            )
        else:
            result = "ok"
        source.silent = silent
        source.failures = 0 if result == "ok" else source.failures + 1
        metrics.STATUS_REQUESTS.labels(result).inc()
        after = source.report
        if source.due is None or after is None or after is before:
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
            # So many pods of one namespace are asked in each interval, however many it has.
            share = fair_share(self._counts.values(), limits.max_requests_per_s * limits.interval_s)
            base_s = limits.interval_s * max(1.0, self._counts[key[0]] / share)
        if not followed:
            longest_s = max(_MAX_BACKOFF_S, base_s)
        elif source.silent and source.report is None:
            longest_s = _MAX_SILENT_BACKOFF_S
        else:
            longest_s = _MAX_FOLLOWED_BACKOFF_S
        return min(base_s * 2.0 ** min(source.failures, 10), longest_s)
