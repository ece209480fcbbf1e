"""The query API over HTTP, with an operator's memory in place of an operator."""

import asyncio
import pkgutil
import threading
import time
from collections.abc import Collection
from typing import Any

import pytest

from elastic_tfjob.api.words import REASON_CODES
from elastic_tfjob.controller.model.cluster import NodeLoan
from elastic_tfjob.controller.model.reports import CpuUse, Report
from elastic_tfjob.controller.model.settings import parse_configuration
from elastic_tfjob.controller.query.gate import Asker, NoGate, refuse_open_address
from elastic_tfjob.controller.query.rows import openapi
from elastic_tfjob.controller.query.rows.jobs import job_row
from elastic_tfjob.controller.query.rows.listing import QueryRefused
from elastic_tfjob.scheduling.plan import TeamShare
from harness.hostile_text import CLOSING_SCRIPT, MARKUP, TERMINAL_CONTROLS, TEXTS, named

from . import build
from .build import Held, job, running, waiting, world

JOBS = "/api/v1/jobs"


async def ask(client: Any, path: str, status: int = 200, **headers: str) -> Any:
    async with client.get(path, headers=headers) as response:
        answer = await response.json()
        assert response.status == status, answer
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        return answer


async def test_jobs_are_filtered_sorted_and_paged() -> None:
    async with world(running("b"), running("a"), waiting("c"), running("d", "other")).client() as client:
        answer = await ask(client, f"{JOBS}?namespace=ns&state=Running&sort=-name&limit=1")
        assert [each["name"] for each in answer["items"]] == ["b"]
        assert (answer["total"], answer["offset"], answer["limit"]) == (2, 0, 1)
        assert (await ask(client, JOBS))["total"] == 4


async def test_jobs_and_the_queue_are_filtered_by_the_code_of_their_reason() -> None:
    """Whatever the words are: a code that this operator does not know counts as none."""
    jobs = (
        waiting("a", why={"code": "short"}),
        waiting("b", why={"code": "no-nodes"}),
        waiting("c", why={"code": "of-tomorrow"}),
        running("d"),
    )
    async with world(*jobs).client() as client:
        for path in (JOBS, "/api/v1/queue", "/api/v1/forecasts"):
            answer = await ask(client, f"{path}?reason=short,no-nodes")
            assert [each["name"] for each in answer["items"]] == ["a", "b"]
        codes = {each["name"]: each["reason_code"] for each in (await ask(client, JOBS))["items"]}
        assert codes == {"a": "short", "b": "no-nodes", "c": None, "d": None}
        refused = (await ask(client, f"{JOBS}?reason=luck", 400))["error"]
        assert (refused["where"], refused["message"]) == ("reason", "unknown reason 'luck'")
    enum = openapi.document()["components"]["schemas"]["JobRow"]["properties"]["reason_code"]["enum"]
    assert enum == [*REASON_CODES, None]


async def test_a_job_comes_with_its_timeline_forecast_and_place() -> None:
    async with world(running(), waiting("late"), waiting("early", annotations={"max-workers": "3"})).client() as client:
        answer = await ask(client, f"{JOBS}/ns/j")
        assert answer["job"]["state"] == "Running"
        assert answer["timeline"][-1]["kind"] == "rescaled"
        assert answer["sizes"][-1]["replicas"] == build.GROWN
        assert (answer["position"], answer["forecast"]["source"]) == (None, "measured")
        assert (await ask(client, f"{JOBS}/ns/late"))["position"] == 2
        missing = await ask(client, f"{JOBS}/ns/none", 404)
        assert missing["error"]["message"] == "this namespace has no TFJob of this name"


async def test_the_queue_is_in_the_profiles_order_also_when_that_changes() -> None:
    found = world(
        waiting("late", annotations={"deadline": "3h"}, why="no room for 2 workers"),
        waiting("soon", annotations={"deadline": "1h"}),
        waiting("first", annotations={"deadline": "2h"}, runPolicy={}),
        running(),
    )
    async with found.client() as client:
        answer = await ask(client, "/api/v1/queue")
        assert [(each["position"], each["name"]) for each in answer["items"]] == [
            (1, "first"),
            (2, "late"),
            (3, "soon"),
        ]
        assert answer["items"][1]["reason"] == "no room for 2 workers"
        found.configuration = parse_configuration("profile: edf")
        answer = await ask(client, "/api/v1/queue?limit=2")
        assert ([each["name"] for each in answer["items"]], answer["total"]) == (["soon", "first"], 3)
        assert answer["profile"] == "edf"


async def test_a_change_of_a_job_is_seen_and_one_that_is_gone_is_not() -> None:
    found = world(running("a"), running("b"))
    async with found.client() as client:
        assert (await ask(client, JOBS))["total"] == 2
        found.jobs.entries = [job(waiting("a", version=8))]
        answer = await ask(client, JOBS)
        assert [(each["name"], each["state"]) for each in answer["items"]] == [("a", "Waiting")]


