"""Who may write the operator's annotations, where the ValidatingAdmissionPolicies of the manifests are installed.

The tenant of these tests has every right in its namespace that a Role can give.
"""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import yaml

from conformance.manifest import container, replica, tfjob
from elastic_tfjob.api.annotations import OPERATOR_ANNOTATIONS
from harness import operators
from harness.api import CORE, Api, ApiError, Object, pods, tfjobs
from harness.controlplane import ControlPlane
from harness.kubelet import kubelet, runs_forever
from harness.progress import CommandFailed
from harness.shared import Facts

from .running import running

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("admission")]

ROOT = Path(__file__).parents[2]
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
PREFIX = "elastic.kubeflow.org/"
COMMAND = f"{PREFIX}command"
OF_JOBS = sorted(OPERATOR_ANNOTATIONS - {"command"})
HOME = "ml"
"""Not the overlay's own namespace: the policies must follow the operator to where it is installed."""
OPERATOR = f"system:serviceaccount:{HOME}:elastic-tfjob-operator"
COLLECTOR = "system:serviceaccount:kube-system:generic-garbage-collector"


@pytest.fixture(scope="session")
def guarded(share: Callable[..., Facts]) -> Path:
    """The kubeconfig of a control plane with everything that the manifests install, in the namespace HOME."""

    @contextlib.contextmanager
    def make(folder: Path) -> Iterator[Facts]:
        with ControlPlane(folder, controller_manager=True) as plane:
            overlay = folder / "overlay"
            overlay.mkdir()
            base = os.path.relpath(ROOT / "manifests" / "base", overlay)
            (overlay / "kustomization.yaml").write_text(yaml.safe_dump({"namespace": HOME, "resources": [base]}))
            plane.kubectl("create", "namespace", HOME)
            plane.kubectl("apply", "--server-side", "-k", overlay)
            operators.wait_served(plane.kubeconfig, "/apis/kubeflow.org/v1/tfjobs")
            _wait_enforced(plane)
            yield {"kubeconfig": str(plane.kubeconfig)}

    return Path(share("guarded", make)["kubeconfig"])


@pytest.fixture
async def admin(guarded: Path) -> AsyncIterator[Api]:
    """Of group system:masters."""
    async with Api(guarded) as client:
        yield client


