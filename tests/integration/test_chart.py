"""The Helm chart installs what kustomize does, and refuses values that cannot be."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from elastic_tfjob.cli import operator
from elastic_tfjob.controller.model.settings import Configuration, parse_configuration
from harness import binaries, deploy
from harness.names import CHART, ROOT
from harness.progress import CommandFailed, run

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("chart")]

Objects = dict[tuple[str, str, str], dict[str, Any]]
SETTINGS = ("elastic-tfjob-operator", "ConfigMap", "kubeflow")
KEEP = {"helm.sh/resource-policy": "keep"}
# The chart's flag for what kustomize has as a component.
FLAGS = {
    "kueue-growth": "kueueGrowth.enabled",
    "learning": "learning.enabled",
    "loans": "loans.enabled",
    "prometheus": "prometheus.enabled",
    "query-api": "queryApi.enabled",
    "status-via-proxy": "statusViaProxy.enabled",
    "trainer": "trainer.enabled",
}
# kustomize takes them for objects of a namespace; kubectl passes over that, as the API server knows better.
POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
COMPONENTS = sorted({path.name for path in (ROOT / "manifests" / "components").iterdir()} - {"images"})


def objects(items: list[Any]) -> Objects:
    """By name, kind and namespace; the operator's configuration as data, since the text of kustomize has comments."""
    made = {(item["metadata"]["name"], item["kind"], item["metadata"].get("namespace", "")): item for item in items}
    assert len(made) == len(items), "an object is there twice"
    if SETTINGS in made:
        made[SETTINGS]["data"]["config.yaml"] = yaml.load(made[SETTINGS]["data"]["config.yaml"], yaml.CSafeLoader)
    return made


def kustomized(tmp_path: Path, overlay: str, components: list[str], **more: object) -> Objects:
    items = list(yaml.load_all(deploy.kustomized(tmp_path, overlay, components, **more), yaml.CSafeLoader))
    for item in items:
        if item["kind"] in POLICIES:
            item["metadata"].pop("namespace", None)
    return objects(items)


def charted(*sets: str, namespace: str = "kubeflow") -> Objects:
    return rendered(CHART, *(f"--set={each}" for each in sets), f"--namespace={namespace}")


def rendered(chart: Path, *flags: str) -> Objects:
    return objects(
        list(yaml.load_all(run([binaries.path("helm"), "template", "tfjobs", chart, *flags]), yaml.CSafeLoader))
    )


def without_the_charts_own(made: Objects) -> Objects:
    """The CRD stays when a release is uninstalled: the one thing that only the chart says."""
    (crd,) = (item for (_, kind, _), item in made.items() if kind == "CustomResourceDefinition")
    annotations = crd["metadata"]["annotations"]
    assert annotations.items() >= KEEP.items()
    crd["metadata"]["annotations"] = {key: value for key, value in annotations.items() if key not in KEEP}
    if not crd["metadata"]["annotations"]:
        del crd["metadata"]["annotations"]
    return made


@pytest.mark.parametrize(
    ("overlay", "components", "sets"),
    [
        ("standalone", [], []),
        ("kubeflow", [], ["kubeflowRoles.enabled=true"]),
        *(
            pytest.param("standalone", [name], [f"{FLAGS[name]}=true"], marks=pytest.mark.thorough)
            for name in COMPONENTS
        ),
        ("kubeflow", COMPONENTS, ["kubeflowRoles.enabled=true", *(f"{flag}=true" for flag in FLAGS.values())]),
    ],
)
def test_the_objects_are_those_of_kustomize(
    tmp_path: Path, overlay: str, components: list[str], sets: list[str]
) -> None:
    expected = kustomized(tmp_path, overlay, components)
    # `helm install --create-namespace` makes it, before the release.
    expected.pop(("kubeflow", "Namespace", ""), None)
    assert without_the_charts_own(charted(*sets)) == expected


