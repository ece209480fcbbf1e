"""The model server as a process: what it answers, what it refuses, and how it ends."""

import contextlib
import json
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .pods import HIDDEN, NO_BODY, PYTHON, TWICE, ended_early, until

pytestmark = [
    pytest.mark.xdist_group("tensorflow-2"),  # one server for all; two programs with TensorFlow at once
    pytest.mark.thorough,  # it changes with the sample alone
]

PROGRAM = Path(__file__).parents[2] / "trainer_images" / "digits" / "serve_digits.py"
PREDICT = "/v1/models/digits:predict"
IMAGE = [0.5] * 64
DRAIN_S = 30
"""In this time a busy machine must have seen that it drains; a test waits for its end."""


class Server:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with open(self.folder / "output", "wb") as output:
            self.process = subprocess.Popen(
                [PYTHON, PROGRAM, "--port=0", f"--drain={DRAIN_S}", f"--model-dir={self.folder / 'models'}"],
                stdout=output,
                stderr=output,
            )
        self.port = json.loads(until("it serves", self._line, 600))["port"]

    def _line(self) -> str | None:
        assert self.process is not None
        text = (self.folder / "output").read_text()
        assert self.process.poll() is None, text
        return next((line for line in text.splitlines() if line.startswith('{"serving"')), None)

    def ask(self, path: str, body: bytes | None = None) -> tuple[int, Any]:
        """Status and answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", body, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def refuses(self) -> bool:
        """Whether it takes no connection any more."""
        try:
            self.ask("/healthz")
        except OSError:
            return True
        return False


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all tests here: TensorFlow takes long to import."""
    made = Server(tmp_path_factory.mktemp("serve"))
    try:
        made.start()
        yield made
    finally:
        if made.process is not None and made.process.poll() is None:
            made.process.kill()
            made.process.wait(60)


def test_the_model_has_learned_the_digits(server: Server) -> None:
    import numpy as np  # noqa: PLC0415

    table = np.loadtxt(PROGRAM.with_name("digits.csv.gz"), delimiter=",")[:200]
    status, answer = server.ask(PREDICT, json.dumps({"instances": (table[:, :-1] / 16).tolist()}).encode())
    assert status == 200
    assert np.mean([each["class"] for each in answer["predictions"]] == table[:, -1]) > 0.8


def test_the_status_names_the_model(server: Server) -> None:
    status, answer = server.ask("/v1/models/digits")
    (version,) = answer["model_version_status"]
    assert (status, version["version"], version["state"]) == (200, "1", "AVAILABLE")
    assert server.ask("/healthz")[0] == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"no json", 400),
        (b"[1]", 400),
        (b'{"instances": []}', 400),
        (b'{"instances": [[1, 2]]}', 400),
        (b'{"instances": [[1], [1, 2]]}', 400),
        (b'{"instances": ' + b"[" * 5000, 400),
        (json.dumps({"instances": [[float("nan")] * 64]}).encode(), 400),
        (json.dumps({"instances": [[10**400] * 64]}).encode(), 400),
        (json.dumps({"instances": [[0] * 64] * 1025}).encode(), 400),
        (b" " * ((1 << 20) + 1), 413),
    ],
    ids=["words", "list", "none", "short", "ragged", "deep", "nan", "huge number", "many", "large"],
)
def test_invalid_requests_are_refused(server: Server, body: bytes, status: int) -> None:
    found, answer = server.ask(PREDICT, body)
    assert (found, set(answer)) == (status, {"error"})
    assert server.ask(PREDICT, json.dumps({"instances": [IMAGE]}).encode())[0] == 200


def test_a_client_that_is_still_sending_a_large_body_gets_the_answer(server: Server) -> None:
    body = b" " * (3 << 20)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        assert connection.recv(1, socket.MSG_PEEK)  # it is refused by then
        for start in range(0, len(body), 1 << 16):
            connection.sendall(body[start : start + (1 << 16)])
        assert connection.recv(64).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("fields", [each for each in TWICE if each != NO_BODY])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
def test_a_body_is_no_second_request(server: Server, method: str, fields: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(method.encode() + b" /healthz HTTP/1.1\r\nHost: x\r\n" + fields + b"\r\n" + HIDDEN)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while data := connection.recv(65536):
                answer += data
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("written", ["\x0b{}", "{}\x0c", "{}\x85", "\xa0{}", "{}\x1c"])
def test_an_ambiguous_content_length_is_refused(server: Server, written: str) -> None:
    """Only space and tab are white space there; whoever passes the request on may see no length, and two requests."""
    body = json.dumps({"instances": [IMAGE]}).encode()
    head = f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nContent-Length: {written.format(len(body))}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(head.encode("latin-1") + body + HIDDEN)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while data := connection.recv(65536):
                answer += data
    assert answer.count(b"HTTP/1.1 ") == answer.count(b"HTTP/1.1 411 ") == 1


def test_one_connection_has_many_requests(server: Server) -> None:
    body = json.dumps({"instances": [IMAGE]}).encode()
    post = f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(post + b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = b""
        while data := connection.recv(65536):
            answer += data
    assert answer.count(b"HTTP/1.1 200 ") == 2


def test_an_unfinished_request_does_not_block_others(server: Server) -> None:
    """128 that sent a byte now and then took all connections that there are, for as long as they liked."""
    with contextlib.ExitStack() as stack:
        for number in range(140):
            head = f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n" if number % 2 else "POST"
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            connection.sendall(head.encode())
        for _ in range(3):
            assert server.ask(PREDICT, json.dumps({"instances": [IMAGE]}).encode())[0] == 200


def test_unknown_paths_are_answered_with_the_known_ones(server: Server) -> None:
    assert server.ask("/v1/models/other")[0] == server.ask("/v1/models/other:predict", b"{}")[0] == 404


def test_open_requests_are_answered_before_the_end(server: Server) -> None:
    """A request whose body comes in parts, the last long after SIGTERM, is answered; new ones are, too, while it
    drains, and /healthz says that it is not ready."""
    assert server.process is not None
    body = json.dumps({"instances": [IMAGE] * 500}).encode()
    sent = 20
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        head = f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body[:sent])

        def meanwhile(true: Callable[[], bool]) -> bool:
            """With one byte more of the body at each look: a connection that is silent for long is closed."""
            nonlocal sent
            connection.sendall(body[sent : sent + 1])
            sent += 1
            return true()

        assert server.ask("/healthz")[0] == 200  # it takes connections in their order: this one, too
        server.process.terminate()
        until("it is not ready", lambda: meanwhile(lambda: server.ask("/healthz")[0] == 503))
        until("nobody else is let in", lambda: meanwhile(server.refuses))
        assert server.process.poll() is None
        connection.sendall(body[sent:])
        answer = b""
        while data := connection.recv(65536):
            answer += data
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"predictions" in answer
    assert server.process.wait(60) == 0


def test_a_signal_that_comes_while_it_starts_is_not_lost(tmp_path: Path) -> None:
    ended = ended_early("tensorflow", PROGRAM, "--port=0", f"--model-dir={tmp_path}")
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
