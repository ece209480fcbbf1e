"""The query API over HTTP: routes, limits, errors. Answers are computed in `rows`; nothing is written."""

import asyncio
import gc
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from importlib.resources import files
from typing import Any, Final, Protocol, TypeVar

import orjson
import structlog
from aiohttp import web

from elastic_tfjob.api.reading import cut
from elastic_tfjob.controller.kube.supervise import excerpt, listening, trace
from elastic_tfjob.controller.model.cluster import ForeignPod, KubeNode
from elastic_tfjob.controller.model.job import Key, TFJob
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.reports import Report
from elastic_tfjob.controller.model.settings import Configuration, team_rules
from elastic_tfjob.controller.planning.request import JobRequest
from elastic_tfjob.controller.query.gate import ANYBODY, Asker, Gate, Room
from elastic_tfjob.controller.query.rows import openapi
from elastic_tfjob.controller.query.rows.jobs import (
    JobRow,
    QueueRow,
    job_row,
    live_row,
    place_in_order,
    queue_rows,
    see,
)
from elastic_tfjob.controller.query.rows.listing import (
    BadQuery,
    Listing,
    NodeRow,
    QueryRefused,
    dns_name,
    node_rows,
    page,
    team_rows,
)
from elastic_tfjob.controller.query.rows.question import ClusterCopy, Question
from elastic_tfjob.controller.query.rows.timeline import sizes, timeline
from elastic_tfjob.controller.query.rows.what_if import forecast_row
from elastic_tfjob.controller.query.streams import Streams
from elastic_tfjob.controller.query.what_if_process import MAX_BODY, WhatIfWorker
from elastic_tfjob.scheduling.plan import TeamShare
from elastic_tfjob.scheduling.profiles import build
from elastic_tfjob.scheduling.queue import Entry
from elastic_tfjob.scheduling.rules import Order
from elastic_tfjob.speed.history import History

__all__ = ["Cache", "JobIndex", "QueryServer", "Source", "add"]


# -- Files of the live page --------------------------------------------------------------------------------------------
# They are public and contain no data; the page reads data from the API.

