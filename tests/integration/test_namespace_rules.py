"""Whatever a namespace admits of a plain job it admits of the same job made elastic: rules and templates, each tried on
a real API server, with the operator's own decisions and writes. The table is in docs/designs/injection.md."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, cast

import pytest

from conformance.manifest import container, replica, tfjob
from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.api.quantity import quantity
from elastic_tfjob.controller.job.decision import Event, Observed, ReconcileSettings
from elastic_tfjob.controller.job.reconcile import reconcile
from elastic_tfjob.controller.kube.client import ApiClient, load_configuration
from elastic_tfjob.controller.kube.errors import ApiError
from elastic_tfjob.controller.kube.events import EventRecorder
from elastic_tfjob.controller.kube.executor import Executor
from elastic_tfjob.controller.kube.informer import Caches, Informer
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.owned_objects import DisruptionBudget, Service
from elastic_tfjob.controller.model.pod import Pod
from harness.api import CORE, Api, Object, pods, services, tfjobs
from harness.api import ApiError as Refused
from harness.jobs import RESTRICTED
from unit.build import NOW

SETTINGS = ReconcileSettings(image="example.org/operator:1")
ELASTIC = {f"{PREFIX}max-workers": "4", f"{PREFIX}checkpoint-dir": "/checkpoints"}
ASKS = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "200m", "memory": "128Mi"}}
CONFIGURED = {"requests": {"cpu": "0", "memory": "32Mi"}, "limits": {"memory": "96Mi"}}
NOTHING = {"requests": {"cpu": "0", "memory": "0"}}
ADMISSION = "/apis/admissionregistration.k8s.io/v1"

Ours = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Row:
    """A namespace with `rules` and `labels`, and a template: `pod` is of its pod spec, `trains` of its container
    tensorflow, `beside` are others; annotations are `said`.
    `becomes`: what the operator's container asks for, or why there is none."""

    rules: tuple[Object, ...] = ()
    becomes: Ours | str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    trains: Mapping[str, Any] = field(default_factory=dict)
    beside: tuple[Object, ...] = ()
    pod: Mapping[str, Any] = field(default_factory=dict)
    said: Mapping[str, str] = field(default_factory=dict)
    qos: str = "Burstable"


def limits(type_: Literal["Container", "Pod", "PersistentVolumeClaim"] = "Container", **item: Any) -> Object:
    names = {"ratio": "maxLimitRequestRatio", "default_request": "defaultRequest"}
    found = {names.get(key, key): value for key, value in item.items()}
    return {"kind": "LimitRange", "spec": {"limits": [{"type": type_, **found}]}}


def quota(hard: Mapping[str, str], scopes: list[str] | None = None, **spec: Any) -> Object:
    return {"kind": "ResourceQuota", "spec": {"hard": dict(hard), **({"scopes": scopes} if scopes else {}), **spec}}


def refuses(expression: str) -> Object:
    """A policy of the cluster's owner, as a webhook of theirs would be; it refuses pods for which that is so."""
    return {"kind": "ValidatingAdmissionPolicy", "expression": f"!({expression})"}


def trains(**resources: str) -> Object:
    return {"resources": {"requests": dict(resources), "limits": dict(resources)}}


EPHEMERAL = {**ASKS["requests"], "ephemeral-storage": "1Gi"}
FILLED_IN: dict[str, Any] = {"default": ASKS["limits"], "default_request": ASKS["requests"]}
ISTIO = {
    "name": "istio-proxy",
    "image": "example.org/proxy:1",
    "securityContext": {"runAsUser": 1337, "runAsGroup": 1337},
}
INITS = "has(object.spec.initContainers)"
ADDED = "object.spec.initContainers.exists(c, c.name.startsWith('elastic-tfjob'))"
HAS = f"{INITS} && {ADDED}"