async def test_nodes_say_what_is_used_where_this_replica_asks_pods() -> None:
    found = world(running(), nodes=Held(build.node("n1")), pods=Held(build.pod("j-worker-0", "n1")))
    async with found.client() as client:
        (row,) = (await ask(client, "/api/v1/nodes"))["items"]
        assert (row["held"], row["lent"], row["used"]) == (1500, 500, None)
        found.reports = {("ns", "j"): {"j-worker-0": Report(at=0.0, received_at_s=0.0, cpu=CpuUse(use_cores=1.25))}}
    async with found.client() as client:
        (row,) = (await ask(client, "/api/v1/nodes"))["items"]
        assert row["used"] == 1250


async def test_nodes_say_their_pool_and_their_loan() -> None:
    since = "2026-01-02T03:04:05Z"
    lent = build.node("n2", pool="inference", loan=NodeLoan("recalled", "inference", since, "2 nodes wanted back"))
    async with world(nodes=Held(build.node("n1"), lent)).client() as client:
        plain, of_pool = (await ask(client, "/api/v1/nodes"))["items"]
    assert (plain["pool"], plain["loan"]) == ("", None)
    assert of_pool["pool"] == "inference"
    assert of_pool["loan"] == {
        "stage": "recalled",
        "pool": "inference",
        "since": since,
        "why": "2 nodes wanted back",
    }


@pytest.mark.parametrize("why", [CLOSING_SCRIPT, MARKUP, TERMINAL_CONTROLS, *TEXTS[1:]], ids=named)
async def test_a_hostile_reason_is_sent_as_data(why: str) -> None:
    async with world(waiting(why=why)).client() as client, client.get(JOBS) as response:
        assert response.content_type == "application/json"
        assert response.headers["Content-Security-Policy"] == "default-src 'none'"
        assert (await response.json())["items"][0]["reason"] == why


async def test_unknown_paths_and_methods_are_refused_in_json() -> None:
    async with world().client() as client:
        assert (await ask(client, f"{JOBS}?limit=9999", 400))["error"] == {
            "message": "invalid value '9999'",
            "where": "limit",
            "allowed": "a whole number from 1 to 200",
        }
        await ask(client, "/api/v2/jobs", 404)
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            async with client.request(method, JOBS) as response:
                assert (response.status, response.headers["Allow"]) == (405, "GET")
        host = await ask(client, JOBS, 403, Host="evil.example:8082")
        assert host["error"]["where"] == "Host"
        assert (await ask(client, "/api/v1/openapi.json"))["openapi"] == "3.1.0"


async def test_before_all_is_read_nothing_is_answered() -> None:
    async with world(missing="not yet read: tfjobs").client() as client, client.get(JOBS) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "1")


class _Slow(NoGate):
    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.waiting = 0

    async def namespaces(self, asker: Asker, among: Collection[str]) -> Collection[str] | None:
        self.waiting += 1
        await self.go_on.wait()
        return None


async def test_open_requests_are_bounded_and_counted_down() -> None:
    gate, found = _Slow(), world(running())
    found.configuration = parse_configuration("query: {max_open_requests: 2}")
    async with found.client(gate) as client:
        open_ = [asyncio.create_task(ask(client, JOBS)) for _ in range(2)]
        async with asyncio.timeout(60):
            while gate.waiting < 2:
                await asyncio.sleep(0.01)
        await ask(client, "/api/v1/nodes", 503)
        gate.go_on.set()
        await asyncio.gather(*open_)
        for _ in range(5):
            await ask(client, JOBS)


class _Some(NoGate):
    """Lets everybody see one namespace, and no nodes."""

    async def namespaces(self, asker: Asker, among: Collection[str]) -> Collection[str] | None:
        return {"mine"} & set(among)

    async def nodes(self, asker: Asker) -> None:
        raise QueryRefused(403, "no")


async def test_rows_of_other_namespaces_are_left_out_and_their_places_stay() -> None:
    found = world(running("a", "mine"), running("b", "abroad"), waiting("a1", "abroad"), waiting("b1", "mine"))
    async with found.client(_Some()) as client:
        assert [each["namespace"] for each in (await ask(client, JOBS))["items"]] == ["mine", "mine"]
        assert [each["name"] for each in (await ask(client, "/api/v1/forecasts"))["items"]] == ["a", "b1"]
        queue = await ask(client, "/api/v1/queue")
        assert ([(each["position"], each["name"]) for each in queue["items"]], queue["total"]) == ([(2, "b1")], 1)
        await ask(client, f"{JOBS}?namespace=abroad", 403)
        for name in ("b", "none"):  # whether it is there is not told either
            await ask(client, f"{JOBS}/abroad/{name}", 403)
        await ask(client, "/api/v1/nodes", 403)


