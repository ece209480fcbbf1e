"""How the container's memory use goes on: its highest value and its growth over the last minutes, and kernel kills."""

from __future__ import annotations

from collections import deque
from typing import Any, Callable

WINDOW_S = 180.0
_INTERVAL_S = 1.0
"""Seconds between two samples."""
_FEWEST = 6
"""Samples from which a growth is told."""
_LATELY_S = 9.0
"""Seconds of the growth of late, which is told apart: it follows a burst at once, and chance, too."""
_BEGUN_S = 20.0
"""Seconds that a program needs to load its libraries; their memory is no growth."""
_NEWS_BYTES = 16 << 20
"""Growth since the last report that is reported at once."""


class MemoryTrend:
    """Samples of the memory that the kernel cannot take back (bytes), as `read` tells it, on the monotonic clock."""

    def __init__(self, read: Callable[[], int | None]) -> None:
        self._read = read
        self._samples: deque[tuple[float, int]] = deque()
        self._peak: int | None = None
        self._due_at_s = 0.0
        self._kills = 0
        self._killed_at: float | None = None
        self._reported_bytes = 0
        self.is_news = False
        """Whether the use has grown much since the last report."""

    def sample(self, now_s: float, began_s: float) -> None:
        """Add a sample if it is time for one. `began_s`: when the only program began; now where there are two, or none.
        The memory of a program that begins is no growth."""
        if now_s < self._due_at_s:
            return
        self._due_at_s = now_s + _INTERVAL_S
        if (used_bytes := self._read()) is None:
            return
        self._peak = max(self._peak or 0, used_bytes)
        if now_s - began_s < _BEGUN_S:
            self._samples.clear()
        if now_s > began_s:
            self._samples.append((now_s, used_bytes))
        while self._samples and self._samples[0][0] < now_s - WINDOW_S:
            self._samples.popleft()
        self.is_news = bool(self._samples) and used_bytes > self._reported_bytes + _NEWS_BYTES

    def report(self, kills: int | None, unix_s: float) -> dict[str, Any]:
        """`peak_bytes` since the container started; `highest_bytes`, and the growth in bytes per second, never below
        0, of the last WINDOW_S and of late; the `kills` and the Unix time of the last one. The kernel has killed so
        many processes of this container for memory; None where it does not count them."""
        # Before the first report the launcher has started no program.
        if kills is not None and kills > self._kills:
            self._kills, self._killed_at = kills, unix_s
        samples, self.is_news = list(self._samples), False
        self._reported_bytes = samples[-1][1] if samples else self._reported_bytes
        since_s = samples[-1][0] - _LATELY_S if samples else 0.0
        return {
            "peak_bytes": self._peak,
            "highest_bytes": max((used for _, used in samples), default=None),
            "growth_bytes_per_s": _growth(samples),
            "growth_of_late_bytes_per_s": _rise([each for each in samples if each[0] >= since_s]),
            "kills": kills,
            "killed_at": self._killed_at,
        }


def _growth(samples: list[tuple[float, int]]) -> float | None:
    """The mean of the second half less that of the first, by the time between them."""
    if len(samples) < _FEWEST:
        return None
    half = len(samples) // 2
    (first_s, first), (second_s, second) = _mean(samples[:half]), _mean(samples[half:])
    return max(0.0, (second - first) / (second_s - first_s))


def _rise(samples: list[tuple[float, int]]) -> float | None:
    """The last sample less the first, by the time between them: of a jump it is no more than the jump."""
    if len(samples) < _FEWEST:
        return None
    (first_s, first), (last_s, last) = samples[0], samples[-1]
    return max(0.0, (last - first) / (last_s - first_s))


def _mean(samples: list[tuple[float, int]]) -> tuple[float, float]:
    return sum(at for at, _ in samples) / len(samples), sum(each for _, each in samples) / len(samples)
