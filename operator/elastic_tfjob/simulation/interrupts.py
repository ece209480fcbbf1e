"""Ctrl-C, a time limit's SIGTERM and a closed terminal end a long command early, with what is known so far."""

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
    """Whether a signal has asked this process to stop. Without `stopping` around it: never."""

    number: int = 0
    """The first signal that came; 0: none."""
    times: int = 0
    _open: bool = False

    @property
    def exit_status(self) -> int:
        """What a shell reports for a program that this signal ended: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + (self.number or signal.SIGINT)

    def check(self) -> None:
        """Raises KeyboardInterrupt if a signal has come."""
        if self.number:
            raise KeyboardInterrupt

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Inside, a signal raises KeyboardInterrupt at once; elsewhere it is noted. Raises it, too, where one has come
        before."""
        self._open = True
        try:
            self.check()
            yield
        finally:
            self._open = False

    def note(self, number: int, frame: FrameType | None = None) -> None:
        """A signal has come (the handler)."""
        if number == signal.SIGHUP:
            _leave_a_closed_terminal()
        self.number = self.number or number
        self.times += 1
        if self._open:
            self._open = False  # a second signal must not interrupt what the first one's handler saves
            raise KeyboardInterrupt


def _leave_a_closed_terminal() -> None:
    """Sends what is still printed nowhere: each write to a terminal that is gone fails, and would end the program
    before its files are written."""
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
    """Notes `SIGNALS` instead of being ended by them. A signal that this process was started to ignore, as under
    nohup, stays ignored."""
    stop, before = Interrupt(), dict[signal.Signals, Any]()
    for each in SIGNALS:
        if signal.getsignal(each) is not signal.SIG_IGN:
            before[each] = signal.signal(each, stop.note)
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