ROWS = {
    "no rule": Row(becomes=CONFIGURED),
    # -- LimitRange, of each container
    "least CPU": Row((limits(min={"cpu": "50m"}),), {"requests": {"cpu": "50m"}}),
    "least memory": Row(
        (limits(min={"memory": "64Mi"}),), {"requests": {"memory": "64Mi"}, "limits": {"memory": "96Mi"}}
    ),
    "least memory above our limit": Row(
        (limits(min={"memory": "120Mi"}),), {"requests": {"memory": "120Mi"}, "limits": {"memory": "120Mi"}}
    ),
    "least ephemeral storage": Row(
        (limits(min={"ephemeral-storage": "1Mi"}),),
        {"requests": {"ephemeral-storage": "1Mi"}},
        trains={"resources": {"requests": EPHEMERAL}},
    ),
    "more CPU than that is worth": Row(
        (limits(min={"cpu": "2"}),),
        "minimum cpu usage per Container is 2",
        trains=trains(cpu="2", memory="128Mi"),
        qos="Guaranteed",
    ),
    "most memory": Row(
        (limits(max={"memory": "64Mi"}),), {"limits": {"memory": "64Mi"}}, trains=trains(cpu="100m", memory="64Mi")
    ),
    "most CPU": Row((limits(max={"cpu": "1"}),), {"requests": {"cpu": "0"}, "limits": {"cpu": "1"}}),
    "default": Row(
        (limits(default={"cpu": "300m", "memory": "200Mi"}),), {"limits": {"cpu": "300m", "memory": "96Mi"}}
    ),
    "default request": Row((limits(default_request={"cpu": "70m", "memory": "70Mi"}),), CONFIGURED),
    "ratio of CPU": Row((limits(ratio={"cpu": "2"}),), {"requests": {"cpu": "50m"}, "limits": {"cpu": "100m"}}),
    "ratio of CPU that does not divide it": Row(
        (limits(ratio={"cpu": "3"}),), {"requests": {"cpu": "34m"}, "limits": {"cpu": "100m"}}
    ),
    "ratio of memory": Row(
        (limits(ratio={"memory": "2"}),), {"requests": {"memory": "48Mi"}, "limits": {"memory": "96Mi"}}
    ),
    "least and ratio": Row(
        (limits(min={"cpu": "20m", "memory": "100Mi"}, max={"cpu": "1"}, ratio={"cpu": "2", "memory": "1"}),),
        {"requests": {"cpu": "50m", "memory": "100Mi"}, "limits": {"cpu": "100m", "memory": "100Mi"}},
    ),
    "least memory with an exponent": Row((limits(min={"memory": "64e6"}),), {"requests": {"memory": "64e6"}}),
    "least memory with a fraction": Row((limits(min={"memory": "0.05Gi"}),), {"requests": {"memory": "53687092"}}),
    "two of them": Row(
        (limits(min={"memory": "40Mi"}), limits(ratio={"memory": "1"})),
        {"requests": {"memory": "96Mi"}, "limits": {"memory": "96Mi"}},
    ),
    "for claims": Row((limits("PersistentVolumeClaim", min={"storage": "1Gi"}),), CONFIGURED),
    # -- LimitRange, of each pod
    "least of a pod": Row((limits("Pod", min={"cpu": "100m", "memory": "128Mi"}),), CONFIGURED),
    "most memory of a pod, which the program has": Row(
        (limits("Pod", max={"memory": "128Mi"}),), {"requests": {"memory": "0"}, "limits": {"memory": "0"}}
    ),
    "most CPU of a pod": Row((limits("Pod", max={"cpu": "200m"}),), CONFIGURED),
    "ratio of memory of a pod": Row(
        (limits("Pod", ratio={"memory": "1"}),), {"requests": {"memory": "96Mi"}, "limits": {"memory": "96Mi"}}
    ),
    # -- ResourceQuota, with just what the plain job takes: two workers and a parameter server
    "requests.cpu": Row((quota({"requests.cpu": "300m"}),), CONFIGURED),
    "cpu": Row((quota({"cpu": "300m"}),), CONFIGURED),
    "limits.cpu": Row((quota({"limits.cpu": "600m"}),), {"limits": {"cpu": "0"}}),
    "limits.cpu with room": Row((quota({"limits.cpu": "9"}),), {"requests": {"cpu": "0"}, "limits": {"cpu": "500m"}}),
    "requests.memory": Row((quota({"requests.memory": "384Mi"}),), {"requests": {"memory": "0"}}),
    "memory": Row((quota({"memory": "384Mi"}),), {"requests": {"memory": "0"}}),
    "memory, with room for some": Row((quota({"memory": "420Mi"}),), {"limits": {"memory": "96Mi"}}),
    "limits.memory": Row(
        (quota({"limits.memory": "384Mi"}),), {"requests": {"memory": "0"}, "limits": {"memory": "0"}}
    ),
    "all of them": Row(
        (quota({"requests.cpu": "300m", "limits.cpu": "600m", "requests.memory": "384Mi", "limits.memory": "384Mi"}),),
        {"requests": {"cpu": "0", "memory": "0"}, "limits": {"cpu": "0", "memory": "0"}},
    ),
    "requests.ephemeral-storage": Row(
        (quota({"requests.ephemeral-storage": "3Gi"}),),
        {"requests": {"ephemeral-storage": "0"}},
        trains={"resources": {"requests": EPHEMERAL}},
    ),
    "limits.ephemeral-storage": Row(
        (quota({"limits.ephemeral-storage": "3Gi"}),),
        {"limits": {"ephemeral-storage": "0"}},
        trains={"resources": {"limits": EPHEMERAL}},
    ),
    "pods": Row((quota({"pods": "3", "count/pods": "3"}),), CONFIGURED),
    "accelerators": Row(
        (quota({"requests.nvidia.com/gpu": "3"}),), CONFIGURED, trains=trains(**{"nvidia.com/gpu": "1", "cpu": "1"})
    ),
    "quota and LimitRange": Row(
        (quota({"limits.cpu": "9", "requests.memory": "9Gi"}), limits(ratio={"cpu": "2"})),
        {"requests": {"cpu": "50m"}, "limits": {"cpu": "100m"}},
    ),
    "quota and a limit that the LimitRange fills in": Row(
        (quota({"limits.cpu": "600m"}), limits(default={"cpu": "300m"})), {"limits": {"cpu": "0"}}
    ),
    "quota and a limit that the LimitRange's most is": Row(
        (quota({"limits.cpu": "600m"}), limits(max={"cpu": "1"})), {"limits": {"cpu": "0"}}
    ),
    "quota and storage that the LimitRange fills in": Row(
        (
            quota({"requests.ephemeral-storage": "3Gi"}),
            limits(default={"ephemeral-storage": "2Gi"}, default_request={"ephemeral-storage": "1Gi"}),
        ),
        {"requests": {"ephemeral-storage": "0"}},
        trains={"resources": {"requests": EPHEMERAL}},
    ),
    "a template that leaves all to the LimitRange, which has a least": Row(
        (limits(**FILLED_IN, min={"cpu": "10m", "memory": "40Mi"}),),
        {"requests": {"cpu": "10m", "memory": "40Mi"}},
        trains={"resources": {}},
    ),
    "a template that leaves all to the LimitRange, and a ratio": Row(
        (limits(**FILLED_IN, ratio={"cpu": "2"}),),
        {"requests": {"cpu": "50m"}, "limits": {"cpu": "100m"}},
        trains={"resources": {}},
    ),
    "a template that leaves all to the LimitRange, and a quota": Row(
        (limits(**FILLED_IN), quota({"requests.cpu": "300m", "limits.cpu": "600m", "limits.memory": "384Mi"})),
        {"requests": {"cpu": "0"}, "limits": {"cpu": "0", "memory": "0"}},
        trains={"resources": {}},
    ),
    "quota that closes what the LimitRange asks for": Row(
        (quota({"requests.cpu": "300m"}), limits(min={"cpu": "50m"})), "exceeded quota: rule-0"
    ),
    # -- scopes
    "BestEffort": Row((quota({"pods": "3"}, ["BestEffort"]),), NOTHING, trains={"resources": {}}, qos="BestEffort"),
    "NotBestEffort": Row(
        (quota({"pods": "0"}, ["NotBestEffort"]),), NOTHING, trains={"resources": {}}, qos="BestEffort"
    ),
    "NotBestEffort with requests": Row(
        (quota({"requests.memory": "384Mi", "pods": "3"}, ["NotBestEffort"]),), {"requests": {"memory": "0"}}
    ),
    "Terminating": Row(
        (quota({"requests.memory": "384Mi"}, ["Terminating"]),),
        {"requests": {"memory": "0"}},
        pod={"activeDeadlineSeconds": 3600},
    ),
    "NotTerminating": Row(
        (quota({"requests.memory": "384Mi"}, ["NotTerminating"]),),
        {"requests": {"memory": "0"}},
    ),
    "PriorityClass": Row(
        (
            quota(
                {"requests.memory": "384Mi"},
                scopeSelector={
                    "matchExpressions": [
                        {"scopeName": "PriorityClass", "operator": "In", "values": ["system-cluster-critical"]}
                    ]
                },
            ),
        ),
        {"requests": {"memory": "0"}},
        pod={"priorityClassName": "system-cluster-critical"},
    ),
    # -- policies of the cluster's owner
    "images": Row(
        (refuses(f"{INITS} && object.spec.initContainers.exists(c, c.image.contains('operator'))"),), "denied request"
    ),
    "images of the operator, one pod": Row(
        (refuses(f"{HAS} && object.metadata.name.endsWith('worker-1')"),), "denied request"
    ),
    "CPU limits": Row(
        (refuses(f"{INITS} && object.spec.initContainers.exists(c, !has(c.resources.limits.cpu))"),), "denied request"
    ),
    "the launcher's container": Row((refuses(HAS),), "denied request", said={"inject": "launcher"}),
    # -- Pod Security
    "restricted": Row(
        becomes=CONFIGURED,
        labels={"pod-security.kubernetes.io/enforce": "restricted"},
        trains={"securityContext": RESTRICTED},
    ),
    "baseline": Row(becomes=CONFIGURED, labels={"pod-security.kubernetes.io/enforce": "baseline"}),
    # -- pods
    "the host's network": Row(becomes=CONFIGURED, pod={"hostNetwork": True}),
    "the exporter's port is another's": Row(
        becomes=CONFIGURED, trains={"ports": [{"name": "mine", "containerPort": 9465}]}
    ),
    "the host's network, the second program's port is another's": Row(
        becomes="Duplicate value",
        pod={"hostNetwork": True},
        trains={"ports": [{"name": "mine", "containerPort": 12_222}]},
    ),
    "the host's processes": Row(becomes=CONFIGURED, pod={"hostPID": True}),
    "shared processes": Row(becomes=CONFIGURED, pod={"shareProcessNamespace": True}),
    "read-only root": Row(becomes=CONFIGURED, trains={"securityContext": {"readOnlyRootFilesystem": True}}),
    "another user": Row(becomes=CONFIGURED, pod={"securityContext": {"runAsUser": 1000, "runAsNonRoot": True}}),
    "root": Row(becomes=CONFIGURED, trains={"securityContext": {"runAsUser": 0, "privileged": True}}),
    "groups": Row(becomes=CONFIGURED, pod={"securityContext": {"fsGroup": 2000, "supplementalGroups": [3000]}}),
    "Istio's proxy": Row(becomes=CONFIGURED, beside=(ISTIO,)),
    "Istio's native sidecar": Row(becomes=CONFIGURED, pod={"initContainers": [{**ISTIO, "restartPolicy": "Always"}]}),
    "resources of the whole pod": Row(
        becomes={},
        trains={"resources": {}},
        pod={"resources": {"requests": {"cpu": "100m", "memory": "20Mi"}, "limits": {"memory": "20Mi"}}},
    ),
    "resources of the pod and the container": Row(
        becomes={},
        pod={
            "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "200m", "memory": "128Mi"}}
        },
    ),
    "no token": Row(becomes=CONFIGURED, pod={"automountServiceAccountToken": False}),
    "volumes with limits": Row(
        becomes=CONFIGURED,
        pod={"volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "10Mi", "medium": "Memory"}}]},
    ),
    "Windows": Row(becomes="run on Windows", pod={"os": {"name": "windows"}}),
    "Windows by its label": Row(becomes="run on Windows", pod={"nodeSelector": {"kubernetes.io/os": "windows"}}),
    "the launcher alone": Row(
        (quota({"limits.cpu": "9"}), limits(min={"memory": "40Mi"})),
        {"requests": {"memory": "40Mi"}, "limits": {"cpu": "500m"}},
        said={"inject": "launcher"},
    ),
}


class Events:
    """A recorder that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Event] = []

    def record(self, _: object, event: Event) -> None:
        self.told.append(event)


class Operator:
    """One job's reconciler, which sees all that is there whenever it looks; the next one remembers nothing."""

    def __init__(self, api: Api, client: ApiClient, namespace: str) -> None:
        self._api, self._client, self._namespace = api, client, namespace
        self.events = Events()
        self._passes = 0
        self.restart()

    def restart(self) -> None:
        client = self._client
        self._jobs = Informer(client, "", TFJob.parse, lambda _: None)
        caches = Caches(
            self._jobs,
            Informer(client, "", Pod.parse, lambda _: None),
            Informer(client, "", Service.parse, lambda _: None),
            budgets=Informer(client, "", DisruptionBudget.parse, lambda _: None),
        )
        self._executor = Executor(client, caches, cast("EventRecorder", self.events))
        self._executor.trials._now = lambda: 60.0 * self._passes  # it does not ask twice in half a minute

    async def look(self) -> bool:
        """One pass; whether there was anything to do."""
        await self._count()
        job = TFJob.parse(await self._api.get(f"{tfjobs(self._namespace)}/j"))
        there, _ = await self._api.items(pods(self._namespace))
        names, _ = await self._api.items(services(self._namespace))
        self._passes += 1
        observed = Observed(
            job,
            NOW + timedelta(seconds=self._passes),
            tuple(map(Pod.parse, there)),
            tuple(map(Service.parse, names)),
            injection=self._executor.trials.found.get(job.uid),
        )
        decision = reconcile(observed, SETTINGS)
        try:
            await self._executor.carry_out(job, decision)
        except ApiError as error:
            self.error = str(error)
            return True
        return bool(decision.actions)

    async def _count(self) -> None:
        """What quotas count, as the controller of Kubernetes does it: the API server only ever adds to that."""
        path = f"{CORE}/namespaces/{self._namespace}/resourcequotas"
        for found in (await self._api.items(path))[0]:
            there, _ = await self._api.items(pods(self._namespace))
            used = {name: str(_used(name, there)) for name in found["spec"]["hard"]}
            status = {"hard": found["spec"]["hard"], "used": used}
            await self._api.request("PUT", f"{path}/{found['metadata']['name']}/status", {**found, "status": status})

    async def settle(self, *, restarts: bool = False) -> None:
        """Until there is nothing to do; `restarts`: another operator at each pass but the one after a refusal, which
        would find out the same again."""
        for _ in range(25):
            if not await self.look():
                return
            if restarts and not self._executor.trials.found:
                self.restart()
        raise AssertionError(f"it does not come to rest: {self.error}")


def _used(name: str, there: list[Object]) -> int | Decimal:
    if name.endswith("pods"):
        return len(there)
    kind, name = name.split(".", 1) if name.startswith(("requests.", "limits.")) else ("requests", name)
    containers = [
        each for pod in there for each in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ()))
    ]
    return sum((quantity(each["resources"].get(kind, {}).get(name)) for each in containers), Decimal(0))


