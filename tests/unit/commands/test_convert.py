"""`convert`: kinds of older manifests, as people wrote them, become TFJobs of v1 that `check --offline` passes."""

import copy
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from elastic_tfjob.api.manifests import manifests
from elastic_tfjob.api.older import CannotConvert, converted
from elastic_tfjob.cli import main
from elastic_tfjob.commands.job_findings import about_job, schema_of_v1

Raw = dict[str, Any]
NOW = datetime(2026, 1, 2, tzinfo=UTC)
BETAS = ("v1alpha2", "v1beta1", "v1beta2")
TRAINER = {"name": "tensorflow", "image": "example.org/trainer:1"}


def template(**pod: Any) -> Raw:
    return {"spec": {"containers": [copy.deepcopy(TRAINER)], **pod}}


def replica(count: Any = 1, **fields: Any) -> Raw:
    return {"replicas": count, "template": template(), **fields}


def job(version: str, **spec: Any) -> Raw:
    types = spec.pop("types", {"PS": replica(1), "Worker": replica(2)})
    return {
        "apiVersion": f"kubeflow.org/{version}",
        "kind": "TFJob",
        "metadata": {"name": "old", "namespace": "ns"},
        "spec": {**spec, "tfReplicaSpecs": types},
    }


def entry(kind: str | None, count: int = 1, **fields: Any) -> Raw:
    made: Raw = {"replicas": count, "template": template(restartPolicy="OnFailure"), **fields}
    return made if kind is None else {**made, "tfReplicaType": kind}


def alpha(*entries: Raw, **spec: Any) -> Raw:
    listed = list(entries or (entry("MASTER"), entry("WORKER", 2)))
    return {
        "apiVersion": "kubeflow.org/v1alpha1",
        "kind": "TFJob",
        "metadata": {"name": "old", "namespace": "ns"},
        "spec": {**spec, "replicaSpecs": listed},
    }


def with_ports(made: Raw, *ports: Raw) -> Raw:
    made["template"]["spec"]["containers"][0]["ports"] = list(ports)
    return made


def with_container(**fields: Any) -> Raw:
    return {"Worker": {"replicas": 1, "template": {"spec": {"containers": [{**TRAINER, **fields}]}}}}


def policy(made: Raw) -> Any:
    return made["spec"].get("runPolicy", {})


def worker(made: Raw) -> Any:
    return made["spec"]["tfReplicaSpecs"]["Worker"]


def trainer(made: Raw) -> Any:
    return worker(made)["template"]["spec"]["containers"][0]