async def test_teams_have_their_shares_and_only_those_who_may_list_their_jobs_see_them() -> None:
    found = world(running("a", "mine"), running("b", "abroad"))
    found.teams = {"mine": TeamShare(0.25, 0.5, 1, below=True), "abroad": TeamShare(0.5, 0.5, 0)}
    async with found.client() as client:
        answer = await ask(client, "/api/v1/teams?limit=1")
        assert [each["name"] for each in answer["items"]] == ["abroad"]
        assert answer["total"] == 2
    async with found.client(_Some()) as client:
        mine = {"name": "mine", "share": 0.25, "deserved": 0.5, "waiting": 1, "below": True}
        assert (await ask(client, "/api/v1/teams"))["items"] == [mine]
    found.configuration = parse_configuration(
        "{profile: elastic, profiles: {elastic: {lend: none, teams: {named: {us: {namespaces: [mine, abroad]}}}}}}"
    )
    found.teams = {"us": TeamShare(0.75, 1.0, 1)}
    async with found.client(_Some()) as client:
        assert (await ask(client, "/api/v1/teams"))["items"] == []


@pytest.mark.parametrize("address", ["127.0.0.1:8082", "[::1]:8082", "localhost:8082", "0"])
def test_without_a_gate_it_listens_on_loopback(address: str) -> None:
    refuse_open_address(address, "none")


@pytest.mark.parametrize("address", [":8082", "0.0.0.0:8082", "[::]:8082", "10.0.0.1:8082", "operator:8082"])
def test_without_a_gate_no_other_address_is_served(address: str) -> None:
    with pytest.raises(ValueError, match=r"does not authenticate users: use 127.0.0.1:8082 .* --query-auth=token"):
        refuse_open_address(address, "none")
    refuse_open_address(address, "token")


@pytest.mark.parametrize("address", ["", "x", "localhost", "127.0.0.1:http", "127.0.0.1:99999"])
def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="is not an address; allowed: HOST:PORT"):
        refuse_open_address(address, "token")


def test_the_document_names_each_route_and_refers_to_what_there_is() -> None:
    document = openapi.document()
    below = (openapi.PREFIX, openapi.STREAM)
    asked = {prefix + route.path for route in openapi.ROUTES for prefix in below}
    assert set(document["paths"]) == asked | {openapi.WHAT_IF}

    def references(part: Any) -> set[str]:
        if isinstance(part, dict):
            own = {part["$ref"].rpartition("/")[2]} if "$ref" in part else set[str]()
            return own.union(*map(references, part.values()))
        return set[str]().union(*map(references, part)) if isinstance(part, list) else set()

    assert references(document) | {"Error"} == set(document["components"]["schemas"])
    fields = document["components"]["schemas"]["JobRow"]["properties"]
    assert fields["step"] == {
        "type": ["integer", "null"],
        "description": "training steps done, as stored last",
    }


async def test_the_first_look_at_many_jobs_lets_others_have_their_turn() -> None:
    found = world(*(running(f"j{i}", version=i) for i in range(1000)))
    gaps: list[float] = []

    async def tick() -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0)
            gaps.append(time.perf_counter() - last)
            last = time.perf_counter()

    async with found.client() as client:
        ticking = asyncio.create_task(tick())
        answer = await ask(client, JOBS)
        ticking.cancel()
    assert answer["total"] == 1000
    assert len(gaps) > 20  # a look at a thousand jobs takes a tenth of a second at the least


@pytest.mark.parametrize(("path", "what"), [("/api/v1/jobs", "server.page"), ("/api/v1/queue", "server.queue_rows")])
async def test_rows_are_sorted_beside_the_event_loop(path: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 10,000 jobs that takes some 40 ms."""
    where, threads = f"elastic_tfjob.controller.query.{what}", []
    sort = pkgutil.resolve_name(where)

    def seen(*given: Any) -> Any:
        threads.append(threading.get_ident())
        return sort(*given)

    monkeypatch.setattr(where, seen)
    async with world(running(), waiting()).client() as client:
        assert (await ask(client, path))["total"]
    assert threads
    assert threading.get_ident() not in threads


async def test_a_job_that_no_row_can_be_made_of_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(seen: Any) -> Any:
        if seen.job.name == "bad":
            raise RuntimeError("bug")
        return job_row(seen)

    monkeypatch.setattr("elastic_tfjob.controller.query.server.job_row", read)
    async with world(running("bad"), running("good")).client() as client:
        for _ in range(2):
            assert [each["name"] for each in (await ask(client, JOBS))["items"]] == ["good"]
