"""The HTTP server of the sidecar: /status, /metrics and /healthz."""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from elastic_tfjob.exporter.status import status
from elastic_tfjob.runtime.serving import Sigterm

HOOK_S = 10.0
"""The hook takes about one second."""
MOST, BACKLOG = 64, 1024
"""Connections at once, of which the oldest goes for a new one; and those that wait to be taken."""
MAX_HEAD = 16 << 10
"""Bytes of a request."""
REQUEST_S, ANSWER_S, LINGER_S = 10.0, 10.0, 2.0
"""How long a client may take to ask, to read the answer, and to close its end."""
FULL_S = 0.1
_WORDS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
}


def _metrics(directory: Path) -> tuple[str, bytes]:
    from elastic_tfjob.exporter.metrics import page  # noqa: PLC0415  a third of what a start takes, of CPU that trains

    return page(directory)


class _Connection:
    """A connection: what it has asked so far, what is left of its answer (None: not asked yet), and until when its
    present state may last (time.monotonic())."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        self.socket, self.until = connection, until
        self.asked = bytearray()
        self.answer: memoryview | None = None

    @property
    def rank(self) -> int:
        """Who goes first where there are too many: who has the answer, who has not asked, who still reads."""
        if self.answer is None:
            return 1
        return 2 if self.answer else 0


class Server:
    """Answers from the files in `directory`, on IPv6 and IPv4, or on IPv4 alone where the machine has no IPv6.

    One thread serves at most MOST connections with one request each, all with a limit in size and time: a pod has a
    limit of threads and memory, and what trains in it needs them. Raises OSError where the port is taken.
    """

    def __init__(self, port: int, directory: Path) -> None:
        self._directory = directory
        self._connections: dict[int, _Connection] = {}  # in the order in which they came
        self.socket = _listener(port)
        self.socket.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.socket, selectors.EVENT_READ)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._selector.close()
        self.socket.close()

    def serve(self, goes_on: Callable[[], bool] = lambda: True) -> None:
        """Serve; `goes_on` is asked after each event."""
        while goes_on():
            first = min((each.until for each in self._connections.values()), default=None)
            wait = None if first is None else max(first - time.monotonic(), 0.0)
            for key, _ in self._selector.select(wait):
                if key.fd == self.socket.fileno():
                    self._accept()
                elif connection := self._connections.get(key.fd):
                    self._advance(connection)
            now = time.monotonic()
            for connection in [each for each in self._connections.values() if each.until <= now]:
                self._drop(connection)

    def _accept(self) -> None:
        """Take what waits; in one turn no more than may be open, so that those are looked at."""
        for _ in range(MOST):
            try:
                connection, _ = self.socket.accept()
            except BlockingIOError:
                return
            except OSError as error:  # it has gone already, or no file can be opened
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM) and not self._drop_one():
                    time.sleep(FULL_S)
                return
            connection.setblocking(False)
            made = _Connection(connection, time.monotonic() + REQUEST_S)
            while len(self._connections) >= MOST:
                self._drop_one()
            self._connections[connection.fileno()] = made
            self._selector.register(connection, selectors.EVENT_READ)
            self._advance(made)  # most have asked by now

    def _advance(self, connection: _Connection) -> None:
        try:
            if connection.answer is None:
                self._read(connection)
            elif connection.answer:
                self._write(connection)
            elif not connection.socket.recv(1 << 16):  # unread: closing would then reset it, and the answer with it
                self._drop(connection)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(connection)

    def _read(self, connection: _Connection) -> None:
        data = connection.socket.recv(1 << 12)
        connection.asked += data
        head, _, rest = bytes(connection.asked).replace(b"\r\n", b"\n").partition(b"\n\n")
        if len(connection.asked) > MAX_HEAD:
            answer = _response(431, "text/plain", b"a request has at most %d bytes\n" % MAX_HEAD)
        elif rest or connection.asked.endswith((b"\r\n\r\n", b"\n\n")):
            answer = self._answer(head)
        elif data:
            return
        else:  # it has ended in the middle
            self._drop(connection)
            return
        connection.answer, connection.until = memoryview(answer), time.monotonic() + ANSWER_S
        self._selector.modify(connection.socket, selectors.EVENT_WRITE)
        self._write(connection)

    def _write(self, connection: _Connection) -> None:
        assert connection.answer is not None
        connection.answer = connection.answer[connection.socket.send(connection.answer) :]
        if not connection.answer:
            connection.socket.shutdown(socket.SHUT_WR)
            connection.until = time.monotonic() + LINGER_S
            self._selector.modify(connection.socket, selectors.EVENT_READ)

    def _answer(self, head: bytes) -> bytes:
        """To one request. A body that it has is not read, and nothing after it is taken for a request."""
        words = head.partition(b"\n")[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _response(400, "text/plain", b"this is no request of HTTP/1.0 or 1.1\n")
        if words[0] != b"GET":
            return _response(405, "text/plain", b"only GET is answered\n", "Allow: GET")
        path = words[1].partition(b"?")[0]
        try:
            if path == b"/status":
                return _response(200, "application/json", json.dumps(status(self._directory)).encode())
            if path == b"/metrics":
                return _response(200, *_metrics(self._directory))
        except Exception:
            import traceback  # noqa: PLC0415  a bug, which ends nothing else

            traceback.print_exc()
            return _response(500, "text/plain", b"the exporter has failed; its log says where\n")
        if path == b"/healthz":
            return _response(200, "text/plain", b"ok\n")
        return _response(404, "text/plain", b"there are /status, /metrics and /healthz\n")

    def _drop_one(self) -> bool:
        """Close the oldest of those that need their connection least; false if there is none."""
        oldest = min(self._connections.values(), key=lambda each: each.rank, default=None)
        if oldest is not None:
            self._drop(oldest)
        return oldest is not None

    def _drop(self, connection: _Connection) -> None:
        self._connections.pop(connection.socket.fileno(), None)
        with contextlib.suppress(KeyError, ValueError, OSError):
            self._selector.unregister(connection.socket)
        connection.socket.close()


def _response(code: int, kind: str, body: bytes, *more: str) -> bytes:
    lines = [
        f"HTTP/1.0 {code} {_WORDS[code]}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *more,
    ]
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode() + body


def _listener(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
    return socket.create_server(("0.0.0.0", port), backlog=BACKLOG)


def main(sigterm: Sigterm) -> None:
    """Serve until SIGTERM. Does not return."""
    parser = argparse.ArgumentParser(prog="python -m elastic_tfjob.exporter", description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("/elastic-tfjob"), help="where launcher and program write")
    parser.add_argument("--port", type=int, default=9465)
    parser.add_argument("--launcher", action="store_true", help="install the launcher, too, if nobody else does")
    options = parser.parse_args()
    if options.launcher:
        threading.Thread(target=_install, args=(options.dir,), daemon=True).start()
    threading.Thread(target=_end_at, args=(sigterm, _told(options.dir)), daemon=True).start()
    with Server(options.port, options.dir) as server:
        server.serve()


def _install(directory: Path) -> None:
    """Install the launcher where it is missing. The container's hook does that when it starts; but a kubelet that ends
    just then has not run it, and the next one does not run it again."""
    while not (directory / "launcher.pyz").exists():
        time.sleep(HOOK_S)
        if (directory / "launcher.pyz").exists():
            return
        from elastic_tfjob.runtime.install import install  # noqa: PLC0415  seldom needed

        try:
            install(directory)
        except OSError as error:
            print(f"the launcher is not installed: {error}", file=sys.stderr, flush=True)


def _told(directory: Path) -> Callable[[], None] | None:
    """What tells Trainer v2 for the last time, where it asks to be told."""
    if "KUBEFLOW_TRAINER_SERVER_URL" not in os.environ:
        return None
    from elastic_tfjob.exporter.trainer import begin  # noqa: PLC0415  TLS takes memory that other pods do not need

    return begin(directory)


def _end_at(sigterm: Sigterm, last: Callable[[], None] | None) -> None:
    while not sigterm.wait():
        pass
    if last is not None:
        last()
    os._exit(0)
