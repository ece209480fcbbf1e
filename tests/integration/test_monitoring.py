"""A real Prometheus scrapes an operator and an exporter as the monitors say: it answers what rules and panels ask."""

import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from harness import audit, monitoring, operators
from harness.controlplane import Process, free_port
from harness.prometheus import prometheus, relabelings

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("prometheus")]

ROOT = Path(__file__).parents[2]
PATIENCE_S = 240.0
VARIABLES = {"namespace": "team", "tfjob": "digits", "datasource": "d", "__rate_interval": "1m"}


@contextmanager
def running(*command: str | Path, log: Path) -> Iterator[None]:
    process = Process(command, log)
    try:
        yield
    finally:
        process.stop()


def scraped_from(operator: str, exporter: str) -> list[dict[str, Any]]:
    """What the Prometheus Operator makes of the monitors; there are no pods to find, so their labels are given."""
    (endpoint,) = monitoring.monitor("PodMonitor")["podMetricsEndpoints"]
    pod = {"namespace": "team", "pod": "digits-chief-0", "tfjob": "digits", "replica_type": "chief"}
    return [
        {
            "job_name": "operator",
            "static_configs": [{"targets": [operator], "labels": {"namespace": "kubeflow", "pod": "operator"}}],
        },
        {
            "job_name": "exporter",
            "static_configs": [{"targets": [exporter], "labels": pod}],
            "metric_relabel_configs": relabelings(endpoint["metricRelabelings"]),
            "sample_limit": monitoring.monitor("PodMonitor")["sampleLimit"],
        },
    ]


def test_the_component_adds_to_an_overlay(kubeconfig: Path, tmp_path: Path) -> None:
    """Its objects get the overlay's namespace, and the ConfigMap the dashboards and Grafana's label."""
    folders = [ROOT / "manifests" / part for part in ("overlays/standalone", "components/prometheus")]
    overlay, component = (os.path.relpath(each, tmp_path.resolve()) for each in folders)
    parts = {"resources": [overlay], "components": [component], "namespace": "kubeflow"}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(parts))
    built = [
        {(item["kind"], item["metadata"]["name"]): item for item in audit.rendered(each)}
        for each in (folders[0], tmp_path)
    ]
    added = {name: built[1][name] for name in built[1].keys() - built[0].keys()}
    boards = added.pop(("ConfigMap", "elastic-tfjob-dashboards"))
    assert {kind for kind, _ in added} == {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
    assert {item["metadata"]["namespace"] for item in (boards, *added.values())} == {"kubeflow"}
    assert boards["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert boards["data"] == {file.name: file.read_text() for file in monitoring.DASHBOARDS}


def page(address: str) -> str:
    """The exporter's metrics, once it serves."""
    end = time.monotonic() + PATIENCE_S
    while (text := operators.page(f"http://{address}/metrics")) is None:
        assert time.monotonic() < end
        time.sleep(0.1)
    return text


def samples(text: str) -> Iterator[Sample]:
    for family in text_string_to_metric_families(text):
        yield from family.samples


def test_each_query_is_answered_with_data(kubeconfig: Path, namespace: str, tmp_path: Path) -> None:
    folder = tmp_path / "pod"
    folder.mkdir()
    exporter = f"127.0.0.1:{free_port()}"
    monitoring.train(folder, 1)
    serve = (sys.executable, "-m", "elastic_tfjob.exporter", "--dir", folder, "--port", exporter.rpartition(":")[2])
    with (
        operators.start("ours", kubeconfig, tmp_path / "operator", namespace=namespace) as operator,
        running(*serve, log=tmp_path / "exporter.log"),
    ):
        scraped = operator.metrics_url.removeprefix("http://").removesuffix("/metrics")
        with prometheus(scraped_from(scraped, exporter), tmp_path) as asks:
            asked = {(each.where, each.expr) for each in (*monitoring.panels(VARIABLES), *monitoring.menus(VARIABLES))}
            # A counter with labels begins with the first time: what has not happened here is only to be understood.
            served = {sample.name for text in (operator.metrics(), page(exporter)) for sample in samples(text)}
            left = {
                each
                for each in asked
                if set(re.findall(r"\b(?:elastic_tfjob|training_operator)_\w+", each[1])) <= served
            }
            assert {each for each in asked if each[0].startswith("elastic-tfjob-job")} <= left
            assert "elastic-tfjob-cluster: Leaders" in dict(left)
            end = time.monotonic() + PATIENCE_S
            for step in count(2):
                monitoring.train(folder, step)
                left = {each for each in left if not asks.data(each[1])}
                if not left:
                    break
                assert time.monotonic() < end, (left, asks.process.tail())
                time.sleep(0.5)
            for _, expr in asked:
                asks.data(expr)
            rules = asks.rules()
            assert {rule["name"] for rule in rules} == {each.where for each in monitoring.alerts()}
            assert {rule["name"]: rule.get("lastError", "") for rule in rules if rule["health"] == "err"} == {}
            served = asks.names()
            assert "elastic_tfjob_step" in served
            assert "python_info" in served, "the operator's own"
