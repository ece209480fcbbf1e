"""Growth within Kueue's quota: which Workloads a job gets, keeps and gives back, and how large it may be meanwhile."""

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.api.tfjob import TFJobSpec
from elastic_tfjob.controller.kube.workloads import growth_workload
from elastic_tfjob.controller.model.annotations import STATE_ANNOTATION, TARGET_ANNOTATION
from elastic_tfjob.controller.model.kueue import (
    GROWTH_LABEL,
    Cohort,
    Growth,
    LocalQueue,
    PodSetUsage,
    Queue,
    Quota,
    Workload,
)
from elastic_tfjob.controller.model.settings import parse_configuration
from elastic_tfjob.controller.model.state import StoredState
from elastic_tfjob.controller.model.status import format_time
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.controller.planning.growth import (
    Create,
    Delete,
    GrowthMemory,
    GrowthRules,
    QueuedJob,
    SetReady,
    SetReclaimed,
    Step,
    held_size,
    wishes,
)
from elastic_tfjob.controller.planning.job_view import view_of
from elastic_tfjob.controller.planning.kueue_quota import FreeQuota, KueueObjects
from elastic_tfjob.controller.planning.request import asked_for, job_request
from elastic_tfjob.controller.planning.targets import decide_fixed
from elastic_tfjob.controller.query.rows.jobs import job_row
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import Job, JobSpec, Node, ReplicaGroup, Snapshot
from harness.effort import effort

from .build import NOW, UID, condition, job, pod

KEY = ("ns", "j")
CPU = Quota("flavor", "cpu")
ONE = PodSetUsage({CPU: Decimal(1)})
S = NOW.timestamp()


def base(**fields: Any) -> Workload:
    """The Workload of a job with 1 PS and 2 workers."""
    known = Workload(
        "ns", "tfjob-j", "base", 10, "j", UID, queue="q", cluster_queue="cq", counts={"ps": 1, "worker": 2}
    )
    return replace(known, usage={"ps": ONE, "worker": ONE}, admitted=True, **fields)


def growth(number: int, *, admitted: bool = True, **fields: Any) -> Workload:
    known = Workload(
        "ns", f"j-growth-{number}", f"g{number}", 20 + number, "j", "base", growth=True, queue="q", cluster_queue="cq"
    )
    usage = {"worker": ONE} if admitted else {}
    known = replace(known, created=format_time(NOW), counts={"worker": 1}, admitted=admitted, usage=usage)
    return replace(known, **fields)


def queue(**fields: Any) -> Queue:
    return replace(Queue("cq", "cq", 1000, nominal={CPU: Decimal(9)}, used={CPU: Decimal(3)}), **fields)


def queued(**fields: Any) -> QueuedJob:
    """A job that runs with its declared replicas, and would have 6 workers."""
    size = {"PS": 1, "Worker": 2}
    known = QueuedJob(KEY, UID, "q", "grows", {"PS": 1, "Worker": 6}, {"PS": 1, "Worker": 6}, size, size)
    return replace(known, **fields)


class World:
    """The memory, with one job."""

    def __init__(self, *workloads: Workload, **queue_: Any) -> None:
        self.memory = GrowthMemory()
        self.workloads = (base(), *workloads)
        self.queue = queue(**queue_)
        self.rules = GrowthRules()

    def step(self, job_: QueuedJob | None = None, *, at_s: float = 0.0) -> Step:
        objects = KueueObjects(
            lambda key: self.workloads if key == KEY else (),
            {"cq": self.queue},
            {("ns", "q"): LocalQueue("ns", "q", "lq", 1, "cq", active=True)},
            {},
        )
        return self.memory.follow([job_ or queued()], objects, self.rules, S + at_s)

    @property
    def admitted(self) -> Mapping[str, int]:
        return self.memory.admitted(UID, self.workloads)


def has(workers: int, **fields: Any) -> QueuedJob:
    size = {"PS": 1, "Worker": workers}
    return queued(held=size, running=size, **fields)


def made(step: Step) -> list[str]:
    return [each.name for each in step.actions if isinstance(each, Create)]


def gone(step: Step) -> list[str]:
    return [each.workload.name for each in step.actions if isinstance(each, Delete)]


def why(step: Step) -> str:
    return str(step.waits[KEY].facts["because"]) if KEY in step.waits else ""


