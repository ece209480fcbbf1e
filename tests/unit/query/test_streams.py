"""Answers that go on, and the files of the page, over HTTP."""

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from elastic_tfjob.controller.model.settings import QueryLimits, parse_configuration
from elastic_tfjob.controller.query import streams
from elastic_tfjob.controller.query.gate import ANYBODY, Asker, NoGate
from elastic_tfjob.controller.query.rows import openapi
from elastic_tfjob.controller.query.rows.listing import QueryRefused
from elastic_tfjob.controller.query.streams import Streams, changed

from .build import job, running, waiting, world

STREAM = "/api/v1/stream/jobs"


async def said(response: aiohttp.ClientResponse) -> tuple[str, str, Any]:
    """The next event: its name, id and data."""
    found: dict[str, str] = {}
    async with asyncio.timeout(60):
        while True:
            line = (await response.content.readline()).decode()
            name, _, value = line.rstrip("\n").partition(": ")
            if not line or (line == "\n" and "event" in found):
                break
            found[name] = value
    return found.get("event", ""), found.get("id", ""), json.loads(found.get("data", "null"))


async def test_a_stream_is_the_answer_and_then_what_changes() -> None:
    found = world(running("a"), running("b"))
    async with found.client() as client, client.get(f"{STREAM}?sort=name") as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        assert response.headers["X-Accel-Buffering"] == "no"
        name, first, answer = await said(response)
        assert (name, [each["name"] for each in answer["items"]]) == ("snapshot", ["a", "b"])
        assert answer == await (await client.get("/api/v1/jobs?sort=name")).json()
        found.jobs.entries[1] = job(waiting("b", version=8))
        name, second, delta = await said(response)
        assert (name, set(delta), list(delta["items"])) == ("delta", {"items"}, ["1"])
        assert delta["items"]["1"]["state"] == "Waiting"
        assert second != first
        # Whoever comes back with this id has all of it; with the other one, not.
        for last, event in ((second, "same"), (first, "snapshot"), ("nonsense", "snapshot")):
            async with client.get(f"{STREAM}?sort=name", headers={"Last-Event-ID": last}) as again:
                assert (await said(again))[:2] == (event, second)


async def test_an_id_is_the_same_at_another_replica() -> None:
    ids = set()
    for _ in range(2):
        async with world(running()).client() as client, client.get(STREAM) as response:
            ids.add((await said(response))[1])
    assert len(ids) == 1


def quick(monkeypatch: pytest.MonkeyPatch, **more: float) -> None:
    """Streams that look again at once."""
    for name, value in {"_DEBOUNCE_S": 0.01, "_REFRESH_S": 0.01, **more}.items():
        monkeypatch.setattr(streams, name, value)


async def test_a_stream_with_no_news_says_so_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch, _HEARTBEAT_S=0.05)
    found = world(running("a"))
    async with found.client() as client, client.get(STREAM) as response, asyncio.timeout(60):
        await said(response)
        for _ in range(2):
            assert await response.content.readuntil(b"\n\n") == b": nothing new\n\n"
        # Comments are nothing to a reader: the next event is the one that it would have been.
        found.jobs.entries[0] = job(waiting("a", version=8))
        assert (await said(response))[0] == "delta"


@pytest.mark.parametrize("bound", ["_LIFE_S", "_MOST_BYTES"])
async def test_a_stream_that_has_lived_ends_and_its_reader_has_missed_nothing(
    monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    quick(monkeypatch)
    found = world(running("a"))
    async with found.client() as client:
        async with client.get(STREAM) as response:
            await said(response)
            found.jobs.entries[0] = job(waiting("a", version=8))
            name, has, _ = await said(response)
            assert name == "delta"
            monkeypatch.setattr(streams, bound, 0)  # what this stream has lived, and sent, is more
            assert await said(response) == ("end", has, {})
            assert await response.content.read() == b""
        monkeypatch.undo()
        # Its reader comes back with the id of the end: nothing is sent again, and what comes next is told as before.
        async with client.get(STREAM, headers={"Last-Event-ID": has}) as again:
            assert await said(again) == ("same", has, {})
            found.jobs.entries[0] = job(running("a", version=9))
            name, newer, delta = await said(again)
            assert (name, delta["items"]["0"]["state"]) == ("delta", "Running")
        # What changed while nobody was there is told whole.
        async with client.get(STREAM, headers={"Last-Event-ID": has}) as late:
            assert (await said(late))[:2] == ("snapshot", newer)


@dataclass(frozen=True)
class _Large:
    text: str


async def test_a_reader_who_does_not_read_is_dropped_and_holds_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch, _STUCK_S=0.5)
    found = Streams(lambda: QueryLimits(max_streams=1), lambda: 0, lambda _: b"{}")
    dropped = asyncio.Event()
    # More than sockets hold for a reader.
    answers = [_Large("x" * (32 << 20)), _Large("short")]

    async def ask() -> _Large:
        return answers[0]

    async def serve(request: web.Request) -> web.StreamResponse:
        try:
            return await found.serve(request, ANYBODY, ask)
        finally:
            dropped.set()

    app = web.Application()
    app.router.add_get("/", serve)
    app.on_shutdown.append(found.close)
    async with TestClient(TestServer(app)) as client, asyncio.timeout(60):
        async with client.get("/") as asleep:
            assert len(found) == 1
            await dropped.wait()
            assert len(found) == 0
            with pytest.raises((aiohttp.ClientError, ConnectionError)):  # cut off, not ended
                await asleep.content.read()
        # The place is free for one who reads.
        answers.pop(0)
        async with client.get("/") as awake:
            assert (await said(awake))[0] == "snapshot"
            answers[0] = _Large("other")
            name, _, delta = await said(awake)
            assert (name, delta) == ("delta", {"text": "other"})


