"""Specs of many small objects: each is refused before anything looks at all of it, and what runs is left alone."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from elastic_tfjob.api.reading import (
    MAX_AFFINITY_VALUES,
    MAX_ALL_TEMPLATES_VALUES,
    MAX_DEPTH,
    MAX_PLACEMENT_TERMS,
    MAX_QUANTITY_LENGTH,
    MAX_REPLICA_TYPES,
    MAX_RESOURCE_NAMES,
    MAX_TEMPLATE_VALUES,
)
from elastic_tfjob.api.tfjob import InvalidTFJob, TFJobSpec, oversized
from elastic_tfjob.controller.model import job as job_module
from elastic_tfjob.controller.planning.job_view import view_of
from elastic_tfjob.controller.planning.request import job_request
from elastic_tfjob.controller.planning.round import ObservedJob, describe_all

from .build import NOW, decide, job, pod, replicas, services

SAMPLES = Path(__file__).parents[2] / "manifests" / "samples"


def limited(names: int) -> dict[str, Any]:
    return {"name": "tensorflow", "image": "i", "resources": {"limits": {f"gpu/{i}": "1" for i in range(names)}}}


def asks(cpu: str) -> dict[str, Any]:
    return {"name": "tensorflow", "image": "i", "resources": {"requests": {"cpu": cpu}}}


def affine(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": list(terms)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def term(expressions: int, values: int = 1) -> dict[str, Any]:
    wanted = {"key": "k", "operator": "In", "values": ["v"] * values}
    return {"matchExpressions": [wanted] * expressions}


def nested(levels: int) -> dict[str, Any]:
    """A field of a pod so that the template has so many levels: the template and its spec are two."""
    found: Any = []
    for _ in range(levels - 3):
        found = [found]
    return {"x": found}


def with_env(entries: int) -> dict[str, Any]:
    """A template with so many values: 6 are not of this list."""
    return {"containers": [{"name": "tensorflow", "image": "i", "env": [{}] * (entries - 6)}]}


# What is at its limit, what is one beyond, and what is said of that.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "values": (
        with_env(MAX_TEMPLATE_VALUES),
        with_env(MAX_TEMPLATE_VALUES + 1),
        "template: more than 4000 values (keys and entries of lists), the most allowed",
    ),
    "depth": (nested(MAX_DEPTH), nested(MAX_DEPTH + 1), "template: nested deeper than 64 levels, the most allowed"),
    "tolerations": (
        {"tolerations": [{}] * MAX_PLACEMENT_TERMS},
        {"tolerations": [{}] * (MAX_PLACEMENT_TERMS + 1)},
        "template.spec.tolerations: 65 entries; allowed: 64",
    ),
    "selector": (
        {"nodeSelector": {f"{i}": "" for i in range(MAX_PLACEMENT_TERMS)}},
        {"nodeSelector": {f"{i}": "" for i in range(MAX_PLACEMENT_TERMS + 1)}},
        "template.spec.nodeSelector: 65 entries; allowed: 64",
    ),
    "terms": (
        {"affinity": affine(*[{}] * MAX_PLACEMENT_TERMS)},
        {"affinity": affine(*[{}] * (MAX_PLACEMENT_TERMS + 1))},
        "nodeSelectorTerms: 65 entries; allowed: 64",
    ),
    "expressions": (
        {"affinity": affine(term(MAX_PLACEMENT_TERMS - 1), term(1))},
        {"affinity": affine(term(MAX_PLACEMENT_TERMS), term(1))},
        "nodeSelectorTerms: 65 expressions in all terms; allowed: 64",
    ),
    "values of expressions": (
        {"affinity": affine(term(1, MAX_AFFINITY_VALUES))},
        {"affinity": affine(term(1, MAX_AFFINITY_VALUES), term(1))},
        "nodeSelectorTerms: 257 values in all expressions; allowed: 256",
    ),
    "resources": (
        {"containers": [limited(MAX_RESOURCE_NAMES)]},
        {"containers": [limited(MAX_RESOURCE_NAMES + 1)]},
        "template.spec.containers[0].resources.limits: 65 entries; allowed: 64",
    ),
    "resources of an init container": (
        {"initContainers": [limited(MAX_RESOURCE_NAMES)]},
        {"initContainers": [limited(MAX_RESOURCE_NAMES + 1)]},
        "template.spec.initContainers[0].resources.limits: 65 entries; allowed: 64",
    ),
    "exponent": (
        {"containers": [asks("1e0000000099")]},
        {"containers": [asks("1e-999999999")]},
        "template: requests[cpu]: 1e-999999999 has an exponent beyond 99, the most allowed",
    ),
    "exponent of an overhead": (
        {"overhead": {"cpu": "1E+99"}},
        {"overhead": {"cpu": "1E+100"}},
        "template: overhead[cpu]: 1E+100 has an exponent beyond 99, the most allowed",
    ),
    "exponent in a volume": (
        {"volumes": [{"emptyDir": {"sizeLimit": "1e9"}}]},
        {"volumes": [{"emptyDir": {"sizeLimit": "1.5e-99999"}}]},
        "template: sizeLimit: 1.5e-99999 has an exponent beyond 99, the most allowed",
    ),
    "digits": (
        {"containers": [asks("0" * (MAX_QUANTITY_LENGTH - 1) + "1")]},
        {"containers": [asks("0" * MAX_QUANTITY_LENGTH + "1")]},
        "template: requests[cpu]: a quantity of 65 characters; allowed: 64",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_template_that_is_too_large_is_refused_with_an_event(name: str) -> None:
    """In an event, which names the place and what is allowed; what is at the limit is taken."""
    fits, beyond, says = CASES[name]
    assert not decide(job({"Worker": replicas(1, **fits)})).events
    refused = job({"Worker": replicas(1, **beyond)})
    decision = decide(refused)
    assert decision.actions == ()
    (event,) = decision.events
    assert (event.reason, says in event.message) == ("TFJobFailedValidation", True), event.message
    assert event.message.startswith("spec.tfReplicaSpecs[Worker].template")
    with pytest.raises(InvalidTFJob):
        job_request(refused)


def test_all_templates_together_have_a_limit() -> None:
    half = replicas(1, **with_env(MAX_ALL_TEMPLATES_VALUES // 2))
    assert job({"PS": half, "Worker": half}).spec()
    says = r"the templates of all types together have 8005 values \(keys and entries of lists\); allowed: 8000"
    with pytest.raises(InvalidTFJob, match=says):
        job({"Chief": 1, "PS": half, "Worker": half}).spec()


def test_other_parts_of_a_spec_have_limits() -> None:
    with pytest.raises(InvalidTFJob, match="33 replica types; allowed: 32"):
        job({f"Type{i}": 0 for i in range(MAX_REPLICA_TYPES + 1)}).spec()
    policy: dict[str, Any] = {"schedulingPolicy": {"minResources": {f"r{i}": [] for i in range(100_000)}}}
    with pytest.raises(InvalidTFJob, match="minResources: 100000 entries; allowed: 64") as error:
        job(runPolicy=policy).spec()
    assert len(error.value.problems) == 1
    with pytest.raises(InvalidTFJob, match="overhead: 65 entries"):
        job({"Worker": replicas(1, overhead={f"r{i}": "1" for i in range(MAX_RESOURCE_NAMES + 1)})}).spec()


@pytest.mark.parametrize("inner", [[], {}])
def test_a_deep_template_ends_no_recursion(inner: Any) -> None:
    for _ in range(50_000):
        inner = [inner] if isinstance(inner, list) else {"a": inner}
    raw = {"tfReplicaSpecs": {"Worker": {"template": {"spec": inner}}}}
    with pytest.raises(InvalidTFJob, match="nested deeper than 64 levels"):
        TFJobSpec.parse(raw)


@pytest.mark.parametrize("odd", [None, 5, "x", [], [1], [[1]], {"containers": 5}, {"containers": [5]}])
def test_invalid_values_do_not_break_the_size_check(odd: Any) -> None:
    found = {"spec": odd, "nodeSelector": odd}
    replica = {"template": found}
    for spec in (odd, {"tfReplicaSpecs": odd, "runPolicy": odd}, {"tfReplicaSpecs": {"W": odd, "V": replica}}):
        assert list(oversized(spec)) == []


def test_a_spec_that_is_refused_is_never_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pass and each round asks for it, and to unpack 1.4 MB takes up to 0.1 s."""
    refused = job({"Worker": replicas(1, tolerations=[{}] * 33_000)})
    monkeypatch.setattr(job_module, "unpack", lambda _: pytest.fail("unpacked"))
    with pytest.raises(InvalidTFJob, match="more than 4000 values"):
        refused.spec()


