"""Whether the profile in use fails for all jobs: logged once per change, and reported as an event and in `/status`."""

from collections.abc import Callable
from typing import Final

import structlog

from elastic_tfjob.controller.kube.supervise import trace
from elastic_tfjob.scheduling.profile_errors import ProfileError

__all__ = ["ProfileHealth"]

log = structlog.get_logger(__name__)

_MOST: Final = 100


class ProfileHealth:
    """`report` is called with the words of the failure when the profile fails, and with None when it works again."""

    def __init__(self, report: Callable[[str | None], None]) -> None:
        self._report = report
        self._failing: str | None = None
        # The errors that are logged already, by type and line: their messages may differ from round to round.
        self._logged: set[tuple[str, str]] = set()

    def raised(self, error: ProfileError) -> None:
        """Logs an error of the profile with its traceback, once until the profile works for all jobs."""
        key = error.what.partition(":")[0], error.place
        if key in self._logged or len(self._logged) >= _MOST:
            return
        self._logged.add(key)
        cause = error.__cause__ or error
        log.warning("the profile fails", profile=error.subject, error=error.problem, trace=trace(cause))

    def failed(self, error: ProfileError) -> None:
        """Notes that the profile failed for all jobs."""
        self.raised(error)
        if self._failing != str(error):
            self._failing = str(error)
            self._report(self._failing)

    def worked(self, *, for_all: bool) -> None:
        """Notes that the profile has decided for jobs; `for_all`: it failed for none."""
        if for_all:
            self._logged.clear()
        if self._failing is not None:
            log.info("the profile works again")
            self._failing = None
            self._report(None)

    def reset(self) -> None:
        """Forgets the failures, since the configuration has changed."""
        self._logged.clear()
        if self._failing is not None:
            self._failing = None
            self._report(None)