def test_the_patch_of_the_docs_has_the_query_api_read_the_header_of_a_proxy(tmp_path: Path) -> None:
    """As the chart has it: of a flag that is there twice, the operator takes the last one."""
    text = (ROOT / "docs" / "query-api.md").read_text()
    (parts,) = (
        yaml.load(block, yaml.CSafeLoader)
        for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
        if "query-auth" in block
    )
    made = kustomized(tmp_path, "standalone", ["query-api"], patches=parts["patches"])
    charts = charted("queryApi.enabled=true", "queryApi.auth=header")
    args = [
        each["elastic-tfjob-operator", "Deployment", "kubeflow"]["spec"]["template"]["spec"]["containers"][0]["args"]
        for each in (made, charts)
    ]
    found = [operator.make_context("operator", each[1:]).params for each in args]
    assert found[0] == found[1]
    assert found[0]["query_auth"] == "header"


def test_every_namespaced_object_is_in_the_namespace_of_the_release() -> None:
    made = charted(*(f"{flag}=true" for flag in FLAGS.values()), namespace="elsewhere")
    assert {namespace for _, _, namespace in made} == {"", "elsewhere"}
    subjects = [who["namespace"] for item in made.values() for who in item.get("subjects", [])]
    assert set(subjects) == {"elsewhere"}


def test_values_reach_the_deployment() -> None:
    values = [
        "image.registry=ghcr.io/you",
        "image.tag=1.2.3",
        "image.pullPolicy=Always",
        "imagePullSecrets[0].name=mine",
        "replicas=2",
        "resources.limits.cpu=2",
        "extraArgs={--gang-scheduler-name=volcano}",
        "extraEnv[0].name=CUSTOM_CLUSTER_DOMAIN,extraEnv[0].value=cluster.example",
        "podLabels.team=a",
        "podAnnotations.note=b",
        "priorityClassName=high",
        "nodeSelector.disk=ssd",
        "tolerations[0].operator=Exists",
        "topologySpreadConstraints[0].maxSkew=1",
        "affinity.nodeAffinity.x=y",
    ]
    made = charted(*values)
    spec = made["elastic-tfjob-operator", "Deployment", "kubeflow"]["spec"]
    pod, (container,) = spec["template"]["spec"], spec["template"]["spec"]["containers"]
    assert spec["replicas"] == 2
    assert (container["image"], container["imagePullPolicy"]) == ("ghcr.io/you/elastic-tfjob/operator:1.2.3", "Always")
    assert pod["imagePullSecrets"] == [{"name": "mine"}]
    assert container["resources"]["limits"] == {"cpu": 2, "memory": "1Gi"}
    assert container["args"][-1] == "--gang-scheduler-name=volcano"
    assert container["env"][-1] == {"name": "CUSTOM_CLUSTER_DOMAIN", "value": "cluster.example"}
    assert spec["template"]["metadata"]["labels"] == {"team": "a", "control-plane": "elastic-tfjob-operator"}
    assert spec["template"]["metadata"]["annotations"] == {"note": "b", "sidecar.istio.io/inject": "false"}
    assert pod["priorityClassName"] == "high"
    assert pod["nodeSelector"] == {"disk": "ssd"}
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert pod["topologySpreadConstraints"] == [{"maxSkew": 1}]
    assert pod["affinity"] == {"nodeAffinity": {"x": "y"}}


MONITORING = {"ServiceMonitor": "elastic-tfjob-operator", "PodMonitor": "elastic-tfjob-exporter"}


