"""The scheduling loop on a real control plane: targets, gangs, nodes that are left out, configuration that changes."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from conformance.manifest import counts
from harness import kwok, operators
from harness.api import NODES, Api, Object, events, pods, tfjobs
from harness.controlplane import ControlPlane
from harness.packages import install, install_small_first
from harness.reasons import reason_of

from .fake_nodes import HOME, NAME, PREFIX, configure, job, operator_with_its_rights, state_of, target_of, target_when

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("scheduled"),
]


@pytest.fixture
def api(two_nodes: Api) -> Api:
    return two_nodes


async def test_gang_waits_with_reason_and_starts_when_there_is_room(
    plane: ControlPlane, api: Api, tmp_path: Path
) -> None:
    await configure(api, profile="fifo-backfill")
    async with operator_with_its_rights(plane, tmp_path):
        await api.create(tfjobs("default"), job("first", PS=1, Worker=5))
        first = await target_when(api, "first", lambda target: target["replicas"])
        assert (first["generation"], first["replicas"]) == (0, {"PS": 1, "Worker": 5})
        assert {node for names in first["nodes"].values() for node in names} == {"kwok-000", "kwok-001"}
        await api.create(tfjobs("default"), job("second", PS=1, Worker=2))
        second = await target_when(api, "second", lambda target: True)
        assert second["replicas"] == {}
        assert reason_of(second) == "needs 3 CPU, 2 free"
        assert not [p for p in (await api.items(pods("default")))[0] if p["metadata"]["name"].startswith("second-")]
        async with asyncio.timeout(120):  # each pod where the plan says
            bound: dict[str, str] = {}
            async for _, pod in api.watch(pods("default")):
                if node := pod["spec"].get("nodeName"):
                    bound[pod["metadata"]["name"]] = node
                if len(bound) == 6:
                    break
        for kind, names in first["nodes"].items():
            for index, node in enumerate(names):
                assert bound[f"first-{kind.lower()}-{index}"] == node
        await api.delete(f"{tfjobs('default')}/first")
        started = await target_when(api, "second", lambda target: target["replicas"])
        assert (started["generation"], started["replicas"]) == (0, {"PS": 1, "Worker": 2})


async def test_plain_jobs_count_as_used_and_are_left_alone(plane: ControlPlane, api: Api, tmp_path: Path) -> None:
    await configure(api, profile="fifo-backfill")
    async with operator_with_its_rights(plane, tmp_path):
        plain = job("plain", cpu="3", Worker=2)
        plain["metadata"]["annotations"] = {}
        await api.create(tfjobs("default"), plain)
        async with asyncio.timeout(120):  # what the operator says of its pods it has seen: they are on nodes
            async for _, found in api.watch(tfjobs("default"), fieldSelector="metadata.name=plain"):
                if counts(found.get("status", {})) == {"Worker": {"active": 2}}:
                    break
        await api.create(tfjobs("default"), job("large", cpu="2", Worker=1))
        assert (await target_when(api, "large", lambda target: True))["replicas"] == {}
        await api.create(tfjobs("default"), job("small", cpu="1", Worker=2))
        assert (await target_when(api, "small", lambda target: target["replicas"]))["replicas"] == {"Worker": 2}
        assert target_of(await api.get(f"{tfjobs('default')}/plain")) is None


@pytest.mark.thorough  # unit/test_snapshot.py, and the scenario `drain` of the campaign
async def test_cordoned_node_is_left_out(plane: ControlPlane, api: Api, tmp_path: Path) -> None:
    await configure(api, profile="fifo-backfill")
    await api.merge(f"{NODES}/kwok-000", {"spec": {"unschedulable": True}})
    async with operator_with_its_rights(plane, tmp_path):
        await api.create(tfjobs("default"), job("small", Worker=2))
        assert (await target_when(api, "small", lambda target: target["replicas"]))["nodes"] == {
            "Worker": ["kwok-001"] * 2
        }
        await api.create(tfjobs("default"), job("large", Worker=4))
        assert (await target_when(api, "large", lambda target: True))["replicas"] == {}
        await api.merge(f"{NODES}/kwok-000", {"spec": {"unschedulable": None}})
        large = await target_when(api, "large", lambda target: target["replicas"])
        assert "kwok-000" in large["nodes"]["Worker"]


async def test_the_profile_changes_without_restart_and_an_invalid_configuration_is_refused(
    plane: ControlPlane, api: Api, tmp_path: Path
) -> None:
    await configure(api, profile="fifo-backfill")
    async with operator_with_its_rights(plane, tmp_path) as operator:
        await api.create(tfjobs("default"), job("waits", cpu="3", Worker=3))
        assert (await target_when(api, "waits", lambda target: True))["replicas"] == {}
        await configure(api, profile="fifo-backfil", scope="some")
        async with asyncio.timeout(120):
            async for _, event in api.watch(events(HOME), fieldSelector=f"involvedObject.name={NAME}"):
                assert (event["type"], event["reason"]) == ("Warning", "InvalidConfiguration")
                assert event["involvedObject"]["kind"] == "ConfigMap"
                for said in ("fifo-backfil", "optimus", "scope", "Still in use: profile fifo-backfill"):
                    assert said in event["message"]
                break
        await api.create(tfjobs("default"), job("fits", Worker=1))  # the last good one still decides
        assert (await target_when(api, "fits", lambda target: target["replicas"]))["nodes"]
        await configure(api, profile="fixed")
        started = await target_when(api, "waits", lambda target: target["replicas"])
        assert (started["generation"], started["replicas"], started["nodes"]) == (0, {"Worker": 3}, {})
        await api.create(tfjobs("default"), job("plainly", cpu="9", Worker=2))
        async with asyncio.timeout(120):  # though nothing fits
            async for _, pod in api.watch(pods("default")):
                if pod["metadata"]["name"] == "plainly-worker-1":
                    break
        assert target_of(await api.get(f"{tfjobs('default')}/plainly")) is None
        assert operator.alive


async def test_a_profile_of_an_installed_package_decides(plane: ControlPlane, api: Api, tmp_path: Path) -> None:
    """The package of docs/add-a-profile.md, beside one that cannot be imported."""
    site = tmp_path / "site"
    site.mkdir()
    install_small_first(site)
    install(site, "broken", "mine", "import no_such_module", "mine = mine:Parameters")
    await configure(api, profile="small-first", profiles={"small-first": {"most": 3}})
    async with operator_with_its_rights(plane, tmp_path, PYTHONPATH=str(site)) as operator:
        await api.create(tfjobs("default"), job("wide", Worker=3))
        assert (await target_when(api, "wide", lambda target: target["replicas"]))["replicas"] == {"Worker": 3}
        assert (await status_of(operator))["profile"] == "small-first"
        log = operator.log.read_text()
        assert "small-first 1.0" in log
        assert "broken 1.0" in log
        assert "No module named 'no_such_module'" in log


async def test_the_deployment_shows_which_profile_decides(plane: ControlPlane, api: Api, tmp_path: Path) -> None:
    """`kubectl describe deployment` and `/status`: a parameter at the wrong place is refused as a whole."""
    labels = {"control-plane": NAME}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "operator", "image": "i"}]}}
    deployment = {"metadata": {"name": NAME}, "spec": {"selector": {"matchLabels": labels}, "template": template}}
    await api.create(f"/apis/apps/v1/namespaces/{HOME}/deployments", deployment)
    async with asyncio.timeout(120):
        while not (made := (await api.items(pods(HOME)))[0]):
            await asyncio.sleep(0.2)
    await configure(api, profile="elastic", lend="none")
    home = {"POD_NAME": made[0]["metadata"]["name"], "POD_NAMESPACE": HOME}
    async with operator_with_its_rights(plane, tmp_path, **home) as operator:
        refused = await event_of_deployment(api, "InvalidConfiguration")
        for said in ("lend is not known", "profiles.elastic.lend", "Still in use: profile fixed"):
            assert said in refused["message"]
        status = await status_of(operator)
        assert (status["profile"], status["configMap"]) == ("fixed", f"{HOME}/{NAME}")
        assert "no valid one was read before" in status["why"]
        assert "lend is not known" in status["refused"]["error"]
        await configure(api, profile="elastic", profiles={"elastic": {"lend": "none"}})
        taken = await event_of_deployment(api, "ConfigurationTaken")
        assert taken["message"].startswith("Profile elastic is in use")
        status = await status_of(operator)
        assert (status["profile"], status["refused"]) == ("elastic", None)


async def event_of_deployment(api: Api, reason: str) -> Object:
    """The event with this reason about the operator's Deployment, once there is one."""
    fields = f"involvedObject.kind=Deployment,involvedObject.name={NAME},reason={reason}"
    return await api.seen(events(HOME), lambda _: True, fields=fields)


