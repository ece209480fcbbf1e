"""A directory of checkpoints of which only complete ones count.

TensorFlow writes a checkpoint as several files. After all of them, a marker is written that lists their names and
sizes: `elastic-1200.complete`. A checkpoint is one whose marker is there and whose files are as the marker says, so
one that was cut off half-way (killed, disk full, copied in part) is never resumed from. All through tf.io.gfile, so the
directory may be a URL.

In a directory that is a path a checkpoint is complete first, and durable later: beside training its files are flushed
to the disk (fsync), then its marker is replaced by one that says `"durable": true`. Only then are older ones deleted,
so that a power loss at any moment leaves a durable one. A program resumes from a complete one that is not durable (the
next size of a job does, moments after the save); whether its content outlived a power loss is seen by the checksums
that TensorFlow keeps of each value. A marker with `"durable": false` whose files are not whole is what a power loss
left of an unfinished save.

A file system that does not answer is no empty directory: only "not found" means that nothing is there. Whatever else
goes wrong is tried again for some seconds and then raised, so that a training job never begins anew by accident.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Callable, TypeVar

from elastic_tfjob.runtime import durability
from elastic_tfjob.runtime.lease import RENEW_S, InUse, Lease, Owner
from elastic_tfjob.runtime.protocol import brief, some

_PREFIX = "elastic-"
_MARKER = re.compile(r"elastic-(\d+)\.complete")
_FILE = re.compile(r"elastic-(\d+)(\..+|_temp.*)")
_RETRY_S = (0.1, 0.3, 1.0, 3.0)
"""Waited before each further attempt to read what could not be read."""
_BROKEN = ("checksum", "corrupt", "truncated", "too short")
"""What TensorFlow says of a checkpoint whose content is not what was written."""
_FLUSH_FAILED = "flush_failed"
_MARKER_LIMIT = 1 << 24  # without a number, GFile reads as many bytes as what has replaced the file has by then
_PATTERN = "*?[\\"
_AFTER_SWITCH_S = 1.0
"""So long after a switch the checkpoint of the switch is made durable: the first step comes first."""
_SLOT = "/.OPTIMIZER_SLOT/"
_Result = TypeVar("_Result")


class Mismatch(RuntimeError):
    """A checkpoint does not hold all of the program's variables, or holds some in another shape or type."""


