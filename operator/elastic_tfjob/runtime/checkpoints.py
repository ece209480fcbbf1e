"""A directory of checkpoints, of which only complete ones count.

TensorFlow writes a checkpoint as several files. After these a marker is written, `elastic-1200.complete`, which lists
their names and sizes. A checkpoint is complete if its marker exists and its files are as the marker says, so training
never resumes from one that was cut off (killed, disk full, copied in part). All access is through tf.io.gfile, so the
directory may be a URL.

In a directory that is a path, a checkpoint is complete first and durable later: beside training its files are flushed
to disk (fsync), then its marker is replaced by one with `"durable": true`. Only then are older checkpoints deleted, so
a power loss at any moment leaves a durable one. A program also resumes from a complete checkpoint that is not durable
(the next size of a job does, moments after the save); TensorFlow's checksum of each value shows whether it survived a
power loss. A marker with `"durable": false` whose files are incomplete is what a power loss left of an unfinished save.

A file system that does not answer is not an empty directory: only "not found" means that a file does not exist. Any
other error is retried for some seconds and then raised, so a job never restarts its training from step 0 by accident.
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
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from elastic_tfjob.runtime import checkpoint_variables as variables
from elastic_tfjob.runtime import durability
from elastic_tfjob.runtime.lease import RENEW_S, InUse, Lease, Owner
from elastic_tfjob.runtime.protocol import brief, some

if TYPE_CHECKING:
    from elastic_tfjob.runtime.data import Data

_PREFIX = "elastic-"
_MARKER = re.compile(r"elastic-(\d+)\.complete")
_FILE = re.compile(r"elastic-(\d+)(\..+|_temp.*)")
VISIBLE_S = 90.0
"""Seconds until a checkpoint of another machine is seen, at most: a client of NFS keeps a listing for a minute."""
_SEEN_S = 0.05
_RETRY_WAITS_S = (0.1, 0.3, 1.0, 3.0)
"""Waits before each further attempt to read."""
_DAMAGE_WORDS = ("checksum", "corrupt", "truncated", "too short")
"""Words in TensorFlow's errors about a checkpoint whose content has changed since it was written."""
_FLUSH_FAILED = "flush_failed"
_MARKER_BYTES = 1 << 24  # without a limit, GFile reads as many bytes as a file that has replaced this one
_PATTERN_CHARACTERS = "*?[\\"
_DELAY_AFTER_SWITCH_S = 1.0
"""The checkpoint of a switch is made durable after this delay: the first step goes first."""
_Result = TypeVar("_Result")


class Mismatch(RuntimeError):
    """A checkpoint lacks variables of the program, has some in another shape or type, or was made with other data."""


