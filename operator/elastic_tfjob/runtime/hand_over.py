"""The values of all variables go from the parameter servers of one generation to those of the next in memory.

    running chief                                        chief of the next generation
    `Giver.watch`: has its servers listen (offered.json)
                                                         `Taker.prepare`: has its servers connect, and rehearses
    `Giver.give`: has its servers keep their values
                                                         `Taker.take`: has its servers fetch theirs (taken.json)
    saves a checkpoint of them (kept.json)               trains

Nothing is read, copied or sent by a chief, and nothing waits for a file. The running chief's program and its servers
stay until they have written the checkpoint, beside training: until then the one before it is the newest.

Which values there are is read from the newest checkpoint. What this module cannot hand over goes through files as
before: it says why.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from elastic_tfjob.runtime import checkpoint_variables, protocol, variable_server
from elastic_tfjob.runtime.hello import Hello
from elastic_tfjob.runtime.protocol import brief, some

__all__ = ["HandOver"]

CHIEF = -1
"""Stands for the number of a parameter server: the value is of a variable on the chief, and in a file."""
CHIEF_BYTES = 16 << 20
_GROUP_BYTES = 32 << 20
"""Values are fetched in groups of about this size: each group needs memory for a second time until it is assigned."""
_OFFER_S = 20.0
"""The next program waits this long for the offer of the running one."""
_TAKEN_S = 60.0
"""The program that has given its values waits this long for the next one to have them, before it saves them."""
_KEPT_S = 600.0
"""The next program waits this long for the checkpoint of the one before, if it could not take the values."""
_WAIT_S = 0.05
_FREE_AFTER_S = (2.0, 30.0, 300.0)
"""When servers free the memory that they received values in and that variables have left for memory of their own."""
_BITS = {"bfloat16": "uint16"}
"""Types that NumPy does not have, and those that have the same bits."""
_TYPES = frozenset(
    [
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    ]
)
_IGNORED = ("OBJECT_CONFIG_JSON", "")
"""Attributes in a checkpoint that training does not change."""


class Unable(Exception):
    """Values cannot be handed over in memory; the message says why, as a clause."""


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, Unable) else brief(error)


# -- The variables of a program ----------------------------------------------------------------------------------------


@dataclass
class Part:
    """Rows `begin` to `end` of a value, in a variable on parameter server `server` (or the CHIEF)."""

    variable: Any
    server: int
    begin: int
    end: int


@dataclass
class Value:
    """A value of the program's checkpoints. `name`: of its object there. `shape`: of the whole. `row_bytes`: of a row;
    of the whole, if it has no dimension."""

    name: str
    dtype: str
    shape: list[int]
    row_bytes: int
    parts: list[Part]


def values_of(tf: Any, checkpoints: Any) -> list[Value]:
    """The values of the program's checkpoints, in the order of their names. Raises Unable."""
    if not hasattr(tf.train, "CheckpointView"):
        raise Unable("TensorFlow is older than 2.11")
    path = checkpoints.newest()
    if path is None:
        raise Unable("there is no checkpoint yet")
    if lacks := checkpoint_variables.missing(tf, checkpoints.checkpoint, path):
        raise Unable(lacks)
    found = []
    for name, attribute, shape, dtype, variable in checkpoint_variables.values(tf, checkpoints.checkpoint, path):
        if attribute in _IGNORED or (variable is None and name == "save_counter"):
            continue
        if (
            variable is None
            or attribute != checkpoint_variables.VALUE
            or not checkpoint_variables.is_variable(variable)
        ):
            raise Unable(f"{name} is not a variable of the program")
        if dtype.name not in _TYPES and dtype.name not in _BITS:
            raise Unable(f"{name} has type {dtype.name}")
        row_bytes = math.prod(shape[1:]) * dtype.size
        found.append(Value(name, dtype.name, list(shape), row_bytes, _parts(tf, name, list(shape), variable)))
    slots = {
        each for each in checkpoint_variables.all_of(tf, checkpoints.checkpoint) if checkpoint_variables.SLOT in each
    }
    if unknown := slots - {value.name for value in found}:  # an optimizer has begun with a variable since
        raise Unable(f"{path} has no value for {some(sorted(unknown))}")
    return found


