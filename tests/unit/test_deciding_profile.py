"""Which profile decides, and why: events on the operator's own Deployment, and `/status` beside the probes."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from elastic_tfjob.controller.job.decision import Event
from elastic_tfjob.controller.kube import startup
from elastic_tfjob.controller.kube.configuration import LiveConfiguration
from elastic_tfjob.controller.kube.errors import Invalid, Unavailable
from elastic_tfjob.controller.kube.events import EventRecorder
from elastic_tfjob.controller.kube.startup import own_object
from elastic_tfjob.controller.kube.supervise import serve_probes
from elastic_tfjob.controller.model.cluster import ConfigMap, OwnObject
from harness.controlplane import free_port

OWN = OwnObject("apps/v1", "Deployment", namespace="kubeflow", name="operator", uid="d", version=3)
MISPLACED = "profile: elastic\nlend: none"
WELL = "profile: elastic\nprofiles: {elastic: {lend: none}}"
FAILS = "ProfileFailed"
REPLICA_SET = {"kind": "ReplicaSet", "name": "operator-5d4f8"}


class Listener:
    """A recorder that remembers who was told what."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Event]] = []

    def record(self, subject: OwnObject | ConfigMap, event: Event) -> None:
        kind = subject.kind if isinstance(subject, OwnObject) else "ConfigMap"
        self.told.append((kind, event))

    def of_own(self) -> list[tuple[str, str]]:
        return [(event.reason, event.message) for kind, event in self.told if kind == "Deployment"]


class Followed:
    """A ConfigMap that is followed; the API server is not asked."""

    def __init__(self, place: str = "kubeflow/c") -> None:
        self.listener = Listener()
        nobody: Any = None
        self.live = LiveConfiguration(nobody, place, self.listener, lambda _: None)  # type: ignore[arg-type]
        self._version = 0

    def write(self, text: str) -> None:
        assert self.live.informer is not None
        self._version += 1
        metadata = {"namespace": "kubeflow", "name": "c", "uid": "u", "resourceVersion": str(self._version)}
        self.live.informer.seen({"metadata": metadata, "data": {"config.yaml": text}})
        self.live.informer.synced.set()


def test_a_refused_content_is_told_on_the_deployment_whenever_that_is_found() -> None:
    followed = Followed()
    followed.write(MISPLACED)
    assert followed.listener.of_own() == []
    followed.live.known(OWN)
    ((reason, message),) = followed.listener.of_own()
    assert reason == "InvalidConfiguration"
    assert message.startswith("ConfigMap kubeflow/c: config.yaml: lend is not known")
    assert "Did you mean profiles.elastic.lend" in message
    assert message.endswith("Still in use: profile fixed.")
    followed.write(WELL)
    assert followed.listener.of_own()[1:] == [
        (
            "ConfigurationTaken",
            "Profile elastic is in use, with scope annotated: ConfigMap kubeflow/c, resourceVersion 2.",
        )
    ]


def test_a_refusal_is_over_when_the_edit_is_taken_back() -> None:
    followed = Followed()
    followed.live.known(OWN)
    followed.write(WELL)
    followed.write(MISPLACED)
    followed.write(WELL)
    reasons = [reason for reason, _ in followed.listener.of_own()]
    assert reasons == ["ConfigurationTaken", "InvalidConfiguration", "ConfigurationTaken"]
    assert followed.live.status()["refused"] is None


def test_status_says_what_decides_and_why() -> None:
    assert Followed("").live.status()["why"] == "the default: no ConfigMap is named (--config-map)"
    followed = Followed()
    assert followed.live.status()["why"] == "the default: ConfigMap kubeflow/c has not been read yet"
    followed.write(MISPLACED)
    at_first = followed.live.status()
    assert (at_first["profile"], at_first["resourceVersion"]) == ("fixed", None)
    assert at_first["why"] == "the default: ConfigMap kubeflow/c is invalid, and no valid one was read before"
    assert "profiles.elastic.lend" in at_first["refused"]["error"]
    followed.write(WELL)
    well = followed.live.status()
    assert (well["profile"], well["resourceVersion"], well["refused"]) == ("elastic", "2", None)
    assert well["why"] == "ConfigMap kubeflow/c, resourceVersion 2"
    followed.write("profile: nonsense")
    newer = followed.live.status()
    assert (newer["profile"], newer["refused"]["resourceVersion"]) == ("elastic", "3")
    assert newer["why"] == "ConfigMap kubeflow/c, resourceVersion 2; its newest content is invalid"


