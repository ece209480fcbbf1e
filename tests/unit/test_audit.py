"""What the roles give beside what the audit log shows (harness.audit)."""

import json
from datetime import UTC, datetime, timedelta
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


def by(pod: str, at_s: float, verb: str, resource: str = "pods", *, took_s: float = 0.01, **more: Any) -> str:
    """A line of a request that came in `at_s` seconds after a moment, with the token of a pod."""
    begun = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=at_s)
    name, _, group = resource.partition(".")
    user: dict[str, Any] = {"username": f"system:serviceaccount:ns:{audit.ACCOUNT}"}
    if pod:
        user["extra"] = {"authentication.kubernetes.io/pod-name": [pod]}
    entry = {
        "user": user,
        "verb": verb,
        "objectRef": {"resource": name} | ({"apiGroup": group} if group else {}),
        "requestURI": f"/{name}",
        "responseStatus": {"code": 200},
        "requestReceivedTimestamp": begun.isoformat(),
        "stageTimestamp": (begun + timedelta(seconds=took_s)).isoformat(),
    }
    return json.dumps(entry | more)


def lease(pod: str, at_s: float, *, verb: str = "update", **more: Any) -> str:
    return by(pod, at_s, verb, audit.LEASES, **more)


def test_rights_that_nobody_used_are_found() -> None:
    granted = audit.granted([ROLE, OTHER, binding("r", audit.ACCOUNT), binding("other", "somebody")])
    assert sorted(map(str, granted)) == ["list pods", "list services", "update tfjobs/finalizers.kubeflow.org"]
    log = [line("list", "pods"), line("list", "services", account="somebody"), '{"torn']
    assert audit.unused(granted, audit.requests(log).asked) == ["list services"]
    assert audit.unused(granted, audit.requests(log).asked, {"list services": "why"}) == []


def test_refused_requests_are_reported_with_an_example() -> None:
    log = [line("list", "pods", second=1), line("patch", "pods/resize", second=2, decision="forbid")]
    found = audit.requests(log)
    assert {str(right): example for right, example in found.refused.items()} == {"patch pods/resize": "/pods/resize"}
    since = datetime(2026, 1, 1, 0, 0, 2, tzinfo=UTC)
    assert list(map(str, audit.requests(log, since=since).asked)) == ["patch pods/resize"]


def test_a_right_used_once_in_a_clusters_life_does_not_count_as_unused() -> None:
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


def test_a_write_beside_the_leader_is_found() -> None:
    log = [
        lease("a", 0, verb="create"),
        by("a", 1, "create"),
        by("b", 2, "patch", "tfjobs.kubeflow.org"),
        lease("b", 3),
        by("b", 4, "deletecollection"),
        by("a", 5, "delete"),
        '{"torn',
    ]
    assert audit.beside_the_leader(log) == [
        "2026-01-01T00:00:02+00:00 b: patch /tfjobs; a had the lease at 2026-01-01T00:00:00.010000+00:00",
        "2026-01-01T00:00:05+00:00 a: delete /pods; b had the lease at 2026-01-01T00:00:03.010000+00:00",
    ]
    # Who leads when it begins was decided before.
    (late,) = audit.beside_the_leader(log, since=datetime(2026, 1, 1, 0, 0, 3, 500_000, tzinfo=UTC))
    assert "a: delete" in late
    assert audit.beside_the_leader(log, account="somebody") == []


def test_a_request_from_before_a_change_of_leaders_may_end_after_it() -> None:
    log = [
        lease("a", 0),
        lease("b", 3, took_s=0.5),
        by("a", 3.2, "patch"),  # nobody has been told yet that b leads
        by("b", 3.6, "patch"),
        by("a", 2.9, "patch", took_s=2),
    ]
    assert audit.beside_the_leader(log) == []
    assert len(audit.beside_the_leader([*log, by("a", 3.55, "patch")])) == 1


def test_lines_need_not_be_in_order() -> None:
    log = [by("b", 4, "patch"), lease("b", 3), by("a", 1, "create"), lease("a", 0)]
    assert audit.beside_the_leader(log) == []


@pytest.mark.parametrize(
    "other",
    [
        by("b", 2, "create", "events"),
        by("b", 2, "create", "tokenreviews.authentication.k8s.io"),
        by("b", 2, "get"),
        by("b", 2, "watch"),
        by("b", 2, "patch", requestURI="/pods?dryRun=All"),
        by("b", 2, "patch", responseStatus={"code": 409}),
        lease("b", 2, responseStatus={"code": 409}),
        lease("b", 2, requestURI="/leases?dryRun=All"),
    ],
)
def test_a_standby_may_read_write_events_and_fail(other: str) -> None:
    """And none of it makes a leader."""
    assert audit.beside_the_leader([lease("a", 0), other, by("a", 3, "patch")]) == []


def test_without_a_lease_there_is_no_leader_to_write_beside() -> None:
    assert audit.beside_the_leader([by("a", 0, "patch"), by("b", 1, "patch")]) == []
    assert audit.beside_the_leader([by("b", 0, "patch"), lease("a", 1)]) == []


def test_a_token_of_no_pod_does_not_pass_for_the_leaders() -> None:
    """Else an API server that does not tell pods apart would let all pass."""
    assert len(audit.beside_the_leader([lease("", 0), by("", 1, "patch")])) == 1
