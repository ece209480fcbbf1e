"""What the pods say of themselves: the exporters' `/status`, as Reports, asked for as often as it matters.

A pod is the user's ground, so what comes from there is never trusted to be well-formed: an answer that is not what the
pod contract says is no report.
"""

import asyncio
import contextlib
import heapq
import json
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeVar, cast, get_args

import aiohttp
import structlog
from aiolimiter import AsyncLimiter

from elastic_tfjob.api.configuration import StatusPolling
from elastic_tfjob.controller import metrics
from elastic_tfjob.controller.client import ApiClient, ApiError
from elastic_tfjob.controller.observed import Key, Pod

__all__ = [
    "Checkpoint",
    "CpuUse",
    "MemoryUse",
    "Prepared",
    "Report",
    "Reports",
    "Switch",
    "ask_directly",
    "ask_through_proxy",
]

log = structlog.get_logger(__name__)

# Of a job that is being rescaled: the pod that leads the training, and the others.
_CHIEF_S: Final = 0.1
_OTHERS_S: Final = 0.5
_MAX_BACKOFF_S: Final = 60.0
_MAX_FOLLOWED_BACKOFF_S: Final = 2.0
_TIMEOUT_S: Final = 2.0
_PROXY_TIMEOUT_S: Final = 5.0
_IN_FLIGHT: Final = 64
_LARGEST: Final = 64 * 1024
# CPU use is a mean over so long: a training step's ups and downs are no news.
_WINDOW_S: Final = 30.0
_LEAST_WINDOW_S: Final = 4.0
# After a generation's first step: earlier, a speed says more about the start than about the size.
_SPEED_WINDOW_S: Final = 5.0

