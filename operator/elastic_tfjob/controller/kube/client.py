"""The one seam to the API server: raw JSON over HTTP, with retries and errors of our own (errors.py).

Configuration and credentials are read by the `kubernetes` package (kubeconfig, exec plugins, OIDC, service accounts);
typed models are left out of the hot path, where they would cost ten times the CPU of the JSON they wrap.
"""

import asyncio
import contextlib
import copy
import math
import os
import re
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final

import aiohttp
import orjson
import structlog
import tenacity
from aiohttp.abc import AbstractStreamWriter
from aiohttp.connector import Connection
from aiolimiter import AsyncLimiter
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import load_incluster_config, load_kube_config

from elastic_tfjob.controller.kube import metrics
from elastic_tfjob.controller.kube.errors import (
    ApiError,
    Fenced,
    TooLarge,
    Unavailable,
    error_of,
)
from elastic_tfjob.controller.kube.queue import FairSlots

__all__ = ["MAX_DEPTH", "MAX_LINE", "ApiClient", "decode", "in_cluster", "load_configuration", "read_whole"]


# -- JSON of the API server, of which no object keeps the others from being read ---------------------------------------
# The decoder refuses what is nested more than 1,024 levels, and a list or a watch has the objects of all tenants. The
# API server takes objects that are deeper than that, in places that have no schema (`managedFields` are some). It
# passes on what these hold as it came, also bytes that are no UTF-8.

MAX_DEPTH: Final = 200
"""Where an answer is too deep, what is below this many levels is taken for an empty object."""
# A string, in which brackets mean nothing, or brackets in a row. A string may lack its end: what is no JSON must not be
# looked through again from each quotation mark on.
_MARK: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{]++|[\]}]++', re.DOTALL)


