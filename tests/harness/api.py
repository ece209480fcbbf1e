"""A small asynchronous client for test programs: raw JSON in and out, and watches that go on after a break.

The operator has its own client; tests and benchmarks observe it through this one, so that a fault in the first cannot
hide in the second.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson
from kubernetes.aio import client, config
from multidict import CIMultiDict

Object = dict[str, Any]

CORE = "/api/v1"
NODES = f"{CORE}/nodes"
_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
MERGE_PATCH = "application/merge-patch+json"


def tfjobs(namespace: str | None = None) -> str:
    """The path of the TFJobs of a namespace, or of all."""
    return _collection("/apis/kubeflow.org/v1", "tfjobs", namespace)


def pods(namespace: str | None = None) -> str:
    """The path of the pods of a namespace, or of all."""
    return _collection(CORE, "pods", namespace)


def services(namespace: str | None = None) -> str:
    """The path of the services of a namespace, or of all."""
    return _collection(CORE, "services", namespace)


def events(namespace: str) -> str:
    """The path of the (core/v1) events of a namespace."""
    return _collection(CORE, "events", namespace)


def _collection(group: str, plural: str, namespace: str | None) -> str:
    return f"{group}/namespaces/{namespace}/{plural}" if namespace else f"{group}/{plural}"


class ApiError(Exception):
    """The API server refused: `status` is the HTTP code, `reason` the machine-readable word of its Status."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Connection:
    """What a kubeconfig says: the server's URL, its TLS context (None: plain HTTP), headers that prove who we are."""

    url: str
    tls: ssl.SSLContext | None
    headers: dict[str, str]

    @classmethod
    async def of(cls, kubeconfig: Path) -> Connection:
        settings = client.Configuration()
        await config.load_kube_config(config_file=str(kubeconfig), client_configuration=settings)
        token = await settings.get_api_key_with_prefix("BearerToken")
        headers = {"Authorization": token} if token else {}
        if settings.host.startswith("http://"):
            return cls(settings.host, None, headers)
        tls = ssl.create_default_context(cafile=settings.ssl_ca_cert)
        if settings.cert_file:
            tls.load_cert_chain(settings.cert_file, settings.key_file)
        return cls(settings.host, tls, headers)


