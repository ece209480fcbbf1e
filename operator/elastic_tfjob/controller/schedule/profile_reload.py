"""Builds the configured profile, and has its steps reread a file that has changed."""

import asyncio
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from elastic_tfjob.controller.kube.startup import on_volume
from elastic_tfjob.controller.kube.supervise import excerpt
from elastic_tfjob.controller.model.settings import Configuration
from elastic_tfjob.scheduling.profile import Profile, Reads
from elastic_tfjob.scheduling.profile_errors import blamed_on
from elastic_tfjob.scheduling.profiles import build

__all__ = ["ProfileReload"]

log = structlog.get_logger(__name__)

CHECK_INTERVAL_S: Final = 5.0
"""Seconds between two checks of the files."""
WAIT_S: Final = 1.0
"""Seconds that the first round after a check waits for the files."""

Stamps = tuple[tuple[int, int, int] | None, ...]


class ProfileReload:
    """The present profile. The loop calls `follow` before a round, and `of` in it."""

    def __init__(self) -> None:
        self._built: tuple[Configuration, Profile] | None = None
        self._stamps: Stamps | None = None
        self._reading: tuple[Profile, asyncio.Future[Stamps]] | None = None
        self._checked_at = float("-inf")

    def of(self, configuration: Configuration) -> Profile:
        """The profile of this configuration. Reads no file: `follow` has read them. Raises ProfileError if it cannot be
        built."""
        if self._built is None or self._built[0] is not configuration:
            self._built, self._stamps = (configuration, _live(configuration)), None
            for step in self._built[1].steps:
                if isinstance(step, Reads):
                    step.later()
        return self._built[1]

    async def follow(self, configuration: Configuration) -> bool:
        """Checks the files that the profile reads. Returns True if one has changed and was reread, so that the results
        of earlier rounds are obsolete. A volume that hangs delays one round by WAIT_S at most, and the profile keeps
        its last content."""
        files = configuration.parameters.files
        if not files:
            return False
        profile, before = self.of(configuration), self._stamps
        if self._reading is None:
            if before is not None and time.monotonic() - self._checked_at < CHECK_INTERVAL_S:
                return False
            self._checked_at = time.monotonic()
            self._reading = profile, on_volume(partial(_read, profile, files, before))
            await asyncio.wait([self._reading[1]], timeout=WAIT_S)
        read, future = self._reading
        if not future.done():
            return False
        self._reading = None
        if (error := future.exception()) is not None:
            log.warning("files of the profile not read", files=files, error=excerpt(error))
            return False
        if read is not profile or future.result() == before:
            return False
        self._stamps = future.result()
        log.info("read the files of the profile", profile=configuration.profile, files=files)
        return before is not None


def _live(configuration: Configuration) -> Profile:
    # With `repack` a resize could move running replicas. A move is a rescale, and a move of the chief pauses for a
    # checkpoint: a resize must not cost that.
    with blamed_on(configuration.profile):
        return replace(build(configuration.profile, configuration.parameters), repack=False)


def _read(profile: Profile, files: tuple[str, ...], before: Stamps | None) -> Stamps:
    """Returns the files' stamps. If they differ from `before`, the profile's steps read the files."""
    stamps = tuple(map(_stamp, files))
    if stamps != before:
        for step in profile.steps:
            if isinstance(step, Reads):
                step.read()
    return stamps


def _stamp(file: str) -> tuple[int, int, int] | None:
    """A value that changes with the file's content; None: the file does not exist."""
    try:
        stat = Path(file).stat()
    except (OSError, ValueError):
        return None
    return stat.st_mtime_ns, stat.st_ino, stat.st_size