class Checkpoints:
    """The last `keep` checkpoints of `checkpoint` (a tf.train.Checkpoint) in `directory`.

    `options`: each a tf.train.CheckpointOptions, which says who writes and reads: the first is used until it fails, and
    the next one from then on. `partial`: variables of the program that a checkpoint does not hold keep their values.
    `complete` is to be called before the first `save`. Raises ValueError for a directory in whose path TensorFlow would
    see a pattern when it reads, and none when it writes.
    """

    def __init__(
        self, checkpoint: Any, directory: str, keep: int, options: Sequence[Any], *, partial: bool = False
    ) -> None:
        import tensorflow as tf  # noqa: PLC0415

        if any(character in directory for character in _PATTERN):
            raise ValueError(
                f"the checkpoint directory is {directory!r}; TensorFlow cannot read where {_PATTERN} occur"
            )
        self.checkpoint, self.directory, self.keep, self.options = checkpoint, directory, keep, list(options)
        self.partial = partial
        self._tf = tf
        self._files = tf.io.gfile
        self._restored: str | None = None
        """What was restored, until the variables that were made since have been looked for in it."""
        self._unsettled: int | None = None
        """The step that was saved since `settle` was called last."""
        self._known: dict[int, bool] = {}
        """Whether a step's checkpoint is complete, of those that were looked at or written. One that could not be
        looked at is not among them, and is not deleted."""
        self._durable: set[int] = set()
        """Steps whose checkpoints are known to outlive a power loss."""
        self._foreign: dict[int, str] = {}
        """Steps whose checkpoints another job has written, and which."""
        self._doubt: Exception | None = None
        """Why a checkpoint that may have been durable cannot be used, if there is one."""
        self._writing: int | None = None
        self._lock = threading.Lock()
        """Of the steps above and of each marker that is replaced: `_beside` is another thread."""
        self.not_durable: str | None = None
        """Why the newest checkpoint that was to be made durable is not."""
        self._local = durability.local(directory)
        self._parents_synced = False
        self.lease = Lease(tf, directory)
        self._beside = durability.BackgroundSync(self._settle, self.lease.renew, RENEW_S)
        # TensorFlow makes a function for every save, and then warns that it does.
        tf.get_logger().addFilter(lambda record: "tf_function_save" not in record.getMessage())

    # -- saving --------------------------------------------------------------------------------------------------------

    def save(self, step: int, all_ready: Callable[[bool], bool], **facts: Any) -> dict[str, Any]:
        """Write a checkpoint; gives step, at (Unix time), seconds, bytes, path. `settle` is to follow, once nobody
        waits any more. Raises InUse where another job has written this step or writes to this directory now, and what
        TensorFlow raises; what was written by then is deleted, lest it keep a full volume full.

        `all_ready`: tells the other workers whether this one can write, and whether all can. Writing adds up what they
        have, so whoever came alone would wait for ever.
        """
        with self._lock:
            self._known.pop(step, None)
            self._durable.discard(step)
            self._writing = step
        try:
            saved = self._in_turn(lambda options: self._write(step, all_ready, options, facts))
        except BaseException:
            with self._lock:
                self._writing = None
            self._delete_old(step)
            raise
        with self._lock:
            self._known[step], self._unsettled, self._writing = True, step, None
        return saved

    def _in_turn(self, do: Callable[[Any], _Result]) -> _Result:
        """Do it with whoever writes and reads; where that fails, with the next one."""
        while True:
            try:
                return do(self.options[0])
            except (Mismatch, InUse):
                raise
            except Exception as error:
                if len(self.options) == 1:
                    raise
                print(f"parameter servers: {error}; the chief does it from now on", file=sys.stderr, flush=True)
                del self.options[0]

    def _write(
        self, step: int, all_ready: Callable[[bool], bool], options: Any, facts: dict[str, Any]
    ) -> dict[str, Any]:
        begin = time.monotonic()
        name = f"{_PREFIX}{step}"
        path = f"{self.directory}/{name}"
        _together(lambda: self._make_room(step, path), all_ready)
        self.checkpoint.write(path, options=options)
        sizes = self._patiently(lambda: self._sizes(name))
        seconds = time.monotonic() - begin
        marker = {"step": step, "at": time.time(), "seconds": round(seconds, 4), "bytes": sum(sizes.values()), **facts}
        temporary = f"{path}.marker"
        owner = self.lease.owner
        kept = {} if self._local is None else {"durable": False}
        with self._files.GFile(temporary, "w") as file:
            file.write(json.dumps({**marker, **kept, "job": owner and owner.written(), "files": sizes}))
        self._files.rename(temporary, f"{path}.complete", overwrite=True)
        return {**marker, "path": path}

    def _make_room(self, step: int, path: str) -> None:
        if self.lease.lost:
            raise InUse(self.lease.lost)
        if step in self._foreign:
            raise InUse(f"{path} is a checkpoint of {self._foreign[step]}; this job does not replace it")
        self._files.makedirs(self.directory)
        with contextlib.suppress(self._tf.errors.NotFoundError):
            self._files.remove(f"{path}.complete")  # it would vouch for files that are being replaced

    def _sizes(self, name: str) -> dict[str, int]:
        """The files of a checkpoint that has just been written. Parameter servers may have, and a listing be old."""
        found = {
            each: self._files.stat(f"{self.directory}/{each}").length
            for each in self._files.listdir(self.directory)
            if each.startswith((f"{name}.index", f"{name}.data-"))
        }
        parts = Counter(each.rpartition("-of-")[2] for each in found if "-of-" in each)
        if f"{name}.index" not in found or not any(int(of) == count for of, count in parts.items()):
            raise _Unsure(f"{name} has been written, and of its files there are {some(sorted(found)) or 'none'}")
        return found

    def write_elsewhere(self, all_ready: Callable[[bool], bool]) -> None:
        """A worker's part in a save whose files are the chief's: what it writes is thrown away."""
        with contextlib.ExitStack() as stack:
            folder = _together(lambda: stack.enter_context(tempfile.TemporaryDirectory()), all_ready)
            self.checkpoint.write(f"{folder}/discarded", options=self.options[0])

    def settle(self) -> None:
        """Have the newest save made durable, and then what it replaces deleted, by another thread."""
        step, self._unsettled = self._unsettled, None
        if step is not None:
            self._beside.give(step)

    def wait(self, seconds: float) -> bool:
        """Wait until what was given to `settle` is durable, or could not be made so; whether that was within that
        time."""
        return self._beside.wait(seconds)

    def _settle(self, step: int) -> None:
        """In the other thread. The save that comes next may be under way."""
        try:
            self._make_durable(step)
            self.not_durable = None
        except Exception as error:  # not counted as durable: the one that was before it stays
            self.not_durable = f"the checkpoint of step {step} may not survive a power loss: {brief(error)}"
            print(self.not_durable, file=sys.stderr, flush=True)
        self._delete_old(step)

    def _make_durable(self, step: int) -> None:
        """Raises OSError or ValueError where that cannot be done. A second attempt would prove nothing: after a flush
        that failed the kernel takes what it could not write for written."""
        if self._local is not None and step not in self._durable:
            folder, name = self._local, f"{_PREFIX}{step}"
            with open(f"{folder}/{name}.complete") as file:
                marker = json.load(file)
            if marker.get(_FLUSH_FAILED):
                raise OSError("the program that wrote it could not flush it")
            try:
                durability.sync_files(folder, marker["files"])
            except OSError:  # the next program's flush would succeed, and prove nothing either
                with contextlib.suppress(OSError):
                    self._replace_marker(step, {**marker, _FLUSH_FAILED: True}, flush=False)
                raise
            if not self._parents_synced:
                durability.sync_parents(folder)
                self._parents_synced = True
            if not self._replace_marker(step, {**marker, "durable": True}):
                return
            durability.sync(folder)
        with self._lock:
            if self._writing != step:
                self._durable.add(step)

    def _replace_marker(self, step: int, marker: dict[str, Any], *, flush: bool = True) -> bool:
        """Replace a marker, unless its checkpoint is being written again; whether it was replaced. Raises OSError."""
        path = f"{self._local}/{_PREFIX}{step}"
        durability.write(f"{path}.durable", json.dumps(marker), flush=flush)
        with self._lock:
            if self._writing != step:
                os.replace(f"{path}.durable", f"{path}.complete")
            return self._writing != step

    def _delete_old(self, newest: int) -> None:
        """Delete what unfinished saves up to `newest` left, and all checkpoints but the last `keep`, the last durable
        one, the one just written and those of other jobs. What cannot be deleted is left for next time, and so is what
        could not be looked at."""
        try:
            names = [name.rstrip("/") for name in self._files.listdir(self.directory)]
        except Exception:
            return
        marked = {int(match[1]) for match in map(_MARKER.fullmatch, names) if match}
        with self._lock:
            known, foreign, writing = dict(self._known), set(self._foreign), self._writing
            good = sorted((step for step in marked - foreign if known.get(step)), reverse=True)
            durable = [step for step in good if step in self._durable]
        kept = {*good[: self.keep], *durable[:1], *(marked - known.keys()), *foreign}
        kept.update(step for step in (newest, writing) if step is not None and (step == writing or known.get(step)))
        old = [(match[0], int(match[1])) for match in map(_FILE.fullmatch, names) if match]
        # Markers first: what is deleted in part is not complete.
        for name, step in sorted(old, key=lambda each: not each[0].endswith(".complete")):
            if step <= newest and step not in kept:
                path = f"{self.directory}/{name}"
                with contextlib.suppress(Exception):
                    if self._files.isdir(path):
                        self._files.rmtree(path)
                    else:
                        self._files.remove(path)

    # -- resuming ------------------------------------------------------------------------------------------------------

    def complete(self) -> list[dict[str, Any]]:
        """All complete checkpoints: those of this job, newest first, then those of other jobs; the marker's content and
        `path`. Raises what TensorFlow raises when it cannot be known whether there is one, and RuntimeError if there
        are some and all that may have been durable are damaged."""
        found: list[dict[str, Any]] = []
        doubt: Exception | None = None
        damaged: list[str] = []
        known: dict[int, bool] = {}
        durable: set[int] = set()
        foreign: dict[int, str] = {}
        markers = filter(None, map(_MARKER.fullmatch, self._names()))
        for step, name in sorted(((int(match[1]), match[0]) for match in markers), reverse=True):
            try:
                marker, unfinished = self._patiently(lambda name=name: self._look(name))  # type: ignore[misc]
            except Exception as error:  # whatever is wrong with one, the next may be right
                doubt = error
                print(f"cannot read {self.directory}/{name}: {error}", file=sys.stderr, flush=True)
                continue
            known[step] = marker is not None
            if marker is None and unfinished:
                print(f"{self.directory}/{name} was not finished when the machine stopped", file=sys.stderr, flush=True)
            elif marker is None:
                damaged.append(name)
            else:
                writer = Owner.read(marker.get("job"))
                if writer is not None and not (self.lease.owner and self.lease.owner.continues(writer)):
                    foreign[step] = f"job {writer.name} (uid {writer.uid})"
                if marker.get("durable") is True:
                    durable.add(step)
                found.append({**marker, "step": step, "path": f"{self.directory}/{_PREFIX}{step}"})
        with self._lock:
            self._known, self._durable, self._foreign = known, durable, foreign
        if damaged and doubt is None:
            doubt = RuntimeError(
                f"no checkpoint in {self.directory} is as it was written ({some(damaged)}): files are missing or have "
                "other sizes; delete what is there to begin at step 0"
            )
        self._doubt = doubt
        if not found and doubt is not None:
            raise doubt
        return sorted(found, key=lambda each: each["step"] in foreign)

    def _look(self, name: str) -> tuple[dict[str, Any] | None, bool]:
        """What a marker says; None if it is not what was written, or the files are not as it says. Then also whether
        that is how a power loss leaves a save that was not durable."""
        with self._files.GFile(f"{self.directory}/{name}", "r") as file:
            text = ""
            try:
                text = file.read(_MARKER_LIMIT)
                marker = json.loads(text)
                files = dict(marker.pop("files"))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                return None, not isinstance(error, UnicodeDecodeError) and not text.strip("\0")
        try:
            whole = all(self._files.stat(f"{self.directory}/{each}").length == size for each, size in files.items())
        except self._tf.errors.NotFoundError:
            whole = False
        return (marker, False) if files and whole else (None, marker.get("durable") is False)

    def _names(self) -> list[str]:
        """What is in the directory; nothing if there is no such directory. Raises what TensorFlow raises."""

        def names() -> list[str]:
            try:
                return list(self._files.listdir(self.directory))
            except self._tf.errors.NotFoundError:
                # It says so of a directory that it could not look at, too. Asked for that alone it says which.
                if self._is_there():
                    raise _Unsure(f"{self.directory} is there and cannot be listed") from None
                return []

        return self._patiently(names)

    def _is_there(self) -> bool:
        try:
            self._files.stat(self.directory)
            return True
        except self._tf.errors.NotFoundError:
            return False
        except self._tf.errors.FailedPreconditionError:
            if "://" in self.directory:
                raise
            return False  # below a file there is nothing

    def _patiently(self, do: Callable[[], _Result]) -> _Result:
        """Do it again, and again, where the file system may answer otherwise next time."""
        errors = self._tf.errors
        final = (errors.NotFoundError, errors.DataLossError, errors.InvalidArgumentError, errors.UnimplementedError)
        for wait in _RETRY_S:
            try:
                return do()
            except (*final, errors.OutOfRangeError):
                raise
            except (errors.OpError, OSError, _Unsure) as error:
                print(f"{self.directory}: {error}; tried again in {wait} s", file=sys.stderr, flush=True)
                time.sleep(wait)
        return do()

    def restore_newest(self, agreement: Any, *, chief: bool, after_switch: bool = False) -> dict[str, Any] | None:
        """Restore the newest complete checkpoint that can be, and give it; None where training begins. `agreement`: an
        agreement.Agreement of many workers, which all restore what the chief has for the newest, and all an older one
        if one of them cannot. `after_switch`: the newest was written moments ago on a machine that still runs, so
        values that nothing reads yet are not verified. Raises InUse where another job that runs writes to the
        directory, Mismatch, and RuntimeError where none can be restored."""
        if chief:
            (self.lease.take_over if after_switch else self.lease.acquire)()
            self._beside.start()
        left, problem, lost = self.complete(), None, False
        while True:
            newest = left[0]["step"] if left else -1
            if agreement is not None:
                newest = agreement.sum(newest + 1 if chief else 0)[0] - 1
            if newest < 0:
                break
            each = next((each for each in left if each["step"] == newest), None)
            if each is None:
                raise RuntimeError(
                    f"checkpoint of step {newest} is not in {self.directory} here; do all workers share it?"
                )
            error = self._try_to_restore(each["path"], verify=problem is not None or not after_switch)
            if agreement is not None and not agreement.all(error is None):
                error = error or RuntimeError("another worker cannot restore it")
            if error is None:
                if chief:
                    self._begin(newest, after_switch=after_switch)
                return each
            problem = error
            print(f"cannot restore {each['path']}: {error}", file=sys.stderr, flush=True)
            broken = isinstance(error, (self._tf.errors.DataLossError, self._tf.errors.OutOfRangeError))
            self._known[newest] = not broken
            lost = lost or not broken or each.get("durable") is not False
            left.remove(each)
        if lost:
            raise RuntimeError(f"no checkpoint in {self.directory} can be restored") from problem
        if self._doubt is not None:  # what is broken was never durable, but something else there was
            raise self._doubt
        print(f"no checkpoint in {self.directory}: training begins at step 0", file=sys.stderr, flush=True)
        return None

    def _begin(self, step: int, *, after_switch: bool) -> None:
        """The program that saved it may not have come to make it durable."""
        if step in self._foreign:
            print(
                f"resumed from step {step} of {self._foreign[step]}, which is not running: this job has no checkpoint "
                f"in {self.directory}. Checkpoints of other jobs are never deleted",
                file=sys.stderr,
                flush=True,
            )
        elif step not in self._durable:
            self._beside.give(step, _AFTER_SWITCH_S if after_switch else 0.0)

    def _try_to_restore(self, path: str, *, verify: bool) -> Exception | None:
        """The error, if there is one. Raises Mismatch: an older checkpoint would hide it."""
        try:
            self.restore(path, verify=verify)
        except Mismatch:
            raise
        except Exception as error:
            return error
        return None

    def restore(self, path: str, *, verify: bool = False) -> None:
        """Raises Mismatch unless it holds all variables that the program has made so far (those that are made later
        are restored then) in their shapes, or what TensorFlow raises. `verify`: values for variables that are made
        later are read, too, so that damage is seen now."""
        self._in_turn(lambda options: self._patiently(lambda: self._read(path, options, verify=verify)))
        self._restored = path

    def _read(self, path: str, options: Any, *, verify: bool) -> None:
        errors = self._tf.errors
        try:
            self._check(path)
            if verify:
                self._verify(path)
            self.checkpoint.read(path, options=options).expect_partial()
        except (errors.NotFoundError, errors.InvalidArgumentError) as error:
            # TensorFlow says so where it could not list the directory, too.
            if self._look(f"{path.rpartition('/')[2]}.complete")[0] is not None:
                raise _Unsure(f"{path} is whole and cannot be read: {error}") from error
            raise
        except errors.OpError as error:
            if any(word in str(error).lower() for word in _BROKEN):  # a reader gives no code
                raise errors.DataLossError(None, None, str(error)) from error
            raise

    def _verify(self, path: str) -> None:
        """Read what `read` will not: TensorFlow compares each value that it reads with its checksum. Raises what it
        raises."""
        train, errors = self._tf.train, self._tf.errors
        read: set[str] = set()
        if hasattr(train, "CheckpointView"):
            view = train.CheckpointView(path)
            matched = view.match(self.checkpoint)
            read = {name for name, node in _paths(0, view.children) if node in matched}
        reader = train.load_checkpoint(path)
        for key in reader.get_variable_to_shape_map():
            if key.partition("/.ATTRIBUTES/")[0] not in read:
                try:
                    reader.get_tensor(key)
                except (errors.DataLossError, errors.OutOfRangeError, errors.NotFoundError):
                    raise
                except Exception:  # a type that a reader cannot give
                    continue

    def not_restored(self) -> str:
        """What the program has made since `restore`, and the checkpoint has no value for: it began with initial values.
        Empty if there is nothing of that kind, and when asked again. To be asked before a `save` deletes old ones."""
        path, self._restored = self._restored, None
        if path is None or self.partial:
            return ""
        try:
            return self._differences(path)
        except Exception as error:  # training goes on
            print(f"cannot compare with {path}: {error}", file=sys.stderr, flush=True)
            return ""

    def compare(self) -> None:
        """Raises Mismatch if the newest checkpoint lacks variables of the program or holds them in another shape or
        type; nothing else, since nothing depends on it yet."""
        try:
            newest = self.complete()[:1]
            for each in newest:
                self._check(each["path"])
        except Mismatch:
            raise
        except Exception as error:
            print(f"cannot compare with what is in {self.directory}: {error}", file=sys.stderr, flush=True)

    def _check(self, path: str) -> None:
        """Compare the program's variables with those of a checkpoint. Raises Mismatch."""
        if others := self._other_shapes(path):
            raise Mismatch(f"{path} does not fit this program: {some(others)}. Does a shape depend on the job's size?")
        if not self.partial and (lacks := self._differences(path)):
            raise Mismatch(f"{lacks} ElasticCheckpoint(..., partial=True) starts them with their initial values")

    def _other_shapes(self, path: str) -> list[str]:
        """Each variable of the program that a checkpoint holds in a shape or type that it cannot be restored from. A
        variable in parts has the shape of the whole, however many parts there are."""
        train = self._tf.train
        if not hasattr(train, "CheckpointView"):  # TensorFlow before 2.11
            return []
        view = train.CheckpointView(path)
        matched = view.match(self.checkpoint)
        held = {name: matched[node] for name, node in _paths(0, view.children) if node in matched}
        reader = train.load_checkpoint(path)
        types = reader.get_variable_to_dtype_map()
        found = []
        for key, shape in sorted(reader.get_variable_to_shape_map().items()):
            name, _, attribute = key.partition("/.ATTRIBUTES/")
            variable = _slot(held, name) if _SLOT in name else held.get(name)
            if attribute != "VARIABLE_VALUE" or variable is None or not _is_variable(variable):
                continue
            own_name = getattr(variable, "path", None) or getattr(variable, "name", None)
            told = f"{name} ({own_name})" if isinstance(own_name, str) else name
            own_shape, own_type = variable.shape, self._tf.as_dtype(variable.dtype).base_dtype
            if not self._tf.TensorShape(shape).is_compatible_with(own_shape):
                found.append(f"{told} has shape {tuple(shape)} in the checkpoint and {tuple(own_shape)} in the program")
            elif types[key].base_dtype != own_type:
                found.append(f"{told} has type {types[key].name} in the checkpoint and {own_type.name} in the program")
        return found

    def _differences(self, path: str) -> str:
        """Which variables of the program a checkpoint has no value for; empty if it has all."""
        train = self._tf.train
        if not hasattr(train, "CheckpointView"):  # TensorFlow before 2.11
            return ""
        view, program = train.CheckpointView(path), train.TrackableView(self.checkpoint)
        matched = view.match(self.checkpoint)
        held = {id(each) for each in matched.values()}
        lacks = [
            name
            for name, each in _paths(self.checkpoint, program.children)
            if id(each) not in held and _is_variable(each) and name != "save_counter"
        ]
        if not lacks:
            return ""
        unused = {name for name, node in _paths(0, view.children) if node not in matched}
        values = (key.partition("/.ATTRIBUTES/")[0] for key, _ in train.list_variables(path))
        spare = [name for name in values if name in unused and name != "save_counter"]
        return (
            f"{path} has no value for {some(lacks)} of this program"
            + (f"; it has {some(spare)}, which the program has not" if spare else "")
            + ". Was something renamed?"
        )