class Connector(aiohttp.TCPConnector):
    """Connections to one server, at most `limit` (0: any number) at a time; all are gone when `close` returns.

    aiohttp's own lets go of a TLS connection before the server has answered its farewell. From a busy server the
    answer may come after the end of the event loop, and Python then reports an open socket, in some later test.
    """

    def __init__(self, server: Connection, *, limit: int) -> None:
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        super().__init__(ssl=server.tls or False, limit=limit, socket_factory=self._socket)

    def _socket(self, address: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, *_ = address
        made = socket.socket(family, kind, protocol)
        self._sockets.add(made)
        return made

    async def close(self, *, abort_ssl: bool = False) -> None:
        await super().close(abort_ssl=abort_ssl)
        for opened in self._sockets:
            with contextlib.suppress(OSError):  # closed, or not connected
                opened.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(TimeoutError):  # what is open still, Python reports
            async with asyncio.timeout(30):
                while any(opened.fileno() >= 0 for opened in self._sockets):
                    await asyncio.sleep(0.01)


class Api:
    """`async with Api(kubeconfig) as api:`; one connection pool of `connections` sockets.

    user, groups: act as somebody else, which the kubeconfig's own user must be allowed to (`kubectl --as`).
    """

    def __init__(self, kubeconfig: Path, *, connections: int = 32, user: str = "", groups: Sequence[str] = ()) -> None:
        self._kubeconfig = kubeconfig
        self._connections = connections
        self._as = [("Impersonate-User", user), *(("Impersonate-Group", group) for group in groups)] if user else []

    async def __aenter__(self) -> Self:
        server = await Connection.of(self._kubeconfig)
        self._session = aiohttp.ClientSession(
            base_url=server.url,
            # Watches live in the same pool and hold their socket, hence some extra.
            connector=Connector(server, limit=self._connections + 8),
            timeout=aiohttp.ClientTimeout(total=60),
            headers=CIMultiDict([("Accept", "application/json"), *server.headers.items(), *self._as]),
            read_bufsize=2**20,
        )
        self._slots = asyncio.Semaphore(self._connections)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """Send one request and return its object; raises ApiError for a refusal, aiohttp.ClientError for no answer."""
        data = None if body is None else orjson.dumps(body)
        headers = {"Content-Type": content_type} if data else {}
        async with (
            self._slots,
            self._session.request(method, path, data=data, params=params, headers=headers) as response,
        ):
            content = await response.read()
            if response.status >= 400:
                raise _error(response.status, content)
            return dict(orjson.loads(content))

    async def get(self, path: str) -> Object:
        return await self.request("GET", path)

    async def create(self, collection: str, body: Object) -> Object:
        return await self.request("POST", collection, body)

    async def merge(self, path: str, patch: Object) -> Object:
        """A JSON merge patch."""
        return await self.request("PATCH", path, patch, content_type=MERGE_PATCH)

    async def delete(self, path: str, *, grace_period_s: int | None = None) -> Object:
        body = None if grace_period_s is None else {"gracePeriodSeconds": grace_period_s}
        return await self.request("DELETE", path, body)

    async def new_namespace(self) -> str:
        """Make a namespace that nobody else has, and return its name."""
        made = await self.create(f"{CORE}/namespaces", {"metadata": {"generateName": "test-"}})
        return str(made["metadata"]["name"])

    async def allowed(
        self, user: str, namespace: str, *, verb: str = "*", group: str = "*", resource: str = "*"
    ) -> None:
        """Wait until a user may do this in a namespace: the API server heeds a new RoleBinding only a moment later."""
        asked = {"namespace": namespace, "verb": verb, "group": group, "resource": resource}
        body = {"spec": {"user": user, "resourceAttributes": asked}}
        async with asyncio.timeout(60):
            while not (await self.create(_REVIEWS, body))["status"]["allowed"]:
                await asyncio.sleep(0.1)

    async def items(self, collection: str, **params: str) -> tuple[list[Object], str]:
        """All objects of a collection, and the resourceVersion that a watch may start from."""
        found = await self.request("GET", collection, params=params)
        return list(found["items"]), str(found["metadata"]["resourceVersion"])

    async def watch(self, collection: str, version: str = "0", **params: str) -> AsyncIterator[tuple[str, Object]]:
        """Yield (type, object) for ever, reconnecting where the server breaks off; no event is lost or repeated.

        The last version seen is where it goes on. An expired version raises ApiError 410: the caller has then missed
        changes, which a test that counts them must not gloss over.
        """
        while True:
            try:
                async for kind, item in self._watch_once(collection, version, params):
                    version = item["metadata"]["resourceVersion"]
                    if kind != "BOOKMARK":
                        yield kind, item
            except (aiohttp.ClientError, TimeoutError, ConnectionError):
                await asyncio.sleep(0.2)
            except ApiError as error:
                if error.status < 500 and error.status not in {401, 403, 429}:  # 401, 403: a server still starting
                    raise
                await asyncio.sleep(0.2)

    async def seen(
        self,
        collection: str,
        what: Callable[[Object], bool],
        *,
        fields: str = "",
        name: str = "",
        within_s: float = 120.0,
    ) -> Object:
        """An object of a collection, with this name or these fields, once `what` holds for it."""
        fields = fields or (f"metadata.name={name}" if name else "")
        chosen = {"fieldSelector": fields} if fields else {}
        last: Object = {}
        try:
            async with asyncio.timeout(within_s):
                async for _, last in self.watch(collection, **chosen):
                    if what(last):
                        return last
        except TimeoutError:
            metadata = last.get("metadata", {})
            seen = {**last, "metadata": {key: metadata.get(key) for key in ("name", "annotations")}}
            raise AssertionError(f"{collection} {fields}: not within {within_s:.0f} s; last: {seen}") from None
        raise AssertionError("the watch never ends")

    async def follow(self, collection: str) -> AsyncIterator[tuple[str, Object]]:
        """As `watch` from the present state on, but survives an expired version, as after a restart of the API server.

        It then lists anew: what is there is ADDED once more, what is gone is DELETED (with its last metadata only).
        """
        known: dict[str, Object] = {}
        version = "0"
        while True:
            try:
                async for kind, item in self.watch(collection, version):
                    if kind == "DELETED":
                        known.pop(item["metadata"]["uid"], None)
                    else:
                        known[item["metadata"]["uid"]] = {"metadata": item["metadata"]}
                    yield kind, item
            except ApiError as error:
                if error.status != 410:
                    raise
            items, version = await self._items_at_last(collection)
            present = {item["metadata"]["uid"] for item in items}
            for uid in known.keys() - present:
                yield "DELETED", known.pop(uid)
            for item in items:
                known[item["metadata"]["uid"]] = {"metadata": item["metadata"]}
                yield "ADDED", item

    async def _items_at_last(self, collection: str) -> tuple[list[Object], str]:
        while True:
            try:
                return await self.items(collection)
            except (ApiError, aiohttp.ClientError, TimeoutError, ConnectionError):  # it has only just started
                await asyncio.sleep(0.2)

    async def _watch_once(
        self, collection: str, version: str, params: Mapping[str, str]
    ) -> AsyncIterator[tuple[str, Object]]:
        query = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": version, **params}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        async with self._session.get(collection, params=query, timeout=timeout) as response:
            if response.status >= 400:
                raise _error(response.status, await response.read())
            rest = b""
            async for data in response.content.iter_any():
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    event = orjson.loads(line)
                    if event["type"] == "ERROR":
                        raise _error(event["object"].get("code", 500), orjson.dumps(event["object"]))
                    yield event["type"], event["object"]


def _error(status: int, content: bytes) -> ApiError:
    try:
        answer = orjson.loads(content)
        return ApiError(status, str(answer.get("reason", "")), str(answer.get("message", "")))
    except (orjson.JSONDecodeError, AttributeError):
        return ApiError(status, "", content[:500].decode(errors="replace"))
