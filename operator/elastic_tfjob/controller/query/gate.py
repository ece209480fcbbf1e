"""Who asks, and what they may see. A Gate of another kind is chosen by `--query-auth`."""

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
    """A user as the API server knows them."""

    user: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)


ANYBODY: Final = Asker("")


class Gate(Protocol):
    """Both raise QueryRefused."""

    async def asker(self, headers: Mapping[str, str], peer: str) -> Asker:
        """Who sends a request, by its headers and the address that it comes from."""
        ...

    async def namespaces(self, asker: Asker, among: Collection[str]) -> Collection[str] | None:
        """The namespaces among these whose TFJobs the asker may list; None: all that there are."""
        ...

    async def nodes(self, asker: Asker) -> None:
        """Return if the asker may list nodes."""
        ...


class NoGate:
    """Whoever reaches the loopback address may see all. A browser reaches it, too, for a page whose name leads there
    (DNS rebinding), so the header Host has to name a loopback address."""

    async def asker(self, headers: Mapping[str, str], peer: str) -> Asker:
        if not is_loopback(host_of(headers.get("Host", ""))):
            raise QueryRefused(
                403, "this name is not the operator's own", where="Host", allowed="localhost or 127.0.0.1"
            )
        return ANYBODY

    async def namespaces(self, asker: Asker, among: Collection[str]) -> Collection[str] | None:
        return None

    async def nodes(self, asker: Asker) -> None:
        return None


def host_of(address: str) -> str:
    """The host of `host:port`, `[host]:port` or a host alone."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.rpartition(":")[0] if address.count(":") == 1 else address


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach an address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def refuse_open_address(address: str, auth: str) -> None:
    """Raises ValueError where everybody would see everything."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise ValueError(f"{address!r} is no address: allowed is HOST:PORT, [HOST]:PORT, :PORT, or 0 for no server")
    if int(port) and auth == "none" and not is_loopback(host.strip("[]")):
        raise ValueError(
            f"{address} can be reached from other machines, and --query-auth=none asks nobody who they are: "
            f"listen at 127.0.0.1:{port} (kubectl port-forward reaches it), or choose --query-auth=token"
        )


# -- Room and turns that nobody takes from others ----------------------------------------------------------------------
# Who asks much is refused, or waits, behind their own questions.

_AGAIN_S: Final = 1


class Room:
    """Places, `most` in all. Nobody holds more of them than are free: one holder has half at the most, two have a third
    each, and there is room for who comes next. `what` says what the places are, in messages."""

    def __init__(self, most: Callable[[], int], what: str) -> None:
        self._most = most
        self._what = what
        self._held: Counter[Hashable] = Counter()
        self._all = 0

    @contextmanager
    def hold(self, holder: Hashable, *, alone: bool = False) -> Iterator[None]:
        """Hold a place while the context is open. `alone`: there is one holder only, who may have all. Raises
        QueryRefused: 503 where there is no place, 429 where this holder has too many."""
        most = self._most()
        if self._all >= most:
            raise QueryRefused(503, f"{most} {self._what} are open, and no more are taken at once", again_s=_AGAIN_S)
        if not alone and self._held[holder] >= most - self._all:
            mine = self._held[holder]
            raise QueryRefused(429, f"you have {mine} {self._what} open, and others need the rest", again_s=_AGAIN_S)
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
    """`per_s` turns in a second, and twice as many at once after a pause; `at_once` at the same time. Sources that wait
    have them one after the other, so each waits for one turn of every other source and for its own questions. `most`:
    how many may wait."""

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
        # A bucket that runs out at `per_s`: when it was looked at last, and how full it was then.
        self._at, self._level = clock(), 0.0
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def turn(self, source: Hashable) -> AsyncIterator[None]:
        """Wait for a turn, and have it while the context is open. Raises QueryRefused where too many wait already."""
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
            if not turn.cancelled():  # it had come at the same moment
                self._end()
            raise

    def _end(self) -> None:
        self._under_way -= 1
        self._go_on()

    def _go_on(self) -> None:
        """Give turns to who waits, as many as there are now."""
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