PreparedState = Literal["starting", "ready", "failed"]
SwitchState = Literal["saving", "committed", "refused"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prepared:
    """The program of a coming generation, started beside the one that runs. `why` tells what failed."""

    generation: int
    mode: str
    state: PreparedState
    why: str = ""


@dataclass(frozen=True, slots=True)
class Switch:
    """How far the chief's launcher is with handing over to a generation. `at` is Unix time on the pod's clock."""

    generation: int
    state: SwitchState
    why: str = ""
    at: float | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The newest complete checkpoint. `at`: Unix time; `seconds`: how long saving took; `bytes`: its size."""

    step: int | None = None
    at: float | None = None
    seconds: float | None = None
    bytes: int | None = None
    path: str = ""


@dataclass(frozen=True, slots=True)
class CpuUse:
    """CPU of the training container: seconds used and throttled since it started; cores it may use, and uses: from
    Reports, that is a mean over up to half a minute in which it ran the same with the same limit, None before. `at` is
    the Unix time of these figures on the pod's clock."""

    at: float | None = None
    usage_s: float | None = None
    throttled_s: float | None = None
    limit_cores: float | None = None
    use_cores: float | None = None


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory of the training container."""

    used_bytes: int | None = None
    limit_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """One pod's `/status`. None stands for what the pod does not know.

    `at`, `first_step_at`, `last_step_at` are Unix times on the pod's clock, which may be wrong; `received_at` is ours.
    `first_step_at` is of this generation's first step. `downtime_s` and `lost_steps` are of the last switch or restart.
    """

    at: float
    generation: int | None = None
    launcher: bool = False
    modes: tuple[str, ...] = ()
    prepared: Prepared | None = None
    switch: Switch | None = None
    step: int | None = None
    total_steps: int | None = None
    steps_per_s: float | None = None
    examples_per_s: float | None = None
    loss: float | None = None
    first_step_at: float | None = None
    last_step_at: float | None = None
    downtime_s: float | None = None
    lost_steps: int | None = None
    checkpoint: Checkpoint | None = None
    cpu: CpuUse = CpuUse()
    memory: MemoryUse = MemoryUse()
    received_at: float = 0.0

    @classmethod
    def parse(cls, text: bytes | str, received_at: float = 0.0) -> "Report":
        """Read a `/status` answer. Unknown keys are passed over and missing ones are None, as is a number that is not
        finite (a loss that diverged). Raises ValueError that names the first value of a wrong type."""
        # The json of the standard library: it reads NaN, which a training program's numbers may well be.
        try:
            raw = _Fields(json.loads(text))
        except RecursionError:
            raise ValueError("the answer is nested too deeply") from None
        return cls(
            at=raw.number("at") or 0.0,
            generation=raw.integer("generation"),
            launcher=raw.of(bool, "launcher") or False,
            modes=tuple(str(mode) for mode in raw.of(list, "modes") or ()),
            prepared=_prepared(raw.within("prepared")),
            switch=_switch(raw.within("switch")),
            step=raw.integer("step"),
            total_steps=raw.integer("total_steps"),
            steps_per_s=raw.number("steps_per_s"),
            examples_per_s=raw.number("examples_per_s"),
            loss=raw.number("loss"),
            first_step_at=raw.number("first_step_at"),
            last_step_at=raw.number("last_step_at"),
            downtime_s=raw.number("downtime_s"),
            lost_steps=raw.integer("lost_steps", least=None),
            checkpoint=_checkpoint(raw.within("checkpoint")),
            cpu=_cpu(raw.within("cpu")),
            memory=_memory(raw.within("memory")),
            received_at=received_at,
        )

    @property
    def news(self) -> tuple[object, ...]:
        """All but plain progress: while this stays the same there is nothing to decide."""
        return (
            self.generation,
            self.launcher,
            self.modes,
            self.prepared,
            self.switch,
            self.total_steps,
            self.first_step_at,
            self.downtime_s,
            self.lost_steps,
        )

    def speed_of(self, generation: int | None) -> float | None:
        """Steps per second of this generation, once it has trained for so long that they tell how fast its size is."""
        if self.generation != generation or self.first_step_at is None:
            return None
        return self.steps_per_s if (self.last_step_at or 0.0) - self.first_step_at >= _SPEED_WINDOW_S else None


class _Fields:
    """Typed access to an object of JSON. Every method gives None for a key that is missing or null."""

    def __init__(self, raw: object, place: str = "") -> None:
        if not isinstance(raw, dict):
            raise ValueError(f"{place or 'the answer'} is not an object: {_excerpt(raw)}")
        self._raw: dict[str, Any] = raw
        self._place = f"{place}." if place else ""

    def of(self, kind: type[T], name: str) -> T | None:
        value = self._raw.get(name)
        if value is None or type(value) is kind:
            return value
        raise self._wrong(name, kind.__name__)

    def within(self, name: str) -> "_Fields | None":
        value = self._raw.get(name)
        return None if value is None else _Fields(value, self._place + name)

    def number(self, name: str) -> float | None:
        value = self._raw.get(name)
        if value is None:
            return None
        if type(value) not in (int, float):
            raise self._wrong(name, "number")
        try:
            number = float(value)
        except OverflowError:
            return None
        return number if math.isfinite(number) else None

    def integer(self, name: str, *, least: int | None = 0) -> int | None:
        number = self.number(name)
        if number is None:
            return None
        if number != int(number) or (least is not None and number < least):
            raise self._wrong(name, "whole number" + ("" if least is None else f" from {least} up"))
        return int(number)

    def required_integer(self, name: str) -> int:
        if (found := self.integer(name)) is None:
            raise self._wrong(name, "whole number")
        return found

    def word(self, name: str, allowed: tuple[str, ...]) -> str:
        found = self._raw.get(name)
        if found not in allowed:
            raise self._wrong(name, " or ".join(allowed))
        return cast("str", found)

    def _wrong(self, name: str, wanted: str) -> ValueError:
        return ValueError(f"{self._place}{name} is not a {wanted}: {_excerpt(self._raw.get(name))}")


def _excerpt(value: object) -> str:
    return repr(value)[:60]


def _prepared(raw: _Fields | None) -> Prepared | None:
    if raw is None:
        return None
    return Prepared(
        raw.required_integer("generation"),
        raw.of(str, "mode") or "",
        cast("PreparedState", raw.word("state", get_args(PreparedState))),
        raw.of(str, "why") or "",
    )


def _switch(raw: _Fields | None) -> Switch | None:
    if raw is None:
        return None
    return Switch(
        raw.required_integer("generation"),
        cast("SwitchState", raw.word("state", get_args(SwitchState))),
        raw.of(str, "why") or "",
        raw.number("at"),
    )


def _checkpoint(raw: _Fields | None) -> Checkpoint | None:
    if raw is None:
        return None
    return Checkpoint(
        raw.integer("step"),
        raw.number("at"),
        raw.number("seconds"),
        raw.integer("bytes"),
        raw.of(str, "path") or "",
    )


def _cpu(raw: _Fields | None) -> CpuUse:
    if raw is None:
        return CpuUse()
    return CpuUse(*(raw.number(name) for name in ("at", "usage_s", "throttled_s", "limit_cores", "use_cores")))


def _memory(raw: _Fields | None) -> MemoryUse:
    return MemoryUse() if raw is None else MemoryUse(raw.integer("used_bytes"), raw.integer("limit_bytes"))


Ask = Callable[[Pod], Awaitable[bytes]]
"""Gets a pod's `/status`. Raises ApiError, aiohttp.ClientError, TimeoutError or OSError."""


def ask_directly(session: aiohttp.ClientSession, port: int) -> Ask:
    """By the pod's own address: for an operator inside the cluster."""
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)

    async def ask(pod: Pod) -> bytes:
        host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
        async with session.get(f"http://{host}:{port}/status", timeout=timeout) as response:
            response.raise_for_status()
            return await response.content.read(_LARGEST)

    return ask


