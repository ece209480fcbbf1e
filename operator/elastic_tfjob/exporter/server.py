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
"""The container's postStart hook takes about one second."""
MOST_CONNECTIONS, BACKLOG = 64, 1024
"""Open connections (a new one closes the oldest), and connections that wait to be accepted."""
MOST_REQUEST_BYTES = 16 << 10
REQUEST_S, ANSWER_S, LINGER_S = 10.0, 10.0, 2.0
"""The time a client has to send its request, to read the answer, and to close its end."""
RETRY_ACCEPT_S = 0.1
"""The wait where no file descriptor is free and no connection can be closed."""
_WORDS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
}


def _metrics(directory: Path) -> tuple[str, bytes]:
    from elastic_tfjob.exporter.metrics import page  # noqa: PLC0415  a third of the CPU time of a start

    return page(directory)


class _Connection:
    """A client. `asked`: the received part of its request. `answer`: the part still to send; None before the request is
    complete. `until`: when its present state times out (time.monotonic())."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        self.socket, self.until = connection, until
        self.asked = bytearray()
        self.answer: memoryview | None = None

    @property
    def rank(self) -> int:
        """The order in which connections are closed when there are too many: answered, not asked yet, still reading."""
        if self.answer is None:
            return 1
        return 2 if self.answer else 0


class Server:
    """Answers from the files in `directory`, on IPv6 and IPv4, or on IPv4 alone where the machine has no IPv6.

    One thread serves at most MOST_CONNECTIONS with one request each, all limited in size and time: the pod's threads
    and memory are for training. Raises OSError if the port is in use.
    """

    def __init__(self, port: int, directory: Path) -> None:
        self._directory = directory
        self._connections: dict[int, _Connection] = {}  # in the order of arrival
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

    def serve(self, keep_serving: Callable[[], bool] = lambda: True) -> None:
        """Serve while `keep_serving`, which is called after each event, returns true."""
        while keep_serving():
            first = min((each.until for each in self._connections.values()), default=None)
            wait_s = None if first is None else max(first - time.monotonic(), 0.0)
            for key, _ in self._selector.select(wait_s):
                if key.fd == self.socket.fileno():
                    self._accept()
                elif connection := self._connections.get(key.fd):
                    self._advance(connection)
            now = time.monotonic()
            for connection in [each for each in self._connections.values() if each.until <= now]:
                self._drop(connection)

    def _accept(self) -> None:
        """Accept waiting connections; at most MOST_CONNECTIONS at a time, so that these get their turn."""
        for _ in range(MOST_CONNECTIONS):
            try:
                connection, _ = self.socket.accept()
            except BlockingIOError:
                return
            except OSError as error:  # the client has closed it, or no file descriptor is free
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM) and not self._drop_one():
                    time.sleep(RETRY_ACCEPT_S)
                return
            connection.setblocking(False)
            accepted = _Connection(connection, time.monotonic() + REQUEST_S)
            while len(self._connections) >= MOST_CONNECTIONS:
                self._drop_one()
            self._connections[connection.fileno()] = accepted
            self._selector.register(connection, selectors.EVENT_READ)
            self._advance(accepted)  # most requests have arrived by now

    def _advance(self, connection: _Connection) -> None:
        try:
            if connection.answer is None:
                self._read(connection)
            elif connection.answer:
                self._write(connection)
            elif not connection.socket.recv(1 << 16):  # closing with unread bytes would reset the connection
                self._drop(connection)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(connection)

    def _read(self, connection: _Connection) -> None:
        data = connection.socket.recv(1 << 12)
        connection.asked += data
        head, _, rest = bytes(connection.asked).replace(b"\r\n", b"\n").partition(b"\n\n")
        if len(connection.asked) > MOST_REQUEST_BYTES:
            answer = _response(431, "text/plain", b"the limit of a request is %d bytes\n" % MOST_REQUEST_BYTES)
        elif rest or connection.asked.endswith((b"\r\n\r\n", b"\n\n")):
            answer = self._answer(head)
        elif data:
            return
        else:  # the client closed it in the middle of its request
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
        """The answer to one request. Its body, and anything after it, is ignored."""
        words = head.partition(b"\n")[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _response(400, "text/plain", b"only HTTP/1.0 and HTTP/1.1 are supported\n")
        if words[0] != b"GET":
            return _response(405, "text/plain", b"only GET is allowed\n", "Allow: GET")
        path = words[1].partition(b"?")[0]
        try:
            if path == b"/status":
                return _response(200, "application/json", json.dumps(status(self._directory)).encode())
            if path == b"/metrics":
                return _response(200, *_metrics(self._directory))
        except Exception:
            import traceback  # noqa: PLC0415  needed only for a bug

            traceback.print_exc()
            return _response(500, "text/plain", b"the exporter has failed; the traceback is in its log\n")
        if path == b"/healthz":
            return _response(200, "text/plain", b"ok\n")
        return _response(404, "text/plain", b"the paths are /status, /metrics and /healthz\n")

    def _drop_one(self) -> bool:
        """Close the oldest connection of the lowest rank; false if there is none."""
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
    parser.add_argument("--dir", type=Path, default=Path("/elastic-tfjob"), help="shared folder of the pod")
    parser.add_argument("--port", type=int, default=9465, help="port to serve metrics and status on")
    parser.add_argument(
        "--launcher", action="store_true", help="install the launcher in the shared folder if it is missing"
    )
    options = parser.parse_args()
    if options.launcher:
        threading.Thread(target=_install, args=(options.dir,), daemon=True).start()
    threading.Thread(target=_end_at, args=(sigterm, _report_to_trainer(options.dir)), daemon=True).start()
    with Server(options.port, options.dir) as server:
        server.serve()


def _install(directory: Path) -> None:
    """Install the launcher where it is missing. The container's postStart hook does that; but a kubelet that stops just
    then has not run the hook, and the next kubelet does not run it again."""
    while not (directory / "launcher.pyz").exists():
        time.sleep(HOOK_S)
        if (directory / "launcher.pyz").exists():
            return
        from elastic_tfjob.runtime.install import install  # noqa: PLC0415  rarely needed

        try:
            install(directory)
        except OSError as error:
            print(f"the launcher is not installed: {error}", file=sys.stderr, flush=True)


def _report_to_trainer(directory: Path) -> Callable[[], None] | None:
    """Start reporting to Trainer v2 where it asks for that; returns the function for the last report."""
    if "KUBEFLOW_TRAINER_SERVER_URL" not in os.environ:
        return None
    from elastic_tfjob.exporter.trainer import begin  # noqa: PLC0415  TLS takes memory, which other pods save

    return begin(directory)


def _end_at(sigterm: Sigterm, last_report: Callable[[], None] | None) -> None:
    while not sigterm.wait():
        pass
    if last_report is not None:
        last_report()
    os._exit(0)