# -- Asking ------------------------------------------------------------------------------------------------------------


def test_a_job_asks_for_two_replicas_at_a_time() -> None:
    world = World()
    assert made(world.step()) == ["j-growth-0", "j-growth-1"]
    world.workloads += (growth(0, admitted=False), growth(1))
    step = world.step()
    assert made(step) == ["j-growth-2"]
    assert world.admitted == {"PS": 1, "Worker": 3}
    assert str(step.waits[KEY]) == "would use 3 workers more (queue q): Kueue is asked for it"


def test_a_job_that_wishes_no_more_asks_for_nothing() -> None:
    assert made(World().step(queued(wished={"PS": 1, "Worker": 2}))) == []
    assert made(World().step(queued(wished={}))) == []
    assert made(World().step(queued(most={"PS": 1, "Worker": 3}))) == ["j-growth-0"]


@pytest.mark.parametrize(
    ("fields", "because"),
    [
        ({"used": {CPU: Decimal(9)}}, "no-quota"),
        ({"pending": 1}, "others"),
        ({"checks": True}, "checks"),
        ({"active": False}, "no-queue"),
        ({"nominal": {}}, "no-quota"),
    ],
)
def test_a_job_asks_only_where_quota_is_free_and_nobody_waits(fields: dict[str, Any], because: str) -> None:
    step = World(**fields).step()
    assert (made(step), why(step)) == ([], because)


def test_a_job_asks_once_its_declared_replicas_run() -> None:
    world = World()
    step = world.step(queued(running={"PS": 1, "Worker": 1}))
    assert (made(step), why(step)) == ([], "starts")
    assert made(world.step(queued(held={"PS": 1, "Worker": 1}, running={"PS": 1, "Worker": 1}))) != []
    world.workloads += (growth(0),)
    assert made(world.step(queued(held={"PS": 1, "Worker": 3}))) != [], "growth need not run"


def test_pods_that_kueue_places_do_not_grow() -> None:
    world = World()
    world.workloads = (base(topology=True),)
    assert why(world.step()) == "topology"


def test_a_reservation_that_the_queue_does_not_count_yet_is_not_free() -> None:
    world = World(used={CPU: Decimal(7)})
    assert len(made(world.step())) == 2
    world.workloads += (growth(0, version=2000), growth(1, version=2001))
    step = world.step()
    assert (made(step), why(step)) == ([], "no-quota")
    world.queue = replace(world.queue, version=2002)
    assert len(made(world.step())) == 2


def test_growth_of_jobs_that_ask_does_not_count_as_others() -> None:
    world = World(growth(0, admitted=False), pending=1)
    assert made(world.step()) == ["j-growth-1"]


@pytest.mark.parametrize(
    ("mine", "theirs", "fits"),
    [
        ({}, {"used": {CPU: Decimal(0)}}, True),
        ({"used": {CPU: Decimal(9)}}, {"used": {CPU: Decimal(3)}}, True),  # borrows
        ({"used": {CPU: Decimal(9)}, "most_borrowed": {CPU: Decimal(0)}}, {}, False),
        ({"used": {CPU: Decimal(3)}}, {"used": {CPU: Decimal(10)}}, False),  # what is its own, another one borrows
    ],
)
def test_a_cohort_is_one_pool(mine: dict[str, Any], theirs: dict[str, Any], fits: bool) -> None:
    one = queue(cohort="low", **mine)
    two = queue(cohort="top", **{"nominal": {CPU: Decimal(4)}, **theirs})
    two = replace(two, name="other")
    cohorts = {
        "low": Cohort("low", "u", 1, "top", {}),
        "top": Cohort("top", "v", 1, "low", {}),  # a cycle, which Kueue does not admit either
    }
    objects = KueueObjects(lambda _: (), {"cq": one, "other": two}, {}, cohorts | {})
    objects = replace(objects, cohorts={"low": cohorts["low"]})
    assert FreeQuota(objects).fits(one, ONE) == fits
    assert KueueObjects(lambda _: (), {}, {}, cohorts).root("low") == "top"


# -- Giving back -------------------------------------------------------------------------------------------------------