async def status_of(operator: operators.Operator) -> Any:
    """What the operator answers at /status."""
    text: str | None = await asyncio.to_thread(operators.page, f"{operator.probe_url}/status")
    assert text is not None
    return json.loads(text)


@pytest.mark.thorough  # e2e/test_elastic.py asks so, and the campaign's scenario `grow`
async def test_a_person_asks_for_a_size(plane: ControlPlane, api: Api, tmp_path: Path) -> None:
    elastic = {"max-workers": "4", "checkpoint-dir": "/ckpt", "rescale": "recreate"}
    async with operator_with_its_rights(plane, tmp_path):  # no ConfigMap: fixed
        await api.create(tfjobs("default"), job("grows", annotations=elastic, PS=1, Worker=1))
        async with asyncio.timeout(120):
            async for _, found in api.watch(tfjobs("default")):
                if f"{PREFIX}state" in (found["metadata"].get("annotations") or {}):
                    break
        assert target_of(found) is None
        path = f"{tfjobs('default')}/grows"
        await api.merge(path, {"metadata": {"annotations": {f"{PREFIX}target-workers": "3"}}})
        asked = await target_when(api, "grows", lambda target: True)
        assert (asked["generation"], asked["replicas"]) == (1, {"PS": 1, "Worker": 3})
        assert "target-workers=3" in reason_of(asked)


