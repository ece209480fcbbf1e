"""A parameter server's part in a hand-over: it keeps the values of its variables for the parameter servers of the next
generation, or fetches its own from those of the one before.

    old chief ──PyFunc──▶ old parameter server (keeps) ◀──TCP── new parameter server (fetches) ◀──PyFunc── new chief

A chief calls the functions below by the op PyFunc, whose arguments and results share the memory of TensorFlow's
tensors. So to keep values copies nothing, as long as nobody trains on them, and fetched bytes are received where the
variable then has them.

A connection begins with the token of the hand-over, of which both chiefs tell their servers. Then each line is a JSON
list of [value, begin, end]: the number of a value and a range of its rows. The answer to each element is the number of
bytes (8, big-endian, signed), then the bytes; -1 if there is no such value.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import socket
import threading
from typing import Any, Callable

__all__ = ["FETCH", "KEEP", "LISTEN", "TOKEN_BYTES", "Fetcher", "Keeper", "functions", "register"]

LISTEN, KEEP, FETCH = (f"elastic_tfjob_{name}" for name in ("listen", "keep", "fetch"))
TOKEN_BYTES = 32
KEPT_S = 900.0
"""Values are kept at most this long: the chief that would have them dropped may be gone."""
CONNECT_S, IO_S = 5.0, 20.0
"""Time to connect and to show the token, and between two bytes."""
_CONNECTIONS = 256
_LINE_BYTES = 1 << 22
_MOST_BYTES = 1 << 40
_ALIGNMENT = 64
"""TensorFlow copies an array that is not aligned to this many bytes."""
_NONE = (-1).to_bytes(8, "big", signed=True)


# -- The parameter server of the running generation --------------------------------------------------------------------


class Keeper:
    """Keeps values, and sends them to whoever has the token."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._token = b""
        self._values: list[Any] = []
        self._listener: socket.socket | None = None
        self._slots = threading.BoundedSemaphore(_CONNECTIONS)
        self._round = 0

    def listen(self, token: bytes) -> int:
        """Drop what is kept, and listen for those that have this token; returns the port. An empty token: stop. Raises
        ValueError for a token of another length, and OSError if there is no port."""
        if token and len(token) != TOKEN_BYTES:
            raise ValueError(f"the token must have {TOKEN_BYTES} bytes")
        listener = _listener() if token else None
        with self._lock:
            self._round += 1
            self._token, self._values, old, self._listener = token, [], self._listener, listener
        if old is not None:
            with contextlib.suppress(OSError):
                old.shutdown(socket.SHUT_RDWR)  # ends the thread's `accept`, which `close` would not
            old.close()
        if listener is None:
            return 0
        threading.Thread(target=self._accept, args=(listener, token), name="elastic-hand-over", daemon=True).start()
        return int(listener.getsockname()[1])

    def keep(self, values: list[Any]) -> None:
        """Keep these arrays until the next `listen`, or for KEPT_S."""
        with self._lock:
            self._values, now = values, self._round
        timer = threading.Timer(KEPT_S, self._drop, (now,))
        timer.daemon = True
        timer.start()

    def _drop(self, when: int) -> None:
        with self._lock:
            current = when == self._round
        if current:
            self.listen(b"")

    def _accept(self, listener: socket.socket, token: bytes) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed
                return
            if not self._slots.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(
                target=self._serve, args=(connection, token), name="elastic-hand-over", daemon=True
            ).start()

    def _serve(self, connection: socket.socket, token: bytes) -> None:
        try:
            with connection, connection.makefile("rb") as lines:
                connection.settimeout(CONNECT_S)
                if not hmac.compare_digest(lines.read(TOKEN_BYTES) or b"", token):
                    return
                connection.sendall(b"\1")
                connection.settimeout(KEPT_S)  # the switch may come minutes later
                while line := lines.readline(_LINE_BYTES):
                    connection.settimeout(IO_S)
                    for value, begin, end in json.loads(line):
                        self._send(connection, token, value, begin, end)
                    connection.settimeout(KEPT_S)
        except (OSError, ValueError, TypeError, RecursionError):  # the other side is gone, or has sent something else
            return
        finally:
            self._slots.release()

    def _send(self, connection: socket.socket, token: bytes, value: int, begin: int, end: int) -> None:
        with self._lock:
            values = self._values if token == self._token else []
            array = values[value] if 0 <= value < len(values) else None
        if array is None:
            connection.sendall(_NONE)
            return
        rows = array[begin:end] if array.ndim else array
        connection.sendall(int(rows.nbytes).to_bytes(8, "big", signed=True))
        if rows.nbytes:
            connection.sendall(memoryview(rows.reshape(-1).view("u1")))