_KINDS: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_ASSET_HEADERS: Final = {
    # Scripts and styles only from this server, and none inline, so that tenants' texts cannot become programs.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
_FOLDERS: Final = ("", "vendor/")


def add(router: web.UrlDispatcher) -> None:
    """Serve the page at `/`. Its links are relative, so it works below any path."""
    page = files("elastic_tfjob.controller.query").joinpath("page")
    for folder in _FOLDERS:
        for file in page.joinpath(folder).iterdir():
            kind = _KINDS.get("." + file.name.rpartition(".")[2])
            if file.is_file() and kind is not None:
                answer = _file(file.read_bytes(), kind)
                router.add_get(f"/{folder}{file.name}", answer, allow_head=False)
                if f"{folder}{file.name}" == "index.html":
                    router.add_get("/", answer, allow_head=False)


def _file(body: bytes, kind: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    tag = f'"{blake2b(body, digest_size=12).hexdigest()}"'

    async def answer(request: web.Request) -> web.StreamResponse:
        headers = {**_ASSET_HEADERS, "ETag": tag}
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)

    return answer


# -- Cached rows of all jobs -------------------------------------------------------------------------------------------
# Only changed jobs are read again.

T_co = TypeVar("T_co", covariant=True)

# How long rows are computed before other tasks get the event loop.
_SLICE_S: Final = 0.005


class Cache(Protocol[T_co]):
    """The part of an informer that is needed."""

    def __iter__(self) -> Iterator[T_co]: ...
    def __len__(self) -> int: ...
    def of_job(self, key: Key) -> tuple[T_co, ...]: ...
    def one(self, key: Key) -> T_co | None: ...
    @property
    def changes(self) -> int:
        """A counter of changes."""
        ...


@dataclass(frozen=True, slots=True)
class _Known:
    """A job's row. `request`: from its spec, the slowest part to read. `place`: its sort key in the queue."""

    version: int
    row: JobRow
    request: JobRequest | None
    place: Entry | None


class JobIndex:
    """Rows of the jobs in a cache, and the queue in the profile's order."""

    def __init__(
        self,
        jobs: Cache[TFJob],
        configuration: Callable[[], Configuration],
        priorities: Callable[[], Mapping[str, int]],
    ) -> None:
        self._jobs = jobs
        self._configuration = configuration
        self._priorities = priorities
        self._known: dict[str, _Known] = {}
        self._by_key: dict[Key, str] = {}
        self._changes: int | None = None
        self._one = asyncio.Lock()
        self._since: tuple[Configuration, Mapping[str, int]] | None = None
        self._order: Order | None = None
        self._now = datetime.now(UTC)

    async def rows(self) -> list[JobRow]:
        """The rows of all jobs, unordered. The first call is slow: half a millisecond of CPU per job."""
        async with self._one:
            await self._refresh()
            return [known.row for known in self._known.values()]

    async def queue(self) -> list[QueueRow]:
        """The waiting jobs, in the profile's order."""
        async with self._one:
            await self._refresh()
            found = [(known.place, known.row) for known in self._known.values() if known.place is not None]
        return await asyncio.to_thread(queue_rows, found)

    def requested(self, key: Key, replica_type: str) -> int | None:
        """Millicores requested in the template of a job's replica type, as of the last refresh."""
        known = self._known.get(self._by_key.get(key, ""))
        requests = known.request.requests if known is not None and known.request is not None else {}
        return next((amount.cpu_millicores for name, amount in requests.items() if name.lower() == replica_type), None)

    async def _refresh(self) -> None:
        self._follow_order()
        if (changes := self._jobs.changes) == self._changes:
            return
        begun = time.monotonic()
        jobs = list(self._jobs)
        for job in jobs:
            known = self._known.get(job.uid)
            if known is None or known.version != job.version:
                try:
                    self._known[job.uid] = self._read(job, known.request if known is not None else None)
                    self._by_key[job.key] = job.uid
                except Exception as error:  # other jobs must still be shown
                    self._known.pop(job.uid, None)
                    log.error("bug: job not shown", job=job.key, error=excerpt(error), trace=trace(error))
            if time.monotonic() - begun >= _SLICE_S:
                await asyncio.sleep(0)
                begun = time.monotonic()
        if len(self._known) != len(jobs):
            self._drop_all_but(jobs)
        self._changes = changes

    def _drop_all_but(self, jobs: Iterable[TFJob]) -> None:
        there = {job.uid: job.key for job in jobs}
        self._known = {uid: known for uid, known in self._known.items() if uid in there}
        self._by_key = {key: uid for uid, key in there.items()}

    def _follow_order(self) -> None:
        """Recompute sort keys after a change of profile or priorities: keys of different orders are not comparable."""
        since = self._configuration(), dict(self._priorities())
        if self._since is not None and self._since[0] is since[0] and self._since[1] == since[1]:
            return
        self._since, self._now, self._changes = since, datetime.now(UTC), None
        self._order = build(since[0].profile, since[0].parameters).order
        self._known = {uid: known for uid, known in self._known.items() if known.row.state != "Waiting"}

    def _read(self, job: TFJob, before: JobRequest | None) -> _Known:
        seen = see(job, before)
        row, place = job_row(seen), None
        if row.state == "Waiting" and self._order is not None and self._since is not None:
            scope_all = self._since[0].scope == "all"
            try:
                place = place_in_order(job, self._order, self._since[1], self._now, all_jobs=scope_all)
            except Exception:  # invalid user input, which the row reports
                place = None
        return _Known(job.version, row, seen.request, place)


log = structlog.get_logger(__name__)

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_TIMEOUT_S: Final = 30.0
_KEEP_ALIVE_S: Final = 30.0
# Node rows are computed at most this often, however many users ask.
_NODES_S: Final = 1.0
_LOOK_S: Final = 0.5
# Concurrent requests: more than the limits of streams, open requests and unknown tokens together, since those limits
# have better error messages.
_AT_ONCE: Final = 384
# Cached pages. A page that many users request is sorted once after a change.
_PAGES: Final = 64
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The operator's objects in memory. `missing` says in words what has not been read yet (empty: nothing). `reports`
    is None while this replica does not poll pods. `history` has the lessons from finished jobs that this replica
    knows; `teams` and `given_up` (nodes that jobs leave) are those of the last plan, none while this replica does
    not plan."""

    jobs: Cache[TFJob]
    pods: Cache[Pod]
    nodes: Cache[KubeNode]
    foreign: Cache[ForeignPod]
    configuration: Callable[[], Configuration]
    priorities: Callable[[], Mapping[str, int]]
    reports: Callable[[], Callable[[Key], Mapping[str, Report]] | None]
    history: Callable[[], History]
    missing: Callable[[], str]
    teams: Callable[[], Mapping[str, TeamShare]] = dict
    given_up: Callable[[], Collection[str]] = tuple

    def taken(self, now: datetime) -> ClusterCopy:
        """A copy of all objects at this moment."""
        jobs, reports = tuple(self.jobs), self.reports()
        return ClusterCopy(
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
    """A request. `key`: the job, if the request is about one. `turn` is held during computation, so that streams
    compute one at a time."""

    asker: Asker
    listing: Listing
    key: Key
    turn: AbstractAsyncContextManager[Any]


Ask = Callable[[_Question], Awaitable[Any]]


class QueryServer:
    """The server. `gate` identifies users and checks their rights."""

    def __init__(self, source: Source, gate: Gate) -> None:
        self._source = source
        self._gate = gate
        self._index = JobIndex(source.jobs, source.configuration, source.priorities)
        self._open = Room(lambda: source.configuration().query.max_open_requests, "requests")
        self._document = orjson.dumps(openapi.document())
        self._nodes: tuple[float, Sequence[NodeRow]] = float("-inf"), ()
        self._counting = asyncio.Lock()
        self._pages: OrderedDict[Any, tuple[int, tuple[Sequence[JobRow], int]]] = OrderedDict()
        self._what_if_worker = WhatIfWorker()
        self._streams = Streams(lambda: source.configuration().query, self._version, _problem)

    def serve(self, address: str) -> AbstractAsyncContextManager[None]:
        """Serve at an address while the context is open. Raises OSError if the address is in use."""
        # handler_cancellation: a stream ends as soon as its client disconnects, not at the next event.
        return listening(
            address, self.application(), most=_AT_ONCE, keepalive_timeout=_KEEP_ALIVE_S, handler_cancellation=True
        )

    async def run(self) -> None:
        """Read all jobs once the caches are filled, so that no request has to wait for it. Never returns."""
        while self._source.missing():
            await asyncio.sleep(_LOOK_S)
        await self._index.rows()
        # Rows and caches have no reference cycles, so the garbage collector need not scan them.
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
            "listTeams": self._list_teams,
            "listForecasts": self._list_forecasts,
        }
        for route in openapi.ROUTES:
            ask = handlers[route.name]
            app.router.add_get(openapi.PREFIX + route.path, self._once(route, ask), allow_head=False)
            app.router.add_get(openapi.STREAM + route.path, self._stream(route, ask), allow_head=False)
        app.router.add_post(openapi.WHAT_IF, self._what_if)
        add(app.router)
        app.on_shutdown.append(self._streams.close)
        app.router.add_get(f"{openapi.PREFIX}/openapi.json", self._show_document, allow_head=False)
        return app

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Turn errors into JSON, and limit the time of a request."""
        streams = request.path.startswith(f"{openapi.STREAM}/")
        try:
            async with asyncio.timeout(None if streams else _TIMEOUT_S):
                return await handler(request)
        except BadQuery as error:
            return _refusal(QueryRefused(400, error.problem, where=error.where, allowed=error.allowed))
        except QueryRefused as error:
            return _refusal(error)
        except TimeoutError:
            return _refusal(QueryRefused(503, f"no answer within {_TIMEOUT_S:.0f} s", again_s=5))
        except web.HTTPException as error:
            allowed = error.headers.get("Allow", "")
            answer = _refusal(QueryRefused(error.status, error.reason, allowed=allowed))
            if allowed:
                answer.headers["Allow"] = allowed
            return answer
        except Exception as error:
            log.error("bug: query failed", path=cut(request.path, 200), error=excerpt(error), trace=trace(error))
            return _refusal(QueryRefused(500, "internal error; see the operator's log"))

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
            raise QueryRefused(503, missing, again_s=1)
        return asker

    async def _show_document(self, request: web.Request) -> web.Response:
        Listing.parse(request.query.items(), ())
        return _json(self._document)

    async def _list_jobs(self, asked: _Question) -> openapi.JobList:
        (rows, total), listing = await self._page(asked), asked.listing
        return openapi.JobList(items=tuple(rows), total=total, offset=listing.offset, limit=listing.limit)

    async def _list_forecasts(self, asked: _Question) -> openapi.ForecastList:
        (rows, total), listing = await self._page(asked), asked.listing
        items = []
        async with asked.turn:
            for row in rows:
                for job in self._source.jobs.of_job((row.namespace, row.name)):
                    seen = see(job)
                    items.append(forecast_row(seen, job_row(seen)))
                await asyncio.sleep(0)
        return openapi.ForecastList(items=tuple(items), total=total, offset=listing.offset, limit=listing.limit)

    async def _page(self, asked: _Question) -> tuple[Sequence[JobRow], int]:
        listing = asked.listing
        version = self._version()  # read before the rows, which are then at least this new
        async with asked.turn:
            rows = await self._index.rows()
        allowed, seen = await self._visible(asked.asker, rows, listing.namespace)
        rights = None if allowed is None else frozenset(allowed)
        known = self._pages.get((listing, rights))
        if known is None or known[0] != version:
            async with asked.turn:
                # In a thread, because sorting 10,000 rows would block the event loop for too long.
                known = version, await asyncio.to_thread(page, seen, listing)
        self._pages[listing, rights] = known
        self._pages.move_to_end((listing, rights))
        while len(self._pages) > _PAGES:
            self._pages.popitem(last=False)
        return known[1]

    async def _get_job(self, asked: _Question) -> openapi.JobDetail:
        key = asked.key
        allowed = await self._gate.namespaces(asked.asker, [key[0]])
        if allowed is not None and key[0] not in allowed:
            raise _not_allowed(key[0])
        job = self._source.jobs.one(key)
        if job is None:
            raise QueryRefused(404, "this namespace has no TFJob of this name", where="name")
        async with asked.turn:
            seen = see(job)
            row = job_row(seen)
            queue = await self._index.queue() if row.state == "Waiting" else []
            reports = self._source.reports()
            position = next((each.position for each in queue if (each.namespace, each.name) == key), None)
            return openapi.JobDetail(
                job=row,
                position=position,
                forecast=forecast_row(seen, row),
                live=live_row(reports(key)) if reports is not None else None,
                timeline=timeline(seen),
                sizes=sizes(seen),
            )

    async def _list_queue(self, asked: _Question) -> openapi.QueueList:
        listing = asked.listing
        async with asked.turn:
            queue = await self._index.queue()
        _, found = await self._visible(asked.asker, queue, listing.namespace)
        found = [
            row
            for row in found
            if (not listing.namespace or row.namespace == listing.namespace)
            and (not listing.reasons or row.reason_code in listing.reasons)
        ]
        return openapi.QueueList(
            items=tuple(found[listing.offset : listing.offset + listing.limit]),
            total=len(found),
            offset=listing.offset,
            limit=listing.limit,
            profile=self._source.configuration().profile,
        )

    async def _list_nodes(self, asked: _Question) -> openapi.NodeList:
        listing = asked.listing
        await self._gate.nodes(asked.asker)
        async with asked.turn, self._counting:
            at, found = self._nodes
            if time.monotonic() - at >= _NODES_S:
                await self._index.rows()  # updates the requests in templates
                source = self._source
                parts = list(source.nodes), list(source.pods), list(source.foreign)
                given_up = frozenset(source.given_up())
                known = self._index.requested, source.reports()
                found = await asyncio.to_thread(node_rows, *parts, *known, given_up=given_up)
                self._nodes = time.monotonic(), found
        return openapi.NodeList(
            items=tuple(found[listing.offset : listing.offset + listing.limit]),
            total=len(found),
            offset=listing.offset,
            limit=listing.limit,
        )

    async def _list_teams(self, asked: _Question) -> openapi.TeamList:
        """A team is shown to those who may list the jobs of all its namespaces that have some."""
        teams, listing = self._source.teams(), asked.listing
        rules = team_rules(self._source.configuration())
        there = {job.namespace for job in self._source.jobs} if teams else set()
        allowed = await self._gate.namespaces(asked.asker, there)
        hidden = set() if allowed is None else {rules.of_namespace.get(name, name) for name in there - {*allowed}}
        found = [row for row in team_rows(teams) if row.name not in hidden]
        return openapi.TeamList(
            items=tuple(found[listing.offset : listing.offset + listing.limit]),
            total=len(found),
            offset=listing.offset,
            limit=listing.limit,
        )

    async def _what_if(self, request: web.Request) -> web.Response:
        """Answer a what-if question. Nothing is written anywhere."""
        Listing.parse(request.query.items(), ())
        if request.content_type != "application/json":  # pages of other origins cannot send JSON without a preflight
            raise QueryRefused(415, "the body is not JSON", where="Content-Type", allowed="application/json")
        asker = await self._asker(request)
        with self._open.hold(asker.user, alone=asker == ANYBODY):
            try:
                raw = orjson.loads(await request.read())
            except orjson.JSONDecodeError as error:
                raise BadQuery("body", cut(str(error), 200), "JSON") from None
            question = Question.parse(raw)
            named = {question.namespace, question.key[0] if question.key else ""} - {""}
            known = {job.namespace for job in self._source.jobs} if not question.namespace else set()
            allowed = await self._gate.namespaces(asker, named | known)
            if allowed is not None:
                if missing := next((each for each in sorted(named) if each not in allowed), None):
                    raise _not_allowed(missing)
                if not allowed:
                    raise QueryRefused(403, "you may not list TFJobs in any namespace that has some", where="namespace")
            taken = self._source.taken(datetime.now(UTC))
            nodes_shown = await self._may_see_nodes(asker)
            found = await self._what_if_worker.answer(asker, taken, question, allowed, nodes_shown=nodes_shown)
            return _json(found)

    async def _may_see_nodes(self, asker: Asker) -> bool:
        try:
            await self._gate.nodes(asker)
        except QueryRefused:
            return False
        return True

    async def _visible(
        self, asker: Asker, rows: Collection[Any], namespace: str
    ) -> tuple[Collection[str] | None, list[Any]]:
        """The namespaces that the user may see (None: all), and their rows. Raises QueryRefused if the user may not see
        the requested namespace."""
        asked = [namespace] if namespace else {row.namespace for row in rows}
        allowed = await self._gate.namespaces(asker, asked)
        if allowed is None:
            return None, list(rows)
        if namespace and namespace not in allowed:
            raise _not_allowed(namespace)
        return allowed, [row for row in rows if row.namespace in allowed]


def _not_allowed(namespace: str) -> QueryRefused:
    return QueryRefused(
        403,
        f"you may not list the TFJobs of namespace {namespace}",
        where="namespace",
        allowed="a Role there with the verb list on tfjobs of kubeflow.org",
    )


def _asked(request: web.Request, route: openapi.Route) -> tuple[Listing, Key]:
    """Parse a request. Raises BadQuery."""
    for name, value in request.match_info.items():
        dns_name(name, value)
    key = request.match_info.get("namespace", ""), request.match_info.get("name", "")
    return Listing.parse(request.query.items(), route.query), key


def _json(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        body=body, status=status, content_type="application/json", headers={**_HEADERS, **(headers or {})}
    )


def _problem(refused: QueryRefused) -> bytes:
    problem = openapi.Problem(message=refused.message, where=refused.where, allowed=refused.allowed)
    return orjson.dumps(openapi.Error(error=problem))


def _refusal(refused: QueryRefused) -> web.Response:
    headers = {"Retry-After": str(refused.again_s)} if refused.again_s else {}
    if refused.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="elastic-tfjob"'
    return _json(_problem(refused), refused.status, headers)
