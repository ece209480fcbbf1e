"""A real Prometheus on this machine: it scrapes what it is told, evaluates the component's rules, and is asked."""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harness import debian, monitoring
from harness.controlplane import Process, free_port

Json = dict[str, Any]
SCRAPE_S = 3


@dataclass(frozen=True, slots=True)
class Prometheus:
    """One that runs."""

    url: str
    process: Process

    def ask(self, path: str, **parameters: str) -> Any:
        """`data` of an answer; None while it does not answer. AssertionError where a query is wrong, or it ended."""
        assert self.process.alive, self.process.tail()
        try:
            with urllib.request.urlopen(
                f"{self.url}/{path}?{urllib.parse.urlencode(parameters)}", timeout=30
            ) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise AssertionError(error.read().decode()) from error
            return None
        except OSError:
            return None

    def data(self, expr: str) -> list[Any]:
        """The series that `expr` gives now; none while it starts."""
        found = self.ask("query", query=expr)
        return found["result"] if found else []

    def names(self) -> set[str]:
        """Of all metrics that were scraped."""
        return set(self.ask("label/__name__/values") or ())

    def rules(self) -> list[Json]:
        return [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]


@contextmanager
def prometheus(scrape_configs: list[Json], folder: Path) -> Iterator[Prometheus]:
    """With the rules of the component, and its files in `folder`."""
    intervals = {f"{each}_interval": f"{SCRAPE_S}s" for each in ("scrape", "evaluation")}
    said = {
        "global": {**intervals, "scrape_timeout": f"{SCRAPE_S}s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": scrape_configs,
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(said))
    (folder / "rules.yaml").write_text(yaml.safe_dump(monitoring.rules()))
    address = f"127.0.0.1:{free_port()}"
    flags = (f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data")
    command = (debian.path("prometheus"), *flags, f"--web.listen-address={address}")
    process = Process(command, folder / "prometheus.log")
    try:
        yield Prometheus(f"http://{address}/api/v1", process)
    finally:
        process.stop()


def relabelings(of_monitor: list[Mapping[str, Any]]) -> list[Json]:
    """What the Prometheus Operator makes of those of a monitor."""
    names = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
    return [{names.get(key, key): value for key, value in each.items()} for each in of_monitor]
