"""What the operator may do beside what it does: the roles of its manifests, and the API server's audit log.

    PYTHONPATH=tests python3 -m harness.audit AUDIT.LOG...    # both, for what `kubectl kustomize` makes of the overlay

A verb that is granted and never used is a right that only an attacker needs; one that is used and not granted fails.
"""

import json
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from harness import binaries
from harness.progress import main, run

ROOT = Path(__file__).resolve().parents[2]
OVERLAY = ROOT / "manifests" / "overlays" / "standalone"
ACCOUNT = "elastic-tfjob-operator"

POLICY = ROOT / "e2e" / "audit-policy.yaml"
"""What an API server is to log."""

NEVER_ASKED = {
    "write operatorannotations.elastic.kubeflow.org": "no request, but what the ValidatingAdmissionPolicies ask for",
    "write nodeloans.elastic.kubeflow.org": "no request, but what the policy of the component loans asks for",
    "update tfjobs/finalizers.kubeflow.org": "asked for by the admission plugin OwnerReferencesPermissionEnforcement",
    "update jobsets/finalizers.jobset.x-k8s.io": "the same",
}
"""Rights that no request shows, and why they are there."""
_GANG_VERBS = ("list", "watch", "create", "patch", "delete")
_GROUPS = ("scheduling.volcano.sh", "scheduling.x-k8s.io")
RARE = {
    "patch events": "an event that is repeated is counted every 5 minutes",
    "get poddisruptionbudgets.policy": "when the answer to a creation was lost",
    "list resourcequotas": "before all pods of a job are recreated",
    "patch configmaps": "a minute after a job has succeeded",
    "get tfjobs.kubeflow.org": "when something of the job was not found: it may be gone, and its watch late",
    **{f"get podgroups.{group}": "when the answer to a creation was lost" for group in _GROUPS},
}
"""Rights that a run need not use, and when they are."""
NOT_IN_E2E = {
    **{f"{verb} podgroups.{group}": "no gang scheduler runs there" for verb in _GANG_VERBS for group in _GROUPS},
    "create leases.coordination.k8s.io": "when the first operator comes to a cluster, before the scenarios begin",
    "get services": "when a service's name is taken",
    "patch services": "when a service without an owner is adopted",
    "delete tfjobs.kubeflow.org": "when ttlSecondsAfterFinished has passed",
}
"""Rights that the scenarios on the kind cluster do not use; tests/integration/test_rights.py does."""

WRITES = {"create", "update", "patch", "delete", "deletecollection"}
LEASES = "leases.coordination.k8s.io"
BY_ALL = {
    "events": "whoever has something to tell tells it",
    LEASES: "whoever wants to lead writes it",
    "tokenreviews.authentication.k8s.io": "a question: every replica answers queries",
    "subjectaccessreviews.authorization.k8s.io": "the same",
}
"""What replicas write that do not lead, and why they may."""


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """A verb on a resource or subresource. As text: `patch pods/resize`, `list tfjobs.kubeflow.org`."""

    resource: str
    group: str
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}" + (f".{self.group}" if self.group else "")


@dataclass(slots=True)
class Requests:
    """What an account asked for, and which of that the API server did not authorize, with an example each."""

    asked: set[Right] = field(default_factory=set)
    refused: dict[Right, str] = field(default_factory=dict)


def granted(objects: Iterable[Mapping[str, Any]], account: str = ACCOUNT) -> set[Right]:
    """The rights that the bindings among `objects` give to a ServiceAccount."""
    listed = list(objects)
    roles = {(item["kind"], item["metadata"]["name"]): item for item in listed if item["kind"].endswith("Role")}
    found: set[Right] = set()
    for binding in listed:
        if not binding["kind"].endswith("RoleBinding"):
            continue
        if any((who["kind"], who["name"]) == ("ServiceAccount", account) for who in binding["subjects"]):
            for rule in roles[binding["roleRef"]["kind"], binding["roleRef"]["name"]]["rules"]:
                found |= {
                    Right(resource, group, verb)
                    for group in rule["apiGroups"]
                    for resource in rule["resources"]
                    for verb in rule["verbs"]
                }
    return found


def requests(log: Iterable[str], account: str = ACCOUNT, since: datetime | None = None) -> Requests:
    """What a ServiceAccount (in whatever namespace) asked for, by the lines of an audit log."""
    found = Requests()
    for event in _events(log, account):
        if since is not None and _received(event) < since:
            continue
        about = event["objectRef"]
        resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
        right = Right(resource, about.get("apiGroup", ""), event["verb"])
        found.asked.add(right)
        if (event.get("annotations") or {}).get("authorization.k8s.io/decision") == "forbid":
            found.refused.setdefault(right, event["requestURI"])
    return found


