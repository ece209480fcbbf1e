"""The HTTP server of the sidecar: /status, /metrics and /healthz."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from elastic_tfjob.exporter.files import status
from elastic_tfjob.runtime.sigterm import Sigterm

HOOK_S = 10.0
"""The hook takes about one second."""


def handler(directory: Path) -> type[BaseHTTPRequestHandler]:
    """Answers from the files in `directory`."""
    one_by_one = threading.Lock()  # what is made of the files for many at once would not fit into the container

    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # of a client that says nothing

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            try:
                if path == "/status":
                    with one_by_one:
                        body = json.dumps(status(directory)).encode()
                    self._send(200, "application/json", body)
                elif path == "/metrics":
                    with one_by_one:
                        kind, body = _metrics(directory)
                    self._send(200, kind, body)
                elif path == "/healthz":
                    self._send(200, "text/plain", b"ok\n")
                else:
                    self._send(404, "text/plain", b"there are /status, /metrics and /healthz\n")
            except (BrokenPipeError, ConnectionResetError):
                pass

        def _send(self, code: int, kind: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """A line for each scrape would be all that is in the log."""

    return Handler


def _metrics(directory: Path) -> tuple[str, bytes]:
    from elastic_tfjob.exporter.metrics import page  # noqa: PLC0415  a third of what a start takes, of CPU that trains

    return page(directory)


class Server(ThreadingHTTPServer):
    """Listens on IPv6 and IPv4, on IPv4 alone where the machine has no IPv6."""

    daemon_threads = True

    def __init__(self, port: int, directory: Path) -> None:
        super().__init__(("", port), handler(directory), bind_and_activate=False)
        self.socket.close()
        if socket.has_dualstack_ipv6():
            with contextlib.suppress(OSError):
                self.socket = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
                return
        self.socket = socket.create_server(("0.0.0.0", port))


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
        server.serve_forever(poll_interval=3600)  # how often it would look whether it is to end


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
