"""Authentication and authorisation of the query API. `--query-auth` chooses the Gate."""

import asyncio
import secrets
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Hashable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass, field
from hashlib import blake2b
from ipaddress import IPv6Address, ip_address
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

from elastic_tfjob.controller.kube.errors import ApiError
from elastic_tfjob.controller.model.settings import QueryLimits
from elastic_tfjob.controller.query.rows.listing import QueryRefused

__all__ = [
    "ANYBODY",
    "STRANGERS",
    "TOKEN_HEADER",
    "Asker",
    "Auth",
    "Gate",
    "HeaderGate",
    "NoGate",
    "Remembered",
    "Reviewer",
    "Room",
    "TokenGate",
    "Turns",
    "gate_of",
    "host_of",
    "is_loopback",
    "refuse_open_address",
]


@dataclass(frozen=True, slots=True)
class Asker:
    """A user as identified by the API server."""

    user: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)


ANYBODY: Final = Asker("")


class Gate(Protocol):
    """Identifies users and checks their rights. All methods raise QueryRefused."""

    async def asker(self, headers: Mapping[str, str], peer: str) -> Asker:
        """The user who sent a request, from its headers and client address."""
        ...

    async def namespaces(self, asker: Asker, among: Collection[str]) -> Collection[str] | None:
        """Those of the namespaces `among` whose TFJobs the user may list; None: all namespaces."""
        ...

    async def nodes(self, asker: Asker) -> None:
        """Returns if the user may list nodes."""
        ...


class NoGate:
    """Any client of the loopback address may see everything. A web page could reach the address through a browser (DNS
    rebinding), so the Host header must name a loopback address."""

    async def asker(self, headers: Mapping[str, str], peer: str) -> Asker:
        if not is_loopback(host_of(headers.get("Host", ""))):
            raise QueryRefused(
                403, "the host name is not a loopback address", where="Host", allowed="localhost or 127.0.0.1"
            )
        return ANYBODY

    async def namespaces(self, asker: Asker, among: Collection[str]) -> Collection[str] | None:
        return None

    async def nodes(self, asker: Asker) -> None:
        return None


