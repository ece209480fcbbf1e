"""The query API over HTTP: routes, limits, errors. What it answers is computed in `rows`; it never writes."""

import asyncio
import gc
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import orjson
import structlog
from aiohttp import web

from elastic_tfjob.api.fields import cut
from elastic_tfjob.controller.kube.listening import listening
from elastic_tfjob.controller.kube.supervise import excerpt, trace
from elastic_tfjob.controller.objects.cluster import ForeignPod, Node
from elastic_tfjob.controller.objects.job import Job
from elastic_tfjob.controller.objects.parsing import Key
from elastic_tfjob.controller.objects.pod import Pod
from elastic_tfjob.controller.objects.reports import Report
from elastic_tfjob.controller.objects.settings import Configuration
from elastic_tfjob.controller.query import answers, assets, openapi
from elastic_tfjob.controller.query.fair import Room
from elastic_tfjob.controller.query.foreseeing import MAX_BODY, Foreseeing
from elastic_tfjob.controller.query.gate import ANYBODY, Asker, Gate, Refused
from elastic_tfjob.controller.query.index import Cache, Index
from elastic_tfjob.controller.query.question import Question, Taken
from elastic_tfjob.controller.query.rows.forecast import forecast_row
from elastic_tfjob.controller.query.rows.job import JobRow, job_row, see
from elastic_tfjob.controller.query.rows.listing import BadQuery, Listing, Page, dns_name, page
from elastic_tfjob.controller.query.rows.live import live_row
from elastic_tfjob.controller.query.rows.node import NodeRow, node_rows
from elastic_tfjob.controller.query.rows.timeline import sizes, timeline
from elastic_tfjob.controller.query.streams import Streams
from elastic_tfjob.speed.history import History

__all__ = ["QueryServer", "Source"]