Look = Callable[[Raw], object]
# What a kind of file has beside the replicas, what is looked at in the result, and what that is.
KINDS: dict[str, tuple[Raw, Look, object]] = {
    "nothing more": ({}, lambda made: sorted(made["spec"]["tfReplicaSpecs"]), ["PS", "Worker"]),
    "clean all": ({"cleanPodPolicy": "All"}, lambda made: policy(made)["cleanPodPolicy"], "All"),
    "clean none": ({"cleanPodPolicy": "None"}, lambda made: policy(made)["cleanPodPolicy"], "None"),
    "ttl": ({"ttlSecondsAfterFinished": 60}, lambda made: policy(made)["ttlSecondsAfterFinished"], 60),
    "ttl as a text": ({"ttlSecondsAfterFinished": "60"}, lambda made: policy(made)["ttlSecondsAfterFinished"], 60),
    "old ttl": ({"ttlSecondsAfterFinishing": 60}, lambda made: policy(made)["ttlSecondsAfterFinished"], 60),
    "deadline": ({"activeDeadlineSeconds": 9}, lambda made: policy(made)["activeDeadlineSeconds"], 9),
    "backoff": ({"backoffLimit": 3}, lambda made: policy(made)["backoffLimit"], 3),
    "gang": ({"schedulingPolicy": {"queue": "q"}}, lambda made: policy(made)["schedulingPolicy"], {"queue": "q"}),
    "suspended": ({"suspend": True}, lambda made: policy(made)["suspend"], True),
    "null policies": (
        {"cleanPodPolicy": None, "backoffLimit": None},
        lambda made: "backoffLimit" in policy(made),
        False,
    ),
    "both places": (
        {"backoffLimit": 3, "runPolicy": {"backoffLimit": 3, "ttlSecondsAfterFinished": 1}},
        lambda made: (policy(made)["backoffLimit"], policy(made)["ttlSecondsAfterFinished"]),
        (3, 1),
    ),
    "scheduler": ({"schedulerName": "kb"}, lambda made: worker(made)["template"]["spec"]["schedulerName"], "kb"),
    "instances": ({"min-instances": 1}, lambda made: "min-instances" in made["spec"], False),
    "termination": (
        {"terminationPolicy": {"chief": {"replicaName": "WORKER", "replicaIndex": 0}}},
        lambda made: "terminationPolicy" in made["spec"],
        False,
    ),
    "capitals": (
        {"types": {"WORKER": replica(2), "Ps": replica(), "EVALUATOR": replica()}},
        lambda made: list(made["spec"]["tfReplicaSpecs"]),
        ["Worker", "PS", "Evaluator"],
    ),
    "chief": ({"types": {"CHIEF": replica()}}, lambda made: list(made["spec"]["tfReplicaSpecs"]), ["Chief"]),
    "master": ({"types": {"master": replica()}}, lambda made: list(made["spec"]["tfReplicaSpecs"]), ["Master"]),
    "replicas as a text": ({"types": {"Worker": replica("2")}}, lambda made: worker(made)["replicas"], 2),
    "fields beside the template": (
        {"types": {"Worker": replica(1, nodeSelector={"a": "b"})}},
        lambda made: "nodeSelector" in worker(made),
        False,
    ),
    "a list of types": (
        {"types": [entry("Worker", 2), entry("PS")]},
        lambda made: ({name: each["replicas"] for name, each in made["spec"]["tfReplicaSpecs"].items()}),
        {"Worker": 2, "PS": 1},
    ),
    "types with v1alpha1's fields": (
        {"types": {"WORKER": replica(2, tfReplicaType="WORKER", tfPort=3333)}},
        lambda made: (sorted(worker(made)), trainer(made)["ports"]),
        (["replicas", "template"], [{"name": "tfjob-port", "containerPort": 3333}]),
    ),
    "another container": ({"types": with_container(name="main")}, lambda made: trainer(made)["name"], "tensorflow"),
    "env of numbers": (
        {"types": with_container(env=[{"name": "A", "value": 1}, {"name": "B", "value": False}])},
        lambda made: [each["value"] for each in trainer(made)["env"]],
        ["1", "false"],
    ),
    "old GPUs": (
        {"types": with_container(resources={"limits": {"alpha.kubernetes.io/nvidia-gpu": 1}})},
        lambda made: trainer(made)["resources"]["limits"],
        {"nvidia.com/gpu": 1},
    ),
    "half a CPU": (
        {"types": with_container(resources={"requests": {"cpu": 0.5}})},
        lambda made: trainer(made)["resources"]["requests"],
        {"cpu": "0.5"},
    ),
}
ALPHAS: dict[str, tuple[Raw, Look, object]] = {
    "master and workers": (alpha(), lambda made: list(made["spec"]["tfReplicaSpecs"]), ["Master", "Worker"]),
    "no type is the master": (alpha(entry(None)), lambda made: list(made["spec"]["tfReplicaSpecs"]), ["Master"]),
    "workers alone": (alpha(entry("WORKER", 3)), lambda made: worker(made)["replicas"], 3),
    "with PS": (
        alpha(entry("WORKER"), entry("PS", 2)),
        lambda made: made["spec"]["tfReplicaSpecs"]["PS"]["replicas"],
        2,
    ),
    "restartPolicy": (alpha(), lambda made: worker(made)["restartPolicy"], "OnFailure"),
    "restartPolicy, no longer inside": (
        alpha(),
        lambda made: "restartPolicy" in worker(made)["template"]["spec"],
        False,
    ),
    "usual port": (alpha(entry("WORKER", tfPort=2222)), lambda made: "ports" in trainer(made), False),
    "another port": (
        alpha(entry("WORKER", tfPort=3333)),
        lambda made: trainer(made)["ports"],
        [{"name": "tfjob-port", "containerPort": 3333}],
    ),
    "a port that the container has": (
        alpha(with_ports(entry("WORKER", tfPort="3333"), {"containerPort": 3333}, {"containerPort": 8, "name": "x"})),
        lambda made: trainer(made)["ports"],
        [{"containerPort": 8, "name": "x"}, {"name": "tfjob-port", "containerPort": 3333}],
    ),
    "a port that has another one's name": (
        alpha(with_ports(entry("WORKER", tfPort=3333), {"containerPort": 8, "name": "tfjob-port"})),
        lambda made: trainer(made)["ports"],
        [{"containerPort": 8}, {"name": "tfjob-port", "containerPort": 3333}],
    ),
    "with tfReplicaSpecs of null": (
        alpha(entry("WORKER", 3), tfReplicaSpecs=None),
        lambda made: worker(made)["replicas"],
        3,
    ),
    "image of the job": (
        alpha(entry("WORKER", template={"spec": {"containers": [{"name": "tensorflow"}]}}), tfImage="tf:1"),
        lambda made: trainer(made)["image"],
        "tf:1",
    ),
    "image of the job, unused": (alpha(tfImage="tf:1"), lambda made: "tfImage" in made["spec"], False),
    "TensorBoard": (alpha(tensorboard={"logDir": "/l"}), lambda made: "tensorboard" in made["spec"], False),
    "runtime id": (alpha(RuntimeId="76no"), lambda made: "RuntimeId" in made["spec"], False),
    "master ends": (
        alpha(terminationPolicy={"chief": {"replicaName": "MASTER", "replicaIndex": 0}}),
        lambda made: "terminationPolicy" in made["spec"],
        False,
    ),
    "first group": (
        {**alpha(), "apiVersion": "tensorflow.org/v1alpha1", "kind": "TfJob"},
        lambda made: (made["apiVersion"], made["kind"]),
        ("kubeflow.org/v1", "TFJob"),
    ),
    "clean-up written out": (alpha(), policy, {"cleanPodPolicy": "Running"}),
    "as exported": (
        {
            **alpha(),
            "metadata": {"name": "old", "uid": "u", "resourceVersion": "1", "annotations": {"ksonnet.io/managed": "x"}},
            "status": {"state": "Running"},
        },
        lambda made: ("status" in made, made["metadata"]),
        (False, {"name": "old", "annotations": {}}),
    ),
}
TABLE = [
    *(
        (f"{version}: {name}", job(version, **spec), look, right)
        for version in (*BETAS, "v1")
        for name, (spec, look, right) in KINDS.items()
    ),
    *((f"v1alpha1: {name}", raw, look, right) for name, (raw, look, right) in ALPHAS.items()),
]


