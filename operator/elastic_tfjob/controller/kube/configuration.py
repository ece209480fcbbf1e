"""The configuration that holds now: read from a ConfigMap, followed without a restart, never left for a wrong one."""

from collections.abc import Callable, Mapping
from typing import Final

import structlog

from elastic_tfjob.api.fields import few
from elastic_tfjob.controller.job.decision import Event
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.events import Recorder
from elastic_tfjob.controller.kube.informer import Informer
from elastic_tfjob.controller.kube.supervise import excerpt
from elastic_tfjob.controller.objects.cluster import ConfigMap
from elastic_tfjob.controller.objects.loan import parse_wants
from elastic_tfjob.controller.objects.parsing import Key
from elastic_tfjob.controller.objects.settings import Configuration, parse_configuration
from elastic_tfjob.scheduling.unmet import passed_over, refusals

__all__ = ["LiveConfiguration"]

log = structlog.get_logger(__name__)

# So that the event has room for what holds instead.
_PROBLEM: Final = 800


class LiveConfiguration:
    """`current` is the last good content of the ConfigMap `place` (NAMESPACE/NAME), or the defaults where there is no
    ConfigMap. `changed` is called with each new one. `wants`: by pool, how many nodes the ConfigMap's annotation says
    that it wants, of which `wanted` is called with each change. `one_namespace`: the operator sees no other."""

    def __init__(
        self,
        api: ApiClient,
        place: str,
        recorder: Recorder,
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
            self._text = None
            self._take(Configuration())
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
                self._text = config_map.text

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
        self._recorder.record(
            found, Event("Warning", "InvalidConfiguration", f"config.yaml: {problem}. It stays {stays}.")
        )


def _must_be_met(configuration: Configuration) -> None:
    """Raises ValueError for what no live cluster does."""
    said = {configuration.profile: {}, **configuration.profiles}
    problems = [problem for name, settings in said.items() for problem in refusals(name, settings)]
    if problems:
        raise ValueError("; ".join(problems))