def beside_the_leader(log: Iterable[str], account: str = ACCOUNT, since: datetime | None = None) -> list[str]:
    """What pods of a ServiceAccount wrote while another one led, in words. Who leads is whose write of the lease was
    answered last; without a lease there is nothing to judge.

    A write counts by when it came in, a lease by when it was answered. A leader acts only after that answer, so none of
    its own writes is taken for another's. What came in before may be carried out after it: no lease can prevent that.
    What a leader writes after it gave its lease back is not seen until another has taken it: the log has no contents.
    """
    terms: list[tuple[datetime, str]] = []
    written: list[tuple[datetime, str, str]] = []
    for event in _events(log, account):
        about, verb = event["objectRef"], event["verb"]
        resource = about["resource"] + (f".{group}" if (group := about.get("apiGroup")) else "")
        done = event.get("responseStatus", {}).get("code", 0) // 100 == 2
        if verb not in WRITES or not done or "dryRun=" in event["requestURI"]:
            continue
        if resource == LEASES and not verb.startswith("delete"):
            terms.append((datetime.fromisoformat(event["stageTimestamp"]), _pod(event)))
        if resource not in BY_ALL:
            written.append((_received(event), _pod(event), f"{verb} {event['requestURI']}"))
    terms.sort()  # requests that are answered at nearly the same moment are logged in any order
    found = []
    for at, pod, what in sorted(written):
        known = bisect_right(terms, at, key=lambda term: term[0])
        if not known or (since is not None and at < since):
            continue
        then, leader = terms[known - 1]
        if pod != leader or not pod:
            found.append(f"{at.isoformat()} {pod or 'no pod'}: {what}; {leader} had the lease at {then.isoformat()}")
    return found


def _events(log: Iterable[str], account: str) -> Iterator[dict[str, Any]]:
    """What a ServiceAccount (in whatever namespace) asked for of resources."""
    for line in log:
        try:
            event = json.loads(line)
        except json.JSONDecodeError:  # the last line of a log that is being written
            continue
        words = event["user"]["username"].split(":")
        about = event.get("objectRef") or {}
        if words[:2] == ["system", "serviceaccount"] and words[-1] == account and "resource" in about:
            yield event


def _received(event: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(event["requestReceivedTimestamp"])


def _pod(event: Mapping[str, Any]) -> str:
    """The pod that the token was made for, as the API server read it in there; empty for a token of no pod."""
    extra = event["user"].get("extra") or {}
    return "".join(extra.get("authentication.kubernetes.io/pod-name", []))


def unused(rights: set[Right], asked: set[Right], *allowed: Mapping[str, str]) -> list[str]:
    """What is granted, was never asked for, and is not among what need not be."""
    known = {text for each in (NEVER_ASKED, *allowed) for text in each}
    return sorted(str(right) for right in rights - asked if str(right) not in known)


def rendered(overlay: Path = OVERLAY) -> list[dict[str, Any]]:
    """The objects of an overlay."""
    text = run([binaries.path("kube"), "kubectl", "kustomize", overlay])
    return [item for item in yaml.load_all(text, yaml.CSafeLoader) if item]


def of_component(name: str) -> set[Right]:
    """The rights that a component adds."""
    role = ROOT / "manifests" / "components" / name / "role.yaml"
    return granted(item for item in yaml.load_all(role.read_text(), yaml.CSafeLoader) if item)


def differs_from(component: str, log: Iterable[str]) -> list[str]:
    """How what an operator with a component asked for, beyond the rights of the overlay, differs from the rights of
    that component: nothing was refused, nothing more was asked for, and nothing less."""
    found, rights = requests(log), of_component(component)
    return [
        *(f"refused: {right} ({example})" for right, example in sorted(found.refused.items())),
        *(f"not granted: {right}" for right in sorted(found.asked - granted(rendered()) - rights)),
        *(f"not used: {right}" for right in unused(rights, found.asked)),
    ]


@main
def _main() -> None:
    lines = (line for file in sys.argv[1:] for line in Path(file).read_text().splitlines())
    rights, found = granted(rendered()), requests(lines)
    print("granted and not used:", *unused(rights, found.asked), sep="\n  ")
    print("used and not granted:", *(f"{right}: {example}" for right, example in found.refused.items()), sep="\n  ")


if __name__ == "__main__":
    _main()
