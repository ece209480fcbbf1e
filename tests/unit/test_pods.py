"""What is created for a replica. TF_CONFIG strings are upstream's own test cases."""

from typing import Any

import orjson
import pytest

from elastic_tfjob.controller.job.inject import inject
from elastic_tfjob.controller.job.pods import render_pod, render_service, tf_config
from elastic_tfjob.controller.model.pod import Pod
from unit.build import job, pod, replicas

DOMAIN = "tf.training.org"


@pytest.mark.parametrize(
    ("types", "options", "replica", "expected"),
    [
        pytest.param(
            {"Worker": 1, "PS": 1},
            {"domain": DOMAIN},
            ("Worker", 0),
            '{"cluster":{"ps":["j-ps-0.ns.svc.tf.training.org:2222"],"worker":["j-worker-0.ns.svc.tf.training.org:2222"]},'
            '"task":{"type":"worker","index":0},"environment":"cloud"}',
            id="custom-domain",
        ),
        pytest.param(
            {"Worker": 1, "PS": 1, "Evaluator": 1},
            {},
            ("PS", 0),
            '{"cluster":{"evaluator":["j-evaluator-0.ns.svc:2222"],"ps":["j-ps-0.ns.svc:2222"],'
            '"worker":["j-worker-0.ns.svc:2222"]},"task":{"type":"ps","index":0},"environment":"cloud"}',
            id="evaluator",
        ),
        pytest.param(
            {
                "Worker": replicas(
                    1,
                    containers=[
                        {"name": "tensorflow", "image": "t", "ports": [{"name": "tfjob-port", "containerPort": 5000}]}
                    ],
                ),
                "Master": 1,
            },
            {},
            ("Worker", 0),
            '{"cluster":{"master":["j-master-0.ns.svc:2222"],"worker":["j-worker-0.ns.svc:5000"]},'
            '"task":{"type":"worker","index":0},"environment":"cloud"}',
            id="port-per-type",
        ),
        pytest.param(
            {"Worker": 2, "PS": 2},
            {"enableDynamicWorker": True},
            ("Worker", 1),
            '{"cluster":{"worker":{"1":"j-worker-1.ns.svc:2222"},"ps":["j-ps-0.ns.svc:2222","j-ps-1.ns.svc:2222"]},'
            '"task":{"type":"worker","index":1}}',
            id="sparse-worker",
        ),
        pytest.param(
            {"Worker": 2, "PS": 2},
            {"enableDynamicWorker": True},
            ("PS", 1),
            '{"cluster":{"worker":{},"ps":["j-ps-1.ns.svc:2222"]},"task":{"type":"ps","index":1}}',
            id="sparse-ps",
        ),
        pytest.param(
            {"Worker": 2, "Chief": 1},
            {"enableDynamicWorker": True},
            ("Chief", 0),
            '{"cluster":{"worker":{},"ps":[]},"task":{"type":"chief","index":0}}',
            id="sparse-chief",
        ),
        pytest.param(
            {"Worker": 2},
            {"enableDynamicWorker": True},
            ("Worker", 0),
            '{"cluster":{"worker":{"0":"j-worker-0.ns.svc:2222"},"ps":null},"task":{"type":"worker","index":0}}',
            id="sparse-without-ps",
        ),
    ],
)
def test_tf_config(types: dict[str, Any], options: dict[str, Any], replica: tuple[str, int], expected: str) -> None:
    """TF_CONFIG byte for byte."""
    domain = options.pop("domain", "")
    found = job(types, **options)
    assert tf_config(found, found.spec(), *replica, domain=domain) == expected


@pytest.mark.parametrize(
    ("types", "distributed"),
    [
        pytest.param({"Worker": 1}, False, id="one-worker"),
        pytest.param({"PS": 1}, False, id="one-ps"),
        pytest.param({"Worker": 1, "Chief": 1}, True, id="chief-and-worker"),
        pytest.param({"Worker": 2}, True, id="two-workers"),
        pytest.param({"Worker": 1, "PS": 0}, False, id="no-ps"),
    ],
)
def test_only_distributed_jobs_have_tf_config(types: dict[str, int], distributed: bool) -> None:
    """A job of one replica in all trains locally."""
    found = job(types)
    name = next(iter(types))
    env = render_pod(found, found.spec(), name, 0)["spec"]["containers"][0].get("env", [])
    assert [item["name"] for item in env] == (["TF_CONFIG"] if distributed else [])


