"""The only access to the API server: raw JSON over HTTP, with the operator's own retries and errors (errors.py).

The `kubernetes` package reads configuration and credentials (kubeconfig, exec plugins, OIDC, service accounts). Its
typed models are not used, because on the hot path they would cost ten times the CPU of the JSON they wrap.
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


# -- JSON of the API server: one unreadable object must not make the whole answer unreadable ---------------------------
# A list or a watch contains the objects of all tenants, and the decoder rejects JSON nested more than 1,024 levels. The
# API server accepts deeper objects in fields without a schema (for example `managedFields`). It returns their contents
# unchanged, including bytes that are not valid UTF-8.

MAX_DEPTH: Final = 200
"""Levels of an answer that are read if it is nested too deeply; values below are replaced by an empty object."""
# Matches a string, in which brackets have no meaning, or consecutive brackets. The closing quotation mark is optional:
# otherwise invalid JSON would be scanned again from each quotation mark.
_MARK: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{]++|[\]}]++', re.DOTALL)


def decode(data: bytes) -> Any:
    """The value of the JSON text `data`. Raises orjson.JSONDecodeError for invalid JSON."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return orjson.loads(b"".join(_shallow(data)).decode(errors="replace"))


def _shallow(data: bytes) -> Iterator[bytes]:
    """The parts of `data` down to MAX_DEPTH levels, with empty objects in place of deeper values."""
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
"""Maximum bytes read of one log line."""
MAX_REFUSAL: Final = 1 << 18
"""Maximum bytes read of an error answer."""
_TIMEOUT_S: Final = 30.0
_TIMEOUT: Final = aiohttp.ClientTimeout(total=_TIMEOUT_S, sock_connect=5)
# The server ends a watch after this time, shortly after a bookmark. The watch resumes from the bookmark, which costs
# the server one look-up. Longer silence means a dead connection. It is therefore noticed within a minute even without
# bookmarks (a resource without changes) and even if the kernel sees a live peer (a proxy that hangs).
_WATCH_S: Final = 45
_WATCH_GRACE_S: Final = 10
# The kernel notices a lost peer earlier. It probes a silent connection after _PROBE_AFTER_S, then every _PROBE_EVERY_S,
# and closes it after _PROBES probes without an answer, or if sent data is not acknowledged within _UNCONFIRMED_MS.
_PROBE_AFTER_S: Final = 15
_PROBE_EVERY_S: Final = 5
_PROBES: Final = 3
_UNCONFIRMED_MS: Final = 30_000
# SO_LINGER with a timeout of 0: closing a connection resets it and drops data that is not yet sent or acknowledged.
_RESETS: Final = struct.pack("ii", 1, 0)
_ATTEMPTS: Final = 6
_MAX_WAIT_S: Final = 10.0
_READS: Final = ("GET", "HEAD")


def in_cluster(kubeconfig: str | None) -> bool:
    """Whether the operator runs in a pod of the cluster that it manages."""
    return kubeconfig is None and "KUBECONFIG" not in os.environ and "KUBERNETES_SERVICE_HOST" in os.environ


async def load_configuration(kubeconfig: str | None) -> Configuration:
    """Address and credentials of the API server. In a pod without $KUBECONFIG they come from its service account, else
    from the file `kubeconfig`, $KUBECONFIG or ~/.kube/config.

    Raises ConfigException of the `kubernetes` package with a message about what is missing.
    """
    configuration = Configuration()
    if in_cluster(kubeconfig):
        load_incluster_config(client_configuration=configuration)
    else:
        await load_kube_config(config_file=kubeconfig, client_configuration=configuration)
    return configuration


class _Write:
    """A write in flight: its connection, and `left_s`, the seconds that remain for it."""

    def __init__(self, left_s: Callable[[], float]) -> None:
        self.left_s = left_s
        self.transport: asyncio.BaseTransport | None = None

    def abort(self) -> None:
        """Reset the connection, now or once it exists: the kernel then never delivers data that it still buffers."""
        self.left_s = lambda: 0.0
        if isinstance(self.transport, asyncio.WriteTransport):
            self.transport.abort()


_WRITE: Final[ContextVar[_Write]] = ContextVar("write")


class _WriteRequest(aiohttp.ClientRequest):
    """A request that is not sent after its time has run out, for example if the process was paused meanwhile."""

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
            # The kernel measures this timeout, so it also applies while this process is paused.
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, option, max(int(min(left_s, _TIMEOUT_S) * 1000), 1))
        await super().write_bytes(writer, conn, content_length)


