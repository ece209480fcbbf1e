"""Two namespaces share a real control plane: when jobs of the second come, those of the first shrink to their share.

Two nodes of four cores, of which each job would take seven.
"""

import asyncio
import re
from pathlib import Path
from typing import Any, Final

import pytest

from harness.api import CORE, Api, Object, pods, tfjobs
from harness.controlplane import ControlPlane
from harness.operators import Operator
from harness.reasons import reason_of

from .fake_nodes import configure, job, operator_with_its_rights, state_of, target_of

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("scheduled"),
]

WITHIN_S: Final = 150
ELASTIC: Final = {
    "min-workers": "1",
    "max-workers": "7",
    "checkpoint-dir": "/ckpt",
    "rescale": "recreate",
    "inject": "none",
}


@pytest.fixture
def api(two_nodes: Api) -> Api:
    return two_nodes


async def test_a_team_gets_its_share_from_one_that_had_all(plane: ControlPlane, api: Api, tmp_path: Path) -> None:
    for name in ("vision", "speech"):
        await api.create(f"{CORE}/namespaces", {"metadata": {"name": name}})
    teams = {"named": {"vision": {"weight": 1}, "speech": {"weight": 1}}}
    parameters = {"lend": "none", "interval_s": 1, "cooldown_s": 0, "teams": teams}
    await configure(api, profile="elastic", profiles={"elastic": parameters})
    async with operator_with_its_rights(plane, tmp_path) as operator:
        await created(api, "vision")
        await sized(api, "vision", 7)
        await seen(api, "vision", lambda found: state_of(found).get("phase") == "Stable")
        await created(api, "speech")
        speech = await sized(api, "speech", 4)
        vision = await sized(api, "vision", 4)
        assert reason_of(target_of(vision)).startswith("Worker 7 -> 4: makes room for speech/train of team speech")
        assert target_of(speech)["replicas"] == {"Worker": 4}
        found = await shares(operator)
        assert found["share", "vision"] == found["share", "speech"] == 0.5
        assert found["deserved", "vision"] == found["deserved", "speech"] == 0.5
        assert found["reclaimed_replicas_total", "vision"] == 3
        # Nothing goes back and forth: what each has stays.
        await asyncio.sleep(5)
        for name in ("vision", "speech"):
            assert target_of(await api.get(f"{tfjobs(name)}/train"))["replicas"] == {"Worker": 4}


async def created(api: Api, namespace: str) -> None:
    made = job("train", annotations=ELASTIC, Worker=7)
    made["metadata"]["namespace"] = namespace
    await api.create(tfjobs(namespace), made)


async def seen(api: Api, namespace: str, what: Any) -> Object:
    return await api.seen(tfjobs(namespace), what, name="train", within_s=WITHIN_S)


async def sized(api: Api, namespace: str, workers: int) -> Object:
    """The job once its target and its pods on nodes are so many."""
    found = await seen(
        api, namespace, lambda job_: ((target_of(job_) or {}).get("replicas") or {}).get("Worker") == workers
    )
    there: set[str] = set()
    async with asyncio.timeout(WITHIN_S):
        async for kind, pod in api.watch(pods(namespace)):
            known = there.discard if kind == "DELETED" or not pod["spec"].get("nodeName") else there.add
            known(pod["metadata"]["uid"])
            if len(there) == workers:
                return found
    raise AssertionError("the watch ended")


async def shares(operator: Operator) -> dict[tuple[str, str], float]:
    text = await asyncio.to_thread(operator.metrics)
    lines = re.findall(r'^elastic_tfjob_team_(\w+)\{(?:how="\w+",)?team="(\w+)"\} (\S+)', text, re.MULTILINE)
    return {(what, team): float(value) for what, team, value in lines}