def test_pod() -> None:
    """The template is kept, the operator's labels win, and the port is added to the container that trains."""
    worker = replicas(
        2,
        "ExitCode",
        metadata={"labels": {"a": "b", "training.kubeflow.org/job-name": "x"}, "annotations": {"c": "d"}},
        containers=[
            {"name": "sidecar", "image": "s"},
            {
                "name": "tensorflow",
                "image": "t",
                "env": [{"name": "A", "value": "1"}],
                "ports": [{"containerPort": 8000}],
            },
        ],
    )
    found = job({"Worker": worker})
    pod = render_pod(found, found.spec(), "Worker", 0)
    assert pod["metadata"] == {
        "name": "j-worker-0",
        "namespace": "ns",
        "labels": {
            "a": "b",
            "training.kubeflow.org/job-name": "j",
            "training.kubeflow.org/operator-name": "tfjob-controller",
            "training.kubeflow.org/replica-type": "worker",
            "training.kubeflow.org/replica-index": "0",
            "training.kubeflow.org/job-role": "master",
        },
        "annotations": {"c": "d"},
        "ownerReferences": [
            {
                "apiVersion": "kubeflow.org/v1",
                "kind": "TFJob",
                "name": "j",
                "uid": "job-uid",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
    sidecar, trainer = pod["spec"]["containers"]
    assert sidecar == {"name": "sidecar", "image": "s"}
    assert [item["name"] for item in trainer["env"]] == ["A", "TF_CONFIG"]
    assert trainer["ports"] == [{"containerPort": 8000}, {"name": "tfjob-port", "containerPort": 2222}]
    assert pod["spec"]["restartPolicy"] == "Never"


def test_a_template_gives_its_pods_no_commands() -> None:
    """What the operator alone writes is dropped, whoever wrote it; other annotations with its prefix stay."""
    own = {f"elastic.kubeflow.org/{name}": "x" for name in ("command", "state", "target", "step", "eta")}
    kept = {"elastic.kubeflow.org/note": "y", "c": "d"}
    found = job({"Worker": replicas(1, metadata={"annotations": own | kept, "finalizers": ["a/b"]})})
    metadata = render_pod(found, found.spec(), "Worker", 0)["metadata"]
    assert (metadata["annotations"], metadata["finalizers"]) == (kept, ["a/b"])
    only = job({"Worker": replicas(1, metadata={"annotations": own})})
    assert "annotations" not in render_pod(only, only.spec(), "Worker", 0)["metadata"]


def test_rendering_leaves_the_template_alone() -> None:
    """Two renderings of one spec are equal: nothing leaks from one into the next."""
    found = job({"Worker": 2})
    spec = found.spec()
    first = render_pod(found, spec, "Worker", 1)
    assert render_pod(found, spec, "Worker", 1) == first


@pytest.mark.parametrize(
    ("types", "masters"),
    [
        ({"Worker": 2, "PS": 1}, ["j-worker-0"]),
        ({"Worker": 2, "Chief": 1}, ["j-chief-0"]),
        ({"Worker": 1, "Master": 1}, ["j-master-0"]),
    ],
)
def test_master_role(types: dict[str, int], masters: list[str]) -> None:
    """The chief is the master; without one, worker 0 is."""
    found = job(types)
    spec = found.spec()
    pods = [render_pod(found, spec, name, index) for name, count in types.items() for index in range(count)]
    marked = [pod["metadata"]["name"] for pod in pods if "training.kubeflow.org/job-role" in pod["metadata"]["labels"]]
    assert marked == masters


def test_service() -> None:
    """Headless, with all ports of the container that trains, selecting exactly its replica."""
    ports = [{"name": "tfjob-port", "containerPort": 5000}, {"name": "board", "containerPort": 6006}]
    found = job({"PS": replicas(1, containers=[{"name": "tensorflow", "image": "t", "ports": ports}]), "Worker": 1})
    spec = render_service(found, found.spec(), "PS", 0)["spec"]
    assert spec["clusterIP"] == "None"
    assert spec["ports"] == [{"name": "tfjob-port", "port": 5000}, {"name": "board", "port": 6006}]
    assert spec["selector"] == {
        "training.kubeflow.org/job-name": "j",
        "training.kubeflow.org/operator-name": "tfjob-controller",
        "training.kubeflow.org/replica-type": "ps",
        "training.kubeflow.org/replica-index": "0",
    }


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        pytest.param([(None, 6006, None)], {"port-6006": (6006, "TCP"), "tfjob-port": (2222, "TCP")}, id="no name"),
        pytest.param(
            [(None, 6006, None), ("", 7007, None), (None, 6006, "TCP")],
            {"port-6006": (6006, "TCP"), "port-7007": (7007, "TCP"), "tfjob-port": (2222, "TCP")},
            id="several without, one twice",
        ),
        pytest.param([(None, 2222, None)], {"tfjob-port": (2222, "TCP")}, id="TF_CONFIG's, without its name"),
        pytest.param(
            [("tfjob-port", 5000, None), ("quic", 5000, "UDP")],
            {"tfjob-port": (5000, "TCP"), "quic": (5000, "UDP")},
            id="one number, two protocols",
        ),
        pytest.param(
            [(None, 2222, "UDP"), (None, 2222, "SCTP")],
            {"tfjob-port": (2222, "TCP"), "port-2222-udp": (2222, "UDP"), "port-2222-sctp": (2222, "SCTP")},
            id="two protocols without a name",
        ),
        pytest.param(
            [("port-80", 81, None), (None, 80, None)],
            {"port-80": (81, "TCP"), "port-80-x": (80, "TCP"), "tfjob-port": (2222, "TCP")},
            id="the name is taken",
        ),
        pytest.param([("a", 2222, None)], {"tfjob-port": (2222, "TCP")}, id="two names, one port"),
        pytest.param(
            [("stats", 8125, "UDP")],
            {"stats": (8125, "TCP"), "tfjob-port": (2222, "TCP")},
            id="as upstream where it can",
        ),
    ],
)
def test_ports_that_the_api_server_admits(
    ports: list[tuple[str | None, int, str | None]], expected: dict[str, tuple[int, str]]
) -> None:
    """Each has a name of its own, and none is there twice: tried on a real API server in tests/integration."""
    given = [
        {
            key: value
            for key, value in zip(("name", "containerPort", "protocol"), each, strict=True)
            if value is not None
        }
        for each in ports
    ]
    found = job({"Worker": replicas(1, containers=[{"name": "tensorflow", "image": "t", "ports": given}])})
    made = render_service(found, found.spec(), "Worker", 0)["spec"]["ports"]
    assert {each["name"]: (each["port"], each.get("protocol", "TCP")) for each in made} == expected
    assert len(made) == len(expected)
    assert made == render_service(found, found.spec(), "Worker", 0)["spec"]["ports"]


class TestHostNetwork:
    """Pods there share the ports of their node: kube-scheduler keeps pods apart that declare the same one."""

    @staticmethod
    def ports(port: int | None, **pod_spec: Any) -> tuple[list[int], Pod]:
        """All ports that an elastic replica declares, and the pod as it is read."""
        own = {} if port is None else {"ports": [{"name": "tfjob-port", "containerPort": port}]}
        trains = {"name": "tensorflow", "image": "t", "command": ["python"], **own}
        found = job({"PS": 1, "Worker": replicas(1, containers=[trains], **pod_spec)})
        rendered = render_pod(found, found.spec(), "Worker", 0)
        inject(rendered, "both", "operator", None)
        spec = rendered["spec"]
        rendered["metadata"] |= {"uid": "u", "resourceVersion": "1"}
        containers = [*spec["initContainers"], *spec["containers"]]
        return [port["containerPort"] for each in containers for port in each["ports"]], Pod.parse(rendered)

    def test_no_two_replicas_with_ports_of_their_own_share_one_of_ours(self) -> None:
        """Whatever ports below 4,000 and above 30,000 they have; and none is beyond 65535."""
        taken: set[int] = set()
        for port in (2222, 2223, 2224, 3000, 60_000, 65_535):
            declared, seen = self.ports(port, hostNetwork=True)
            assert len(set(declared)) == 3
            assert not taken & set(declared)
            assert max(declared) < 65_536
            assert min(declared) > 1023
            assert seen.status_port in declared
            taken |= set(declared)

    @pytest.mark.parametrize("port", [None, 2222])
    def test_the_usual_ports(self, port: int | None) -> None:
        """The exporter's is the usual one where TF_CONFIG's is; elsewhere the network is the pod's own."""
        declared, seen = self.ports(port, hostNetwork=True)
        assert (sorted(declared), seen.status_port) == ([2222, 9465, 12_222], 9465)
        declared, seen = self.ports(port)
        assert (sorted(declared), seen.status_port) == ([2222, 9465], 9465)

    def test_the_program_beside_the_first_has_the_port_that_is_declared(self) -> None:
        """Not the next one, which is that of another replica."""
        found = job({"PS": replicas(1, hostNetwork=True), "Worker": 1})
        cluster = orjson.loads(tf_config(found, found.spec(), "PS", 0, slot=1))["cluster"]
        assert cluster == {"ps": ["j-ps-0.ns.svc:12222"], "worker": ["j-worker-0.ns.svc:2223"]}

    @pytest.mark.parametrize("port", ["9466", 22, 70_000, None, True])
    def test_a_pod_does_not_send_us_anywhere(self, port: object) -> None:
        """A pod's spec may be anybody's."""
        exporter = {"name": "elastic-tfjob-exporter", "ports": [{"name": "elastic-tfjob", "containerPort": port}]}
        assert pod("Worker", 0, spec={"initContainers": [exporter]}).status_port == 9465
