"""A job whose pods fit nowhere waits, says why, and runs once there is room: with the real kube-scheduler."""

import asyncio
from pathlib import Path

import pytest

from conformance.manifest import tfjob
from harness import kwok
from harness.api import Api, events, tfjobs
from harness.controlplane import ControlPlane

from .ledger import Ledger, conditions
from .running import running


@pytest.mark.timeout(300)
@pytest.mark.xdist_group("scheduled")
async def test_waits_for_room_and_says_why(plane: ControlPlane, tmp_path: Path) -> None:
    replica = {"replicas": 1, "template": kwok.pod_template()}
    ledger = Ledger("default")
    async with (
        Api(plane.kubeconfig) as api,
        running("ours", plane.kubeconfig, tmp_path),
        ledger.watching(api),
    ):
        await api.create(tfjobs("default"), tfjob("big", PS=replica, Worker=replica))
        told = ""
        async with asyncio.timeout(120):
            async for _, event in api.watch(events("default"), fieldSelector="involvedObject.name=big"):
                if event["reason"] == "Unschedulable":
                    told = event["message"]
                    break
        assert "nodes available" in told
        assert event["type"] == "Warning"
        assert event["involvedObject"]["kind"] == "TFJob"
        assert conditions(await api.get(f"{tfjobs('default')}/big")) == {"Created": "True"}
        async with asyncio.timeout(60):  # the ledger hears of pods on another way than of events
            while set(ledger.uids) != {("big", "ps-0"), ("big", "worker-0")}:
                await asyncio.sleep(0.1)
        made = {replica: list(uids) for replica, uids in ledger.uids.items()}
        async with kwok.nodes(api, plane.kubeconfig, tmp_path, 1):
            await ledger.running(["big"], within_s=120)
        assert ledger.uids == made, "pods were made anew though the first ones only had to wait"
