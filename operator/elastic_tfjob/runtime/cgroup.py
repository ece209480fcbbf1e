"""CPU and memory of this container, read from its control group (cgroup versions 1 and 2)."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

ROOT = Path("/sys/fs/cgroup")


def usage(root: Path = ROOT) -> dict[str, Any]:
    """CPU seconds used and throttled, the limit in cores; bytes of memory in use (without caches that the kernel can
    drop at once), anonymous, held (which the kernel cannot take back, so that it kills beyond the limit), and the
    limit; processes that the kernel has killed for memory. A value that the kernel does not report is None."""
    return (
        _version_2(root) if (root / "cgroup.controllers").exists() or (root / "cpu.stat").exists() else _version_1(root)
    )


def held_bytes(root: Path = ROOT) -> int | None:
    """Bytes of memory that the kernel cannot take back; None if it does not report them."""
    if (root / "cgroup.controllers").exists() or (root / "cpu.stat").exists():
        return _sum(_table(root / "memory.stat"), "anon", "shmem", "slab_unreclaimable", "kernel_stack", "pagetables")
    return _sum(_table(root / "memory" / "memory.stat"), "total_rss", "total_shmem")


class Cores:
    """Cores that the container uses, over its last few samples."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, float]] = []  # monotonic time, CPU seconds used

    def add(self, now_s: float, used_s: float | None) -> None:
        """Add a sample of the CPU seconds used so far; None is left out."""
        if used_s is not None:
            self._samples = [*self._samples[-5:], (now_s, used_s)]

    def used(self) -> float | None:
        """None while there is only one sample."""
        if not self._samples:
            return None
        (first_s, before_s), (last_s, after_s) = self._samples[0], self._samples[-1]
        return (after_s - before_s) / (last_s - first_s) if last_s > first_s else None


def _version_2(root: Path) -> dict[str, Any]:
    cpu, memory = _table(root / "cpu.stat"), _table(root / "memory.stat")
    quota = _text(root / "cpu.max").split()
    limit = int(quota[0]) / int(quota[1]) if len(quota) == 2 and quota[0].isdigit() else None
    return {
        "usage_s": _times(cpu.get("usage_usec"), 1e-6),
        "throttled_s": _times(cpu.get("throttled_usec"), 1e-6),
        "limit_cores": limit,
        "used_bytes": _without(_number(root / "memory.current"), memory.get("inactive_file")),
        "anonymous_bytes": memory.get("anon"),
        "held_bytes": held_bytes(root),
        "kills": _table(root / "memory.events").get("oom_kill"),
        "limit_bytes": _number(root / "memory.max"),
    }


def _version_1(root: Path) -> dict[str, Any]:
    cpu, memory = _table(root / "cpu" / "cpu.stat"), _table(root / "memory" / "memory.stat")
    quota, period = _number(root / "cpu" / "cpu.cfs_quota_us"), _number(root / "cpu" / "cpu.cfs_period_us")
    limit = _number(root / "memory" / "memory.limit_in_bytes")
    return {
        "usage_s": _times(_number(root / "cpuacct" / "cpuacct.usage"), 1e-9),
        "throttled_s": _times(cpu.get("throttled_time"), 1e-9),
        "limit_cores": quota / period if quota and period and quota > 0 else None,
        "used_bytes": _without(_number(root / "memory" / "memory.usage_in_bytes"), memory.get("total_inactive_file")),
        "anonymous_bytes": memory.get("total_rss"),
        "held_bytes": held_bytes(root),
        "kills": _table(root / "memory" / "memory.oom_control").get("oom_kill"),
        "limit_bytes": limit
        if limit and limit < 1 << 60
        else None,  # version 1 reports "no limit" as a very large number
    }


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    with contextlib.suppress(ValueError):
        return int(_text(path))
    return None


def _table(path: Path) -> dict[str, int]:
    found = {}
    for line in _text(path).splitlines():
        name, _, value = line.partition(" ")
        if value.strip().isdigit():
            found[name] = int(value)
    return found


def _sum(table: dict[str, int], first: str, *more: str) -> int | None:
    """None where even the first is missing."""
    return table[first] + sum(table.get(name, 0) for name in more) if first in table else None


def _times(value: int | None, unit: float) -> float | None:
    return None if value is None else value * unit


def _without(value: int | None, part: int | None) -> int | None:
    return None if value is None else value - min(part or 0, value)
