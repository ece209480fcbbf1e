"""`check -f` without a cluster: what in a TFJob cannot work, one finding for each, and none where nothing is wrong."""

import copy
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from elastic_tfjob.cli import main
from elastic_tfjob.commands.job_findings import Finding, about_job, claim_of_checkpoints, job_as_created, shell_waits

NOW = datetime(2026, 1, 2, tzinfo=UTC)
PREFIX = "elastic.kubeflow.org/"
Raw = dict[str, Any]
Edit = Callable[[Raw], object]


def sound() -> Raw:
    """An elastic job of which nothing is to be said but that it is elastic."""

    def replica(count: int) -> Raw:
        trainer = {
            "name": "tensorflow",
            "image": "example.org/trainer:1",
            "command": ["python3", "train.py"],
            "resources": {"requests": {"cpu": "1"}},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": "train"}}
        pod = {"containers": [trainer], "volumes": [volume]}
        return {"replicas": count, "restartPolicy": "OnFailure", "template": {"spec": pod}}

    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {
            "name": "train",
            "namespace": "ns",
            "annotations": {f"{PREFIX}checkpoint-dir": "/data/c", f"{PREFIX}max-workers": "4"},
        },
        "spec": {"tfReplicaSpecs": {"Chief": replica(1), "Worker": replica(2)}},
    }


def at(*path: str | int, **values: Any) -> Edit:
    """Sets values in the object at a path below the Chief (or below the root, where the path begins with /)."""

    def edit(raw: Raw) -> None:
        found: Any = raw if path[:1] == ("/",) else raw["spec"]["tfReplicaSpecs"]["Chief"]
        for part in path[1:] if path[:1] == ("/",) else path:
            found = found.setdefault(part, {}) if isinstance(found, dict) else found[part]
        found.update(values)

    return edit


def renamed(old: str, new: str) -> Edit:
    def edit(raw: Raw) -> None:
        types = raw["spec"]["tfReplicaSpecs"]
        types[new] = types.pop(old)

    return edit


def without(name: str) -> Edit:
    return lambda raw: raw["spec"]["tfReplicaSpecs"].pop(name)


def both(*edits: Edit) -> Edit:
    def edit(raw: Raw) -> None:
        for each in edits:
            each(raw)

    return edit


def findings(edit: Edit = lambda _: None) -> list[Finding]:
    raw = sound()
    edit(raw)
    return [each for each in about_job(raw, NOW) if each.level != "ok"]


def test_a_valid_job_has_no_findings() -> None:
    assert findings() == []


POD = ("template", "spec")
TRAINER = (*POD, "containers", 0)
LONG = "t" * 53