class Checkpoints:
    """The last `keep` checkpoints of `checkpoint` (a tf.train.Checkpoint) in `directory`.

    `options`: tf.train.CheckpointOptions, which say where values are written and read; the first is used until it
    fails, and the next one from then on. `partial`: variables of the program that a checkpoint lacks keep their values.
    `complete` must be called before the first `save`. Raises ValueError for a directory that TensorFlow would read as a
    pattern, but write as a path.
    """

    def __init__(
        self, checkpoint: Any, directory: str, keep: int, options: Sequence[Any], *, partial: bool = False
    ) -> None:
        import tensorflow as tf  # noqa: PLC0415

        if any(character in directory for character in _PATTERN_CHARACTERS):
            raise ValueError(
                f"the checkpoint directory is {directory!r}; TensorFlow cannot read from a path with one of the "
                f"characters {_PATTERN_CHARACTERS}"
            )
        self.checkpoint, self.directory, self.keep, self.options = checkpoint, directory, keep, list(options)
        self.partial = partial
        self._tf = tf
        self._files = tf.io.gfile
        self._restored: str | None = None
        """The path of the restored checkpoint, until variables that were created later have been compared with it."""
        self._unsettled: int | None = None
        """The step that was saved since the last call of `settle`."""
        self._is_complete: dict[int, bool] = {}
        """By step, whether the checkpoint is complete; only those that were read or written. One that could not be read
        is not included, and is not deleted."""
        self._durable: set[int] = set()
        """Steps whose checkpoints survive a power loss."""
        self._foreign: dict[int, str] = {}
        """Steps whose checkpoints another job has written, and that job."""
        self._damage: Exception | None = None
        """Why a checkpoint that may have been durable cannot be used; None if there is no such checkpoint."""
        self._outdated = False
        """The previous program has saved and deleted checkpoints since this one looked."""
        self._writing: int | None = None
        self._lock = threading.Lock()
        """Guards the steps above, and the replacement of markers: `_background` is another thread."""
        self.not_durable: str | None = None
        """Why the newest checkpoint is not durable; None if it is, or will be."""
        self._local = durability.local(directory)
        self._parents_synced = False
        self.lease = Lease(tf, directory)
        self._background = durability.BackgroundSync(self._settle, self.lease.renew, RENEW_S)
        # TensorFlow traces a function for every save, and warns about that.
        tf.get_logger().addFilter(lambda record: "tf_function_save" not in record.getMessage())

    # -- saving --------------------------------------------------------------------------------------------------------

    def save(self, step: int, all_ready: Callable[[bool], bool], **facts: Any) -> dict[str, Any]:
        """Write a checkpoint; returns step, at (Unix time), seconds, bytes and path. Call `settle` afterwards, when no
        process waits for this one. `all_ready`: takes whether this worker can write, and returns whether all workers
        can; writing sums values over all workers, so a single one would wait without end. `facts`: more keys for the
        marker. Raises InUse if another job has written this step or writes to this directory now, and what TensorFlow
        raises; the files written by then are deleted, so that they do not fill the volume."""
        with self._lock:
            self._is_complete.pop(step, None)
            self._durable.discard(step)
            self._writing = step
        try:
            saved = self._with_fallback(lambda options: self._write(step, all_ready, options, facts))
        except BaseException:
            with self._lock:
                self._writing = None
            self._delete_old(step)
            raise
        with self._lock:
            self._is_complete[step], self._unsettled, self._writing = True, step, None
        return saved

    def _with_fallback(self, do: Callable[[Any], _Result]) -> _Result:
        """Call `do` with the first options; where that fails, with the next ones from now on."""
        while True:
            try:
                return do(self.options[0])
            except (Mismatch, InUse):
                raise
            except Exception as error:
                if len(self.options) == 1:
                    raise
                print(
                    f"WARNING: the chief writes checkpoints for parameter servers: {error}", file=sys.stderr, flush=True
                )
                del self.options[0]

    def _write(
        self, step: int, all_ready: Callable[[bool], bool], options: Any, facts: dict[str, Any]
    ) -> dict[str, Any]:
        begin = time.monotonic()
        name = f"{_PREFIX}{step}"
        path = f"{self.directory}/{name}"
        _prepare_together(lambda: self._make_room(step, path), all_ready)
        self.checkpoint.write(path, options=options)
        sizes = self._with_retries(lambda: self._sizes(name))
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
            raise InUse(f"{path} is a checkpoint of {self._foreign[step]}, which this job does not overwrite")
        self._files.makedirs(self.directory)
        with contextlib.suppress(self._tf.errors.NotFoundError):
            self._files.remove(f"{path}.complete")  # its files are being replaced

    def _sizes(self, name: str) -> dict[str, int]:
        """The files of a checkpoint that has just been written, with their sizes in bytes. Raises _Contradiction where
        some are missing: the listing may be outdated after parameter servers have written."""
        found = {
            each: self._files.stat(f"{self.directory}/{each}").length
            for each in self._files.listdir(self.directory)
            if each.startswith((f"{name}.index", f"{name}.data-"))
        }
        parts = Counter(each.rpartition("-of-")[2] for each in found if "-of-" in each)
        if f"{name}.index" not in found or not any(int(of) == count for of, count in parts.items()):
            raise _Contradiction(f"files of {name} are missing; found: {some(sorted(found)) or 'none'}")
        return found

    def write_elsewhere(self, all_ready: Callable[[bool], bool]) -> None:
        """Take part in a save as a worker other than the chief: the chief's files count, and this one's are deleted."""
        with contextlib.ExitStack() as stack:
            folder = _prepare_together(lambda: stack.enter_context(tempfile.TemporaryDirectory()), all_ready)
            self.checkpoint.write(f"{folder}/discarded", options=self.options[0])

    def settle(self) -> None:
        """Have the background thread make the newest save durable, and delete the checkpoints it replaces."""
        step, self._unsettled = self._unsettled, None
        if step is not None:
            self._background.give(step)

    def wait(self, seconds: float) -> bool:
        """Wait until all that `settle` was called for is done, successful or not. Returns whether that was within the
        time."""
        return self._background.wait(seconds)

    def _settle(self, step: int) -> None:
        """In the background thread. The next save may be under way."""
        if self._outdated:
            self._outdated = False
            with contextlib.suppress(Exception):  # those that are not known are not deleted
                self.complete()
        try:
            self._make_durable(step)
            self.not_durable = None
        except Exception as error:  # it does not count as durable, so the previous durable one is kept
            self.not_durable = f"the checkpoint of step {step} may not survive a power loss: {brief(error)}"
            print(self.not_durable, file=sys.stderr, flush=True)
        self._delete_old(step)

    def _make_durable(self, step: int) -> None:
        """Raises OSError or ValueError if it fails. It is not retried: after a failed flush the kernel counts the data
        as written, so a second flush would prove nothing."""
        if self._local is not None and step not in self._durable:
            folder, name = self._local, f"{_PREFIX}{step}"
            with open(f"{folder}/{name}.complete") as file:
                marker = json.load(file)
            if marker.get(_FLUSH_FAILED):
                raise OSError("the program that wrote it could not flush it to disk")
            try:
                durability.sync_files(folder, marker["files"])
            except OSError:  # noted for the next program, whose flush would succeed and prove nothing either
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
        """Replace a marker, unless its checkpoint is being rewritten; whether it was replaced. Raises OSError."""
        path = f"{self._local}/{_PREFIX}{step}"
        durability.write(f"{path}.durable", json.dumps(marker), flush=flush)
        with self._lock:
            if self._writing != step:
                os.replace(f"{path}.durable", f"{path}.complete")
            return self._writing != step

    def _delete_old(self, newest: int) -> None:
        """Delete the files of unfinished saves up to `newest`, and all checkpoints except the last `keep`, the last
        durable one, the one just written and those of other jobs. Files that cannot be read or deleted are left for
        the next time."""
        try:
            names = [name.rstrip("/") for name in self._files.listdir(self.directory)]
        except Exception:
            return
        marked = {int(match[1]) for match in map(_MARKER.fullmatch, names) if match}
        with self._lock:
            known, foreign, writing = dict(self._is_complete), set(self._foreign), self._writing
            good = sorted((step for step in marked - foreign if known.get(step)), reverse=True)
            durable = [step for step in good if step in self._durable]
        kept = {*good[: self.keep], *durable[:1], *(marked - known.keys()), *foreign}
        kept.update(step for step in (newest, writing) if step is not None and (step == writing or known.get(step)))
        old = [(match[0], int(match[1])) for match in map(_FILE.fullmatch, names) if match]
        # Markers first: a checkpoint that is deleted in part is not complete.
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
        """All complete checkpoints: those of this job, newest first, then those of other jobs. Each is the content of
        its marker with `path`. Raises what TensorFlow raises if the directory cannot be read, and RuntimeError if there
        are checkpoints and all that may have been durable are damaged."""
        found: list[dict[str, Any]] = []
        damage: Exception | None = None
        damaged: list[str] = []
        known: dict[int, bool] = {}
        durable: set[int] = set()
        foreign: dict[int, str] = {}
        markers = filter(None, map(_MARKER.fullmatch, self._names()))
        for step, name in sorted(((int(match[1]), match[0]) for match in markers), reverse=True):
            try:
                marker, unfinished = self._with_retries(lambda name=name: self._read_marker(name))  # type: ignore[misc]
            except Exception as error:  # the next one may be readable
                damage = error
                print(f"cannot read {self.directory}/{name}: {error}", file=sys.stderr, flush=True)
                continue
            known[step] = marker is not None
            if marker is None and unfinished:
                print(f"{self.directory}/{name} is incomplete: the machine stopped", file=sys.stderr, flush=True)
            elif marker is None:
                damaged.append(name)
            else:
                if self._is_foreign(marker):
                    foreign[step] = f"job {marker['job']['name']} (uid {marker['job']['uid']})"
                if marker.get("durable") is True:
                    durable.add(step)
                found.append({**marker, "step": step, "path": f"{self.directory}/{_PREFIX}{step}"})
        with self._lock:
            self._is_complete, self._durable, self._foreign = known, durable, foreign
        if damaged and damage is None:
            damage = RuntimeError(
                f"all checkpoints in {self.directory} are damaged ({some(damaged)}): files are missing or have a wrong "
                "size. To start at step 0, delete the directory's files"
            )
        self._damage = damage
        if not found and damage is not None:
            raise damage
        return sorted(found, key=lambda each: each["step"] in foreign)

    def newest(self) -> str | None:
        """The path of the newest complete checkpoint of this job. Changes nothing, so any thread may ask. Raises what
        TensorFlow raises."""
        steps = sorted((int(match[1]) for match in filter(None, map(_MARKER.fullmatch, self._names()))), reverse=True)
        for step in steps:
            marker, _ = self._read_marker(f"{_PREFIX}{step}.complete")
            if marker is not None and not self._is_foreign(marker):
                return f"{self.directory}/{_PREFIX}{step}"
        return None

    def _is_foreign(self, marker: dict[str, Any]) -> bool:
        writer = Owner.read(marker.get("job"))
        return writer is not None and not (self.lease.owner and self.lease.owner.continues(writer))

    def _read_marker(self, name: str) -> tuple[dict[str, Any] | None, bool]:
        """The content of a marker; None if it is damaged, or the files are not as it says. Then also whether a power
        loss leaves a save that was not durable like that."""
        with self._files.GFile(f"{self.directory}/{name}", "r") as file:
            text = ""
            try:
                text = file.read(_MARKER_BYTES)
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
        """The names in the directory; none if it does not exist. Raises what TensorFlow raises."""

        def names() -> list[str]:
            try:
                return list(self._files.listdir(self.directory))
            except self._tf.errors.NotFoundError:
                # TensorFlow raises this for a directory that it could not read, too. `stat` tells the two apart.
                if self._is_there():
                    raise _Contradiction(f"{self.directory} exists but cannot be listed") from None
                return []

        return self._with_retries(names)

    def _is_there(self) -> bool:
        try:
            self._files.stat(self.directory)
            return True
        except self._tf.errors.NotFoundError:
            return False
        except self._tf.errors.FailedPreconditionError:
            if "://" in self.directory:
                raise
            return False  # the path is below a file

    def _with_retries(self, do: Callable[[], _Result]) -> _Result:
        """Call `do`, and retry it after errors that may be temporary."""
        errors = self._tf.errors
        final = (errors.NotFoundError, errors.DataLossError, errors.InvalidArgumentError, errors.UnimplementedError)
        for wait in _RETRY_WAITS_S:
            try:
                return do()
            except (*final, errors.OutOfRangeError):
                raise
            except (errors.OpError, OSError, _Contradiction) as error:
                print(f"{self.directory}: {error}; retry in {wait} s", file=sys.stderr, flush=True)
                time.sleep(wait)
        return do()

    def restore_newest(self, barrier: Any, *, chief: bool, after_switch: bool = False) -> dict[str, Any] | None:
        """Restore the newest complete checkpoint that can be restored; returns its marker's content with `path`, None
        if there is no checkpoint. `barrier`: the StartBarrier of several workers, which all restore the chief's newest,
        and all an older one if one of them cannot. `after_switch`: the newest was written moments ago on a machine that
        still runs, so values that are not read yet are not verified. Raises InUse if another running job writes to the
        directory, Mismatch, and RuntimeError if no checkpoint can be restored."""
        if chief:
            (self.lease.take_over if after_switch else self.lease.acquire)()
            self._background.start()
        left, problem, lost = self.complete(), None, False
        while True:
            newest = left[0]["step"] if left else -1
            if barrier is not None:
                newest = barrier.sum(newest + 1 if chief else 0)[0] - 1
            if newest < 0:
                break
            each = next((each for each in left if each["step"] == newest), None)
            if each is None:
                raise RuntimeError(f"step {newest} is not in this worker's {self.directory}; all workers must share it")
            error = self._try_to_restore(each["path"], verify=problem is not None or not after_switch)
            if barrier is not None and not barrier.all(error is None):
                error = error or RuntimeError("another worker cannot restore it")
            if error is None:
                if chief:
                    self._begin(newest, after_switch=after_switch)
                return each
            problem = error
            print(f"cannot restore {each['path']}: {error}", file=sys.stderr, flush=True)
            broken = isinstance(error, (self._tf.errors.DataLossError, self._tf.errors.OutOfRangeError))
            self._is_complete[newest] = not broken
            lost = lost or not broken or each.get("durable") is not False
            left.remove(each)
        if lost:
            raise RuntimeError(f"no checkpoint in {self.directory} can be restored") from problem
        if self._damage is not None:  # the damaged ones were never durable, but another one may have been
            raise self._damage
        print(f"no checkpoint in {self.directory}: training starts at step 0", file=sys.stderr, flush=True)
        return None

    def take_over(self) -> None:
        """Begin without a checkpoint: the values have come from the previous program of the same job in memory."""
        self._outdated = True
        self.lease.take_over()
        self._background.start()

    def note_durable(self, step: int) -> None:
        """The previous program has saved this step since."""
        with self._lock:
            self._is_complete[step] = True
            self._durable.add(step)

    def _begin(self, step: int, *, after_switch: bool) -> None:
        """Make the restored checkpoint durable: the program that saved it may have ended before that."""
        if step in self._foreign:
            print(
                f"resumed from step {step} of {self._foreign[step]}, which is not running: this job has no checkpoint "
                f"in {self.directory}. This job never deletes checkpoints of other jobs",
                file=sys.stderr,
                flush=True,
            )
        elif step not in self._durable:
            self._background.give(step, _DELAY_AFTER_SWITCH_S if after_switch else 0.0)

    def _try_to_restore(self, path: str, *, verify: bool) -> Exception | None:
        """Returns the error, if there is one. Raises Mismatch: restoring an older checkpoint would hide it."""
        try:
            self.restore(path, verify=verify)
        except Mismatch:
            raise
        except Exception as error:
            return error
        return None

    def restore(self, path: str, *, verify: bool = False) -> None:
        """Restore a checkpoint. Variables that the program creates later are restored when they are created. `verify`:
        read the values of those as well, so that damage is found now. Raises Mismatch if the checkpoint lacks variables
        that exist now or has them in another shape, and what TensorFlow raises."""
        self._with_fallback(lambda options: self._with_retries(lambda: self._read(path, options, verify=verify)))
        self._restored = path

    def _read(self, path: str, options: Any, *, verify: bool) -> None:
        errors = self._tf.errors
        try:
            self._check(path)
            if verify:
                self._verify(path)
            self.checkpoint.read(path, options=options).expect_partial()
        except (errors.NotFoundError, errors.InvalidArgumentError) as error:
            # TensorFlow raises this where it could not list the directory, too.
            if self._read_marker(f"{path.rpartition('/')[2]}.complete")[0] is not None:
                raise _Contradiction(f"{path} is complete but cannot be read: {error}") from error
            raise
        except errors.OpError as error:
            if any(word in str(error).lower() for word in _DAMAGE_WORDS):  # a reader raises no specific error
                raise errors.DataLossError(None, None, str(error)) from error
            raise

    def _verify(self, path: str) -> None:
        """Read the values that `checkpoint.read` does not: TensorFlow checks the checksum of each value that it reads.
        Raises what TensorFlow raises."""
        train, errors = self._tf.train, self._tf.errors
        read: set[str] = set()
        if hasattr(train, "CheckpointView"):
            view = train.CheckpointView(path)
            matched = variables.matched(self._tf, self.checkpoint, view)
            read = {name for name, node in variables.paths(0, view.children) if node in matched}
        reader = train.load_checkpoint(path)
        for key in reader.get_variable_to_shape_map():
            if key.partition("/.ATTRIBUTES/")[0] not in read:
                try:
                    reader.get_tensor(key)
                except (errors.DataLossError, errors.OutOfRangeError, errors.NotFoundError):
                    raise
                except Exception:  # a type that a reader cannot return
                    continue

    def not_restored(self) -> str:
        """The variables that the program has created since `restore` and that the checkpoint lacks: they began with
        their initial values. Empty if there are none, and at the second call. To be called before the first `save`,
        which deletes old checkpoints."""
        path, self._restored = self._restored, None
        if path is None or self.partial:
            return ""
        try:
            return variables.missing(self._tf, self.checkpoint, path)
        except Exception as error:  # training continues
            print(f"cannot compare the program with {path}: {error}", file=sys.stderr, flush=True)
            return ""

    def compare(self, data: Data | None = None) -> int | None:
        """Compare the program and its `data` with the newest checkpoint; returns its step, None if there is none.
        Raises Mismatch; other errors are only printed, since nothing depends on them yet."""
        newest: list[dict[str, Any]] = []
        try:
            newest = self.complete()[:1]
            for each in newest:
                if data is not None and (why := data.differs(each.get("data"))):
                    raise Mismatch(why)
                self._check(each["path"])
        except Mismatch:
            raise
        except Exception as error:
            print(f"cannot compare the program with {self.directory}: {error}", file=sys.stderr, flush=True)
        return int(newest[0]["step"]) if newest else None

    def newest_step(self) -> int | None:
        """The step of the newest complete checkpoint of this job; None if there is none, or none can be read."""
        with contextlib.suppress(Exception):
            path = self.newest()
            return int(path.rpartition("-")[2]) if path else None
        return None

    def wait_for(self, step: int) -> None:
        """Wait until a checkpoint of this step, or a newer one, is in the directory: another machine has written it,
        and a file system may show it late. Raises RuntimeError after VISIBLE_S, and what `complete` raises."""
        until = time.monotonic() + VISIBLE_S
        while not any(each["step"] >= step for each in self.complete()):
            if time.monotonic() >= until:
                raise RuntimeError(
                    f"the chief's pod before has saved step {step}, which is not in {self.directory} in this pod after "
                    f"{VISIBLE_S:.0f} s: the directory must be on a volume that all nodes share"
                )
            time.sleep(_SEEN_S)

    def _check(self, path: str) -> None:
        """Compare the program's variables with those of a checkpoint. Raises Mismatch."""
        if others := variables.shape_differences(self._tf, self.checkpoint, path):
            raise Mismatch(f"{path} does not fit this program: {some(others)}. Does a shape depend on the job's size?")
        if not self.partial and (lacks := variables.missing(self._tf, self.checkpoint, path)):
            raise Mismatch(f"{lacks} ElasticCheckpoint(..., partial=True) keeps their initial values")


def _prepare_together(prepare: Callable[[], _Result], all_ready: Callable[[bool], bool]) -> _Result:
    """Call `prepare` in all workers; returns its result if it succeeded in all of them, and raises otherwise."""
    try:
        prepared = prepare()
    except Exception:
        all_ready(False)
        raise
    if not all_ready(True):
        raise RuntimeError("another worker cannot write its part of the checkpoint")
    return prepared


class _Contradiction(Exception):
    """Two answers of the file system contradict each other."""
