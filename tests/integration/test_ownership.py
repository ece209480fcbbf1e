"""One operator acts at a time: of several replicas the leader, of two controllers whoever was there first."""

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path

import pytest

from conformance.manifest import tfjob
from harness import operators
from harness.api import Api, Object, pods, tfjobs
from harness.background import background
from harness.controlplane import ControlPlane
from harness.faultproxy import FaultProxy, Faults
from harness.kubelet import kubelet

from .ledger import Ledger, check, cleaned, final
from .running import running
from .workload import Workload

LEASE_S = 15.0
"""How long a leader that has died is waited for."""
WITHIN_S = 120.0
"""A busy machine takes its time; when the lease changed hands is read off the lease."""


class Replicas:
    """Operators with leader election, each behind a proxy of its own that tells what it writes."""

    def __init__(self, api: Api, kubeconfig: Path, namespace: str, folder: Path, stack: AsyncExitStack) -> None:
        self.api = api
        self.namespace = namespace
        self._kubeconfig = kubeconfig
        self._folder = folder
        self._stack = stack
        self._jobs = 0

    async def start(self, name: str) -> tuple[operators.Operator, FaultProxy]:
        folder = self._folder / name
        folder.mkdir()
        proxy = await self._stack.enter_async_context(FaultProxy(self._kubeconfig, folder, Faults()))
        arguments = ["--leader-elect", f"--leader-election-namespace={self.namespace}"]
        operator = await self._stack.enter_async_context(
            running("ours", proxy.kubeconfig, folder, namespace=self.namespace, arguments=arguments)
        )
        return operator, proxy

    async def pods_of_new_job(self) -> None:
        """Submit a job and wait for its pods, which only a leader makes."""
        self._jobs += 1
        name = f"job-{self._jobs}"
        begin = time.monotonic()
        await self.api.create(tfjobs(self.namespace), tfjob(name, PS=1, Worker=1))
        selector = f"training.kubeflow.org/job-name={name}"
        while len((await self.api.items(pods(self.namespace), labelSelector=selector))[0]) < 2:
            assert time.monotonic() - begin < WITHIN_S, f"nobody made the pods of {name} in {WITHIN_S} s"
            await asyncio.sleep(0.1)

    @contextlib.asynccontextmanager
    async def leases(self) -> AsyncIterator[list[Object]]:
        """What the lease says, each time that it is written while the block runs, and as the block begins."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"
        found, version = await self.api.items(path)
        seen = [{"holderIdentity": "", **lease["spec"]} for lease in found]
        assert len(seen) == 1

        async def follow() -> None:
            async for _, lease in self.api.watch(path, version):
                seen.append({"holderIdentity": "", **lease["spec"]})

        async with background(follow()):
            yield seen


def _when(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.fixture
async def replicas(api: Api, kubeconfig: Path, namespace: str, tmp_path: Path) -> AsyncIterator[Replicas]:
    async with AsyncExitStack() as stack:
        yield Replicas(api, kubeconfig, namespace, tmp_path, stack)


@pytest.mark.thorough  # to a standby, a leader that sleeps is one that was killed
@pytest.mark.timeout(600)
async def test_standby_takes_over_from_killed_leader(replicas: Replicas) -> None:
    leader, first = await replicas.start("first")
    await replicas.pods_of_new_job()
    _, second = await replicas.start("second")
    await replicas.pods_of_new_job()
    assert first.writes
    assert not second.writes, "the standby wrote while another replica led"
    async with replicas.leases() as seen:
        leader.kill()
        await replicas.pods_of_new_job()
        await _handed_over(seen)
    assert second.writes
    last = [spec for spec in seen if spec["holderIdentity"] == seen[0]["holderIdentity"]][-1]
    waited_s = _when(seen[-1]["acquireTime"]) - _when(last["renewTime"])
    # It has seen the last renewal a moment before or after it was made.
    assert waited_s > LEASE_S - 5, f"a standby that takes over after {waited_s:.1f} s has not waited for the lease"


async def _handed_over(seen: list[Object]) -> None:
    """Wait until another than the first holder has the lease."""
    async with asyncio.timeout(WITHIN_S):
        while seen[-1]["holderIdentity"] in ("", seen[0]["holderIdentity"]):
            await asyncio.sleep(0.1)


@pytest.mark.timeout(600)
async def test_standby_takes_over_at_once_from_leader_that_stops(replicas: Replicas) -> None:
    leader, _ = await replicas.start("first")
    await replicas.pods_of_new_job()
    _, second = await replicas.start("second")
    async with replicas.leases() as seen:
        await asyncio.to_thread(leader.stop)
        await replicas.pods_of_new_job()
        await _handed_over(seen)
    assert second.writes
    # The leader gave it back, so there was nothing to wait for.
    holders = [holder for holder, _ in itertools.groupby(spec["holderIdentity"] for spec in seen)]
    assert holders == [seen[0]["holderIdentity"], "", seen[-1]["holderIdentity"]]
    returned = next(spec for spec in seen if not spec["holderIdentity"])
    assert returned["leaseDurationSeconds"] <= 1, "who does not heed that nobody holds it need not wait either"


@pytest.mark.timeout(600)
async def test_leader_that_slept_too_long_acts_no_more(replicas: Replicas) -> None:
    """As after a suspended machine: when it wakes up it still believes that it leads."""
    leader, first = await replicas.start("first")
    await replicas.pods_of_new_job()
    _, second = await replicas.start("second")
    os.kill(leader.pid, signal.SIGSTOP)
    await replicas.pods_of_new_job()
    before = first.writes
    os.kill(leader.pid, signal.SIGCONT)
    for _ in range(3):
        await replicas.pods_of_new_job()
    assert second.writes
    assert first.writes == before, "a leader that had lost its lease went on writing"


def _deployment(replicas: int, *, arguments: list[str]) -> Object:
    labels = {"control-plane": "kubeflow-training-operator"}
    container = {"name": "training-operator", "image": "fake", "command": ["/manager"], "args": arguments}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "training-operator", "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


GO_OPERATOR = "validator.training-operator.kubeflow.org", "validator.tfjob.training-operator.kubeflow.org"
KUEUE = "kueue-validating-webhook-configuration", "vtfjob.kb.io"
"""Whose webhook it is, by its configuration's name and its own."""


