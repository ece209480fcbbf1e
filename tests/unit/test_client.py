"""The client against a server on this machine: what it follows, how much it reads, and when it does not write."""

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import orjson
import pytest
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from elastic_tfjob.controller.kube import client as client_module
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.errors import (
    MAX_MESSAGE,
    ApiError,
    Fenced,
    Invalid,
    TooLarge,
    Unavailable,
    error_of,
)
from elastic_tfjob.controller.kube.queue import Shares

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def client_of(handler: Handler, *, concurrency: int = 8) -> AsyncIterator[ApiClient]:
    """A client of a server that answers like this."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with ApiClient(configuration, concurrency=concurrency) as api:
        yield api
    await runner.cleanup()


async def test_nothing_is_redirected() -> None:
    """Neither reads nor watches nor what is passed on, and no cookie is kept."""
    seen: list[str] = []

    async def away(request: web.Request) -> web.StreamResponse:
        seen.append(request.path)
        assert "Cookie" not in request.headers
        return web.Response(status=302, headers={"Location": "/elsewhere", "Set-Cookie": "a=b"})

    async with client_of(away) as api:
        with pytest.raises(Invalid):
            await api.get("/one")
        with pytest.raises(Invalid):
            await api.raw("/two", 60.0, 100)
        with pytest.raises(Invalid):
            async for _ in api.watch("/three", version="1"):
                pass
        with pytest.raises(Invalid):
            await api.post("/four", {})
    assert seen == ["/one", "/two", "/three", "/four"]


async def test_lines_are_read_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_LINE", 10)

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for part in (b"one\ntw", b"o\n", b"x" * 25, b"y" * 25, b"z\nthree\n", b"x" * 25 + b"\nend"):
            await response.write(part)
            await asyncio.sleep(0.02)
        return response

    async with client_of(answer) as api:
        found = [line async for line in api.lines("/log")]
    assert found == [b"one", b"two", b"x" * 10, b"three", b"x" * 10, b"end"]


async def test_a_forwarded_answer_is_bounded_and_not_unpacked() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.headers["Accept-Encoding"] == "identity"
        encoding = {"Content-Encoding": "deflate"} if request.path == "/packed" else None
        response = web.StreamResponse(headers=encoding)
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            for _ in range(10 if request.path == "/large" else 2):
                await response.write(b"x" * 50)
                await asyncio.sleep(0.02)
        return response

    async with client_of(answer) as api:
        assert await api.raw("/small", 60.0, 100) == b"x" * 100
        with pytest.raises(TooLarge, match="larger than 100 bytes"):
            await api.raw("/large", 60.0, 100)
        with pytest.raises(Unavailable, match="deflate"):
            await api.raw("/packed", 60.0, 100)


async def test_a_list_is_read_up_to_a_size() -> None:
    """And asked for once: how large it is does not change by asking."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.path_qs)
        return web.json_response({"items": ["x" * 1000]})

    async with client_of(answer) as api:
        with pytest.raises(TooLarge):
            await api.get("/pods", most_bytes=1000, limit="100")
        assert await api.get("/pods", most_bytes=2000, limit="25") == {"items": ["x" * 1000]}
    assert asked == ["/pods?limit=100", "/pods?limit=25"]


async def test_a_leader_that_does_not_lead_any_more_writes_nothing() -> None:
    """It is asked at the last moment, before each retry too; reads, and others' writes, go on."""
    seen: list[str] = []
    leads = True

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal leads
        seen.append(f"{request.method} {request.path}")
        if request.path == "/fails":
            leads = False
            return web.Response(status=503)
        return web.json_response({})

    async with client_of(answer) as api:
        fenced = api.fenced(lambda: 5.0 if leads else 0.0)
        await fenced.post("/works", {})
        with pytest.raises(Fenced):
            await fenced.post("/fails", {})
        for write in (
            fenced.post("/a", {}),
            fenced.put("/a", {}),
            fenced.patch("/a", {}),
            fenced.delete("/a", uid="1"),
            fenced.once("PUT", "/a", {}),
        ):
            with pytest.raises(Fenced):
                await write
        await fenced.get("/read")
        await api.post("/lease", {})
    assert seen == ["POST /works", "POST /fails", "GET /read", "POST /lease"]


