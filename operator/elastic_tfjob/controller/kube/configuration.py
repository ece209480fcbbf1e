"""The current configuration: read from a ConfigMap, reloaded without a restart, kept if new content is invalid."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from elastic_tfjob.api.reading import few
from elastic_tfjob.controller.job.decision import Event
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.errors import ApiError, NotFound
from elastic_tfjob.controller.kube.events import EventRecorder
from elastic_tfjob.controller.kube.informer import Informer
from elastic_tfjob.controller.kube.supervise import excerpt
from elastic_tfjob.controller.model.cluster import ConfigMap, OwnObject, parse_wants
from elastic_tfjob.controller.model.job import Key
from elastic_tfjob.controller.model.lessons import read_history, write_history
from elastic_tfjob.controller.model.settings import Configuration, parse_configuration
from elastic_tfjob.controller.model.status import format_time
from elastic_tfjob.scheduling.contract import passed_over
from elastic_tfjob.speed.history import History, Lesson

__all__ = ["HISTORY_NAME", "LearnedHistory", "LiveConfiguration"]

log = structlog.get_logger(__name__)

# Maximum characters of a problem in an event, so that the event also has room for the configuration that stays.
_PROBLEM: Final = 800


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A version of the ConfigMap with invalid content, when it was read, and what is wrong."""

    version: int
    at: str
    problem: str


class LiveConfiguration:
    """Follows the configuration in the ConfigMap `place` (NAMESPACE/NAME). `current` is its last valid content, or the
    defaults if there is no ConfigMap. `changed` is called with each new configuration. `wants` has the number of nodes
    that each pool requests in the ConfigMap's annotation; `wanted` is called when it changes. `one_namespace` means
    that the operator serves a single namespace, so pools are invalid."""

    def __init__(
        self,
        api: ApiClient,
        place: str,
        recorder: EventRecorder,
        changed: Callable[[Configuration], None],
        *,
        wanted: Callable[[], None] = lambda: None,
        one_namespace: bool = False,
    ) -> None:
        self.current = Configuration()
        self.wants: Mapping[str, int] = {}
        self._wanted = wanted
        self._one_namespace = one_namespace
        self._recorder = recorder
        self._changed = changed
        self._text: str | None = None
        # The version of the ConfigMap in use, and since when; and the newest version if it is invalid.
        self._version: int | None = None
        self._since = _now()
        self._refusal: _Refusal | None = None
        self._own: OwnObject | None = None
        self._last: Event | None = None
        self._failing: str | None = None
        self._place = place
        self.informer: Informer[ConfigMap] | None = None
        if place:
            namespace, _, name = place.rpartition("/")
            self._key: Key = namespace, name
            path = f"/api/v1/namespaces/{namespace}/configmaps"
            self.informer = Informer(
                api, path, ConfigMap.parse, lambda _: None, fields=f"metadata.name={name}", touched=self._read
            )

    def _read(self, key: Key) -> None:
        assert self.informer is not None
        config_map = self.informer.one(key)
        self._read_wants(config_map)
        if config_map is None:
            log.warning("the ConfigMap was deleted: defaults apply", config_map="/".join(key))
            self._text = self._version = self._refusal = None
            self._take(Configuration())
            self._record(self._decides())
            return
        if config_map.text is None:
            self._refuse(config_map, "the key config.yaml is missing")
        elif config_map.text != self._text:
            try:
                read = parse_configuration(config_map.text)
                if self._one_namespace and read.pools:
                    raise ValueError("pools: an operator of one namespace (--namespace) cannot lend nodes")
            except ValueError as error:
                self._refuse(config_map, str(error))
            except Exception as error:  # YAML can make its parser fail in many ways
                self._refuse(config_map, excerpt(error))
            else:
                self._take(read)
                self._text, self._version, self._refusal = config_map.text, config_map.version, None
                self._record(self._decides())
        elif self._refusal is not None:  # an edit that reverts an invalid one
            self._refusal = None
            self._record(self._decides())

    def known(self, own: OwnObject) -> None:
        """Set the operator's own object. It gets the newest event now, the event of a failing profile, and all later
        events."""
        self._own = own
        if self._last is not None:
            self._recorder.record(own, self._last)
        if self._failing is not None:
            self._recorder.record(own, self._fails(self._failing))

    def profile_failing(self, error: str | None) -> None:
        """Note that the profile in use fails for all jobs, with its error; None: it works again. The ConfigMap and the
        operator's own object get one event until it works again."""
        before, self._failing = self._failing, error
        if error is None or before is not None:
            return
        event = self._fails(error)
        config_map = self.informer.one(self._key) if self.informer is not None else None
        for subject in (config_map, self._own):
            if subject is not None:
                self._recorder.record(subject, event)

    def _fails(self, error: str) -> Event:
        return Event("Warning", "ProfileFailed", f"{error[:_PROBLEM]}. Jobs keep what they have, and no job starts.")

    def status(self) -> dict[str, Any]:
        """The profile in use, why it is used, its error if it fails for all jobs, and what is wrong with the newest
        content if that is invalid. A JSON object."""
        refusal = self._refusal
        return {
            "profile": self.current.profile,
            "scope": self.current.scope,
            "since": self._since,
            "why": self._why(),
            "configMap": self._place or None,
            "resourceVersion": None if self._version is None else str(self._version),
            "failing": self._failing,
            "refused": refusal
            and {"resourceVersion": str(refusal.version), "at": refusal.at, "error": refusal.problem},
        }

    def _why(self) -> str:
        if self.informer is None:
            return "the default: no ConfigMap is named (--config-map)"
        if not self.informer.synced.is_set():
            return f"the default: ConfigMap {self._place} has not been read yet"
        if self._version is not None:
            newer = "; its newest content is invalid" if self._refusal is not None else ""
            return f"ConfigMap {self._place}, resourceVersion {self._version}{newer}"
        if self._refusal is not None:
            return f"the default: ConfigMap {self._place} is invalid, and no valid one was read before"
        return f"the default: there is no ConfigMap {self._place}"

    def _decides(self) -> Event:
        about = f"ConfigMap {self._place}" + ("" if self._version is None else f", resourceVersion {self._version}")
        why = about if self._version is not None else f"the default, because {about} was deleted"
        message = f"Profile {self.current.profile} is in use, with scope {self.current.scope}: {why}."
        return Event("Normal", "ConfigurationTaken", message)

    def _record(self, event: Event) -> None:
        self._last = event
        if self._own is not None:
            self._recorder.record(self._own, event)

    def _read_wants(self, config_map: ConfigMap | None) -> None:
        """Read the demand of pools from the annotation, which other programs write. Invalid parts get an event; the
        valid parts apply."""
        wants, problems = parse_wants(config_map.wants if config_map is not None else "")
        if config_map is not None and problems:
            message = "; ".join(few(problems))[:_PROBLEM]
            self._recorder.record(config_map, Event("Warning", "InvalidConfiguration", message))
        if wants != self.wants:
            self.wants = wants
            self._wanted()

    def _take(self, configuration: Configuration) -> None:
        if configuration == self.current:
            return
        before, self.current = self.current, configuration
        self._since = _now()
        log.info("configuration", profile=configuration.profile, scope=configuration.scope)
        if (configuration.profile, configuration.parameters) != (before.profile, before.parameters):
            profile = configuration.profile
            for parameter, why in passed_over(profile, configuration.profiles.get(profile, {})).items():
                log.info("default ignored", profile=profile, parameter=parameter, why=why)
        self._changed(configuration)

    def _refuse(self, found: ConfigMap, problem: str) -> None:
        problem = problem[:_PROBLEM]
        stays = f"profile {self.current.profile}"
        log.error("invalid configuration", config_map=f"{found.namespace}/{found.name}", problem=problem, stays=stays)
        self._refusal = _Refusal(found.version, _now(), problem)
        message = f"config.yaml: {problem}. Still in use: {stays}."
        self._recorder.record(found, Event("Warning", "InvalidConfiguration", message))
        self._record(Event("Warning", "InvalidConfiguration", f"ConfigMap {self._place}: {message}"))


