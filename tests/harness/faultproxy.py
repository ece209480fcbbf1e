"""A reverse proxy between an operator and the API server that breaks things the way networks and API servers do.

    async with FaultProxy(control_plane.kubeconfig, directory, Faults(conflict=0.05, cut_after_s=(0.5, 3))) as proxy:
        ... run an operator with proxy.kubeconfig ...
        assert proxy.injected["conflict"] > 0

It serves plain HTTP on loopback and speaks to the API server as whoever the given kubeconfig names. All chance comes
from one seed, though which request meets which fault also depends on the order in which they arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
import orjson
import yaml
from aiohttp import web

from harness.api import Connection, Connector

# Set anew by aiohttp on each side; a message that is passed on must not repeat them.
_HOP_BY_HOP = {"connection", "content-encoding", "content-length", "host", "keep-alive", "transfer-encoding"}
_WRITES = {"POST", "PUT", "PATCH", "DELETE"}


@dataclass(frozen=True, slots=True)
class Faults:
    """How often each fault strikes: probabilities per request that it can strike; ranges are in seconds."""

    conflict: float = 0.0  # 409 to an update: somebody else was faster; the write is not applied
    expired: float = 0.0  # 410 to a list's next page or a watch's start, or as the first event of a watch
    throttled: float = 0.0  # 429 with Retry-After: 1; not applied
    unavailable: float = 0.0  # 500, 502, 503 or 504; not applied
    dropped: float = 0.0  # the connection ends without an answer, though the write *was* applied
    delayed: float = 0.0  # the answer comes late
    delay_s: tuple[float, float] = (0.1, 1.0)
    cut_after_s: tuple[float, float] | None = None  # every watch ends after this long, half of them in mid-line


class FaultProxy:
    """Serves while the `async with` block runs; `injected` counts what it did, `faults` may be replaced meanwhile."""

    def __init__(self, upstream: Path, directory: Path, faults: Faults, *, seed: int = 0) -> None:
        self._upstream = upstream
        self._directory = directory
        self._random = random.Random(seed)
        self._watches: set[asyncio.Task[None]] = set()
        self.faults = faults
        self.injected: Counter[str] = Counter()
        self.writes = 0  # that went through to the API server, but for those to Leases

    async def __aenter__(self) -> Self:
        server = await Connection.of(self._upstream)
        self._session = aiohttp.ClientSession(
            base_url=server.url,
            headers=server.headers,
            connector=Connector(server, limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=True,
        )
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self.kubeconfig = self._directory / "faultproxy.kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump(_kubeconfig(self.url)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for watch in self._watches:
            watch.cancel()
        await self._runner.cleanup()
        await self._session.close()

    def cut_watches(self) -> int:
        """End every open watch now; returns how many there were."""
        for watch in self._watches:
            watch.cancel()
        return len(self._watches)

    def _strikes(self, fault: str, probability: float) -> bool:
        if self._random.random() >= probability:
            return False
        self.injected[fault] += 1
        return True

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        faults = self.faults
        if self._strikes("delayed", faults.delayed):
            await asyncio.sleep(self._random.uniform(*faults.delay_s))
        if self._strikes("throttled", faults.throttled):
            return _refusal(429, "TooManyRequests", "the server is currently overloaded", {"Retry-After": "1"})
        if self._strikes("unavailable", faults.unavailable):
            return _refusal(self._random.choice((500, 502, 503, 504)), "InternalError", "injected by the test")
        watching = request.query.get("watch") in {"1", "true"}
        if (watching or "continue" in request.query) and self._strikes("expired", faults.expired):
            if watching and self._random.random() < 0.5:
                return await self._expired_event(request)
            return _refusal(410, "Expired", "The resourceVersion for the provided watch is too old.")
        if request.method in {"PUT", "PATCH"} and self._strikes("conflict", faults.conflict):
            return _refusal(409, "Conflict", "the object has been modified; please apply your changes to the latest")
        try:
            return await self._forward(request, watching)
        except aiohttp.ClientConnectionError:
            return _refusal(503, "ServiceUnavailable", "the API server cannot be reached")

    async def _forward(self, request: web.Request, watching: bool) -> web.StreamResponse:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP_BY_HOP}
        try:
            body = await request.read()
        except ConnectionError:  # the client was killed in the middle of its request
            return web.Response(status=400)
        async with self._session.request(request.method, request.rel_url, headers=headers, data=body) as answer:
            passed = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP_BY_HOP}
            if watching and answer.status == 200:
                return await self._stream(request, answer, passed)
            content = await answer.read()
            self.writes += request.method in _WRITES and "/leases" not in request.path
            if request.method in _WRITES and self._strikes("dropped", self.faults.dropped):
                assert request.transport is not None
                request.transport.abort()
            return web.Response(status=answer.status, headers=passed, body=content)

    async def _stream(
        self, request: web.Request, answer: aiohttp.ClientResponse, headers: dict[str, str]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        task = asyncio.create_task(_copy(answer, response))
        self._watches.add(task)
        task.add_done_callback(self._watches.discard)
        limit = None if self.faults.cut_after_s is None else self._random.uniform(*self.faults.cut_after_s)
        try:
            async with asyncio.timeout(limit):
                await asyncio.wait({task})
        except TimeoutError:
            self.injected["cut"] += 1
            if self._random.random() < 0.5:
                with contextlib.suppress(ConnectionError):
                    await response.write(b'{"type":"MODIFIED","object":{"kind":"P')
        finally:
            task.cancel()
        if request.transport is not None:
            request.transport.abort()
        return response

    async def _expired_event(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        event = {"type": "ERROR", "object": _status(410, "Expired", "too old resource version")}
        await response.write(orjson.dumps(event) + b"\n")
        await response.write_eof()
        return response


async def _copy(answer: aiohttp.ClientResponse, response: web.StreamResponse) -> None:
    with contextlib.suppress(ConnectionError, aiohttp.ClientError):
        async for data in answer.content.iter_any():
            await response.write(data)


def _status(code: int, reason: str, message: str) -> dict[str, object]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }


def _refusal(code: int, reason: str, message: str, headers: dict[str, str] | None = None) -> web.Response:
    body = orjson.dumps(_status(code, reason, message))
    return web.Response(status=code, body=body, content_type="application/json", headers=headers)


def _kubeconfig(url: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "faulty",
        "clusters": [{"name": "faulty", "cluster": {"server": url}}],
        "users": [{"name": "faulty", "user": {}}],
        "contexts": [{"name": "faulty", "context": {"cluster": "faulty", "user": "faulty"}}],
    }