def _is_variable(each: Any) -> bool:
    return hasattr(each, "shape") and hasattr(each, "assign")


def _slot(held: dict[str, Any], name: str) -> Any:
    """The variable that an optimizer keeps beside another one, by the name of its value: `w/.OPTIMIZER_SLOT/opt/m`."""
    variable, _, rest = name.partition(_SLOT)
    optimizer, _, slot = rest.rpartition("/")
    try:
        return held[optimizer].get_slot(held[variable], slot)
    except Exception:  # neither is in the program, or the slot is not made yet
        return None


def _together(prepare: Callable[[], _Result], all_ready: Callable[[bool], bool]) -> _Result:
    """What `prepare` gives, where all workers have prepared; else all raise."""
    try:
        prepared = prepare()
    except Exception:
        all_ready(False)
        raise
    if not all_ready(True):
        raise RuntimeError("another worker cannot write its part")
    return prepared


class _Unsure(Exception):
    """The file system contradicts itself."""


def _paths(root: Any, children: Callable[[Any], dict[str, Any]]) -> list[tuple[str, Any]]:
    """Each object below `root` once, with the shortest path to it, as in the names of a checkpoint's values."""
    found, seen, todo = [], {_key(root)}, [("", root)]
    for path, each in todo:  # grows meanwhile
        for name, child in children(each).items():
            if _key(child) not in seen:
                seen.add(_key(child))
                todo.append((f"{path}/{name}" if path else name, child))
                found.append(todo[-1])
    return found


def _key(each: Any) -> int:
    return each if isinstance(each, int) else id(each)