@pytest.mark.parametrize(
    ("edit", "level", "about", "says"),
    [
        # Fields that v1 does not have, and where it has them.
        (at("/", "spec", cleanPodPolicy="All"), "error", "field", "write spec.runPolicy.cleanPodPolicy"),
        (at("/", "spec", ttlSecondsAfterFinished=1), "error", "field", "write spec.runPolicy.ttlSecondsAfterFinished"),
        (at("/", "spec", ttlSecondsAfterFinishing=1), "error", "field", "write spec.runPolicy.ttlSecondsAfterFinished"),
        (at("/", "spec", backofflimit=1), "error", "field", "write spec.runPolicy.backoffLimit"),
        (at("/", "spec", minAvailable=1), "error", "field", "write spec.runPolicy.schedulingPolicy.minAvailable"),
        (at("/", "spec", min_instances=1), "error", "field", "remove the field"),
        (at("/", "metadata", label={}), "error", "field", "write metadata.labels"),
        (at(nodeSelector={}), "error", "field", "write spec.tfReplicaSpecs[Chief].template.spec.nodeSelector"),
        (at(*POD, imagePullsecrets=[]), "error", "field", "template.spec.imagePullSecrets"),
        (at(*TRAINER, imagePullpolicy="Always"), "error", "field", "containers[0].imagePullPolicy"),
        (at(*TRAINER, "resources", limit={}), "error", "field", "containers[0].resources.limits"),
        (at("/", "spec", restartPolicy="Never"), "error", "field", "write spec.tfReplicaSpecs[TYPE].restartPolicy"),
        (at("/", "spec", labels={}), "error", "field", "write metadata.labels"),
        (at("/", annotations={}), "error", "field", "write metadata.annotations"),
        # Annotations that nothing reads.
        (
            at("/", "metadata", "annotations", **{f"{PREFIX}max-worker": "3"}),
            "error",
            "annotation",
            "Did you mean max-workers?",
        ),
        (
            at("/", "metadata", "annotations", **{"kubeflow.org/max-workers": "3"}),
            "warning",
            "annotation",
            f"write {PREFIX}max-workers",
        ),
        (
            at("template", metadata={"annotations": {f"{PREFIX}loanable": "true"}}),
            "warning",
            "annotation",
            "is ignored in spec.tfReplicaSpecs[Chief].template.metadata.annotations",
        ),
        (at("/", "metadata", labels={f"{PREFIX}model": "m"}), "warning", "annotation", "ignored in metadata.labels"),
        # What the API server refuses of a pod.
        (
            at(*POD, initContainers=[{"name": "i", "image": "x", "volumeMounts": [{"name": "no", "mountPath": "/"}]}]),
            "error",
            "volume",
            "container i mounts volume no",
        ),
        (at(*TRAINER, "resources", limits={"cpu": "500m"}), "error", "resources", "more cpu (1) than its limit (500m)"),
        (at(*TRAINER, "resources", "requests", **{"nvidia.com/gpu": 1}), "error", "resources", "without a limit"),
        (
            at("template", metadata={"labels": {"app": "a b"}}),
            "error",
            "label",
            "'a b' is not a valid value of label app",
        ),
        (
            at(*TRAINER, ports=[{"containerPort": 2222, "name": "a"}, {"containerPort": 2223, "name": "a"}]),
            "error",
            "port",
            "two ports are named a",
        ),
        (
            at(*TRAINER, ports=[{"containerPort": 2222, "name": "a", "protocol": "tcp"}]),
            "error",
            "port",
            "did you mean TCP?",
        ),
        (at(*TRAINER, ports=[{"containerPort": 3333, "name": "tfjob"}]), "warning", "port", "TF_CONFIG uses port 2222"),
        # Values of another type.
        (at(replicas="1"), "error", "field", "Chief].replicas: it is '1'; allowed: a whole number"),
        (
            at("/", "metadata", "annotations", x=1),
            "error",
            "field",
            "metadata.annotations.x: it is 1; allowed: a string",
        ),
        (at(*TRAINER, env=[{"name": "A", "value": True}]), "error", "field", "value: it is true; allowed: a string"),
        (at(*TRAINER, env=[{"name": "A"}, {"name": "A"}]), "error", "field", "name A is given twice"),
        (at(*TRAINER, "resources", "requests", cpu="1x"), "error", "field", "'1x' is not a quantity"),
        (at("/", "metadata", name="9lives"), "error", "field", "metadata.name: '9lives'"),
        (at("/", "metadata", name="a.b"), "error", "field", "metadata.name: 'a.b'"),
        # Words that mean nothing.
        (renamed("Worker", "Workers"), "warning", "replica type", "did you mean Worker?"),
        (renamed("Chief", "Cheif"), "warning", "replica type", "did you mean Chief?"),
        (
            both(without("Worker"), renamed("Chief", "PS")),
            "error",
            "replica type",
            "never becomes Running or Succeeded",
        ),
        (at(replicas=0), "warning", "replicas", "Chief has 0 replicas"),
        (at(replicas=2), "warning", "replicas", "TensorFlow uses only one"),
        (at(restartPolicy="Onfailure"), "error", "restartPolicy", "did you mean OnFailure?"),
        (at(restartPolicy="Never"), "warning", "restartPolicy", "makes the elastic job fail"),
        (at(restartPolicy=None), "warning", "restartPolicy", "Never (the default)"),
        (at(restartPolicy="Always"), "warning", "restartPolicy", "never succeed"),
        (at(*POD, restartPolicy="Never"), "warning", "restartPolicy", "Never in the template is ignored"),
        (
            at("/", "spec", "runPolicy", cleanPodPolicy="OnCompletion"),
            "warning",
            "cleanPodPolicy",
            "allowed: None, Ru",
        ),
        (at("/", "spec", "runPolicy", cleanPodPolicy="running"), "warning", "cleanPodPolicy", "did you mean Running?"),
        (at("/", "spec", successPolicy="AllWorker"), "warning", "successPolicy", "did you mean AllWorkers?"),
        (at("/", "spec", successPolicy="AllWorkers"), "warning", "successPolicy", "has no effect: a job with a Chief"),
        # Names of the largest size.
        (at("/", "metadata", name="t" * 56), "error", "name", "has 64 characters"),
        (at("/", "metadata", name=f"{LONG}t"), "", "", ""),
        (
            both(
                at("/", "metadata", name=f"{LONG}t"),
                at("/", "metadata", "annotations", **{f"{PREFIX}max-workers": "11"}),
            ),
            "warning",
            "name",
            "max-workers: 11 is reduced to 10",
        ),
        (renamed("Worker", "Wor_ker"), "error", "name", "train-wor_ker-1 is not a valid Service name"),
        # Ports.
        (at(*TRAINER, ports=[{"containerPort": 3333}]), "warning", "port", "TF_CONFIG uses 2222 instead"),
        (at(*TRAINER, ports=[{"containerPort": 2222, "name": "Tf_Port"}]), "error", "port", "not a valid port name"),
        (at(*TRAINER, ports=[{"containerPort": 0, "name": "a"}]), "error", "port", "0 is not a port number"),
        # Programs.
        (at(*TRAINER, command=["sh", "-c", "cd /x && python3 t.py"]), "warning", "shell", "with exec"),
        (at(*TRAINER, command=None), "warning", "launcher", "the launcher cannot start Chief"),
        # Containers that keep the job from ending.
        (
            at(
                *POD,
                containers=[
                    *sound()["spec"]["tfReplicaSpecs"]["Chief"]["template"]["spec"]["containers"],
                    {"name": "istio-proxy", "image": "x"},
                ],
            ),
            "warning",
            "sidecar",
            "istio-proxy runs as long as its pod",
        ),
        (
            at("template", metadata={"annotations": {"sidecar.istio.io/inject": "true"}}),
            "warning",
            "sidecar",
            "istio-proxy",
        ),
        (
            at("template", metadata={"annotations": {"linkerd.io/inject": "enabled"}}),
            "warning",
            "sidecar",
            "container linkerd-proxy runs as long as its pod",
        ),
        # Checkpoints: not the same, or not writable, once the chief's pod is another one.
        (
            at(*POD, volumes=[{"name": "data", "emptyDir": {}}]),
            "warning",
            "checkpoint-dir",
            "an emptyDir, which is deleted",
        ),
        (
            at(*POD, volumes=[{"name": "data", "hostPath": {"path": "/d"}}]),
            "warning",
            "checkpoint-dir",
            "on another node",
        ),
        (
            at(*POD, volumes=[{"name": "data", "configMap": {"name": "c"}}]),
            "warning",
            "checkpoint-dir",
            "configMap volume",
        ),
        (
            at(*POD, volumes=[{"name": "data", "secret": {}}]),
            "warning",
            "checkpoint-dir",
            "checkpoints cannot be written",
        ),
        (at(*POD, volumes=[{"name": "data", "projected": {}}]), "warning", "checkpoint-dir", "checkpoints cannot be"),
        (at(*POD, volumes=[{"name": "data", "downwardAPI": {}}]), "warning", "checkpoint-dir", "checkpoints cannot be"),
        (at(*POD, volumes=[{"name": "data", "ephemeral": {}}]), "warning", "checkpoint-dir", "generic ephemeral"),
        (at(*POD, volumes=[{"name": "data", "csi": {"driver": "d"}}]), "warning", "checkpoint-dir", "inline CSI"),
        (
            at(*POD, volumes=[{"name": "data", "nfs": {"server": "s", "path": "/", "readOnly": True}}]),
            "warning",
            "checkpoint-dir",
            "mounted read-only",
        ),
        (at(*POD, volumes=[]), "error", "volume", "which the template does not define"),
        (
            at(
                *TRAINER,
                env=[
                    {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                    {"name": "PLACE", "value": "on-$(NODE)"},
                ],
                volumeMounts=[{"name": "data", "mountPath": "/data", "subPathExpr": "$(PLACE)/c"}],
            ),
            "warning",
            "checkpoint-dir",
            "may differ in the next pod",
        ),
        (
            at(*TRAINER, volumeMounts=[{"name": "data", "mountPath": "/data", "readOnly": True}]),
            "warning",
            "checkpoint-dir",
            "mounted read-only",
        ),
        (
            at(
                *TRAINER,
                env=[{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}],
                volumeMounts=[{"name": "data", "mountPath": "/data", "subPathExpr": "runs/$(POD)"}],
            ),
            "warning",
            "checkpoint-dir",
            "may differ in the next pod",
        ),
        (at(*TRAINER, volumeMounts=[]), "warning", "checkpoint-dir", "(Worker has one, but Chief writes"),
        (
            at("/", "metadata", "annotations", **{f"{PREFIX}checkpoint-dir": "data/c"}),
            "warning",
            "checkpoint-dir",
            "relative to the working directory",
        ),
        (
            at("/", "metadata", "annotations", **{f"{PREFIX}checkpoint-dir": "/data/../c"}),
            "warning",
            "checkpoint-dir",
            "not on a volume of Chief",
        ),
        (
            at("/", "metadata", "annotations", **{f"{PREFIX}checkpoint-dir": "/"}),
            "warning",
            "checkpoint-dir",
            "/ is not on",
        ),
    ],
)
def test_each_defect_of_a_job_is_found(edit: Edit, level: str, about: str, says: str) -> None:
    found = findings(edit)
    if not level:
        assert found == []
        return
    assert [(each.level, each.about) for each in found if says in f"{each.text} {each.do}"] == [(level, about)]


@pytest.mark.parametrize(
    "edit",
    [
        at(*POD, volumes=[{"name": "data", "nfs": {"server": "s", "path": "/"}}]),
        at(*POD, volumes=[{"name": "data", "hostPath": {"path": "/d"}}], nodeSelector={"kubernetes.io/hostname": "a"}),
        at("/", "metadata", "annotations", **{f"{PREFIX}checkpoint-dir": "gs://bucket/c"}),
        at("/", "metadata", "annotations", **{f"{PREFIX}checkpoint-dir": "file:///data/c/"}),
        at(*TRAINER, volumeMounts=[{"name": "data", "mountPath": "/data", "subPath": "runs"}]),
        both(renamed("Chief", "chief"), renamed("Worker", "WORKER")),  # v1 does not mind
        renamed("Chief", "Master"),
        at(restartPolicy="ExitCode"),
        at(*POD, restartPolicy="OnFailure"),
        at(*TRAINER, command=["sh", "-c", "python3 t.py > log 2>&1"]),
        at(*POD, initContainers=[{"name": "istio-proxy", "image": "x", "restartPolicy": "Always"}]),
        both(at("/", "metadata", labels={"a": "b"}, creationTimestamp=None), at("/", status={})),
        at(replicas=None),
        at("/", "spec", runPolicy=None, successPolicy=None),
    ],
)
def test_valid_changes_have_no_findings(edit: Edit) -> None:
    assert findings(edit) == []


@pytest.mark.parametrize(
    ("words", "waits"),
    [
        (["sh", "-c", "cd /x && python3 t.py"], True),
        (["/bin/bash", "-ec", "export A=1; python3 t.py"], True),
        (["bash", "-c", "python3 t.py | tee log"], True),
        (["bash", "-c", "pip install x\npython3 t.py\n"], True),
        (["bash", "-c", "--", "x"], False),
        (["tini", "--", "sh", "-c", "a; b"], True),
        (["env", "A=1", "sh", "-c", "cd x; python3 t.py"], True),
        (["/usr/bin/tini", "-g", "--", "bash", "-c", "set -e; python3 t.py && b"], True),
        (["timeout", "-k", "9", "3600", "/bin/sh", "-c", "cd x; python3 t.py"], True),
        (["busybox", "sh", "-c", "cd x; python3 t.py"], True),
        (["su", "-c", "cd x; python3 t.py", "trainer"], True),
        (["nice", "-n", "5", "python3", "t.py", "sh", "-c"], False),
        (["bash", "-c", "if true; then exec python3 t.py; fi"], False),
        (["bash", "-c", "cd /x && exec python3 t.py"], False),
        (["bash", "-c", "python3 t.py"], False),
        (["bash", "-c", "python3 t.py --words 'a; b && c'"], False),
        (["bash", "-c", "python3 t.py >log 2>&1"], False),
        (["bash", "-c", "trap 'kill $P' TERM; python3 t.py & P=$!; wait"], False),
        (["bash", "-c", "# first\nexec python3 t.py"], False),
        (["bash", "train.sh"], False),
        (["python3", "-c", "a; b"], False),
        (["sh", "-c"], False),
        (["sh", "-c", "echo 'no end; x"], False),
        ([], False),
    ],
)
def test_a_shell_that_stays_before_the_program_is_seen(words: list[str], waits: bool) -> None:
    assert shell_waits({"command": words}) is waits
    assert shell_waits({"command": words[:1], "args": words[1:]}) is waits


def test_the_claim_of_the_checkpoints_and_the_pods_that_mount_it() -> None:
    def claim(edit: Edit) -> tuple[str, int]:
        raw = sound()
        edit(raw)
        return claim_of_checkpoints(job_as_created(raw, NOW).spec(), "/data/c")

    assert claim(lambda _: None) == ("train", 3)
    assert claim(lambda raw: raw["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"].update(volumes=[])) == (
        "train",
        1,
    )
    assert claim(at(*POD, volumes=[{"name": "data", "emptyDir": {}}])) == ("", 0)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """`check --offline` where a kubeconfig that is read, or a cluster that is asked, is an error."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))

    def invoke(text: str, *words: str) -> Any:
        path = tmp_path / "job.yaml"
        path.write_text(text)
        return CliRunner().invoke(main, ["check", "--offline", "-f", str(path), *words])

    return invoke


def test_offline_a_file_is_enough(offline: Callable[..., Any]) -> None:
    result = offline(yaml.safe_dump(sound()))
    assert (result.exit_code, result.output) == (0, "ok:      elastic: the size may change: Worker 2 to 4\n")
    broken = copy.deepcopy(sound())
    broken["spec"]["cleanPodPolicy"] = "All"
    result = offline(yaml.safe_dump_all([{"kind": "List", "items": [sound(), broken]}, {"kind": "ConfigMap"}]))
    assert result.exit_code == 1
    assert "error:   train: field: spec.cleanPodPolicy: v1 has no such field" in result.output
    assert CliRunner().invoke(main, ["check", "--offline"]).exit_code == 2


def config_map(text: str, name: str = "elastic-tfjob-operator") -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"config.yaml": text}}


def test_offline_the_operators_configmap_in_a_file_is_checked(offline: Callable[..., Any]) -> None:
    result = offline(yaml.safe_dump(config_map("profile: elastic\nprofiles: {elastic: {lend: none}}")))
    assert (result.exit_code, result.output.count("\n")) == (0, 1)
    assert result.output.endswith("valid: profile elastic, scope annotated\n")
    result = offline(yaml.safe_dump_all([sound(), config_map("autoscaling: {compact: {node: a}}")]))
    assert result.exit_code == 1
    assert "config.yaml: autoscaling.compact.node is not known; allowed: nodes, after_s, every_s" in result.output
    assert "ok:      elastic: the size may change: Worker 2 to 4" in result.output
    result = offline(yaml.safe_dump(config_map("{}", "other")))
    assert "contains no object of kind TFJob, and no ConfigMap elastic-tfjob-operator" in result.output


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("profiles: {elastic: {lend: none, teams: {}}}", ["profiles.elastic.teams"]),
        ("autoscaling: {order: {when: always}, compact: {nodes: a}}", ["autoscaling.order", "autoscaling.compact"]),
        ("autoscaling: {order: {when: never}, compact: {nodes: ''}, spot: a}", []),
        ("profile: kips\nprofiles: {elastic: {teams: {}}, kips: {cooldown_s: 1}}", ["profiles.elastic.teams"]),
        ("profile: kips\nautoscaling: {order: {when: always}}", []),
        ("{}", []),
    ],
)
def test_blocks_that_the_profile_does_not_read_are_warnings(
    offline: Callable[..., Any], text: str, parts: list[str]
) -> None:
    result = offline(yaml.safe_dump(config_map(text)))
    profile = "kips" if "kips" in text else "fixed, because the key profile is missing"
    told = [line.partition("yaml: ")[2] for line in result.output.splitlines() if line.startswith("warning:")]
    assert told == [f"{part} has no effect: the profile is {profile}" for part in parts]
    assert result.exit_code == 0


def test_a_key_that_is_given_twice_is_reported_though_kubectl_is_silent(offline: Callable[..., Any]) -> None:
    text = yaml.safe_dump(sound()) + "kind: TFJob\n"
    assert "warning: file: line 1" not in offline(yaml.safe_dump(sound())).output
    assert "the key 'kind' is given twice; the last value is used" in offline(text).output


def test_the_documented_deadline_needs_no_quotes(offline: Callable[..., Any]) -> None:
    raw = sound()
    raw["metadata"]["annotations"] |= {f"{PREFIX}deadline": "WHEN", f"{PREFIX}total-steps": "100"}
    result = offline(yaml.safe_dump(raw).replace("WHEN", "2026-01-31T18:00:00Z"))
    assert (result.exit_code, "error" in result.output) == (0, False)
