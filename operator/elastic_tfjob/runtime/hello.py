"""The training program's side of the files that it shares with its launcher: see protocol.py."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

from elastic_tfjob.runtime import preload, protocol

__all__ = ["Hello", "report_import"]


class Hello:
    """The messages between one generation's program and its launcher. Without a launcher nothing is written, and the
    program never waits.

    `shared`, `generation`: the pod's shared directory and the program's generation, as in its environment. Raises
    ValueError if the generation is not a number.
    """

    def __init__(self, shared: str | None, generation: str | None) -> None:
        self._soon: dict[str, Any] | None = None
        self.folder: Path | None = None
        if shared and generation:
            self.folder = protocol.generation_directory(Path(shared), int(generation))

    def report_start(self) -> None:
        """Report that this program can be rescaled, and the variables it set before it imported TensorFlow."""
        if self.folder is None:
            return
        hello = {"pid": os.getpid(), "environment": preload.library_variables(os.environ)}
        preload.report_imports()
        with contextlib.suppress(OSError):
            protocol.write(self.folder.parent / protocol.HELLO, hello)
            protocol.write(self.folder / protocol.HELLO, hello)

    def must_wait(self) -> bool:
        """Whether this program must wait: its generation is prepared beside the running one."""
        return (
            self.folder is not None and not os.environ.get(protocol.OPEN) and not (self.folder / protocol.GO).exists()
        )

    def report_ready(self, hand_over: dict[str, Any] | None, checkpoint: int | None) -> None:
        """Report that this program waits in resume(). `hand_over`: whether it can take the values of the running one in
        memory, and why not. `checkpoint`: the step of the newest one that it sees. Raises OSError: otherwise it would
        wait without end."""
        if self.folder is not None:
            ready = {"pid": os.getpid(), "hand_over": hand_over, "checkpoint": checkpoint}
            protocol.write(self.folder / protocol.READY, ready)

    def old_chief(self) -> dict[str, Any]:
        """How far the chief came that this program continues in another pod; empty if it is in the same one."""
        found = self._opening().get("old_chief")
        return found if isinstance(found, dict) else {}

    def given(self) -> dict[str, Any] | None:
        """What the program before has given in memory; None if it has saved a checkpoint instead."""
        given = self._opening().get("hand_over")
        return given if isinstance(given, dict) and isinstance(given.get("step"), int) else None

    def _opening(self) -> dict[str, Any]:
        """What the launcher said when it opened the barrier."""
        return (protocol.read(self.folder / protocol.GO) if self.folder is not None else None) or {}

    def report_begun(self) -> None:
        """Report that this worker has begun with its chief."""
        if self.folder is not None:
            with contextlib.suppress(OSError):
                protocol.write(self.folder / protocol.BEGUN, {"pid": os.getpid(), "at": time.time()})

    def save_request(self) -> dict[str, Any] | None:
        """The save that the launcher asks for now: {"id", "generation", "hand_over": whether to give the values in
        memory instead}; None if it asks for none."""
        if self.folder is None or not (self.folder / protocol.SAVE).exists():
            return None
        return protocol.read(self.folder / protocol.SAVE)

    def save_soon(self) -> bool:
        """Whether the launcher asks for a save at the next step, and did not when this was called before."""
        if self.folder is None or not (self.folder / protocol.SOON).exists():
            return False
        before, self._soon = self._soon, protocol.read(self.folder / protocol.SOON)
        return self._soon != before

    def answer_save(
        self, request: dict[str, Any], step: int, *, ok: bool, why: str | None, given: dict[str, Any] | None = None
    ) -> None:
        """Answer a request to save: whether the checkpoint of `step` is written, else `why` not. Or its values are
        `given` in memory."""
        assert self.folder is not None
        answer = {"id": request.get("id"), "ok": ok, "why": why, "step": step, "hand_over": given}
        try:
            protocol.write(self.folder / protocol.SAVED, {**answer, "at": time.time()})
        except OSError as error:  # without an answer, the launcher gives up after its timeout
            print(f"WARNING: the answer to the launcher cannot be written: {error}", file=sys.stderr, flush=True)


def report_import() -> None:
    """Report that this program has imported the hook; it may take long until it uses it."""
    with contextlib.suppress(OSError, ValueError):
        folder = Hello(os.environ.get(protocol.DIRECTORY), os.environ.get(protocol.GENERATION)).folder
        if folder is not None:
            protocol.write(folder / protocol.IMPORTED, {})
