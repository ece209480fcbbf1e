"""Servers of HTTP whose connections are bounded."""

import asyncio
import contextlib
import socket
from contextlib import AsyncExitStack

import aiohttp
import pytest
from aiohttp import web

from elastic_tfjob.controller.kube.supervise import listening
from harness.controlplane import free_port
from pod.pods import HIDDEN, NO_BODY, TWICE


def application(held: asyncio.Event | None = None, came: asyncio.Semaphore | None = None) -> web.Application:
    async def answer(request: web.Request) -> web.Response:
        if held is not None and came is not None and request.path == "/held":
            came.release()
            await held.wait()
        return web.Response(text="ok")

    app = web.Application()
    app.router.add_get("/{any:.*}", answer)
    return app


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(60):
            return await reader.read() == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n"], ids=["nothing", "half a request"])
async def test_connections_that_ask_nothing_make_room_for_who_does(said: bytes) -> None:
    port = free_port()
    async with listening(f"127.0.0.1:{port}", application(), most=3):
        opened = []
        for _ in range(6):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            opened.append((reader, writer))
            await asyncio.sleep(0.01)
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/") as response:
            assert await response.text() == "ok"
        closed = [await is_closed(reader) for reader, _ in opened[:3]]
        assert closed == [True, True, True]
        for _, writer in opened:
            writer.close()


async def test_an_idle_connection_is_closed() -> None:
    port = free_port()
    async with listening(f"127.0.0.1:{port}", application(), idle_s=0.1):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await is_closed(reader)
        writer.close()


async def test_a_connection_that_waits_for_its_answer_is_kept() -> None:
    port, held, came = free_port(), asyncio.Event(), asyncio.Semaphore(0)
    async with (
        listening(f"127.0.0.1:{port}", application(held, came), most=2, idle_s=2.0),
        aiohttp.ClientSession() as session,
        AsyncExitStack() as stack,
    ):
        asked = [asyncio.create_task(session.get(f"http://127.0.0.1:{port}/held").__aenter__()) for _ in range(2)]
        for _ in asked:
            await came.acquire()
        await asyncio.sleep(2.5)
        refused = await stack.enter_async_context(session.get(f"http://127.0.0.1:{port}/more"))
        assert refused.status == 503
        held.set()
        for each in await asyncio.gather(*asked):
            assert await each.text() == "ok"


async def test_an_address_that_is_taken_raises() -> None:
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(OSError, match="address already in use"):
            async with listening(f"127.0.0.1:{port}", application()):
                raise AssertionError


@pytest.mark.parametrize("fields", [each for each in TWICE if each != NO_BODY])
@pytest.mark.parametrize("method", [b"GET", b"POST", b"DELETE"])
async def test_a_body_is_no_second_request(method: bytes, fields: bytes) -> None:
    """Probes, metrics and the query API are served like this."""
    port = free_port()
    async with listening(f"127.0.0.1:{port}", application()):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(method + b" / HTTP/1.1\r\nHost: x\r\n" + fields + b"\r\n" + HIDDEN)
        answer = b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            while data := await asyncio.wait_for(reader.read(1 << 16), 30.0 if not answer else 0.3):
                answer += data
        writer.close()
    assert answer.count(b"HTTP/1.1 ") <= 1