def host_of(address: str) -> str:
    """The host in `host:port`, `[host]:port` or `host`."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.rpartition(":")[0] if address.count(":") == 1 else address


def is_loopback(host: str) -> bool:
    """Whether an address is reachable only from this machine."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def refuse_open_address(address: str, auth: str) -> None:
    """Raises ValueError for an address at which anyone could see everything."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise ValueError(f"{address!r} is not an address; allowed: HOST:PORT, [HOST]:PORT, :PORT, or 0 for no server")
    if int(port) and auth == "none" and not is_loopback(host.strip("[]")):
        raise ValueError(
            f"{address} is reachable from other machines, and --query-auth=none does not authenticate users: "
            f"use 127.0.0.1:{port} (kubectl port-forward reaches it), or --query-auth=token"
        )


# -- Fair shares of concurrent requests and of request rate ------------------------------------------------------------
# A user with many requests is refused, or waits behind their own requests.

_AGAIN_S: Final = 1


class Room:
    """`most` places shared fairly. A holder cannot hold more places than are free: a single holder gets at most half,
    two get a third each, so that there is always room for the next one. `what` names the places in messages."""

    def __init__(self, most: Callable[[], int], what: str) -> None:
        self._most = most
        self._what = what
        self._held: Counter[Hashable] = Counter()
        self._all = 0

    @contextmanager
    def hold(self, holder: Hashable, *, alone: bool = False) -> Iterator[None]:
        """Hold a place while the context is open. `alone`: there is only one holder, who may have all places. Raises
        QueryRefused with 503 if no place is free, with 429 if this holder has too many."""
        most = self._most()
        if self._all >= most:
            raise QueryRefused(503, f"the limit of {most} open {self._what} is reached", again_s=_AGAIN_S)
        if not alone and self._held[holder] >= most - self._all:
            mine = self._held[holder]
            raise QueryRefused(429, f"you have {mine} open {self._what}, your share of the limit", again_s=_AGAIN_S)
        self._held[holder] += 1
        self._all += 1
        try:
            yield
        finally:
            self._all -= 1
            self._held[holder] -= 1
            if not self._held[holder]:
                del self._held[holder]


class Turns:
    """Limits turns to `per_s` per second (twice as many after a pause) and `at_once` at the same time. Waiting sources
    take turns, so each waits for one turn of every other source and for its own earlier requests. `most`: how many may
    wait."""

    def __init__(
        self,
        per_s: Callable[[], float],
        at_once: int,
        most: int,
        what: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_s = per_s
        self._at_once = at_once
        self._room = Room(lambda: most, what)
        self._clock = clock
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()
        self._under_way = 0
        # A leaky bucket that drains at `per_s`: time and level of the last update.
        self._at, self._level = clock(), 0.0
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def turn(self, source: Hashable) -> AsyncIterator[None]:
        """Wait for a turn, and keep it while the context is open. Raises QueryRefused if too many are waiting."""
        with self._room.hold(source):
            await self._wait(source)
        try:
            yield
        finally:
            self._end()

    async def _wait(self, source: Hashable) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(source, deque()).append(turn)
        self._go_on()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the turn came at the same moment
                self._end()
            raise

    def _end(self) -> None:
        self._under_way -= 1
        self._go_on()

    def _go_on(self) -> None:
        """Give as many turns to waiting sources as are available."""
        while self._waiting and self._under_way < self._at_once:
            now, per_s = self._clock(), self._per_s()
            self._at, self._level = now, max(0.0, self._level - per_s * (now - self._at))
            if (late := (self._level + 1.0 - max(1.0, 2 * per_s)) / per_s) > 0:
                if self._timer is None:
                    self._timer = asyncio.get_running_loop().call_later(late, self._wake)
                return
            source, turns = next(iter(self._waiting.items()))
            turn = turns.popleft()
            if turns:
                self._waiting.move_to_end(source)
            else:
                del self._waiting[source]
            if not turn.cancelled():
                turn.set_result(None)
                self._level += 1.0
                self._under_way += 1

    def _wake(self) -> None:
        self._timer = None
        self._go_on()


# -- Gates that ask the API server -------------------------------------------------------------------------------------
# TokenReview identifies the user of a token; SubjectAccessReview says what a user may read. Answers are cached for a
# bounded time and a bounded number of users, so a revoked right stays effective for at most `allow_cache_s`. Tokens are
# stored only as keyed digests. Reviews are rate-limited fairly. Unknown tokens take turns by client address, and
# everything else takes turns by user, so known users never wait for unknown tokens.

Auth = Literal["none", "token", "header"]
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_TOKENS: Final = 1024
# Entries for a user, resource and namespace, each less than half a KiB.
_RIGHTS: Final = 8192
# Most namespaces to check one by one for a user who may not list the TFJobs of all.
_NAMESPACES: Final = 256
# Concurrent reviews, of tokens and of users each.
_IN_FLIGHT: Final = 16
# Waiting reviews of users. One user has at most half, twice as many as namespaces are checked for one answer.
_WAITING: Final = 4 * _NAMESPACES
STRANGERS: Final = 128
"""Requests that wait for authentication. They do not count as open requests yet."""
_TIMEOUT_S: Final = 5.0
_MAX_TOKEN: Final = 8192
_MAX_USER: Final = 253
_GROUPS: Final = 256
_TOKEN_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_EVERYBODY: Final = "system:authenticated"
TOKEN_HEADER: Final = "X-Elastic-Tfjob-Token"
"""A page of another origin cannot send this header, because browsers send a preflight request first, which gets no
answer."""


class Reviewer(Protocol):
    """The part of the API client that is needed: one request without retries."""

    async def once(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, timeout_s: float = 5.0
    ) -> dict[str, Any]: ...


class Remembered(Generic[K, V]):
    """A cache of answers by question; each is kept for `keep_s(answer)` seconds. It holds at most `most` positive
    (true) answers and as many negative ones, so that invented questions do not evict granted rights. `owner` gives the
    owner of a positive answer, who gets at most an eighth of the cache. Concurrent equal questions share one answer;
    errors are not cached."""

    def __init__(
        self,
        most: int,
        keep_s: Callable[[V], float],
        owner: Callable[[V], Hashable] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._keep_s = keep_s
        self._owner = owner
        self._clock = clock
        self._known: dict[bool, OrderedDict[K, tuple[float, V]]] = {True: OrderedDict(), False: OrderedDict()}
        self._asking: dict[K, asyncio.Task[V]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._known.values()))

    def last(self, question: K) -> V | None:
        """The last positive answer, which may have expired."""
        known = self._known[True].get(question)
        return known[1] if known is not None else None

    async def get(
        self,
        question: K,
        ask: Callable[[], Awaitable[V]],
        waiting: AbstractContextManager[None] | None = None,
    ) -> V:
        """The answer: from the cache, from a request under way, or from a new request. `waiting` is open while waiting
        for a request. Raises what `ask` and `waiting` raise."""
        for answers in self._known.values():
            known = answers.get(question)
            if known is not None and self._clock() < known[0]:
                answers.move_to_end(question)
                return known[1]
        with waiting or nullcontext():
            task = self._asking.get(question)
            if task is None:
                task = self._asking[question] = asyncio.create_task(self._ask(question, ask))
                task.add_done_callback(
                    lambda done: done.cancelled() or done.exception()
                )  # all waiting clients may have disconnected
            return await asyncio.shield(task)

    async def _ask(self, question: K, ask: Callable[[], Awaitable[V]]) -> V:
        try:
            answer = await ask()
        finally:
            del self._asking[question]
        self._known[not answer].pop(question, None)
        answers = self._known[bool(answer)]
        answers[question] = self._clock() + self._keep_s(answer), answer
        answers.move_to_end(question)
        if answer and self._owner is not None and len(answers) > self._most // 8:
            owner = self._owner(answer)
            mine = [asked for asked, (_, given) in answers.items() if self._owner(given) == owner]
            if len(mine) > self._most // 8:
                del answers[mine[0]]
        while len(answers) > self._most:
            answers.popitem(last=False)
        return answer


class _RightsGate:
    """Checks rights with the API server's authorizers."""

    def __init__(self, api: Reviewer, limits: Callable[[], QueryLimits]) -> None:
        self._api = api
        self._limits = limits
        self._rights: Remembered[tuple[Asker, str, str], bool] = Remembered(_RIGHTS, self._keep_s)
        self._turns = Turns(lambda: self._limits().max_access_reviews_per_s, _IN_FLIGHT, _WAITING, "access reviews")

    def _keep_s(self, allowed: object) -> float:
        limits = self._limits()
        return limits.allow_cache_s if allowed else limits.deny_cache_s

    async def namespaces(self, asker: Asker, among: Collection[str]) -> Collection[str] | None:
        if len(among) != 1 and await self._may_list(asker, "tfjobs", ""):
            return None
        if len(among) > _NAMESPACES:
            message = (
                f"you may not list the TFJobs of all namespaces, and more than {_NAMESPACES} namespaces have TFJobs"
            )
            raise QueryRefused(400, message, where="namespace", allowed="one namespace")
        ordered = sorted(among)
        answers = await asyncio.gather(*(self._may_list(asker, "tfjobs", each) for each in ordered))
        return {name for name, allowed in zip(ordered, answers, strict=True) if allowed}

    async def nodes(self, asker: Asker) -> None:
        if not await self._may_list(asker, "nodes", ""):
            raise QueryRefused(403, "you may not list nodes", allowed="a ClusterRole with the verb list on nodes")

    async def _may_list(self, asker: Asker, resource: str, namespace: str) -> bool:
        async def ask() -> bool:
            group = "kubeflow.org" if resource == "tfjobs" else ""
            attributes = {"verb": "list", "group": group, "resource": resource, "namespace": namespace}
            spec: dict[str, Any] = {"user": asker.user, "groups": list(asker.groups), "resourceAttributes": attributes}
            if asker.uid:
                spec["uid"] = asker.uid
            if asker.extra:
                spec["extra"] = {name: list(values) for name, values in asker.extra.items()}
            status = await self._review(
                self._turn(asker), _ACCESS_REVIEWS, "authorization.k8s.io/v1", "SubjectAccessReview", spec
            )
            return status.get("allowed") is True

        return await self._rights.get((asker, resource, namespace), ask)

    def _turn(self, asker: Asker) -> AbstractAsyncContextManager[None]:
        """A turn by user name, because each token of a ServiceAccount is a different Asker (it differs in `extra`)."""
        return self._turns.turn(asker.user)

    async def _review(
        self, turn: AbstractAsyncContextManager[None], path: str, version: str, kind: str, spec: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The status of a review. Reviews are not stored."""
        try:
            async with turn:
                answer = await self._api.once(
                    "POST", path, {"apiVersion": version, "kind": kind, "spec": spec}, timeout_s=_TIMEOUT_S
                )
        except ApiError as error:
            hint = f": the operator has no right to create a {kind} (manifests/components/query-api)"
            why = hint if error.status == 403 else ", which does not answer"
            raise QueryRefused(503, f"users cannot be authenticated without the API server{why}", again_s=5) from error
        status = answer.get("status")
        return status if isinstance(status, dict) else {}


class TokenGate(_RightsGate):
    """Authenticates `Authorization: Bearer TOKEN` with any token that the API server accepts. The API server's proxy
    does not forward that header, so the token may also be in the header `X-Elastic-Tfjob-Token`."""

    def __init__(self, api: Reviewer, limits: Callable[[], QueryLimits]) -> None:
        super().__init__(api, limits)
        self._askers: Remembered[bytes, Asker | None] = Remembered(
            _TOKENS, self._keep_s, lambda asker: asker.user if asker is not None else None
        )
        self._strangers = Turns(
            lambda: self._limits().max_reviews_per_s, _IN_FLIGHT, STRANGERS, "reviews of unknown tokens"
        )
        # Several requests may share a token and so a turn.
        self._waiting = Room(lambda: STRANGERS, "requests with unknown tokens")
        self._key = secrets.token_bytes(32)

    async def asker(self, headers: Mapping[str, str], peer: str) -> Asker:
        scheme, _, token = headers.get("Authorization", "").strip().partition(" ")
        token = token.strip()
        if not scheme and (own := headers.get(TOKEN_HEADER, "").strip()):
            scheme, token = "bearer", own
        if scheme.lower() != "bearer" or not token:
            raise QueryRefused(401, "no token was sent", where="Authorization", allowed="Bearer TOKEN")
        if len(token) > _MAX_TOKEN or not (token.isascii() and token.isprintable()):
            raise QueryRefused(401, "the token is malformed", where="Authorization", allowed="Bearer TOKEN")

        digest = blake2b(token.encode(), key=self._key, digest_size=32).digest()
        before, source = self._askers.last(digest), _source(peer)

        async def ask() -> Asker | None:
            turn = self._strangers.turn(source) if before is None else self._turn(before)
            status = await self._review(
                turn, _TOKEN_REVIEWS, "authentication.k8s.io/v1", "TokenReview", {"token": token}
            )
            return _asker(status)

        place = ("address", source) if before is None else ("user", before.user)
        found = await self._askers.get(digest, ask, self._waiting.hold(place))
        if found is None:
            raise QueryRefused(
                401, "the API server does not accept this token", where="Authorization", allowed="Bearer TOKEN"
            )
        return found


class HeaderGate(_RightsGate):
    """Takes the user's name from a header. A proxy in front of the operator (Istio) sets it and removes it from
    clients' requests."""

    def __init__(self, api: Reviewer, limits: Callable[[], QueryLimits], header: str) -> None:
        super().__init__(api, limits)
        self._header = header

    async def asker(self, headers: Mapping[str, str], peer: str) -> Asker:
        user = headers.get(self._header, "")
        several = getattr(headers, "getall", None)
        if several is not None and len(several(self._header, ())) > 1:
            # If the proxy adds the header without replacing it, clients could claim any name.
            raise QueryRefused(401, "the header with the user's name is given twice", where=self._header)
        if not user:
            raise QueryRefused(401, "the header with the user's name is missing", where=self._header)
        if len(user) > _MAX_USER or not user.isprintable():
            raise QueryRefused(
                401, "the user's name is invalid", where=self._header, allowed=f"up to {_MAX_USER} characters"
            )
        if user.startswith("system:"):
            raise QueryRefused(
                403, "the user's name is reserved", where=self._header, allowed="names that do not start with system:"
            )
        return Asker(user, (_EVERYBODY,))


def gate_of(auth: Auth, api: Reviewer, limits: Callable[[], QueryLimits], header: str) -> Gate:
    """The gate for a value of --query-auth."""
    if auth == "token":
        return TokenGate(api, limits)
    return HeaderGate(api, limits, header) if auth == "header" else NoGate()


def _source(peer: str) -> str:
    """The client that an address counts for. For IPv6 it is the /64 network, since one machine may have all its
    addresses."""
    try:
        address = ip_address(peer.partition("%")[0])
    except ValueError:
        return peer
    if isinstance(address, IPv6Address):
        mapped = address.ipv4_mapped
        return str(mapped) if mapped is not None else str(IPv6Address(int(address) >> 64 << 64))
    return str(address)


def _asker(status: Mapping[str, Any]) -> Asker | None:
    """The user in a TokenReview; None: not authenticated."""
    user = status.get("user")
    if status.get("authenticated") is not True or not isinstance(user, Mapping) or not user.get("username"):
        return None
    return Asker(
        str(user["username"]),
        tuple(map(str, (user.get("groups") or ())[:_GROUPS])),
        str(user.get("uid") or ""),
        {str(name): tuple(map(str, values or ())) for name, values in (user.get("extra") or {}).items()},
    )
