"""Room that was promised to pods that never come: for how long it is kept, and who gets the next."""

import asyncio
import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest

from elastic_tfjob.controller.job.decision import Create, Decision
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.errors import ApiError, Conflict, Invalid, Unavailable
from elastic_tfjob.controller.kube.events import EventRecorder
from elastic_tfjob.controller.kube.executor import Executor, RefusedPods
from elastic_tfjob.controller.kube.informer import Caches
from elastic_tfjob.controller.model.job import Key, TFJob
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.planning.job_view import JobView, view_of
from elastic_tfjob.controller.planning.round import ObservedJob, ReservationFailures, assemble, describe_all
from elastic_tfjob.controller.planning.targets import decide
from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.profiles import PROFILES, build, parse_profile

from .build import NOW, job, pod
from .test_executor import Api, Cache, Events
from .test_snapshot import NODES, PREFIX, bound, elastic_job, look, state, target

KEY = "ns", "j"
PROMISED = elastic_job(target=target(), state=state())
GATED = replace(pod("worker", 0, "Pending"), gated=True)


def kept(pods: tuple[Pod, ...] = (), **fields: Any) -> int:
    """For how long, of the seconds that are looked at, room is kept for pods that do not come."""
    before, lasts = None, 0
    for after_s in (0, 19, 20, 37, 38, 74, 75, 149, 150, 299, 300, 400):
        before = look(PROMISED, pods, now=NOW + timedelta(seconds=after_s), before=before, **fields)
        if before.job is not None:
            lasts = after_s
    return lasts


def test_capacity_is_not_reserved_for_a_pod_that_cannot_start() -> None:
    assert kept() == 299
    assert kept((GATED,)) == 19
    assert kept(barred=True) == 19
    assert kept((bound("ps", 0), GATED)) == 19
    assert kept((replace(GATED, owner="another"),)) == 299


@pytest.mark.parametrize(("failed", "lasts"), [(0, 299), (1, 149), (2, 74), (3, 37), (4, 19), (99, 19)])
def test_each_failure_halves_the_next_promise(failed: int, lasts: int) -> None:
    assert kept(failed=failed) == lasts


@pytest.mark.parametrize(("node", "lasts"), [("gone", 19), ("n1", 400)])
def test_room_is_not_kept_for_a_job_that_is_made_anew_when_its_old_pods_are_lost(node: str, lasts: int) -> None:
    """Nobody knows when its old chief is gone, and so when it comes. On a node that answers that takes no time."""
    coming = {"generation": 1, "slot": 0, "mode": "recreate", "replicas": {"PS": 1, "Worker": 2}}
    coming |= {"before": {"PS": 1, "Worker": 1}, "nodes": {"PS": ["n1"], "Worker": ["n1", "n2"]}}
    recreated = elastic_job(target=target(1, 2), state=state(phase="Recreating", next=coming))
    before, found = None, 0
    for after_s in (0, 19, 20, 300, 400):
        before = look(recreated, (bound("worker", 0, node),), now=NOW + timedelta(seconds=after_s), before=before)
        found = after_s if before.job is not None else found
    assert found == lasts


def test_a_gate_is_read_of_the_pod() -> None:
    assert pod("worker", 0, spec={"schedulingGates": [{"name": "x/y"}]}).gated
    assert not pod("worker", 0, spec={"schedulingGates": []}).gated


def test_other_words_for_what_nobody_moved_into_are_no_new_promise() -> None:
    before = look(PROMISED)
    edited = elastic_job(target=target(1, workers=2), state=state(1, workers=2))
    again = look(edited, now=NOW + timedelta(seconds=290), before=before)
    assert again.job is not None
    assert look(edited, now=NOW + timedelta(seconds=300), before=again).job is None
    came = look(PROMISED, (bound("ps", 0),), now=NOW + timedelta(seconds=1), before=before)
    grown = look(edited, (bound("ps", 0),), now=NOW + timedelta(seconds=290), before=came)
    assert grown.pending_since_s == NOW.timestamp() + 290


# Failures by namespace


