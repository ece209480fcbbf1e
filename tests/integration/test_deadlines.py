"""What is told of deadlines, on a real control plane, with the operator's own rights and the admission policy."""

import asyncio
from pathlib import Path

import pytest

from harness.api import Api, Object, events, tfjobs
from harness.controlplane import ControlPlane
from harness.effort import effort

from .fake_nodes import configure, job, operator_with_its_rights

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("scheduled"),
]

VERDICT = "elastic.kubeflow.org/verdict"


async def verdict_is(api: Api, name: str, verdict: str) -> None:
    def has(found: Object) -> bool:
        return (found["metadata"].get("annotations") or {}).get(VERDICT) == verdict

    await api.seen(tfjobs("default"), has, name=name)


async def told(api: Api, name: str) -> list[str]:
    found = (await api.items(events("default")))[0]
    return [each["reason"] for each in found if each["involvedObject"]["name"] == name and "Deadline" in each["reason"]]


async def test_verdicts_are_written_and_told_once(plane: ControlPlane, two_nodes: Api, tmp_path: Path) -> None:
    """One job whose deadline is over, and one that can never make it; a second operator repeats neither."""
    past = {"deadline": "2026-01-01T00:00:00Z", "checkpoint-dir": "/c", "total-steps": "10"}
    far = {"deadline": "10m", "estimated-duration": "9h", "checkpoint-dir": "/c", "total-steps": "32400"}
    api = two_nodes
    await configure(api, profile="kips")
    async with operator_with_its_rights(plane, tmp_path):
        await api.create(tfjobs("default"), job("past", annotations=past, Worker=1))
        await api.create(tfjobs("default"), job("far", annotations=far, Worker=1))
        await verdict_is(api, "past", "missed")
        await verdict_is(api, "far", "unattainable")
        async with asyncio.timeout(120):
            while not (await told(api, "past") and await told(api, "far")):
                await asyncio.sleep(0.5)
    async with operator_with_its_rights(plane, tmp_path):
        await asyncio.sleep(effort(5, 15))
    assert (await told(api, "past"), await told(api, "far")) == (["DeadlineMissed"], ["DeadlineUnattainable"])
