"""Parameter servers that keep values and fetch them: the sockets are real, TensorFlow is not needed."""

import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from elastic_tfjob.runtime import variable_server
from elastic_tfjob.runtime.variable_server import TOKEN_BYTES, Fetcher, Keeper

from .pods import until

TOKEN = "a" * TOKEN_BYTES


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    made = Keeper()
    yield made
    made.listen(b"")


@pytest.fixture
def fetcher() -> Iterator[Fetcher]:
    made = Fetcher()
    yield made
    made.close()


def offer(keeper: Keeper, *values: Any) -> str:
    """Keep these values; the address."""
    port = keeper.listen(TOKEN.encode())
    keeper.keep(list(values))
    return f"127.0.0.1:{port}"


def ask(shape: list[int], dtype: str, *pieces: list[Any], token: str = TOKEN, last: bool = True) -> dict[str, Any]:
    return {"token": token, "last": last, "values": [{"shape": shape, "dtype": dtype, "pieces": list(pieces)}]}


def test_a_value_is_put_together_from_rows_of_several_servers(keeper: Keeper, fetcher: Fetcher) -> None:
    other = Keeper()
    here, there = np.arange(12.0).reshape(4, 3), np.arange(100, 109.0).reshape(3, 3)
    first, second = offer(keeper, np.zeros(1), here), offer(other, there)
    [got] = fetcher.fetch(ask([3, 3], "float64", [first, 1, 2, 4], [second, 0, 0, 1]), rehearse=False)
    other.listen(b"")
    assert got.tolist() == [*here[2:].tolist(), there[0].tolist()]


@pytest.mark.parametrize(
    "value", [np.int64(7), np.zeros((0, 3), np.float32), np.array([True, False]), np.arange(70_000, dtype=np.uint16)]
)
def test_values_of_any_shape(keeper: Keeper, fetcher: Fetcher, value: Any) -> None:
    array = np.asarray(value)
    address = offer(keeper, array)
    rows = array.shape[0] if array.ndim else 1
    [got] = fetcher.fetch(ask(list(array.shape), str(array.dtype), [address, 0, 0, rows]), rehearse=False)
    assert (got.dtype, got.shape, got.tolist()) == (array.dtype, array.shape, array.tolist())
    assert not got.size or got.ctypes.data % 64 == 0, "else TensorFlow copies it"


def test_nothing_is_copied_before_it_is_sent(keeper: Keeper, fetcher: Fetcher) -> None:
    value = np.zeros(4, np.float32)
    address = offer(keeper, value)
    fetcher.fetch(ask([4], "float32", [address, 0, 0, 4], last=False), rehearse=True)
    value[:] = 5
    [got] = fetcher.fetch(ask([4], "float32", [address, 0, 0, 4]), rehearse=False)
    assert got.tolist() == [5.0] * 4


@pytest.mark.parametrize("token", ["b" * TOKEN_BYTES, "", "a"])
def test_another_token_gets_nothing(
    keeper: Keeper, fetcher: Fetcher, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variable_server, "CONNECT_S", 0.3)
    address = offer(keeper, np.zeros(4, np.float32))
    with pytest.raises(OSError, match=r"does not accept the token|timed out|reset"):
        fetcher.fetch(ask([4], "float32", [address, 0, 0, 4], token=token), rehearse=True)


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ([[0, 0, 3]], "4 bytes of a value are in no piece"),
        ([[1, 0, 4]], "does not have value 1"),
        ([[-1, 0, 4]], "does not have value -1"),
        ([[0, 2, 6]], "does not have value 0 with 16 bytes"),
    ],
)
def test_what_a_server_does_not_have_is_an_error(
    keeper: Keeper, fetcher: Fetcher, pieces: list[list[int]], error: str
) -> None:
    address = offer(keeper, np.zeros(4, np.float32))
    with pytest.raises((OSError, ValueError), match=error):
        fetcher.fetch(ask([4], "float32", *([address, *each] for each in pieces)), rehearse=False)


def test_what_was_kept_is_dropped(keeper: Keeper, fetcher: Fetcher) -> None:
    address = offer(keeper, np.zeros(4, np.float32))
    fetcher.fetch(ask([4], "float32", [address, 0, 0, 4], last=False), rehearse=True)
    assert keeper.listen(b"") == 0
    with pytest.raises(OSError, match="does not have value 0"):
        fetcher.fetch(ask([4], "float32", [address, 0, 0, 4]), rehearse=False)
    with pytest.raises(ConnectionRefusedError):
        fetcher.fetch(ask([4], "float32", [address, 0, 0, 4]), rehearse=True)


def test_values_are_not_kept_for_ever(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variable_server, "KEPT_S", 0.05)
    offer(keeper, np.zeros(4, np.float32))
    until("they are dropped", lambda: not keeper._values, 10)


@pytest.mark.parametrize("line", [b"[[0]]", b"nonsense", b'[["a", 0, 1]]', b"7", b"[" * 5000, b'[[0, "x", 1]]'])
def test_nonsense_ends_one_connection_only(keeper: Keeper, fetcher: Fetcher, line: bytes) -> None:
    address = offer(keeper, np.ones(4, np.float32))
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 5) as connection:
        connection.sendall(TOKEN.encode())
        assert connection.recv(1) == b"\1"
        connection.sendall(line + b"\n")
        assert connection.recv(1) == b""
    [got] = fetcher.fetch(ask([4], "float32", [address, 0, 0, 4]), rehearse=False)
    assert got.tolist() == [1.0] * 4


def test_a_server_that_stops_sending_is_given_up(
    keeper: Keeper, fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with socket.create_connection(("127.0.0.1", silent.getsockname()[1])):
            # the queue of connections has room for more
            monkeypatch.setattr(variable_server, "CONNECT_S", 0.2)
        with pytest.raises(OSError, match=r"timed out"):
            fetcher.fetch(ask([4], "float32", [address, 0, 0, 4]), rehearse=False)
    assert not fetcher._connections
