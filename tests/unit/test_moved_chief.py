"""What a chief's launcher asks the launcher of the chief before, in another pod."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic_tfjob.runtime import moved_chief, protocol
from elastic_tfjob.runtime.moved_chief import ANSWER_S, RETRY_S, OldChief, ask, has_left, write_left

LEFT = {"generation": None, "switch": {"generation": 3, "state": "committed"}, "step": 40, "last_step_at": 9.5}


class Exporter:
    """Answers each connection with these bytes, or with one after each pause; `asked` counts connections."""

    def __init__(self) -> None:
        self.answer = b""
        self.asked = 0
        self.pause_s = 0.0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def says(self, status: Any) -> None:
        body = json.dumps(status).encode()
        self.answer = b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.asked += 1
            with connection:
                connection.recv(1 << 16)
                with contextlib.suppress(OSError):
                    for byte in self.answer * 50 if self.pause_s else [self.answer]:
                        connection.sendall(byte if isinstance(byte, bytes) else bytes([byte]))
                        time.sleep(self.pause_s)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    made = Exporter()
    yield made
    made.close()


def test_it_has_left_for_one_generation(exporter: Exporter) -> None:
    old = OldChief(exporter.address)
    exporter.says({**LEFT, "switch": None})
    assert not old.has_left(3, 0.0)
    exporter.says({**LEFT, "switch": {"generation": 3, "state": "saving"}})
    assert not old.has_left(3, 0.0)
    exporter.says({**LEFT, "checkpoint": {"step": 40}})
    assert not old.has_left(4, 0.0)
    assert old.has_left(3, 0.0)
    assert old.progress == {"step": 40, "last_step_at": 9.5, "checkpoint": 40}


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n[1]",
        b"HTTP/1.0 200 OK\r\n\r\n" + b"[" * 100_000,
        b"HTTP/1.0 404 Not Found\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\n" + b"X: y\r\n" * 1_000,
        b'HTTP/1.0 200 OK\r\n\r\n{"at": ' + b"1" * (2 * protocol.READ_LIMIT),
    ],
)
def test_an_invalid_answer_is_none(exporter: Exporter, answer: bytes) -> None:
    exporter.answer = answer
    assert ask(exporter.address) is None


@pytest.mark.parametrize("status", [{}, {"switch": 3}, {"switch": {}, "checkpoint": []}, {"step": "many"}])
def test_an_answer_of_other_types_is_not_believed(exporter: Exporter, status: dict[str, Any]) -> None:
    exporter.says(status)
    assert not OldChief(exporter.address).has_left(3, 0.0)


@pytest.mark.parametrize("address", ["", "nonsense", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999999", "[::1]:1"])
def test_an_address_that_is_none(address: str) -> None:
    assert ask(address) is None


def test_one_that_does_not_answer_is_asked_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question may take a while, in which the launcher does nothing else."""
    asked: list[str] = []
    monkeypatch.setattr(moved_chief, "ask", asked.append)
    monkeypatch.setattr("elastic_tfjob.runtime.moved_chief.time.monotonic", lambda: 100.0)
    old = OldChief("10.0.0.1:9465")
    for now_s in (100.0, 100.1, 100.0 + RETRY_S / 2, 100.0 + RETRY_S):
        assert not old.has_left(1, now_s)
    assert len(asked) == 2


def test_a_slow_answer_ends_in_time(exporter: Exporter) -> None:
    """However often something of it comes."""
    exporter.says(LEFT)
    exporter.pause_s = 0.02
    begin = time.monotonic()
    assert ask(exporter.address) is None
    assert time.monotonic() - begin < 20 * ANSWER_S, "it would take far longer than that"


def test_what_a_restarted_container_knows(tmp_path: Path) -> None:
    path = tmp_path / protocol.COMMITTED
    assert not has_left(protocol.read(path))
    protocol.write(path, {"generation": 2})
    assert not has_left(protocol.read(path))
    write_left(path, {"generation": 2})
    assert has_left(protocol.read(path))
    assert (protocol.read(path) or {})["generation"] == 2
