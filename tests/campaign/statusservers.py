"""Hostile `/status` servers: each answer on an address of its own, 127.x.y.z:9465, where the operator asks a pod.

Beside them a trap: a port that nobody has a reason to ask. Every request there came by a redirect.
"""

import asyncio
import contextlib
import gzip
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Final, Self

from elastic_tfjob.controller.model.pod import STATUS_PORT

KINDS: Final = (
    "nested", "redirect", "redirect-307", "silent", "slam", "endless", "drip", "split", "bomb", "short", "long",
    "cookies", "headers", "chunks", "old", "error", "empty",
)  # fmt: skip

_DEPTHS: Final = 60
_GATHER_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    """How a server answers: one of KINDS, or `json` for `text` as it is. `number`: how deep at
    least, for `nested`, which begins with `text`."""

    kind: str
    text: str = ""
    number: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.number or ''}{self.text[:400]}"


class StatusServers:
    """`async with StatusServers() as servers:`; `trapped` counts requests that a redirect led astray, `cookies` those
    that brought back what an answer had set."""

    def __init__(self) -> None:
        chosen = Random(os.urandom(8))
        self._net = f"127.{chosen.randrange(1, 255)}.{chosen.randrange(255)}"
        self._addresses: dict[Answer, str] = {}
        self._servers: list[asyncio.Server] = []
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._trap = ""
        self.asked = 0
        self.trapped = 0
        self.cookies = 0

    async def __aenter__(self) -> Self:
        trap = await asyncio.start_server(self._spring, f"{self._net}.1", 0)
        self._servers.append(trap)
        host, port = trap.sockets[0].getsockname()[:2]
        self._trap = f"http://{host}:{port}/metadata"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers:
            server.close()
        for writer in list(self._open):
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def address(self, answer: Answer) -> str:
        """The IP address where a server gives this answer; 200 at most, then old ones serve again."""
        if found := self._addresses.get(answer):
            return found
        if len(self._addresses) >= 200:
            return next(iter(self._addresses.values()))
        address = f"{self._net}.{len(self._addresses) + 2}"
        self._addresses[answer] = address
        self._servers.append(await asyncio.start_server(self._serving(answer), address, STATUS_PORT))
        return address

    async def _spring(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.trapped += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        await self._over(writer)

    def _serving(self, answer: Answer) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._open.add(writer)
            if task := asyncio.current_task():
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            try:
                async with asyncio.timeout(_GATHER_S):
                    request = await reader.readuntil(b"\r\n\r\n")
                    self.asked += 1
                    self.cookies += b"\r\ncookie:" in request.lower()
                    await self._give(answer, writer)
            except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                pass
            except asyncio.CancelledError:  # the end of all; asyncio's own callback would print it
                pass
            finally:
                self._open.discard(writer)
                await self._over(writer)

        return serve

    async def _give(self, answer: Answer, writer: asyncio.StreamWriter) -> None:
        body = answer.text.encode()
        match answer.kind:
            case "nested":
                # What is too deep depends on the stack of who reads it, to the level: each answer is one deeper.
                depth = answer.number + self.asked % _DEPTHS
                text = answer.text + "[" * depth + "1" + "]" * depth + "}" * answer.text.count("{")
                writer.write(_head(len(text)) + text.encode())
            case "redirect" | "redirect-307":
                code = 307 if answer.kind.endswith("307") else 302
                writer.write(f"HTTP/1.1 {code} Found\r\nLocation: {self._trap}\r\nContent-Length: 0\r\n\r\n".encode())
            case "silent":
                await asyncio.sleep(_GATHER_S)
            case "slam":
                writer.transport.abort()
            case "endless":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
                while True:
                    writer.write(b"[" * 65_536)
                    await writer.drain()
            case "drip":
                writer.write(_head(len(body)))
                for at in range(len(body)):
                    writer.write(body[at : at + 1])
                    await writer.drain()
                    await asyncio.sleep(0.3)
            case "split":
                half = len(body) // 2
                writer.write(_head(len(body)) + body[:half])
                await writer.drain()
                await asyncio.sleep(0.05)
                writer.write(body[half:])
            case "bomb":
                packed = gzip.compress(b" " * 30_000_000, 9)
                writer.write(_head(len(packed), "Content-Encoding: gzip\r\n") + packed)
            case "short":
                writer.write(_head(len(body) + 1000) + body)
            case "long":
                writer.write(_head(len(body) // 2) + body)
            case "cookies":
                writer.write(_head(len(body), "Set-Cookie: session=stolen; Path=/\r\n") + body)
            case "headers":
                writer.write(_head(len(body), "".join(f"X-{n}: {'x' * 500}\r\n" for n in range(100))) + body)
            case "chunks":
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n{}")
            case "old":
                writer.write(body)
            case "error":
                writer.write(b"HTTP/1.1 500 " + b"x" * 4000 + b"\r\nContent-Length: 0\r\n\r\n")
            case "empty":
                writer.write(_head(0))
            case _:
                writer.write(_head(len(body)) + body)
        await writer.drain()

    async def _over(self, writer: asyncio.StreamWriter) -> None:
        writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                await writer.wait_closed()


def _head(length: int, more: str = "") -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{more}\r\n".encode()