def test_evicted_growth_lowers_the_bound_at_once_and_goes_when_the_job_has_shrunk() -> None:
    world = World(growth(0), growth(1))
    world.step(has(4))
    assert world.admitted == {"PS": 1, "Worker": 4}
    world.workloads = (base(), growth(0), growth(1, evicted=True, why="preempted"))
    step = world.step(has(4))
    assert (gone(step), step.changed, world.admitted["Worker"]) == ([], {KEY}, 3)
    (message,) = [event.message for _, event in step.events if event.reason == "GrowthEvicted"]
    assert message == "Gives up 1 worker, as Kueue evicted its quota: preempted. Asks again in 60 s"
    assert gone(world.step(has(3, settled=False))) == []
    assert gone(world.step(has(3))) == ["j-growth-1"]
    world.workloads = (base(), growth(0))
    step = world.step(has(3))
    assert (made(step), why(step)) == ([], "delay")
    assert made(world.step(has(3), at_s=61)) != []


def test_an_operator_that_starts_anew_finds_evicted_growth() -> None:
    assert gone(World(growth(0, evicted=True)).step(has(2))) == ["j-growth-0"]
    assert gone(World(growth(0, evicted=True)).step(has(3))) == []


def test_delays_double_and_are_forgotten() -> None:
    memory = GrowthMemory()
    assert [memory.delay(KEY, at) for at in (0, 1, 60, 180, 420)] == [60, 59, 120, 240, 480]
    assert memory.delay(KEY, 10_000) == 960
    for _ in range(5):
        assert memory.delay(KEY, memory._delays[KEY].until_s) <= 1800
    world = World()
    world.memory.delay(KEY, S)
    world.step(at_s=121)
    assert world.memory.delay(KEY, S + 121) == 60


@pytest.mark.parametrize(("pending", "limit_s"), [(0, 120), (1, 10)])
def test_growth_that_is_not_used_is_returned_sooner_if_others_wait(pending: int, limit_s: int) -> None:
    world = World(growth(0), growth(1), pending=pending)
    assert gone(world.step(has(3))) == []
    assert gone(world.step(has(3), at_s=limit_s - 1)) == []
    step = world.step(has(3), at_s=limit_s)
    assert gone(step) == ["j-growth-1"]
    assert [event.reason for _, event in step.events] == ["GrowthReturned"]


def test_growth_that_kueue_does_not_admit_is_withdrawn() -> None:
    world = World(growth(0, admitted=False))
    step = world.step(at_s=4)
    assert (gone(step), step.next_s) == ([], 6)
    assert gone(world.step(at_s=10)) == ["j-growth-0"]


def test_growth_of_another_flavor_is_given_back() -> None:
    other = PodSetUsage({Quota("spot", "cpu"): Decimal(1)})
    world = World(growth(0, usage={"worker": other}))
    assert world.admitted["Worker"] == 2
    assert gone(world.step()) == ["j-growth-0"]


@pytest.mark.parametrize("phase", ["returns", "over"])
def test_a_job_that_cannot_grow_returns_all(phase: Any) -> None:
    world = World(growth(0), growth(1, admitted=False))
    assert gone(world.step(has(3, phase=phase))) == (
        ["j-growth-0", "j-growth-1"] if phase == "over" else ["j-growth-1"]
    )
    assert world.admitted["Worker"] == 2
    assert "j-growth-0" in gone(world.step(has(2, phase=phase)))


def test_growth_turned_off_is_returned() -> None:
    world = World(growth(0))
    world.rules = GrowthRules(grow=False)
    assert gone(world.step(has(3))) == []
    assert (gone(world.step(has(2))), world.admitted["Worker"]) == (["j-growth-0"], 2)


def test_a_job_for_which_nothing_is_decided_for_a_while_keeps_its_growth() -> None:
    world = World(growth(0))
    for at_s in (0, 1000):
        step = world.step(has(2, phase="keeps"), at_s=at_s)
        assert (gone(step), made(step), world.admitted["Worker"]) == ([], [], 3)


def test_an_evicted_job_has_no_bound_of_its_own_and_its_growth_goes_with_the_pods() -> None:
    world = World(growth(0))
    world.workloads = (base(evicted=True), growth(0))
    assert world.admitted == {}
    assert gone(world.step(has(3, phase="returns"))) == []
    assert gone(world.step(has(2, phase="returns"))) == ["j-growth-0"]


