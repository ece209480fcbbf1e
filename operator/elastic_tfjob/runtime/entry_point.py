"""The first process of the training container: see launcher.py."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from elastic_tfjob.runtime import protocol
from elastic_tfjob.runtime.forkserver import IGNORED_BY_PYTHON
from elastic_tfjob.runtime.launcher import WATCHED, Launcher

_PR_SET_CHILD_SUBREAPER = 36
_VOLUME_FULL = (errno.ENOSPC, errno.EDQUOT)


def main(signal_mask: set[Any] | None = None) -> None:
    """Run the command after `--`. Does not return. `signal_mask`: the signals that were blocked when this process
    began, where the caller has blocked more since."""
    arguments = sys.argv[1:]
    program = arguments[1:] if arguments[:1] == ["--"] else arguments
    if not program:
        sys.exit("usage: launcher.pyz -- COMMAND [ARGUMENT...]")
    directory = Path(os.environ.get(protocol.DIRECTORY) or "/elastic-tfjob")
    try:
        protocol.write(directory / protocol.LAUNCHER, {"at": time.time()})
    except OSError as error:
        # Without a shared directory the program runs alone. In one that is only full, committed.json still counts.
        if error.errno not in _VOLUME_FULL and protocol.read(directory / protocol.COMMITTED) is None:
            _exec(program, signal_mask)
    with contextlib.suppress(OSError, AttributeError):  # process 1 gets orphans anyway
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    command_file = os.environ.get(protocol.COMMAND)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    launcher = Launcher(program, directory, Path(command_file) if command_file else None, os.environ.get("TF_CONFIG"))
    try:
        code = launcher.run(before if signal_mask is None else signal_mask)
    except OSError as error:  # the first start failed: use the message and exit code of a shell
        print(f"{program[0]}: {error.strerror or error}", file=sys.stderr)
        code = 127 if isinstance(error, FileNotFoundError) else 126
    sys.stdout.flush()
    os._exit(code)


def _exec(program: list[str], signal_mask: set[Any] | None) -> None:
    """Become the user's program."""
    if signal_mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, signal_mask)
    for number in IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(program[0], program)
    except OSError as error:
        print(f"{program[0]}: {error.strerror or error}", file=sys.stderr)
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)
