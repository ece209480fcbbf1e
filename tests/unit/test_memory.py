"""Memory of replicas: kills are named, and limits are raised before the next one."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from elastic_tfjob.api.annotations import PREFIX, Elasticity
from elastic_tfjob.controller.job.decision import Decision, DeletePod, RefusedPod, ResizeMemory, SaveState
from elastic_tfjob.controller.model.cluster import ForeignPod, KubeNode
from elastic_tfjob.controller.model.memory import MemoryAsked, TypeMemory, raised_to
from elastic_tfjob.controller.model.pod import LastEnd
from elastic_tfjob.controller.model.reports import MemoryUse, Report
from elastic_tfjob.controller.model.state import StoredState
from elastic_tfjob.controller.model.status import format_time
from elastic_tfjob.controller.planning.job_view import JobView, view_of
from elastic_tfjob.controller.planning.request import asked_for, job_request, memory_needs
from elastic_tfjob.controller.planning.round import assemble
from elastic_tfjob.controller.planning.targets import decide
from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.memory_limit import even
from elastic_tfjob.scheduling.profiles import build as built
from elastic_tfjob.scheduling.profiles import parse_profile
from elastic_tfjob.scheduling.snapshot import Snapshot
from unit import build
from unit.build import NOW, UID
from unit.pretend import ELASTIC, Cluster, started
from unit.test_moves import aim, placed

MIB, GIB = 1 << 20, 1 << 30
NO_NODE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "lastTransitionTime": "2026-01-02T03:04:00Z",
}
SIZE = {"Chief": 1, "PS": 1, "Worker": 1}


# -- the annotation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("2Gi", {"PS": 2 * GIB, "Worker": 2 * GIB}),
        ("ps=3Gi", {"PS": 3 * GIB, "Worker": None}),
        ("worker=1Gi, ps=512Mi", {"PS": GIB // 2, "Worker": GIB}),
    ],
)
def test_max_memory_is_for_all_types_or_for_some(text: str, most: dict[str, int | None]) -> None:
    found = Elasticity.parse({f"{PREFIX}max-memory": text}, build.job(SIZE).spec())
    assert found.problems == ()
    assert {name: found.most_memory(name) for name in most} == most


@pytest.mark.parametrize("text", ["", "much", "2Gi,3Gi", "gpu=2Gi", "ps=1Gi,ps=2Gi", "0", "1000Pi", "=1Gi"])
def test_max_memory_says_what_is_allowed(text: str) -> None:
    found = Elasticity.parse({f"{PREFIX}max-memory": text}, build.job(SIZE).spec())
    assert found.most_memory("PS") is None
    assert "or by type worker=4Gi,ps=16Gi" in found.problems[0]


@pytest.mark.parametrize(
    ("most", "said"),
    [
        ("4Gi", []),
        ("ps=4Gi", []),
        ("1Gi", ["1 GiB is no more than Chief has in its template, 1 GiB", "no more than Worker has"]),
        ("ps=1Gi", ["1 GiB is no more than PS has in its template, 3 GiB"]),
        ("evaluator=4Gi", ["the job has no Evaluator; it has Chief, PS, Worker"]),
        ("chief=4Gi,worker=4Gi", ["Worker has no memory limit or request in its template to be raised"]),
        ("2Gi", []),
    ],
)
def test_max_memory_without_effect_is_told(most: str, said: list[str]) -> None:
    """In an event, and by `elastic-tfjob check`."""
    amounts = {"Chief": template(), "PS": template("1Gi", "3Gi"), "Worker": {"name": "tensorflow", "image": "i"}}
    types = {name: build.replicas(1, containers=[container]) for name, container in amounts.items()}
    if most == "1Gi":
        types["Worker"] = build.replicas(1, containers=[template("2Gi", "2Gi")])
    job = build.job(types, annotations={**ELASTIC, f"{PREFIX}max-memory": most})
    events = [event.message for event in build.decide(job).events if "max-memory" in event.message]
    assert len(events) == (3 if most == "1Gi" else len(said))
    for words in said:
        assert any(words in event for event in events), events


# -- the operator ------------------------------------------------------------------------------------------------------


def template(memory: str = "1Gi", limit: str | None = "1Gi") -> dict[str, Any]:
    resources = {"requests": {"memory": memory}, **({"limits": {"memory": limit}} if limit else {})}
    return {"resources": resources, "name": "tensorflow", "image": "i"}


class Job:
    """A running job whose PS reports memory; each pass begins with what was stored."""

    def __init__(self, most: str | None = "ps=4Gi", *, limit: str | None = "1Gi", queue: str = "") -> None:
        self.memory: dict[str, TypeMemory] = {}
        self.annotations = {**ELASTIC, **({f"{PREFIX}max-memory": most} if most else {})}
        self.limit, self.queue = limit, queue
        self.use = MemoryUse()
        self.killed: str | None = None
        self.pod_limit = limit
        self.full = False
        self.size = SIZE
        self.refused: dict[str, RefusedPod] = {}
        self.reported_at = build.NOW.timestamp() + 7
        self.policy: list[Any] = []
        self.there = True
        self.pending = False

    def decide(self, later_s: float = 0.0) -> Decision:
        stored = StoredState("Stable", 0, replicas=self.size, memory=self.memory)
        container = {**template(limit=self.limit), "resizePolicy": self.policy}
        job = build.job(
            {name: build.replicas(n, containers=[container]) for name, n in self.size.items()},
            annotations={**self.annotations, f"{PREFIX}state": stored.to_json()},
        )
        job = replace(job, queue=self.queue)
        ended: dict[str, Any] = {}
        if self.killed:
            last = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": self.killed}
            ended = {
                "containerStatuses": [{"name": "tensorflow", "restartCount": 1, "lastState": {"terminated": last}}]
            }
        if self.full:
            pending = {"type": "PodResizePending", "status": "True", "reason": "Deferred"}
            ended["conditions"] = [{**pending, "lastTransitionTime": "2026-01-02T03:04:00Z"}]
            ended.setdefault("containerStatuses", [{"name": "tensorflow", "allocatedResources": {"memory": "1Gi"}}])
        spec = {"nodeName": "n", "containers": [template(self.pod_limit or "1Gi", self.pod_limit)]}
        pods = tuple(
            build.pod(name, index, spec=spec, status=ended if name == "PS" else {})
            if name != "PS" or not self.pending
            else build.pod(name, index, "Pending", spec={**spec, "nodeName": ""}, status={"conditions": [NO_NODE]})
            for name, count in self.size.items()
            for index in range(count)
            if self.there
        )
        at = build.NOW.timestamp()
        reports = {"j-ps-0": Report(at=self.reported_at, received_at_s=at, memory=self.use)}
        decision = build.decide(job, pods=pods, reports=reports, later_s=later_s, refused_pods=self.refused)
        for state in stored_states(decision):
            self.memory = dict(state.memory)
        return decision

    @property
    def raised(self) -> int | None:
        return self.memory["PS"].raised if "PS" in self.memory else None


def stored_states(decision: Decision) -> Iterator[StoredState]:
    for action in decision.actions:
        if isinstance(action, SaveState) and (text := action.annotations.get(f"{PREFIX}state")):
            state = StoredState.parse(text)
            assert state is not None
            assert StoredState.parse(state.to_json()) == state
            yield state


def resizes(decision: Decision) -> dict[str, MemoryAsked]:
    return {each.name: each.wanted for each in decision.actions if isinstance(each, ResizeMemory)}


def told(decision: Decision) -> dict[str, str]:
    return {each.reason: each.message for each in decision.events if "emory" in each.reason}


def test_a_limit_is_raised_before_it_is_reached() -> None:
    job = Job()
    job.use = MemoryUse(highest_bytes=700 * MIB, growth_bytes_per_s=0.0)
    assert told(job.decide()) == {}
    job.use = MemoryUse(highest_bytes=700 * MIB, growth_bytes_per_s=5.0 * MIB)
    first = job.decide()
    assert told(first) == {"MemoryRaised": "PS uses 700 MiB of 1 GiB, 1000 MiB soon: each replica gets 1.25 GiB"}
    assert (job.raised, resizes(first)) == (1280 * MIB, {}), "it is stored first"
    second = job.decide()
    assert resizes(second) == {"j-ps-0": MemoryAsked(1280 * MIB, 1280 * MIB)}
    assert told(second) == {}
    job.pod_limit = "1280Mi"
    assert resizes(job.decide()) == {}


@pytest.mark.parametrize(
    ("most", "queue", "why"),
    [
        ("1Gi", "", "2 PS are requested, among which the variables are divided"),
        ("4Gi", "team", "Kueue's queue team has admitted 1 GiB: raise it in the template"),
    ],
)
def test_memory_that_cannot_be_raised_is_told(most: str, queue: str, why: str) -> None:
    job = Job(most, queue=queue)
    job.use = MemoryUse(highest_bytes=1000 * MIB, growth_bytes_per_s=1.0 * MIB)
    assert told(job.decide()) == {"MemoryShort": f"PS will soon use all its memory. {why}"}
    assert job.raised is None


def test_a_queue_gets_what_kueue_has_admitted_whatever_is_stored() -> None:
    job = Job("4Gi", queue="team")
    job.memory = {"PS": TypeMemory(raised=3 * GIB)}
    assert resizes(job.decide()) == {}


def growing(job: Job) -> None:
    job.use = MemoryUse(highest_bytes=1000 * MIB, growth_bytes_per_s=1.0 * MIB)


@pytest.mark.parametrize("why", ["full", "quota", "resize"])
def test_memory_that_no_node_or_quota_has_is_given_up_and_tried_again(why: str) -> None:
    """A pod that asks for it could not be created either."""
    job = Job("ps=4Gi")
    growing(job)
    job.decide()
    assert job.raised == 1344 * MIB
    job.pod_limit = "1344Mi" if why == "full" else "1Gi"
    job.full = why == "full"
    job.refused = {"j-ps-0": RefusedPod("exceeded quota", 5.0)} if why == "quota" else {}
    assert "MemoryShort" not in told(job.decide(60))
    assert job.raised == 1344 * MIB
    message = told(job.decide(130))["MemoryShort"]
    assert message.startswith("PS keeps 1 GiB for each replica: ")
    assert ("no node has room" if why == "full" else "the API server refuses more") in message
    assert job.raised is None
    if why == "full":
        assert resizes(job.decide(131)) == {"j-ps-0": MemoryAsked(GIB, GIB)}, "a pending resize would come later"
    job.full, job.refused, job.pod_limit = False, {}, "1Gi"
    assert "2 PS are requested" in told(job.decide(200))["MemoryShort"]
    assert job.raised is None
    job.decide(500)
    assert job.raised == 1344 * MIB
    job.pod_limit = "1344Mi"
    job.decide(510)
    assert (job.raised, job.memory["PS"].before, job.memory["PS"].raised_at) == (1344 * MIB, None, "")


def test_a_raise_is_judged_by_pods() -> None:
    """A job that was stopped meanwhile has none; those that come have it from their template."""
    job = Job("ps=4Gi")
    growing(job)
    job.decide()
    job.there = False
    assert "MemoryShort" not in told(job.decide(600))
    job.there, job.pod_limit = True, "1344Mi"
    job.use = MemoryUse()
    job.decide(700)
    assert (job.raised, job.memory["PS"].before) == (1344 * MIB, None)


def test_a_replica_without_a_node_for_its_raised_memory_is_created_again() -> None:
    job = Job("ps=4Gi")
    growing(job)
    job.decide()
    job.pending, job.pod_limit, job.use = True, "1344Mi", MemoryUse()
    job.decide(60)
    assert job.raised == 1344 * MIB
    given_up = job.decide(130)
    assert told(given_up)["MemoryShort"].startswith("PS keeps 1 GiB for each replica: no node has room")
    assert [each.name for each in given_up.actions if isinstance(each, DeletePod)] == ["j-ps-0"]
    assert job.raised is None


def test_where_memory_cannot_be_raised_one_more_server_is_requested_and_the_chief_saves() -> None:
    job = Job("ps=1Gi")
    growing(job)
    job.decide()
    known = job.memory["PS"]
    assert (known.raised, known.replicas, known.saved_at) == (None, 2, "2026-01-02T03:04:05Z")
    state = StoredState("Stable", 0, replicas=SIZE, memory=job.memory)
    request = job_request(build.job(SIZE, annotations=ELASTIC))
    asked, why = asked_for(request, None, state, SIZE)
    assert (asked, str(why)) == ({"PS": 2}, "requested size: memory needs 2 PS")
    assert asked_for(request, None, state, {**SIZE, "PS": 2}) == ({}, "")
    assert memory_needs(request, replace(state, memory={"PS": TypeMemory(replicas=9)}), "PS") == 3, "max-ps"
    job.decide(30)
    assert job.memory["PS"].saved_at == known.saved_at
    job.decide(61)
    assert job.memory["PS"].saved_at == "2026-01-02T03:05:06Z"


def test_servers_that_are_not_even_get_no_other_one() -> None:
    assert even([MemoryUse(highest_bytes=10), MemoryUse(highest_bytes=12), MemoryUse()])
    assert not even([MemoryUse(highest_bytes=10), MemoryUse(highest_bytes=30)])
    assert not even([MemoryUse()])


def test_a_save_is_asked_for_by_the_chiefs_command() -> None:
    cluster = started()
    text = cluster.pods["j-chief-0"].command
    save = TypeMemory(saved_at="2026-01-02T03:04:05Z")
    cluster.annotations[f"{PREFIX}state"] = replace(cluster.state, memory={"PS": save}).to_json(UID)
    cluster.run()
    command = json.loads(cluster.pods["j-chief-0"].command)
    assert (command["action"], command["request"]) == ("run", 1767323045)
    assert "request" not in cluster.pods["j-ps-0"].command
    assert text != cluster.pods["j-chief-0"].command


def test_a_raise_keeps_the_class_of_a_pod() -> None:
    assert raised_to(MemoryAsked(GIB, GIB), 2 * GIB) == MemoryAsked(2 * GIB, 2 * GIB)
    assert raised_to(MemoryAsked(GIB, 2 * GIB), 3 * GIB) == MemoryAsked(3 * GIB - MIB, 3 * GIB)
    assert raised_to(MemoryAsked(GIB, 0), 3 * GIB) == MemoryAsked(3 * GIB, 0)


def test_memory_that_only_a_restart_would_change_is_left() -> None:
    policy = [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]
    job = Job("4Gi")
    job.policy = policy
    growing(job)
    first = job.decide()
    assert (job.raised, resizes(first), resizes(job.decide())) == (None, {}, {})
    assert "2 PS are requested" in told(first)["MemoryShort"]
    assert any("each raise would end its programs" in each.message for each in first.events if "max" in each.message)


# -- a second program beside the first ---------------------------------------------------------------------------------


def two_programs(most: str = "2Gi", *, servers: bool = True) -> Cluster:
    """A job whose programs use 700 MiB of 1 GiB; it is to get one worker more."""
    cluster = started(annotations={**ELASTIC, f"{PREFIX}max-memory": most}, memory_limit="1Gi")
    cluster.memory = MemoryUse(used_bytes=700 * MIB, limit_bytes=GIB, highest_bytes=700 * MIB)
    cluster.memory_of = {} if servers else {"ps": MemoryUse(100 * MIB, GIB)}
    return cluster


def limits(cluster: Cluster) -> set[int]:
    return {pod.memory.limit // MIB for pod in cluster.pods.values()}


def test_memory_for_a_second_program_is_lent_for_the_change() -> None:
    cluster = two_programs()
    assert limits(cluster) == {1024}
    cluster.target(1, Chief=1, PS=1, Worker=3)
    cluster.reconcile()
    assert cluster.events[-1] == (
        "RescalePending",
        "From 1 chief + 1 PS + 2 workers to 1 chief + 1 PS + 3 workers: waiting for the memory of a second program",
    )
    cluster.reconcile()
    assert limits(cluster) == {1528, 1808}
    cluster.run()
    assert cluster.state.history[-1].mode == "overlap"
    assert limits(cluster) == {1024}
    assert cluster.state.memory["PS"].beside is None


def test_memory_for_a_change_that_is_withdrawn_is_given_back() -> None:
    """Also what is lent in the pass that sees it."""
    cluster = two_programs()
    cluster.target(1, Chief=1, PS=1, Worker=3)
    cluster.reconcile()
    assert cluster.state.memory["PS"].beside_at
    cluster.target(2, Chief=1, PS=1, Worker=2)
    cluster.run()
    assert limits(cluster) == {1024}
    assert cluster.state.memory["PS"].beside is None


def test_memory_for_a_second_program_is_kept_until_each_type_has_it() -> None:
    cluster = two_programs()
    cluster.refused = {(cluster.pods["j-worker-0"].uid, "memory"): NOW + timedelta(hours=1)}
    cluster.target(1, Chief=1, PS=1, Worker=3)
    servers = []
    for _ in range(12):
        cluster.reconcile()
        cluster.now += timedelta(seconds=1)
        servers.append(cluster.pods["j-ps-0"].memory.limit // MIB)
    assert servers == [1024] + 11 * [1808]
    cluster.refused = {}
    cluster.run()
    assert cluster.state.history[-1].mode == "overlap"
    assert limits(cluster) == {1024}


def test_memory_for_a_second_program_is_asked_for_once() -> None:
    cluster = two_programs("2Gi")
    cluster.target(1, Worker=3)
    cluster.refused = {(pod.uid, "memory"): NOW + timedelta(hours=1) for pod in cluster.pods.values()}
    for _ in range(19):
        cluster.reconcile()
        cluster.now += timedelta(seconds=1)
    assert cluster.state.phase == "Recreating"


@pytest.mark.parametrize(("servers", "mode"), [(True, "recreate"), (False, "spare")])
@pytest.mark.parametrize("refused", [False, True])
def test_memory_for_a_second_program_that_cannot_be_had(servers: bool, mode: str, refused: bool) -> None:
    """A spare of a parameter server takes its variables while the former server still has them."""
    cluster = two_programs("2Gi" if refused else "1200Mi", servers=servers)
    cluster.target(1, Worker=3)
    if refused:
        cluster.refused = {(pod.uid, "memory"): NOW + timedelta(hours=1) for pod in cluster.pods.values()}
    cluster.run(60)
    assert cluster.state.history[-1].mode == mode
    assert limits(cluster) == {1024}


def test_a_kill_while_a_second_program_starts_rules_this_mode_out() -> None:
    cluster = started()
    cluster.target(1, Chief=1, PS=1, Worker=3)
    cluster.reconcile()
    cluster.memory = replace(cluster.memory, kills=1, killed_at=cluster.reported_at)
    cluster.now += timedelta(seconds=1)
    cluster.reconcile()
    assert any("had no memory for a second program" in message for _, message in cluster.events)
    deaths = cluster.state.deaths
    assert deaths is not None
    assert deaths.too_many("overlap")


def test_an_added_replica_that_is_killed_says_nothing_of_a_second_program() -> None:
    cluster = started()
    cluster.target(1, Chief=1, PS=1, Worker=3)
    for _ in range(2):
        cluster.reconcile()
    cluster.now += timedelta(seconds=1)
    end = LastEnd(1, 137, killed_at=format_time(cluster.now))
    cluster.pods["j-worker-2"] = replace(cluster.pods["j-worker-2"], last_end=end)
    cluster.reconcile()
    assert cluster.state.phase == "Preparing"
    assert cluster.state.memory["Worker"].kills == 1


def test_beyond_a_request_alone_nothing_is_killed() -> None:
    job = Job("1Gi", limit=None)
    job.use = MemoryUse(highest_bytes=2 * GIB, growth_bytes_per_s=0.0)
    assert told(job.decide()) == {}
    assert job.memory.get("PS", TypeMemory()).saved_at == ""


def test_a_replica_that_is_killed_while_it_leaves_a_full_node_goes_on_leaving() -> None:
    """It runs no second program."""
    cluster = placed()
    aim(cluster, 1, PS=("c",))
    cluster.until("Preparing")
    killed = LastEnd(1, 137, killed_at=format_time(cluster.now + timedelta(seconds=1)))
    cluster.pods["j-ps-0"] = replace(cluster.pods["j-ps-0"], last_end=killed)
    cluster.run(20)
    assert [each.mode for each in cluster.state.history] == ["overlap"]
    assert "OutOfMemory" in dict(cluster.events)


def test_without_a_limit_the_request_follows_the_use() -> None:
    job = Job(limit=None)
    job.use = MemoryUse(highest_bytes=2 * GIB, growth_bytes_per_s=0.0)
    job.decide()
    assert resizes(job.decide()) == {"j-ps-0": MemoryAsked(2560 * MIB, 0)}


@pytest.mark.parametrize(
    ("most", "queue", "outlook", "after"),
    [
        ("ps=4Gi", "", "Its memory is raised", 1536 * MIB),
        ("worker=4Gi", "", "Raise the limit in the template, or let the operator raise it", None),
        (None, "", "Raise the limit in the template, or let the operator raise it", None),
        ("1Gi", "", "elastic.kubeflow.org/max-memory allows no more than 1 GiB", None),
        ("4Gi", "team", "Kueue's queue team has admitted 1 GiB: raise it in the template", None),
    ],
)
@pytest.mark.parametrize("process", [False, True])
def test_a_kill_is_named_once_and_teaches(
    most: str | None, queue: str, outlook: str, after: int | None, process: bool
) -> None:
    job = Job(most, queue=queue)
    if process:
        job.use = MemoryUse(kills=1, killed_at=build.NOW.timestamp() + 4)
    else:
        job.killed = "2026-01-02T03:04:02Z"
    message = told(job.decide())["OutOfMemory"]
    assert "was killed for memory at" in message
    assert "its limit of 1 GiB" in message or "the pod's limit of 1 GiB" in message
    assert outlook in message
    assert (job.raised, job.memory["PS"].kills) == (after, 1)
    assert told(job.decide()) == {}
    job.killed = "2026-01-02T03:04:05Z"  # the kubelet and the launcher tell of one kill
    assert told(job.decide()) == {}
    job.killed = "2026-01-02T04:00:00Z"
    assert told(job.decide())["OutOfMemory"].endswith("(2 kills of PS so far)"), "else a repetition that is not written"
    assert job.memory["PS"].kills == 2


@pytest.mark.parametrize(("at", "killed_at", "kills"), [(0.0, 2.5e11, 0), (2.5e11, 0.0, 1), (5.0, 9.0, 0)])
def test_a_pods_clock_may_have_any_time(at: float, killed_at: float, kills: int) -> None:
    """No kill comes after the report of it: each later one would count as known."""
    job = Job()
    job.reported_at, job.use = at, MemoryUse(kills=1, killed_at=killed_at)
    job.decide()
    assert job.memory.get("PS", TypeMemory()).kills == kills
    assert told(job.decide(60)) == {}


def test_replicas_that_are_killed_together_are_all_named() -> None:
    job = Job()
    job.size = {**SIZE, "PS": 2}
    job.killed = "2026-01-02T03:04:02Z"
    named = [event.message for event in job.decide().events if event.reason == "OutOfMemory"]
    assert [message.split()[0] for message in named] == ["j-ps-0", "j-ps-1"]
    assert (job.memory["PS"].kills, job.raised) == (2, 1536 * MIB)
    assert told(job.decide()) == {}
    job.size = {**SIZE, "PS": 3}
    job.decide()
    assert (job.memory["PS"].kills, job.raised) == (3, 1536 * MIB), "it had the former limit, too"
    job.killed = "2026-01-02T03:05:02Z"
    job.decide()
    assert job.raised == 2304 * MIB


def test_another_process_that_was_killed_long_ago_is_no_kill_of_the_container() -> None:
    """containerd keeps the reason."""
    job = Job()
    status = {"exitCode": 1, "reason": "OOMKilled", "finishedAt": "2026-01-02T03:04:02Z"}
    found = build.pod(
        "PS", 0, status={"containerStatuses": [{"name": "tensorflow", "lastState": {"terminated": status}}]}
    )
    assert found.last_end is not None
    assert found.last_end.killed_at == ""
    assert told(job.decide()) == {}


def test_plans_count_raised_memory() -> None:
    job = build.job({"PS": build.replicas(1, containers=[template()])}, annotations=ELASTIC)
    before = job_request(job)
    after = job_request(job, before, memory={"PS": 3 * GIB})
    assert after.requests["PS"].memory_bytes - before.requests["PS"].memory_bytes == 2 * GIB
    assert job_request(job, after, memory={"PS": 3 * GIB}) is after


def test_a_replica_leaves_a_node_that_has_no_memory_for_it() -> None:
    """Plans count the raised memory, and none of it on a node that cannot have given it."""
    nodes = {name: KubeNode.parse(build.raw_node(name, memory="8Gi")) for name in ("a", "b")}
    other = build.pod("Other", 0, spec={"nodeName": "a", "containers": [template("4Gi", "4Gi")]})
    foreign = [ForeignPod("ns", "other", "u", 1, "a", other.requests)]
    kips = built("kips", parse_profile("kips", {}))
    templates = {name: build.replicas(1, containers=[template()]) for name in SIZE}
    known: JobView | None = None
    snapshot: Snapshot | None = None
    for asked, later_s in ((GIB, 0), (3 * GIB, 1), (3 * GIB, 30)):
        stored = StoredState("Stable", 0, replicas=SIZE, memory={"PS": TypeMemory(raised=asked)})
        job = build.job(templates, annotations={**ELASTIC, f"{PREFIX}state": stored.to_json()})
        pods = []
        for name in SIZE:
            amount = str(asked if name == "PS" else GIB)
            added = {**template("64Mi", "64Mi"), "name": "added"}
            spec = {"nodeName": "a", "containers": [template(amount, amount), added]}
            pending = {"type": "PodResizePending", "status": "True", "reason": "Deferred"}
            given = {"name": "tensorflow", "resources": {"requests": {"memory": "1Gi"}}}
            status = {
                "conditions": [{**pending, "lastTransitionTime": format_time(NOW)}] if name == "PS" else [],
                "containerStatuses": [given],
            }
            pods.append(build.pod(name, 0, spec=spec, status=status))
        now = NOW + timedelta(seconds=later_s)
        known = view_of(job, pods, nodes=nodes, now=now, before=known)
        snapshot = assemble([known], nodes, foreign, now.timestamp(), snapshot)
        plan = schedule(snapshot, kips)
    assert known is not None
    assert known.job is not None
    assert snapshot is not None
    # Chief and worker keep theirs. The rest is the other pod's, and what the kubelet will give the PS if it can.
    assert snapshot.nodes["a"].free.memory_bytes <= 2 * (GIB + 64 * MIB)
    target = decide(plan, {known.job.key: known})[known.job.key]
    assert target.nodes == {"Chief": ("a",), "PS": ("b",), "Worker": ("a",)}
    assert str(target.reason).startswith("a has no more memory for its pods")
