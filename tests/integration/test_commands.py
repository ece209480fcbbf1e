"""The command line on a real control plane: the user's own rights, and what is written is what the operator reads."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from conformance.manifest import tfjob
from elastic_tfjob.cli import main
from harness import operators
from harness.api import Api, Object, tfjobs
from harness.progress import run

pytestmark = pytest.mark.timeout(300)

PREFIX = "elastic.kubeflow.org/"
BIN = Path(sys.executable).parent
RIGHTS = ("get", "list", "watch", "patch")


def acts_as(kubeconfig: Path, namespace: str, account: str, file: Path) -> Path:
    """A kubeconfig that has a ServiceAccount's rights and no more."""
    token = operators.kubectl(kubeconfig, "create", "token", account, f"--namespace={namespace}").strip()
    config = json.loads(kubeconfig.read_text())
    config["users"] = [{**user, "user": {"token": token}} for user in config["users"]]
    file.write_text(json.dumps(config))
    return file


async def test_a_user_lists_explains_scales_and_suspends_with_their_own_rights(
    api: Api, kubeconfig: Path, namespace: str, tmp_path: Path
) -> None:
    annotations = {f"{PREFIX}max-workers": "4", f"{PREFIX}checkpoint-dir": "/c"}
    made = tfjob("train", metadata={"annotations": annotations}, Chief=1, PS=1, Worker=2)
    await api.create(tfjobs(namespace), made)
    in_mine = ("-n", namespace)

    async def create(*words: str) -> None:
        await asyncio.to_thread(operators.kubectl, kubeconfig, "create", *words)

    await create("serviceaccount", "ann", *in_mine)
    verbs = [f"--verb={verb}" for verb in RIGHTS]
    await create("role", "own", *in_mine, *verbs, "--resource=tfjobs.kubeflow.org")
    await create("rolebinding", "own", *in_mine, "--role=own", f"--serviceaccount={namespace}:ann")
    ann = f"system:serviceaccount:{namespace}:ann"
    await api.allowed(ann, namespace, verb="patch", group="kubeflow.org", resource="tfjobs")
    config = await asyncio.to_thread(acts_as, kubeconfig, namespace, "ann", tmp_path / "ann.kubeconfig")

    async def ask(*words: str, code: int = 0) -> Result:
        """In this process: each start of a program takes seconds."""
        ended = await asyncio.to_thread(CliRunner().invoke, main, [*words, f"--kubeconfig={config}"])
        assert ended.exit_code == code, ended.output
        return ended

    def plugin(*words: str) -> str:
        return run([BIN / "kubectl-tfjob", *words], env={"KUBECONFIG": str(config)})

    async def job() -> Object:
        return await api.get(f"{tfjobs(namespace)}/train")

    (row,) = json.loads((await ask("jobs", *in_mine, "-o", "json")).stdout)
    assert (row["name"], row["state"], row["bounds"]["Worker"]) == ("train", "Pending", [2, 4])
    assert "train" in await asyncio.to_thread(plugin, "jobs", *in_mine)
    explained = await ask("explain", "train", *in_mine)
    assert "bounds:       Worker 2 to 4" in explained.stdout
    assert "events cannot be read: events is forbidden" in explained.stderr
    assert "not allowed: " in (await ask("jobs", "-A", code=1)).stderr
    await ask("scale", "train", "--workers", "9", *in_mine, code=1)
    await ask("scale", "train", "--workers", "3", *in_mine)
    assert (await job())["metadata"]["annotations"][f"{PREFIX}target-workers"] == "3"
    await ask("auto", "train", *in_mine)
    assert f"{PREFIX}target-workers" not in (await job())["metadata"]["annotations"]
    await ask("suspend", "train", *in_mine)
    assert (await job())["spec"]["runPolicy"]["suspend"] is True
    assert "elastic-tfjob resume train" in (await ask("explain", "train", *in_mine)).stdout
    await ask("resume", "train", *in_mine)
    assert (await job())["spec"]["runPolicy"]["suspend"] is False
    assert "has no TFJob other" in (await ask("explain", "other", *in_mine, code=3)).stderr