def decode(data: bytes) -> Any:
    """What is written in `data`. Raises orjson.JSONDecodeError for what is no JSON."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return orjson.loads(b"".join(_shallow(data)).decode(errors="replace"))


def _shallow(data: bytes) -> Iterator[bytes]:
    """The parts of `data` that are not too deep, and empty objects for what is."""
    depth = kept = 0
    for mark in _MARK.finditer(data):
        begin, count = mark.start(), mark.end() - mark.start()
        match data[begin : begin + 1]:
            case b"{" | b"[":
                if depth <= MAX_DEPTH < depth + count:
                    yield data[kept : begin + MAX_DEPTH - depth]
                depth += count
            case b"}" | b"]":
                if depth - count <= MAX_DEPTH < depth:
                    yield b"{}"
                    kept = begin + depth - MAX_DEPTH
                depth -= count
    if depth <= MAX_DEPTH:
        yield data[kept:]


log = structlog.get_logger(__name__)

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"
METADATA_ONLY: Final = "application/json;as={};g=meta.k8s.io;v=v1,application/json"

MAX_LINE: Final = 1 << 20
"""Bytes of a line of a log that are read."""
MAX_REFUSAL: Final = 1 << 18
"""Bytes that are read of an answer that refuses a request."""
_TIMEOUT_S: Final = 30.0
_TIMEOUT: Final = aiohttp.ClientTimeout(total=_TIMEOUT_S, sock_connect=5)
# The server ends a watch after this long, shortly after a bookmark, and it is resumed from there, which costs it a
# look-up. Silence for longer means that the connection is dead, so that is noticed within a minute also where bookmarks
# do not come (of a resource that nobody touches) and where the kernel sees a live peer (a proxy that hangs).
_WATCH_S: Final = 45
_WATCH_GRACE_S: Final = 10
# Where the peer is gone the kernel notices earlier: it probes a silent connection after so long, and gives it, or data
# that nobody confirms, up after so long more.
_PROBE_AFTER_S: Final = 15
_PROBE_EVERY_S: Final = 5
_PROBES: Final = 3
_UNCONFIRMED_MS: Final = 30_000
# Closing a connection resets it, and drops what has not been sent or confirmed yet.
_RESETS: Final = struct.pack("ii", 1, 0)
_ATTEMPTS: Final = 6
_MAX_WAIT_S: Final = 10.0
_READS: Final = ("GET", "HEAD")


def in_cluster(kubeconfig: str | None) -> bool:
    """Whether the operator runs in a pod of the cluster that it works on."""
    return kubeconfig is None and "KUBECONFIG" not in os.environ and "KUBERNETES_SERVICE_HOST" in os.environ


async def load_configuration(kubeconfig: str | None) -> Configuration:
    """Credentials from that file, else from $KUBECONFIG or ~/.kube/config, else from the pod's service account.

    Raises kubernetes' ConfigException with what is missing.
    """
    configuration = Configuration()
    if in_cluster(kubeconfig):
        load_incluster_config(client_configuration=configuration)
    else:
        await load_kube_config(config_file=kubeconfig, client_configuration=configuration)
    return configuration


class _Write:
    """A write on its way: how long it may be that, in seconds, and its connection."""

    def __init__(self, left_s: Callable[[], float]) -> None:
        self.left_s = left_s
        self.transport: asyncio.BaseTransport | None = None

    def abort(self) -> None:
        """Reset its connection, now or once it has one: what the kernel still holds of it is never delivered."""
        self.left_s = lambda: 0.0
        if isinstance(self.transport, asyncio.WriteTransport):
            self.transport.abort()


_WRITE: Final[ContextVar[_Write]] = ContextVar("write")


class _WriteRequest(aiohttp.ClientRequest):
    """A request that is not sent once its time is over, by a process that was stopped after it had begun it."""

    async def write_bytes(
        self, writer: AbstractStreamWriter, conn: Connection, content_length: int | None = None
    ) -> None:
        write = _WRITE.get()
        write.transport = conn.transport
        if (left_s := write.left_s()) <= 0:
            write.abort()
            return
        connection = conn.transport.get_extra_info("socket") if conn.transport is not None else None
        if connection is not None and (option := getattr(socket, "TCP_USER_TIMEOUT", None)):
            # Counted by the kernel, also while this process is stopped.
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, option, max(int(min(left_s, _TIMEOUT_S) * 1000), 1))
        await super().write_bytes(writer, conn, content_length)


class ApiClient:
    """Requests to one API server, at most `concurrency` at a time and `qps` a second (0 or less: no limit of ours; the
    server's priority and fairness then decides). One namespace gets at most half of what is in flight: a webhook that
    answers slowly there leaves room for the others (see fair.py)."""

    def __init__(self, configuration: Configuration, *, concurrency: int = 64, qps: float = 0, burst: int = 0) -> None:
        self._configuration = configuration
        self._base = str(configuration.host).rstrip("/")
        rest = RESTClientObject(configuration)
        self._ssl = rest.ssl_context
        self._proxy = rest.proxy
        self._left_s: Callable[[], float] | None = None
        self._writes: set[_Write] = set()
        self._slots = FairSlots(concurrency)
        # A leaky bucket of `burst` that empties at `qps`.
        self._limiter = AsyncLimiter(max(burst, 1), max(burst, 1) / qps) if qps > 0 else None
        self._session = self._open(aiohttp.TCPConnector(limit=0, ssl=self._ssl, socket_factory=_socket))
        # For what the API server passes on from others: never unpacked.
        self._raw_session = self._open(self._session.connector, auto_decompress=False, connector_owner=False)
        writing = aiohttp.TCPConnector(limit=0, ssl=self._ssl, socket_factory=_write_socket)
        self._write_session = self._open(writing, request_class=_WriteRequest)

    def _open(self, connector: aiohttp.BaseConnector | None, **options: Any) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent",),
            headers={"User-Agent": "elastic-tfjob"},
            **options,
        )

    def fenced(self, left_s: Callable[[], float]) -> "ApiClient":
        """The same client for a leader, which may write for `left_s` seconds more, 0 or less if not at all.

        That is asked before each write, and before each retry, and as the last thing before the bytes are sent, since
        the process may have been stopped at any line; it raises Fenced where the time is over. A write that has no
        answer by then fails as Unavailable, its connection is reset, and the API server was told not to take longer.
        """
        other = copy.copy(self)
        other._left_s = left_s
        return other

    def abandon(self) -> None:
        """Reset the connections of all writes that are on their way, of fenced clients too."""
        for write in list(self._writes):
            write.abort()

    async def __aenter__(self) -> "ApiClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.abandon()
        await self._write_session.close()
        await self._raw_session.close()
        await self._session.close()

    async def get(
        self, path: str, *, accept: str = JSON, most_bytes: int | None = None, **params: str
    ) -> dict[str, Any]:
        """Read an object or a list. Raises TooLarge where it has more than `most_bytes`, of which no more are read."""
        return await self._retrying("GET", path, params=params, accept=accept, limit=most_bytes)

    async def post(self, path: str, body: Mapping[str, Any], **params: str) -> dict[str, Any]:
        """Create an object. A retry after a lost answer may find the object there: Conflict, `already_exists`."""
        return await self._retrying("POST", path, body=body, params=params or None)

    async def put(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Replace an object; a body with a resource version is refused with Conflict if the object has changed."""
        return await self._retrying("PUT", path, body=body)

    async def patch(self, path: str, body: Mapping[str, Any], content_type: str = MERGE_PATCH) -> dict[str, Any]:
        """Change some fields of an object."""
        return await self._retrying("PATCH", path, body=body, content_type=content_type)

    async def delete(self, path: str, *, uid: str, **options: Any) -> dict[str, Any]:
        """Delete the object if it still is the one with that uid, else Conflict."""
        return await self._retrying("DELETE", path, body={"preconditions": {"uid": uid}, **options})

    async def once(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        timeout_s: float = 5.0,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """One request without retries, for callers with a deadline of their own."""
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        return await self._request(method, path, body=body, timeout=timeout, more_headers=headers)

    async def token(self) -> str:
        """The bearer token that requests are sent with; empty where they have none."""
        found = await self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        return str(found or "").removeprefix("Bearer ").strip()

    async def raw(self, path: str, timeout_s: float, limit: int) -> bytes:
        """What is at a path, unread and without retries: for what the API server only passes on. More than `limit`
        bytes are TooLarge, an encoded answer is Unavailable."""
        return await self._exchange("GET", path, timeout=aiohttp.ClientTimeout(total=timeout_s), limit=limit)

    async def lines(self, path: str) -> AsyncIterator[bytes]:
        """What is at a path, line by line, for as long as the server sends: a pod's log that is followed. Of a line
        that is very long the first MAX_LINE bytes."""
        name = f"GET {path.partition('?')[0]}"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        try:
            async with self._session.request(
                "GET", self._base + path, headers=await self._headers("*/*"), timeout=timeout, **self._transport()
            ) as response:
                if response.status >= 300:
                    raise error_of(name, response.status, await _beginning(response), response.headers)
                rest, cut_off = b"", False
                async for chunk in response.content.iter_any():
                    *whole, rest = (rest + chunk).split(b"\n")
                    for line in whole:
                        if not cut_off:
                            yield line[:MAX_LINE]
                        cut_off = False
                    if len(rest) > MAX_LINE:
                        if not cut_off:
                            yield rest[:MAX_LINE]
                        rest, cut_off = b"", True
                if rest and not cut_off:
                    yield rest
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(name, 0, type(error).__name__, str(error)) from error

    async def watch(
        self, path: str, *, version: str, accept: str = JSON, **params: str
    ) -> AsyncIterator[dict[str, Any]]:
        """The changes since `version`, until the server ends the stream. Raises Expired when it has forgotten them."""
        query = {
            **params,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(_WATCH_S),
        }
        name = f"WATCH {path}"
        try:
            async with self._session.request(
                "GET",
                self._base + path,
                params=query,
                headers=await self._headers(accept),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=_WATCH_S + _WATCH_GRACE_S),
                **self._transport(),
            ) as response:
                if response.status >= 300:
                    raise error_of(name, response.status, await _beginning(response), response.headers)
                # Whole chunks instead of lines: one event may be larger than aiohttp's limit for a line.
                rest = b""
                async for chunk in response.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        event = decode(line)
                        if event["type"] == "ERROR":
                            status = event["object"]
                            raise error_of(name, status.get("code", 500), orjson.dumps(status), {})
                        yield event
        except (aiohttp.ClientError, TimeoutError, OSError, orjson.JSONDecodeError) as error:
            raise Unavailable(name, 0, type(error).__name__, str(error)) from error

    async def _retrying(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        async for attempt in tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(lambda e: isinstance(e, Unavailable) and not isinstance(e, Fenced)),
            stop=tenacity.stop_after_attempt(_ATTEMPTS),
            wait=_wait,
            reraise=True,
        ):
            with attempt:
                async with self._slots.of(_namespace(path)):
                    if self._limiter is not None:
                        await self._limiter.acquire()
                    return await self._request(method, path, **arguments)
        raise AssertionError("tenacity re-raises")  # pragma: no cover

    async def _request(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        answer = await self._exchange(method, path, **arguments)
        try:
            found: dict[str, Any] = decode(answer)
        except orjson.JSONDecodeError as error:
            raise Unavailable(f"{method} {path}", 0, type(error).__name__, str(error)) from error
        return found

    async def _exchange(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        accept: str = JSON,
        content_type: str = JSON,
        timeout: aiohttp.ClientTimeout = _TIMEOUT,  # noqa: ASYNC109
        limit: int | None = None,
        more_headers: Mapping[str, str] | None = None,
    ) -> bytes:
        headers = {**await self._headers(accept), **(more_headers or {})}
        data = None
        if body is not None:
            headers["Content-Type"] = content_type
            data = orjson.dumps(body)
        name = f"{method} {path}"
        session = self._session
        if limit is not None:
            session, headers["Accept-Encoding"] = self._raw_session, "identity"
        sending = _Write(lambda: math.inf)
        if method not in _READS:
            session, timeout, more = self._write_session, *self._limited(name, timeout, sending)
            params = {**(params or {}), **more}
            _WRITE.set(sending)
            self._writes.add(sending)
        answered = False
        try:
            async with session.request(
                method,
                self._base + path,
                params=params,
                data=data,
                headers=headers,
                timeout=timeout,
                **self._transport(),
            ) as response:
                refused = response.status >= 300
                if limit is not None:
                    answer = await read_whole(response, limit)
                else:
                    answer = await (_beginning(response) if refused else response.read())
                answered = True
                metrics.API_REQUESTS.labels(method, str(response.status)).inc()
                if refused:
                    raise error_of(name, response.status, answer, response.headers)
                return answer
        except _OverLimit as error:
            metrics.API_REQUESTS.labels(method, "TooLarge").inc()
            raise TooLarge(name, 0, "TooLarge", str(error)) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            metrics.API_REQUESTS.labels(method, type(error).__name__).inc()
            raise Unavailable(name, 0, type(error).__name__, str(error)) from error
        finally:
            self._writes.discard(sending)
            if not answered:
                sending.abort()

    def _limited(
        self, name: str, timeout: aiohttp.ClientTimeout, sending: _Write
    ) -> tuple[aiohttp.ClientTimeout, dict[str, str]]:
        """The timeout of a write that is about to be sent, and what the API server is told of it."""
        if self._left_s is None:
            return timeout, {}
        left_s = self._left_s()
        if left_s <= 0:
            raise Fenced(name, 0, "NotLeading", "this replica does not lead any more")
        if left_s == math.inf:
            return timeout, {}
        # What is left now, and not what a later renewal adds: the API server was told this.
        end = time.monotonic() + left_s
        holds = self._left_s
        sending.left_s = lambda: min(holds(), end - time.monotonic())
        total = min(left_s, timeout.total or math.inf)
        told = {"timeout": f"{max(int(total * 1000), 1)}ms"}
        return aiohttp.ClientTimeout(total=total, sock_connect=timeout.sock_connect), told

    async def _headers(self, accept: str) -> dict[str, str]:
        headers = {"Accept": accept}
        # Asked for each request: the token of a service account is rotated under us.
        if token := await self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization"):
            headers["Authorization"] = token
        return headers

    def _transport(self) -> dict[str, Any]:
        # Nobody in Kubernetes redirects, and a token must not follow where one points.
        found: dict[str, Any] = {"allow_redirects": False}
        if self._proxy:
            found["proxy"] = self._proxy
        if server := getattr(self._configuration, "tls_server_name", None):
            found["server_hostname"] = server
        return found


class _OverLimit(aiohttp.ClientPayloadError):
    """A body is larger than its reader wants."""


async def _beginning(response: aiohttp.ClientResponse) -> bytes:
    """What a request is refused with, of which more than MAX_REFUSAL bytes are not read: a server that names all that
    is wrong with an object may answer with ten times its size."""
    parts, missing = [], MAX_REFUSAL
    while missing and (part := await response.content.read(missing)):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


async def read_whole(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body of an answer that nobody vouches for, of a session with auto_decompress=False.

    Raises ClientPayloadError for more than `limit` bytes and for an encoded body, which may unpack to any size.
    """
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise aiohttp.ClientPayloadError(f"the answer is encoded as {encoding[:40]!r}, which was not asked for")
    parts, size = [], 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > limit:
            raise _OverLimit(f"the answer is larger than {limit} bytes")
        parts.append(part)
    return b"".join(parts)


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket that notices when its peer is gone."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _PROBE_AFTER_S),
        ("TCP_KEEPINTVL", _PROBE_EVERY_S),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", _UNCONFIRMED_MS),
    ):
        if option := getattr(socket, name, None):  # Linux has them all
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


def _write_socket(address: tuple[Any, ...]) -> socket.socket:
    """One for writes, which a connection that is closed early takes with it."""
    made = _socket(address)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESETS)
    return made


def _namespace(path: str) -> str:
    """The namespace that a request is about; empty for what is in none or in all."""
    _, _, rest = path.partition("/namespaces/")
    return rest.partition("/")[0]


def _wait(state: tenacity.RetryCallState) -> float:
    """Back off with jitter, and at least for as long as the server asked for."""
    error = state.outcome.exception() if state.outcome else None
    asked = error.retry_after_s if isinstance(error, ApiError) else 0.0
    return max(asked, tenacity.wait_random_exponential(multiplier=0.1, max=_MAX_WAIT_S)(state))
