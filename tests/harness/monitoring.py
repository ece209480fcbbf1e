"""manifests/components/prometheus as data: its rules, and the queries of its rules and dashboards."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from elastic_tfjob.runtime import protocol

METRIC = re.compile(r"\b(?:elastic_tfjob|training_operator)_\w+")
COMPONENT = Path(__file__).parents[2] / "manifests" / "components" / "prometheus"
DASHBOARDS = sorted((COMPONENT / "dashboards").glob("*.json"))

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression, where it stands, and the labels that texts beside it name."""

    where: str
    expr: str
    named: frozenset[str] = frozenset()


def rules() -> Json:
    """What stands in a rule file of Prometheus itself: the groups."""
    spec: Json = yaml.safe_load((COMPONENT / "rules.yaml").read_text())["spec"]
    return spec


def monitor(kind: str) -> Json:
    """The `spec` of the ServiceMonitor or PodMonitor."""
    found = {each["kind"]: each["spec"] for each in yaml.safe_load_all((COMPONENT / "monitors.yaml").read_text())}
    spec: Json = found[kind]
    return spec


def alerts() -> Iterator[Query]:
    for group in rules()["groups"]:
        for rule in group["rules"]:
            named = re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values()))
            yield Query(rule["alert"], rule["expr"], frozenset(named))


def panels(variables: dict[str, str]) -> Iterator[Query]:
    """Those of the dashboards, with `variables` of Grafana by name in place of `$name`."""
    for file in DASHBOARDS:
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel["targets"]:
                named = re.findall(r"\{\{\s*(\w+)\s*\}\}", target["legendFormat"])
                yield Query(f"{file.stem}: {panel['title']}", _filled(target["expr"], variables), frozenset(named))


def menus(variables: dict[str, str]) -> Iterator[Query]:
    """Those that fill the dashboards' menus: the series, and the label whose values are asked for."""
    for file in DASHBOARDS:
        for each in json.loads(file.read_text())["templating"]["list"]:
            if each["type"] == "query":
                found = re.fullmatch(r"label_values\((.*), (\w+)\)", each["query"])
                assert found, each["query"]
                yield Query(f"{file.stem}: ${each['name']}", _filled(found[1], variables), frozenset({found[2]}))


def metrics_of(expr: str) -> set[str]:
    """The operator's and the exporters' that a query or another text names."""
    return set(METRIC.findall(expr))


def train(folder: Path, step: int) -> None:
    """Write all that a program and its launcher may tell an exporter, after so many steps."""
    progress = {
        **dict.fromkeys(("step", "steps"), step),
        "generation": 1,
        "examples": 32 * step,
        "total_steps": 10**6,
        "loss": 0.5,
        "step_seconds": {"bounds": [0.1, 1], "counts": [step, 0, 0], "sum": step / 20},
        "downtimes": {"bounds": [1], "counts": [step, 0], "sum": step / 2},
        "hand_overs": {"durable": step, "failed": 0, "pending": 0},
        "checkpoint": {"at": time.time(), "bytes": 1000, "seconds": 0.1},
    }
    protocol.write(folder / protocol.PROGRESS, progress)
    cgroup = {"usage_s": float(step), "throttled_s": float(step) / 10, "used_bytes": 1 << 20}
    protocol.write(folder / protocol.LAUNCHER, {"generation": 1, "cgroup": cgroup})


def _filled(expr: str, variables: dict[str, str]) -> str:
    return re.sub(r"\$(\w+)", lambda match: variables[match[1]], expr)