def ask_through_proxy(api: ApiClient, port: int) -> Ask:
    """Through the API server: for an operator outside."""

    async def ask(pod: Pod) -> bytes:
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}:{port}/proxy/status"
        return await api.raw(path, _PROXY_TIMEOUT_S)

    return ask


class _Source:
    """A pod that is asked. `due` is on the event loop's clock; None: it is not to be asked now."""

    __slots__ = ("asked", "chief", "due", "failures", "pod", "report", "used")

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        self.chief = False
        self.due: float | None = None
        self.asked = False
        self.failures = 0
        self.report: Report | None = None
        self.used: deque[tuple[float, float]] = deque()

    def take(self, report: Report) -> None:
        """Keep a new report, with CPU use averaged over the window."""
        if self.report is not None and _runs(self.report) != _runs(report):
            self.used.clear()
        usage_s, at = report.cpu.usage_s, report.cpu.at or report.at
        if usage_s is not None:
            used = self.used
            if used and (at < used[-1][0] or usage_s < used[-1][1]):  # another clock, or another process
                used.clear()
            if not used or at > used[-1][0]:
                used.append((at, usage_s))
            while len(used) > 2 and used[1][0] <= at - _WINDOW_S:
                used.popleft()
            span_s = at - used[0][0]
            cores = (usage_s - used[0][1]) / span_s if span_s >= _LEAST_WINDOW_S else None
            report = replace(report, cpu=replace(report.cpu, use_cores=cores))
        self.report = report


def _runs(report: Report) -> tuple[object, ...]:
    """What CPU use depends on: while it stays the same, a mean makes sense."""
    return report.generation, report.first_step_at, report.cpu.limit_cores