def _webhooks(configuration: str, name: str) -> Object:
    rule = {"apiGroups": ["kubeflow.org"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["tfjobs"]}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": configuration},
        "webhooks": [
            {
                "name": name,
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "clientConfig": {"url": "https://127.0.0.1:1/"},
                "rules": [rule],
            }
        ],
    }


def _run(kubeconfig: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Our operator until it ends by itself; fails if it has not within three minutes."""
    command = [str(Path(sys.executable).with_name("elastic-tfjob")), "operator", f"--kubeconfig={kubeconfig}"]
    addresses = ["--metrics-bind-address=0", "--health-probe-bind-address=0"]
    return subprocess.run([*command, *addresses, *arguments], capture_output=True, text=True, timeout=180, check=False)


@pytest.mark.timeout(600)
async def test_does_not_start_beside_another_controller(own_plane: ControlPlane, tmp_path: Path) -> None:
    deployments = "/apis/apps/v1/namespaces/kubeflow/deployments"
    webhooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    await asyncio.to_thread(operators.install, "ours", own_plane.kubeconfig)

    async def run() -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(_run, own_plane.kubeconfig)

    async def starts(*arguments: str) -> None:
        async with running("ours", own_plane.kubeconfig, tmp_path, arguments=arguments) as operator:
            assert operator.alive

    async with Api(own_plane.kubeconfig) as api:
        await api.create("/api/v1/namespaces", {"metadata": {"name": "kubeflow"}})
        await api.create(webhooks, _webhooks(*KUEUE))
        await starts()

        await api.create(webhooks, _webhooks(*GO_OPERATOR))
        ended = await run()
        assert ended.returncode == 3
        for word in ("validator.training-operator.kubeflow.org", "tfjob", "--take-over"):
            assert word in ended.stdout + ended.stderr
        await api.delete(f"{webhooks}/validator.training-operator.kubeflow.org")
        await starts()

        await api.create(deployments, _deployment(1, arguments=[]))
        await starts()  # not one replica of it is there
        path = f"{deployments}/training-operator"
        status = {"replicas": 1, "readyReplicas": 1, "availableReplicas": 1}
        await api.merge(f"{path}/status", {"status": status})
        ended = await run()
        assert ended.returncode == 3
        for word in ("kubeflow/training-operator", "--replicas=0", "--take-over"):
            assert word in ended.stdout + ended.stderr
        await starts("--take-over")

        await api.delete(path)
        await api.create(deployments, _deployment(1, arguments=["--enable-scheme=pytorchjob"]))
        await api.merge(f"{path}/status", {"status": status})
        await starts()  # it leaves TFJobs alone


@pytest.mark.thorough  # conformance has it as H20a and H20b
@pytest.mark.timeout(600)
async def test_live_take_over_from_the_go_operator(own_plane: ControlPlane, tmp_path: Path) -> None:
    """The Go operator runs jobs and stops, ours goes on: no pod is made twice, and jobs end as they would have."""
    before, meanwhile = Workload(8, seed=6, prefix="a"), Workload(12, seed=7, prefix="b", hold=True)
    await asyncio.to_thread(operators.install, "upstream", own_plane.kubeconfig)
    async with Api(own_plane.kubeconfig) as api:
        namespace = await api.new_namespace()
        ledger = Ledger(namespace)

        async def program(pod: Object) -> int | None:
            return await (before if before.runs(pod) else meanwhile).program(pod)

        async with ledger.watching(api), kubelet(api, namespace, program):
            async with running("upstream", own_plane.kubeconfig, tmp_path):
                for case in (*before.cases.values(), *meanwhile.cases.values()):
                    await api.create(tfjobs(namespace), case.manifest)
                await ledger.finished(before.cases, within_s=120)
                await ledger.running(meanwhile.cases, within_s=120)
                await ledger.started(meanwhile.cases.values(), within_s=120)
            at_hand_over = {replica: list(uids) for replica, uids in ledger.uids.items()}
            await asyncio.to_thread(operators.install, "ours", own_plane.kubeconfig)
            async with running("ours", own_plane.kubeconfig, tmp_path):
                await asyncio.sleep(3)
                assert ledger.uids == at_hand_over, "pods were made at the hand-over"
                assert not [name for name in meanwhile.cases if final(ledger.jobs[name])]
                meanwhile.release.set()
                await ledger.finished(meanwhile.cases, within_s=120)
                cases = [*before.cases.values(), *meanwhile.cases.values()]
                await cleaned(api, ledger, cases)
                await asyncio.sleep(2)
                await check(api, ledger, cases)