def test_a_profile_that_fails_gets_one_event_until_it_works_again() -> None:
    """On the objects that get the event of an invalid content; the message changes from round to round."""
    followed = Followed()
    followed.write(WELL)
    for error in ("profile elastic fails: KeyError: 1 (m.py:9)", "profile elastic fails: KeyError: 2 (m.py:9)"):
        followed.live.profile_failing(error)
        assert followed.live.status()["failing"] == error
    followed.live.known(OWN)
    told = [(kind, event.type, event.message) for kind, event in followed.listener.told if event.reason == FAILS]
    words = "Jobs keep what they have, and no job starts."
    assert told == [
        ("ConfigMap", "Warning", f"profile elastic fails: KeyError: 1 (m.py:9). {words}"),
        ("Deployment", "Warning", f"profile elastic fails: KeyError: 2 (m.py:9). {words}"),
    ]
    followed.live.profile_failing(None)
    assert followed.live.status()["failing"] is None
    followed.live.profile_failing("x" * 5000)
    ((_, message),) = [found for found in followed.listener.of_own() if found[0] == FAILS][1:]
    assert len(message) < 1024


async def test_status_is_served_beside_the_probes() -> None:
    followed, address = Followed(), f"127.0.0.1:{free_port()}"
    followed.write(MISPLACED)
    serving = serve_probes(
        "0", address, alive=str, ready=str, failed=list, status=lambda: {"leads": True, **followed.live.status()}
    )
    async with serving, aiohttp.ClientSession() as session, session.get(f"http://{address}/status") as answer:
        found = json.loads(await answer.text())
    assert found["leads"] is True
    assert (found["profile"], found["configMap"]) == ("fixed", "kubeflow/c")
    assert "lend is not known" in found["refused"]["error"]


class Server:
    """Answers for one pod and the Deployments of its namespace; fails `failures` times before."""

    def __init__(self, deployments: Any, owners: Any = (REPLICA_SET,), failures: int = 0) -> None:
        self._deployments = deployments
        self._owners = list(owners)
        self._failures = failures

    async def get(self, path: str, **parameters: str) -> dict[str, Any]:
        if self._failures:
            self._failures -= 1
            raise Unavailable("GET", 503, "", "")
        if path == "/api/v1/namespaces/kubeflow/pods/operator-5d4f8-x":
            return {"metadata": {**identified("operator-5d4f8-x"), "ownerReferences": self._owners}}
        assert path == "/apis/apps/v1/namespaces/kubeflow/deployments"
        if isinstance(self._deployments, Exception):
            raise self._deployments
        wanted = parameters["fieldSelector"].removeprefix("metadata.name=")
        return {"items": [{"metadata": identified(name)} for name in self._deployments if name == wanted]}


def identified(name: str) -> dict[str, str]:
    return {"namespace": "kubeflow", "name": name, "uid": f"{name}-uid", "resourceVersion": "7"}


@pytest.mark.parametrize(
    ("server", "kind", "name"),
    [
        (Server(["another", "operator"]), "Deployment", "operator"),
        (Server(["operator"], failures=2), "Deployment", "operator"),
        (Server([]), "Pod", "operator-5d4f8-x"),
        (Server(Invalid("GET", 403, "Forbidden", "")), "Pod", "operator-5d4f8-x"),
        (Server(["operator"], owners=[]), "Pod", "operator-5d4f8-x"),
    ],
)
async def test_the_operators_own_object_is_its_deployment_or_else_its_pod(
    server: Server, kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "_IMAGE_S", 0.001)
    monkeypatch.setenv("POD_NAME", "operator-5d4f8-x")
    monkeypatch.setenv("POD_NAMESPACE", "kubeflow")
    found = await own_object(server)  # type: ignore[arg-type]
    assert found is not None
    assert (found.kind, found.name, found.uid, found.version) == (kind, name, f"{name}-uid", 7)


async def test_outside_a_cluster_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POD_NAME", raising=False)
    assert await own_object(None) is None  # type: ignore[arg-type]


async def test_an_event_names_the_deployment() -> None:
    written: list[dict[str, Any]] = []

    class Events:
        async def post(self, path: str, body: dict[str, Any]) -> None:
            written.append({"path": path, **body})

    recorder = EventRecorder(Events(), busy=lambda: False)  # type: ignore[arg-type]
    recorder.record(OWN, Event("Normal", "ConfigurationTaken", "words"))
    task = asyncio.create_task(recorder.run())
    await recorder.drain(5)
    task.cancel()
    (event,) = written
    assert event["path"] == "/api/v1/namespaces/kubeflow/events"
    about = event["involvedObject"]
    assert (about["apiVersion"], about["kind"], about["name"], about["uid"]) == (
        "apps/v1",
        "Deployment",
        "operator",
        "d",
    )
