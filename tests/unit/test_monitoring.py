"""manifests/components/prometheus names what there is, and its alerts come when they are to (real promtool)."""

import json
import re
import shutil
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from prometheus_client import Metric

from elastic_tfjob.api.tfjob import CONTAINER, CONTROLLER_NAME, JOB_NAME_LABEL, OPERATOR_NAME_LABEL, REPLICA_TYPE_LABEL
from elastic_tfjob.controller.job.inject import inject
from elastic_tfjob.controller.model.deadline_status import Verdict
from elastic_tfjob.controller.model.pod import STATUS_PORT
from elastic_tfjob.exporter.metrics import ProgressCollector
from harness import debian, monitoring
from harness.monitoring import Query
from harness.progress import CommandFailed, run

from . import reference

ALERTS = Path(__file__).parent / "data" / "alerts.yaml"
PAGE = Path(__file__).parents[2] / "docs" / "monitoring.md"
TARGET = {"namespace", "pod"}
"""Labels that the Prometheus Operator gives to what it scrapes, of those that are used here."""
VARIABLES = {"namespace": "n", "tfjob": "t", "datasource": "d", "__rate_interval": "5m"}


def queries() -> list[Query]:
    return [*monitoring.alerts(), *monitoring.panels(VARIABLES), *monitoring.menus(VARIABLES)]


def exporters(folder: Path) -> list[Metric]:
    """All metrics that an exporter may serve."""
    monitoring.train(folder, 1)
    return list(ProgressCollector(folder).collect())


def samples(name: str, kind: str) -> list[str]:
    """The names of a metric's series."""
    ends = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}.get(kind, ("",))
    return [name + end for end in ends]


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of each series of operator and exporter, by name."""
    relabelings = monitoring.monitor("PodMonitor")["podMetricsEndpoints"][0]["relabelings"]
    added = TARGET | {each["targetLabel"] for each in relabelings}
    found = {
        series: added | ({"le"} if series.endswith("_bucket") else set())
        for each in exporters(tmp_path_factory.mktemp("exporter"))
        for series in samples(each.name, each.type)
    }
    for each in reference.known_metrics():
        for series in samples(each._name, type(each).__name__.lower()):
            le = {"le"} if series.endswith("_bucket") else set[str]()
            found[series] = TARGET | set(each._labelnames) | le
    return found


@pytest.mark.parametrize("query", queries(), ids=lambda query: query.where)
def test_a_query_names_metrics_and_labels_of_the_code(query: Query, labels: dict[str, set[str]]) -> None:
    names = monitoring.metrics_of(query.expr)
    assert names
    assert names <= labels.keys()
    for name, matchers in re.findall(rf"({monitoring.METRIC.pattern})\{{(.*?)\}}", query.expr):
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)) <= labels[name]
    grouped = re.findall(r"\b(?:by|on|without|ignoring)\s*\((.*?)\)", query.expr)
    used = query.named.union(*(set(re.split(r",\s*", each)) for each in grouped))
    assert all(used <= labels[name] | {"le"} for name in names), used
    if grouped:
        assert query.named <= set(", ".join(grouped).split(", ")), "a label that the query sums away"


def test_verdicts_of_the_alert_are_those_of_the_code() -> None:
    (expr,) = [each.expr for each in monitoring.alerts() if "Deadline" in each.where]
    (said,) = re.findall(r'verdict=~"(.*?)"', expr)
    assert set(said.split("|")) <= set(get_args(Verdict))


def test_the_page_explains_each_alert() -> None:
    explained = set(re.findall(r"`(ElasticTFJob\w+)`", PAGE.read_text()))
    assert explained == {each.where for each in monitoring.alerts()}


def test_panels_have_an_id_and_a_place_of_their_own() -> None:
    assert monitoring.DASHBOARDS
    for file in monitoring.DASHBOARDS:
        board = json.loads(file.read_text())
        assert board["uid"] == file.stem
        panels = board["panels"]
        assert len({each["id"] for each in panels}) == len(panels)
        fields = [
            (each["gridPos"]["x"] + x, each["gridPos"]["y"] + y)
            for each in panels
            for x in range(each["gridPos"]["w"])
            for y in range(each["gridPos"]["h"])
        ]
        assert len(set(fields)) == len(fields)
        assert max(x for x, _ in fields) < 24


def test_monitors_find_the_operator_and_the_exporters(tmp_path: Path) -> None:
    """By the labels and the names of ports that these have; of a pod that only the exporter's metrics are kept."""
    service = yaml.safe_load((monitoring.COMPONENT.parents[1] / "base" / "service.yaml").read_text())
    operator, exporter = monitoring.monitor("ServiceMonitor"), monitoring.monitor("PodMonitor")
    assert operator["selector"]["matchLabels"] == service["metadata"]["labels"]
    assert operator["endpoints"][0]["port"] in [port["name"] for port in service["spec"]["ports"]]
    assert exporter["selector"]["matchLabels"] == {OPERATOR_NAME_LABEL: CONTROLLER_NAME}
    (endpoint,) = exporter["podMetricsEndpoints"]
    pod: dict[str, Any] = {"spec": {"containers": [{"name": CONTAINER}]}}
    inject(pod, "both", "image", None)
    ports = [port for each in pod["spec"]["initContainers"] for port in each.get("ports", ())]
    assert ports == [{"name": endpoint["port"], "containerPort": STATUS_PORT}]
    sources = {each["targetLabel"]: each["sourceLabels"] for each in endpoint["relabelings"]}
    prefix = "__meta_kubernetes_pod_label_"
    for target, label in (("tfjob", JOB_NAME_LABEL), ("replica_type", REPLICA_TYPE_LABEL)):
        assert sources[target] == [prefix + re.sub(r"\W", "_", label)]
    keep = endpoint["metricRelabelings"][0]
    assert (keep["action"], keep["sourceLabels"]) == ("keep", ["__name__"])
    served = {series for each in exporters(tmp_path) for series in samples(each.name, each.type)}
    own = {series for each in reference.known_metrics() for series in samples(each._name, type(each).__name__.lower())}
    assert {name for name in served | own | {"up_to_no_good"} if re.fullmatch(keep["regex"], name)} == served


def promtool(*words: str, cwd: Path) -> str:
    return run([debian.path("promtool"), *words], cwd=cwd)


@pytest.fixture
def checked(tmp_path: Path) -> Path:
    """A folder with rules.yaml, as Prometheus reads it, and the tests of it."""
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(monitoring.rules()))
    shutil.copy(ALERTS, tmp_path)
    return tmp_path


@pytest.mark.xdist_group("prometheus")
def test_alerts_come_when_they_are_to(checked: Path) -> None:
    names = [each.where for each in monitoring.alerts()]
    assert f"{len(names)} rules found" in promtool("check", "rules", "rules.yaml", cwd=checked)
    promtool("test", "rules", ALERTS.name, cwd=checked)
    tried = [
        each["alertname"] for test in yaml.safe_load(ALERTS.read_text())["tests"] for each in test["alert_rule_test"]
    ]
    assert set(tried) == set(names)


@pytest.mark.xdist_group("prometheus")
def test_an_alert_that_never_comes_is_found(checked: Path) -> None:
    rules = (checked / "rules.yaml").read_text()
    (checked / "rules.yaml").write_text(rules.replace("elastic_tfjob_checkpoint_failing", "elastic_tfjob_renamed"))
    with pytest.raises(CommandFailed, match="ElasticTFJobCheckpointFailing"):
        promtool("test", "rules", ALERTS.name, cwd=checked)
