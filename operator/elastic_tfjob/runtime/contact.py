"""A training program's side of the files that it shares with its launcher: see protocol.py."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

from elastic_tfjob.runtime import preload, protocol


class Contact:
    """What one generation's program says and is told. Without a launcher it says nothing, and nothing holds it back.

    `shared`, `generation`: the pod's directory and the program's generation, as in its environment. Raises ValueError
    for a generation that is no number.
    """

    def __init__(self, shared: str | None, generation: str | None) -> None:
        self.folder: Path | None = None
        if shared and generation:
            self.folder = protocol.generation_directory(Path(shared), int(generation))

    def hello(self) -> None:
        """Tell the launcher that this program can be rescaled, and what it set before it imported TensorFlow."""
        if self.folder is None:
            return
        hello = {"pid": os.getpid(), "environment": preload.read_early(os.environ)}
        preload.tell()
        with contextlib.suppress(OSError):
            protocol.write(self.folder.parent / protocol.HELLO, hello)
            protocol.write(self.folder / protocol.HELLO, hello)

    def is_closed(self) -> bool:
        """Whether the launcher holds this program back: its generation is prepared beside the one that runs."""
        return (
            self.folder is not None and not os.environ.get(protocol.OPEN) and not (self.folder / protocol.GO).exists()
        )

    def say_ready(self) -> None:
        """Raises OSError: who cannot say so would wait for ever."""
        if self.folder is not None:
            protocol.write(self.folder / protocol.READY, {"pid": os.getpid()})

    def say_begun(self) -> None:
        """This worker has begun with its chief."""
        if self.folder is not None:
            with contextlib.suppress(OSError):
                protocol.write(self.folder / protocol.BEGUN, {"pid": os.getpid(), "at": time.time()})

    def request(self) -> str | None:
        """The id of the save that is asked for now, if one is."""
        if self.folder is None or not (self.folder / protocol.SAVE).exists():
            return None
        return (protocol.read(self.folder / protocol.SAVE) or {}).get("id")

    def answer(self, request: str, step: int, *, ok: bool, why: str | None) -> None:
        """To a request to save."""
        assert self.folder is not None
        answer = {"id": request, "ok": ok, "why": why, "step": step, "at": time.time()}
        try:
            protocol.write(self.folder / protocol.SAVED, answer)
        except OSError as error:  # no answer: the launcher will give up after its time-out
            print(f"cannot answer the launcher: {error}", file=sys.stderr, flush=True)


def imported() -> None:
    """Tell the launcher that this program has the hook, though it may take long until it uses it."""
    with contextlib.suppress(OSError, ValueError):
        folder = Contact(os.environ.get(protocol.DIRECTORY), os.environ.get(protocol.GENERATION)).folder
        if folder is not None:
            protocol.write(folder / protocol.IMPORTED, {})
