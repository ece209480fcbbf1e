"""The one seam to the API server: raw JSON over HTTP, with retries and errors of our own.

    ApiError                what was asked and what the server said
    ├── NotFound            404
    ├── Conflict            409: somebody wrote first, or the name is taken (`already_exists`)
    ├── Expired             410: the resource version is too old to go on from
    ├── Invalid             400, 403, 422: asking again will not help
    └── Unavailable         429, 5xx, or no answer: retried here, raised when that lasted too long

Configuration and credentials are read by the `kubernetes` package (kubeconfig, exec plugins, OIDC, service accounts);
typed models are left out of the hot path, where they would cost ten times the CPU of the JSON they wrap.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import aiohttp
import orjson
import structlog
import tenacity
from aiolimiter import AsyncLimiter
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import load_incluster_config, load_kube_config

from elastic_tfjob.controller import metrics

__all__ = [
    "ApiClient",
    "ApiError",
    "Conflict",
    "Expired",
    "Invalid",
    "NotFound",
    "Unavailable",
    "in_cluster",
    "load_configuration",
]

log = structlog.get_logger(__name__)

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"
METADATA_ONLY: Final = "application/json;as={};g=meta.k8s.io;v=v1,application/json"

_TIMEOUT: Final = aiohttp.ClientTimeout(total=30, sock_connect=5)
# A watch lives for minutes; silence for longer than the server's own timeout means that the connection is dead.
_WATCH_S: Final = 300
_WATCH_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=_WATCH_S + 30)
_ATTEMPTS: Final = 6
_MAX_WAIT_S: Final = 10.0
_EXCERPT: Final = 400


class ApiError(Exception):
    """A request that failed: `status` is the HTTP status (0 for no answer), `reason` Kubernetes' CamelCase word."""

    def __init__(self, request: str, status: int, reason: str, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(f"{request}: {status} {reason}: {message}"[:_EXCERPT])
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s


class NotFound(ApiError):
    """The object or the resource does not exist."""


class Conflict(ApiError):
    """The write was refused because of what is there already."""

    @property
    def already_exists(self) -> bool:
        """True when an object of that name exists; False when the object changed since it was read."""
        return self.reason == "AlreadyExists"


class Expired(ApiError):
    """The resource version or continue token is too old."""


class Invalid(ApiError):
    """The server will refuse this request however often it is sent."""


class Unavailable(ApiError):
    """The server is overloaded, failing or away."""


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


class ApiClient:
    """Requests to one API server, at most `concurrency` at a time and `qps` a second (0: no limit of ours; the server's
    priority and fairness then decides)."""

    def __init__(self, configuration: Configuration, *, concurrency: int = 32, qps: float = 0, burst: int = 0) -> None:
        self._configuration = configuration
        self._base = str(configuration.host).rstrip("/")
        rest = RESTClientObject(configuration)
        self._ssl = rest.ssl_context
        self._proxy = rest.proxy
        self._slots = asyncio.Semaphore(concurrency)
        # A leaky bucket of `burst` that empties at `qps`.
        self._limiter = AsyncLimiter(max(burst, 1), max(burst, 1) / qps) if qps else None
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._ssl),
            skip_auto_headers=("User-Agent",),
            headers={"User-Agent": "elastic-tfjob"},
        )

    async def __aenter__(self) -> "ApiClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def get(self, path: str, *, accept: str = JSON, **params: str) -> dict[str, Any]:
        """Read an object or a list."""
        return await self._retrying("GET", path, params=params, accept=accept)

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object. A retry after a lost answer may find the object there: Conflict, `already_exists`."""
        return await self._retrying("POST", path, body=body)

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
        self, method: str, path: str, body: Mapping[str, Any] | None = None, timeout_s: float = 5.0
    ) -> dict[str, Any]:
        """One request without retries, for callers with a deadline of their own."""
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        return await self._request(method, path, body=body, timeout=timeout)

    async def raw(self, path: str, timeout_s: float) -> bytes:
        """What is at a path, unread and without retries: for what the API server only passes on."""
        return await self._exchange("GET", path, timeout=aiohttp.ClientTimeout(total=timeout_s))

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
                timeout=_WATCH_TIMEOUT,
                **self._transport(),
            ) as response:
                if response.status >= 400:
                    raise _error(name, response.status, await response.read(), response.headers)
                # Whole chunks instead of lines: one event may be larger than aiohttp's limit for a line.
                rest = b""
                async for chunk in response.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        event = orjson.loads(line)
                        if event["type"] == "ERROR":
                            status = event["object"]
                            raise _error(name, status.get("code", 500), orjson.dumps(status), {})
                        yield event
        except (aiohttp.ClientError, TimeoutError, OSError, orjson.JSONDecodeError) as error:
            raise Unavailable(name, 0, type(error).__name__, str(error)) from error

    async def _retrying(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        async for attempt in tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(Unavailable),
            stop=tenacity.stop_after_attempt(_ATTEMPTS),
            wait=_wait,
            reraise=True,
        ):
            with attempt:
                async with self._slots:
                    if self._limiter is not None:
                        await self._limiter.acquire()
                    return await self._request(method, path, **arguments)
        raise AssertionError("tenacity re-raises")  # pragma: no cover

    async def _request(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        answer = await self._exchange(method, path, **arguments)
        try:
            found: dict[str, Any] = orjson.loads(answer)
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
    ) -> bytes:
        headers = await self._headers(accept)
        data = None
        if body is not None:
            headers["Content-Type"] = content_type
            data = orjson.dumps(body)
        name = f"{method} {path}"
        try:
            async with self._session.request(
                method,
                self._base + path,
                params=params,
                data=data,
                headers=headers,
                timeout=timeout,
                **self._transport(),
            ) as response:
                answer = await response.read()
                metrics.API_REQUESTS.labels(method, str(response.status)).inc()
                if response.status >= 400:
                    raise _error(name, response.status, answer, response.headers)
                return answer
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            metrics.API_REQUESTS.labels(method, type(error).__name__).inc()
            raise Unavailable(name, 0, type(error).__name__, str(error)) from error

    async def _headers(self, accept: str) -> dict[str, str]:
        headers = {"Accept": accept}
        # Asked for each request: the token of a service account is rotated under us.
        if token := await self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization"):
            headers["Authorization"] = token
        return headers

    def _transport(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self._proxy:
            found["proxy"] = self._proxy
        if server := getattr(self._configuration, "tls_server_name", None):
            found["server_hostname"] = server
        return found


def _wait(state: tenacity.RetryCallState) -> float:
    """Back off with jitter, and at least for as long as the server asked for."""
    error = state.outcome.exception() if state.outcome else None
    asked = error.retry_after_s if isinstance(error, ApiError) else 0.0
    return max(asked, tenacity.wait_random_exponential(multiplier=0.1, max=_MAX_WAIT_S)(state))


def _error(request: str, status: int, answer: bytes, headers: Mapping[str, str]) -> ApiError:
    reason, message = "", answer[:_EXCERPT].decode(errors="replace")
    with contextlib.suppress(orjson.JSONDecodeError, AttributeError):
        found = orjson.loads(answer)
        reason, message = found.get("reason") or "", found.get("message") or message
    kind: type[ApiError]
    if status == 404:
        kind = NotFound
    elif status == 409:
        kind = Conflict
    elif status == 410 or reason == "Expired":
        kind = Expired
    elif status == 429 or status >= 500:
        kind = Unavailable
    else:
        kind = Invalid
    try:
        retry_after_s = min(float(headers.get("Retry-After", 0)), 30.0)
    except ValueError:  # an HTTP date; nobody in Kubernetes sends one
        retry_after_s = 1.0
    return kind(request, status, reason, message, retry_after_s)
