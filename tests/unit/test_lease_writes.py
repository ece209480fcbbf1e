"""Writes of a leader on a network that loses packets: none is carried out after its lease has run out, however long
the kernel goes on sending what it has been given."""

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial

import pytest
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.errors import Fenced, Unavailable

from .test_client import client_of

LEFT_S = 2.0
_NUMBERS = itertools.count(os.getpid() % 200)

SERVER = """
import http.server, sys

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        print(self.path.partition("?")[0], flush=True)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_): ...

server = http.server.ThreadingHTTPServer((sys.argv[1], 8080), Handler)
print("up", flush=True)
server.serve_forever()
"""
CLIENT = """
import asyncio, sys, time
from kubernetes.aio.client.configuration import Configuration
from elastic_tfjob.controller.kube.client import ApiClient

async def main():
    configuration = Configuration()
    configuration.host = f"http://{sys.argv[1]}:8080"
    async with ApiClient(configuration) as api:
        end = time.monotonic() + 600
        fenced = api.fenced(lambda: end - time.monotonic())
        await fenced.once("PUT", "/before", {})
        print("before", flush=True)
        sys.stdin.readline()
        end = time.monotonic() + float(sys.argv[2])
        try:
            await fenced.once("PUT", "/late", {}, timeout_s=30.0)
        except Exception as error:
            print(type(error).__name__, flush=True)
        sys.stdin.readline()

asyncio.run(main())
"""


@dataclass
class Network:
    """A network of two machines, this one and `space`, whose cable can be pulled."""

    space: str
    address: str

    def cable(self, state: str) -> None:
        ip("-n", self.space, "link", "set", "far", state)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def network() -> Iterator[Network]:
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("only root makes networks, with iproute2")
    number = next(_NUMBERS) % 250
    space, near = f"etfj-{number}", f"etfj{number}"
    try:
        ip("netns", "add", space)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine makes no networks: {error.stderr!r}")
    try:
        ip("link", "add", near, "type", "veth", "peer", "name", "far", "netns", space)
        ip("addr", "add", f"10.213.{number}.1/30", "dev", near)
        ip("link", "set", near, "up")
        ip("-n", space, "addr", "add", f"10.213.{number}.2/30", "dev", "far")
        ip("-n", space, "link", "set", "far", "up")
        # Known for good: else this machine holds packets back while it asks who has the address.
        address = subprocess.check_output(
            ["ip", "netns", "exec", space, "cat", "/sys/class/net/far/address"], text=True
        ).strip()
        ip("neigh", "replace", f"10.213.{number}.2", "lladdr", address, "dev", near, "nud", "permanent")
        yield Network(space, f"10.213.{number}.2")
    finally:
        ip("netns", "del", space)


@pytest.mark.parametrize("stopped", [False, True], ids=["it runs", "it is stopped"])
def test_a_write_delayed_by_the_network_is_not_carried_out_later(network: Network, stopped: bool) -> None:
    """The kernel repeats what is not confirmed, also for a process that is stopped: until the lease has run out."""
    with contextlib.ExitStack() as stack:

        def start(*command: str) -> subprocess.Popen[str]:
            process = stack.enter_context(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
                )
            )
            stack.callback(process.kill)
            return process

        def line(process: subprocess.Popen[str]) -> str:
            assert process.stdout is not None
            return process.stdout.readline().strip()

        server = start("ip", "netns", "exec", network.space, sys.executable, "-c", SERVER, network.address)
        assert line(server) == "up"
        client = start(sys.executable, "-c", CLIENT, network.address, str(LEFT_S))
        assert (line(client), line(server)) == ("before", "/before")
        network.cable("down")
        assert client.stdin is not None
        client.stdin.write("\n")
        client.stdin.flush()
        if stopped:
            time.sleep(0.5)  # it has given the kernel its request
            client.send_signal(signal.SIGSTOP)
            time.sleep(LEFT_S + 1)
        else:
            assert line(client) == "Unavailable"
        network.cable("up")
        time.sleep(6)  # by then the kernel would have repeated it
        again = start(sys.executable, "-c", CLIENT, network.address, str(LEFT_S))
        assert line(again) == "before", "the network is back"
        assert line(server) == "/before", "and this is the next that the server gets"


@contextlib.asynccontextmanager
async def held(upstream: int) -> AsyncIterator[tuple[int, asyncio.Event]]:
    """A proxy's port, and what lets it pass on what it holds back: of each connection that was not reset by then."""
    go = asyncio.Event()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if task := asyncio.current_task():
            tasks.add(task)
        data = await reader.read(1 << 16)
        await go.wait()
        try:
            if await asyncio.wait_for(reader.read(1), 0.1) == b"":
                return
        except TimeoutError:
            pass
        except ConnectionResetError:
            return
        _, there = await asyncio.open_connection("127.0.0.1", upstream)
        there.write(data)
        await asyncio.sleep(0.2)
        there.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1], go
    server.close()
    for task in tasks:
        task.cancel()


def left_until(end: float) -> float:
    return end - time.monotonic()


@pytest.mark.parametrize("how", ["time", "abandoned", "cancelled"])
async def test_a_write_without_an_answer_resets_its_connection(how: str) -> None:
    seen: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.append(request.path)
        return web.json_response({})

    async with client_of(answer) as direct:
        port = int(direct._base.rpartition(":")[2])
        async with held(port) as (through, go):
            configuration = Configuration()
            configuration.host = f"http://127.0.0.1:{through}"
            async with ApiClient(configuration) as api:
                left = {"time": 0.3}.get(how, 14.0)
                fenced = api.fenced(partial(left_until, time.monotonic() + left))
                write = asyncio.create_task(fenced.once("PUT", "/late", {}, 30.0))
                await asyncio.sleep(0.1)
                if how == "abandoned":
                    api.abandon()
                elif how == "cancelled":
                    write.cancel()
                with pytest.raises((Unavailable, asyncio.CancelledError)):
                    await asyncio.wait_for(write, 5)
                go.set()
                await asyncio.sleep(0.5)
    assert seen == []


async def test_the_server_is_told_how_long_a_write_may_take() -> None:
    """It may have it in time, and wait for a webhook or for etcd."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.query.get("timeout", ""))
        return web.json_response({})

    async with client_of(answer) as api:
        fenced = api.fenced(lambda: 7.5)
        await fenced.post("/a", {})
        await fenced.get("/a")
        await api.put("/a", {})
        await api.fenced(lambda: float("inf")).put("/a", {})
    assert asked == ["7500ms", "", "", ""]


async def test_a_write_whose_lease_has_run_out_is_not_sent() -> None:
    """The process was stopped between the last question and the last line."""
    seen: list[str] = []
    left = iter([5.0, 5.0])

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.append(request.path)
        return web.json_response({})

    async with client_of(answer) as api:
        assert await api.fenced(lambda: next(left, 0.0)).once("PUT", "/one", {}) == {}
        left = iter([5.0])
        with pytest.raises(Unavailable):
            await api.fenced(lambda: next(left, 0.0)).once("PUT", "/two", {})
        with pytest.raises(Fenced):
            await api.fenced(lambda: 0.0).put("/three", {})
    assert seen == ["/one"]


async def test_writes_use_a_connection_again() -> None:
    ports: set[object] = set()

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        ports.add(request.transport.get_extra_info("peername"))
        return web.json_response({}, status=409 if request.path == "/taken" else 200)

    async with client_of(answer) as api:
        for path in ("/a", "/taken", "/b"):
            with contextlib.suppress(Exception):
                await api.put(path, {})
    assert len(ports) == 1