log = structlog.get_logger(__name__)

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_TIMEOUT_S: Final = 30.0
_KEEP_ALIVE_S: Final = 30.0
# Nodes are summed up over all pods: once in so long, however many ask.
_NODES_S: Final = 1.0
_LOOK_S: Final = 0.5
# Requests that are handled at once: more than streams, open requests and those of strangers together, whose own bounds
# say in words what there is too much of.
_AT_ONCE: Final = 384
# Pages that many ask for again and again are sorted once after a change.
_PAGES: Final = 64
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What the operator has in memory. `missing` says in words what is not read yet, or nothing; `reports` is None
    while this replica asks no pods; `history` is what finished jobs taught, as far as this replica knows it."""

    jobs: Cache[Job]
    pods: Cache[Pod]
    nodes: Cache[Node]
    foreign: Cache[ForeignPod]
    configuration: Callable[[], Configuration]
    priorities: Callable[[], Mapping[str, int]]
    reports: Callable[[], Callable[[Key], Mapping[str, Report]] | None]
    history: Callable[[], History]
    missing: Callable[[], str]

    def taken(self, now: datetime) -> Taken:
        """All of it as it is at this moment."""
        jobs, reports = tuple(self.jobs), self.reports()
        return Taken(
            now,
            jobs,
            tuple(self.pods),
            tuple(self.nodes),
            tuple(self.foreign),
            {} if reports is None else {job.key: found for job in jobs if (found := dict(reports(job.key)))},
            self.configuration(),
            dict(self.priorities()),
            self.history(),
        )


@dataclass(frozen=True, slots=True)
class _Question:
    """What somebody asks. `key` names the job that it is about, where it is about one; `turn` is had while something is
    computed: streams have it one after the other."""

    asker: Asker
    listing: Listing
    key: Key
    turn: AbstractAsyncContextManager[Any]


Ask = Callable[[_Question], Awaitable[Any]]


class QueryServer:
    """The server. `gate` says who may see what."""

    def __init__(self, source: Source, gate: Gate) -> None:
        self._source = source
        self._gate = gate
        self._index = Index(source.jobs, source.configuration, source.priorities)
        self._open = Room(lambda: source.configuration().query.max_open_requests, "requests")
        self._document = orjson.dumps(openapi.document())
        self._nodes: tuple[float, Sequence[NodeRow]] = float("-inf"), ()
        self._counting = asyncio.Lock()
        self._pages: OrderedDict[Any, tuple[int, Page[JobRow]]] = OrderedDict()
        self._foreseeing = Foreseeing()
        self._streams = Streams(lambda: source.configuration().query, self._version, _problem)

    def serve(self, address: str) -> AbstractAsyncContextManager[None]:
        """Serve at an address of Options while the context is open. Raises OSError where it is taken."""
        # A stream whose reader has gone ends at once, not at the next thing there is to tell.
        return listening(
            address, self.application(), most=_AT_ONCE, keepalive_timeout=_KEEP_ALIVE_S, handler_cancellation=True
        )

    async def run(self) -> None:
        """Read all jobs once they are there, so that nobody who asks waits for it. Never returns."""
        while self._source.missing():
            await asyncio.sleep(_LOOK_S)
        await self._index.rows()
        # Rows refer to nothing but what is in them: the garbage collector need not look at them, nor at the caches.
        gc.freeze()
        await asyncio.Event().wait()

    def application(self) -> web.Application:
        """The routes."""
        app = web.Application(middlewares=[self._guarded], client_max_size=MAX_BODY)
        handlers = {
            "listJobs": self._list_jobs,
            "getJob": self._get_job,
            "listQueue": self._list_queue,
            "listNodes": self._list_nodes,
            "listForecasts": self._list_forecasts,
        }
        for route in openapi.ROUTES:
            ask = handlers[route.name]
            app.router.add_get(openapi.PREFIX + route.path, self._once(route, ask), allow_head=False)
            app.router.add_get(openapi.STREAM + route.path, self._stream(route, ask), allow_head=False)
        app.router.add_post(openapi.WHAT_IF, self._what_if)
        assets.add(app.router)
        app.on_shutdown.append(self._streams.close)
        app.router.add_get(f"{openapi.PREFIX}/openapi.json", self._show_document, allow_head=False)
        return app

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Errors in JSON, and within some time."""
        streams = request.path.startswith(f"{openapi.STREAM}/")
        try:
            async with asyncio.timeout(None if streams else _TIMEOUT_S):
                return await handler(request)
        except BadQuery as error:
            return _refusal(Refused(400, error.problem, where=error.where, allowed=error.allowed))
        except Refused as error:
            return _refusal(error)
        except TimeoutError:
            return _refusal(Refused(503, f"there was no answer within {_TIMEOUT_S:.0f} s", again_s=5))
        except web.HTTPException as error:
            allowed = error.headers.get("Allow", "")
            answer = _refusal(Refused(error.status, error.reason, allowed=allowed))
            if allowed:
                answer.headers["Allow"] = allowed
            return answer
        except Exception as error:
            log.error("bug: query failed", path=cut(request.path, 200), error=excerpt(error), trace=trace(error))
            return _refusal(Refused(500, "the operator has a bug here; its log tells more"))

    def _version(self) -> int:
        return self._source.jobs.changes

    def _once(self, route: openapi.Route, ask: Ask) -> Handler:
        async def answer(request: web.Request) -> web.Response:
            listing, key = _asked(request, route)
            asker = await self._asker(request)
            with self._open.hold(asker.user, alone=asker == ANYBODY):
                return _json(orjson.dumps(await ask(_Question(asker, listing, key, nullcontext()))))

        return answer

    def _stream(self, route: openapi.Route, ask: Ask) -> Handler:
        async def serve(request: web.Request) -> web.StreamResponse:
            listing, key = _asked(request, route)

            async def again() -> Any:
                return await ask(_Question(await self._asker(request), listing, key, self._streams.turn))

            return await self._streams.serve(request, await self._asker(request), again)

        return serve

    async def _asker(self, request: web.Request) -> Asker:
        asker = await self._gate.asker(request.headers, request.remote or "")
        if missing := self._source.missing():
            raise Refused(503, missing, again_s=1)
        return asker

    async def _show_document(self, request: web.Request) -> web.Response:
        Listing.parse(request.query.items(), ())
        return _json(self._document)

    async def _list_jobs(self, asked: _Question) -> answers.Jobs:
        found, listing = await self._page(asked), asked.listing
        return answers.Jobs(items=tuple(found.items), total=found.total, offset=listing.offset, limit=listing.limit)

    async def _list_forecasts(self, asked: _Question) -> answers.Forecasts:
        found, listing = await self._page(asked), asked.listing
        items = []
        async with asked.turn:
            for row in found.items:
                for job in self._source.jobs.of_job((row.namespace, row.name)):
                    seen = see(job)
                    items.append(forecast_row(seen, job_row(seen)))
                await asyncio.sleep(0)
        return answers.Forecasts(items=tuple(items), total=found.total, offset=listing.offset, limit=listing.limit)

    async def _page(self, asked: _Question) -> Page[JobRow]:
        listing = asked.listing
        version = self._version()  # before: what the rows are at least as new as
        async with asked.turn:
            rows = await self._index.rows()
        allowed, seen = await self._visible(asked.asker, rows, listing.namespace)
        rights = None if allowed is None else frozenset(allowed)
        known = self._pages.get((listing, rights))
        if known is None or known[0] != version:
            async with asked.turn:
                # In a thread: to sort 10,000 rows takes longer than others should wait for the event loop.
                known = version, await asyncio.to_thread(page, seen, listing)
        self._pages[listing, rights] = known
        self._pages.move_to_end((listing, rights))
        while len(self._pages) > _PAGES:
            self._pages.popitem(last=False)
        return known[1]

    async def _get_job(self, asked: _Question) -> answers.JobDetail:
        key = asked.key
        allowed = await self._gate.namespaces(asked.asker, [key[0]])
        if allowed is not None and key[0] not in allowed:
            raise _not_allowed(key[0])
        job = self._source.jobs.one(key)
        if job is None:
            raise Refused(404, "there is no TFJob of this name in this namespace", where="name")
        async with asked.turn:
            seen = see(job)
            row = job_row(seen)
            queue = await self._index.queue() if row.state == "Waiting" else []
            reports = self._source.reports()
            position = next((each.position for each in queue if (each.namespace, each.name) == key), None)
            return answers.JobDetail(
                job=row,
                position=position,
                forecast=forecast_row(seen, row),
                live=live_row(reports(key)) if reports is not None else None,
                timeline=timeline(seen),
                sizes=sizes(seen),
            )

    async def _list_queue(self, asked: _Question) -> answers.Queue:
        listing = asked.listing
        async with asked.turn:
            queue = await self._index.queue()
        _, found = await self._visible(asked.asker, queue, listing.namespace)
        found = [row for row in found if not listing.namespace or row.namespace == listing.namespace]
        return answers.Queue(
            items=tuple(found[listing.offset : listing.offset + listing.limit]),
            total=len(found),
            offset=listing.offset,
            limit=listing.limit,
            profile=self._source.configuration().profile,
        )

    async def _list_nodes(self, asked: _Question) -> answers.Nodes:
        listing = asked.listing
        await self._gate.nodes(asked.asker)
        async with asked.turn, self._counting:
            at, found = self._nodes
            if time.monotonic() - at >= _NODES_S:
                await self._index.rows()  # what templates request
                source = self._source
                parts = list(source.nodes), list(source.pods), list(source.foreign)
                found = await asyncio.to_thread(node_rows, *parts, self._index.requested, source.reports())
                self._nodes = time.monotonic(), found
        return answers.Nodes(
            items=tuple(found[listing.offset : listing.offset + listing.limit]),
            total=len(found),
            offset=listing.offset,
            limit=listing.limit,
        )

    async def _what_if(self, request: web.Request) -> web.Response:
        """Only computed: nothing is written, here or anywhere."""
        Listing.parse(request.query.items(), ())
        if request.content_type != "application/json":  # which no page of another origin can send unasked
            raise Refused(415, "the body is no JSON", where="Content-Type", allowed="application/json")
        asker = await self._asker(request)
        with self._open.hold(asker.user, alone=asker == ANYBODY):
            try:
                raw = orjson.loads(await request.read())
            except orjson.JSONDecodeError as error:
                raise BadQuery("the body", cut(str(error), 200), "JSON") from None
            question = Question.parse(raw)
            named = {question.namespace, question.key[0] if question.key else ""} - {""}
            known = {job.namespace for job in self._source.jobs} if not question.namespace else set()
            allowed = await self._gate.namespaces(asker, named | known)
            if allowed is not None:
                if missing := next((each for each in sorted(named) if each not in allowed), None):
                    raise _not_allowed(missing)
                if not allowed:
                    raise Refused(403, "you may list the TFJobs of no namespace that has any", where="namespace")
            taken = self._source.taken(datetime.now(UTC))
            nodes_shown = await self._may_see_nodes(asker)
            found = await self._foreseeing.answer(asker, taken, question, allowed, nodes_shown=nodes_shown)
            return _json(found)

    async def _may_see_nodes(self, asker: Asker) -> bool:
        try:
            await self._gate.nodes(asker)
        except Refused:
            return False
        return True

    async def _visible(
        self, asker: Asker, rows: Collection[Any], namespace: str
    ) -> tuple[Collection[str] | None, list[Any]]:
        """The namespaces that the asker may see (None: all), and the rows of those. Raises Refused where they name one
        that they may not."""
        asked = [namespace] if namespace else {row.namespace for row in rows}
        allowed = await self._gate.namespaces(asker, asked)
        if allowed is None:
            return None, list(rows)
        if namespace and namespace not in allowed:
            raise _not_allowed(namespace)
        return allowed, [row for row in rows if row.namespace in allowed]


def _not_allowed(namespace: str) -> Refused:
    return Refused(
        403,
        f"you may not list the TFJobs of namespace {namespace}",
        where="namespace",
        allowed="a role with the verb list on tfjobs of kubeflow.org there",
    )


def _asked(request: web.Request, route: openapi.Route) -> tuple[Listing, Key]:
    """What a request asks for, before anything is done for it. Raises BadQuery."""
    for name, value in request.match_info.items():
        dns_name(name, value)
    key = request.match_info.get("namespace", ""), request.match_info.get("name", "")
    return Listing.parse(request.query.items(), route.query), key


def _json(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        body=body, status=status, content_type="application/json", headers={**_HEADERS, **(headers or {})}
    )


def _problem(refused: Refused) -> bytes:
    problem = answers.Problem(message=refused.message, where=refused.where, allowed=refused.allowed)
    return orjson.dumps(answers.Error(error=problem))


def _refusal(refused: Refused) -> web.Response:
    headers = {"Retry-After": str(refused.again_s)} if refused.again_s else {}
    if refused.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="elastic-tfjob"'
    return _json(_problem(refused), refused.status, headers)