def counted(*looks: JobView | None) -> int:
    failed, before = ReservationFailures(), None
    for found in looks:
        failed.follow(KEY, before, found, 0.0)
        before = found
    return failed.counts(0.0).get("ns", 0)


def test_a_reservation_fails_when_it_runs_out_or_its_job_is_deleted() -> None:
    open_ = look(PROMISED)
    over = look(PROMISED, now=NOW + timedelta(seconds=300), before=open_)
    suspended = look(elastic_job(target=target(), state=state()), (bound("ps", 0), bound("worker", 0)))
    gone = JobView(replace(PROMISED, deleting=True))
    other = look(replace(PROMISED, uid="another"))
    assert over.job is None
    assert counted(open_, over) == 1
    assert counted(open_, over, over, gone, None) == 1, "once"
    assert counted(open_, None) == 1, "deleted before it was over"
    assert counted(open_, gone, None) == 1
    assert counted(open_, other) == 1, "the same name anew"
    assert counted(open_, suspended, None) == 0, "its pods came"
    assert counted(look(elastic_job()), None) == 0, "nothing was promised"
    refused = look(PROMISED, rejected_nodes={("ps", "n1"): "no", ("worker", "n1"): "no"})
    assert counted(open_, refused, None) == 0, "kube-scheduler refused the node"
    done = replace(PROMISED, raw_status=json.dumps(SUCCEEDED).encode())
    assert counted(open_, look(done), None) == 0, "it was faster than the looks"


SUCCEEDED = {"conditions": [{"type": "Succeeded", "status": "True", "reason": "r", "message": "m"}]}


def test_failures_are_forgotten() -> None:
    failed = ReservationFailures()
    over = replace(look(PROMISED), job=None)
    for at_s in (0.0, 100.0):
        failed.follow(KEY, None, over, at_s)
    assert failed.changed([KEY, ("others", "j")], 100.0) == {KEY}
    assert failed.changed([KEY], 599.0) == set()
    assert failed.counts(599.0) == {"ns": 2}
    assert failed.changed([KEY], 600.0) == {KEY}
    assert failed.counts(700.0) == {}
    for _ in range(1000):
        failed.follow(KEY, None, over, 800.0)
    assert failed.counts(800.0) == {"ns": 8}
    failed.clear()
    assert failed.counts(800.0) == {}


# Whole rounds


def tenant(namespace: str, name: str, created: str, own: Mapping[str, str] | None = None) -> TFJob:
    asks = {"containers": [{"name": "tensorflow", "image": "i", "resources": {"requests": {"cpu": "3"}}}]}
    said = {PREFIX + "placement": "auto", **(own or {})}
    made = job({"Worker": {"replicas": 2, "template": {"spec": asks}}}, annotations=said)
    return replace(made, namespace=namespace, name=name, uid=name, created=created)


def described(
    seen: Mapping[Key, ObservedJob], at_s: int, failed: ReservationFailures, barred: Collection[str]
) -> dict[Key, JobView]:
    now, counts = NOW + timedelta(seconds=at_s), failed.counts(at_s)
    made = describe_all(seen, NODES, now, False, {}, cordoned={}, failed=counts, barred=barred)
    return {key: each.found for key, each in made.items()}


def test_a_pod_made_by_hand_makes_no_job_that_waits_one_that_runs() -> None:
    """It has the job's labels and owner, and is of no class: a quota may refuse those that are."""
    waits = {"generation": 0, "replicas": {}, "reason": "no room", "declared": {"Worker": 2}}
    told = {"phase": "Waiting", "generation": 0, "replicas": {}}
    own = {PREFIX + "target": json.dumps(waits), PREFIX + "state": json.dumps(told)}
    made = tenant("evil", "e", "2026-01-02T03:00:00Z", own)
    by_hand = pod("worker", 0, owner="e", spec={"nodeName": next(iter(NODES)), "containers": [{"name": "c"}]})
    for failed, least in ((1, True), (0, False)):
        for pods in ((), (by_hand,)):
            found = view_of(made, pods, nodes=NODES, now=NOW, reports={}, failed=failed).job
            assert found is not None
            assert (found.spec.priority < -(10**9)) is least


