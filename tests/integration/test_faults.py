"""No lost, doubled or wrongly failed job: the operator is killed, the API server restarts, the network misbehaves."""

import asyncio
import random
from pathlib import Path

import pytest

from harness import operators
from harness.api import Api, tfjobs
from harness.controlplane import ControlPlane
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


@pytest.mark.timeout(600)
async def test_killed_at_random_moments(
    api: Api, kubeconfig: Path, namespace: str, operator_name: operators.Name, tmp_path: Path
) -> None:
    chance = random.Random(3)
    workload = Workload(200, seed=3)
    ledger = Ledger(namespace)

    async with ledger.watching(api), kubelet(api, namespace, workload.program):
        submitting = asyncio.create_task(submit(api, namespace, workload, over_s=25))
        kills = 0
        while kills < 6 or not submitting.done():
            async with running(operator_name, kubeconfig, tmp_path, namespace=namespace) as operator:
                await asyncio.sleep(chance.uniform(0.0, 3.0))
                operator.kill()
            kills += 1
        await submitting
        async with running(operator_name, kubeconfig, tmp_path, namespace=namespace):
            await settle(api, ledger, workload, within_s=300)


@pytest.mark.timeout(600)
async def test_api_server_restarted(own_plane: ControlPlane, operator_name: operators.Name, tmp_path: Path) -> None:
    workload = Workload(60, seed=4)
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
    workload = Workload(100, seed=5)
    ledger = Ledger(namespace)
    async with (
        FaultProxy(kubeconfig, tmp_path, Faults(), seed=5) as proxy,
        running(operator_name, proxy.kubeconfig, tmp_path, namespace=namespace) as operator,
    ):
        async with ledger.watching(api), kubelet(api, namespace, workload.program):
            proxy.faults = FAULTS
            proxy.cut_watches()
            await submit(api, namespace, workload, over_s=10)
            await settle(api, ledger, workload, within_s=300)
        assert operator.alive
    never = {"conflict", "expired", "throttled", "unavailable", "dropped", "delayed", "cut"} - set(proxy.injected)
    assert not never, f"the proxy never injected {never}"
