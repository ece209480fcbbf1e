"""What-if over HTTP: the real process answers, from an operator's memory in place of an operator."""

import asyncio
import os
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from elastic_tfjob.controller.model.cluster import KubeNode
from elastic_tfjob.controller.model.settings import parse_configuration
from elastic_tfjob.controller.query import server, what_if_process
from elastic_tfjob.controller.query.gate import Asker, NoGate
from elastic_tfjob.controller.query.rows.listing import BadQuery, QueryRefused
from elastic_tfjob.controller.query.rows.openapi import WhatIf
from elastic_tfjob.controller.query.rows.question import Question, tell
from elastic_tfjob.controller.query.rows.what_if import WhatIfRow
from elastic_tfjob.controller.query.what_if_process import MAX_BODY, WhatIfWorker

from .build import GROWN, Held, World, foreign, node, pod, running, tfjob, waiting, world

WHAT_IF = "/api/v1/what-if"
NOW = datetime(2026, 1, 2, 3, 18, 20, tzinfo=UTC)
ELASTIC = {"checkpoint-dir": "/c", "total-steps": "1000", "estimated-duration": "200s"}


def cluster(*more: dict[str, Any], **options: Any) -> World:
    """One job on one node of 6 CPU, which ends in at most 100 s and leaves no room."""
    job = running("old")
    pods = [
        pod(f"old-{kind}-{index}", "n1", of="old", cpu="1", kind=kind.lower(), index=index)
        for kind, count in GROWN.items()
        for index in range(count)
    ]
    pods = [replace(each, owner="ns-old") for each in pods]
    return world(job, *more, pods=Held(*pods), nodes=Held(roomy("n1")), **options)


def roomy(name: str) -> KubeNode:
    found = node(name, "6")
    return replace(found, allocatable=found.allocatable._replace(memory_bytes=64 << 30))


