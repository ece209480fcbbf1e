"""The subresource `scale` of TFJobs: what `kubectl scale` and a HorizontalPodAutoscaler do with it."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from aiohttp import web

from harness.api import Api, ApiError, Object, pods, services, tfjobs
from harness.controlplane import ControlPlane, free_port
from harness.progress import CommandFailed

from .fake_nodes import configure, job, operator_with_its_rights, target_when

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("scheduled"),
]

JOBS = tfjobs("default")
AUTOSCALERS = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"
API_SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
METRICS = "external.metrics.k8s.io"
SELECTOR = "training.kubeflow.org/job-name=j,training.kubeflow.org/replica-type=worker"


@pytest.fixture
def api(two_nodes: Api) -> Api:
    return two_nodes


def runs(workers: int) -> Callable[[Object], bool]:
    """Whether so many workers are declared, and run."""

    def does(found: Object) -> bool:
        active = found.get("status", {}).get("replicaStatuses", {}).get("Worker", {}).get("active")
        return bool(found["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] == active == workers)

    return does


async def kubectl_scale(plane: ControlPlane, name: str, replicas: int) -> str:
    return await asyncio.to_thread(plane.kubectl, "scale", f"tfjob/{name}", f"--replicas={replicas}")


async def test_scale_is_an_edit_of_the_workers(plane: ControlPlane, api: Api, tmp_path: Path) -> None:
    await configure(api, profile="fixed")
    async with operator_with_its_rights(plane, tmp_path):
        await api.create(JOBS, job("j", annotations={}, Chief=1, PS=1, Worker=1))
        await api.seen(JOBS, runs(1), name="j")
        scale = await api.get(f"{JOBS}/j/scale")
        assert scale["kind"] == "Scale"
        assert scale["spec"] == {"replicas": 1}
        assert scale["status"] == {"replicas": 1, "selector": SELECTOR}

        await kubectl_scale(plane, "j", 3)
        await api.seen(JOBS, runs(3), name="j")
        selected, _ = await api.items(pods("default"), labelSelector=SELECTOR)
        assert sorted(each["metadata"]["name"] for each in selected) == [f"j-worker-{k}" for k in range(3)]

        scale = await api.get(f"{JOBS}/j/scale")
        await api.request("PUT", f"{JOBS}/j/scale", {**scale, "spec": {"replicas": 2}})
        found = await api.seen(JOBS, runs(2), name="j")
        assert found["spec"]["tfReplicaSpecs"]["PS"]["replicas"] == 1
        with pytest.raises(ApiError) as refused:
            await api.request("PUT", f"{JOBS}/j/scale", {**scale, "spec": {"replicas": -1}})
        assert refused.value.status in (409, 422)


async def test_a_job_without_a_number_of_workers_has_no_scale(plane: ControlPlane, api: Api) -> None:
    """The API server's rule: the CRD cannot say that 1 is the default. kubectl only writes, so it sets a first number,
    but does not make a type without a template."""
    unnumbered = job("unnumbered", annotations={}, Worker=1)
    del unnumbered["spec"]["tfReplicaSpecs"]["Worker"]["replicas"]
    for body in (job("chief-only", annotations={}, Chief=1), unnumbered):
        name = (await api.create(JOBS, body))["metadata"]["name"]
        with pytest.raises(ApiError, match="does not exist") as failed:
            await api.get(f"{JOBS}/{name}/scale")
        assert failed.value.status == 500
    with pytest.raises(CommandFailed, match="must be specified"):
        await kubectl_scale(plane, "chief-only", 2)
    await kubectl_scale(plane, "unnumbered", 2)
    assert (await api.get(f"{JOBS}/unnumbered/scale"))["spec"] == {"replicas": 2}


async def test_an_elastic_job_gets_what_is_declared_and_the_profile_stays_within_the_bounds(
    plane: ControlPlane, api: Api, tmp_path: Path
) -> None:
    """Without `max-workers` the declared number is the upper bound, so it moves with it; with it, the bound holds."""
    elastic = {"min-workers": "1", "checkpoint-dir": "/c", "rescale": "recreate", "inject": "none"}
    await configure(api, profile="drf")
    async with operator_with_its_rights(plane, tmp_path):
        await api.create(JOBS, job("follows", annotations=elastic, Worker=1))
        await api.create(JOBS, job("bounded", annotations={**elastic, "max-workers": "2"}, Worker=1))
        await target_when(api, "bounded", lambda target: target["replicas"] == {"Worker": 2})
        assert (await target_when(api, "follows", lambda target: target["replicas"]))["replicas"] == {"Worker": 1}
        await kubectl_scale(plane, "bounded", 5)
        await kubectl_scale(plane, "follows", 3)
        await target_when(api, "follows", lambda target: target["replicas"] == {"Worker": 3})
        assert (await target_when(api, "bounded", bool))["replicas"] == {"Worker": 2}


async def test_a_horizontal_pod_autoscaler_scales_by_demand(plane: ControlPlane, api: Api, tmp_path: Path) -> None:
    """By Kubernetes' own controller, and a metric of demand: 7 items at 2 for each worker are 4 workers."""
    await configure(api, profile="fixed")
    asked = {"group": "kubeflow.org", "resource": "tfjobs", "subresource": "scale", "namespace": "default"}
    for verb in ("get", "update"):
        user = "system:serviceaccount:kube-system:horizontal-pod-autoscaler"
        review = {"spec": {"user": user, "resourceAttributes": {**asked, "verb": verb}}}
        reviewed = await api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        assert reviewed["status"]["allowed"]
    queue = {"metric": {"name": "queue"}, "target": {"type": "AverageValue", "averageValue": "2"}}
    body = {
        "metadata": {"name": "j"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "name": "j"},
            "minReplicas": 1,
            "maxReplicas": 6,
            "metrics": [{"type": "External", "external": queue}],
        },
    }
    async with external_metric(plane, api, "7"), operator_with_its_rights(plane, tmp_path):
        await api.create(JOBS, job("j", annotations={}, PS=1, Worker=1))
        await api.seen(JOBS, runs(1), name="j")
        try:
            await api.create(AUTOSCALERS, body)
            await api.seen(JOBS, runs(4), name="j", within_s=240)
            found = await api.seen(AUTOSCALERS, lambda each: each["status"].get("desiredReplicas") == 4, name="j")
        finally:
            await api.delete(f"{AUTOSCALERS}/j")
    conditions = {each["type"]: (each["status"], each["reason"]) for each in found["status"]["conditions"]}
    assert conditions["AbleToScale"][0] == "True"
    assert conditions["ScalingActive"] == ("True", "ValidMetricFound")


