"""The chief moves to another pod, where its next program is prepared.

The launcher of the old pod has its program save, and *leaves*: from then on it runs no program, also after a restart of
its container. The launcher of the new pod asks the old pod's exporter about that several times a second, and opens the
barrier of its own program. If it cannot reach the exporter, the operator's next command does the same a second later.
"""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

from elastic_tfjob.runtime import protocol
from elastic_tfjob.runtime.protocol import LauncherCommand

ANSWER_S, RETRY_S = 0.3, 1.0
"""The time that the exporter has to answer, and the wait after it has not."""
_LEFT = "left"


def write_left(path: Path, content: dict[str, Any]) -> None:
    """Write `committed.json` of a launcher that leaves. Raises OSError; then it has not left."""
    protocol.write(path, {**content, _LEFT: True})


def has_left(committed: dict[str, Any] | None) -> bool:
    """Whether a launcher with this `committed.json` has left."""
    return committed is not None and committed.get(_LEFT) is True


class OldChief:
    """The chief's pod before: its exporter's `address`, `host:port`. `progress`: how far its program came, as far as it
    is known: `step`, `last_step_at` and `checkpoint` (the step of its last one)."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.progress: dict[str, Any] = {}
        self._next_s = 0.0

    def has_left(self, generation: int, now_s: float) -> bool:
        """Whether it has left for this generation; False if it does not answer. `now_s`: monotonic time."""
        if now_s < self._next_s:
            return False
        status = ask(self.address)
        if status is None:
            self._next_s = time.monotonic() + RETRY_S
            return False
        self.progress = {"step": status.get("step"), "last_step_at": status.get("last_step_at")}
        self.progress["checkpoint"] = _within(status, "checkpoint").get("step")
        switch = _within(status, "switch")
        return (switch.get("generation"), switch.get("state")) == (generation, "committed")


def progress_of(command: LauncherCommand, old: OldChief | None = None) -> dict[str, Any]:
    """How far the chief came in its pod before, by that pod's last answer and the operator's command; empty if the
    chief has not moved."""
    progress = dict(old.progress) if old is not None else {}
    seen = progress.get("checkpoint")
    if command.saved:
        progress["checkpoint"] = max(command.saved, seen if isinstance(seen, int) else 0)
    return progress


def still_needed(committed: dict[str, Any], progress: dict[str, Any] | None) -> dict[str, Any]:
    """How far the chief came in its pod before, for a container that restarts before its program has begun there; empty
    after that, or if the chief has not moved."""
    found = committed.get("old_chief")
    begun = progress is not None and progress.get("generation") == committed["generation"]
    return found if isinstance(found, dict) and not begun else {}


def ask(address: str) -> dict[str, Any] | None:
    """The exporter's `/status`; None if there is no valid answer within ANSWER_S. Sockets have a limit for all of it,
    which http.client has not: the launcher does nothing else meanwhile."""
    until_s = time.monotonic() + ANSWER_S
    host, _, port = address.rpartition(":")
    text = bytearray()
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S) as connection:
            connection.sendall(b"GET /status HTTP/1.0\r\n\r\n")
            while len(text) <= protocol.READ_LIMIT:
                connection.settimeout(max(until_s - time.monotonic(), 0.001))
                if not (data := connection.recv(1 << 16)):
                    break
                text += data
        head, _, body = bytes(text).partition(b"\r\n\r\n")
        found = json.loads(body) if head.split(b" ")[1:2] == [b"200"] else None
    except (OSError, ValueError, OverflowError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _within(raw: dict[str, Any], name: str) -> dict[str, Any]:
    found = raw.get(name)
    return found if isinstance(found, dict) else {}
