"""Signal handling for long commands: after SIGINT, SIGTERM or SIGHUP a command stops and reports partial results."""

import errno
import os
import signal
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

__all__ = ["SIGNALS", "Interrupt", "stopping"]

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(slots=True)
class Interrupt:
    """Records whether a signal has asked this process to stop. Signals are recorded only inside `stopping`."""

    number: int = 0
    """The number of the first signal received; 0: none."""
    times: int = 0
    _open: bool = False

    @property
    def exit_status(self) -> int:
        """The exit status that a shell reports for a program ended by this signal: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + (self.number or signal.SIGINT)

    def check(self) -> None:
        """Raises KeyboardInterrupt if a signal has been received."""
        if self.number:
            raise KeyboardInterrupt

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Inside this context a signal raises KeyboardInterrupt at once; outside it, a signal is only recorded.
        Entering the context raises KeyboardInterrupt if a signal was received before."""
        self._open = True
        try:
            self.check()
            yield
        finally:
            self._open = False

    def note(self, number: int, frame: FrameType | None = None) -> None:
        """The signal handler: records the signal."""
        if number == signal.SIGHUP:
            _leave_a_closed_terminal()
        self.number = self.number or number
        self.times += 1
        if self._open:
            self._open = False  # a second signal must not interrupt what the first one's handler saves
            raise KeyboardInterrupt


def _leave_a_closed_terminal() -> None:
    """Redirects standard output and standard error to /dev/null if their terminal is gone: a write to it would fail and
    end the program before its files are written."""
    for stream in (1, 2):
        try:
            termios.tcgetattr(stream)
        except termios.error as error:
            if error.args[0] in (errno.EIO, errno.ENXIO):  # else it is a file or a pipe
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream)
                os.close(nowhere)


@contextmanager
def stopping() -> Iterator[Interrupt]:
    """Inside this context the process records `SIGNALS` instead of being ended by them. Signals that the process was
    started to ignore, as under nohup, stay ignored."""
    stop, before = Interrupt(), dict[signal.Signals, Any]()
    for each in SIGNALS:
        if signal.getsignal(each) is not signal.SIG_IGN:
            before[each] = signal.signal(each, stop.note)
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
