"""The product's ApiClient over the API server in memory: the same methods and errors, the faults of a schedule."""

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from campaign.apiserver import ApiServer, Object, Place, error_of, place_of
from campaign.cluster import STATUS_SUFFIX, Cluster
from campaign.faults import Faults, Request
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.errors import ApiError, Expired, Fenced, Unavailable
from elastic_tfjob.controller.model.annotations import STATE_ANNOTATION

__all__ = ["Api", "Wire"]

_ATTEMPTS: Final = 6
_WATCH_S: Final = 300.0
_SILENT_S: Final = 40.0
_LATE_S: Final = 5.0
_TIMEOUT_S: Final = 60.0
_EFFECT_S: Final = 0.003
"""After so long a write that nothing disturbs has been stored."""


class Wire:
    """What all replicas of the operator share: the server, and the count of their writes and watch events."""

    def __init__(self, server: ApiServer, cluster: Cluster, faults: Faults, random: Random) -> None:
        self.server = server
        self.cluster = cluster
        self.faults = faults
        self.random = random
        self.silent_until = 0.0
        """When all watches that have become silent are known to be by."""
        self.writes: list[str] = []
        self.events: list[str] = []
        self.sending: Callable[[str, str, str], None] = lambda *_: None
        self.lose_chief: Callable[[], None] = lambda: None
        self.cut: dict[str, float] = {}
        """By replica, until when the API server does not answer what it asks about its lease."""
        self.silent: dict[tuple[str, str], float] = {}
        """By replica and resource, until when its watch says nothing; then the connection breaks."""
        self.held: dict[str, Callable[[], bool]] = {}
        """By replica, when its next write of a job's state comes to the API server, whatever becomes of who sent it."""
        self.landing: set[asyncio.Task[None]] = set()

    def faulty(self) -> bool:
        """Whether anything may go wrong now."""
        return self.server.loop.time() < self.faults.until


_HEALTHY: Final = Request()


@dataclass(slots=True)
class _Life:
    """A replica's, shared by its client and the fenced copy of it."""

    over: bool = False
    # What its tasks wait for: a task that waits for something that nobody else holds is garbage, as asyncio sees it.
    never: asyncio.Future[None] | None = None