def test_a_workload_that_somebody_else_labels_is_left_alone() -> None:
    world = World(growth(0, owner="another"))
    assert (world.admitted["Worker"], gone(world.step(has(2, phase="over")))) == (2, [])
    world = World(growth(0, counts={"worker": 5}))
    assert world.admitted["Worker"] == 2


def test_pods_ready_is_set_for_as_many_as_run() -> None:
    world = World(growth(0, ready=True), growth(1), growth(2))
    ready = [each.workload.name for each in world.step(has(4)).actions if isinstance(each, SetReady)]
    assert ready == ["j-growth-1"]


# -- Quota of declared replicas ----------------------------------------------------------------------------------------


def reclaimed(step: Step) -> list[Mapping[str, int]]:
    return [each.counts for each in step.actions if isinstance(each, SetReclaimed)]


def test_quota_of_a_smaller_job_is_returned_after_the_bound_is_lower() -> None:
    world = World()
    world.rules = GrowthRules(reclaim_after_s=600)
    small = has(1, wished={})
    assert world.step(small).next_s == 600
    step = world.step(small, at_s=600)
    assert (reclaimed(step), step.changed, world.admitted) == ([], {KEY}, {"PS": 1, "Worker": 1})
    assert reclaimed(world.step(has(1, wished={}, settled=False), at_s=601)) == []
    assert reclaimed(world.step(small, at_s=602)) == [{"worker": 1}]
    world.workloads = (base(reclaimed={"worker": 1}),)
    assert (reclaimed(world.step(small, at_s=603)), world.admitted["Worker"]) == ([], 1)
    assert made(world.step(at_s=604, job_=has(1))) != [], "it grows back by Workloads"


def test_the_time_begins_again_when_the_job_has_grown() -> None:
    world = World()
    world.rules = GrowthRules(reclaim_after_s=600)
    world.step(has(1, wished={}))
    world.step(has(2, wished={}), at_s=500)
    assert world.step(has(1, wished={}), at_s=601).changed == set()


def test_a_stopped_job_returns_nothing() -> None:
    world = World()
    world.rules = GrowthRules(reclaim_after_s=1)
    for at_s in (0, 10):
        assert world.step(queued(held={}, running={}, wished={}), at_s=at_s).changed == set()


def test_a_new_admission_has_all_declared_replicas() -> None:
    world = World()
    world.workloads = (replace(base(reclaimed={"worker": 1}), usage={}, admitted=False),)
    assert reclaimed(world.step(has(0, phase="returns"))) == [{}]


# -- What jobs would like, and what they hold --------------------------------------------------------------------------

ELASTIC = {f"{PREFIX}min-workers": "1", f"{PREFIX}max-workers": "6", f"{PREFIX}checkpoint-dir": "/c"}


def kueued(**more: str) -> Any:
    annotations = {**ELASTIC, **{PREFIX + name.replace("_", "-"): text for name, text in more.items()}}
    return replace(job({"PS": 1, "Worker": 2}, annotations=annotations), queue="q")


def test_bounds_follow_what_is_admitted() -> None:
    declared = job_request(kueued())
    assert (declared.bounds("Worker"), declared.most_wanted("Worker")) == ((1, 2), 6)
    more = job_request(kueued(), declared, admitted={"PS": 1, "Worker": 4})
    assert more.bounds("Worker") == (1, 4)
    assert more.spec is declared.spec
    assert job_request(kueued(), more, admitted={"Worker": 0}).bounds("Worker") == (0, 0)


def test_a_person_gets_as_much_of_a_requested_size_as_is_admitted() -> None:
    asks = kueued(target_workers="5")
    without = job_request(asks)
    assert (asked_for(without, None, None, {})[0], len(without.problems)) == ({}, 1)
    grows = job_request(asks, admitted={"PS": 1, "Worker": 3})
    assert (asked_for(grows, None, None, {})[0], grows.problems) == ({"Worker": 3}, [])


def wished(request: Any, group: ReplicaGroup) -> Mapping[str, int]:
    node = Resources(8000, 2**40, 0, 100)
    spec = JobSpec("ns/j", 0.0, (group,))
    snapshot = Snapshot(100.0, {"n": Node("n", node, node)}, {"ns/j": Job(spec, {"Worker": ("n",) * 2}, "running")})
    return wishes(snapshot, build("drf", parse_profile("drf", {})), {"ns/j": request}).get("ns/j", {})


