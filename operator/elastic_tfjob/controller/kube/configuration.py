"""The configuration that holds now: read from a ConfigMap, followed without a restart, never left for a wrong one."""

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
from elastic_tfjob.scheduling.contract import passed_over, refusals
from elastic_tfjob.speed.history import History, Lesson

__all__ = ["HISTORY_NAME", "LearnedHistory", "LiveConfiguration"]

log = structlog.get_logger(__name__)

# So that the event has room for what holds instead.
_PROBLEM: Final = 800


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A content of the ConfigMap that is wrong, and what is wrong with it."""

    version: int
    at: str
    problem: str


class LiveConfiguration:
    """`current` is the last good content of the ConfigMap `place` (NAMESPACE/NAME), or the defaults where there is no
    ConfigMap. `changed` is called with each new one. `wants`: by pool, how many nodes the ConfigMap's annotation says
    that it wants, of which `wanted` is called with each change. `one_namespace`: the operator sees no other."""

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
        # What decided: the version of the ConfigMap that was taken, and since when; and the newest one, if refused.
        self._version: int | None = None
        self._since = _now()
        self._refusal: _Refusal | None = None
        self._own: OwnObject | None = None
        self._last: Event | None = None
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
            log.warning("the ConfigMap is gone: defaults hold", config_map="/".join(key))
            self._text = self._version = self._refusal = None
            self._take(Configuration())
            self._tell(self._decides())
            return
        if config_map.text is None:
            self._refuse(config_map, "the key config.yaml is missing")
        elif config_map.text != self._text:
            try:
                read = parse_configuration(config_map.text)
                _must_be_met(read)
                if self._one_namespace and read.pools:
                    raise ValueError("pools: an operator of one namespace (--namespace) lends no nodes")
            except ValueError as error:
                self._refuse(config_map, str(error))
            except Exception as error:  # what YAML can do to its parser has no end
                self._refuse(config_map, excerpt(error))
            else:
                self._take(read)
                self._text, self._version, self._refusal = config_map.text, config_map.version, None
                self._tell(self._decides())
        elif self._refusal is not None:  # an edit that takes a wrong one back
            self._refusal = None
            self._tell(self._decides())

    def known(self, own: OwnObject) -> None:
        """The operator's own object is found: it gets the newest event, and those that follow."""
        self._own = own
        if self._last is not None:
            self._recorder.record(own, self._last)

    def status(self) -> dict[str, Any]:
        """Which profile decides now, why, and what is wrong with the newest content where that is refused."""
        refusal = self._refusal
        return {
            "profile": self.current.profile,
            "scope": self.current.scope,
            "since": self._since,
            "why": self._why(),
            "configMap": self._place or None,
            "resourceVersion": None if self._version is None else str(self._version),
            "refused": refusal
            and {"resourceVersion": str(refusal.version), "at": refusal.at, "error": refusal.problem},
        }

    def _why(self) -> str:
        if self.informer is None:
            return "the default: no ConfigMap is named (--config-map)"
        if not self.informer.synced.is_set():
            return f"the default: ConfigMap {self._place} has not been read yet"
        if self._version is not None:
            newer = "; its newest content is refused" if self._refusal is not None else ""
            return f"ConfigMap {self._place}, resourceVersion {self._version}{newer}"
        if self._refusal is not None:
            return f"the default: ConfigMap {self._place} is refused, and nothing valid was read before"
        return f"the default: there is no ConfigMap {self._place}"

    def _decides(self) -> Event:
        about = f"ConfigMap {self._place}" + ("" if self._version is None else f", resourceVersion {self._version}")
        why = about if self._version is not None else f"the default: {about} is gone"
        message = f"Profile {self.current.profile} decides, scope {self.current.scope}: {why}."
        return Event("Normal", "ConfigurationTaken", message)

    def _tell(self, event: Event) -> None:
        self._last = event
        if self._own is not None:
            self._recorder.record(self._own, event)

    def _read_wants(self, config_map: ConfigMap | None) -> None:
        """What outside says of pools' demand. What is wrong there is told, and the rest of it holds."""
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
                log.info("default passed over", profile=profile, parameter=parameter, why=why)
        self._changed(configuration)

    def _refuse(self, found: ConfigMap, problem: str) -> None:
        problem = problem[:_PROBLEM]
        stays = f"profile {self.current.profile} as before"
        log.error("wrong configuration", config_map=f"{found.namespace}/{found.name}", problem=problem, stays=stays)
        self._refusal = _Refusal(found.version, _now(), problem)
        message = f"config.yaml: {problem}. It stays {stays}."
        self._recorder.record(found, Event("Warning", "InvalidConfiguration", message))
        self._tell(Event("Warning", "InvalidConfiguration", f"ConfigMap {self._place}: {message}"))


def _now() -> str:
    return format_time(datetime.now(UTC))


def _must_be_met(configuration: Configuration) -> None:
    """Raises ValueError for what no live cluster does."""
    said = {configuration.profile: {}, **configuration.profiles}
    problems = [problem for name, settings in said.items() for problem in refusals(name, settings)]
    if problems:
        raise ValueError("; ".join(problems))


# -- What finished jobs taught, kept beyond their deletion -------------------------------------------------------------
# In memory, and in a ConfigMap of the operator's own namespace.
#
# The ConfigMap is a convenience: without it, or where it cannot be read, the operator knows what the TFJobs that are
# still there teach.

HISTORY_NAME: Final = "elastic-tfjob-history"
"""The ConfigMap's name."""
_KEY: Final = "history.json"
# A job's lesson is written so long after it ended, with those of others that ended meanwhile.
_WRITE_S: Final = 60.0


class LearnedHistory:
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
