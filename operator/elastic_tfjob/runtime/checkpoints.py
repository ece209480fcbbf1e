"""A directory of checkpoints of which only complete ones count.

TensorFlow writes a checkpoint as several files. After all of them, a marker is written that lists their names and
sizes: `elastic-1200.complete`. A checkpoint is one whose marker is there and whose files are as the marker says, so
one that was cut off half-way (killed, disk full, copied in part) is never resumed from. All through tf.io.gfile, so the
directory may be a URL.

A file system that does not answer is no empty directory: only "not found" means that nothing is there. Whatever else
goes wrong is tried again for some seconds and then raised, so that a training job never begins anew by accident.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Callable, TypeVar

_PREFIX = "elastic-"
_MARKER = re.compile(r"elastic-(\d+)\.complete")
_FILE = re.compile(r"elastic-(\d+)(\..+|_temp.*)")
_RETRY_S = (0.1, 0.3, 1.0, 3.0)
"""Waited before each further attempt to read what could not be read."""
_PATTERN = "*?[\\"
_LISTED = 10
"""So many names are told of each kind."""
_Result = TypeVar("_Result")


class Mismatch(RuntimeError):
    """A checkpoint does not hold all of the program's variables."""


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
        self._unpruned: int | None = None
        """The step that was saved since old checkpoints were deleted last."""
        self._known: dict[int, bool] = {}
        """Whether a step's checkpoint is complete, of those that were looked at or written. One that could not be
        looked at is not among them, and is not deleted."""
        # TensorFlow makes a function for every save, and then warns that it does.
        tf.get_logger().addFilter(lambda record: "tf_function_save" not in record.getMessage())

    # -- saving --------------------------------------------------------------------------------------------------------

    def save(self, step: int, all_ready: Callable[[bool], bool], **facts: Any) -> dict[str, Any]:
        """Write a checkpoint; gives step, at (Unix time), seconds, bytes, path. `prune` is to follow, once nobody waits
        any more. Raises what TensorFlow raises; what was written by then is deleted, lest it keep a full volume full.

        `all_ready`: tells the other workers whether this one can write, and whether all can. Writing adds up what they
        have, so whoever came alone would wait for ever.
        """
        self._known.pop(step, None)
        try:
            saved = self._in_turn(lambda options: self._write(step, all_ready, options, facts))
        except BaseException:
            self._delete_old(step)
            raise
        self._known[step], self._unpruned = True, step
        return saved

    def _in_turn(self, do: Callable[[Any], _Result]) -> _Result:
        """Do it with whoever writes and reads; where that fails, with the next one."""
        while True:
            try:
                return do(self.options[0])
            except Mismatch:
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
        _together(lambda: self._make_room(path), all_ready)
        self.checkpoint.write(path, options=options)
        sizes = self._patiently(lambda: self._sizes(name))
        seconds = time.monotonic() - begin
        marker = {"step": step, "at": time.time(), "seconds": round(seconds, 4), "bytes": sum(sizes.values()), **facts}
        temporary = f"{path}.marker"
        with self._files.GFile(temporary, "w") as file:
            file.write(json.dumps({**marker, "files": sizes}))
        self._files.rename(temporary, f"{path}.complete", overwrite=True)
        return {**marker, "path": path}

    def _make_room(self, path: str) -> None:
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
            raise _Unsure(f"{name} has been written, and of its files there are {_some(sorted(found)) or 'none'}")
        return found

    def write_elsewhere(self, all_ready: Callable[[bool], bool]) -> None:
        """A worker's part in a save whose files are the chief's: what it writes is thrown away."""
        with contextlib.ExitStack() as stack:
            folder = _together(lambda: stack.enter_context(tempfile.TemporaryDirectory()), all_ready)
            self.checkpoint.write(f"{folder}/discarded", options=self.options[0])

    def prune(self) -> bool:
        """Delete what the newest save leaves to be deleted; whether there has been one since this was called last. With
        128 MB it takes 35 ms."""
        newest, self._unpruned = self._unpruned, None
        if newest is None:
            return False
        self._delete_old(newest)
        return True

    def _delete_old(self, newest: int) -> None:
        """Delete what unfinished saves up to `newest` left, and all checkpoints but the last `keep` and the one just
        written. What cannot be deleted is left for next time, and so is what could not be looked at."""
        try:
            names = [name.rstrip("/") for name in self._files.listdir(self.directory)]
        except Exception:
            return
        marked = {int(match[1]) for match in map(_MARKER.fullmatch, names) if match}
        good = sorted((step for step in marked if self._known.get(step)), reverse=True)
        kept = {*good[: self.keep], *(marked - self._known.keys())}
        if self._known.get(newest):
            kept.add(newest)
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
        """All complete checkpoints, newest first: the marker's content and `path`. Raises what TensorFlow raises when
        it cannot be known whether there is one, and RuntimeError if there are some and all are damaged."""
        found, doubt, damaged = [], None, []
        self._known = {}
        markers = filter(None, map(_MARKER.fullmatch, self._names()))
        for step, name in sorted(((int(match[1]), match[0]) for match in markers), reverse=True):
            try:
                marker = self._patiently(lambda name=name: self._look(name))  # type: ignore[misc]
            except Exception as error:  # whatever is wrong with one, the next may be right
                doubt = error
                print(f"cannot read {self.directory}/{name}: {error}", file=sys.stderr, flush=True)
                continue
            self._known[step] = marker is not None
            if marker is None:
                damaged.append(name)
            else:
                found.append({**marker, "step": step, "path": f"{self.directory}/{_PREFIX}{step}"})
        if not found and doubt is not None:
            raise doubt
        if not found and damaged:
            raise RuntimeError(
                f"no checkpoint in {self.directory} is as it was written ({_some(damaged)}): files are missing or have "
                "other sizes; delete what is there to begin at step 0"
            )
        return found

    def _look(self, name: str) -> dict[str, Any] | None:
        """What a marker says; None if it is not what was written, or the files are not as it says."""
        with self._files.GFile(f"{self.directory}/{name}", "r") as file:
            try:
                marker = json.loads(file.read())
                files = dict(marker.pop("files"))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                return None
        try:
            whole = all(self._files.stat(f"{self.directory}/{each}").length == size for each, size in files.items())
        except self._tf.errors.NotFoundError:
            return None
        return marker if files and whole else None

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

    def restore_newest(self, agreement: Any, *, chief: bool) -> dict[str, Any] | None:
        """Restore the newest complete checkpoint that can be, and give it; None where training begins. `agreement`: an
        agreement.Agreement of many workers, which all restore what the chief has for the newest. Raises Mismatch, and
        RuntimeError where none can be restored."""
        found = self.complete()
        if agreement is not None:
            newest = agreement.sum(found[0]["step"] + 1 if found and chief else 0)[0] - 1
            found = [each for each in found if each["step"] == newest]
            if newest >= 0 and not found:
                raise RuntimeError(
                    f"checkpoint of step {newest} is not in {self.directory} here; do all workers share it?"
                )
        problem: Exception | None = None
        for each in found:
            try:
                self.restore(each["path"])
                return each
            except Mismatch:  # an older one would hide it
                raise
            except Exception as error:
                problem = error
                print(f"cannot restore {each['path']}: {error}", file=sys.stderr, flush=True)
                if agreement is not None:
                    raise
        if problem is not None:
            raise RuntimeError(f"no checkpoint in {self.directory} can be restored") from problem
        print(f"no checkpoint in {self.directory}: training begins at step 0", file=sys.stderr, flush=True)
        return None

    def restore(self, path: str) -> None:
        """Raises Mismatch unless it holds all variables that the program has made so far (those that are made later
        are restored then), or what TensorFlow raises."""
        self._in_turn(lambda options: self._patiently(lambda: self._read(path, options)))
        self._restored = path

    def _read(self, path: str, options: Any) -> None:
        errors = self._tf.errors
        try:
            if not self.partial:
                self._check(path)
            self.checkpoint.read(path, options=options).expect_partial()
        except (errors.NotFoundError, errors.InvalidArgumentError) as error:
            # TensorFlow says so where it could not list the directory, too.
            if self._look(f"{path.rpartition('/')[2]}.complete") is not None:
                raise _Unsure(f"{path} is whole and cannot be read: {error}") from error
            raise

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
        """Raises Mismatch if the newest checkpoint lacks variables of the program; nothing else, since nothing depends
        on it yet."""
        if self.partial:
            return
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
        if lacks := self._differences(path):
            raise Mismatch(f"{lacks} ElasticCheckpoint(..., partial=True) starts them with their initial values")

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
            if id(each) not in held and hasattr(each, "shape") and hasattr(each, "assign") and name != "save_counter"
        ]
        if not lacks:
            return ""
        unused = {name for name, node in _paths(0, view.children) if node not in matched}
        values = (key.partition("/.ATTRIBUTES/")[0] for key, _ in train.list_variables(path))
        spare = [name for name in values if name in unused and name != "save_counter"]
        return (
            f"{path} has no value for {_some(lacks)} of this program"
            + (f"; it has {_some(spare)}, which the program has not" if spare else "")
            + ". Was something renamed?"
        )


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


def _some(names: list[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")
