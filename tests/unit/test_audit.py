"""What the roles give beside what the audit log shows (harness.audit)."""

import json
from datetime import UTC, datetime
from typing import Any

from harness import audit

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
