"""What must hold of loans of nodes at every moment: who writes them, who runs on a lent node, and how it comes back."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from campaign.apiserver import ApiServer, Change, Object
from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.api.tfjob import JOB_NAME_LABEL
from elastic_tfjob.controller.model.affinity import pinned_to
from elastic_tfjob.controller.model.cluster import LOAN_ANNOTATION, LOANED_TAINT, POOL_LABEL

__all__ = ["LoanOracles", "is_of_a_job", "loan_of", "loans_at_rest"]

_LONGEST_WAIT_S: Final = 200.0
"""Of a pool's own pod for a node that is lent: the scenarios' grace (20 s) and stop_timeout (60 s), the minute in which
pods are waited for after that, and a minute for an operator that dies and a watch that is late."""
_LATE_S: Final = 6.0
"""So much later than it happens the operator may see something: a watch event that is late."""

LEGAL_STAGES: Final = {
    ("", "loaned"),
    ("", "recalled"),
    ("loaned", "recalled"),
    ("loaned", "returned"),
    ("recalled", "returned"),
    ("returned", "recalled"),
    ("returned", "loaned"),
}
"""Steps of a loan."""


@dataclass
class LoanOracles:
    """Watches over the nodes of pools. `timely`: whether one thing goes wrong at most, so that no pod waits long."""

    loop: asyncio.AbstractEventLoop
    server: ApiServer
    operators: set[str]
    fail: Callable[[str, str], None]
    timely: bool = True
    _bound_at: dict[str, float] = field(default_factory=dict)
    _waits_since: dict[str, float] = field(default_factory=dict)

    def observe(self, change: Change) -> None:
        """See a write."""
        if change.resource == "nodes" and change.old is not None and change.new is not None:
            self._loan_goes_its_way(change, change.old, change.new)
        elif change.resource == "pods" and change.new is not None:
            if is_of_a_job(change.new):
                self._guests_are_loanable(change, change.new)
            self._note_wait(change, change.new)

    def _loan_goes_its_way(self, change: Change, old: Object, new: Object) -> None:
        """Only the operator writes a loan, step by step; taint and annotation agree; all else stays."""
        name, before, (after, tainted) = _name(new), loan_of(old)[0], loan_of(new)
        if change.by not in self.operators:
            if before != after:
                self.fail("only_the_operator_lends", f"{change.by} made {before} {after} on {name}")
            return
        if before != after and (before, after) not in LEGAL_STAGES:
            self.fail("loan_goes_its_way", f"{name}: {before} became {after}")
        if (after == "loaned") > tainted or (after == "returned" and tainted):
            self.fail("taint_and_annotation_agree", f"{name} is {after}, with the taint: {tainted}")
        if _without_loan(old) != _without_loan(new):
            self.fail("only_the_loan_is_written", f"{name}: {_without_loan(old)} became {_without_loan(new)}")
        pods = [each for each in self._on(name) if each["status"]["phase"] not in ("Succeeded", "Failed")]
        if after == "returned" != before and (left := [_name(each) for each in pods if is_of_a_job(each)]):
            self.fail("returned_without_guests", f"{name} is returned with {left} on it")
        if after == "loaned" != before:
            now = self.loop.time()
            there = [_name(each) for each in pods if now - self._bound_at.get(each["metadata"]["uid"], now) > _LATE_S]
            if there and self.timely:
                self.fail("only_idle_nodes_are_lent", f"{name} is lent with {there} on it")

    def _guests_are_loanable(self, change: Change, new: Object) -> None:
        """Pods of loanable jobs alone tolerate the taint, and come to a node of a pool only while it is lent."""
        if change.old is None and _tolerates(new) and not self._is_loanable(new):
            self.fail("guests_are_loanable", f"{_name(new)} tolerates the taint, and its job is not loanable")
        if change.old is None and self._of_a_pool(pinned_to(new["spec"])) and not self._is_loanable(new):
            self.fail("guests_are_loanable", f"{_name(new)} is sent to a node of a pool, and its job is not loanable")
        name = new["spec"].get("nodeName")
        if not name or (change.old is not None and change.old["spec"].get("nodeName")):
            return
        if (node := self._of_a_pool(name)) is None:
            return
        stage, tainted = loan_of(node)
        if not self._is_loanable(new) or not _tolerates(new):
            self.fail("guests_are_loanable", f"{_name(new)} is bound to {name}")
        # One that is recalled is no mistake: the pod may have been made before, or for a job that has not left yet. Its
        # taint may be gone, since whoever takes that away recalls the node.
        if stage != "recalled" and not (stage == "loaned" and tainted):
            self.fail("guests_come_to_lent_nodes", f"{_name(new)} is bound to {name}, which is {stage or 'never lent'}")

    def _of_a_pool(self, name: str) -> Object | None:
        node = self.server.get("nodes", "", name)
        return node if node is not None and POOL_LABEL in _labels(node) else None

    def _is_loanable(self, pod: Object) -> bool:
        metadata = pod["metadata"]
        job = self.server.get("tfjobs", metadata["namespace"], metadata["labels"][JOB_NAME_LABEL])
        # Of a job that is gone there is nothing to say.
        return job is None or (job["metadata"].get("annotations") or {}).get(f"{PREFIX}loanable") == "true"

    def _note_wait(self, change: Change, new: Object) -> None:
        """No pod of a pool waits longer for a node than a recall may take."""
        uid = new["metadata"]["uid"]
        if change.old is None:
            self._waits_since[uid] = change.at
        elif new["spec"].get("nodeName") and uid not in self._bound_at:
            self._bound_at[uid] = change.at
            waited_s = change.at - self._waits_since[uid]
            if self.timely and not is_of_a_job(new) and waited_s > _LONGEST_WAIT_S:
                self.fail("pools_get_their_nodes", f"{_name(new)} has waited for {waited_s:.0f} s")

    def at_rest(self) -> None:
        """In the end all pods of pools have nodes, and each node that has the taint is one that is lent."""
        for pod in self.server.all("pods"):
            if not is_of_a_job(pod) and not pod["spec"].get("nodeName"):
                self.fail("pools_get_their_nodes", f"{_name(pod)} waits")
        for node in self.server.all("nodes"):
            stage, tainted = loan_of(node)
            if tainted != (stage == "loaned"):
                self.fail("taint_and_annotation_agree", f"{node['metadata']['name']} is {stage}: {tainted}")

    def _on(self, node: str) -> Iterator[Object]:
        return (each for each in self.server.all("pods") if each["spec"].get("nodeName") == node)


def is_of_a_job(pod: Object) -> bool:
    """Whether a pod is a TFJob's."""
    return JOB_NAME_LABEL in (pod["metadata"].get("labels") or {}) or bool(pod["metadata"].get("ownerReferences"))