class Reports:
    """The newest Report of each running pod that has an exporter.

    `changed` is called with a job's key when a pod of it says more than plain progress. Questions are spread so that
    they are never more than `polling().max_requests_per_s`.
    """

    def __init__(
        self,
        ask: Ask,
        pods: Callable[[Key], tuple[Pod, ...]],
        changed: Callable[[Key], None],
        polling: Callable[[], StatusPolling],
    ) -> None:
        self._ask = ask
        self._pods = pods
        self._changed = changed
        self._polling = polling
        self._sources: dict[Key, dict[str, _Source]] = {}
        self._count = 0
        self._followed: set[Key] = set()
        self._line: list[tuple[float, int, Key, _Source]] = []
        self._number = 0
        self._wake = asyncio.Event()

    def of_job(self, key: Key) -> Mapping[str, Report]:
        """The newest reports of a job's pods, by pod name. They outlive the pod's running, not the pod."""
        sources = self._sources.get(key, {})
        return {name: source.report for name, source in sources.items() if source.report is not None}

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
            source.pod = pod
            source.chief = (
                pod.replica_type in ("chief", "master") if led else (pod.replica_type, pod.index) == ("worker", 0)
            )
            running = pod.phase == "Running" and bool(pod.ip)
            if running and source.due is None:
                self._count += 1
                self._queue(key, source, 0.0)
            elif not running:
                self._stop(source)
        if not sources:
            del self._sources[key]
            self._followed.discard(key)

    def _stop(self, source: _Source) -> None:
        if source.due is not None:
            source.due = None
            self._count -= 1

    def _queue(self, key: Key, source: _Source, after_s: float) -> None:
        source.due = asyncio.get_running_loop().time() + after_s
        self._number += 1
        heapq.heappush(self._line, (source.due, self._number, key, source))
        self._wake.set()

    async def run(self) -> None:
        """Ask for ever."""
        limits = self._polling()
        limiter = AsyncLimiter(limits.max_requests_per_s, 1)
        slots = asyncio.Semaphore(_IN_FLIGHT)
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                wait_s = self._line[0][0] - loop.time() if self._line else None
                if wait_s is None or wait_s > 0:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._wake.wait(), wait_s)
                    continue
                due, _, key, source = heapq.heappop(self._line)
                if source.due != due or source.asked:  # another entry of the queue holds by now
                    continue
                if self._polling() != limits:
                    limits = self._polling()
                    limiter = AsyncLimiter(limits.max_requests_per_s, 1)
                await limiter.acquire()
                await slots.acquire()
                source.asked = True
                task = group.create_task(self._question(key, source))
                task.add_done_callback(lambda _: slots.release())

    async def _question(self, key: Key, source: _Source) -> None:
        before = source.report
        try:
            source.take(Report.parse(await self._ask(source.pod), time.time()))
            source.failures = 0
            metrics.STATUS_REQUESTS.labels("ok").inc()
        except ValueError as error:
            source.failures += 1
            metrics.STATUS_REQUESTS.labels("nonsense").inc()
            log.debug("no report", pod=source.pod.name, namespace=source.pod.namespace, error=str(error))
        except (ApiError, aiohttp.ClientError, TimeoutError, OSError) as error:
            source.failures += 1
            metrics.STATUS_REQUESTS.labels("failed").inc()
            log.debug("no answer", pod=source.pod.name, namespace=source.pod.namespace, error=str(error))
        finally:
            source.asked = False
        if source.due is not None:
            self._queue(key, source, self._interval_s(key, source))
            after = source.report
            if after is not None and (before is None or before.news != after.news):
                self._changed(key)

    def _interval_s(self, key: Key, source: _Source) -> float:
        limits = self._polling()
        followed = key in self._followed
        if followed:
            base_s = _CHIEF_S if source.chief else _OTHERS_S
        else:
            base_s = max(limits.interval_s, self._count / limits.max_requests_per_s)
        longest_s = _MAX_FOLLOWED_BACKOFF_S if followed else max(_MAX_BACKOFF_S, base_s)
        return min(base_s * 2.0 ** min(source.failures, 10), longest_s)