# -- The gates that ask the API server ---------------------------------------------------------------------------------
# Who a token is of (TokenReview), and what somebody may read (SubjectAccessReview).
#
# What was learned is remembered for a bounded time and of a bounded number of askers, so a right that is taken away
# holds on for `allow_cache_s` at the most. Tokens are kept as keyed digests only.
#
# Questions are bounded, and nobody's wait behind all those of somebody else. Tokens that were never accepted take turns
# by the address that they come from; all else takes turns by user, and so never waits for them.

Auth = Literal["none", "token", "header"]
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_TOKENS: Final = 1024
# Each of a user, a resource and a namespace of up to 63 characters: less than half a KiB.
_RIGHTS: Final = 8192
# Namespaces that are looked at one by one for an asker who may not list the TFJobs of all.
_NAMESPACES: Final = 256
# Questions to the API server that are under way at once, about tokens and about users each.
_IN_FLIGHT: Final = 16
# Those about users that wait: one user has half at the most, which is one for each of twice as many namespaces as are
# looked at for an answer.
_WAITING: Final = 4 * _NAMESPACES
STRANGERS: Final = 128
"""Requests that wait until it is known whose they are. They are not among the open ones yet."""
_TIMEOUT_S: Final = 5.0
_MAX_TOKEN: Final = 8192
_MAX_USER: Final = 253
_GROUPS: Final = 256
_TOKEN_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_EVERYBODY: Final = "system:authenticated"
TOKEN_HEADER: Final = "X-Elastic-Tfjob-Token"
"""A page of another origin cannot send it: browsers would ask first, and are not answered."""


class Reviewer(Protocol):
    """What is needed of the client: one request without retries."""

    async def once(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, timeout_s: float = 5.0
    ) -> dict[str, Any]: ...


