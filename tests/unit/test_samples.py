"""The samples show what they are made to show on the cluster of `make demo`, wherever its other pods lie."""

import re
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import yaml

from elastic_tfjob.api.tfjob import CONTROLLER_NAME, OPERATOR_NAME_LABEL, TFJobSpec
from elastic_tfjob.commands.check import about_job
from elastic_tfjob.controller.model.pod import STATUS_PORT
from elastic_tfjob.controller.model.quantities import requests_of

SAMPLES = Path(__file__).parents[2] / "manifests" / "samples"
Free = tuple[int, ...]


def cpu_of(sample: str) -> dict[str, int]:
    """Millicores that a replica of each type requests."""
    spec = TFJobSpec.parse(yaml.safe_load((SAMPLES / sample).read_text())["spec"])
    return {name: requests_of(each.template["spec"])[0] for name, each in spec.tf_replica_specs.items()}


def left(free: Free, pods: list[int]) -> list[Free]:
    """What the nodes may have left with the pods on them, by where each of them is."""
    found = list[Free]()
    for nodes in product(range(len(free)), repeat=len(pods)):
        after = list(free)
        for cpu, node in zip(pods, nodes, strict=True):
            after[node] -= cpu
        if min(after) >= 0:
            found.append(tuple(after))
    return found


def test_the_second_job_fits_beside_one_worker_of_the_first_but_not_beside_two() -> None:
    free = (1000, 900)  # the operator is on one of the two
    digits, second = cpu_of("digits.yaml"), list(cpu_of("second.yaml").values())
    assert not [each for each in left(free, [*digits.values(), digits["Worker"]]) if left(each, second)]
    held = sum(digits.values())
    assert left((free[0] - held, free[1]), second)
    assert left((free[0], free[1] - held), second)


def test_the_network_policy_of_the_query_api_guards_its_port_alone() -> None:
    policy = yaml.safe_load((SAMPLES / "query-networkpolicy.yaml").read_text())["spec"]
    manifests = SAMPLES.parent
    deployment = yaml.safe_load((manifests / "base" / "deployment.yaml").read_text())
    (patch,) = yaml.safe_load((manifests / "components" / "query-api" / "kustomization.yaml").read_text())["patches"]
    (query,) = (each["value"] for each in yaml.safe_load(patch["patch"]) if each["path"].endswith("/ports/-"))
    template = deployment["spec"]["template"]
    assert policy["podSelector"]["matchLabels"] == template["metadata"]["labels"]
    everybody, gateway = policy["ingress"]
    (container,) = template["spec"]["containers"]
    assert [each["port"] for each in everybody["ports"]] == [each["containerPort"] for each in container["ports"]]
    assert "from" not in everybody
    assert [each["port"] for each in gateway["ports"]] == [query["containerPort"]]
    assert gateway["from"]


def test_the_network_policy_lets_the_operator_ask_and_replicas_train() -> None:
    """Its labels and ports are those that the operator's pod, the training pods and the exporter have."""
    policy = yaml.safe_load((SAMPLES / "networkpolicy.yaml").read_text())["spec"]
    deployment = yaml.safe_load((SAMPLES.parent / "base" / "deployment.yaml").read_text())
    training = {"matchLabels": {OPERATOR_NAME_LABEL: CONTROLLER_NAME}}
    replicas, exporter = policy["ingress"]
    assert policy["podSelector"] == training == replicas["from"][0]["podSelector"]
    assert exporter["from"][0]["podSelector"]["matchLabels"] == deployment["spec"]["template"]["metadata"]["labels"]
    assert [port["port"] for port in exporter["ports"]] == [STATUS_PORT]
    reached = {number for each in replicas["ports"] for number in range(each["port"], each["endPort"] + 1)}
    assert reached == set(range(1, 65536)) - {STATUS_PORT}


README = SAMPLES.parents[1] / "README.md"


def test_the_job_of_the_readme_is_whole() -> None:
    """What it says can be applied as it stands, and `check` finds nothing to mend."""
    (text,) = re.findall(r"```yaml\n(apiVersion: kubeflow.*?)```", README.read_text(), re.DOTALL)
    job, claim = yaml.safe_load_all(text)
    job["metadata"]["namespace"] = "default"
    findings = about_job(job, datetime(2026, 1, 1, tzinfo=UTC))
    assert [finding for finding in findings if finding.level != "ok"] == []
    spec = TFJobSpec.parse(job["spec"])
    for replica in spec.tf_replica_specs.values():
        pod = replica.template["spec"]
        assert replica.restart_policy == "OnFailure"
        assert all(requests_of(pod)[:2])
        assert [each["persistentVolumeClaim"]["claimName"] for each in pod["volumes"]] == [claim["metadata"]["name"]]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
