"""The words users write: defaults, spelling, and the CRD (which the API server itself judges in tests/conformance)."""

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from elastic_tfjob.api.crd import custom_resource_definition
from elastic_tfjob.api.reading import EARLIEST, LATEST, MAX_REPLICAS, after
from elastic_tfjob.api.tfjob import InvalidTFJob, TFJobSpec

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("written", ["ps", "Ps", "pS", "PS"])
def test_replica_types_in_any_case(written: str) -> None:
    """Keys are normalised as upstream does."""
    assert list(TFJobSpec.model_validate({"tfReplicaSpecs": {written: {}}}).tf_replica_specs) == ["PS"]


def test_defaults() -> None:
    """Applied when read, not when stored."""
    spec = TFJobSpec.model_validate({"tfReplicaSpecs": {"Worker": {}}})
    worker = spec.tf_replica_specs["Worker"]
    assert (worker.count, worker.restart, spec.clean_pod_policy, spec.managed_here()) == (1, "Never", "None", True)


def spec_of(**replicas: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "tensorflow", "image": "train"}]}}
    return {"tfReplicaSpecs": {name: {"replicas": count, "template": template} for name, count in replicas.items()}}


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (spec_of(Worker=2_000, PS=1), "2001 replicas in total; allowed: 2000"),
        (spec_of(Worker=2 * 10**9), "2000000000 replicas in total; allowed: 2000"),
        (spec_of(Worker=1e30), r"spec.tfReplicaSpecs.Worker.replicas: .*, got 1e\+30"),
        (spec_of(PS=-1, Worker=1), r"spec.tfReplicaSpecs\[PS\].replicas: must not be negative, got -1"),
        (spec_of(**{"x" * 64: 1}), "a replica type has 1 to 63 characters, got 'x"),
        (spec_of(**{"": 1}), "a replica type has 1 to 63 characters, got ''"),
        (spec_of(Worker="9" * 5000), "spec.tfReplicaSpecs.Worker.replicas: "),
        (spec_of(Worker=[[[]]]), "spec.tfReplicaSpecs.Worker.replicas: .*, got a list of 1"),
        ({"tfReplicaSpecs": 5}, "spec.tfReplicaSpecs: .*, got 5"),
        ({"tfReplicaSpecs": {}, "runPolicy": {"suspend": "x" * 10**6}}, "spec.runPolicy.suspend: "),
    ],
)
def test_invalid_specs(raw: dict[str, Any], says: str) -> None:
    """Whatever the CRD admits, a job of more replicas than fit into a TF_CONFIG is told so, and so is any other."""
    with pytest.raises(InvalidTFJob, match=says) as error:
        TFJobSpec.parse(raw)
    assert len(str(error.value)) < 1000


def test_the_largest_job() -> None:
    assert TFJobSpec.parse(spec_of(PS=1_000, Worker=1_000)).total_replicas == MAX_REPLICAS


def test_a_deep_value_is_not_looked_into() -> None:
    deep: Any = []
    for _ in range(50_000):
        deep = [deep]
    with pytest.raises(InvalidTFJob, match="got a list of 1"):
        TFJobSpec.parse({"tfReplicaSpecs": {"Worker": {"template": deep}}})


def test_many_problems_are_told_in_few_words() -> None:
    containers = [{"name": "x" * 63}] * 1024
    with pytest.raises(InvalidTFJob) as error:
        TFJobSpec.parse({"tfReplicaSpecs": {"Worker": {"template": {"spec": {"containers": containers}}}}})
    assert len(error.value.problems) == 11
    assert "and 1015 more problems" in str(error.value)


MOMENT = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "then"),
    [
        (0, MOMENT),
        (86_400, datetime(2026, 1, 3, tzinfo=UTC)),
        (-86_400, datetime(2026, 1, 1, tzinfo=UTC)),
        (999_999_999_999, LATEST),
        (2**63 - 1, LATEST),
        (10**400, LATEST),
        (math.inf, LATEST),
        (1e308, LATEST),
        (-(10**400), EARLIEST),
        (-math.inf, EARLIEST),
        (math.nan, MOMENT),
    ],
)
def test_time_goes_on_no_further_than_it_can(seconds: float, then: datetime) -> None:
    assert after(MOMENT, seconds) == then


def test_the_committed_crd_is_the_generated_one() -> None:
    """manifests/base/crd.yaml is made by `elastic-tfjob crd`; regenerate it after a change of the models."""
    committed = yaml.load((ROOT / "manifests" / "base" / "crd.yaml").read_text(), yaml.CSafeLoader)
    assert committed == custom_resource_definition()


def test_every_known_field_is_explained() -> None:
    """`kubectl explain tfjob.spec` teaches."""
    spec = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    missing = [name for name, field in spec["properties"].items() if not field.get("description")]
    assert missing == []