@pytest.fixture
async def client(kubeconfig: Path) -> AsyncIterator[ApiClient]:
    async with ApiClient(await load_configuration(str(kubeconfig))) as found:
        yield found


async def set_up(api: Api, row: Row) -> str:
    """A namespace with the row's rules. They hold at once: no pod was asked for there before."""
    meta = {"generateName": "rules-", "labels": dict(row.labels)}
    namespace = str((await api.create(f"{CORE}/namespaces", {"metadata": meta}))["metadata"]["name"])
    for number, rule in enumerate(row.rules):
        kind, name = rule["kind"], f"rule-{number}"
        if kind == "ValidatingAdmissionPolicy":
            await _bind_policy(api, namespace, rule["expression"])
            continue
        path = f"{CORE}/namespaces/{namespace}/{kind.lower()}s"
        made = await api.create(path, {"metadata": {"name": name}, "spec": rule["spec"]})
        if kind == "ResourceQuota":  # no controller counts here; the API server does from then on
            hard = rule["spec"]["hard"]
            status = {"hard": hard, "used": dict.fromkeys(hard, "0")}
            await api.request("PUT", f"{path}/{name}/status", {**made, "status": status})
    return namespace


async def _bind_policy(api: Api, namespace: str, expression: str) -> None:
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
    policy = {"matchConstraints": {"resourceRules": rules}, "validations": [{"expression": expression}]}
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    binding = {"policyName": namespace, "validationActions": ["Deny"], "matchResources": here}
    for kind, spec in (("policies", policy), ("policybindings", binding)):
        await api.create(f"{ADMISSION}/validatingadmission{kind}", {"metadata": {"name": namespace}, "spec": spec})