class Remembered(Generic[K, V]):
    """Answers by question, each for as long as `keep_s` says of it: at most `most` that say yes (are true), and as many
    that say no, so that what somebody invents pushes nobody's right out. `owner` says whom a yes is about, of whom an
    eighth is remembered at the most. Who asks the same at the same time shares one answer; errors are not remembered.
    """

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
        """What was answered last, if that was a yes; it may hold no more."""
        known = self._known[True].get(question)
        return known[1] if known is not None else None

    async def get(
        self,
        question: K,
        ask: Callable[[], Awaitable[V]],
        waiting: AbstractContextManager[None] | None = None,
    ) -> V:
        """The answer: remembered, under way, or asked for now, and then `waiting` is open until it comes. Raises what
        `ask` and `waiting` raise."""
        for answers in self._known.values():
            known = answers.get(question)
            if known is not None and self._clock() < known[0]:
                answers.move_to_end(question)
                return known[1]
        with waiting or nullcontext():
            task = self._asking.get(question)
            if task is None:
                task = self._asking[question] = asyncio.create_task(self._ask(question, ask))
                task.add_done_callback(lambda done: done.cancelled() or done.exception())  # somebody may have hung up
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
    """What an asker may see, as the API server's authorizers say."""

    def __init__(self, api: Reviewer, limits: Callable[[], QueryLimits]) -> None:
        self._api = api
        self._limits = limits
        self._rights: Remembered[tuple[Asker, str, str], bool] = Remembered(_RIGHTS, self._keep_s)
        self._turns = Turns(
            lambda: self._limits().max_access_reviews_per_s, _IN_FLIGHT, _WAITING, "questions to the API server"
        )

    def _keep_s(self, allowed: object) -> float:
        limits = self._limits()
        return limits.allow_cache_s if allowed else limits.deny_cache_s

    async def namespaces(self, asker: Asker, among: Collection[str]) -> Collection[str] | None:
        if len(among) != 1 and await self._may_list(asker, "tfjobs", ""):
            return None
        if len(among) > _NAMESPACES:
            message = f"there are TFJobs in more than {_NAMESPACES} namespaces, and you may not list those of all"
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
        """By the user's name: each token of a ServiceAccount is another Asker, by what `extra` says of it."""
        return self._turns.turn(asker.user)

    async def _review(
        self, turn: AbstractAsyncContextManager[None], path: str, version: str, kind: str, spec: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The status of a review. Nothing is stored by it."""
        try:
            async with turn:
                answer = await self._api.once(
                    "POST", path, {"apiVersion": version, "kind": kind, "spec": spec}, timeout_s=_TIMEOUT_S
                )
        except ApiError as error:
            hint = f": the operator may not create a {kind} (manifests/components/query-api)"
            why = hint if error.status == 403 else ", which does not answer"
            raise QueryRefused(503, f"nobody can be identified without the API server{why}", again_s=5) from error
        status = answer.get("status")
        return status if isinstance(status, dict) else {}


class TokenGate(_RightsGate):
    """`Authorization: Bearer TOKEN`, with any token that the API server itself takes. The API server's proxy keeps that
    header to itself, so the token alone may come as `X-Elastic-Tfjob-Token`."""

    def __init__(self, api: Reviewer, limits: Callable[[], QueryLimits]) -> None:
        super().__init__(api, limits)
        self._askers: Remembered[bytes, Asker | None] = Remembered(
            _TOKENS, self._keep_s, lambda asker: asker.user if asker is not None else None
        )
        self._strangers = Turns(
            lambda: self._limits().max_reviews_per_s, _IN_FLIGHT, STRANGERS, "tokens that are not known yet"
        )
        # Requests may share a token, and so a turn.
        self._waiting = Room(lambda: STRANGERS, "requests with tokens that are not known yet")
        self._key = secrets.token_bytes(32)

    async def asker(self, headers: Mapping[str, str], peer: str) -> Asker:
        scheme, _, token = headers.get("Authorization", "").strip().partition(" ")
        token = token.strip()
        if not scheme and (own := headers.get(TOKEN_HEADER, "").strip()):
            scheme, token = "bearer", own
        if scheme.lower() != "bearer" or not token:
            raise QueryRefused(401, "no token was sent", where="Authorization", allowed="Bearer TOKEN")
        if len(token) > _MAX_TOKEN or not (token.isascii() and token.isprintable()):
            raise QueryRefused(401, "this is no token", where="Authorization", allowed="Bearer TOKEN")

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
    """A header that names the user, which whoever stands before the operator (Istio) sets and lets nobody else set."""

    def __init__(self, api: Reviewer, limits: Callable[[], QueryLimits], header: str) -> None:
        super().__init__(api, limits)
        self._header = header

    async def asker(self, headers: Mapping[str, str], peer: str) -> Asker:
        user = headers.get(self._header, "")
        several = getattr(headers, "getall", None)
        if several is not None and len(several(self._header, ())) > 1:
            # A proxy that adds it, and does not replace it, lets anybody be anybody.
            raise QueryRefused(401, "the header with the user's name is there twice", where=self._header)
        if not user:
            raise QueryRefused(401, "the header with the user's name is missing", where=self._header)
        if len(user) > _MAX_USER or not user.isprintable():
            raise QueryRefused(
                401, "this is no user's name", where=self._header, allowed=f"up to {_MAX_USER} characters"
            )
        if user.startswith("system:"):
            raise QueryRefused(
                403, "no person has such a name", where=self._header, allowed="names without system: before"
            )
        return Asker(user, (_EVERYBODY,))


def gate_of(auth: Auth, api: Reviewer, limits: Callable[[], QueryLimits], header: str) -> Gate:
    """The gate of a mode."""
    if auth == "token":
        return TokenGate(api, limits)
    return HeaderGate(api, limits, header) if auth == "header" else NoGate()


def _source(peer: str) -> str:
    """Whom an address is counted for: of IPv6 the network of 64 bits, of which one machine may have all addresses."""
    try:
        address = ip_address(peer.partition("%")[0])
    except ValueError:
        return peer
    if isinstance(address, IPv6Address):
        mapped = address.ipv4_mapped
        return str(mapped) if mapped is not None else str(IPv6Address(int(address) >> 64 << 64))
    return str(address)


def _asker(status: Mapping[str, Any]) -> Asker | None:
    """The user of a TokenReview; None where it is not authenticated."""
    user = status.get("user")
    if status.get("authenticated") is not True or not isinstance(user, Mapping) or not user.get("username"):
        return None
    return Asker(
        str(user["username"]),
        tuple(map(str, (user.get("groups") or ())[:_GROUPS])),
        str(user.get("uid") or ""),
        {str(name): tuple(map(str, values or ())) for name, values in (user.get("extra") or {}).items()},
    )
