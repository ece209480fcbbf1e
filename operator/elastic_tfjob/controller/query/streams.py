"""Streamed answers, as server-sent events: the whole answer, then its changes.

An event's `id` is a digest of the answer that the client has after it. Every replica, even after a restart, can thus
tell whether a client that reconnects with `Last-Event-ID` is up to date. Nothing is stored for disconnected clients."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import fields
from hashlib import blake2b
from typing import Any, Final

import orjson
from aiohttp import web

from elastic_tfjob.controller.model.settings import QueryLimits
from elastic_tfjob.controller.query.gate import ANYBODY, Asker
from elastic_tfjob.controller.query.rows.listing import QueryRefused

__all__ = ["Streams", "changed", "event"]

Ask = Callable[[], Awaitable[Any]]

_DEBOUNCE_S: Final = 0.2
# A slow answer is computed less often: a stream computes for at most a fifth of the time.
_PAUSE: Final = 4
# Forecasts and pod reports change without a change of a job.
_REFRESH_S: Final = 2.0
_HEARTBEAT_S: Final = 15.0
# A client that does not read for this long is dropped. Until then, one event and the connection's buffer wait for it.
_STUCK_S: Final = 30.0
# After this time a stream ends, and its client reconnects with its last id, maybe to another replica.
_LIFE_S: Final = 600.0
_MOST_BYTES: Final = 16 << 20
_RETRY_MS: Final = 2000
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'",
    "X-Accel-Buffering": "no",
    "X-Content-Type-Options": "nosniff",
}


class Streams:
    """All streams of a server. `limits`: how many are allowed. `version`: a counter of changes of jobs. `refusal`: the
    body of an error. `turn` is held by the stream whose answer is being computed, so other requests wait for at most
    one stream. Access reviews, which may be slow for one user, are made without it."""

    def __init__(
        self, limits: Callable[[], QueryLimits], version: Callable[[], int], refusal: Callable[[QueryRefused], bytes]
    ) -> None:
        self.turn = asyncio.Lock()
        self._limits = limits
        self._version = version
        self._refusal = refusal
        self._open = 0
        self._of: Counter[str] = Counter()
        self._closing = asyncio.Event()
        self._news = asyncio.Event()
        self._pulse: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return self._open

    async def close(self, _: web.Application) -> None:
        """End all streams; their clients reconnect elsewhere."""
        self._closing.set()
        self._news.set()

    async def serve(self, request: web.Request, asker: Asker, ask: Ask) -> web.StreamResponse:
        """Stream answers for as long as the client reads. `ask` computes the answer and checks the user's rights each
        time. Raises QueryRefused, and what else `ask` raises, before the first event."""
        limits, user = self._limits(), asker.user
        if self._open >= limits.max_streams:
            raise QueryRefused(503, f"the limit of {limits.max_streams} open streams is reached", again_s=10)
        if asker != ANYBODY and self._of[user] >= (most := limits.max_streams_per_user):
            raise QueryRefused(429, f"you have {most} open streams, the limit per user", again_s=10)
        self._open += 1
        self._of[user] += 1
        if self._pulse is None:
            self._pulse = asyncio.create_task(self._beat(), name="query-streams")
        try:
            return await self._follow(request, ask)
        finally:
            self._open -= 1
            self._of[user] -= 1
            if not self._of[user]:
                del self._of[user]
            if not self._open and self._pulse is not None:
                self._pulse.cancel()
                self._pulse = None

    async def _follow(self, request: web.Request, ask: Ask) -> web.StreamResponse:
        loop = asyncio.get_running_loop()
        begun, version = loop.time(), self._version()
        answer = await _within(ask)
        took = loop.time() - begun
        response = web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            await self._tell(request, ask, response, answer, version=version, took_s=took)
        except (TimeoutError, ConnectionError):  # the client does not read, or has disconnected
            _abort(request)
        except Exception:
            _abort(request)
            raise
        return response

    async def _tell(
        self, request: web.Request, ask: Ask, response: web.StreamResponse, answer: Any, *, version: int, took_s: float
    ) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        body = orjson.dumps(answer)
        digest = _digest(body)
        same = request.headers.get("Last-Event-ID") == digest
        first = event("same", digest, b"{}") if same else event("snapshot", digest, body)
        sent = await _send(response, b"retry: %d\n\n" % _RETRY_MS + first)
        spoken = loop.time()
        while sent < _MOST_BYTES and loop.time() - begun < _LIFE_S and not self._closing.is_set():
            await self._pause(min(_STUCK_S, max(_DEBOUNCE_S, _PAUSE * took_s)))
            await self._wait(version)
            if self._closing.is_set():
                break
            if request.transport is None or request.transport.is_closing():
                return
            asked, version = loop.time(), self._version()
            try:
                before, answer = answer, await _within(ask)
            except QueryRefused as refused:
                sent += await _send(response, event("refused", "", self._refusal(refused)))
                return
            took_s = loop.time() - asked
            if news := changed(before, answer):
                digest = _digest(orjson.dumps(answer))
                sent += await _send(response, event("delta", digest, orjson.dumps(news)))
                spoken = loop.time()
            elif loop.time() - spoken >= _HEARTBEAT_S:
                sent += await _send(response, b": nothing new\n\n")
                spoken = loop.time()
        await _send(response, event("end", digest, b"{}"))

    async def _pause(self, seconds: float) -> None:
        """Wait this long, or until the server stops."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()

    async def _wait(self, version: int) -> None:
        """Wait until a job has changed since a version, a refresh is due, or the server stops."""
        if self._version() != version:
            return
        news = self._closing if self._closing.is_set() else self._news
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REFRESH_S):
                await news.wait()

    async def _beat(self) -> None:
        """Wake all streams after a change. One task watches for all of them."""
        version = self._version()
        while True:
            await asyncio.sleep(_DEBOUNCE_S)
            if (now := self._version()) != version:
                version = now
                self._news.set()
                self._news = asyncio.Event()


def changed(before: Any, after: Any) -> Mapping[str, Any]:
    """The changed fields of an answer. For a page of unchanged length: the changed rows by index."""
    found: dict[str, Any] = {}
    for each in fields(after):
        old, new = getattr(before, each.name), getattr(after, each.name)
        if old == new:
            continue
        if each.name == "items" and len(old) == len(new):
            found["items"] = {
                str(index): row for index, (was, row) in enumerate(zip(old, new, strict=True)) if was != row
            }
        else:
            found[each.name] = new
    return found


def event(name: str, digest: str, data: bytes) -> bytes:
    """One server-sent event; `data` is JSON, which has no line breaks."""
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (digest.encode(), name.encode(), data)


async def _within(ask: Ask) -> Any:
    async with asyncio.timeout(_STUCK_S):
        return await ask()


def _digest(body: bytes) -> str:
    return blake2b(body, digest_size=12).hexdigest()


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


async def _send(response: web.StreamResponse, data: bytes) -> int:
    """Send as fast as the client reads. Raises TimeoutError if it does not read."""
    async with asyncio.timeout(_STUCK_S):
        await response.write(data)
    return len(data)