@pytest.mark.thorough  # unit/test_annotations.py has the words, the unit tests the size
async def test_a_job_without_checkpoints_keeps_its_size_and_says_so(
    plane: ControlPlane, api: Api, tmp_path: Path
) -> None:
    bounds = {"min-workers": "1", "max-workers": "4", "target-workers": "3"}
    await configure(api, profile="fifo-backfill")
    async with operator_with_its_rights(plane, tmp_path):
        await api.create(tfjobs("default"), job("plain", annotations=bounds, PS=1, Worker=1))
        resumes = {**bounds, "checkpoint-dir": "/ckpt", "rescale": "recreate"}
        await api.create(tfjobs("default"), job("resumes", annotations=resumes, PS=1, Worker=1))
        async with asyncio.timeout(120):
            async for _, event in api.watch(events("default"), fieldSelector="reason=InvalidAnnotation"):
                assert event["involvedObject"]["name"] == "plain"
                assert "min-workers" in event["message"]
                assert "have no effect: the job is never rescaled, because" in event["message"]
                break
        await target_when(api, "resumes", lambda target: target["replicas"].get("Worker") == 3)
        kept = await target_when(api, "plain", lambda target: target["replicas"])
        assert (kept["generation"], kept["replicas"]) == (0, {"PS": 1, "Worker": 1})


