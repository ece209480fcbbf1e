"""Resource quantities in every spelling that the CRD admits, and what of them counts."""

import copy
import re
import time
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity

from elastic_tfjob.api.quantity import millicores, quantity, whole
from elastic_tfjob.api.reading import MAX_BYTES, MAX_MILLICORES, MAX_POD_BYTES
from elastic_tfjob.api.tfjob import QUANTITY_PATTERN
from elastic_tfjob.controller.job.inject import inject, requests_with, resources_of
from elastic_tfjob.controller.job.owned import render_pod_group
from elastic_tfjob.controller.model.quantities import allocatable, amounts, cpu_of, is_accelerator, requests_of
from elastic_tfjob.controller.planning.request import job_request
from elastic_tfjob.scheduling.resources import Resources
from harness.hostile_text import NO_QUANTITIES, NUMBERS, QUANTITIES, TEXTS, named

from .build import decide, job


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("5", "5"),
        ("5.", "5"),
        (".5", "0.5"),
        ("+5", "5"),
        ("0.5", "0.5"),
        ("100m", "0.1"),
        ("7u", "0.000007"),
        ("7n", "0.000000007"),
        ("0.1n", "0.000000001"),
        ("1e-999999999", "0.000000001"),
        ("2k", "2000"),
        ("2M", "2000000"),
        ("2G", "2000000000"),
        ("2T", "2000000000000"),
        ("2P", "2000000000000000"),
        ("2E", "2000000000000000000"),
        ("2e3", "2000"),
        ("2E3", "2000"),
        ("2e+3", "2000"),
        ("2E-3", "0.002"),
        ("1Ki", "1024"),
        ("1.5Mi", str(3 * 2**19)),
        ("1Gi", str(2**30)),
        ("1Ti", str(2**40)),
        ("1Pi", str(2**50)),
        ("1Ei", str(2**60)),
        (5, "5"),
        ("0", "0"),
        ("0e999999999", "0"),
        ("0" * 5000 + "5", "5"),
        ("1" + "0" * 60 + "e-60", "1"),
        # As much as 64 bits hold, as Kubernetes has it.
        ("8Ei", str(MAX_BYTES)),
        ("1e999999999", str(MAX_BYTES)),
        ("1e" + "9" * 10_000, str(MAX_BYTES)),
        ("9" * 10_000, str(MAX_BYTES)),
        (10**400, str(MAX_BYTES)),
        # What the API server refuses in a pod takes nothing.
        ("-5", "0"),
        (-5, "0"),
        ("-1e999999999", "0"),
        ("1e1.5", "0"),
    ],
)
def test_a_quantity_is_read_as_kubernetes_reads_it(written: int | str, value: str) -> None:
    if isinstance(written, str):
        assert re.fullmatch(QUANTITY_PATTERN, written)
    assert quantity(written) == Decimal(value)


@pytest.mark.parametrize("written", NO_QUANTITIES, ids=named)
def test_an_invalid_quantity_counts_as_zero(written: object) -> None:
    assert [quantity(written), millicores(written), whole(written)] == [0, 0, 0]


@pytest.mark.parametrize("written", [*QUANTITIES, *TEXTS, *NUMBERS], ids=named)
def test_a_quantity_of_any_size_is_within_its_bounds(written: object) -> None:
    assert 0 <= quantity(written) <= MAX_BYTES
    assert 0 <= millicores(written) <= MAX_MILLICORES
    assert 0 <= whole(written) <= MAX_BYTES


@given(st.from_regex(QUANTITY_PATTERN, fullmatch=True) | st.text(max_size=20) | st.integers() | st.binary())
def test_any_quantity_is_read_at_once(written: object) -> None:
    began = time.process_time()
    value = quantity(written)
    assert 0 <= value <= MAX_BYTES
    assert 0 <= millicores(written) <= MAX_MILLICORES
    assert 0 <= whole(written) <= MAX_BYTES
    assert time.process_time() - began < 2.0


@given(st.from_regex(r"\A[0-9]{1,9}(\.[0-9]{1,6})?([KMGT]i|[mkMG]|e[0-6])?\Z"))
def test_common_ones_are_what_the_client_library_reads(written: str) -> None:
    assert quantity(written) == min(parse_quantity(written), MAX_BYTES)


