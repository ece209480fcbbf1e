"""What is kept of the API's objects, whatever their writers put into them."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_tfjob.controller.job.inject import inject
from elastic_tfjob.controller.model.cluster import ConfigMap, ForeignPod, KubeNode
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.owned_objects import PodGroup, Service
from elastic_tfjob.controller.model.pod import EXPORTER, INSTALL, Pod
from harness.effort import effort
from harness.hostile_text import NO_INDEXES, named

from .build import UID, decide, job

METADATA = {"namespace": "ns", "name": "j-worker-0", "uid": "u", "resourceVersion": "7"}


def pod(status: dict[str, Any] | None = None, index: str = "0", **metadata: Any) -> Pod:
    labels = {
        "training.kubeflow.org/job-name": "j",
        "training.kubeflow.org/replica-type": "worker",
        "training.kubeflow.org/replica-index": index,
    }
    owner = [{"uid": UID, "controller": True}]
    return Pod.parse(
        {"metadata": {**METADATA, "labels": labels, "ownerReferences": owner, **metadata}, "status": status or {}}
    )


def container(name: str, restarts: int, **state: Any) -> dict[str, Any]:
    return {"name": name, "restartCount": restarts, "state": state}


def test_restarts_are_of_the_users_containers() -> None:
    """Upstream counts containers and init containers; of those that the operator adds it knows nothing."""
    found = pod(
        {
            "phase": "Running",
            "containerStatuses": [container("tensorflow", 2), container("sidecar", 1)],
            "initContainerStatuses": [container(EXPORTER, 100), container(INSTALL, 10), container("fetch-data", 4)],
        }
    )
    assert found.restarts == 7


def test_a_restarted_exporter_does_not_end_the_job() -> None:
    statuses = [container("tensorflow", 0), container(EXPORTER, 3)]
    found = pod({"phase": "Running", "containerStatuses": statuses[:1], "initContainerStatuses": statuses[1:]})
    template = {"spec": {"containers": [{"name": "tensorflow", "image": "train"}]}}
    worker = {"replicas": 1, "restartPolicy": "OnFailure", "template": template}
    declared = job({"Worker": worker}, runPolicy={"backoffLimit": 1})
    decision = decide(declared, pods=(found,))
    assert decision.status is not None
    assert "Failed" not in [each["type"] for each in decision.status["conditions"]]


@pytest.mark.parametrize(
    ("what", "names"), [("both", [EXPORTER]), ("sidecar", [EXPORTER]), ("launcher", [INSTALL]), ("none", [])]
)
def test_the_names_are_those_of_what_is_injected(what: str, names: list[str]) -> None:
    rendered: dict[str, Any] = {"spec": {"containers": [{"name": "tensorflow", "command": ["train"]}]}}
    inject(rendered, what, "image", None)
    assert [each["name"] for each in rendered["spec"].get("initContainers", ())] == names


@pytest.mark.parametrize(
    ("label", "index"),
    [
        ("0", 0),
        ("007", 7),
        ("2147483647", 2**31 - 1),
        ("2147483648", None),
        ("99999999999999999999", None),
        *((label, None) for label in NO_INDEXES),
    ],
    ids=named,
)
def test_index(label: str, index: int | None) -> None:
    assert pod(index=label).index == index


@pytest.mark.parametrize(
    ("written", "ip"),
    [("10.0.0.1", "10.0.0.1"), ("fd00::1", "fd00::1"), ("evil.example.com", ""), ("10.0.0.1:80/x?", ""), (None, "")],
)
def test_only_an_address_is_asked(written: str | None, ip: str) -> None:
    """Whoever may write `pods/status` chooses it."""
    assert pod({"podIP": written}).ip == ip


@pytest.mark.parametrize(
    "status",
    [
        {"phase": None, "containerStatuses": None},
        {"containerStatuses": [{"name": "tensorflow"}]},
        {"containerStatuses": [{"name": "tensorflow", "state": None, "restartCount": None}]},
        {"containerStatuses": [{"name": "tensorflow", "state": {"terminated": None, "waiting": {}}}]},
        {"containerStatuses": [{"name": "tensorflow", "restartCount": -(2**31)}]},
    ],
)
def test_half_filled_statuses(status: dict[str, Any]) -> None:
    found = pod(status)
    assert (found.exit_code, found.restarts, found.troubles) == (None, 0, ())


def test_troubles_are_few_and_short() -> None:
    waiting = [container("c", 0, waiting={"reason": "r" * 10**5, "message": "m" * 10**5}) for _ in range(1000)]
    troubles = pod({"containerStatuses": waiting}).troubles
    assert {(len(each.reason), len(each.message)) for each in troubles} == {(128, 1024)}
    assert sum(len(each.message) for each in troubles) == 4096
    few = [container("c", 0, waiting={"reason": "r", "message": "m"}) for _ in range(1000)]
    assert len(pod({"containerStatuses": few}).troubles) == 16


def test_a_hook_that_fails_is_told() -> None:
    """It brings the launcher, onto a disk that is full: the container that trains waits, and does not say for what."""
    failed = {"reason": "PostStartHookError", "message": "No space left on device"}
    status = {
        "initContainerStatuses": [container(EXPORTER, 7, waiting=failed), container("mine", 0, waiting=failed)],
        "containerStatuses": [container("tensorflow", 0, waiting={"reason": "PodInitializing"})],
    }
    (told,) = pod(status).troubles
    assert (told.reason, "No space left" in told.message) == ("PostStartHookError", True)
    # Where the pod's own containers are not reported yet, all that come before them are.
    assert len(pod({"initContainerStatuses": status["initContainerStatuses"]}).troubles) == 2


def test_annotations_that_are_no_text_are_none() -> None:
    found = TFJob.parse({"metadata": {**METADATA, "annotations": {"a": None, "b": "text"}}})
    assert found.annotations == {"b": "text"}


def test_a_status_that_cannot_be_written_again() -> None:
    """The one place in a TFJob whose form the CRD leaves open, as upstream's does: labelSelector."""
    deep: Any = {}
    for _ in range(300):
        deep = {"labelSelector": deep}
    with pytest.raises(ValueError, match=r"Job that cannot be read: .*[Rr]ecursion"):
        TFJob.parse({"metadata": METADATA, "status": {"replicaStatuses": {"Worker": deep}}})


