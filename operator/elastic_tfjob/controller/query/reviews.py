"""The gates that ask the API server: who a token is of (TokenReview), and what somebody may read (SubjectAccessReview).

What was learned is remembered for a bounded time and of a bounded number of askers, so a right that is taken away holds
on for `allow_cache_s` at the most. Tokens are kept as keyed digests only.

Questions are bounded, and nobody's wait behind all those of somebody else. Tokens that were never accepted take turns
by the address that they come from; all else takes turns by user, and so never waits for them.
"""

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from hashlib import blake2b
from ipaddress import IPv6Address, ip_address
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

from elastic_tfjob.controller.kube.errors import ApiError
from elastic_tfjob.controller.objects.settings import QueryLimits
from elastic_tfjob.controller.query.fair import Room, Turns
from elastic_tfjob.controller.query.gate import Asker, Gate, NoGate, Refused

__all__ = ["STRANGERS", "TOKEN_HEADER", "Auth", "HeaderGate", "Remembered", "Reviewer", "TokenGate", "gate_of"]

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
            raise Refused(400, message, where="namespace", allowed="one namespace")
        ordered = sorted(among)
        answers = await asyncio.gather(*(self._may_list(asker, "tfjobs", each) for each in ordered))
        return {name for name, allowed in zip(ordered, answers, strict=True) if allowed}

    async def nodes(self, asker: Asker) -> None:
        if not await self._may_list(asker, "nodes", ""):
            raise Refused(403, "you may not list nodes", allowed="a ClusterRole with the verb list on nodes")

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
            raise Refused(503, f"nobody can be identified without the API server{why}", again_s=5) from error
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
            raise Refused(401, "no token was sent", where="Authorization", allowed="Bearer TOKEN")
        if len(token) > _MAX_TOKEN or not (token.isascii() and token.isprintable()):
            raise Refused(401, "this is no token", where="Authorization", allowed="Bearer TOKEN")

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
            raise Refused(
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
            raise Refused(401, "the header with the user's name is there twice", where=self._header)
        if not user:
            raise Refused(401, "the header with the user's name is missing", where=self._header)
        if len(user) > _MAX_USER or not user.isprintable():
            raise Refused(401, "this is no user's name", where=self._header, allowed=f"up to {_MAX_USER} characters")
        if user.startswith("system:"):
            raise Refused(403, "no person has such a name", where=self._header, allowed="names without system: before")
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