def submitted(name: str = "new", namespace: str = "ns", cpu: str = "1", **annotations: str) -> dict[str, Any]:
    raw = tfjob(name, namespace, annotations={**ELASTIC, **annotations}, cpu=cpu)
    return {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": raw["metadata"], "spec": raw["spec"]}


def _children() -> set[str]:
    """The processes that this one has begun and that are there still."""
    found = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {child for each in found for child in each.read_text().split()}


PLAIN = {"name": "new", "namespace": "a"}
"""Metadata of a job that is left to kube-scheduler."""


def told(found: World, body: Any, allowed: Collection[str] | None = None, *, nodes_shown: bool = True) -> WhatIf:
    """The answer, without a server and a process."""
    return tell(found.source().taken(NOW), Question.parse(body), 60, allowed=allowed, nodes_shown=nodes_shown)


def rows(answer: WhatIf) -> dict[str, WhatIfRow]:
    return {row.name: row for row in answer.items}


async def ask(client: Any, body: Any, status: int = 200) -> Any:
    async with client.post(WHAT_IF, json=body) as response:
        answer = await response.json()
        assert response.status == status, answer
        return answer


def test_a_new_job_is_told_when_it_starts_and_ends_and_whether_in_time() -> None:
    answer = told(cluster(), {"job": submitted(deadline="1h")})
    new, old = answer.items
    assert (new.name, new.state, new.ends_now, new.meets_then) == ("new", "New", None, True)
    assert old.ends_then is not None
    assert new.starts_then is not None
    assert new.starts_then >= old.ends_then
    assert (old.later_s, old.source, answer.changed) == (0.0, "measured", 0)


def test_a_deadline_that_is_too_soon_is_missed() -> None:
    assert rows(told(cluster(), {"job": submitted(deadline="2m")}))["new"].meets_then is False


def test_a_new_job_of_a_higher_priority_makes_others_later() -> None:
    urgent = submitted()
    for replica in urgent["spec"]["tfReplicaSpecs"].values():
        replica["template"] = {"spec": {**replica["template"]["spec"], "priorityClassName": "high"}}
    answer = told(cluster(waiting("w", annotations=ELASTIC), priorities={"high": 10}), {"job": urgent})
    later_s = rows(answer)["w"].later_s
    assert later_s is not None
    assert later_s > 100


def test_a_node_more_lets_a_job_start_at_once() -> None:
    answer = told(cluster(waiting("w", annotations=ELASTIC)), {"add_nodes": 1})
    row = rows(answer)["w"]
    assert (row.starts_now or "") > (row.starts_then or "")
    assert (row.later_s or 0) < 0
    assert (answer.nodes_added, answer.node) == (1, "6 CPU, 64 GiB")


@pytest.mark.parametrize(("daemon_cpu", "fits"), [("1", True), ("3", False)])
def test_an_added_node_has_the_daemons_of_the_node_that_it_is_like(daemon_cpu: str, fits: bool) -> None:
    daemon = replace(foreign("d", "n1", daemon_cpu), stays=True)
    beside = foreign("b", "n1", "5")  # so that it has to go to the added one
    found = world(waiting("w", annotations=ELASTIC), nodes=Held(roomy("n1")), foreign=Held(daemon, beside))
    assert (rows(told(found, {"add_nodes": 1}))["w"].starts_then is not None) == fits


def test_another_profile_decides_with_what_is_configured_for_it() -> None:
    found = cluster(waiting("w", annotations=ELASTIC), configuration=parse_configuration("profile: fifo"))
    answer = told(found, {"profile": "kips"})
    assert (answer.profile_now, answer.profile_then) == ("fifo", "kips")


def test_a_job_that_never_told_its_speed_is_said_to_be_unknown() -> None:
    found = world(waiting("w", annotations={"max-workers": "3", "checkpoint-dir": "/c"}))
    answer = told(found, {"add_nodes": 1, "node_cpu": "8", "node_memory": "64Gi"})
    row = rows(answer)["w"]
    assert (row.ends_then, row.source) == (None, None)
    assert row.note.startswith("its remaining work is unknown; it needs the annotation total-steps")
    assert answer.notes[0].startswith("the end of 1 TFJobs is unknown")


def test_a_job_that_never_fits_is_said_never_to_be_given_what_it_needs() -> None:
    row = rows(told(cluster(), {"job": submitted(cpu="9", deadline="1h")}))["new"]
    assert (row.starts_then, row.meets_then) == (None, False)
    assert row.note == "it does not get the resources that it needs on the present nodes"


def test_jobs_of_others_are_told_in_sum_only() -> None:
    found = cluster(waiting("secret", "theirs", annotations=ELASTIC))
    answer = told(found, {"add_nodes": 1}, {"ns"}, nodes_shown=False)
    assert list(rows(answer)) == ["old"]
    assert (answer.others.jobs, answer.others.earlier, answer.node) == (1, 1, None)
    assert "secret" not in str(answer)


def test_annotations_of_a_new_job_that_are_wrong_are_told() -> None:
    assert "max-workers" in told(cluster(), {"job": submitted(**{"max-workers": "many"})}).problems[0]


@pytest.mark.parametrize(
    ("body", "status", "where"),
    [
        ({"profile": "best"}, 400, "profile"),
        ({"profile": "aryl"}, 400, "profile"),
        ({"job": {**submitted(), "spec": {"tfReplicaSpecs": {"Worker": {"replicas": -1}}}}}, 400, "job"),
        ({"job": {**submitted(), "spec": {"tfReplicaSpecs": {"Worker": {"template": {"spec": [1]}}}}}}, 400, "job"),
        ({"job": submitted("old")}, 409, "job.metadata.name"),
        ({"job": {**submitted(), "metadata": PLAIN, "spec": {"tfReplicaSpecs": {"Worker": None}}}}, 400, "job"),
        ({"job": submitted(placement="none")}, 422, "job"),
        ({"job": submitted() | {"spec": {**submitted()["spec"], "runPolicy": {"suspend": True}}}}, 422, "job"),
    ],
)
def test_a_question_without_an_answer_is_refused_with_a_message(body: Any, status: int, where: str) -> None:
    with pytest.raises(QueryRefused) as refused:
        told(cluster(), body)
    assert (refused.value.status, refused.value.where) == (status, where)


def test_nodes_that_are_lent_are_not_foreseen() -> None:
    pools = "profile: kips\npools: {inference: {namespaces: [serving]}}\nprofiles: {kips: {lend: offered}}"
    with pytest.raises(QueryRefused, match="lent between pools"):
        told(cluster(configuration=parse_configuration(pools)), {"add_nodes": 1})


class OnlyNs(NoGate):
    """May list the TFJobs of one namespace, and no nodes."""

    async def namespaces(self, asker: Asker, among: Collection[str]) -> Collection[str] | None:
        return {"ns"} & set(among)

    async def nodes(self, asker: Asker) -> None:
        raise QueryRefused(403, "no nodes")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time enough for a process on a machine that runs other tests, too."""
    monkeypatch.setattr(server, "_TIMEOUT_S", 600.0)
    monkeypatch.setattr(what_if_process, "WALL_S", 500.0)


@pytest.mark.usefixtures("patient")
async def test_a_process_answers_over_http_and_refuses_as_well() -> None:
    found = cluster(waiting("secret", "theirs", annotations=ELASTIC))
    async with found.client(OnlyNs()) as client:
        answer = await ask(client, {"add_nodes": 1})
        assert [each["name"] for each in answer["items"]] == ["old"]
        assert (answer["others"]["jobs"], answer["node"]) == (1, None)
        assert (await ask(client, {"profile": "best"}, 400))["error"]["where"] == "profile"
        refused = await ask(client, {"job": submitted(namespace="theirs")}, 403)
        assert "may not list the TFJobs of namespace theirs" in refused["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status", "where"),
    [
        ([], 400, "body"),
        ({}, 400, "body"),
        ({"add_nodes": 1001}, 400, "body"),
        ({"add_nodes": 1, "node_cpu": "many", "node_memory": "1Gi"}, 400, "node_cpu"),
        ({"job": {"kind": "Job"}}, 400, "job"),
        ({"job": submitted("A" * 300)}, 400, "name"),
        ({"what": 1}, 400, "what"),
    ],
)
async def test_an_invalid_question_is_refused_before_anything_is_computed(body: Any, status: int, where: str) -> None:
    async with cluster().client() as client:
        error = (await ask(client, body, status))["error"]
        assert error["where"] == where
        assert error["message"]


async def test_bodies_are_bounded_and_no_page_of_another_origin_can_send_one() -> None:
    async with cluster().client() as client:
        async with client.post(WHAT_IF, data="{}", headers={"Content-Type": "text/plain"}) as response:
            assert response.status == 415
        deep = "[" * 100_000
        async with client.post(WHAT_IF, data=deep, headers={"Content-Type": "application/json"}) as response:
            assert response.status == 400
        large = '"' + "x" * MAX_BODY + '"'
        async with client.post(WHAT_IF, data=large, headers={"Content-Type": "application/json"}) as response:
            assert response.status == 413


async def test_a_forecast_that_takes_too_long_is_ended_with_its_process() -> None:
    taken = cluster().source().taken(NOW)
    others = _children()  # a control plane that other tests of this worker share
    with pytest.raises(QueryRefused, match="no forecast within"):
        await WhatIfWorker(wall_s=0.05).answer(Asker("a"), taken, Question(add_nodes=1), None, nodes_shown=True)
    assert _children() <= others


async def test_users_take_turns_and_nobody_waits_without_end() -> None:
    taken = cluster().source().taken(NOW)
    answering = WhatIfWorker(wall_s=0.05)

    async def one() -> int:
        try:
            await answering.answer(Asker("a"), taken, Question(add_nodes=1), None, nodes_shown=True)
        except QueryRefused as error:
            return error.status
        return 200

    tasks = [asyncio.create_task(one()) for _ in range(12)]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert {task.result() for task in done} <= {429, 503}
    assert sum(task.done() and task.result() == 429 for task in tasks) >= 3
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_annotations_of_the_operator_are_removed_from_a_submitted_job() -> None:
    asked = submitted()
    asked["metadata"]["annotations"] |= {"elastic.kubeflow.org/target": "x", "elastic.kubeflow.org/record": "y"}
    found = Question.parse({"job": asked}).job
    assert found is not None
    assert set(found["metadata"]["annotations"]) == {f"elastic.kubeflow.org/{name}" for name in ELASTIC}


def test_an_annotation_that_is_no_text_is_refused() -> None:
    asked = submitted()
    asked["metadata"]["annotations"]["elastic.kubeflow.org/max-workers"] = 4
    with pytest.raises(BadQuery, match="put numbers in quotes"):
        Question.parse({"job": asked})