def test_sums_stay_within_their_bounds() -> None:
    asked = {"cpu": "1e999999999", "memory": "8Ei", "nvidia.com/gpu": "1e30", "amd.com/gpu": "1e30"}
    asked |= {"ephemeral-storage": "1e999999999", "pods": "5"}
    containers = [{"name": "tensorflow", "resources": {"requests": asked}}] * 3
    most = Resources(MAX_MILLICORES, MAX_POD_BYTES, MAX_POD_BYTES, 1, MAX_POD_BYTES)
    assert requests_of({"containers": containers, "initContainers": containers}) == most
    assert cpu_of({"containers": containers}) == (MAX_MILLICORES, 0)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("amount", ["1e99", "-1", "1e1.5"])
def test_a_job_with_a_strange_amount_goes_on(amount: str) -> None:
    """Its pods are created, and the API server says what it thinks of them; no other job waits for that."""
    resources = {"requests": {"cpu": amount, "memory": amount}}
    container = {"name": "tensorflow", "image": "train", "resources": resources}
    found = job({"Worker": {"replicas": 2, "template": {"spec": {"containers": [container]}}}})
    assert len(decide(found).actions) == 4
    assert all(0 <= part <= MAX_BYTES for part in job_request(found).requests["Worker"])
    group = render_pod_group(found, found.spec(), "volcano", {}, None)
    assert all(re.fullmatch(QUANTITY_PATTERN, each) for each in group["spec"]["minResources"].values())


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("nvidia.com/gpu", True),
        ("nvidia.com/gpu.shared", True),
        ("nvidia.com/mig-1g.5gb", True),
        ("amd.com/gpu", True),
        ("gpu.intel.com/i915", True),
        ("gpu.intel.com/xe", True),
        ("google.com/tpu", True),
        ("cloud-tpus.google.com/v3", True),
        ("cloud-tpus.google.com/preemptible-v2", True),
        ("aliyun.com/gpu-mem", True),
        ("volcano.sh/vgpu-number", True),
        ("example.com/gpulicense", False),
        ("example.com/output", False),
        ("example.com/outputs", False),
        ("example.com/mig-1g.5gb", False),
        ("gpu", False),
        ("cpu", False),
        ("memory", False),
        ("ephemeral-storage", False),
        ("hugepages-2Mi", False),
        ("a" * 100_000 + "/gpu", False),
    ],
)
def test_accelerators_are_recognised_by_their_resource_name(name: str, counts: bool) -> None:
    asked: dict[str, Any] = {name: "2"}
    assert is_accelerator(name) is counts
    assert amounts(asked)[2] == (2 if counts else 0)


