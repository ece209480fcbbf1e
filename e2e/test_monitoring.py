"""A real Prometheus scrapes jobs that train, and their operator: what dashboards and rules ask for is there."""

import base64
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness import monitoring
from harness.cluster import Cluster
from harness.deploy import NAMESPACE
from harness.jobs import Jobs, sleepers, until
from harness.prometheus import Json, prometheus, relabelings

from .test_elastic import ask, elastic, settled

DOES_NOT_HAPPEN = {
    "elastic_tfjob_pool_nodes",
    "elastic_tfjob_roll_backs_total",
    "elastic_tfjob_stops_total",
    "elastic_tfjob_task_failures_total",
}
"""Series that begin with what this scenario has not: nodes of pools, changes that are taken back, stops, failures."""
ENDS = {"ends": "exit 0", "fails": "exit 1", "again": "exit 137"}
OPERATOR = {"control-plane": "elastic-tfjob-operator"}
PODS = "pods.json"


def meta(label: str) -> str:
    """A label of Kubernetes, as it goes on in the name of one of Prometheus."""
    return re.sub(r"\W", "_", label)


def discover(cluster: Cluster, folder: Path) -> None:
    """Write down all pods as Prometheus' role `pod` finds them, with a target for each port: Debian's Prometheus is
    built without Kubernetes."""
    found = json.loads(cluster.kubectl("get", "pods", "--all-namespaces", "-o", "json"))["items"]
    unfinished = folder / "unfinished"
    unfinished.write_text(json.dumps([each for pod in found for each in targets(pod)]))
    unfinished.rename(folder / PODS)


def targets(pod: Json) -> Iterator[Json]:
    of_pod = {f"pod_label_{meta(key)}": value for key, value in pod["metadata"].get("labels", {}).items()}
    of_pod |= {"namespace": pod["metadata"]["namespace"], "pod_name": pod["metadata"]["name"]}
    if pod["status"]["phase"] != "Running":
        return
    for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])):
        for port in container.get("ports", []):
            of_port = {"port_name": port.get("name", ""), "port_number": str(port["containerPort"])}
            labels = of_pod | {f"pod_container_{key}": value for key, value in of_port.items()}
            yield {"targets": ["pod"], "labels": {f"__meta_kubernetes_{key}": value for key, value in labels.items()}}


def scraped_from(cluster: Cluster, folder: Path) -> list[Json]:
    """What the Prometheus Operator makes of the monitors, but by the API server's proxy: pods cannot be reached
    from outside the cluster."""
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    server, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    tls = {"ca": server["certificate-authority-data"]}
    tls |= {each: user[f"client-{part}-data"] for each, part in (("cert", "certificate"), ("key", "key"))}
    for name, data in tls.items():
        (folder / name).write_bytes(base64.b64decode(data))

    def pods(name: str, labels: dict[str, str], port: str, added: Sequence[Json] = (), **more: Any) -> Json:
        found = [
            {"source_labels": [f"__meta_kubernetes_pod_label_{meta(key)}"], "regex": value, "action": "keep"}
            for key, value in labels.items()
        ]
        proxied = "/api/v1/namespaces/$1/pods/$2:$3/proxy/metrics"
        named = [f"__meta_kubernetes_{each}" for each in ("namespace", "pod_name", "pod_container_port_number")]
        return {
            "job_name": name,
            "scheme": "https",
            "tls_config": {f"{each}_file": str(folder / each) for each in tls},
            "file_sd_configs": [{"files": [str(folder / PODS)]}],
            "relabel_configs": [
                *found,
                {"source_labels": ["__meta_kubernetes_pod_container_port_name"], "regex": port, "action": "keep"},
                {"source_labels": named[:1], "target_label": "namespace"},
                {"source_labels": named[1:2], "target_label": "pod"},
                *added,
                {
                    "source_labels": named,
                    "regex": "(.*);(.*);(.*)",
                    "target_label": "__metrics_path__",
                    "replacement": proxied,
                },
                {"target_label": "__address__", "replacement": server["server"].removeprefix("https://")},
            ],
            **more,
        }

    service, pod = monitoring.monitor("ServiceMonitor"), monitoring.monitor("PodMonitor")
    (endpoint,) = pod["podMetricsEndpoints"]
    return [
        pods("operator", OPERATOR, service["endpoints"][0]["port"]),
        pods(
            "exporters",
            pod["selector"]["matchLabels"],
            endpoint["port"],
            added=relabelings(endpoint["relabelings"]),
            metric_relabel_configs=relabelings(endpoint["metricRelabelings"]),
            sample_limit=pod["sampleLimit"],
        ),
    ]


@pytest.mark.beside
@pytest.mark.one_leader  # what happens but once, and before a new leader is scraped, is no increase of a counter
def test_every_metric_of_dashboards_and_rules_exists_for_a_live_job(jobs: Jobs, tmp_path: Path) -> None:
    variables = {"namespace": jobs.namespace, "tfjob": "seen", "datasource": "d", "__rate_interval": "1m"}
    asked = {(each.where, each.expr) for each in (*monitoring.panels(variables), *monitoring.menus(variables))}
    left = {each for each in asked if not DOES_NOT_HAPPEN & monitoring.metrics_of(each[1])}
    job = elastic(jobs, "seen", steps=100_000, annotations={"deadline": "5h"})
    ends, fails, again = (sleepers(name, command, Worker=1) for name, command in ENDS.items())
    fails["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = "Never"
    again["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = "ExitCode"
    with prometheus(scraped_from(jobs.cluster, tmp_path), tmp_path) as asks:

        def scraped(expr: str) -> bool:
            """Whether it has data; pods come and go meanwhile."""
            discover(jobs.cluster, tmp_path)
            return bool(asks.data(expr))

        for each in (job, ends, fails, again):
            jobs.apply(each)
        step = f'elastic_tfjob_step{{namespace="{jobs.namespace}", tfjob="seen"}}'
        until(lambda: scraped(step), 400, lambda: asks.process.tail() + jobs.describe("seen"))
        for workers in (2, 1):  # what increases must have been scraped before
            ask(jobs, "seen", workers=workers)
            settled(jobs, "seen", Worker=workers)
            discover(jobs.cluster, tmp_path)

        def answered() -> bool:
            discover(jobs.cluster, tmp_path)
            left.difference_update([each for each in left if asks.data(each[1])])
            return not left

        until(answered, 240, lambda: f"no data: {left}\n{asks.process.tail()}")
        rules = asks.rules()
        assert {rule["name"]: rule["health"] for rule in rules} == {each.where: "ok" for each in monitoring.alerts()}
        of_rules = set().union(*(monitoring.metrics_of(each.expr) for each in monitoring.alerts()))
        assert of_rules - DOES_NOT_HAPPEN <= asks.names()
        (pause,) = asks.data(next(expr for where, expr in asked if "Mean pause" in where))
        assert 0 < float(pause["value"][1]) < 60
        # Who may make pods cannot pass for the operator: labels are those of Kubernetes.
        (found,) = asks.data("elastic_tfjob_leader == 1")
        assert found["metric"]["namespace"] == NAMESPACE
