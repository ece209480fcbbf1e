"""The profile that decides now: that of the configuration, whose steps read a file anew where it has changed."""

import asyncio
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from elastic_tfjob.controller.kube.supervise import excerpt
from elastic_tfjob.controller.kube.volumes import on_volume
from elastic_tfjob.controller.objects.settings import Configuration
from elastic_tfjob.scheduling.profile import Profile, Reads
from elastic_tfjob.scheduling.profiles import build

__all__ = ["LiveProfile"]

log = structlog.get_logger(__name__)

LOOK_S: Final = 5.0
"""Files are looked at so often."""
WAIT_S: Final = 1.0
"""So long a round waits for them, when they are looked at for the first time."""

Stamps = tuple[tuple[int, int, int] | None, ...]


class LiveProfile:
    """`follow` before a round, then `of` in it."""

    def __init__(self) -> None:
        self._made: tuple[Configuration, Profile] | None = None
        self._stamps: Stamps | None = None
        self._looking: tuple[Profile, asyncio.Future[Stamps]] | None = None
        self._looked_at = float("-inf")

    def of(self, configuration: Configuration) -> Profile:
        """The profile of this configuration. It reads no file: what is in them it has from `follow`."""
        if self._made is None or self._made[0] is not configuration:
            self._made, self._stamps = (configuration, _made(configuration)), None
            for step in self._made[1].steps:
                if isinstance(step, Reads):
                    step.later()
        return self._made[1]

    async def follow(self, configuration: Configuration) -> bool:
        """Look at the files that the profile reads; whether one of them is another than before, so that what was kept
        of earlier rounds is of no use. A volume that hangs holds up nothing: what was read last holds."""
        files = configuration.parameters.files
        if not files:
            return False
        profile, before = self.of(configuration), self._stamps
        if self._looking is None:
            if before is not None and time.monotonic() - self._looked_at < LOOK_S:
                return False
            self._looked_at = time.monotonic()
            self._looking = profile, on_volume(partial(_read, profile, files, before))
            await asyncio.wait([self._looking[1]], timeout=WAIT_S)
        read, future = self._looking
        if not future.done():
            return False
        self._looking = None
        if (error := future.exception()) is not None:
            log.warning("files of the profile not read", files=files, error=excerpt(error))
            return False
        if read is not profile or future.result() == before:
            return False
        self._stamps = future.result()
        log.info("read the files of the profile", profile=configuration.profile, files=files)
        return before is not None


def _made(configuration: Configuration) -> Profile:
    # A move is a rescale, and one of the chief makes all pods anew: a change of size is not to cost that.
    return replace(build(configuration.profile, configuration.parameters), repack=False)


def _read(profile: Profile, files: tuple[str, ...], before: Stamps | None) -> Stamps:
    """Have the steps read what is another than before; what tells it from others."""
    stamps = tuple(map(_stamp, files))
    if stamps != before:
        for step in profile.steps:
            if isinstance(step, Reads):
                step.read()
    return stamps


def _stamp(file: str) -> tuple[int, int, int] | None:
    """What tells a file's content from another; None for one that is not there."""
    try:
        stat = Path(file).stat()
    except (OSError, ValueError):
        return None
    return stat.st_mtime_ns, stat.st_ino, stat.st_size
