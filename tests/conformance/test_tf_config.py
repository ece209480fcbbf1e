"""D. TF_CONFIG, byte for byte."""

import json

from conformance.lab import Lab, case, cases
from conformance.manifest import Object, container, names, replica, tfjob

DOMAIN = {"CUSTOM_CLUSTER_DOMAIN": "tf.training.org"}

EVALUATED = tfjob(Evaluator=1, PS=1, Worker=1)
ALL_KINDS = (
    '"chief":["job-chief-0.NS.svc:2222"],"evaluator":["job-evaluator-0.NS.svc:2222"],'
    '"ps":["job-ps-0.NS.svc:2222","job-ps-1.NS.svc:2222"],'
    '"worker":["job-worker-0.NS.svc:2222","job-worker-1.NS.svc:2222"]'
)
DYNAMIC = tfjob(PS=2, Worker=3, enableDynamicWorker=True)
DYNAMIC_PS = '"ps":["job-ps-0.NS.svc:2222","job-ps-1.NS.svc:2222"]'


@cases(
    "job, pod, expected",
    {
        "D1": (tfjob(Worker=1), "worker-0", None),
        "D3": (
            EVALUATED,
            "evaluator-0",
            '{"cluster":{"evaluator":["job-evaluator-0.NS.svc:2222"],"ps":["job-ps-0.NS.svc:2222"],'
            '"worker":["job-worker-0.NS.svc:2222"]},"task":{"type":"evaluator","index":0},"environment":"cloud"}',
        ),
        "D4": (
            tfjob(PS=1, Worker=1),
            "ps-0",
            '{"cluster":{"ps":["job-ps-0.NS.svc:2222"],"worker":["job-worker-0.NS.svc:2222"]},'
            '"task":{"type":"ps","index":0},"environment":"cloud"}',
        ),
        "D5a": (tfjob(PS=1), "ps-0", None),
        "D5b": (
            tfjob(Chief=1, Worker=1),
            "worker-0",
            '{"cluster":{"chief":["job-chief-0.NS.svc:2222"],"worker":["job-worker-0.NS.svc:2222"]},'
            '"task":{"type":"worker","index":0},"environment":"cloud"}',
        ),
        "D5c": (
            tfjob(Worker=2),
            "worker-1",
            '{"cluster":{"worker":["job-worker-0.NS.svc:2222","job-worker-1.NS.svc:2222"]},'
            '"task":{"type":"worker","index":1},"environment":"cloud"}',
        ),
        "D10": (
            tfjob(Master=1, Worker=1),
            "master-0",
            '{"cluster":{"master":["job-master-0.NS.svc:2222"],"worker":["job-worker-0.NS.svc:2222"]},'
            '"task":{"type":"master","index":0},"environment":"cloud"}',
        ),
        "D7a": (
            tfjob(Chief=1, Evaluator=1, PS=2, Worker=2),
            "chief-0",
            f'{{"cluster":{{{ALL_KINDS}}},"task":{{"type":"chief","index":0}},"environment":"cloud"}}',
        ),
        # Sparse: a worker knows itself and every PS ...
        "D9a": (
            DYNAMIC,
            "worker-2",
            f'{{"cluster":{{"worker":{{"2":"job-worker-2.NS.svc:2222"}},{DYNAMIC_PS}}},'
            '"task":{"type":"worker","index":2}}',
        ),
        # ... a PS itself alone, ...
        "D9b": (
            DYNAMIC,
            "ps-1",
            '{"cluster":{"worker":{},"ps":["job-ps-1.NS.svc:2222"]},"task":{"type":"ps","index":1}}',
        ),
        # ... and others nobody.
        "D9c": (
            tfjob(Chief=1, PS=1, Worker=1, enableDynamicWorker=True),
            "chief-0",
            '{"cluster":{"worker":{},"ps":[]},"task":{"type":"chief","index":0}}',
        ),
    },
)
async def test_tf_config(lab: Lab, job: Object, pod: str, expected: str | None) -> None:
    """None for a job of one replica; else every declared type, in alphabetical order, and the pod's own task."""
    everyone = names(**{kind.lower(): spec["replicas"] for kind, spec in job["spec"]["tfReplicaSpecs"].items()})
    await lab.submit(job)
    await lab.expect(pods=everyone)
    assert await lab.tf_config(pod) == (expected and expected.replace("NS", lab.namespace))