def loan_of(node: Object) -> tuple[str, bool]:
    """The stage of a node's loan, empty for none, and whether it has the taint of one."""
    text = (node["metadata"].get("annotations") or {}).get(LOAN_ANNOTATION)
    stage = str(orjson.loads(text)["stage"]) if text else ""
    return stage, any(each["key"] == LOANED_TAINT for each in (node.get("spec") or {}).get("taints") or ())


def loans_at_rest(server: ApiServer, *, loose: bool) -> dict[str, Any]:
    """The nodes of pools, and the pods of others, as they are in the end. `loose`: whether a node that is not lent ever
    was one says nothing."""
    nodes = {}
    for node in server.all("nodes"):
        if POOL_LABEL in _labels(node):
            stage, tainted = loan_of(node)
            nodes[_name(node)] = "" if loose and stage == "returned" else stage, tainted
    others = {
        _name(pod): [pod["status"]["phase"], pod["spec"].get("nodeName")]
        for pod in server.all("pods")
        if not is_of_a_job(pod)
    }
    return {"nodes": nodes, "others": others}


def _labels(found: Object) -> dict[str, str]:
    labels: dict[str, str] = found["metadata"].get("labels") or {}
    return labels


def _name(found: Object) -> str:
    return str(found["metadata"]["name"])


def _tolerates(pod: Object) -> bool:
    return any(each.get("key") == LOANED_TAINT for each in pod["spec"].get("tolerations") or ())


def _without_loan(node: Object) -> dict[str, Any]:
    """What the operator leaves alone."""
    metadata, spec = node["metadata"], node.get("spec") or {}
    annotations = {
        name: value for name, value in (metadata.get("annotations") or {}).items() if name != LOAN_ANNOTATION
    }
    taints = [each for each in spec.get("taints") or () if each["key"] != LOANED_TAINT]
    rest = {name: value for name, value in spec.items() if name != "taints"}
    return {"labels": _labels(node), "annotations": annotations, "taints": taints, "spec": rest}
