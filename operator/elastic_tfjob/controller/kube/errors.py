"""What a request to the API server can end with, other than an answer.

ApiError                what was asked and what the server said
├── NotFound            404
├── Conflict            409: somebody wrote first, or the name is taken (`already_exists`)
├── Expired             410: the resource version is too old to go on from
├── TooLarge            an answer of more bytes than the caller wants
├── Invalid             3xx, 400, 403, 422: asking again will not help
└── Unavailable         429, 5xx, or no answer: retried here, raised when that lasted too long
    └── Fenced          not sent: this replica must not write (any more)
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
"""Characters of what the server says."""


class ApiError(Exception):
    """A request that failed: `status` is the HTTP status (0 for no answer), `reason` Kubernetes' CamelCase word, which
    is empty where the answer was too long to be read to its end."""

    def __init__(self, request: str, status: int, reason: str, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(f"{request}: {status} {reason}: {message[:_EXCERPT]}"[:_EXCERPT])
        self.status = status
        self.reason = reason
        self.message = message[:MAX_MESSAGE]
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


class TooLarge(ApiError):
    """The answer has more bytes than the caller wants to read."""


class Invalid(ApiError):
    """The server will refuse this request however often it is sent."""


class Unavailable(ApiError):
    """The server is overloaded, failing or away."""


class Fenced(Unavailable):
    """This replica must not write now, so the request was not sent."""


def error_of(request: str, status: int, answer: bytes, headers: Mapping[str, str]) -> ApiError:
    """What an answer with that HTTP status, body and headers says."""
    reason, message = "", answer[:_EXCERPT].decode(errors="replace")
    with contextlib.suppress(orjson.JSONDecodeError, AttributeError):
        found = orjson.loads(answer)
        reason, message = str(found.get("reason") or ""), str(found.get("message") or message)
        if isinstance(problem := found.get("error"), dict):  # the query API's own words
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
    except ValueError:  # an HTTP date; nobody in Kubernetes sends one
        retry_after_s = 1.0
    return kind(request, status, reason, message, retry_after_s)