@case("D2")
async def test_cluster_domain(offline: Lab) -> None:
    """The operator's environment names the cluster's domain."""
    with offline.operated(environment=DOMAIN):
        await offline.submit(tfjob(Evaluator=1, PS=1, Worker=1))
        local = offline.named("local")
        await local.submit(tfjob("local", Worker=1))
        await offline.expect(pods="evaluator-0 ps-0 worker-0")
        await local.expect(pods="worker-0")
    at = f"{offline.namespace}.svc.tf.training.org:2222"
    assert await offline.tf_config("worker-0") == (
        f'{{"cluster":{{"evaluator":["job-evaluator-0.{at}"],"ps":["job-ps-0.{at}"],"worker":["job-worker-0.{at}"]}},'
        '"task":{"type":"worker","index":0},"environment":"cloud"}'
    )
    assert await local.tf_config("worker-0") is None


@case("D7b")
async def test_all_see_the_same_cluster(lab: Lab) -> None:
    """Every pod has the same cluster and its own task."""
    await lab.submit(tfjob(Chief=1, PS=2, Worker=2, Evaluator=1))
    await lab.expect(pods=(everyone := names(chief=1, evaluator=1, ps=2, worker=2)))
    configs = {pod: json.loads(await lab.tf_config(pod) or "") for pod in everyone.split()}
    for pod, config in configs.items():
        kind, index = pod.split("-")
        assert config["task"] == {"type": kind, "index": int(index)}
        assert config["cluster"] == configs["chief-0"]["cluster"]


@case("D8")
async def test_ports_by_type(lab: Lab) -> None:
    """Each type has the port of its own container `tensorflow`; a sidecar's port of that name does not count."""
    ps = [container("sidecar", ports=[{"name": "tfjob-port", "containerPort": 1}]), container(ports=[_port(3000)])]
    await lab.submit(
        tfjob(PS=replica(1, containers=ps), Worker=replica(2, containers=[container(ports=[_port(4000)])]))
    )
    await lab.expect(pods="ps-0 worker-0 worker-1", services="ps-0 worker-0 worker-1")
    assert await lab.tf_config("ps-0") == (
        f'{{"cluster":{{"ps":["job-ps-0.{lab.namespace}.svc:3000"],"worker":["job-worker-0.{lab.namespace}.svc:4000",'
        f'"job-worker-1.{lab.namespace}.svc:4000"]}},"task":{{"type":"ps","index":0}},"environment":"cloud"}}'
    )
    assert [p["port"] for p in (await lab.service("ps-0"))["spec"]["ports"]] == [3000]


@case("D11")
async def test_scaled_up(lab: Lab) -> None:
    """New pods list all workers; those that were there keep what they were started with."""
    await lab.submit(tfjob(PS=1, Worker=3))
    await lab.expect(pods=names(ps=1, worker=3))
    before = await lab.tf_config("worker-0")
    await lab.scale("Worker", 5)
    await lab.expect(pods=names(ps=1, worker=5), services=names(ps=1, worker=5))
    assert await lab.tf_config("worker-0") == before
    workers = json.loads(await lab.tf_config("worker-4") or "")["cluster"]["worker"]
    assert workers == [f"job-worker-{i}.{lab.namespace}.svc:2222" for i in range(5)]


@case("D12")
async def test_last_variable(lab: Lab) -> None:
    """TF_CONFIG comes after the user's variables (so it wins over one of the same name), in `tensorflow` alone."""
    user = [{"name": "TF_CONFIG", "value": "mine"}, {"name": "Z", "value": "1"}]
    containers = [container(env=user), container("sidecar")]
    await lab.submit(tfjob(Worker=replica(2, containers=containers, initContainers=[container("init")])))
    await lab.expect(pods="worker-0 worker-1")
    spec = (await lab.pod("worker-0"))["spec"]
    main, sidecar = spec["containers"]
    assert [e["name"] for e in main["env"]] == ["TF_CONFIG", "Z", "TF_CONFIG"]
    assert main["env"][0]["value"] == "mine"
    assert "env" not in sidecar
    assert "env" not in spec["initContainers"][0]


@case("D13")
async def test_ports_without_names(lab: Lab) -> None:
    """A port without a name beside another, and one number for TCP and UDP: the service is made all the same."""
    ports = [
        {"containerPort": 2222},
        {"containerPort": 6006},
        {"name": "dns", "containerPort": 53},
        {"name": "dns-udp", "containerPort": 53, "protocol": "UDP"},
    ]
    await lab.submit(tfjob(Worker=replica(1, containers=[container(ports=ports)]), PS=1))
    await lab.expect(pods="ps-0 worker-0", services="ps-0 worker-0")
    made = (await lab.service("worker-0"))["spec"]["ports"]
    assert {(p["port"], p["protocol"]) for p in made} >= {(2222, "TCP"), (6006, "TCP"), (53, "TCP"), (53, "UDP")}
    assert len({p["name"] for p in made}) == len(made)


def _port(number: int) -> Object:
    return {"name": "tfjob-port", "containerPort": number}
