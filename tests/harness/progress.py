"""Long steps say what they do and how long it took; commands keep a log and show its end when they fail."""

import contextlib
import functools
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

HEARTBEAT_S = 30.0
"""How often a step that is still going on says so where lines cannot be rewritten (CI, a pipe)."""
CLEAR = "\r\033[K"
_running: dict[int, str] = {}
"""What each step that is still going on says: some go on side by side, and share the line that is rewritten."""
_line = threading.RLock()


class Problem(RuntimeError):
    """Something a person has to know or do; the text says it all, a traceback would add nothing."""


class CommandFailed(Problem):
    """A command ended with an error; the text holds the command and the end of its output."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(function: Callable[[], None]) -> Callable[[], None]:
    """Let a command-line entry point end with what a Problem says instead of a traceback."""

    @functools.wraps(function)
    def wrapped() -> None:
        try:
            function()
        except Problem as problem:
            sys.exit(f"✗ {problem}")
        except KeyboardInterrupt:
            sys.exit(130)

    return wrapped


@contextlib.contextmanager
def step(title: str, expect: str = "") -> Iterator[None]:
    """Show `title` while the body runs (with how long it usually takes, if told) and the seconds it took after."""
    usual = f" (usually {expect})" if expect else ""
    live = sys.stderr.isatty()
    begin, over = time.monotonic(), threading.Event()
    me = id(over)

    def tick() -> None:
        while not over.wait(1.0 if live else HEARTBEAT_S):
            elapsed = f"{time.monotonic() - begin:.0f} s"
            if live:
                _rewrite(me, f"{title}{usual}: {elapsed}")
            else:
                say(f"… {title}: {elapsed}")

    say(f"▸ {title}{usual}") if not live else _rewrite(me, f"{title}{usual}")
    ticker = threading.Thread(target=tick, daemon=True)
    ticker.start()
    mark = "✗"
    try:
        yield
        mark = "✓"
    finally:
        over.set()
        ticker.join()
        with _line:
            _running.pop(me, None)
            say(f"{CLEAR if live else ''}{mark} {title}: {time.monotonic() - begin:.1f} s")


def _rewrite(step_: int, text: str) -> None:
    """The line of all steps that go on, cut where the terminal ends: what is on a second line stays there for ever."""
    with _line:
        _running[step_] = text
        line = "… " + " · ".join(_running.values())
        print(f"{CLEAR}{line[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)


def run(
    command: Sequence[str | Path],
    *,
    log: Path | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
) -> str:
    """Run a command and return its standard output; with `log`, both its outputs go to that file instead.

    `env` is added to the environment. Raises CommandFailed with the last lines of what the command said.
    """
    argv = [str(word) for word in command]
    environment = {**os.environ, **(env or {})}
    if log:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as out:
            done = subprocess.run(
                argv, cwd=cwd, env=environment, input=stdin, text=True, stdout=out, stderr=out, check=False
            )
        said = log.read_text(errors="replace") if done.returncode else ""
    else:
        done = subprocess.run(argv, cwd=cwd, env=environment, input=stdin, text=True, capture_output=True, check=False)
        said = done.stdout + done.stderr
    if done.returncode:
        where = f" (all of it: {log})" if log else ""
        tail = "\n".join(said.splitlines()[-30:])
        raise CommandFailed(f"`{shlex.join(argv)}` ended with {done.returncode}{where}:\n{tail}")
    return done.stdout or ""
