"""The query API on a real control plane: a ServiceAccount's token shows the namespaces that it may list."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from conformance.manifest import tfjob
from harness import audit, operators
from harness.api import Api, tfjobs
from harness.controlplane import ControlPlane, free_port

from .running import running

ROOT = Path(__file__).parents[2]
RBAC = "rbac.authorization.k8s.io/v1"

pytestmark = pytest.mark.timeout(300)


def _allow(plane: ControlPlane, namespace: str, account: str) -> None:
    """A ServiceAccount that may list the TFJobs of its own namespace."""
    plane.kubectl("create", "serviceaccount", account, "-n", namespace)
    plane.kubectl("create", "role", "see", "-n", namespace, "--verb=list", "--resource=tfjobs.kubeflow.org")
    plane.kubectl(
        "create", "rolebinding", "see", "-n", namespace, "--role=see", f"--serviceaccount={namespace}:{account}"
    )


async def _ask(url: str, token: str = "") -> tuple[int, Mapping[str, Any]]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        return response.status, await response.json()


@pytest.mark.parametrize("own_plane", [{"audit": True}], indirect=True)
async def test_a_token_shows_the_jobs_of_its_namespaces_from_leader_and_standby(
    own_plane: ControlPlane, tmp_path: Path
) -> None:
    """Both replicas have the rights of the manifests with the component, no more, and use all of the component's."""
    await asyncio.to_thread(operators.install, "ours", own_plane.kubeconfig)
    identity = await asyncio.to_thread(operators.service_account, "ours", own_plane.kubeconfig)
    for item in yaml.safe_load_all((ROOT / "manifests/components/query-api/role.yaml").read_text()):
        for subject in item.get("subjects", ()):
            subject["namespace"] = "kubeflow"
        await asyncio.to_thread(own_plane.kubectl, "apply", "-f", "-", stdin=yaml.safe_dump(item))
    async with Api(own_plane.kubeconfig) as api:
        mine, theirs = await api.new_namespace(), await api.new_namespace()
        for namespace in (mine, theirs):
            await api.create(tfjobs(namespace), tfjob("train", Worker=1))
        await asyncio.to_thread(_allow, own_plane, mine, "ann")
        token = own_plane.kubectl("create", "token", "ann", f"--namespace={mine}").strip()
        ports = [free_port(), free_port()]
        elect = ["--leader-elect", "--leader-election-namespace=kubeflow", "--query-auth=token"]

        def options(port: int) -> dict[str, Any]:
            return {"identity": identity, "arguments": [*elect, f"--query-bind-address=127.0.0.1:{port}"]}

        async with (
            running("ours", own_plane.kubeconfig, tmp_path / "a", **options(ports[0])),
            running("ours", own_plane.kubeconfig, tmp_path / "b", **options(ports[1])),
        ):
            for port in ports:
                jobs = f"http://127.0.0.1:{port}/api/v1/jobs"
                async with asyncio.timeout(60):
                    while (await _ask(jobs, token))[0] == 503:  # nodes are read after it is ready
                        await asyncio.sleep(0.2)
                status, answer = await _ask(jobs, token)
                assert (status, [(row["namespace"], row["name"]) for row in answer["items"]]) == (
                    200,
                    [(mine, "train")],
                )
                assert (await _ask(f"{jobs}/{mine}/train", token))[1]["timeline"][0]["kind"] == "created"
                assert (await _ask(f"{jobs}?namespace={theirs}", token))[0] == 403
                assert (await _ask(f"{jobs}/{theirs}/train", token))[0] == 403
                assert (await _ask(f"http://127.0.0.1:{port}/api/v1/nodes", token))[0] == 403
                assert (await _ask(jobs, "no.such.token"))[0] == 401
                assert (await _ask(jobs))[0] == 401
    assert audit.differs_from("query-api", own_plane.audit_log.read_text().splitlines()) == []


async def test_an_open_address_without_a_gate_is_refused_at_the_start(tmp_path: Path) -> None:
    made = await asyncio.create_subprocess_exec(
        operators._command(), "operator", "--query-bind-address=:8082", stderr=asyncio.subprocess.PIPE
    )
    _, said = await made.communicate()
    assert made.returncode == 2
    assert b"can be reached from other machines" in said