class ApiClient:
    """Requests to one API server, at most `concurrency` at a time and `qps` per second. With `qps` 0 or less the client
    has no rate limit; API priority and fairness of the server then decides. One namespace gets at most half of the
    requests in flight, so a slow webhook there leaves capacity for the other namespaces (see queue.py)."""

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
        # For answers of pods that the API server only proxies: they are never decompressed.
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
        """The same client for a leader that may write for `left_s()` more seconds; 0 or less forbids writes.

        `left_s` is called before each write, before each retry and again just before the bytes are sent, because the
        process may be paused at any line. After the time has run out, a write raises Fenced. A write without an answer
        by then fails as Unavailable and its connection is reset. Each write also has a `timeout` parameter, so the API
        server gives up by then as well.
        """
        other = copy.copy(self)
        other._left_s = left_s
        return other

    def abandon(self) -> None:
        """Reset the connections of all writes in flight, including those of fenced clients."""
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
        """Read an object or a list. Raises TooLarge if the answer exceeds `most_bytes`; reading stops there."""
        return await self._retrying("GET", path, params=params, accept=accept, limit=most_bytes)

    async def post(self, path: str, body: Mapping[str, Any], **params: str) -> dict[str, Any]:
        """Create an object. If an answer is lost, the retry may raise Conflict with `already_exists`."""
        return await self._retrying("POST", path, body=body, params=params or None)

    async def put(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Replace an object. Raises Conflict if the body has a resource version and the object has changed since."""
        return await self._retrying("PUT", path, body=body)

    async def patch(self, path: str, body: Mapping[str, Any], content_type: str = MERGE_PATCH) -> dict[str, Any]:
        """Change some fields of an object."""
        return await self._retrying("PATCH", path, body=body, content_type=content_type)

    async def delete(self, path: str, *, uid: str, **options: Any) -> dict[str, Any]:
        """Delete the object. Raises Conflict if it has a different uid by now."""
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
        """The bearer token of the requests; empty if they have none."""
        found = await self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        return str(found or "").removeprefix("Bearer ").strip()

    async def raw(self, path: str, timeout_s: float, limit: int) -> bytes:
        """The undecoded body at a path, without retries: for answers that the API server only proxies. Raises TooLarge
        for more than `limit` bytes and Unavailable for an encoded answer."""
        return await self._exchange("GET", path, timeout=aiohttp.ClientTimeout(total=timeout_s), limit=limit)

    async def lines(self, path: str) -> AsyncIterator[bytes]:
        """The lines at a path, until the server ends the answer: for following a pod's log. Longer lines are cut to
        MAX_LINE bytes."""
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
        """The changes since `version`, until the server ends the stream. Raises Expired if the server no longer has
        them."""
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
                # Chunks are read instead of lines because one event may exceed aiohttp's limit for a line.
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
        """The timeout of a write that is about to be sent, and the query parameters that pass it to the API server."""
        if self._left_s is None:
            return timeout, {}
        left_s = self._left_s()
        if left_s <= 0:
            raise Fenced(name, 0, "NotLeading", "this replica is no longer the leader")
        if left_s == math.inf:
            return timeout, {}
        # A later renewal does not extend the time of this write, because the API server gets this timeout now.
        end = time.monotonic() + left_s
        holds = self._left_s
        sending.left_s = lambda: min(holds(), end - time.monotonic())
        total = min(left_s, timeout.total or math.inf)
        parameters = {"timeout": f"{max(int(total * 1000), 1)}ms"}
        return aiohttp.ClientTimeout(total=total, sock_connect=timeout.sock_connect), parameters

    async def _headers(self, accept: str) -> dict[str, str]:
        headers = {"Accept": accept}
        # Read for each request, because the kubelet rotates the token of a service account.
        if token := await self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization"):
            headers["Authorization"] = token
        return headers

    def _transport(self) -> dict[str, Any]:
        # Kubernetes never redirects, and the token must not be sent to the target of a redirect.
        found: dict[str, Any] = {"allow_redirects": False}
        if self._proxy:
            found["proxy"] = self._proxy
        if server := getattr(self._configuration, "tls_server_name", None):
            found["server_hostname"] = server
        return found


class _OverLimit(aiohttp.ClientPayloadError):
    """A body exceeds the limit of its reader."""


async def _beginning(response: aiohttp.ClientResponse) -> bytes:
    """The first MAX_REFUSAL bytes of an error answer. A server that lists every error of an object may answer with ten
    times the size of the object."""
    parts, missing = [], MAX_REFUSAL
    while missing and (part := await response.content.read(missing)):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


async def read_whole(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body of an untrusted answer. The session must have auto_decompress=False.

    Raises ClientPayloadError for more than `limit` bytes and for an encoded body, which may decompress to any size.
    """
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise aiohttp.ClientPayloadError(f"the answer has the encoding {encoding[:40]!r}, which was not requested")
    parts, size = [], 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > limit:
            raise _OverLimit(f"the answer is larger than {limit} bytes")
        parts.append(part)
    return b"".join(parts)


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket that notices a lost peer."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _PROBE_AFTER_S),
        ("TCP_KEEPINTVL", _PROBE_EVERY_S),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", _UNCONFIRMED_MS),
    ):
        if option := getattr(socket, name, None):  # Linux has all of them
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


def _write_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket for writes: closing it early also drops data that is not yet sent or acknowledged."""
    made = _socket(address)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESETS)
    return made


def _namespace(path: str) -> str:
    """The namespace of a request; empty for cluster-wide objects and for requests about all namespaces."""
    _, _, rest = path.partition("/namespaces/")
    return rest.partition("/")[0]


def _wait(state: tenacity.RetryCallState) -> float:
    """Seconds until the next attempt: exponential backoff with jitter, at least the Retry-After of the server."""
    error = state.outcome.exception() if state.outcome else None
    asked = error.retry_after_s if isinstance(error, ApiError) else 0.0
    return max(asked, tenacity.wait_random_exponential(multiplier=0.1, max=_MAX_WAIT_S)(state))