def job_of(row: Row) -> Object:
    program = container(command=["python", "train.py"], **{"resources": ASKS, **row.trains})
    made = {"containers": [program, *row.beside], **row.pod}
    said = {**ELASTIC, **{PREFIX + name: text for name, text in row.said.items()}}
    return tfjob("j", metadata={"annotations": said}, PS=replica(1, **made), Worker=replica(2, **made))


@pytest.mark.parametrize("name", ROWS)
async def test_injection_keeps_no_job_from_running(name: str, api: Api, client: ApiClient) -> None:
    """All pods come, all alike: with what is injected where that can be, else without it and with the reason."""
    row = ROWS[name]
    namespace = await set_up(api, row)
    await api.create(tfjobs(namespace), job_of(row))
    operator = Operator(api, client, namespace)
    if any(rule["kind"] == "ValidatingAdmissionPolicy" for rule in row.rules):  # heeded a moment later
        await _heeded(api, namespace)
    await operator.settle(restarts=len(name) % 2 == 0)
    found = (await api.items(pods(namespace)))[0]
    assert sorted(pod["metadata"]["name"] for pod in found) == ["j-ps-0", "j-worker-0", "j-worker-1"]
    qos = {pod["status"]["qosClass"] for pod in found}
    ours = [
        each["resources"]
        for pod in found
        for each in pod["spec"].get("initContainers", ())
        if each["name"].startswith("elastic-tfjob")
    ]
    told = {event.message for event in operator.events.told if event.reason == "LauncherNotInjected"}
    if isinstance(row.becomes, str):
        assert not ours
        assert row.becomes in "".join(told)
        return
    assert len(ours) == 3
    assert not told
    for resources in ours:
        for kind, amounts in (row.becomes or {}).items():
            asked = resources.get(kind, {})
            assert {key: quantity(asked.get(key)) for key in amounts} == {
                key: quantity(text) for key, text in amounts.items()
            }, resources
    assert qos == {row.qos}


async def _heeded(api: Api, namespace: str) -> None:
    """Until the policy refuses what it is to refuse."""
    body: Object = {"metadata": {"name": "j-worker-1"}, "spec": {"containers": [container()]}}
    body["spec"]["initContainers"] = [container("elastic-tfjob-exporter", image=SETTINGS.image)]
    async with asyncio.timeout(30):
        while True:
            try:
                await api.request("POST", pods(namespace), body, params={"dryRun": "All"})
            except Refused:
                return
            await asyncio.sleep(0.1)