def test_the_table_has_the_kinds_of_files_that_there_are() -> None:
    assert len(TABLE) >= 104


@pytest.mark.parametrize(("raw", "look", "right"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_each_kind_of_older_file_becomes_v1(raw: Raw, look: Look, right: object) -> None:
    before = copy.deepcopy(raw)
    made, said = converted(raw, schema_of_v1())
    assert raw == before
    assert look(made) == right
    assert made["apiVersion"] == "kubeflow.org/v1"
    assert bool(said) == (made != raw)
    checked = {**made, "metadata": {"namespace": "ns", **made["metadata"]}}
    assert [each for each in about_job(checked, NOW) if each.level == "error"] == []
    assert converted(made, schema_of_v1()) == (made, [])
    if raw["apiVersion"] != "kubeflow.org/v1":
        assert policy(made)["cleanPodPolicy"] == (raw["spec"].get("cleanPodPolicy") or "Running")


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({**job("v1"), "apiVersion": "kubeflow.org/v2"}, "apiVersion is 'kubeflow.org/v2'"),
        ({**job("v1"), "spec": 3}, "spec is 3"),
        ({**job("v1beta1"), "spec": {}}, "spec.tfReplicaSpecs is None"),
        (job("v1beta1", types={"Worker": None}), "tfReplicaSpecs[Worker] is None"),
        (job("v1beta1", types={"Worker": replica(), "WORKER": replica()}), "Worker is given twice"),
        (job("v1beta1", backoffLimit=1, runPolicy={"backoffLimit": 2}), "differ: 1 and 2"),
        (job("v1", types={"Worker": replica("many")}), "it is 'many'; allowed: a whole number"),
        (alpha(entry("WORKER"), {"replicas": 2, "tfReplicaType": "PS"}), "PS has no template"),
        (alpha(entry("WORKER"), entry("WORKER")), "WORKER is given twice"),
        (
            alpha(terminationPolicy={"chief": {"replicaName": "WORKER", "replicaIndex": 0}}),
            "a job ends when its Master",
        ),
        (alpha(entry("WORKER"), terminationPolicy={"chief": {"replicaName": "WORKER", "replicaIndex": 1}}), "Worker 0"),
        (alpha(7), "spec.replicaSpecs[0] is 7"),  # type: ignore[arg-type]
    ],
)
def test_a_field_without_a_counterpart_in_v1_is_an_error(raw: Raw, says: str) -> None:
    with pytest.raises(CannotConvert) as refused:
        converted(raw, schema_of_v1())
    assert any(says in problem for problem in refused.value.problems)


