"""What the roles give beside what the audit log shows (harness.audit)."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness import audit, cluster
from harness.progress import run

ROLE = {
    "kind": "ClusterRole",
    "metadata": {"name": "r"},
    "rules": [
        {"apiGroups": [""], "resources": ["pods", "services"], "verbs": ["list"]},
        {"apiGroups": ["kubeflow.org"], "resources": ["tfjobs/finalizers"], "verbs": ["update"]},
    ],
}
OTHER = {
    **ROLE,
    "metadata": {"name": "other"},
    "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}],
}


def binding(role: str, account: str) -> dict[str, Any]:
    subject = {"kind": "ServiceAccount", "name": account}
    return {"kind": "ClusterRoleBinding", "roleRef": {"kind": "ClusterRole", "name": role}, "subjects": [subject]}


def line(verb: str, resource: str, *, account: str = audit.ACCOUNT, second: int = 0, decision: str = "allow") -> str:
    name, _, subresource = resource.partition("/")
    return json.dumps(
        {
            "user": {"username": f"system:serviceaccount:ns:{account}"},
            "verb": verb,
            "objectRef": {"resource": name, "subresource": subresource},
            "requestURI": f"/{resource}",
            "requestReceivedTimestamp": f"2026-01-01T00:00:{second:02}.000000Z",
            "annotations": {"authorization.k8s.io/decision": decision},
        }
    )


def test_rights_that_nobody_used_are_found() -> None:
    granted = audit.granted([ROLE, OTHER, binding("r", audit.ACCOUNT), binding("other", "somebody")])
    assert sorted(map(str, granted)) == ["list pods", "list services", "update tfjobs/finalizers.kubeflow.org"]
    log = [line("list", "pods"), line("list", "services", account="somebody"), '{"torn']
    assert audit.unused(granted, audit.requests(log).asked) == ["list services"]
    assert audit.unused(granted, audit.requests(log).asked, {"list services": "why"}) == []


def test_what_was_refused_is_told_with_an_example() -> None:
    log = [line("list", "pods", second=1), line("patch", "pods/resize", second=2, decision="forbid")]
    found = audit.requests(log)
    assert {str(right): example for right, example in found.refused.items()} == {"patch pods/resize": "/pods/resize"}
    since = datetime(2026, 1, 1, 0, 0, 2, tzinfo=UTC)
    assert list(map(str, audit.requests(log, since=since).asked)) == ["patch pods/resize"]


def test_what_an_operator_does_once_in_a_clusters_life_is_not_asked_for_again() -> None:
    """The lease is made before the scenarios on the kind cluster begin, and stays."""
    once = {audit.Right("leases", "coordination.k8s.io", "create")}
    assert audit.unused(once, set(), audit.RARE, audit.NOT_IN_E2E) == []
    assert audit.unused(once, set(), audit.RARE) == ["create leases.coordination.k8s.io"]


def test_a_log_that_grew_too_large_is_read_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server renames what is full, so what the operator asked for at first is in another file."""
    (tmp_path / "audit-2026-01-01T00-00-07.123.log").write_text(line("list", "pods", second=1) + "\n")
    (tmp_path / "audit-2026-01-01T00-00-09.123.log").write_text(line("list", "services", second=8) + "\n")
    (tmp_path / "audit.log").write_text(line("patch", "events", second=10) + "\n")
    monkeypatch.setattr(cluster, "AUDIT_LOGS", str(tmp_path))
    monkeypatch.setattr(
        cluster.Cluster, "_containers", lambda _: ["elastic-tfjob-control-plane", "elastic-tfjob-worker"]
    )
    monkeypatch.setattr(cluster.Cluster, "on_node", lambda _, __, *command: run(list(command)))
    found = audit.requests(cluster.Cluster("elastic-tfjob", tmp_path / "kubeconfig").audit_log())
    assert sorted(map(str, found.asked)) == ["list pods", "list services", "patch events"]


def test_the_log_of_the_cluster_does_not_fill_the_disk() -> None:
    """Nor is it too small: all scenarios take 40 minutes, and at 50 requests a second that are 120 MB."""
    (patch,) = [
        text
        for text in yaml.safe_load(cluster.CONFIGS["standard"].read_text())["kubeadmConfigPatches"]
        if "audit" in text
    ]
    arguments = yaml.safe_load(patch)["apiServer"]["extraArgs"]
    size_mb, old = int(arguments["audit-log-maxsize"]), int(arguments["audit-log-maxbackup"])
    assert 150 <= size_mb * old <= 500
    assert arguments["audit-log-path"] == f"{cluster.AUDIT_LOGS}/audit.log"


def test_a_component_is_compared_beyond_the_overlay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "rendered", lambda: [ROLE, binding("r", audit.ACCOUNT)])
    used = [line("list", "pods"), line("get", "nodes"), line("patch", "nodes")]
    assert audit.differs_from("loans", used) == []
    assert audit.differs_from("loans", used[:2]) == ["not used: patch nodes"]
    more = [*used, line("delete", "nodes"), line("update", "nodes", decision="forbid")]
    assert audit.differs_from("loans", more) == [
        "refused: update nodes (/nodes)",
        "not granted: delete nodes",
        "not granted: update nodes",
    ]
    assert sorted(map(str, audit.of_component("query-api"))) == [
        "create subjectaccessreviews.authorization.k8s.io",
        "create tokenreviews.authentication.k8s.io",
    ]