async def test_slow_writes_of_one_namespace_leave_room_for_others() -> None:
    """As of a webhook that does not answer: half of what may be in flight, and what comes later goes by."""
    held: Counter[str] = Counter()
    release = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        namespace = request.path.split("/")[4]
        held[namespace] += 1
        if namespace == "slow":
            await release.wait()
        return web.json_response({})

    async with client_of(answer) as api, asyncio.TaskGroup() as group:
        for _ in range(50):
            group.create_task(api.post("/api/v1/namespaces/slow/pods", {}))
        async with asyncio.timeout(60):
            while held["slow"] < 4:
                await asyncio.sleep(0.01)
            for _ in range(10):
                await api.post("/api/v1/namespaces/good/pods", {})
        assert held == {"slow": 4, "good": 10}
        release.set()
    assert held["slow"] == 50


async def test_waiting_for_a_slot_may_be_given_up() -> None:
    """Requests that are cancelled, before or in the moment that they may go, take no slot with them."""
    release = asyncio.Event()

    async def answer(_: web.Request) -> web.StreamResponse:
        await release.wait()
        return web.json_response({})

    async with client_of(answer, concurrency=4) as api:
        path = "/api/v1/namespaces/ns/pods"
        waiting = [asyncio.create_task(api.get(path)) for _ in range(20)]
        await asyncio.sleep(0.1)
        for task in waiting[::2]:
            task.cancel()
        release.set()
        done = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
        assert sum(each == {} for each in done) == 10
        assert api._slots._shares.free == 4


async def test_a_silent_watch_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is asked to end a watch within a minute, and silence for a little longer is an error."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.query["timeoutSeconds"])
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.Event().wait()
        return response

    assert client_module._WATCH_S + client_module._WATCH_GRACE_S <= 60
    monkeypatch.setattr(client_module, "_WATCH_GRACE_S", 2.0)
    monkeypatch.setattr(client_module, "_WATCH_S", 0)
    async with client_of(answer) as api:
        with pytest.raises(Unavailable, match="Timeout"):
            async for _ in api.watch("/", version="1"):
                pass
    assert asked == ["0"]


async def test_connections_notice_that_the_peer_is_gone() -> None:
    """Without traffic by the kernel's probes, with it by what is not confirmed: both within half a minute."""
    found: list[socket.socket] = []

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({})

    async with client_of(answer) as api:
        assert api._session.connector is not None
        await api.get("/")
        (connections,) = api._session.connector._conns.values()
        found = [protocol.transport.get_extra_info("socket") for protocol, _ in connections if protocol.transport]
        for each in found:
            probes_s = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) + each.getsockopt(
                socket.IPPROTO_TCP, socket.TCP_KEEPINTVL
            ) * each.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
            assert each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert probes_s <= 30
            assert each.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 30_000
    assert found


@pytest.mark.parametrize("greedy", [1, 2, 3, 5])
def test_greedy_tenants_leave_something_for_the_next(greedy: int) -> None:
    shares = Shares(64)
    while any(shares.admits(str(tenant)) for tenant in range(greedy)):
        for tenant in range(greedy):
            if shares.admits(str(tenant)):
                shares.take(str(tenant))
    assert shares.free >= 64 // (greedy + 1) - 1
    assert shares.admits("the next")


async def test_errors_are_what_the_server_says() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"reason": "Forbidden", "message": "exceeded quota"}, status=403)

    async with client_of(answer) as api:
        with pytest.raises(ApiError, match="exceeded quota"):
            await api.get("/")


async def test_only_the_beginning_of_a_long_refusal_is_read() -> None:
    """The API server names each of thousands of wrong entries of a template: ten times the size of what was sent."""
    sent = 0

    async def refuse(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(status=422)
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            await response.write(b'{"kind": "Status", "message": "')
            for _ in range(64):
                await response.write(b"spec.tolerations[0]: Required value; " * 10_000)
                sent += 1
            await response.write(b'", "reason": "Invalid", "code": 422}')
        return response

    async with client_of(refuse) as api:
        for refused in (api.post("/pods", {}), api.get("/pods")):
            with pytest.raises(Invalid) as error:
                await refused
            assert "Required value" in error.value.message
            assert len(error.value.message) <= MAX_MESSAGE
            assert len(str(error.value)) <= 400
    assert sent < 128


def test_a_message_is_cut() -> None:
    body = orjson.dumps({"reason": "Invalid", "message": "x" * 100_000, "code": 422})
    assert len(error_of("POST /pods", 422, body, {}).message) == MAX_MESSAGE
    assert error_of("POST /pods", 409, b'{"reason": "AlreadyExists", "message": 5}', {}).message == "5"