def _listener() -> socket.socket:
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError:  # this pod has no IPv6
            pass
    return socket.create_server(("", 0))


# -- The parameter server of the next generation -----------------------------------------------------------------------


class Fetcher:
    """Fetches values from the parameter servers of the generation before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: dict[tuple[str, str], socket.socket] = {}

    def fetch(self, request: dict[str, Any], *, rehearse: bool) -> list[Any]:
        """The values of a request: {"token", "last": whether no other request follows, "values": [{"shape", "dtype",
        "pieces": [[address, value, begin, end], ...]}]}. Each value is the concatenation of its pieces. To `rehearse`,
        connect and return arrays without content. Raises OSError and ValueError."""
        from numpy import dtype  # noqa: PLC0415

        with self._lock:
            try:
                wanted: dict[str, list[tuple[memoryview, list[int]]]] = {}
                arrays = []
                for each in request["values"]:
                    array = _empty(each["shape"], dtype(each["dtype"]))
                    arrays.append(array)
                    left = memoryview(array.reshape(-1).view("u1")) if array.nbytes else memoryview(b"")
                    row = array.nbytes // max(each["shape"][0], 1) if each["shape"] else array.nbytes
                    for address, value, begin, end in each["pieces"]:
                        size = row * (end - begin)
                        wanted.setdefault(address, []).append((left[:size], [value, begin, end]))
                        left = left[size:]
                    if len(left):
                        raise ValueError(f"{len(left)} bytes of a value are in no piece")
                for address, pieces in wanted.items():
                    connection = self._connect(address, request["token"])
                    if not rehearse:
                        _receive(connection, address, pieces)
            except BaseException:
                self.close()
                raise
            if request["last"] and not rehearse:
                self.close()
            return arrays

    def _connect(self, address: str, token: str) -> socket.socket:
        known = self._connections.get((address, token))
        if known is not None:
            return known
        if all(token != other for _, other in self._connections):
            self.close()  # those of an earlier hand-over, which did not take place
        host, _, port = address.rpartition(":")
        connection = socket.create_connection((host.strip("[]"), int(port)), CONNECT_S)
        self._connections[address, token] = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(token.encode())
        if connection.recv(1) != b"\1":
            raise OSError(f"{address} does not accept the token")
        connection.settimeout(IO_S)
        return connection

    def close(self) -> None:
        """Close all connections."""
        for each in self._connections.values():
            each.close()
        self._connections.clear()


def _empty(shape: list[int], dtype: Any) -> Any:
    """An array without content that TensorFlow can use without a copy."""
    import numpy as np  # noqa: PLC0415

    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if not 0 <= size <= _MOST_BYTES:
        raise ValueError(f"a value has {size} bytes")
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def _receive(connection: socket.socket, address: str, pieces: list[tuple[memoryview, list[int]]]) -> None:
    connection.sendall(json.dumps([what for _, what in pieces]).encode() + b"\n")
    for target, what in pieces:
        size = bytearray(8)
        _fill(connection, memoryview(size), address)
        if int.from_bytes(size, "big", signed=True) != len(target):
            raise OSError(f"{address} does not have value {what[0]} with {len(target)} bytes")
        _fill(connection, target, address)


def _fill(connection: socket.socket, target: memoryview, address: str) -> None:
    while len(target):
        count = connection.recv_into(target)
        if not count:
            raise OSError(f"{address} closed the connection")
        target = target[count:]


# -- The functions that a chief calls ----------------------------------------------------------------------------------


def functions() -> dict[str, Callable[..., list[Any]]]:
    """The functions of this process by the token of PyFunc. Their arguments and results are arrays; the first argument
    of KEEP and FETCH is 0 for a rehearsal."""
    import numpy as np  # noqa: PLC0415

    keeper, fetcher = Keeper(), Fetcher()

    def listen(token: Any) -> list[Any]:
        return [np.asarray(keeper.listen(bytes(np.asarray(token).item())), np.int64)]

    def keep(really: Any, *values: Any) -> list[Any]:
        if int(really):
            keeper.keep(list(values))
        return [np.asarray(len(values), np.int64)]

    def fetch(really: Any, request: Any) -> list[Any]:
        return fetcher.fetch(json.loads(np.asarray(request).item()), rehearse=not int(really))

    return {LISTEN: listen, KEEP: keep, FETCH: fetch}


_registered: list[Any] = []
"""What TensorFlow refers to only weakly."""


def register() -> None:
    """Let chiefs call these functions in this process, which has imported TensorFlow. Raises what a version of
    TensorFlow raises that is not known."""
    from tensorflow.python.ops import script_ops  # noqa: PLC0415

    for token, function in functions().items():
        _registered.append(function)
        script_ops._py_funcs._funcs[token] = function
