"""A directory of checkpoints of which only complete ones count.

TensorFlow writes a checkpoint as several files. After all of them, a marker is written that lists their names and
sizes: `elastic-1200.complete`. A checkpoint is one whose marker is there and whose files are as the marker says, so
one that was cut off half-way (killed, disk full, copied in part) is never resumed from. All through tf.io.gfile, so the
directory may be a URL.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from typing import Any

_PREFIX = "elastic-"
_MARKER = re.compile(r"elastic-(\d+)\.complete")
_FILE = re.compile(r"elastic-(\d+)(\..+|_temp.*)")


class Checkpoints:
    """The last `keep` checkpoints of `checkpoint` (a tf.train.Checkpoint) in `directory`.

    `options`: tf.train.CheckpointOptions, which say who writes.
    """

    def __init__(self, checkpoint: Any, directory: str, keep: int, options: Any) -> None:
        import tensorflow as tf  # noqa: PLC0415

        self.checkpoint, self.directory, self.keep, self.options = checkpoint, directory, keep, options
        self._files = tf.io.gfile
        # TensorFlow makes a function for every save, and then warns that it does.
        tf.get_logger().addFilter(lambda record: "tf_function_save" not in record.getMessage())

    def save(self, step: int, **facts: Any) -> dict[str, Any]:
        """Write a checkpoint, and delete what is no longer wanted; gives step, at (Unix time), seconds, bytes, path.
        Raises what TensorFlow raises; what was written by then is deleted, lest it keep a full volume full."""
        try:
            return self._write(step, facts)
        finally:
            self._prune(step)

    def _write(self, step: int, facts: dict[str, Any]) -> dict[str, Any]:
        begin = time.monotonic()
        self._files.makedirs(self.directory)
        name = f"{_PREFIX}{step}"
        path = f"{self.directory}/{name}"
        self._remove(f"{path}.complete")
        self.checkpoint.write(path, options=self.options)
        sizes = {
            each: self._files.stat(f"{self.directory}/{each}").length
            for each in self._files.listdir(self.directory)
            if each.startswith((f"{name}.index", f"{name}.data-"))
        }
        seconds = time.monotonic() - begin
        marker = {"step": step, "at": time.time(), "seconds": round(seconds, 4), "bytes": sum(sizes.values()), **facts}
        temporary = f"{path}.marker"
        with self._files.GFile(temporary, "w") as file:
            file.write(json.dumps({**marker, "files": sizes}))
        self._files.rename(temporary, f"{path}.complete", overwrite=True)
        return {**marker, "path": path}

    def write_elsewhere(self, directory: str) -> None:
        """A worker's part in a save whose files are the chief's: what it writes is thrown away."""
        self.checkpoint.write(f"{directory}/discarded", options=self.options)

    def complete(self) -> list[dict[str, Any]]:
        """All complete checkpoints, newest first: the marker's content and `path`."""
        try:
            names = self._files.listdir(self.directory)
        except Exception:  # no such directory yet
            return []
        found = []
        for step, name in sorted(
            ((int(match[1]), match[0]) for match in map(_MARKER.fullmatch, names) if match), reverse=True
        ):
            with contextlib.suppress(Exception):  # whatever is wrong with one, the next may be right
                with self._files.GFile(f"{self.directory}/{name}", "r") as file:
                    marker = json.loads(file.read())
                files = marker.pop("files")
                if files and all(
                    self._files.stat(f"{self.directory}/{each}").length == size for each, size in files.items()
                ):
                    found.append({**marker, "step": step, "path": f"{self.directory}/{_PREFIX}{step}"})
        return found

    def restore(self, path: str) -> None:
        """Raises what TensorFlow raises."""
        self.checkpoint.read(path, options=self.options).expect_partial()

    def _prune(self, newest: int) -> None:
        """Delete all but the last `keep`, and what unfinished saves up to `newest` left. What cannot be deleted is left
        for next time."""
        try:
            kept = {each["step"] for each in self.complete()[: self.keep]}
            names = self._files.listdir(self.directory)
        except Exception:
            return
        old = [(match[0], int(match[1])) for match in (_FILE.fullmatch(name.rstrip("/")) for name in names) if match]
        # Markers first: what is deleted in part is not complete.
        for name, step in sorted(old, key=lambda each: not each[0].endswith(".complete")):
            if step <= newest and step not in kept:
                self._remove(f"{self.directory}/{name}")

    def _remove(self, path: str) -> None:
        with contextlib.suppress(Exception):
            if self._files.isdir(path):
                self._files.rmtree(path)
            elif self._files.exists(path):
                self._files.remove(path)
