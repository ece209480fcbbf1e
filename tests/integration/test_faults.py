"""No lost, doubled or wrongly failed job: the operator is killed, the API server restarts, the network misbehaves."""

import asyncio
import random
from pathlib import Path

import pytest

from harness import operators
from harness.api import Api, pods, tfjobs
from harness.controlplane import ControlPlane
from harness.effort import effort
from harness.faultproxy import FaultProxy, Faults
from harness.kubelet import kubelet

from .ledger import Ledger, check, cleaned
from .running import running
from .workload import Workload

QUIET_S = 2.0
"""After the last job has finished nothing may happen any more; this long it is watched."""


async def submit(api: Api, namespace: str, workload: Workload, over_s: float) -> None:
    """Create the jobs, evenly over the time."""
    for case in workload.cases.values():
        await api.create(tfjobs(namespace), case.manifest)
        await asyncio.sleep(over_s / len(workload.cases))


async def settle(api: Api, ledger: Ledger, workload: Workload, within_s: float) -> None:
    """Wait for the end of every job and for their clean-up, then check all of them."""
    await ledger.finished(workload.cases, within_s)
    await cleaned(api, ledger, workload.cases.values())
    await asyncio.sleep(QUIET_S)
    await check(api, ledger, workload.cases.values())


@pytest.mark.thorough  # the campaign kills it at every write, e2e/test_elastic_faults.py in a pod
@pytest.mark.timeout(600)
async def test_killed_at_random_moments(
    api: Api, kubeconfig: Path, namespace: str, operator_name: operators.Name, tmp_path: Path
) -> None:
    chance = random.Random(3)
    workload = Workload(effort(25, 200), seed=3)
    ledger = Ledger(namespace)

    async with ledger.watching(api), kubelet(api, namespace, workload.program):
        submitting = asyncio.create_task(submit(api, namespace, workload, over_s=effort(6, 25)))
        kills = 0
        while kills < effort(3, 6) or not submitting.done():
            async with running(operator_name, kubeconfig, tmp_path, namespace=namespace) as operator:
                await asyncio.sleep(chance.uniform(0.0, 3.0))
                operator.kill()
            kills += 1
        await submitting
        async with running(operator_name, kubeconfig, tmp_path, namespace=namespace):
            await settle(api, ledger, workload, within_s=300)


@pytest.mark.thorough  # the proxy of the test below cuts, drops and expires as a restart does
@pytest.mark.timeout(600)
async def test_api_server_restarted(own_plane: ControlPlane, operator_name: operators.Name, tmp_path: Path) -> None:
    workload = Workload(effort(20, 60), seed=4)
    await asyncio.to_thread(operators.install, operator_name, own_plane.kubeconfig)
    async with Api(own_plane.kubeconfig) as api:
        namespace = await api.new_namespace()
        ledger = Ledger(namespace)
        async with ledger.watching(api), kubelet(api, namespace, workload.program):
            await submit(api, namespace, workload, over_s=0)
            async with running(operator_name, own_plane.kubeconfig, tmp_path) as operator:
                for delay in (0.5, 3.0):
                    await asyncio.sleep(delay)
                    await asyncio.to_thread(own_plane.restart_apiserver)
                await settle(api, ledger, workload, within_s=300)
                assert operator.alive


NO_TEXT = b'{"f:metadata":{"f:labels":{"f:\xff":{}}}}'
"""Who has changed a field whose name is no UTF-8. The API server takes it, and passes it on in every list and watch."""


async def spoil(api: Api, namespace: str, name: str) -> None:
    """Create a pod that no strict reader of JSON can read."""
    metadata = b'"name":"%s","labels":{"training.kubeflow.org/operator-name":"tfjob-controller"}' % name.encode()
    noted = b'{"manager":"m","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":%s}' % NO_TEXT
    spec = b'"nodeName":"n","containers":[{"name":"c","image":"i"}]'
    body = b'{"apiVersion":"v1","kind":"Pod","metadata":{%s,"managedFields":[%s]},"spec":{%s}}' % (
        metadata,
        noted,
        spec,
    )
    headers = {"Content-Type": "application/json"}
    async with api._session.post(pods(namespace), data=body, headers=headers) as response:
        assert response.status == 201, await response.read()
    async with api._session.get(f"{pods(namespace)}/{name}") as response:
        assert b"\xff" in await response.read()


async def pretend_to_be_an_operator(api: Api, namespace: str) -> None:
    """A Deployment that looks like the Go training-operator, with an argument of white space."""
    labels = {"control-plane": "kubeflow-training-operator"}
    container = {"name": "c", "image": "i", "args": ["--enable-scheme=\n"]}
    spec = {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
    }
    deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    made = await api.create(deployments, {"metadata": {"name": "d", "labels": labels}, "spec": spec})
    made["status"] = {"replicas": 1, "readyReplicas": 1, "availableReplicas": 1}
    await api.request("PUT", f"{deployments}/d/status", made)


@pytest.mark.thorough  # unit/test_decoding.py reads the same bytes
@pytest.mark.timeout(300)
async def test_objects_of_a_tenant_that_nobody_can_read(
    own_plane: ControlPlane, operator_name: operators.Name, tmp_path: Path
) -> None:
    """They are there when the operator starts, and come while it runs: other jobs start and end as ever."""
    workload = Workload(10, seed=6)
    await asyncio.to_thread(operators.install, operator_name, own_plane.kubeconfig)
    async with Api(own_plane.kubeconfig) as api:
        evil, namespace = await api.new_namespace(), await api.new_namespace()
        await spoil(api, evil, "before")
        await pretend_to_be_an_operator(api, evil)
        ledger = Ledger(namespace)
        async with (
            ledger.watching(api),
            kubelet(api, namespace, workload.program),
            running(operator_name, own_plane.kubeconfig, tmp_path) as operator,
        ):
            await spoil(api, evil, "while")
            await submit(api, namespace, workload, over_s=2)
            await settle(api, ledger, workload, within_s=120)
            assert operator.alive


FAULTS = Faults(
    conflict=0.1,
    expired=0.3,
    throttled=0.03,
    unavailable=0.05,
    dropped=0.05,
    delayed=0.1,
    delay_s=(0.05, 0.5),
    cut_after_s=(0.5, 4.0),
)


@pytest.mark.timeout(600)
async def test_faults_between_operator_and_api_server(
    api: Api, kubeconfig: Path, namespace: str, operator_name: operators.Name, tmp_path: Path
) -> None:
    workload = Workload(effort(25, 100), seed=5)
    ledger = Ledger(namespace)
    async with (
        FaultProxy(kubeconfig, tmp_path, Faults(), seed=5) as proxy,
        running(operator_name, proxy.kubeconfig, tmp_path, namespace=namespace) as operator,
    ):
        async with ledger.watching(api), kubelet(api, namespace, workload.program):
            proxy.faults = FAULTS
            proxy.cut_watches()
            await submit(api, namespace, workload, over_s=effort(4, 10))
            await settle(api, ledger, workload, within_s=300)
        assert operator.alive
    never = {"conflict", "expired", "throttled", "unavailable", "dropped", "delayed", "cut"} - set(proxy.injected)
    assert not never, f"the proxy never injected {never}"