class Api(ApiClient):
    """One replica's client. `die` is called when the replica is to die at a write."""

    def __init__(self, wire: Wire, name: str, die: Callable[[], None]) -> None:
        self._wire = wire
        self._name = name
        self._die = die
        self._life = _Life()
        self._left_s: Callable[[], float] = lambda: math.inf

    @property
    def dead(self) -> bool:
        """Whether the replica is gone: no request of it is sent, and none comes back."""
        return self._life.over

    @dead.setter
    def dead(self, over: bool) -> None:
        self._life.over = over

    # The methods of the ApiClient

    def abandon(self) -> None:
        """What is on its way is lost with the replica, or is not (Wire.held)."""

    async def get(self, path: str, *, accept: str = "", most_bytes: int | None = None, **params: str) -> dict[str, Any]:
        return await self._asking("GET", path, params=params)

    async def post(self, path: str, body: Mapping[str, Any], **params: str) -> dict[str, Any]:
        return await self._asking("POST", path, body, params)

    async def put(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return await self._asking("PUT", path, body)

    async def patch(self, path: str, body: Mapping[str, Any], content_type: str = "") -> dict[str, Any]:
        return await self._asking("PATCH", path, body)

    async def delete(self, path: str, *, uid: str, **options: Any) -> dict[str, Any]:
        return await self._asking("DELETE", path, {"preconditions": {"uid": uid}, **options})

    async def once(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        timeout_s: float = 5.0,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        return await self._ask(method, path, body)

    async def raw(self, path: str, timeout_s: float, limit: int) -> bytes:
        await self._alive()
        await asyncio.sleep(0.003)
        await self._alive()
        assert path.endswith(STATUS_SUFFIX), path
        parts = path.split("/")
        answer = self._wire.cluster.status_of(parts[4], parts[6].partition(":")[0])
        if answer is None:
            raise Unavailable(f"GET {path}", 503, "ServiceUnavailable", "no endpoints")
        assert len(answer) <= limit
        return answer

    async def watch(self, path: str, *, version: str, accept: str = "", **params: str) -> AsyncIterator[Object]:
        wire, loop = self._wire, asyncio.get_running_loop()
        server, faults = wire.server, wire.faults
        place = place_of(path)
        await self._alive()
        await asyncio.sleep(0.002)
        await self._alive()
        if wire.faulty() and faults.expires():
            raise Expired(f"WATCH {path}", 410, "Expired", "a fault of the campaign")
        until = loop.time() + _WATCH_S
        position = int(version)
        again: deque[Object] = deque()
        while True:
            for change in server.changes(place.resource, position):
                position = change.version
                event = server.event(change, place.namespace, params)
                if event is None:
                    continue
                faulty = wire.faulty()
                due = change.at + (faults.event_delay_s() if faulty else 0.002)
                if due > loop.time():
                    await asyncio.sleep(due - loop.time())
                    await self._alive()
                if (silent_s := wire.silent.get((self._name, place.resource), 0.0) - loop.time()) > 0:
                    await asyncio.sleep(silent_s)
                    raise Unavailable(f"WATCH {path}", 0, "TimeoutError", "a silent connection")
                wire.events.append(f"{place.resource} {event['type']} {event['object']['metadata']['name']}")
                fault = faults.event(len(wire.events)) if faulty else ""
                if fault == "lost":
                    raise Unavailable(f"WATCH {path}", 0, "ServerDisconnected", "a fault of the campaign")
                if fault == "silent":
                    wire.silent_until = loop.time() + _SILENT_S + _LATE_S
                    await asyncio.sleep(_SILENT_S)
                    raise Unavailable(f"WATCH {path}", 0, "TimeoutError", "a fault of the campaign")
                if fault == "delayed":
                    await asyncio.sleep(_LATE_S)
                    await self._alive()
                yield event
                while again:
                    yield again.popleft()
                if fault == "replayed":
                    again.append(event)
            if server.changed_since(place.resource, position):  # while what came before was late
                continue
            coming = server.next_change(place.resource)
            timer = loop.call_at(min(until, loop.time() + _LATE_S) if again else until, _done, coming)
            await coming
            timer.cancel()
            await self._alive()
            while again:
                yield again.popleft()
            if loop.time() >= until:
                return

    # How a request goes

    async def _alive(self) -> None:
        """Nothing ever comes back to a process that is gone; its tasks hear nothing until they are cancelled."""
        if self.dead:
            self._life.never = self._life.never or asyncio.get_running_loop().create_future()
            await asyncio.wait([self._life.never])

    async def _asking(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, params: Mapping[str, str] | None = None
    ) -> Object:
        """With retries, as the product's: an ApiError that may pass is asked again up to six times, later each time."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._ask(method, path, body, params)
            except Unavailable as error:
                if attempt == _ATTEMPTS:
                    raise
                longest_s = min(0.1 * 2.0 ** (attempt - 1), 10.0)
                await asyncio.sleep(max(error.retry_after_s, self._wire.random.uniform(0.0, longest_s)))
                await self._alive()
        raise AssertionError("the last attempt raises")

    async def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, params: Mapping[str, str] | None = None
    ) -> Object:
        await self._alive()
        wire = self._wire
        place = place_of(path)
        if place.resource == "leases" and wire.server.loop.time() < wire.cut.get(self._name, 0.0):
            await asyncio.sleep(1.0)
            await self._alive()
            raise Unavailable(f"{method} {path}", 0, "TimeoutError", "cut off")
        faulty = wire.faulty()
        fate = wire.faults.request(method, path) if faulty else _HEALTHY
        kill = None
        if method != "GET":
            if self._left_s() <= 0:
                raise Fenced(f"{method} {path}", 0, "Fenced", "this replica may not write")
            wire.sending(self._name, method, path)
            if self._counts(method, place, body):
                wire.writes.append(f"{method} {place.resource}/{place.name or (body or {})['metadata']['name']}")
                kill = wire.faults.kill(len(wire.writes)) if faulty else None
                if faulty and wire.faults.loses_chief(len(wire.writes)):
                    wire.server.loop.call_later(_EFFECT_S, wire.lose_chief)
        if kill == "before":
            self._die()
            await self._alive()
        if self._name in wire.held and place.resource == "tfjobs" and STATE_ANNOTATION in _annotations(body):
            wire.landing.add(asyncio.create_task(self._land(wire.held.pop(self._name), method, path, body)))
            await asyncio.sleep(_TIMEOUT_S)
            await self._alive()
            raise Unavailable(f"{method} {path}", 0, "TimeoutError", "held up")
        await asyncio.sleep(fate.there_s)
        await self._alive()
        answer: Object = {}
        error: ApiError | None = None
        if fate.effect:
            try:
                if method == "GET" and not place.name:
                    answer = wire.server.page(place, params or {})
                else:
                    tried = bool(params and params.get("dryRun"))
                    answer = wire.server.handle(method, path, body, by=self._name, tried=tried)
            except ApiError as refused:
                error = refused
        if kill == "after":
            self._die()
            await self._alive()
        await asyncio.sleep(fate.back_s)
        await self._alive()
        if fate.status is not None:
            raise error_of(fate.status, f"{method} {path}")
        if error is not None:
            raise error
        return answer

    def _counts(self, method: str, place: Place, body: Mapping[str, Any] | None) -> bool:
        """Whether the operator may die at a write. It does not matter whether events come, and renewals of a lease come
        by the clock and not by what happens; where the lease changes hands it matters who lives."""
        if place.resource != "leases":
            return place.resource != "events"
        stored = self._wire.server.get("leases", place.namespace, place.name)
        return method == "POST" or stored is None or _holder(body) != _holder(stored)

    async def _land(self, lands: Callable[[], bool], method: str, path: str, body: Mapping[str, Any] | None) -> None:
        while not lands():
            await asyncio.sleep(0.05)
        with contextlib.suppress(ApiError):
            self._wire.server.handle(method, path, body, by=self._name)


def _annotations(body: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return ((body or {}).get("metadata") or {}).get("annotations") or {}


def _holder(lease: Mapping[str, Any] | None) -> str:
    return ((lease or {}).get("spec") or {}).get("holderIdentity") or ""


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