KINDS = (TFJob, Pod, Service, PodGroup, KubeNode, ForeignPod, ConfigMap)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
WORDS = st.sampled_from(
    [
        "phase", "containerStatuses", "initContainerStatuses", "conditions", "name", "state", "terminated", "exitCode",
        "restartCount", "waiting", "message", "reason", "type", "status", "podIP", "nodeName", "containers", "affinity",
        "resources", "requests", "limits", "cpu", "memory", "nvidia.com/gpu", "taints", "key", "effect", "allocatable",
        "labels", "annotations", "ownerReferences", "uid", "controller", "restartPolicy", "initContainers", "data",
    ]
)  # fmt: skip
OBJECTS = st.recursive(
    ANYTHING,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=5),
    max_leaves=20,
)


@settings(max_examples=effort(50, 200), deadline=None)
@given(
    st.sampled_from(KINDS),
    st.fixed_dictionaries({}, optional={"metadata": OBJECTS, "spec": OBJECTS, "status": OBJECTS, "data": OBJECTS}),
    st.booleans(),
)
def test_an_object_is_read_or_is_a_ValueError(kind: Any, raw: dict[str, Any], sound: bool) -> None:
    """The informer leaves aside what cannot be read; any other exception would end it."""
    if sound:
        found = raw.get("metadata")
        raw["metadata"] = {**(found if isinstance(found, dict) else {}), **METADATA}
    with suppress(ValueError):
        kind.parse(raw)


def test_the_kept_fields_of_a_pod_are_bounded() -> None:
    """Whatever somebody writes who may write pods and their status: a pod has a few KiB at most in memory."""
    long = "x" * 1_000_000
    waiting = {"waiting": {"reason": long, "message": long}}
    found = pod(
        {
            "phase": long,
            "containerStatuses": [container(f"c{i}", 0, **waiting) for i in range(100)],
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": long}],
        },
        ownerReferences=[{"uid": long, "controller": True}],
        annotations={"elastic.kubeflow.org/command": long, "other": long},
    )
    assert found.owner
    assert found.owner != UID
    words = [each for trouble in found.troubles for each in (trouble.reason, trouble.message)]
    texts = [value for name in Pod.__slots__ if isinstance(value := getattr(found, name), str)]
    assert sum(map(len, words)) <= 4096 + 16 * 128
    assert sum(map(len, texts)) < 2048


def test_a_large_spec_is_kept_compressed() -> None:
    """And is read as it was written; equal specs are equal bytes."""
    env = [{"name": f"SETTING_{i}", "value": f"a value {i} " * 40} for i in range(1_000)]
    template = {"spec": {"containers": [{"name": "tensorflow", "image": "train", "env": env}]}}
    found, again = (job({"Worker": {"replicas": 1, "template": template}}) for _ in range(2))
    assert len(found.raw_spec) < 200_000
    assert found == again
    assert found.spec().tf_replica_specs["Worker"].template == template


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=2000) | st.integers(0, 9), max_size=5))
def test_a_group_is_read_as_it_was_written(spec: dict[str, Any]) -> None:
    metadata = {"namespace": "ns", "name": "j", "uid": "u", "resourceVersion": "1"}
    assert PodGroup.parse({"metadata": metadata, "spec": spec}).spec() == spec
