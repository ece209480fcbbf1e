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

from .running import OPERATOR, running

ROOT = Path(__file__).parents[2]
RBAC = "rbac.authorization.k8s.io/v1"

pytestmark = pytest.mark.timeout(600)


def _allow(plane: ControlPlane, namespace: str, account: str) -> None:
    """A ServiceAccount that may list the TFJobs of its own namespace."""
    plane.kubectl("create", "serviceaccount", account, "-n", namespace)
    plane.kubectl("create", "role", "see", "-n", namespace, "--verb=list", "--resource=tfjobs.kubeflow.org")
    plane.kubectl(
        "create", "rolebinding", "see", "-n", namespace, "--role=see", f"--serviceaccount={namespace}:{account}"
    )


async def _ask(url: str, token: str = "", body: Any = None) -> tuple[int, Mapping[str, Any]]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    method = "GET" if body is None else "POST"
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, headers=headers, json=body) as response,
    ):
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
        # Of each kind of binding one right: the last that was applied.
        await api.allowed(OPERATOR, "kubeflow", verb="create", group="coordination.k8s.io", resource="leases")
        await api.allowed(OPERATOR, "", verb="create", group="authentication.k8s.io", resource="tokenreviews")
        mine, theirs = await api.new_namespace(), await api.new_namespace()
        for namespace in (mine, theirs):
            await api.create(tfjobs(namespace), tfjob("train", Worker=1))
        await asyncio.to_thread(_allow, own_plane, mine, "ann")
        ann = f"system:serviceaccount:{mine}:ann"
        await api.allowed(ann, mine, verb="list", group="kubeflow.org", resource="tfjobs")
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
                async with asyncio.timeout(120):
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
            await _foresees(f"http://127.0.0.1:{ports[0]}/api/v1/what-if", token, mine, theirs)
            await _foresees_at_a_terminal(own_plane, f"http://127.0.0.1:{ports[0]}", mine, tmp_path)
    assert audit.differs_from("query-api", own_plane.audit_log.read_text().splitlines()) == []


def _new(namespace: str) -> Mapping[str, Any]:
    annotations = {f"elastic.kubeflow.org/{name}": text for name, text in (("deadline", "1h"), ("total-steps", "100"))}
    annotations["elastic.kubeflow.org/estimated-duration"] = "5m"
    metadata = {"name": "new", "namespace": namespace, "annotations": annotations}
    return tfjob("new", metadata=metadata, Worker=1)


async def _foresees(url: str, token: str, mine: str, theirs: str) -> None:
    """What if this job were submitted, with two nodes more: none is there yet, so it starts on those."""
    nodes = {"add_nodes": 2, "node_cpu": "4", "node_memory": "8Gi"}
    async with asyncio.timeout(150):
        while (asked := await _ask(url, token, {"job": _new(mine), **nodes}))[0] == 503:  # other tests want the CPU
            await asyncio.sleep(1)
    status, answer = asked
    assert status == 200, answer
    (row,) = answer["items"]  # the jobs that are there have no annotation, so nothing is decided for them
    assert (row["name"], row["state"], row["meets_then"], row["source"]) == ("new", "New", True, "estimated")
    assert (answer["nodes_added"], answer["node"]) == (2, None)  # she may not list nodes
    status, answer = await _ask(url, token, {"job": _new(theirs), **nodes})
    assert status == 403, answer
    assert (await _ask(url, "", nodes))[0] == 401
    status, answer = await _ask(url, token, {"job": {**_new(mine), "spec": {"tfReplicaSpecs": {}}, "kind": "Job"}})
    assert (status, answer["error"]["where"]) == (400, "job")


async def _foresees_at_a_terminal(plane: ControlPlane, url: str, namespace: str, folder: Path) -> None:
    """The command line's what-if and check, with a ServiceAccount's kubeconfig."""
    config = await asyncio.to_thread(plane.service_account_kubeconfig, namespace, "ann")
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(_new(namespace)))

    async def ask(*words: str) -> tuple[int | None, str]:
        made = await asyncio.create_subprocess_exec(
            operators._command(),
            *words,
            f"--kubeconfig={config}",
            f"--namespace={namespace}",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await made.communicate()
        return made.returncode, said.decode()

    nodes = ("--add-nodes=1", "--node-cpu=4", "--node-memory=8Gi")
    async with asyncio.timeout(300):
        words = ("what-if", "-f", str(file), *nodes, "--query-url", url)
        while "does not answer" in (asked := await ask(*words))[1]:  # other tests want the CPU
            await asyncio.sleep(1)
    code, said = asked
    assert (code, "new" in said, "met" in said) == (0, True, True), said
    code, said = await ask("check", "-f", str(file))
    assert code == 1, said  # she may not create TFJobs, which the dry run tells
    assert "ok:      CRD: kubeflow.org/v1 is served" in said
    assert "warning: operator: you may not read it" in said
    assert "error:   API server: refuses the job" in said


async def test_an_open_address_without_a_gate_is_refused_at_the_start(tmp_path: Path) -> None:
    made = await asyncio.create_subprocess_exec(
        operators._command(), "operator", "--query-bind-address=:8082", stderr=asyncio.subprocess.PIPE
    )
    _, said = await made.communicate()
    assert made.returncode == 2
    assert b"is reachable from other machines" in said
