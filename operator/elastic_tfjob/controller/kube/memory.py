"""What finished jobs taught, kept beyond their deletion: in memory, and in a ConfigMap of the operator's own namespace.

The ConfigMap is a convenience: without it, or where it cannot be read, the operator knows what the TFJobs that are
still there teach.
"""

import asyncio
from typing import Final

import structlog

from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.errors import ApiError, NotFound
from elastic_tfjob.controller.kube.supervise import excerpt
from elastic_tfjob.controller.objects.lessons import read_history, write_history
from elastic_tfjob.speed.history import History, Lesson

__all__ = ["HISTORY_NAME", "Memory"]

log = structlog.get_logger(__name__)

HISTORY_NAME: Final = "elastic-tfjob-history"
"""The ConfigMap's name."""
_KEY: Final = "history.json"
# A job's lesson is written so long after it ended, with those of others that ended meanwhile.
_WRITE_S: Final = 60.0


class Memory:
    """`history` is what is known now. `keep` follows it with the ConfigMap, while this replica leads."""

    def __init__(self, api: ApiClient | None = None, namespace: str = "") -> None:
        self.history = History()
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/configmaps/{HISTORY_NAME}"
        self._written = self.history

    def learn(self, scope: str, name: str, lesson: Lesson) -> None:
        """Take in what a finished job teaches."""
        self.history = self.history.learned(scope, name, lesson)

    async def keep(self) -> None:
        """Read what was kept, and write what is new, for ever."""
        if self._api is None:
            await asyncio.Event().wait()
            return
        while not await self._read(self._api):
            await asyncio.sleep(_WRITE_S)
        while True:
            await asyncio.sleep(_WRITE_S)
            await self._write(self._api)

    async def _read(self, api: ApiClient) -> bool:
        """Whether it is known what was kept."""
        try:
            found = await api.get(self._path)
        except NotFound:
            log.info("no ConfigMap keeps what finished jobs taught", config_map=HISTORY_NAME)
            return True
        except ApiError as error:
            log.warning("history not read", config_map=HISTORY_NAME, error=excerpt(error))
            return False
        kept = read_history(str((found.get("data") or {}).get(_KEY, "{}")))
        learned, self._written = self.history, kept
        for scope, name, past in learned.items():
            for lesson in past.lessons:
                kept = kept.learned(scope, name, lesson)
        self.history = kept
        return True

    async def _write(self, api: ApiClient) -> None:
        history = self.history
        if history == self._written:
            return
        try:
            await api.patch(self._path, {"data": {_KEY: await asyncio.to_thread(write_history, history)}})
        except NotFound:
            self._written = history  # nobody wants it kept
        except ApiError as error:
            log.warning("history not written", config_map=HISTORY_NAME, error=excerpt(error))
        else:
            self._written = history
