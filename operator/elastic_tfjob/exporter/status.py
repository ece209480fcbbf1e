"""The answer to /status, from the files of launcher and program.

The user's container writes these files to a volume that both containers share, so they are not trusted: a value of the
wrong type or size counts as missing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elastic_tfjob.runtime import protocol

__all__ = ["UntrustedFields", "read", "status"]

READ_BYTES = 64 << 10
"""A file has about 2 KiB; one above this limit is ignored."""
TEXT_CHARACTERS, LIST_NUMBERS = 2_000, 100
"""A longer text is cut; a longer list is ignored."""
_LARGEST_INTEGER = 2**63 - 1
_LARGEST_FLOAT = sys.float_info.max


class UntrustedFields:
    """Typed access to a JSON object. A missing value, or one of another type, is None."""

    def __init__(self, raw: object) -> None:
        self.raw: Mapping[str, Any] = raw if isinstance(raw, dict) else {}

    def __bool__(self) -> bool:
        return bool(self.raw)

    def number(self, name: str) -> float | None:
        value = self.raw.get(name)
        return value if _is_number(value) else None

    def measured(self, name: str) -> float | None:
        """A number of any size that a float can hold: a diverging loss is one until it is infinite."""
        return float(self.raw[name]) if _is_number(self.raw.get(name), _LARGEST_FLOAT) else None

    def integer(self, name: str) -> int | None:
        value = self.number(name)
        return None if value is None else int(value)

    def text(self, name: str) -> str:
        value = self.raw.get(name)
        return value[:TEXT_CHARACTERS] if isinstance(value, str) else ""

    def boolean(self, name: str) -> bool | None:
        value = self.raw.get(name)
        return value if isinstance(value, bool) else None

    def within(self, name: str) -> UntrustedFields:
        return UntrustedFields(self.raw.get(name))

    def numbers(self, name: str) -> list[float]:
        values = self.raw.get(name)
        if not isinstance(values, list) or len(values) > LIST_NUMBERS:
            return []
        return [value if _is_number(value) else 0.0 for value in values]


def _is_number(value: Any, most: float = _LARGEST_INTEGER) -> bool:
    """Whether a value is a number of at most `most`, by default the largest integer of 64 bits."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -most <= value <= most


def read(directory: Path) -> tuple[UntrustedFields, UntrustedFields]:
    """The contents of launcher.json and progress.json."""
    launcher, progress = (
        protocol.read(directory / name, READ_BYTES) for name in (protocol.LAUNCHER, protocol.PROGRESS)
    )
    return UntrustedFields(launcher), UntrustedFields(progress)


def status(directory: Path) -> dict[str, Any]:
    """The answer to `/status`: see docs/elastic.md. `generation` is the running one; the speed and downtime of a
    previous generation are left out."""
    launcher, progress = read(directory)
    generation = launcher.integer("generation") if launcher else progress.integer("generation")
    current = progress if progress.integer("generation") == generation else UntrustedFields(None)
    cgroup, memory, prepared, switch, save_before_stop, checkpoint = (
        launcher.within("cgroup"),
        launcher.within("cgroup").within("trend"),
        launcher.within("prepared"),
        launcher.within("switch"),
        launcher.within("saved"),
        progress.within("checkpoint"),
    )
    modes, start, preparation = launcher.raw.get("modes"), launcher.within("start"), launcher.within("preparation")
    hand_over = preparation.within("hand_over")
    return {
        "at": time.time(),
        "generation": generation,
        "launcher": "modes" in launcher.raw,
        "modes": [mode for mode in protocol.MODES if mode in modes] if isinstance(modes, list) else [],
        "not_live": launcher.text("not_live") or None,
        "hook": launcher.boolean("hook") if launcher else bool(progress) or None,
        "start": {"way": way if (way := start.text("way")) in ("fork", "exec") else None, "why": start.text("why")}
        if start
        else None,
        "preparation": {
            "generation": preparation.integer("generation"),
            "way": way if (way := preparation.text("way")) in ("fork", "exec") else None,
            "seconds": preparation.number("seconds"),
            "cpu_s": preparation.number("cpu_s"),
            "in_memory": hand_over.boolean("able") if hand_over else None,
            "why_files": hand_over.text("why"),
        }
        if preparation
        else None,
        "prepared": {
            "generation": prepared.integer("generation"),
            **{name: prepared.text(name) for name in ("mode", "state", "why")},
            "checkpoint": prepared.integer("checkpoint"),
        }
        if prepared
        else None,
        "switch": {
            "generation": switch.integer("generation"),
            "state": switch.text("state"),
            "why": switch.text("why"),
            "at": switch.number("at"),
            "in_memory": switch.boolean("in_memory") or False,
        }
        if switch
        else None,
        "handing_over": launcher.boolean("handing_over") or False,
        "saved": {
            "request": save_before_stop.integer("request"),
            "state": save_before_stop.text("state"),
            "why": save_before_stop.text("why"),
            "step": save_before_stop.integer("step"),
        }
        if save_before_stop
        else None,
        "step": progress.integer("step"),
        "total_steps": progress.integer("total_steps"),
        "steps_per_s": current.number("steps_per_s"),
        "examples_per_s": current.number("examples_per_s"),
        "loss": progress.measured("loss"),
        "loss_problem": problem if (problem := progress.text("loss_problem")) in ("nan", "inf") else None,
        "first_step_at": current.number("first_step_at"),
        "last_step_at": progress.number("last_step_at"),
        "downtime_s": current.number("downtime_s"),
        "lost_steps": current.integer("lost_steps"),
        "resumed_step": current.integer("resumed_step"),
        "save_error": progress.text("save_error") or None,
        "not_restored": current.text("not_restored") or None,
        "checkpoint": {
            "step": checkpoint.integer("step"),
            "at": checkpoint.number("at"),
            "seconds": checkpoint.number("seconds"),
            "bytes": checkpoint.integer("bytes"),
            "path": checkpoint.text("path"),
        }
        if checkpoint
        else None,
        "cpu": {
            "at": cgroup.number("at"),
            "usage_s": cgroup.number("usage_s"),
            "throttled_s": cgroup.number("throttled_s"),
            "limit_cores": cgroup.number("limit_cores"),
            "use_cores": launcher.number("use_cores"),
        },
        "memory": {
            "used_bytes": cgroup.integer("used_bytes"),
            "limit_bytes": cgroup.integer("limit_bytes"),
            "held_bytes": cgroup.integer("held_bytes"),
            "peak_bytes": memory.integer("peak_bytes"),
            "highest_bytes": memory.integer("highest_bytes"),
            "growth_bytes_per_s": memory.number("growth_bytes_per_s"),
            "growth_of_late_bytes_per_s": memory.number("growth_of_late_bytes_per_s"),
            "kills": memory.integer("kills"),
            "killed_at": memory.number("killed_at"),
        },
    }