@pytest.fixture
async def home(admin: Api) -> str:
    """A namespace whose tenant may do all that a Role can allow; the operator may create TFJobs there, too, so that
    it is not for want of other rights that a request of its is refused or admitted."""
    name = await admin.new_namespace()
    for user in ("tenant", OPERATOR, COLLECTOR):
        binding = {
            "metadata": {"generateName": "all-"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
        }
        await admin.create(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{name}/rolebindings", binding)
        await admin.allowed(user, name)
    return name


@pytest.fixture
async def tenant(guarded: Path, home: str) -> AsyncIterator[Api]:
    async with Api(guarded, user="tenant", groups=["system:authenticated"]) as client:
        yield client


@pytest.fixture
async def operator(guarded: Path, home: str) -> AsyncIterator[Api]:
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{HOME}", "system:authenticated"]
    async with Api(guarded, user=OPERATOR, groups=groups) as client:
        yield client


@pytest.fixture
def account(guarded: Path, tmp_path: Path) -> Path:
    """A kubeconfig with the token of the operator's ServiceAccount."""
    token = operators.kubectl(guarded, "create", "token", "elastic-tfjob-operator", f"--namespace={HOME}")
    config = yaml.load(guarded.read_text(), yaml.CSafeLoader)
    config["users"][0]["user"] = {"token": token.strip()}
    file = tmp_path / "operator.kubeconfig"
    file.write_text(json.dumps(config))
    return file


def _wait_enforced(plane: ControlPlane) -> None:
    """Wait until both policies act, which takes the API server a moment."""
    plane.kubectl(
        "create", "rolebinding", "trial", "--clusterrole=cluster-admin", "--user=trial", "--namespace=default"
    )
    for body in (job(state="x"), {"apiVersion": "v1", "kind": "Pod", **pod(command="x")}):
        deadline = time.monotonic() + 60
        while True:
            try:
                plane.kubectl("create", "-f", "-", "--dry-run=server", "--as=trial", stdin=json.dumps(body))
            except CommandFailed as error:
                if "only the operator" in str(error):
                    break
            assert time.monotonic() < deadline, f"a policy does not act on {body['kind']}"
            time.sleep(0.2)


def job(name: str = "job", **annotations: str) -> Object:
    """A TFJob; `annotations` without their prefix."""
    metadata = {"annotations": {PREFIX + name: value for name, value in annotations.items()}}
    return tfjob(name, metadata=metadata, Worker=1)


def pod(name: str = "pod", **annotations: str) -> Object:
    notes = {PREFIX + name: value for name, value in annotations.items()}
    return {"metadata": {"name": name, "annotations": notes}, "spec": {"containers": [container()]}}


def annotate(**annotations: str | None) -> Object:
    return {"metadata": {"annotations": {PREFIX + name: value for name, value in annotations.items()}}}


@contextlib.contextmanager
def refused(*words: str) -> Iterator[None]:
    with pytest.raises(ApiError) as caught:
        yield
    assert (caught.value.status, caught.value.reason) == (403, "Forbidden")
    for word in ("only the operator", *words):
        assert word in str(caught.value)


# -- TFJobs


@pytest.mark.parametrize("name", OF_JOBS)
async def test_a_new_job_has_no_annotation_of_the_operator(tenant: Api, home: str, name: str) -> None:
    with refused(PREFIX + name, "remove them from metadata.annotations"):
        await tenant.create(tfjobs(home), job(**{name: "x"}))
    await tenant.create(tfjobs(home), job(**{"max-workers": "4", "checkpoint-dir": "/c"}))


async def test_an_exported_job_is_not_applied_under_another_name(tenant: Api, operator: Api, home: str) -> None:
    """`kubectl get -o yaml`, another name, `kubectl apply`: the message says what to take out; then it works."""
    made = await tenant.create(tfjobs(home), job("first", **{"max-workers": "4"}))
    exported = await operator.merge(f"{tfjobs(home)}/first", annotate(state="s", step="7"))
    exported["metadata"] = {"name": "second", "annotations": exported["metadata"]["annotations"]}
    with refused(f"{PREFIX}state, {PREFIX}step: remove them"):
        await tenant.create(tfjobs(home), exported)
    exported["metadata"]["annotations"] = made["metadata"]["annotations"]
    await tenant.create(tfjobs(home), exported)


async def test_only_the_operator_writes_its_annotations(tenant: Api, operator: Api, home: str) -> None:
    path = f"{tfjobs(home)}/job"
    await tenant.create(tfjobs(home), job())
    for name in OF_JOBS:
        with refused(PREFIX + name, "leave them"):
            await tenant.merge(path, annotate(**{name: "mine"}))
        await operator.merge(path, annotate(**{name: "1"}))
        await operator.merge(path, annotate(**{name: "2"}))
        with refused(PREFIX + name, "leave them"):
            await tenant.merge(path, annotate(**{name: "1"}))
        with refused(PREFIX + name, "leave them"):
            await tenant.merge(path, annotate(**{name: None}))
    await tenant.create(tfjobs(home), job("other"))
    replaced = await operator.merge(f"{tfjobs(home)}/other", annotate(state="s"))
    del replaced["metadata"]["annotations"]
    with refused(f"{PREFIX}state"):
        await tenant.request("PUT", f"{tfjobs(home)}/other", replaced)
    for name in OF_JOBS:
        await operator.merge(path, annotate(**{name: None}))


async def test_a_manifest_that_had_them_is_mended_as_the_message_says(
    guarded: Path, admin: Api, tenant: Api, home: str
) -> None:
    """kubectl apply remembers what it was given, and takes away what the next manifest has no more. A job may have been
    exported and applied so before the policy was there, or by an administrator."""

    def apply(body: Object, user: str) -> str:
        return operators.kubectl(
            guarded, "apply", f"--namespace={home}", f"--as={user}", "-f", "-", stdin=json.dumps(body)
        )

    operators.kubectl(guarded, "apply", f"--namespace={home}", "-f", "-", stdin=json.dumps(job(state="s", step="7")))
    await admin.merge(f"{tfjobs(home)}/job", annotate(step="8"))
    command = f"kubectl -n {home} annotate tfjob job kubectl.kubernetes.io/last-applied-configuration-"
    for body in (job(), job(state="s", step="7")):
        with pytest.raises(CommandFailed, match="Take them out of the manifest") as refusal:
            apply(body, "tenant")
        assert command in str(refusal.value)
    operators.kubectl(guarded, *command.split()[1:], "--as=tenant")
    apply(job(**{"max-workers": "3"}), "tenant")
    found = (await tenant.get(f"{tfjobs(home)}/job"))["metadata"]["annotations"]
    assert (found[f"{PREFIX}state"], found[f"{PREFIX}step"], found[f"{PREFIX}max-workers"]) == ("s", "8", "3")
    apply(job(), "tenant")


async def test_tenants_may_change_everything_else_of_their_jobs(tenant: Api, operator: Api, home: str) -> None:
    """Sizes asked for, labels, suspension as by Kueue, a whole replacement that leaves the operator's annotations."""
    path = f"{tfjobs(home)}/job"
    await tenant.create(tfjobs(home), job(**{"max-workers": "4"}))
    await operator.merge(path, annotate(state="s", target="t", step="1", eta="e"))
    await tenant.merge(path, annotate(**{"target-workers": "3", "max-workers": None}))
    await tenant.merge(path, {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "q"}, "annotations": {"a": "b"}}})
    await tenant.merge(path, {"spec": {"runPolicy": {"suspend": True}}})
    found = await tenant.get(path)
    found["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] = 2
    stored = await tenant.request("PUT", path, found)
    assert stored["metadata"]["annotations"][f"{PREFIX}state"] == "s"
    assert stored["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] == 2


async def test_others_write_status_and_delete(tenant: Api, operator: Api, admin: Api, home: str) -> None:
    """As the Go operator, the garbage collector and the namespace's own controller do."""
    path = f"{tfjobs(home)}/job"
    await tenant.create(tfjobs(home), job())
    await operator.merge(path, annotate(state="s"))
    found = await tenant.get(path)
    condition = {"type": "Created", "status": "True", "reason": "r", "message": "m"}
    await tenant.request(
        "PUT", f"{path}/status", {**found, "status": {"conditions": [condition], "replicaStatuses": {}}}
    )
    # A status without the annotations leaves them as they are.
    await tenant.merge(f"{path}/status", annotate(state=None))
    assert (await tenant.get(path))["metadata"]["annotations"][f"{PREFIX}state"] == "s"
    await tenant.merge(path, {"metadata": {"finalizers": ["example.org/wait"]}})
    await tenant.delete(path)
    await tenant.merge(path, {"metadata": {"finalizers": None}})
    with pytest.raises(ApiError, match="404"):
        await tenant.get(path)

    await tenant.create(tfjobs(home), job("last"))
    await operator.merge(f"{tfjobs(home)}/last", annotate(state="s"))
    owner = await tenant.get(f"{tfjobs(home)}/last")
    reference = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "name": "last", "uid": owner["metadata"]["uid"]}
    body = pod(command="{}")
    body["metadata"]["ownerReferences"] = [reference]
    await operator.create(pods(home), body)
    await admin.request("DELETE", f"{tfjobs(home)}/last", {"propagationPolicy": "Orphan"})
    async with asyncio.timeout(150):  # the garbage collector, which looks for new kinds every 30 s, takes it off
        while (await tenant.get(f"{pods(home)}/pod"))["metadata"].get("ownerReferences"):
            await asyncio.sleep(0.2)
    await admin.delete(f"{CORE}/namespaces/{home}")
    async with asyncio.timeout(120):
        while (await admin.items(f"{CORE}/namespaces", fieldSelector=f"metadata.name={home}"))[0]:
            await asyncio.sleep(0.2)


async def test_an_administrator_may_repair(admin: Api, operator: Api, home: str) -> None:
    await admin.create(tfjobs(home), job(state="restored"))
    await admin.merge(f"{tfjobs(home)}/job", annotate(state=None))


# -- pods


async def test_only_the_operator_gives_a_pod_commands(tenant: Api, operator: Api, home: str) -> None:
    with refused(f"{PREFIX}command"):
        await tenant.create(pods(home), pod(command="{}"))
    await tenant.create(pods(home), pod())
    path = f"{pods(home)}/pod"
    for resource in (path, f"{path}/status"):
        with refused(f"{PREFIX}command"):
            await tenant.merge(resource, annotate(command="{}"))
    for other in ("resize", "ephemeralcontainers"):  # not looked at, since the API server keeps metadata there
        with contextlib.suppress(ApiError):
            await tenant.merge(f"{path}/{other}", annotate(command="{}"))
        assert f"{PREFIX}command" not in (await tenant.get(path))["metadata"].get("annotations", {})
    await operator.merge(path, annotate(command="{}"))
    for value in ("[]", None):
        with refused(f"{PREFIX}command"):
            await tenant.merge(path, annotate(command=value))
    await tenant.merge(path, {"metadata": {"annotations": {"a": "b"}, "labels": {"c": "d"}}})
    await tenant.merge(f"{path}/status", {"status": {"phase": "Running"}})
    assert (await tenant.get(path))["metadata"]["annotations"] == {"a": "b", f"{PREFIX}command": "{}"}
    await tenant.delete(path, grace_period_s=0)


async def test_a_binding_brings_no_command(tenant: Api, home: str) -> None:
    """The API server copies a Binding's annotations to the pod."""
    await tenant.create(pods(home), pod())
    binding = {"metadata": {"name": "pod"}, "target": {"kind": "Node", "name": "nowhere"}}
    body = {**binding, "metadata": {"name": "pod", **annotate(command="{}")["metadata"]}}
    for collection in (f"{pods(home)}/pod/binding", f"{CORE}/namespaces/{home}/bindings"):
        with refused(f"{PREFIX}command"):
            await tenant.create(collection, body)
    await tenant.create(f"{pods(home)}/pod/binding", binding)


async def test_a_template_of_another_kind_brings_no_command(guarded: Path, tenant: Api, home: str) -> None:
    """Pods of a ReplicaSet are made by its controller, which is no operator of TFJobs."""
    controller = "system:serviceaccount:kube-system:replicaset-controller"
    groups = ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"]
    async with Api(guarded, user=controller, groups=groups) as client:
        await client.create(pods(home), pod("plain"))
        with refused(f"{PREFIX}command"):
            await client.create(pods(home), pod(command="{}"))


async def test_the_operator_works_under_the_policies(
    account: Path, tenant: Api, admin: Api, home: str, tmp_path: Path
) -> None:
    """With its ServiceAccount's token and no more rights than the manifests give: it keeps state, stops a pod by a
    command, and makes pods without the command that the tenant's template smuggles in."""

    smuggled = {"annotations": {COMMAND: "{}", "a": "b"}, "finalizers": ["example.org/kept"]}
    options = {"namespace": home, "arguments": ["--image=example.org/operator"]}
    async with kubelet(admin, home, runs_forever), running("ours", account, tmp_path, **options):
        body = tfjob(Worker=replica(2, containers=[container(command=["train"])], metadata=smuggled))
        body["metadata"]["annotations"] = {f"{PREFIX}max-workers": "4", f"{PREFIX}checkpoint-dir": "/c"}
        await tenant.create(tfjobs(home), body)
        plain = tfjob("plain", Worker=replica(2, metadata=smuggled))
        await tenant.create(tfjobs(home), plain)
        async with asyncio.timeout(120):
            while f"{PREFIX}state" not in (await tenant.get(f"{tfjobs(home)}/job"))["metadata"]["annotations"]:
                await asyncio.sleep(0.2)
            while not all(p["status"].get("phase") == "Running" for p in (await _pods(tenant, home, 4)).values()):
                await asyncio.sleep(0.2)
        for found in (await _pods(tenant, home, 4)).values():
            assert found["metadata"]["annotations"]["a"] == "b"
            assert found["metadata"]["annotations"].get(COMMAND) != "{}"
        assert COMMAND not in (await _pods(tenant, home, 4))["plain-worker-1"]["metadata"]["annotations"]
        await tenant.merge(f"{tfjobs(home)}/plain", {"spec": {"tfReplicaSpecs": {"Worker": {"replicas": 1}}}})
        async with asyncio.timeout(120):
            while (
                COMMAND not in (stopped := (await _pods(tenant, home, 4))["plain-worker-1"]["metadata"])["annotations"]
            ):
                await asyncio.sleep(0.2)
        assert "stop" in stopped["annotations"][COMMAND]
        for name in await _pods(tenant, home, 4):
            await tenant.merge(f"{pods(home)}/{name}", {"metadata": {"finalizers": None}})
        await tenant.delete(f"{tfjobs(home)}/job")
        await tenant.delete(f"{tfjobs(home)}/plain")


async def _pods(api: Api, namespace: str, count: int) -> dict[str, Object]:
    """The pods by their names, once there are so many."""
    while len(found := (await api.items(pods(namespace)))[0]) < count:
        await asyncio.sleep(0.2)
    return {pod["metadata"]["name"]: pod for pod in found}


# -- the policies themselves


async def test_the_api_server_finds_no_fault_with_the_rules(admin: Api) -> None:
    """It knows the types of TFJobs, pods and bindings, and looks for fields that are not there."""
    for policy in (await admin.items(POLICIES))[0]:
        path = f"{POLICIES}/{policy['metadata']['name']}"
        async with asyncio.timeout(60):
            while "typeChecking" not in (checked := (await admin.get(path)).get("status", {})):
                await asyncio.sleep(0.2)
        assert checked["typeChecking"] == {}, checked
    assert len((await admin.items(POLICIES))[0]) == 2