class _Leaving(NoGate):
    """One whose right is taken away."""

    def __init__(self) -> None:
        self.allowed = True

    async def asker(self, headers: Mapping[str, str], peer: str) -> Asker:
        if not self.allowed:
            raise QueryRefused(401, "this token is not valid any more")
        return await super().asker(headers, peer)


async def test_a_right_that_is_taken_away_ends_the_stream() -> None:
    gate = _Leaving()
    async with world(running()).client(gate) as client, client.get(STREAM) as response:
        await said(response)
        gate.allowed = False
        assert await said(response) == (
            "refused",
            "",
            {"error": {"message": "this token is not valid any more", "where": "", "allowed": ""}},
        )
        assert await response.content.read() == b""
        async with client.get(STREAM) as refused:
            assert refused.status == 401


async def test_a_stream_that_is_refused_has_an_http_status() -> None:
    async with world(running()).client() as client:
        for path, status in (("?limit=0", 400), ("/ns/none", 404)):
            async with client.get(STREAM + path) as response:
                assert response.status == status


async def test_five_hundred_pages_have_the_streams_that_are_allowed_and_others_can_still_ask() -> None:
    found = world(*(running(f"j{i}") for i in range(20)))
    found.configuration = parse_configuration("query: {max_streams: 40, max_open_requests: 2}")
    async with found.client() as client:
        # more than the client library opens by itself
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            answers = [await session.get(client.make_url(STREAM)) for _ in range(500)]
            statuses = [each.status for each in answers]
            assert (statuses.count(200), statuses.count(503)) == (40, 460)
            refused = next(each for each in answers if each.status == 503)
            assert refused.headers["Retry-After"] == "10"
            assert (await client.get("/api/v1/jobs")).status == 200
            for each in answers:  # else the garbage collector warns of them, in whatever test runs by then
                each.close()
        async with asyncio.timeout(60):  # the streams of those that have gone are free again
            while (again := await client.get(STREAM)).status != 200:
                again.close()
                await asyncio.sleep(0.1)
        again.close()


def test_changes_are_sent_by_index_or_as_a_whole() -> None:
    from elastic_tfjob.controller.query.rows.jobs import job_row  # noqa: PLC0415

    a, b = job_row(job(running("a"))), job_row(job(waiting("b")))
    before = openapi.JobList(items=(a, b), total=2, offset=0, limit=50)
    assert changed(before, before) == {}
    assert changed(before, openapi.JobList(items=(a, a), total=3, offset=0, limit=50)) == {
        "items": {"1": a},
        "total": 3,
    }
    assert changed(before, openapi.JobList(items=(b,), total=1, offset=0, limit=50)) == {"items": (b,), "total": 1}


async def test_streams_are_in_the_document() -> None:
    paths = openapi.document()["paths"]
    for route in openapi.ROUTES:
        answer = paths[openapi.STREAM + route.path]["get"]["responses"]
        assert "text/event-stream" in answer["200"]["content"]
        assert "503" in answer


async def test_the_page_lets_no_foreign_script_in_and_works_below_any_path() -> None:
    async with world().client() as client:
        async with client.get("/") as response:
            page, rules = await response.text(), response.headers["Content-Security-Policy"]
            tag = response.headers["ETag"]
        assert "default-src 'none'; script-src 'self'; style-src 'self';" in rules
        assert "unsafe" not in rules
        links = re.findall(r'(?:src|href)="([^"]*)"', page)
        assert len(links) >= 4
        assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=", page)
        seen = set()
        while links:
            link = links.pop()
            assert not re.match(r"/|\w+:", link), link
            if link in seen:
                continue
            seen.add(link)
            async with client.get(f"/{link}") as response:
                assert response.status == 200, link
                text, folder = await response.text(), link.rpartition("/")[0]
                assert response.headers["X-Content-Type-Options"] == "nosniff"
            if link.endswith(".js"):
                assert not re.search(r"innerHTML\s*:|dangerouslySet", text) or folder == "vendor"
                found = re.findall(r'(?:from|import)\s*"(\.[^"]*)"', text)
                links += [f"{folder}/{each[2:]}".lstrip("/") for each in found]
        assert {"stream.js", "job.js", "vendor/preact.js", "vendor/uplot.js"} <= seen
        async with client.get("/", headers={"If-None-Match": tag}) as response:
            assert response.status == 304
