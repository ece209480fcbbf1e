"""What the operator adds to pods, in a namespace that enforces the Pod Security standard `restricted`."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from conformance.manifest import container, replica, tfjob
from harness.api import CORE, Api, ApiError, Object, events, pods, tfjobs
from harness.jobs import RESTRICTED

from .running import running

PREFIX = "elastic.kubeflow.org/"


@pytest.mark.timeout(300)
async def test_pods_with_launcher_and_exporter_meet_restricted(
    kubeconfig: Path, api: Api, namespace: str, tmp_path: Path
) -> None:
    """A job whose own template meets the standard still does with all that is added; one that does not is told."""
    enforce = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    await api.merge(f"{CORE}/namespaces/{namespace}", enforce)
    async with asyncio.timeout(60):  # the API server heeds it only a moment later
        while await _admitted(api, namespace):
            await asyncio.sleep(0.1)
    notes = {f"{PREFIX}max-workers": "4", f"{PREFIX}checkpoint-dir": "/checkpoints"}

    def job(name: str, **fields: Any) -> Object:
        worker = replica(containers=[container(command=["python", "train.py"], **fields)])
        return tfjob(name, metadata={"annotations": notes}, Worker=worker, PS=worker)

    async with running("ours", kubeconfig, tmp_path, namespace=namespace, arguments=["--image=example.org/operator"]):
        await api.create(tfjobs(namespace), job("meets", securityContext=RESTRICTED))
        await api.create(tfjobs(namespace), job("fails"))
        async with asyncio.timeout(120):
            while len((await api.items(pods(namespace)))[0]) < 2:
                await asyncio.sleep(0.2)
            while not (told := await _refusals(api, namespace)):
                await asyncio.sleep(0.2)
    found, _ = await api.items(pods(namespace))
    assert {pod["metadata"]["name"] for pod in found} == {"meets-ps-0", "meets-worker-0"}
    for pod in found:
        added = [each["name"] for each in pod["spec"]["initContainers"]]
        assert added == ["elastic-tfjob-exporter"]
        assert {"emptyDir", "downwardAPI"} <= {kind for volume in pod["spec"]["volumes"] for kind in volume}
    for message in told:  # of the user's own container, not of ours
        assert 'container "tensorflow"' in message
        assert "elastic-tfjob" not in message.partition("violates PodSecurity")[2]


async def _admitted(api: Api, namespace: str) -> bool:
    """Whether a pod that does not meet the standard could be made."""
    body = {"metadata": {"name": "trial"}, "spec": {"containers": [container()]}}
    try:
        await api.request("POST", pods(namespace), body, params={"dryRun": "All"})
    except ApiError as error:
        if "violates PodSecurity" not in str(error):
            raise
        return False
    return True


async def _refusals(api: Api, namespace: str) -> list[str]:
    found, _ = await api.items(events(namespace), fieldSelector="involvedObject.name=fails,reason=FailedCreatePod")
    return [event["message"] for event in found]