def test_the_profile_says_which_size_it_would_give_if_quota_were_free() -> None:
    one = Resources(1000, 0, 0, 1)
    group = ReplicaGroup("Worker", one, 2, 1, 2)
    assert wished(job_request(kueued()), group) == {"Worker": 6}
    assert wished(job_request(kueued()), replace(group, request=Resources(3000, 0, 0, 1))) == {"Worker": 2}, "no room"
    at_two = replace(group, minimum=2)
    assert wished(job_request(kueued(target_workers="4")), at_two) == {"Worker": 4}
    assert wished(job_request(kueued(target_workers="2")), at_two) == {}, "a person requests what it has"


def test_a_job_holds_what_any_of_pods_state_and_target_stand_for() -> None:
    request = job_request(kueued())
    three = [pod("Worker", k) for k in range(3)]
    target = Target(0, {"PS": 1, "Worker": 2}, {}, {}, "", {"PS": 1, "Worker": 2})
    held, running, settled = held_size(request, target, None, three, suspended=False)
    assert (held, running["Worker"], settled) == ({"PS": 1, "Worker": 3}, 3, True)
    held, _, settled = held_size(request, replace(target, replicas={"Worker": 5}), None, three, suspended=False)
    assert held["Worker"] == 5
    assert held_size(request, target, None, [], suspended=True)[0] == {}


# -- A job that follows its bound, with a Kueue that admits and evicts as it likes -------------------------------------

EVENTS = st.lists(
    st.sampled_from(["admit", "evict", "round", "follow", "restart", "wait", "drop"]), min_size=12, max_size=40
)


@settings(max_examples=effort(80, 2000), deadline=None)
@given(EVENTS)
def test_a_job_never_has_more_replicas_than_quota(events: list[str]) -> None:
    """`target`: what a round wrote last; `size`: what the job's pods follow, later."""
    world, at_s, target, size = World(), 0.0, 2, 2
    for event in events:
        found = list(world.workloads)
        if event == "admit":
            found = [replace(w, admitted=True, usage={"worker": ONE}) if not w.usage else w for w in found]
        elif event == "evict":
            last = max((w for w in found if w.growth and w.usage), key=lambda w: w.name, default=None)
            found = [replace(w, evicted=True) if w is last else w for w in found]
        elif event == "drop":  # by a person, after the job has shrunk: before, its pods would have no quota for a while
            found = [w for w in found if not w.growth or not w.evicted or max(size, target) > 2]
        elif event == "restart":
            world.memory = GrowthMemory()
        elif event == "wait":
            at_s += 130
        elif event == "follow":
            size = target
        world.workloads = tuple(found)
        if event == "round":
            target = world.admitted.get("Worker", 2)
        held = max(size, target)
        step = world.step(queued(held={"PS": 1, "Worker": held}, running={"PS": 1, "Worker": size}), at_s=at_s)
        gone_now = set(gone(step))
        world.workloads = tuple(w for w in world.workloads if w.name not in gone_now) + tuple(
            replace(growth(0, admitted=False), name=name, uid=f"{name}@{at_s}{len(found)}") for name in made(step)
        )
        quota = 2 + sum(bool(w.usage) for w in world.workloads if w.growth)
        assert size <= quota
        assert len(made(step)) <= 2


# -- Objects -----------------------------------------------------------------------------------------------------------


def raw(**status: Any) -> dict[str, Any]:
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "name": "j", "uid": UID, "controller": True}
    return {
        "metadata": {"namespace": "ns", "name": "w", "uid": "u", "resourceVersion": "7", "ownerReferences": [owner]},
        "spec": {"queueName": "q", "podSets": [{"name": "worker", "count": 2}]},
        "status": status,
    }


def test_usage_of_one_replica_is_read_from_the_sum_of_all() -> None:
    assigned = {
        "name": "worker",
        "count": 2,
        "flavors": {"cpu": "flavor"},
        "resourceUsage": {"cpu": "3"},
    }
    condition = {"type": "Admitted", "status": "True"}
    found = Workload.parse(raw(admission={"podSetAssignments": [assigned]}, conditions=[condition]))
    assert found.usage == {"worker": PodSetUsage({CPU: Decimal("1.5")})}
    assert (found.job, found.growth, found.admitted, found.evicted) == ("j", False, True, False)


