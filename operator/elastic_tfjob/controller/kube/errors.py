"""The errors of requests to the API server.

ApiError                the request and the server's message
├── NotFound            404
├── Conflict            409: another client wrote first, or the name is taken (`already_exists`)
├── Expired             410: the resource version is too old to resume from
├── TooLarge            the answer exceeds the caller's limit in bytes
├── Invalid             3xx, 400, 403, 422: a retry will not help
└── Unavailable         429, 5xx, or no answer: raised after all retries have failed
    └── Fenced          not sent: this replica must not write now
"""

import contextlib
from collections.abc import Mapping
from typing import Final

import orjson

__all__ = [
    "MAX_MESSAGE",
    "ApiError",
    "Conflict",
    "Expired",
    "Fenced",
    "Invalid",
    "NotFound",
    "TooLarge",
    "Unavailable",
    "error_of",
]

_EXCERPT: Final = 400
MAX_MESSAGE: Final = 1024
"""Maximum characters of the server's message."""


class ApiError(Exception):
    """A failed request. `status` is the HTTP status, 0 without an answer. `reason` is Kubernetes' CamelCase reason,
    empty if the answer was too long to be read completely. `retry_after_s` is the delay that the server asks for."""

    def __init__(self, request: str, status: int, reason: str, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(f"{request}: {status} {reason}: {message[:_EXCERPT]}"[:_EXCERPT])
        self.status = status
        self.reason = reason
        self.message = message[:MAX_MESSAGE]
        self.retry_after_s = retry_after_s


class NotFound(ApiError):
    """The object or the resource does not exist."""


class Conflict(ApiError):
    """The write was rejected because of the existing object."""

    @property
    def already_exists(self) -> bool:
        """True if an object of that name exists; False if the object has changed since it was read."""
        return self.reason == "AlreadyExists"


class Expired(ApiError):
    """The resource version or continue token is too old."""


class TooLarge(ApiError):
    """The answer exceeds the caller's limit in bytes."""


class Invalid(ApiError):
    """The server rejects this request; a retry will not help."""


class Unavailable(ApiError):
    """The server is overloaded, failing or unreachable."""


class Fenced(Unavailable):
    """This replica must not write now, so the request was not sent."""


def error_of(request: str, status: int, answer: bytes, headers: Mapping[str, str]) -> ApiError:
    """The error for an answer with this HTTP status, body and headers."""
    reason, message = "", answer[:_EXCERPT].decode(errors="replace")
    with contextlib.suppress(orjson.JSONDecodeError, AttributeError):
        found = orjson.loads(answer)
        reason, message = str(found.get("reason") or ""), str(found.get("message") or message)
        if isinstance(problem := found.get("error"), dict):  # the error format of the query API
            hint = f"; allowed: {problem['allowed']}" if problem.get("allowed") else ""
            place = f"{problem['where']}: " if problem.get("where") else ""
            message = f"{place}{problem.get('message')}{hint}"
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
    except ValueError:  # an HTTP date, which Kubernetes never sends
        retry_after_s = 1.0
    return kind(request, status, reason, message, retry_after_s)