@pytest.mark.parametrize("profile", [name for name in PROFILES if name != "fixed"])
@pytest.mark.parametrize("barred", [True, False])
def test_the_same_job_under_other_names_keeps_nobody_out(profile: str, barred: bool) -> None:
    """It is before the good one whatever the profile goes by, and never has a pod: it is deleted and made anew before
    its promise is over."""
    settings = {"lend": "none"} if profile == "aryl" else {}
    built = replace(build(profile, parse_profile(profile, settings)), repack=False)
    failed, before = ReservationFailures(), dict[Key, JobView]()
    good, number = tenant("good", "good", "2026-01-02T03:03:00Z"), 0
    evil = tenant("evil", "e0", "2026-01-02T03:00:00Z")
    for at_s in range(0, 900, 15):
        seen = {each.key: ObservedJob(each, (), {}, before.get(each.key), {}) for each in (evil, good)}
        for key in before.keys() - seen.keys():
            failed.follow(key, before[key], None, at_s)

        now = described(seen, at_s, failed, {evil.uid} if barred else ())
        for key, found in now.items():
            failed.follow(key, before.get(key), found, at_s)
        if failed.changed(now, at_s):
            now = described(seen, at_s, failed, {evil.uid} if barred else ())
        before = now
        snapshot = assemble(now.values(), NODES, [], NOW.timestamp() + at_s)
        decided = {"/".join(key): found for key, found in now.items() if found.job is not None}
        made = decide(schedule(snapshot, built), decided)
        if (honest := made.get("good/good")) is not None and honest.replicas:
            break
        if (promise := made.get(f"evil/{evil.name}")) is not None and promise.replicas:
            told = {"phase": "Stable", "generation": promise.generation, "replicas": dict(promise.replicas)}
            own = {PREFIX + "target": promise.to_json(), PREFIX + "state": json.dumps(told)}
            evil = tenant("evil", evil.name, evil.created, own)
        if at_s % 300 == 285 and not barred:
            number += 1
            evil = tenant("evil", f"e{number}", "2026-01-02T03:00:00Z")
    assert at_s <= (45 if barred else 300)


# Which pods cannot be made

QUOTA = Invalid("POST", 403, "Forbidden", 'pods "j-worker-0" is forbidden: exceeded quota: pods')


@pytest.mark.parametrize(
    ("error", "barred"),
    [
        (QUOTA, True),
        (Conflict("POST", 409, "AlreadyExists", "there is one of somebody else"), True),
        (Unavailable("POST", 503, "", "away"), False),
    ],
)
def test_a_pod_that_is_refused_bars_its_job_until_it_is_made(error: ApiError, barred: bool) -> None:
    api, cache = Api({"pods": error}), cast("Any", Cache())
    executor = Executor(cast("ApiClient", api), Caches(cache, cache, cache), cast("EventRecorder", Events()))
    body = {"metadata": {"name": "j-worker-0", "labels": {"a": "b"}}}
    create = Decision(actions=(Create("Pod", "j-worker-0", lambda: body),))
    with pytest.raises(type(error)):
        asyncio.run(executor.carry_out(job(), create))
    assert executor.refused_pods.jobs == ({job().uid} if barred else set())
    api.refuses = {}
    asyncio.run(executor.carry_out(job(), create))
    assert executor.refused_pods.jobs == set()


def test_a_refused_pod_is_forgotten_after_a_while() -> None:
    now = [0.0]
    refused = RefusedPods(lambda: now[0])
    refused.refused("u", "a", "exceeded quota")
    now[0] = 299.0
    assert refused.jobs == {"u"}
    now[0] = 300.0
    assert refused.jobs == set()


def test_refused_pods_of_deleted_jobs_are_forgotten() -> None:
    """Jobs come and go, and each is refused 2,000 pods."""
    now = [0.0]
    refused = RefusedPods(lambda: now[0])
    for number in range(1000):
        now[0] = 10.0 * number
        refused.refused(f"u{number}", "a", "exceeded quota")
    assert len(refused._at) <= 61