async def test_a_job_that_runs_at_an_edited_size(plane: ControlPlane, api: Api, tmp_path: Path) -> None:
    """Under a profile that places: an edit of the spec asks once, and the size then is the job's own."""
    elastic = {"max-workers": "4", "checkpoint-dir": "/ckpt", "rescale": "recreate"}
    await configure(api, profile="fifo-backfill")
    async with operator_with_its_rights(plane, tmp_path):
        await api.create(tfjobs("default"), job("grows", annotations=elastic, PS=1, Worker=1))
        await target_when(api, "grows", lambda target: target["replicas"])
        await rests(api, generation=0)
        await api.merge(
            f"{tfjobs('default')}/grows",
            {"spec": {"tfReplicaSpecs": {"Worker": {"replicas": 3}}}},
        )
        asked = await target_when(api, "grows", lambda target: target["generation"] == 1)
        assert asked["replicas"] == {"PS": 1, "Worker": 3}
        assert asked["declared"] == {"PS": 1, "Worker": 1}  # until it is reached, so that a refusal is no end of it
        assert "spec has 3 workers" in reason_of(asked)
        state = await rests(api, generation=1)  # the job gets there
        assert state["replicas"] == {"PS": 1, "Worker": 3}
        reached = await target_when(api, "grows", lambda target: target["declared"] == target["replicas"])
        assert (reached["generation"], reached["declared"]) == (1, {"PS": 1, "Worker": 3})


async def rests(api: Api, generation: int) -> Any:
    """What the operator says of the only job once it is Stable at a generation."""

    def stable(found: Object) -> bool:
        state = state_of(found)
        return (state.get("phase"), state.get("generation")) == ("Stable", generation)

    return state_of(await api.seen(tfjobs("default"), stable, within_s=150))


async def test_an_invalid_job_does_not_stop_the_others(plane: ControlPlane, api: Api, tmp_path: Path) -> None:
    await configure(api, profile="fifo-backfill")
    async with operator_with_its_rights(plane, tmp_path):
        odd = job("odd", Worker=1)
        odd["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["affinity"] = {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Unlike"}]}]
                }
            }
        }
        odd["metadata"]["annotations"][f"{PREFIX}target"] = "nonsense"
        odd["metadata"]["annotations"][f"{PREFIX}state"] = "{"
        await api.create(tfjobs("default"), odd)
        await api.create(tfjobs("default"), job("good", Worker=1))
        assert (await target_when(api, "good", lambda target: target["replicas"]))["replicas"] == {"Worker": 1}


async def test_a_node_that_kube_scheduler_refuses_leads_to_another_plan(
    plane: ControlPlane, api: Api, tmp_path: Path
) -> None:
    """A host port is taken on the node that the profile chose: it models none, kube-scheduler does."""
    await configure(api, profile="fifo")
    async with operator_with_its_rights(plane, tmp_path):
        await api.create(tfjobs("default"), job("probe", Worker=1))
        chosen = (await target_when(api, "probe", lambda found: found["nodes"]))["nodes"]["Worker"][0]
        await api.delete(f"{tfjobs('default')}/probe")
        spec = kwok.pod_template("10m")["spec"]
        spec["containers"][0] |= {"name": "c", "ports": [{"containerPort": 80, "hostPort": 8080}]}
        taker = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "taker"}, "spec": {**spec, "nodeName": chosen}}
        await api.create(pods("default"), taker)
        wants = job("wants", Worker=1)
        container = wants["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
        container["ports"] = [{"containerPort": 8080, "hostPort": 8080}]
        await api.create(tfjobs("default"), wants)
        first = (await target_when(api, "wants", lambda found: found["nodes"]))["nodes"]["Worker"][0]
        assert first == chosen, "else this shows nothing"
        await target_when(api, "wants", lambda found: found["nodes"]["Worker"][0] != chosen, within_s=150)
        async with asyncio.timeout(120):
            async for _, pod in api.watch(pods("default")):
                if pod["metadata"]["name"] == "wants-worker-0" and pod["spec"].get("nodeName"):
                    assert pod["spec"]["nodeName"] != chosen
                    break
