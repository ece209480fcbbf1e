"""`what-if` and `check` at a terminal: what is asked of whom, what people read, what is refused before it is sent."""

import json
from collections.abc import Mapping
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result

from elastic_tfjob.api.crd import custom_resource_definition
from elastic_tfjob.commands import what_if as command
from elastic_tfjob.commands.check import about_job
from elastic_tfjob.controller.kube.errors import ApiError, NotFound, error_of
from elastic_tfjob.controller.query.rows.question import Question
from harness.hostile_text import ALIASES, MERGE_KEYS
from harness.packages import install, install_small_first
from unit.build import raw_node
from unit.query.build import running, tfjob

from .conftest import Ask

PROXY = "/api/v1/namespaces/kubeflow/services/elastic-tfjob-query:http/proxy/api/v1/what-if"
NOW = datetime(2026, 1, 2, 3, 20, tzinfo=UTC)


class Server:
    """Objects by path, a list's one after the other; an error is raised. `asked` is all that was posted."""

    def __init__(self, objects: Mapping[str, Any] | None = None, token: str = "t") -> None:
        self.objects = dict(objects or {})
        self.asked: list[tuple[str, Any, Any]] = []
        self.of_user = token

    async def token(self) -> str:
        return self.of_user

    async def once(
        self,
        method: str,
        path: str,
        body: Any = None,
        timeout_s: float = 5.0,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        if method == "POST":
            self.asked.append((path, body, headers))
        found = self.objects.get(path.partition("?limit")[0])
        if isinstance(found, list):
            found = found.pop(0)
        if isinstance(found, ApiError):
            raise found
        if found is None:
            raise NotFound(f"{method} {path}", 404, "NotFound", "no such thing")
        return found


def manifest(name: str = "new", **annotations: str) -> dict[str, Any]:
    raw = tfjob(name, annotations=annotations)
    kept = {"name": name, "annotations": raw["metadata"]["annotations"]}
    return {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": kept, "spec": raw["spec"]}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    made = manifest(**{"checkpoint-dir": "/c", "max-workers": "4"})
    for replica in made["spec"]["tfReplicaSpecs"].values():
        replica["restartPolicy"] = "OnFailure"
        pod = replica["template"]["spec"]
        pod["volumes"] = [{"name": "c", "persistentVolumeClaim": {"claimName": "c"}}]
        pod["containers"][0] |= {"command": ["python3"], "volumeMounts": [{"name": "c", "mountPath": "/c"}]}
    path.write_text(yaml.dump(made, Dumper=yaml.SafeDumper))
    return path


def row(name: str, **more: Any) -> dict[str, Any]:
    empty = dict.fromkeys(("starts_now", "starts_then", "ends_now", "ends_then", "later_s", "deadline", "source"))
    return {
        "namespace": "ns",
        "name": name,
        "state": "Running",
        **empty,
        "meets_now": None,
        "meets_then": None,
        "note": "",
    } | more


ANSWER = {
    "at": "2026-01-02T03:20:00Z",
    "profile_now": "kips",
    "profile_then": "deadline",
    "nodes_added": 2,
    "node": "16 CPU, 64 GiB",
    "items": [
        row("new", state="New", starts_then="2026-01-02T03:22:00Z", ends_then="2026-01-02T03:30:00Z", meets_then=False),
        row(
            "old",
            ends_now="2026-01-02T03:25:00Z",
            ends_then="2026-01-02T03:28:00Z",
            later_s=180.0,
            meets_then=False,
            meets_now=True,
        ),
        row("silent\x1b[2J", note="how fast it is is not known"),
    ],
    "total": 3,
    "changed": 1,
    "others": {"jobs": 4, "earlier": 1, "later": 2, "later_s": 60.0},
    "until_now": None,
    "until_then": "2026-02-01T00:00:00Z",
    "problems": [],
    "notes": ["1 TFJobs end nobody knows when"],
}


def test_the_answer_is_a_table_with_differences_and_what_is_not_known(ask: Ask, file: Path) -> None:
    server = Server({PROXY: ANSWER})
    result = ask(server, "what-if", "-f", str(file), "--add-nodes", "2", "--profile", "deadline")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0] == "At 2026-01-02T03:20:00Z, profile deadline instead of kips, 2 more nodes of 16 CPU, 64 GiB"
    assert lines[3].split() == ["ns", "new", "New", "2m", "10m", "missed"]
    assert lines[4].split() == ["ns", "old", "Running", "5m", "8m", "+3m", "missed", "(now", "met)"]
    assert "\x1b" not in result.output
    assert "4 jobs of other namespaces: 1 end earlier, 2 later, by 60s in total." in lines
    assert "The forecast with the change ends at 2026-02-01T00:00:00Z: computing more would take too long." in lines


def test_the_commands_question_is_valid_for_the_query_api(ask: Ask, file: Path) -> None:
    server = Server({PROXY: ANSWER})
    words = ("--add-nodes", "2", "--node-cpu", "16", "--node-memory", "64Gi", "--profile", "kips", "-o", "json")
    assert json.loads(ask(server, "what-if", "-f", str(file), *words).output) == ANSWER
    ((path, body, headers),) = server.asked
    question = Question.parse(body)
    assert (path, headers) == (PROXY, {"X-Elastic-Tfjob-Token": "t"})
    assert (question.key, question.add_nodes, question.namespace) == (("ns", "new"), 2, "ns")
    assert question.node is not None
    assert question.node.cpu_millicores == 16_000


def test_the_question_for_all_namespaces_names_none(ask: Ask) -> None:
    server = Server({PROXY: ANSWER})
    ask(server, "what-if", "--add-nodes", "1", "-A")
    assert server.asked[0][1] == {"add_nodes": 1}


@pytest.mark.parametrize(
    "words",
    [(), ("--node-cpu", "1", "--node-memory", "1Gi"), ("--add-nodes", "1", "--node-cpu", "1"), ("--add-nodes", "0")],
)
def test_a_question_that_makes_no_sense_is_wrong_usage(ask: Ask, words: tuple[str, ...]) -> None:
    assert ask(Server(), "what-if", *words).exit_code == 2


def test_refusals_of_the_query_api_are_told_in_its_words(ask: Ask) -> None:
    body = b'{"error": {"message": "it is not known", "where": "profile", "allowed": "kips"}}'
    result = ask(Server({PROXY: error_of("POST", 400, body, {})}), "what-if", "--profile", "x")
    assert (result.exit_code, result.stderr) == (1, "Error: profile: it is not known; allowed: kips\n")


def test_a_busy_query_api_is_asked_again_when_it_says_so(ask: Ask) -> None:
    busy = error_of("POST", 503, b'{"error": {"message": "this machine is busy"}}', {"Retry-After": "0.01"})
    server = Server({PROXY: [busy, busy, ANSWER]})
    result = ask(server, "what-if", "--add-nodes", "2")
    assert (result.exit_code, len(server.asked)) == (0, 3)
    assert result.stderr == "this machine is busy; retrying in 0 s\n" * 2
    away = Server({PROXY: error_of("POST", 503, b'{"message": "no endpoints"}', {})})
    assert ask(away, "what-if", "--add-nodes", "2").stderr == "Error: the query API does not answer: no endpoints\n"
    assert len(away.asked) == 1


def test_at_a_terminal_it_is_told_that_an_answer_takes_long(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True)
    busy = error_of("POST", 503, b'{"error": {"message": "there was no time"}}', {"Retry-After": "0.01"})
    result = ask(Server({PROXY: [busy, ANSWER]}), "what-if", "--add-nodes", "2", "-o", "json")
    assert json.loads(result.stdout)["nodes_added"] == 2
    assert "the operator computes the forecast" in result.stderr
    assert "retrying in 0 s" in result.stderr


def test_a_query_api_that_stays_busy_is_given_up(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_PATIENCE_S", 0.1)
    busy = error_of("POST", 503, b'{"error": {"message": "this machine is busy"}}', {"Retry-After": "0.04"})
    result = ask(server := Server({PROXY: busy}), "what-if", "--add-nodes", "2")
    assert (result.exit_code, len(server.asked) in {2, 3}) == (1, True)
    assert result.stderr.endswith("Error: the query API does not answer: this machine is busy\n")


def test_without_a_token_it_says_where_else_to_ask(ask: Ask) -> None:
    refused = error_of("POST", 401, b'{"error": {"message": "no token was sent"}}', {})
    result = ask(Server({PROXY: refused}, token=""), "what-if", "--add-nodes", "1")
    assert result.stderr == "Error: no token was sent; your kubeconfig has no token (see --query-url in --help)\n"


def test_a_token_does_not_cross_a_network_in_plain_text(ask: Ask) -> None:
    result = ask(Server(), "what-if", "--add-nodes", "1", "--query-url", "http://query.example:8082")
    assert (result.exit_code, "unencrypted" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "not YAML"),
        ("kind: Job", "no object of kind TFJob"),
        ("[" * 3000, "nested too deeply"),
        ("x" * 200_000, "the file is too large"),
        (f"kind: TFJob\n{ALIASES}", "too large or nested too deeply"),
        (f"kind: TFJob\n{MERGE_KEYS}", "too large or nested too deeply"),
        ("kind: TFJob\nspec: {a: .inf}", "put it in quotes"),
        ("kind: TFJob\nspec: {a: !!int x}", "'x' is not a !!int"),
        ("kind: TFJob\n--- kind: TFJob", "only a comment may follow ---"),
        ("apiVersion: kubeflow.org/v1beta1\nkind: TFJob\nmetadata: {}\nspec: {}", "elastic-tfjob convert -f"),
        ("kind: TFJob\napiVersion: v2\nmetadata: {}\nspec: {}", "apiVersion is 'v2'"),
    ],
)
def test_files_that_are_no_tfjob_are_refused_with_what_is_wrong(ask: Ask, tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "hostile.yaml"
    path.write_text(text)
    server = Server({PROXY: ANSWER})
    result = ask(server, "what-if", "-f", str(path))
    assert result.exit_code == 1
    assert says in result.stderr
    assert len(result.stderr) < 2000
    assert server.asked == []


# check

LEASE = "/apis/coordination.k8s.io/v1/namespaces/kubeflow/leases/elastic-tfjob-operator"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/tfjobs.kubeflow.org"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
JOBS = "/apis/kubeflow.org/v1/namespaces/ns/tfjobs"
CONFIG_MAP = "/api/v1/namespaces/kubeflow/configmaps/elastic-tfjob-operator"
DRY = "?dryRun=All&fieldValidation=Strict"
FORBIDDEN = error_of("GET", 403, b'{"message": "forbidden: no"}', {})


@cache
def _crd() -> dict[str, Any]:
    """To make it takes a quarter of a second of CPU."""
    return custom_resource_definition()


def configured(text: str) -> dict[str, Any]:
    return {"data": {"config.yaml": text}}


def sound(**more: Any) -> dict[str, Any]:
    """A cluster in which nothing is wrong."""
    admission = "/apis/admissionregistration.k8s.io/v1"
    names = ("elastic-tfjob-job-annotations", "elastic-tfjob-pod-annotations")
    kinds = ("validatingadmissionpolicies", "validatingadmissionpolicybindings")
    renewed = datetime.now(UTC) - timedelta(seconds=3)
    return {
        "/apis/kubeflow.org/v1": {},
        CRD: deepcopy(_crd()),
        LEASE: {"spec": {"holderIdentity": "pod-1", "renewTime": renewed.isoformat()}},
        **{f"{admission}/{kind}/{name}": {} for kind in kinds for name in names},
        REVIEWS: {"status": {"allowed": True}},
        CONFIG_MAP: configured("profile: elastic\nprofiles: {elastic: {lend: none}}"),
        "/api/v1/nodes": {"items": [raw_node("n1")]},
        "/apis": {"groups": [{"name": "apps"}]},
        JOBS: {"items": []},
        f"{JOBS}{DRY}": {},
        **{f"/api/v1/namespaces/ns/{kind}{DRY}": {} for kind in ("pods", "services")},
        "/api/v1/namespaces/ns/persistentvolumeclaims/c": {"spec": {"accessModes": ["ReadWriteMany"]}},
    } | more


def levels(result: Result) -> dict[str, str]:
    return {each["about"]: each["level"] for each in json.loads(result.stdout)}


def test_a_sound_cluster_is_ok_and_ends_with_0(ask: Ask, file: Path) -> None:
    result = ask(Server(sound()), "check", "-f", str(file), "-o", "json")
    assert set(levels(result).values()) == {"ok"}
    assert result.exit_code == 0


def test_check_warns_and_exits_with_0_where_the_user_may_not_read_an_object(ask: Ask) -> None:
    forbidden = dict.fromkeys((LEASE, CRD, JOBS, CONFIG_MAP, "/api/v1/nodes"), FORBIDDEN)
    result = ask(Server(sound(**forbidden)), "check", "-o", "json")
    found = levels(result)
    names = ("operator", "CRD", "CRD's version", "job reports", "configuration")
    assert [found[name] for name in names] == ["warning", "ok", "warning", "warning", "warning"]
    assert result.exit_code == 0


ELASTIC = "profile: elastic\nprofiles: {elastic: {lend: none}}\n"


@pytest.mark.parametrize(
    ("objects", "level", "says"),
    [
        ({CONFIG_MAP: configured("lend: none")}, "error", "config.yaml: lend is not known; allowed: profile, scope"),
        ({CONFIG_MAP: {"data": {}}}, "error", "the key config.yaml is missing"),
        ({CONFIG_MAP: None}, "warning", "namespace kubeflow has no ConfigMap elastic-tfjob-operator: the defaults"),
        (
            {CONFIG_MAP: configured(f"{ELASTIC}autoscaling: {{compact: {{nodes: pool=a}}}}")},
            "warning",
            "autoscaling.compact.nodes: no node has the labels pool=a",
        ),
        (
            {CONFIG_MAP: configured(f"{ELASTIC}autoscaling: {{spot: cheap}}")},
            "warning",
            "autoscaling.spot: no node has the labels cheap",
        ),
        (
            {CONFIG_MAP: configured(f"{ELASTIC}autoscaling: {{order: {{cpu: '5'}}}}")},
            "warning",
            "autoscaling.order has no effect: no autoscaler was found",
        ),
    ],
)
def test_check_reports_what_is_wrong_in_the_live_configuration(
    ask: Ask, objects: dict[str, Any], level: str, says: str
) -> None:
    result = ask(Server(sound(**objects)), "check", "-o", "json")
    found = [each for each in json.loads(result.stdout) if each["about"] == "configuration" and says in each["text"]]
    assert [each["level"] for each in found] == [level], result.stdout
    assert result.exit_code == (level == "error")


@pytest.mark.parametrize(
    "more",
    [
        {"/apis": {"groups": [{"name": "karpenter.sh"}]}},
        {"/api/v1/nodes": {"items": [raw_node("n1", labels={"cloud.google.com/gke-nodepool": "a"})]}},
        {"/api/v1/nodes": FORBIDDEN},
    ],
)
def test_check_is_silent_about_orders_with_an_autoscaler_and_where_nodes_cannot_be_read(
    ask: Ask, more: dict[str, Any]
) -> None:
    config_map = {CONFIG_MAP: configured(f"{ELASTIC}autoscaling: {{order: {{cpu: '5'}}}}")}
    assert set(levels(ask(Server(sound(**config_map, **more)), "check", "-o", "json")).values()) == {"ok"}


UNBUILDABLE = """
from elastic_tfjob.scheduling.core import ProfileParameters

class Parameters(ProfileParameters):
    def stages(self):
        raise KeyError("boom")
"""


def test_check_builds_the_profiles_that_are_installed_here(ask: Ask, site: Path) -> None:
    install_small_first(site)
    install(site, "acme", "mine", UNBUILDABLE, "mine = mine:Parameters")
    result = ask(Server(sound()), "check", "-o", "json")
    found = {each["about"]: each for each in json.loads(result.stdout)}
    assert found["profile small-first"]["level"] == "ok"
    assert found["profile mine"]["level"] == "warning"
    assert "by package acme 1.0, but cannot be built with its defaults: " in found["profile mine"]["text"]
    assert found["profile mine"]["text"].endswith("KeyError: 'boom'")


@pytest.mark.parametrize(
    ("objects", "about"),
    [
        ({LEASE: None}, "operator"),
        ({LEASE: {"spec": {"holderIdentity": "", "renewTime": "2026-01-01T00:00:00Z"}}}, "operator"),
        ({LEASE: {"spec": {"holderIdentity": "x", "renewTime": "2020-01-01T00:00:00Z"}}}, "operator"),
        ({"/apis/kubeflow.org/v1": None}, "CRD"),
        ({CRD: None}, "CRD"),
        ({f"{JOBS}{DRY}": FORBIDDEN}, "API server"),
    ],
)
def test_check_exits_with_1_where_something_does_not_work(
    ask: Ask, file: Path, objects: dict[str, Any], about: str
) -> None:
    result = ask(Server(sound(**objects)), "check", "-f", str(file), "-o", "json")
    assert (levels(result)[about], result.exit_code) == ("error", 1)


def modes(*names: str) -> dict[str, Any]:
    return {"spec": {"accessModes": list(names)}}


PODS = f"/api/v1/namespaces/ns/pods{DRY}"
CLAIM = "/api/v1/namespaces/ns/persistentvolumeclaims/c"
QUOTA = error_of("POST", 403, b'{"message": "exceeded quota: cpu", "reason": "Forbidden"}', {})
UNKNOWN = error_of("POST", 400, b'{"message": "strict decoding error: unknown field \\"spec.a\\"", "reason": "x"}', {})


@pytest.mark.parametrize(
    ("objects", "told"),
    [
        ({PODS: QUOTA}, ("pod of Worker", "error", "refuses it in this namespace: exceeded quota: cpu")),
        ({PODS: [QUOTA, {}, {}, {}]}, ("pod of Chief", "error", "without the operator's additions")),
        ({f"/api/v1/namespaces/ns/services{DRY}": QUOTA}, ("Service of Worker", "error", "exceeded quota")),
        (
            {REVIEWS: {"status": {"allowed": False}}},
            ("pods", "warning", "not checked, because you may not create pods"),
        ),
        ({f"{JOBS}{DRY}": UNKNOWN}, ("API server", "error", "v1 has no field spec.a")),
        ({CLAIM: None}, ("checkpoint-dir", "warning", "has no PersistentVolumeClaim c")),
        ({CLAIM: modes("ReadOnlyMany")}, ("checkpoint-dir", "warning", "checkpoints cannot be written")),
        ({CLAIM: modes("ReadWriteOnce")}, ("checkpoint-dir", "warning", "must all run on one node")),
        ({CLAIM: modes("ReadWriteOncePod")}, ("checkpoint-dir", "warning", "only one of them can start")),
    ],
)
def test_check_reports_what_the_rules_of_the_namespace_do_to_the_jobs_pods(
    ask: Ask, file: Path, objects: dict[str, Any], told: tuple[str, str, str]
) -> None:
    about, level, says = told
    result = ask(Server(sound(**objects)), "check", "-f", str(file), "-o", "json")
    found = [each for each in json.loads(result.stdout) if each["about"] == about and says in each["text"]]
    assert [each["level"] for each in found] == [level], result.stdout


def test_an_old_crd_missing_policies_and_rights_are_warnings_with_what_to_do(ask: Ask) -> None:
    old = {"spec": {"versions": [{"name": "v1", "additionalPrinterColumns": [{"name": "State"}]}]}}
    policy = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/elastic-tfjob-pod-annotations"
    denied = {"status": {"allowed": False}}
    result = ask(Server(sound(**{CRD: old, policy: None, REVIEWS: denied})), "check")
    assert result.exit_code == 0
    assert "warning: CRD: the CRD is older than this command, or upstream's: it lacks the columns " in result.output
    assert "-> elastic-tfjob crd | kubectl apply --server-side -f -" in result.output
    assert "warning: admission policy elastic-tfjob-pod-annotations: " in result.output
    assert (
        "warning: rights: you may not patch tfjobs in namespace ns (for: scale, auto, suspend, resume)" in result.output
    )


def test_jobs_that_run_and_tell_nothing_are_named(ask: Ask) -> None:
    result = ask(Server(sound(**{JOBS: {"items": [running("quiet")]}})), "check")
    assert "1 running jobs have reported no step for 300 s: quiet" in result.output


def found_of(raw: dict[str, Any]) -> dict[str, tuple[str, str]]:
    raw["metadata"]["namespace"] = "ns"
    return {each.about: (each.level, each.text) for each in about_job(raw, NOW)}


def test_a_job_that_can_be_rescaled_is_told_within_which_bounds() -> None:
    assert found_of(manifest(**{"checkpoint-dir": "/c", "max-workers": "4"}))["elastic"] == (
        "ok",
        "the size may change: Worker 2 to 4",
    )


def test_a_job_without_a_checkpoint_dir_is_told_that_it_needs_one() -> None:
    level, text = found_of(manifest(**{"max-workers": "4"}))["elastic"]
    assert (level, "it has no annotation elastic.kubeflow.org/checkpoint-dir" in text) == ("warning", True)


def test_each_wrong_annotation_is_an_error() -> None:
    raw = manifest(**{"max-workers": "many", "deadlin": "1h"})
    found = about_job({**raw, "metadata": {**raw["metadata"], "namespace": "ns"}}, NOW)
    assert [each.level for each in found if each.about == "annotation"] == ["error", "error"]


def test_a_container_without_a_command_cannot_be_wrapped() -> None:
    assert "the launcher cannot start" in found_of(manifest(**{"checkpoint-dir": "/c"}))["launcher"][1]


PVC = {"persistentVolumeClaim": {"claimName": "c"}}


@pytest.mark.parametrize(
    ("directory", "volumes", "mounts", "told"),
    [
        ("/data/c", {"d": {"emptyDir": {}}}, {"d": "/data"}, "/data/c is on an emptyDir"),
        ("/data/c", {"d": {"emptyDir": {}}, "p": PVC}, {"d": "/data", "p": "/data/c"}, ""),
        ("/data/c", {"d": {"emptyDir": {}}, "p": PVC}, {"d": "/data/c/", "p": "/data"}, "an emptyDir"),
        ("/database", {"p": PVC}, {"p": "/data"}, "/database is not on a volume"),
        ("file:///data/c", {"p": PVC}, {"p": "/data"}, ""),
        ("gs://data/c", {}, {}, ""),
        ("/data/c", {}, {}, "/data/c is not on a volume"),
    ],
)
def test_checkpoints_that_go_with_the_chiefs_pod_are_told(
    directory: str, volumes: dict[str, Any], mounts: dict[str, str], told: str
) -> None:
    raw = manifest(**{"checkpoint-dir": directory})
    pod = raw["spec"]["tfReplicaSpecs"]["Chief"]["template"]["spec"]
    pod["volumes"] = [{"name": name, **volume} for name, volume in volumes.items()]
    pod["containers"][0]["volumeMounts"] = [{"name": name, "mountPath": at} for name, at in mounts.items()]
    found = found_of(raw).get("checkpoint-dir")
    assert (found is None) if not told else (found is not None and found[0] == "warning" and told in found[1])


def test_mounts_of_a_wrong_type_are_an_error_and_no_traceback() -> None:
    raw = manifest(**{"checkpoint-dir": "/c"})
    raw["spec"]["tfReplicaSpecs"]["Chief"]["template"]["spec"]["containers"][0]["volumeMounts"] = [7]
    assert found_of(raw)["spec"][0] == "error"


def test_a_spec_that_no_tfjob_may_have_is_an_error_for_each_problem() -> None:
    raw = manifest()
    raw["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] = -1
    assert found_of(raw)["spec"][0] == "error"


def test_a_deadline_that_cannot_be_judged_is_told() -> None:
    found = found_of(manifest(deadline="1h", **{"checkpoint-dir": "/c"}))
    assert found["deadline"][0] == "warning"