def test_a_workload_of_something_else_is_not_read() -> None:
    other = raw()
    other["metadata"]["ownerReferences"][0]["kind"] = "PyTorchJob"
    assert Workload.parse(other) == Workload("ns", "w", "u", 7)


@pytest.mark.parametrize("broken", [{"spec": {"podSets": 5}}, {"status": {"conditions": [{}]}}, {"metadata": {}}])
def test_an_object_that_cannot_be_read_is_an_error(broken: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        Workload.parse({**raw(), **broken})


def test_growth_is_a_workload_of_what_kueue_counts() -> None:
    made_ = growth_workload(Create(queued(), base(), "Worker", "j-growth-0"), kueued())
    assert made_["metadata"]["labels"] == {GROWTH_LABEL: "j"}
    assert made_["metadata"]["ownerReferences"][0]["uid"] == "base"
    (pod_set,) = made_["spec"]["podSets"]
    assert (pod_set["name"], pod_set["count"], made_["spec"]["priority"]) == ("worker", 1, -1_000_000)
    (container,) = pod_set["template"]["spec"]["containers"]
    assert container.keys() <= {"name", "image", "resources"}
    assert isinstance(kueued().spec(), TFJobSpec)


def test_what_a_user_reads_is_stored_and_read_again() -> None:
    told = Growth({"Worker": 4}, Reason("quota", {"more": {"Worker": 2}, "queue": "q", "because": "no-quota"}))
    assert Growth.of({f"{PREFIX}growth": told.to_json(UID)}, UID) == told
    assert Growth.of({f"{PREFIX}growth": told.to_json("other")}, UID) is None
    with pytest.raises(ValueError, match="growth is invalid"):
        Growth.of({f"{PREFIX}growth": '{"admitted": {"Worker": -1}}'}, UID)


def grown(workers: int, **more: Any) -> Any:
    """A queued job that trains with so many workers."""
    size = {"PS": 1, "Worker": workers}
    state = StoredState("Stable", 1, replicas=size, nodes={}, since=format_time(NOW))
    known = kueued()
    annotations = {
        **known.annotations,
        TARGET_ANNOTATION: Target(1, size, declared={"PS": 1, "Worker": 2}).to_json(UID),
        STATE_ANNOTATION: state.to_json(UID),
        **more,
    }
    running = job({"PS": 1, "Worker": 2}, annotations=annotations, status={"conditions": [condition("Running")]})
    return replace(running, queue="q")


def test_the_row_of_a_job_says_what_is_admitted_and_why_no_more() -> None:
    reason = Reason("quota", {"more": {"Worker": 2}, "queue": "q", "because": "others"})
    told = Growth({"PS": 1, "Worker": 4}, reason).to_json(UID)
    row = job_row(grown(4, **{f"{PREFIX}growth": told}))
    assert (row.bounds["Worker"], row.growth_code) == ((1, 4), "quota")
    assert row.growth == "would use 2 workers more (queue q): other Workloads wait in its queue"
    assert job_row(grown(2)).growth == ""
    broken = job_row(grown(2, **{f"{PREFIX}growth": "{"}))
    assert "growth is invalid" in str(broken.problems)


@pytest.mark.parametrize(("admitted", "workers"), [({"PS": 1, "Worker": 3}, 3), ({}, 2)])
def test_a_job_shrinks_to_what_is_admitted_under_the_profile_fixed_too(
    admitted: Mapping[str, int], workers: int
) -> None:
    view = view_of(grown(4), [], nodes={}, now=NOW, admitted=admitted)
    target = decide_fixed(view)
    assert target is not None
    assert (target.replicas, target.generation) == ({"PS": 1, "Worker": workers}, 2)
    assert decide_fixed(view_of(grown(2), [], nodes={}, now=NOW)) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kueue: {growth: workloads}", "profile fixed gives jobs no size"),
        ("profile: drf\nkueue: {growth: all}", "kueue.growth"),
        ("profile: drf\nkueue: {reclaim_after_s: 60}", "reclaim_after_s needs growth"),
        ("profile: drf\nkueue: {growth: workloads, pending: 0}", "kueue.pending"),
        ("profile: drf\nkueue: {hold: 3}", "hold_s"),
    ],
)
def test_settings_that_do_nothing_are_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_configuration(text)