@contextlib.asynccontextmanager
async def external_metric(plane: ControlPlane, api: Api, value: str) -> AsyncIterator[None]:
    """An API of external metrics, as KEDA is one, whose every metric has this value."""

    async def answer(request: web.Request) -> web.Response:
        at = {"metricName": request.match_info.get("name", ""), "timestamp": "2026-01-01T00:00:00Z", "value": value}
        kind = "ExternalMetricValueList" if "name" in request.match_info else "APIResourceList"
        listed: Object = {"items": [at]} if "name" in request.match_info else {"resources": []}
        version = f"{METRICS}/v1beta1" if "name" in request.match_info else "v1"
        body = {"kind": kind, "apiVersion": version, "metadata": {}, "groupVersion": f"{METRICS}/v1beta1", **listed}
        return web.Response(text=json.dumps(body), content_type="application/json")

    app = web.Application()
    app.router.add_get(f"/apis/{METRICS}/v1beta1", answer)
    app.router.add_get(f"/apis/{METRICS}/v1beta1/namespaces/{{namespace}}/{{name}}", answer)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(plane.certificate, plane.certificate.with_suffix(".key"))
    runner = web.AppRunner(app)
    await runner.setup()
    name, port = f"v1beta1.{METRICS}", free_port()
    spec = {
        "group": METRICS,
        "version": "v1beta1",
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "insecureSkipTLSVerify": True,
        "service": {"namespace": "default", "name": "metrics", "port": port},
    }
    try:
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
        local = {"metadata": {"name": "metrics"}, "spec": {"type": "ExternalName", "externalName": "localhost"}}
        await api.create(services("default"), local)
        await api.create(API_SERVICES, {"metadata": {"name": name}, "spec": spec})
        yield
    finally:
        for made in (f"{API_SERVICES}/{name}", f"{services('default')}/metrics"):
            with contextlib.suppress(ApiError):  # without its server an APIService keeps namespaces from being deleted
                await api.delete(made)
        await runner.cleanup()