def _now() -> str:
    return format_time(datetime.now(UTC))


# -- Lessons of finished jobs, kept after the jobs are deleted ---------------------------------------------------------
# They are in memory, and in a ConfigMap in the namespace of the operator's configuration.
#
# The ConfigMap is optional: without it, or if it cannot be read, the operator learns only from TFJobs that still exist.

HISTORY_NAME: Final = "elastic-tfjob-history"
"""The ConfigMap's name."""
_KEY: Final = "history.json"
# The ConfigMap is written at most once in this time, with the lessons of all jobs that have ended meanwhile.
_WRITE_S: Final = 60.0


class LearnedHistory:
    """Lessons of finished jobs. `history` has all that are known now; `keep` stores them in the ConfigMap while this
    replica leads."""

    def __init__(self, api: ApiClient | None = None, namespace: str = "") -> None:
        self.history = History()
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/configmaps/{HISTORY_NAME}"
        self._written = self.history

    def learn(self, scope: str, name: str, lesson: Lesson) -> None:
        """Add the lesson of a finished job."""
        self.history = self.history.learned(scope, name, lesson)

    async def keep(self) -> None:
        """Read the stored lessons, then write new ones without end."""
        if self._api is None:
            await asyncio.Event().wait()
            return
        while not await self._read(self._api):
            await asyncio.sleep(_WRITE_S)
        while True:
            await asyncio.sleep(_WRITE_S)
            await self._write(self._api)

    async def _read(self, api: ApiClient) -> bool:
        """Merge the stored lessons with those learned meanwhile. Returns whether the ConfigMap was read or does not
        exist."""
        try:
            found = await api.get(self._path)
        except NotFound:
            log.info("no ConfigMap for the history of finished jobs", config_map=HISTORY_NAME)
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
            self._written = history  # without a ConfigMap nothing is stored
        except ApiError as error:
            log.warning("history not written", config_map=HISTORY_NAME, error=excerpt(error))
        else:
            self._written = history