def _parts(tf: Any, name: str, shape: list[int], variable: Any) -> list[Part]:
    parts, row = [], 0
    whole = hasattr(variable, "handle")
    for each in [variable] if whole else getattr(variable, "variables", None) or []:
        own = each.shape
        if not own.is_fully_defined() or not hasattr(each, "handle") or own.as_list()[1:] != shape[1:]:
            raise Unable(f"{name} has a shape that is not known, or parts of another kind")
        rows = own.as_list()[0] if shape else 1
        parts.append(Part(each, _server(tf, name, each.device), row, row + rows))
        row += rows
    if row != (shape[0] if shape else 1):
        raise Unable(f"{name} has {row} rows in the program and shape {shape} in the checkpoint")
    return parts


def _server(tf: Any, name: str, device: str) -> int:
    place = tf.DeviceSpec.from_string(device or "")
    if place.device_type not in (None, "CPU"):
        raise Unable(f"{name} is on {device}")
    return int(place.task) if place.job == "ps" else CHIEF


def _device(server: int) -> str:
    return f"/job:ps/replica:0/task:{server}/device:CPU:0"


def _servers(values: list[Value]) -> dict[int, list[tuple[Value, Part]]]:
    """The parts on each parameter server."""
    found: dict[int, list[tuple[Value, Part]]] = {}
    for value in values:
        for part in value.parts:
            if part.server != CHIEF:
                found.setdefault(part.server, []).append((value, part))
    return found


def _on_chief(values: list[Value]) -> list[Part]:
    return [part for value in values for part in value.parts if part.server == CHIEF]


def _call(tf: Any, server: int, token: str, argument: Any) -> int:
    """Call a function of a parameter server that returns a number."""
    with tf.device(_device(server)):
        result = tf.raw_ops.PyFunc(input=[tf.constant(argument)], token=token, Tout=[tf.int64])[0]
    return int(result.numpy())


def _on_all(do: Callable[[int], Any], servers: list[int]) -> list[Any]:
    """Call `do` for all parameter servers at once. Raises what one of them raises."""
    with ThreadPoolExecutor(max(len(servers), 1)) as pool:
        return list(pool.map(do, servers))


# -- The running program -----------------------------------------------------------------------------------------------