def test_the_overhead_of_a_runtime_class_counts() -> None:
    """On top of whatever containers ask for, those that start included."""
    asks = {"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    starts = {"resources": {"requests": {"cpu": "2"}}}
    overhead = {"cpu": "250m", "memory": "120Mi"}
    assert requests_of({"containers": [asks], "overhead": overhead})[:2] == (1250, 2**30 + 120 * 2**20)
    assert requests_of({"containers": [asks], "initContainers": [starts], "overhead": overhead})[0] == 2250
    assert requests_of({"containers": [asks], "overhead": None})[0] == 1000


def test_pods_and_storage_that_a_node_admits_are_read() -> None:
    """As many pods as it says, and the ephemeral storage that it has; a pod is one pod, whatever it asks for."""
    has = {"cpu": "4", "memory": "8Gi", "ephemeral-storage": "10Gi", "pods": "17"}
    assert allocatable(has) == Resources(4000, 8 * 2**30, 0, 17, 10 * 2**30)
    assert allocatable({"cpu": "4"}).pods >= 2**30
    assert allocatable({"pods": "1e999"}).pods <= 2**30
    asks = {"resources": {"requests": {"ephemeral-storage": "1Gi", "pods": "3"}}}
    assert requests_of({"containers": [asks, asks]}) == Resources(pods=1, storage_bytes=2 * 2**30)


def container(name: str, restarts: str = "", **resources: dict[str, str]) -> dict[str, Any]:
    return {"name": name, "resources": resources, **({"restartPolicy": restarts} if restarts else {})}


@pytest.mark.parametrize(
    ("whole_pod", "containers", "millicores"),
    [
        # Requests of the whole pod count instead of those of its containers; so do limits alone, unless a container
        # names the resource.
        ({"requests": {"cpu": "2"}}, {"requests": {"cpu": "500m"}}, 2000),
        ({"requests": {"cpu": "2"}, "limits": {"cpu": "4"}}, {}, 2000),
        ({"limits": {"cpu": "4"}}, {}, 4000),
        ({"limits": {"cpu": "4"}}, {"requests": {"cpu": "500m"}}, 500),
        ({"limits": {"cpu": "4"}}, {"requests": {"cpu": "0"}}, 0),
        ({"limits": {"cpu": "4"}}, {"limits": {"cpu": "1"}}, 1000),
        ({"requests": {"memory": "1Gi"}}, {"requests": {"cpu": "500m"}}, 500),
        ({"requests": {"ephemeral-storage": "1Gi", "cpu": "2"}}, {}, 2000),
        ({}, {"requests": {"cpu": "500m"}}, 500),
    ],
)
def test_resources_of_the_whole_pod(whole_pod: Any, containers: Any, millicores: int) -> None:
    spec = {"containers": [container("c", **containers)], "resources": whole_pod, "overhead": {"cpu": "100m"}}
    found = requests_of(spec)
    assert found.cpu_millicores == millicores + 100
    assert found.storage_bytes == 0


@pytest.mark.parametrize("reason", ["", "Deferred", "Infeasible"])
def test_while_a_container_is_resized_the_most_counts(reason: str) -> None:
    """Of what it asks for, what it was allocated, and what it has; of one that can never be had, the last two."""
    spec = {"containers": [container("a", requests={"cpu": "1", "memory": "4Gi"}), container("b")]}
    spec["initContainers"] = [container("s", "Always", requests={"cpu": "3"}), container("i", requests={"cpu": "7"})]
    allocated = {"resources": {"requests": {"cpu": "100m"}}, "allocatedResources": {"cpu": "2"}}
    status = {
        "containerStatuses": [{"name": "a", **allocated}, {"name": "b", "allocatedResources": {"cpu": "9"}}],
        "initContainerStatuses": [{"name": "s", **allocated}, {"name": "i", **allocated}],
        "conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}] if reason else [],
    }
    lasts = reason != "Infeasible"
    assert (
        requests_of(spec, status).cpu_millicores == (3000 if lasts else 2000) + 7000
    )  # `i` is not resized, and starts beside `s`
    assert requests_of(spec, status).memory_bytes == (4 * 2**30 if lasts else 0)
    spec["initContainers"].pop()
    assert requests_of(spec, status).cpu_millicores == (2000 + 3000 if lasts else 2000 + 2000)


def test_amounts_are_rounded_as_by_the_api_server() -> None:
    """Each to thousandths, and the sum of a pod to bytes; CPU to millicores."""
    asks = container("c", requests={"cpu": "0.3m", "memory": "300m", "ephemeral-storage": "0.5"})
    assert requests_of({"containers": [asks, asks]}) == Resources(2, 1, pods=1, storage_bytes=1)
    assert [millicores("0.3m"), millicores("1n"), whole("1500m")] == [1, 1, 2]


@pytest.mark.parametrize("queue", ["", "team"])
@pytest.mark.parametrize("what", ["launcher", "sidecar", "both", "none"])
@pytest.mark.parametrize(
    "template",
    [
        {"containers": [container("tensorflow", requests={"cpu": "1", "memory": "4Gi"})]},
        {"containers": [container("tensorflow")], "resources": {"limits": {"cpu": "4", "memory": "8Gi"}}},
        {"containers": [container("tensorflow")], "resources": {"requests": {"cpu": "4"}, "limits": {"cpu": "8"}}},
        {
            "containers": [container("tensorflow", requests={"cpu": "1", "memory": "4Gi"})],
            "resources": {"requests": {"cpu": "1", "memory": "4Gi"}},
        },
        {
            "containers": [container("tensorflow", requests={"cpu": "1"})],
            "initContainers": [container("data", requests={"memory": "5Gi"})],
            "resources": {"limits": {"memory": "8Gi"}},
        },
    ],
)
def test_a_template_is_counted_as_it_will_be_rendered(template: dict[str, Any], what: str, queue: str) -> None:
    """What is added to pods takes 32 MiB; nothing where somebody has said what the whole pod, or the job, may have."""
    spec = {**template, "containers": [{**each, "command": ["python"]} for each in template["containers"]]}
    resources = resources_of(None, queue=queue)
    counted = requests_with(what, spec, resources)
    pod = {"spec": copy.deepcopy(spec)}
    inject(pod, what, "image", "/ckpt", resources)
    assert requests_of(pod["spec"]) == counted
    alone = requests_of(template)
    added = 0 if what == "none" or queue or "resources" in template else 32 * 2**20
    if what == "launcher":  # an init container beside none that ask for less
        added = 0
    assert counted == alone._replace(memory_bytes=alone.memory_bytes + added)
