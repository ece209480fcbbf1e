"""Carrying decisions out, against an API server that refuses some of it."""

import asyncio
import copy
from collections.abc import Mapping
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from elastic_tfjob.controller.job.decision import (
    AdoptService,
    Create,
    Decision,
    DeletePod,
    Event,
    ResizePod,
    SaveState,
    UpdatePodGroup,
)
from elastic_tfjob.controller.job.pods import render_pod
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.errors import Conflict, Invalid, NotFound
from elastic_tfjob.controller.kube.events import EventRecorder
from elastic_tfjob.controller.kube.executor import Executor
from elastic_tfjob.controller.kube.informer import Caches
from unit.build import job


class Api:
    """Answers all writes with what was written, but those whose path has a word in `refuses`."""

    def __init__(self, refuses: Mapping[str, Exception]) -> None:
        self.refuses = refuses
        self.asked: list[str] = []

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return await self._answer("POST", path, body)

    async def patch(self, path: str, body: dict[str, Any], *_: str) -> dict[str, Any]:
        return await self._answer("PATCH", path, body)

    async def get(self, path: str) -> dict[str, Any]:
        return await self._answer("GET", path, {"metadata": {"uid": "u"}})

    async def delete(self, path: str, **options: str) -> dict[str, Any]:
        return await self._answer("DELETE", path, {})

    async def _answer(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        asked = f"{method} {path.rpartition('namespaces/ns/')[2]}"
        self.asked.append(asked)
        await asyncio.sleep(0)
        for word, error in self.refuses.items():
            if word in asked:
                raise error
        return body


class Cache:
    """Takes in answers and knows nothing."""

    def seen(self, _: object) -> None: ...
    def written(self, _: object) -> None: ...
    def of_job(self, _: object) -> tuple[()]:
        return ()


class Events:
    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def record(self, _: object, event: Event) -> None:
        self.told.append((event.reason, event.message))


def carry_out(*actions: Any, refuses: Mapping[str, Exception] | None = None) -> tuple[Executor, Api, Events, Any]:
    """Executor, API and events after one decision, and what it raised."""
    api, events, cache = Api(refuses or {}), Events(), cast("Any", Cache())

    async def run() -> tuple[Executor, Exception | None]:
        executor = Executor(cast("ApiClient", api), Caches(cache, cache, cache, cache), cast("EventRecorder", events))
        try:
            await executor.carry_out(job(), Decision(actions=tuple(actions)))
        except Exception as error:
            return executor, error
        return executor, None

    executor, error = asyncio.run(run())
    return executor, api, events, error


@pytest.mark.parametrize("label", [None, "job-name", "replica-type", "replica-index", "operator-name"])
def test_a_name_that_another_replica_has_is_not_taken_for_the_answer_to_a_creation(label: str | None) -> None:
    """After "already exists" it is looked who that is: ours, if an answer got lost; but not if somebody has changed the
    labels of a pod of ours, which is then another one or none, and would never be seen under this job."""
    body = render_pod(job({"Worker": 2}), job({"Worker": 2}).spec(), "Worker", 1)
    there: dict[str, Any] = copy.deepcopy(body)
    if label is not None:
        there["metadata"]["labels"][f"training.kubeflow.org/{label}"] = "other"

    class There(Api):
        async def get(self, path: str) -> dict[str, Any]:
            return there

    exists = Conflict("POST", 409, "AlreadyExists", 'pods "j-worker-1" already exists')
    api, events, cache = There({"POST": exists}), Events(), cast("Any", Cache())
    executor = Executor(cast("ApiClient", api), Caches(cache, cache, cache), cast("EventRecorder", events))
    decision = Decision(actions=(Create("Pod", "j-worker-1", lambda: body),))
    if label is None:
        asyncio.run(executor.carry_out(job(), decision))
        assert events.told == [("SuccessfulCreatePod", "Created pod: j-worker-1")]
    else:
        with pytest.raises(Conflict):
            asyncio.run(executor.carry_out(job(), decision))
        assert events.told == [("FailedCreatePod", f"Error creating: {exists.message}")]


REFUSED = Invalid("PATCH", 422, "Invalid", "metadata.annotations: Too long: may not be more than 262144 bytes")


def test_a_state_that_is_refused() -> None:
    """Told, and raised for the next try to come later; what follows from the stored state is done all the same."""
    _, api, events, error = carry_out(
        SaveState({"a": "b"}), DeletePod("j-worker-1", "u"), refuses={"PATCH tfjobs": REFUSED}
    )
    assert error is REFUSED
    assert api.asked == ["PATCH tfjobs/j", "DELETE pods/j-worker-1"]
    assert [reason for reason, _ in events.told] == ["StateNotStored", "SuccessfulDeletePod"]


def test_a_pod_whose_mark_is_refused_is_deleted_without_one() -> None:
    refused = Invalid("PATCH", 422, "Invalid", "denied by a policy")
    _, api, _, error = carry_out(DeletePod("j-worker-1", "u", mark=True), refuses={"PATCH pods": refused})
    assert (error, api.asked) == (None, ["PATCH pods/j-worker-1", "DELETE pods/j-worker-1"])


def test_a_template_that_no_pod_can_be_made_from() -> None:
    """Told like a pod that the API server refuses; the others are created."""

    def broken() -> dict[str, Any]:
        raise TypeError("'int' object is not iterable")

    _, api, events, error = carry_out(Create("Pod", "j-a", broken), Create("Pod", "j-b", dict))
    assert isinstance(error, Invalid)
    assert api.asked == ["POST pods"]
    assert sorted(reason for reason, _ in events.told) == ["FailedCreatePod", "SuccessfulCreatePod"]


@pytest.mark.parametrize("refused", [False, True])
def test_a_group_is_there_before_its_pods(refused: bool) -> None:
    """scheduler-plugins binds a pod whose group it does not find as one that needs none."""
    forbidden = Invalid("POST", 403, "Forbidden", "podgroups is forbidden")
    _, api, _, error = carry_out(
        Create("Pod", "j-worker-0", dict),
        Create("Service", "j-worker-0", dict),
        Create("PodGroup", "j", dict),
        refuses={"podgroups": forbidden} if refused else {},
    )
    assert error is (forbidden if refused else None)
    assert api.asked == ["POST podgroups", *([] if refused else ["POST pods", "POST services"])]


def test_a_group_is_changed_before_pods_are_made() -> None:
    """Else some pods of a job that has grown would be bound as the whole gang of the smaller one."""
    _, api, _, error = carry_out(Create("Pod", "j-worker-3", dict), UpdatePodGroup("j", {"minMember": 4}))
    assert error is None
    assert api.asked == ["PATCH podgroups/j", "POST pods"]


@pytest.mark.parametrize(
    ("action", "wanted"),
    [
        (AdoptService("j-worker-0", "s"), {"uid": "s", "resourceVersion": "7"}),
        (UpdatePodGroup("j", {"minMember": 4}), {"uid": "g"}),
    ],
)
def test_a_change_is_refused_where_the_object_is_another_one_by_now(action: Any, wanted: dict[str, str]) -> None:
    """A Service that somebody else has adopted meanwhile would lose its owner."""
    bodies: list[dict[str, Any]] = []

    class Noting(Api):
        async def patch(self, path: str, body: dict[str, Any], *_: str) -> dict[str, Any]:
            bodies.append(body)
            return {}

    class Known(Cache):
        def of_job(self, _: object) -> Any:
            return (
                SimpleNamespace(name="j-worker-0", uid="s", version=7),
                SimpleNamespace(name="j", uid="g", version=9),
            )

    cache = cast("Any", Known())
    executor = Executor(
        cast("ApiClient", Noting({})),
        Caches(cache, cache, cache, cache),
        cast("EventRecorder", Events()),
        gang_scheduler="volcano",
    )
    asyncio.run(executor.carry_out(job(), Decision(actions=(action,))))
    assert {name: bodies[0]["metadata"].get(name) for name in wanted} == wanted


def test_bodies_are_rendered_one_at_a_time() -> None:
    """Between two of them, all else that waits has its turn; and no more are there than are being sent."""
    turns, rendered, alive, most = 0, [], 0, 0

    def render() -> dict[str, Any]:
        nonlocal alive, most
        alive += 1
        most = max(most, alive)
        rendered.append(turns)
        return {}

    async def run() -> None:
        nonlocal turns
        cache = cast("Any", Cache())

        class Counting(Api):
            async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
                nonlocal alive
                answer = await super().post(path, body)
                alive -= 1
                return answer

        executor = Executor(
            cast("ApiClient", Counting({})), Caches(cache, cache, cache), cast("EventRecorder", Events())
        )
        creations = tuple(Create("Pod", f"j-worker-{i}", render) for i in range(100))
        work = asyncio.create_task(executor.carry_out(job(), Decision(actions=creations)))
        while not work.done():
            turns += 1
            await asyncio.sleep(0)

    asyncio.run(run())
    assert len(rendered) == 100
    assert len(set(rendered)) == 100
    assert most <= 16


class TestResize:
    """A refusal is of one pod and one direction."""

    GROW = ResizePod("j-worker-0", "u0", 300, 300, "more")
    SHRINK = ResizePod("j-worker-1", "u1", 100, 100, "less")

    def test_a_refusal_does_not_keep_others(self) -> None:
        quota = Invalid("PATCH", 403, "Forbidden", "exceeded quota: cpu")
        executor, api, events, error = carry_out(self.GROW, self.SHRINK, refuses={"j-worker-0": quota})
        assert api.asked == ["PATCH pods/j-worker-0/resize", "PATCH pods/j-worker-1/resize"]
        assert isinstance(error, Invalid)
        assert set(executor.refused) == {("u0", "more")}
        assert events.told == [
            ("ResizeRefused", "j-worker-0: CPU increase rejected (retry in 60 s): exceeded quota: cpu")
        ]

    @pytest.mark.parametrize(("uid", "refused"), [("u", True), ("another", False)])
    def test_a_cluster_that_cannot(self, uid: str, refused: bool) -> None:
        """A pod that is gone is no refusal."""
        missing = NotFound("PATCH", 404, "NotFound", "the server could not find the requested resource")
        executor, *_ = carry_out(ResizePod("j-worker-0", uid, 300, 300), refuses={"/resize": missing})
        assert bool(executor.refused) == refused


def test_other_work_is_done_between_many_events() -> None:
    """Each takes a hundredth of a millisecond, and there may be many in one decision."""
    steps: list[int] = []

    async def run() -> None:
        events, cache = Events(), cast("Any", Cache())
        executor = Executor(cast("ApiClient", Api({})), Caches(cache, cache, cache), cast("EventRecorder", events))
        many = tuple(Event("Warning", "r", f"{i}") for i in range(100))
        carried = asyncio.create_task(executor.carry_out(job(), Decision(events=many)))
        while not carried.done():
            steps.append(len(events.told))
            await asyncio.sleep(0)

    asyncio.run(run())
    assert max(after - before for before, after in pairwise(steps)) == 1
