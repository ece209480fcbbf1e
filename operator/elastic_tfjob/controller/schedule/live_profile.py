"""The profile that decides now: that of the configuration, made anew where a file that it reads has changed."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from elastic_tfjob.controller.objects.settings import Configuration
from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.profiles import build

__all__ = ["LiveProfile"]

log = structlog.get_logger(__name__)

LOOK_S: Final = 5.0
"""Files are looked at so often."""

Stamps = tuple[tuple[int, int, int] | None, ...]


class LiveProfile:
    """`follow` before a round, then `of` in it."""

    def __init__(self) -> None:
        self._made: tuple[Configuration, Profile] | None = None
        self._stamps: Stamps = ()
        self._looked_at = float("-inf")

    def of(self, configuration: Configuration) -> Profile:
        """The profile of this configuration."""
        if self._made is None or self._made[0] is not configuration:
            self._made = configuration, _made(configuration)
        return self._made[1]

    async def follow(self, configuration: Configuration) -> bool:
        """Look at the files that the profile reads; whether one of them is another than before, so that what was kept
        of earlier rounds is of no use. Files may be on a slow disk, so nothing waits for them but this."""
        files = configuration.parameters.files
        if not files or time.monotonic() - self._looked_at < LOOK_S:
            return False
        self._looked_at = time.monotonic()
        stamps = await asyncio.to_thread(_stamps, files)
        if stamps == self._stamps:
            return False
        first, self._stamps = not self._stamps, stamps
        self._made = configuration, await asyncio.to_thread(_made, configuration)
        log.info("read what the profile goes by", profile=configuration.profile, files=files)
        return not first


def _made(configuration: Configuration) -> Profile:
    # A move is a rescale, and one of the chief makes all pods anew: a change of size is not to cost that.
    return replace(build(configuration.profile, configuration.parameters), repack=False)


def _stamps(files: tuple[str, ...]) -> Stamps:
    """What tells a file's content from another; None for one that is not there."""
    found: list[tuple[int, int, int] | None] = []
    for each in files:
        try:
            stat = Path(each).stat()
        except (OSError, ValueError):
            found.append(None)
        else:
            found.append((stat.st_mtime_ns, stat.st_ino, stat.st_size))
    return tuple(found)