def test_values_reach_what_prometheus_selects() -> None:
    """As kube-prometheus-stack asks for: it takes objects with the label of its release alone."""
    values = [
        "prometheus.enabled=true",
        "prometheus.labels.release=monitoring",
        "prometheus.annotations.note=b",
        "prometheus.namespace=observed",
        "prometheus.interval=60s",
        "prometheus.dashboards.namespace=grafana",
        "prometheus.dashboards.annotations.grafana_folder=Training",
    ]
    made = charted(*values)
    plain = charted("prometheus.enabled=true")
    for kind, name in {**MONITORING, "PrometheusRule": "elastic-tfjob"}.items():
        item, before = made[name, kind, "observed"], plain[name, kind, "kubeflow"]
        assert item["metadata"]["labels"] == {**before["metadata"]["labels"], "release": "monitoring"}
        assert item["metadata"]["annotations"] == {"note": "b"}
    operator = made["elastic-tfjob-operator", "ServiceMonitor", "observed"]["spec"]
    assert operator["namespaceSelector"] == {"matchNames": ["kubeflow"]}
    assert [each["interval"] for each in operator["endpoints"]] == ["60s"]
    pods = made["elastic-tfjob-exporter", "PodMonitor", "observed"]["spec"]
    assert [each["interval"] for each in pods["podMetricsEndpoints"]] == ["60s"]
    assert pods["namespaceSelector"] == {"any": True}
    dashboards = made["elastic-tfjob-dashboards", "ConfigMap", "grafana"]["metadata"]
    assert dashboards["annotations"] == {"grafana_folder": "Training"}
    assert dashboards["labels"] == {"grafana_dashboard": "1"}


def test_the_configuration_is_one_that_the_operator_takes() -> None:
    made = charted("config.profile=fifo", "config.profiles.kips.cooldown_s=90", "config.rescale.stop_timeout_s=30")
    found = parse_configuration(yaml.safe_dump(made[SETTINGS]["data"]["config.yaml"]))
    assert (found.profile, found.profiles["kips"]) == ("fifo", {"cooldown_s": 90})
    assert found.rescale == Configuration().rescale.model_copy(update={"stop_timeout_s": 30})


def test_without_the_crd() -> None:
    assert not [kind for _, kind, _ in charted("crd.install=false") if kind == "CustomResourceDefinition"]


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ("replica=2", "replica"),
        ("replicas=two", "replicas"),
        ("replicas=-1", "replicas"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("image.registry=", "registry"),
        ("config.profile=best", "profile"),
        ("config.profiles.kips.cooldown=1", "cooldown"),
        ("config.profiles.kips.cooldown_s=-1", "cooldown_s"),
        ("config.status.interval_s=0", "interval_s"),
        ("config.pools.inference.headroom=1", "namespaces"),
        ("extraArgs={--leader-elect}", "extraArgs"),
        ("extraArgs={operator}", "extraArgs"),
        ("loans.enabled=maybe", "loans"),
        ("queryApi.auth=none", "queryApi"),
        ("crd=false", "crd"),
        ("nodeSelector.disk=null,nodeSelector.size=3", "nodeSelector"),
        ("prometheus.labels.bad key=x", "'bad key' does not match"),
        ("prometheus.labels.release=a b", "/prometheus/labels/release"),
        ("podLabels.team=-", "/podLabels/team"),
        ("prometheus.annotations.a b=c", "'a b' does not match"),
        ("prometheus.namespace=Bad_NS", "/prometheus/namespace"),
        ("prometheus.dashboards.namespace=a.b", "/prometheus/dashboards/namespace"),
        ("prometheus.interval=1s1m", "/prometheus/interval"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(value: str, where: str) -> None:
    with pytest.raises(CommandFailed, match="values don't meet the specifications of the schema") as refused:
        charted(value)
    assert where in str(refused.value)


def test_an_older_kubernetes_is_refused() -> None:
    with pytest.raises(CommandFailed, match="requires kubeVersion"):
        rendered(CHART, "--kube-version=1.29")


def test_helm_finds_nothing_wrong() -> None:
    run([binaries.path("helm"), "lint", "--strict", CHART])


def test_a_package_of_the_chart_installs_the_same(tmp_path: Path) -> None:
    """Its manifests are links in the sources and files in the package."""
    run([binaries.path("helm"), "package", CHART, "--destination", tmp_path])
    (package,) = tmp_path.glob("*.tgz")
    assert rendered(package, "--namespace=kubeflow") == charted()