def test_a_running_job_that_is_refused_now_is_left_alone_and_told() -> None:
    """An edit brought it beyond a limit. It has not failed: no pod goes, and its status stays."""
    running = [{"type": "Running", "status": "True"}]
    refused = job({"Worker": replicas(2, tolerations=[{}] * 65)}, status={"conditions": running})
    for phases in (("Running", "Running"), ("Running", "Failed")):
        pods = tuple(pod("Worker", i, phase) for i, phase in enumerate(phases))
        decision = decide(refused, pods=pods, services=services({"Worker": 2}))
        assert (decision.actions, decision.status, decision.counts) == ((), None, ())
        (event,) = decision.events
        assert event.message.endswith("; its pods are neither changed nor replaced until the spec is corrected")
        assert "tolerations: 65 entries; allowed: 64" in event.message
        assert len(event.message) <= 1024


def test_the_room_of_a_refused_job_is_not_given_away() -> None:
    """What its pods take counts, and the profile decides nothing for it."""
    refused = job({"Worker": replicas(1, tolerations=[{}] * 65)}, annotations={"elastic.kubeflow.org/record": ""})
    asks = {"containers": [{"name": "tensorflow", "resources": {"requests": {"cpu": "2"}}}], "nodeName": "n"}
    held = pod("Worker", 0, spec=asks)
    with pytest.raises(InvalidTFJob):
        view_of(refused, (held,), nodes={}, now=NOW, all_jobs=True)
    described = describe_all(
        {refused.key: ObservedJob(refused, (held,), {}, None, {})}, {}, NOW, True, {}, cordoned={}
    )[refused.key]
    assert isinstance(described.error, InvalidTFJob)
    assert (described.found.job, described.found.other_usage["n"].cpu_millicores) == (None, 2000)


def test_every_sample_is_far_below_the_limits() -> None:
    for path in SAMPLES.glob("*.yaml"):
        for document in yaml.safe_load_all(path.read_text()):
            if document and document.get("kind") == "TFJob":
                assert list(oversized(document["spec"])) == []
