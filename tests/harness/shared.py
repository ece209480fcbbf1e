"""Costly things (a control plane, an operator) that all processes of a test run share, as pytest-xdist starts them."""

import contextlib
import fcntl
import json
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

Facts = dict[str, str]
Make = Callable[[Path], contextlib.AbstractContextManager[Facts]]

_AGAIN_S = 0.1
_USED_S = 3600.0
"""Nobody uses a thing for longer than this after its maker has no more need of it: who seems to is stuck."""


def run_folder(request: pytest.FixtureRequest, temporary: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this test run have in common."""
    own = temporary.getbasetemp()
    return own.parent if hasattr(request.config, "workerinput") else own


@dataclass(frozen=True)
class _Use:
    """One process's part in a thing. Who made it unmakes it."""

    name: str
    folder: Path
    users: IO[str]
    made: contextlib.ExitStack
    maker: bool
    on: Collection[str]


class Shared:
    """Things by name, in `folder`. Each is made by the first process that asks for it and kept until its last user has
    left; a process that dies has left, too."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._uses: list[_Use] = []

    def get(self, name: str, make: Make, on: Collection[str] = ()) -> Facts:
        """What `make(folder)` yields, with a folder of its own. It rests on the things `on`, which this process uses
        already: they are kept until it is unmade."""
        folder = self._folder / name
        folder.mkdir(parents=True, exist_ok=True)
        facts = folder / "facts.json"
        with _making(folder), contextlib.ExitStack() as made:
            maker = not facts.exists()
            if maker:
                content = json.dumps(made.enter_context(make(Path(tempfile.mkdtemp(dir=folder)))))
                made.callback(facts.unlink)
                facts.write_text(content)
            users = (folder / "users").open("w")
            fcntl.flock(users, fcntl.LOCK_SH)
            self._uses.append(_Use(name, folder, users, made.pop_all(), maker, on))
            found: Facts = json.loads(facts.read_text())
            return found

    def close(self) -> None:
        """Leave all, and unmake what this process made once nobody uses it.

        What nothing rests on is left first: two processes that each use what the other has made would else wait for
        each other for ever.
        """
        kept = {name for use in self._uses if use.maker for name in use.on}
        with contextlib.ExitStack() as ended:
            for use in self._uses:
                if use.name not in kept:
                    fcntl.flock(use.users, fcntl.LOCK_UN)
                ended.callback(_end, use)
            self._uses.clear()


def _end(use: _Use) -> None:
    """Nobody can come between the moment when nobody uses it and that when it is gone: who comes then makes its own.
    Nothing is held while waiting."""
    ends = time.monotonic() + _USED_S
    with use.users:
        while use.maker:
            with _making(use.folder), contextlib.suppress(BlockingIOError):
                fcntl.flock(use.users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                use.made.close()
                return
            if time.monotonic() > ends:
                use.made.close()
                raise TimeoutError(f"{use.name} is still used by another process, after {_USED_S:.0f} s")
            time.sleep(_AGAIN_S)


@contextlib.contextmanager
def _making(folder: Path) -> Iterator[None]:
    with (folder / "making").open("w") as making:
        fcntl.flock(making, fcntl.LOCK_EX)
        yield