BETA = """# a comment
apiVersion: kubeflow.org/v1beta1
kind: TFJob
metadata: {name: old, annotations: {a: "y", b: "1e3", c: "010", when: 2026-01-31}}
spec:
  cleanPodPolicy: All
  tfReplicaSpecs:
    Worker: {replicas: 1, template: {spec: {containers: [{name: tensorflow, image: x, args: ["no", "on"]}]}}}
"""
OTHER = "kind: ConfigMap # kept\napiVersion: v1\nmetadata: {name: other}\ndata: {a: 'b'}\n"


def convert(*words: str, given: str | None = None) -> Result:
    return CliRunner().invoke(main, ["convert", *words], input=given)


def test_other_documents_come_out_as_they_are(tmp_path: Path) -> None:
    result = convert("-f", "-", given=f"{OTHER}---\n{BETA}---\n{OTHER}")
    assert result.exit_code == 0
    first, second, third = result.stdout.split("---\n")
    assert (first, third) == (OTHER, OTHER)
    (made,) = manifests(second)
    assert made.value["spec"]["runPolicy"] == {"cleanPodPolicy": "All"}
    assert made.value["metadata"]["annotations"] == {"a": "y", "b": "1e3", "c": "010", "when": "2026-01-31"}
    assert made.value["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["args"] == ["no", "on"]
    assert "-: old: apiVersion: changed from kubeflow.org/v1beta1 to kubeflow.org/v1" in result.stderr
    assert "-: the document loses its comments" in result.stderr
    again = tmp_path / "again.yaml"
    again.write_text(result.stdout)
    assert convert("-f", str(again)).stdout == result.stdout
    assert CliRunner().invoke(main, ["check", "--offline", "-f", str(again)]).exit_code == 0


def test_a_directory_and_lists_are_read_and_a_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "b.yml").write_text("kind: List\napiVersion: v1\nitems:\n- " + BETA.replace("\n", "\n  ") + "\n")
    (tmp_path / "a.yaml").write_text(OTHER)
    (tmp_path / "c.txt").write_text("not read: [")
    out = tmp_path / "out"
    assert convert("-f", str(tmp_path), "-o", str(out)).stdout == ""
    first, second = manifests(out.read_text())
    assert first.value["kind"] == "ConfigMap"
    assert second.value["items"][0]["apiVersion"] == "kubeflow.org/v1"


def test_no_file_is_written_where_one_of_several_cannot_be_converted(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(BETA.replace("name: old", "name: Old_Job"))
    good = tmp_path / "good.yaml"
    good.write_text(BETA)
    result = convert("-f", str(good), "-f", str(bad))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "bad.yaml: Old_Job: cannot be converted: metadata.name: 'Old_Job'" in result.stderr
    assert convert("-f", str(tmp_path / "none.yaml")).exit_code == 1
    assert convert().exit_code == 2
