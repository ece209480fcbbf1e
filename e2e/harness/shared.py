"""One costly thing (a control plane, an operator) for all the processes of a test run, as pytest-xdist starts them."""

import contextlib
import fcntl
import json
from collections.abc import Callable, Iterator
from pathlib import Path

Facts = dict[str, str]


@contextlib.contextmanager
def shared(folder: Path, make: Callable[[Path], contextlib.AbstractContextManager[Facts]]) -> Iterator[Facts]:
    """Yield what `make(folder)` yields, made by whichever process comes first.

    That process keeps it until the last user has left; users hold a shared lock, so one that dies has left too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    facts = folder / "facts.json"
    with contextlib.ExitStack() as made, (folder / "users").open("w") as users, (folder / "making").open("w") as making:
        fcntl.flock(making, fcntl.LOCK_EX)
        maker = not facts.exists()
        if maker:
            # Left before it is unmade: the next to come makes its own.
            content = json.dumps(made.enter_context(make(folder)))
            made.callback(facts.unlink)
            facts.write_text(content)
        fcntl.flock(users, fcntl.LOCK_SH)
        fcntl.flock(making, fcntl.LOCK_UN)
        yield json.loads(facts.read_text())
        if maker:
            fcntl.flock(users, fcntl.LOCK_EX)
