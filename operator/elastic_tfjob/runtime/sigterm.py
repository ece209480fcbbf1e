"""SIGTERM in a program with threads.

The system may give a signal to any thread, and Python runs the handler in the main thread alone. A main thread that
waits for a lock or a socket is not woken then, and the program seems to ignore the signal. What Python writes to
`signal.set_wakeup_fd` wakes it, whichever thread got the signal.
"""

from __future__ import annotations

import os
import select
import signal


class Sigterm:
    """From here on, SIGTERM ends nothing: `wait` tells of it, in any thread. It is made in the main thread."""

    def __init__(self) -> None:
        self._told, teller = os.pipe()
        os.set_blocking(teller, False)
        signal.signal(signal.SIGTERM, lambda *_: None)  # Python writes for signals that have a handler
        signal.set_wakeup_fd(teller, warn_on_full_buffer=False)

    def wait(self, seconds: float | None = None) -> bool:
        """Whether SIGTERM came within this time (None: wait for ever). May be False earlier: another signal came."""
        if not select.select([self._told], [], [], seconds)[0]:
            return False
        return signal.SIGTERM in os.read(self._told, 4096)