class _Giver:
    """The running chief's part. `folder`: its generation's. `addresses`: of its parameter servers."""

    def __init__(self, tf: Any, checkpoints: Any, folder: Path, addresses: list[str]) -> None:
        self._tf, self._checkpoints, self._folder, self._addresses = tf, checkpoints, folder, addresses
        self._seen: object = None  # the id of the offer that the launcher asked for
        self._thread: threading.Thread | None = None
        self._offer: dict[str, Any] | None = None
        self._values: list[Value] = []
        self._known: dict[str, int] = {}  # all variables
        self._keep: dict[int, Any] = {}  # functions by parameter server

    def watch(self) -> None:
        """Make the offer that the launcher asks for, in a thread."""
        request = protocol.read(self._folder / protocol.OFFER)
        number = request.get("id") if request is not None else None
        if number == self._seen or (self._thread is not None and self._thread.is_alive()):
            return
        self._seen = number
        if request is not None:
            self._thread = threading.Thread(target=self._make, args=(request,), name="elastic-hand-over", daemon=True)
            self._thread.start()

    def _make(self, request: dict[str, Any]) -> None:
        offer: dict[str, Any] = {"id": request.get("id"), "why": ""}
        self._offer = None
        try:
            self._known = checkpoint_variables.all_of(self._tf, self._checkpoints.checkpoint)
            self._values = values_of(self._tf, self._checkpoints)
            token = os.urandom(variable_server.TOKEN_BYTES // 2).hex()
            offer |= {"token": token, **self._listen(token)}
        except Exception as error:
            offer["why"] = _why(error)
        protocol.write(self._folder / protocol.OFFERED, offer)
        self._offer = offer if not offer["why"] else None

    def _listen(self, token: str) -> dict[str, Any]:
        servers = _servers(self._values)
        ports = dict(zip(servers, _on_all(lambda server: self._have_listen(server, token), list(servers))))
        numbers = {id(part): k for parts in servers.values() for k, (_, part) in enumerate(parts)}
        numbers |= {id(part): k for k, part in enumerate(_on_chief(self._values))}
        self._keep = {
            server: self._keep_function(server, [part for _, part in parts]) for server, parts in servers.items()
        }
        _on_all(lambda server: self._keep[server](self._tf.constant(0, self._tf.int64)), list(servers))
        addresses = {server: f"{self._addresses[server].rpartition(':')[0]}:{ports[server]}" for server in servers}
        return {
            "servers": {str(server): address for server, address in addresses.items()},
            "values": [
                [
                    value.name,
                    value.dtype,
                    value.shape,
                    [[part.server, numbers[id(part)], part.begin, part.end] for part in value.parts],
                ]
                for value in self._values
            ],
        }

    def _have_listen(self, server: int, token: str) -> int:
        return _call(self._tf, server, variable_server.LISTEN, token)

    def _keep_function(self, server: int, parts: list[Part]) -> Any:
        tf, raw = self._tf, self._tf.raw_ops

        def keep(really: Any) -> Any:
            with tf.device(_device(server)):
                values = []
                for part in parts:
                    handle, dtype = part.variable.handle, part.variable.dtype
                    raw.DisableCopyOnRead(resource=handle)  # after a sparse update, reading would copy
                    value = raw.ReadVariableOp(resource=handle, dtype=dtype)
                    values.append(tf.bitcast(value, _BITS[dtype.name]) if dtype.name in _BITS else value)
                return raw.PyFunc(input=[really, *values], token=variable_server.KEEP, Tout=[tf.int64])[0]

        return tf.function(keep).get_concrete_function(tf.TensorSpec([], tf.int64))

    def give(self, step: int, checkpoint: dict[str, Any] | None) -> dict[str, Any]:
        """Keep the values of all variables, with no step in flight, until `take_back`; returns what the next program
        needs to know. Raises Unable, and what TensorFlow raises."""
        offer = self._offer
        if offer is None:
            raise Unable("nothing is offered")
        if checkpoint_variables.all_of(self._tf, self._checkpoints.checkpoint) != self._known:
            raise Unable("the program has made variables since")
        (self._folder / protocol.KEPT).unlink(missing_ok=True)  # of an earlier switch, which did not take place
        self._write_own()
        _on_all(lambda server: self._keep[server](self._tf.constant(1, self._tf.int64)), list(self._keep))
        return {"id": offer["id"], "step": step, "checkpoint": checkpoint}

    def _write_own(self) -> None:
        """Write the values on the chief to a file."""
        own = [part.variable.numpy() for part in _on_chief(self._values)]
        if sum(each.nbytes for each in own) > CHIEF_BYTES:
            raise Unable(f"the variables on the chief have more than {CHIEF_BYTES >> 20} MiB")
        content = json.dumps([[each.tobytes().hex(), list(each.shape)] for each in own])
        temporary = self._folder / f".{protocol.ON_CHIEF}"
        temporary.write_text(content)
        os.replace(temporary, self._folder / protocol.ON_CHIEF)

    def take_back(self) -> None:
        """The switch did not take place: drop what is kept. Errors are those of the next step."""
        self._offer = None

        def drop(server: int) -> None:
            try:
                self._have_listen(server, "")
            except Exception as error:
                print(f"WARNING: values that were kept for a hand-over stay for a while: {brief(error)}", flush=True)

        _on_all(drop, list(self._keep))


# -- The next program --------------------------------------------------------------------------------------------------


class _Taker:
    """The part of the next generation's chief. `folder`: its generation's. `before`: that of the running program."""

    def __init__(self, tf: Any, checkpoints: Any, folder: Path, before: Path) -> None:
        self._tf, self._checkpoints, self._folder, self._before = tf, checkpoints, folder, before
        self._values: list[Value] = []
        self._fetch: dict[int, Any] = {}
        self._offer: dict[str, Any] = {}

    def prepare(self) -> str:
        """Have the parameter servers connect to those of the running program; returns why the values cannot be taken
        in memory. Variables have no value afterwards."""
        try:
            self._prepare(self._wait_for_offer())
            return ""
        except Exception as error:
            self._fetch = {}
            return _why(error)

    def _wait_for_offer(self) -> dict[str, Any]:
        late = time.monotonic() + _OFFER_S
        while (offer := protocol.read(self._before / protocol.OFFERED, protocol.OFFER_LIMIT)) is None:
            if time.monotonic() > late:
                raise Unable("the running program does not offer its values")
            time.sleep(_WAIT_S)
        if offer["why"]:
            raise Unable(offer["why"])
        return offer

    def _prepare(self, offer: dict[str, Any]) -> None:
        self._values, self._offer = values_of(self._tf, self._checkpoints), offer
        there = {name: (dtype, shape, parts) for name, dtype, shape, parts in offer["values"]}
        here = {value.name: value for value in self._values}
        if differing := sorted(here.keys() ^ there.keys()):
            raise Unable(f"only one of the programs has {some(differing)}")
        for name, value in here.items():
            if (value.dtype, value.shape) != tuple(there[name][:2]):
                raise Unable(f"{name} has another shape or type")
        if any(
            (part.server == CHIEF) != (there[value.name][2][0][0] == CHIEF)
            for value in self._values
            for part in value.parts
        ):
            raise Unable("variables have gone from the chief to parameter servers, or back")
        pieces = {name: parts for name, (_, _, parts) in there.items()}
        servers = _servers(self._values)
        self._fetch = {server: self._fetch_function(server, parts, pieces) for server, parts in servers.items()}
        self._call(0)

    def _call(self, really: int) -> None:
        _on_all(lambda server: self._fetch[server](self._tf.constant(really, self._tf.int64)), list(self._fetch))

    def _fetch_function(self, server: int, parts: list[tuple[Value, Part]], pieces: dict[str, Any]) -> Any:
        tf, raw = self._tf, self._tf.raw_ops
        groups: list[list[tuple[Value, Part]]] = [[]]
        size = 0
        for value, part in parts:
            groups[-1].append((value, part))
            size += value.row_bytes * (part.end - part.begin)
            if size >= _GROUP_BYTES:
                size = 0
                groups.append([])
        groups = [group for group in groups if group]

        def fetch(really: Any) -> Any:
            done: list[Any] = []
            with tf.device(_device(server)):
                for group in groups:
                    request = self._request(group, pieces, last=group is groups[-1])
                    with tf.control_dependencies(done):
                        got = raw.PyFunc(
                            input=[really, tf.constant(request)],
                            token=variable_server.FETCH,
                            Tout=[tf.as_dtype(_BITS.get(value.dtype, value.dtype)) for value, _ in group],
                        )
                    done = []
                    for (value, part), each in zip(group, got):
                        handle = part.variable.handle
                        content = tf.reshape(each, part.variable.shape)
                        content = tf.bitcast(content, value.dtype) if value.dtype in _BITS else content
                        raw.DisableCopyOnRead(resource=handle)  # else the value would be copied
                        done.append(raw.AssignVariableOp(resource=handle, value=content))
                with tf.control_dependencies(done):
                    return tf.constant(0)

        return tf.function(fetch).get_concrete_function(tf.TensorSpec([], tf.int64))

    def _request(self, group: list[tuple[Value, Part]], pieces: dict[str, Any], *, last: bool) -> str:
        """What a parameter server is to fetch: see Fetcher.fetch."""
        wanted = []
        for value, part in group:
            found = []
            for server, number, begin, end in pieces[value.name]:
                first, behind = max(begin, part.begin), min(end, part.end)
                if first < behind:
                    found.append([self._offer["servers"][str(server)], number, first - begin, behind - begin])
            shape = [part.end - part.begin, *value.shape[1:]] if value.shape else []
            wanted.append({"shape": shape, "dtype": _BITS.get(value.dtype, value.dtype), "pieces": found})
        return json.dumps({"token": self._offer["token"], "last": last, "values": wanted})

    def take(self, given: dict[str, Any]) -> str:
        """Take the values that the program before gave; returns why it failed. Tells that program."""
        why = ""
        try:
            if not self._fetch and _servers(self._values):
                raise Unable("nothing was prepared")
            if given.get("id") != self._offer.get("id"):
                raise Unable("another offer was given")
            self._call(1)
            self._read_chiefs()
        except Exception as error:
            why = _why(error)
        self._fetch = {}
        with contextlib.suppress(OSError):  # that program has a limit
            protocol.write(self._folder / protocol.TAKEN, {"ok": not why, "why": why})
        return why

    def _read_chiefs(self) -> None:
        import numpy as np  # noqa: PLC0415

        text = (self._before / protocol.ON_CHIEF).read_text()
        for part, (content, shape) in zip(_on_chief(self._values), json.loads(text)):
            dtype = part.variable.dtype.as_numpy_dtype
            part.variable.assign(np.frombuffer(bytes.fromhex(content), dtype).reshape(shape))

    def free(self) -> None:
        """In a thread: have TensorFlow free such memory. It does so only when a PyFunc has run."""
        for wait_s in _FREE_AFTER_S:
            time.sleep(wait_s)
            with contextlib.suppress(Exception):  # training notices a server that is gone
                _on_all(lambda server: _call(self._tf, server, variable_server.KEEP, 0), list(_servers(self._values)))

    def kept(self) -> dict[str, Any] | None:
        """{"ok", "why", "checkpoint"} once the values are in a durable checkpoint, or will not be."""
        return protocol.read(self._before / protocol.KEPT)


# -- What ElasticCheckpoint uses ---------------------------------------------------------------------------------------


class HandOver:
    """Both parts in a program with parameter servers; in others nothing happens. `checkpoints`: the Checkpoints, None
    without a directory. `watch` belongs to the reporting thread, the other methods to the thread that trains.

    `readiness`: {"able", "why"}, whether this prepared program can take the values of the running one; None before
    `prepare`, and where values are to go through files.
    """

    def __init__(self, tf: Any, checkpoints: Any, hello: Hello, tf_config: str | None) -> None:
        self.readiness: dict[str, Any] | None = None
        self._hello, self._checkpoints = hello, checkpoints
        self._folder = hello.folder or Path()
        self._giver: _Giver | None = None
        self._taker: _Taker | None = None
        self._given_at_s = 0.0
        self._waits_until_s: float | None = None  # for the checkpoint of the values that were taken
        addresses = protocol.parameter_servers(tf_config)
        if not addresses or hello.folder is None or checkpoints is None or not protocol.Task.of(tf_config).chief:
            return
        self._giver = _Giver(tf, checkpoints, hello.folder, addresses)
        if before := os.environ.get(protocol.BEFORE):
            self._taker = _Taker(tf, checkpoints, hello.folder, hello.folder.parent / before)

    # -- the running program -------------------------------------------------------------------------------------------

    def give(self, request: dict[str, Any], step: int, checkpoint: dict[str, Any] | None) -> dict[str, Any] | None:
        """Give the values of all variables if the launcher asks for it; None if a checkpoint is to be saved instead."""
        if self._giver is None or request.get("hand_over") is not True:
            return None
        try:
            given = self._giver.give(step, checkpoint)
        except Exception as error:
            print(f"WARNING: values go through files: {brief(error)}", file=sys.stderr, flush=True)
            self._giver.take_back()
            return None
        self._given_at_s = time.monotonic()
        return given

    def is_taken(self, request: dict[str, Any]) -> bool:
        """Whether the next program has the values or has given up, or has not done so in time."""
        folder = self._folder.parent / f"generation-{request.get('generation')}"
        return (folder / protocol.TAKEN).exists() or time.monotonic() - self._given_at_s > _TAKEN_S

    def take_back(self) -> None:
        """The switch does not take place."""
        if self._giver is not None:
            self._giver.take_back()

    def report_kept(self, why: str | None, checkpoint: dict[str, Any] | None) -> None:
        """Say that the values are in a durable checkpoint, or `why` not."""
        try:
            protocol.write(self._folder / protocol.KEPT, {"ok": not why, "why": why or "", "checkpoint": checkpoint})
        except OSError as error:  # the launcher has a limit
            print(f"WARNING: the next program cannot be told of the checkpoint: {error}", file=sys.stderr, flush=True)

    # -- the prepared program ------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Get ready to take the values of the running program."""
        if self._taker is not None:
            why = self._taker.prepare()
            self.readiness = {"able": not why, "why": why}

    def take(self) -> dict[str, Any] | None:
        """{"step", "checkpoint": the newest one before} if this program has the values of the one before; None if they
        are in a checkpoint."""
        taker, given = self._taker, self._hello.given()
        if taker is None or given is None:
            return None
        until_s = time.monotonic() + _KEPT_S
        if why := taker.take(given):
            print(f"WARNING: this program waits for a checkpoint: {why}", file=sys.stderr, flush=True)
            while taker.kept() is None and time.monotonic() < until_s:
                time.sleep(_WAIT_S)
            return None
        threading.Thread(target=taker.free, name="elastic-hand-over", daemon=True).start()
        self._checkpoints.take_over()
        self._waits_until_s = until_s
        return given

    def watch(self) -> dict[str, Any] | None:
        """Once, after `take`: {"ok", "why", "checkpoint"}, whether the program before has saved the values."""
        if self._giver is not None:
            self._giver.watch()
        if self._waits_until_s is None or self._taker is None:
            return None
        kept = self._taker.kept()
        if kept is None and time.monotonic() > self._waits_until_s:
            kept = {"ok": False, "why": f"no word of it for {_KEPT_S:g} s"}
        if kept is not None:
            self._waits_until_s = None
            checkpoint = kept.get("checkpoint")
            if kept.get("ok") and isinstance(checkpoint, dict) and isinstance(checkpoint.get("step"), int):
                self._checkpoints.note_durable(checkpoint["step"])
            elif kept.get("ok"):
                return {"ok": False, "why": "its answer is not valid"}
        return kept
