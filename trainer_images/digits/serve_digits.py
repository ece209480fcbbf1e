"""Serve the digits: a TensorFlow model server for a Deployment, such as manifests/samples/inference.yaml.

It loads a SavedModel and answers in the shapes of TensorFlow Serving's REST API:

    GET  /v1/models/digits            the version, and that it is available
    POST /v1/models/digits:predict    {"instances": [[64 numbers in 0..1], ...]}
                                      -> {"predictions": [{"class": 3, "scores": [10 numbers]}, ...]}
    GET  /healthz                     200 while it accepts requests, 503 while it shuts down

`--model-dir` has versions in TensorFlow Serving's layout (1/saved_model.pb); the highest is served. Without one, a
small model is trained first, which takes a second or two.

After SIGTERM the server is not ready, and serves for another `--drain` seconds, since clients learn of that late. Then
it accepts no more connections, finishes the open requests, and exits with 0.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# The first process of a container does not get a signal without a handler, and TensorFlow takes a while to import.
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from digits import Network, digits  # noqa: E402

NAME = "digits"
PIXELS, MAX_INSTANCES, MAX_BODY, MAX_CONNECTIONS = 64, 1024, 1 << 20, 128
"""The limits of a request (a body in bytes), and of connections: one more closes the oldest without a request."""
IDLE_S, FINISH_S, ROOM_S = 10, 20, 1
"""Time limits: of an idle connection, of the open requests at the end, and of the wait for a free connection."""


class BadRequest(Exception):
    """An invalid request: an HTTP status and a message."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class Served(tf.Module):
    """The signature of the SavedModel: images (n, 64) -> class (n,), scores (n, 10), which add up to 1."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    @tf.function(input_signature=[tf.TensorSpec([None, PIXELS], tf.float32, name="images")])
    def predict(self, images: tf.Tensor) -> dict:
        scores = tf.nn.softmax(self.network(images))
        return {"class": tf.argmax(scores, axis=1), "scores": scores}


def train(folder: Path, steps: int = 300) -> None:
    """Train a small network, and save it as a SavedModel."""
    images, _, labels, _ = digits()
    network = Network(hidden=32)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, network(images)))
        for variable, gradient in zip(network.weights, tape.gradient(loss, network.weights)):
            variable.assign_sub(0.5 * gradient)

    for _ in range(steps):
        step()
    served = Served(network)
    tf.saved_model.save(served, str(folder), signatures={"serving_default": served.predict})


def newest(folder: Path) -> int | None:
    """The highest version below `folder`; None if there is none."""
    found = [int(each.parent.name) for each in folder.glob("*/saved_model.pb") if each.parent.name.isdecimal()]
    return max(found, default=None)


def instances_of(body: bytes) -> np.ndarray:
    """The images of a request, (n, 64). Raises BadRequest."""
    try:
        found = json.loads(body)["instances"]
        images = np.asarray(found, dtype=np.float32)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise BadRequest(400, f'the body must be {{"instances": [[{PIXELS} numbers], ...]}}') from None
    if images.ndim != 2 or images.shape[1] != PIXELS or not 1 <= len(images) <= MAX_INSTANCES:
        raise BadRequest(
            400, f"instances has shape {images.shape}; it must be 1 to {MAX_INSTANCES} lists of {PIXELS} numbers"
        )
    if not np.isfinite(images).all():
        raise BadRequest(400, "instances must be finite numbers")
    return images


class Server(ThreadingHTTPServer):
    """A thread for each connection, and a bounded number of them. `ready`: the server is not shutting down."""

    daemon_threads = True  # idle connections do not delay the exit; requests do, in `finish`
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, address: tuple, folder: Path, version: int) -> None:
        super().__init__(address, Handler)
        self.version = version
        self._model = tf.saved_model.load(str(folder / str(version)))
        self._predict = self._model.signatures["serving_default"]
        self.predict(np.zeros((1, PIXELS), np.float32))  # the first call is slow
        self.ready = True
        self._connections = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._active, self._changed = 0, threading.Condition()
        self._waiting: dict[socket.socket, None] = {}  # in the order in which they began to wait for a request

    def predict(self, images: np.ndarray) -> list[dict]:
        """The class (n,) and ten scores (n, 10) of each image."""
        found = self._predict(images=tf.constant(images))
        classes, scores = found["class"].numpy().tolist(), found["scores"].numpy().tolist()
        return [{"class": each, "scores": of} for each, of in zip(classes, scores)]

    def process_request(self, request: object, client_address: object) -> None:
        if not (self._connections.acquire(blocking=False) or self._make_room()):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def _make_room(self) -> bool:
        """Close a connection: a client that sends a byte from time to time would keep it without end."""
        with self._changed:
            oldest = next(iter(self._waiting), None)
        if oldest is None:
            return False
        with contextlib.suppress(OSError):  # the client has closed it
            oldest.shutdown(socket.SHUT_RDWR)
        return self._connections.acquire(timeout=ROOM_S)

    def waits(self, connection: socket.socket, waiting: bool) -> None:
        """Note whether a connection waits for a request."""
        with self._changed:
            self._waiting.pop(connection, None)
            if waiting:
                self._waiting[connection] = None

    def process_request_thread(self, request: object, client_address: object) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: object, client_address: object) -> None:
        print(f"a connection broke: {sys.exc_info()[1]!r}", file=sys.stderr, flush=True)

    def count(self, change: int) -> None:
        """Count a request that begins (1) or has been answered (-1)."""
        with self._changed:
            self._active += change
            self._changed.notify_all()

    def finish(self) -> bool:
        """Wait for the open requests; returns whether all were answered in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._active, FINISH_S)


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    timeout = IDLE_S

    def handle(self) -> None:
        try:
            super().handle()
        finally:
            self.server.waits(self.connection, False)

    def handle_one_request(self) -> None:
        self.server.waits(self.connection, True)
        super().handle_one_request()

    def parse_request(self) -> bool:
        """Parse as the base class does. Where the end of a request's body is not certain, the connection is closed
        after it, so that the rest is not read as another request."""
        if not super().parse_request():
            return False
        lengths = self.headers.get_all("Content-Length", [])
        number = re.fullmatch(r"[ \t]*([0-9]{1,9})[ \t]*", lengths[0]) if len(lengths) == 1 else None
        self.length = int(number[1]) if number else None
        odd = self.headers.defects or any(name != name.strip() or "\n" in value for name, value in self.headers.items())
        odd = odd or self.headers.get_payload()  # unseen fields: a bare CR counts as the end of a line
        plain = not odd and "Transfer-Encoding" not in self.headers and (self.length is not None or not lengths)
        if not plain or (self.command != "POST" and self.length):
            self.close_connection = True
        if not plain:
            self.length = None
        return True

    def do_GET(self) -> None:
        if self.path == "/healthz":
            self._answer(200 if self.server.ready else 503, {"ready": self.server.ready})
        elif self.path == f"/v1/models/{NAME}":
            status = {"error_code": "OK", "error_message": ""}
            version = {"version": str(self.server.version), "state": "AVAILABLE", "status": status}
            self._answer(200, {"model_version_status": [version]})
        else:
            self._answer(404, {"error": f"not found; allowed: /healthz and /v1/models/{NAME}"})

    def do_POST(self) -> None:
        self.server.count(1)
        refused = False
        try:
            if self.path != f"/v1/models/{NAME}:predict":
                raise BadRequest(404, f"not found; the path is /v1/models/{NAME}:predict")
            self._answer(200, {"predictions": self.server.predict(instances_of(self._body()))})
        except BadRequest as wrong:
            self.close_connection = True  # its body may be unread
            self._answer(wrong.status, {"error": str(wrong)})
            refused = True
        finally:
            self.server.count(-1)
        if refused:
            self._linger()

    def _linger(self) -> None:
        """Read what the client still sends: closing a connection with unread bytes resets it, and a client that is
        still sending never sees the answer."""
        end = time.monotonic() + IDLE_S
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            while time.monotonic() < end and self.rfile.read1(1 << 16):
                pass

    def _body(self) -> bytes:
        if self.length is None:
            raise BadRequest(
                411, "the request must have one header Content-Length with a number, and no Transfer-Encoding"
            )
        if self.length > MAX_BODY:
            raise BadRequest(413, f"the limit of a body is {MAX_BODY} bytes")
        body = self.rfile.read(self.length)
        self.server.waits(self.connection, False)
        return body

    def _answer(self, status: int, content: dict) -> None:
        if not self.server.ready:
            self.close_connection = True
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Requests are not logged."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8501, help="port to serve on; 0: any free port")
    parser.add_argument("--model-dir", type=Path, default=Path("/tmp/models") / NAME, help="folder of model versions")
    parser.add_argument("--drain", type=float, default=5.0, metavar="SECONDS", help="seconds to serve after SIGTERM")
    options = parser.parse_args()

    version = newest(options.model_dir)
    if version is None:
        version = 1
        train(options.model_dir / str(version))
    server = Server(("", options.port), options.model_dir, version)
    # Any thread may get a signal, which does not wake a main thread that waits for a lock: a pipe wakes it.
    told, teller = os.pipe()
    os.set_blocking(teller, False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(teller)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
    print(json.dumps({"serving": NAME, "version": version, "port": server.server_port}), flush=True)
    os.read(told, 1)
    server.ready = False
    time.sleep(options.drain)
    server.shutdown()
    server.server_close()
    sys.exit(0 if server.finish() else f"some requests were not answered within {FINISH_S} s")


if __name__ == "__main__":
    main()
