"""Who asks, and what they may see, with a function in place of the API server."""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

import pytest
from multidict import CIMultiDict

from elastic_tfjob.controller.kube.errors import ApiError
from elastic_tfjob.controller.model.settings import QueryLimits
from elastic_tfjob.controller.query import gate as gate_module
from elastic_tfjob.controller.query.gate import Asker, HeaderGate, Remembered, TokenGate
from elastic_tfjob.controller.query.rows.listing import QueryRefused

from .build import bearer, running, world


class Server:
    """Takes tokens `of-NAME`; NAME may list the TFJobs of the namespaces in `rights` (an empty one: of all)."""

    def __init__(self, **rights: Collection[str]) -> None:
        self.rights = rights
        self.asked: list[str] = []
        self.status = 0

    async def once(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, timeout_s: float = 5.0
    ) -> dict[str, Any]:
        assert method == "POST"
        assert body is not None
        spec = body["spec"]
        if self.status:
            raise ApiError(path, self.status, "Reason", "words")
        if body["kind"] == "TokenReview":
            self.asked.append(spec["token"])
            known = spec["token"].startswith("of-")
            user = {"username": spec["token"].removeprefix("of-"), "groups": ["g"], "extra": {"k": ["v"]}}
            return {"status": {"authenticated": known, **({"user": user} if known else {})}}
        asked = spec["resourceAttributes"]
        self.asked.append(f"{spec['user']} {asked['resource']} {asked['namespace']}".strip())
        return {"status": {"allowed": asked["namespace"] in self.rights.get(spec["user"], ())}}


def gate(server: Server, **limits: Any) -> TokenGate:
    return TokenGate(server, lambda: QueryLimits(**limits))


async def test_a_user_with_rights_in_one_namespace_gets_its_rows_and_the_reviews_are_cached() -> None:
    server = Server(ann=["mine"], admin=[""])
    found = world(running("a", "mine"), running("b", "theirs"))
    async with found.client(gate(server)) as client:

        async def names(token: str) -> list[str]:
            async with client.get("/api/v1/jobs", headers=bearer(token)) as response:
                return [each["name"] for each in (await response.json())["items"]]

        for _ in range(3):
            assert await names("of-ann") == ["a"]
        assert server.asked == ["of-ann", "ann tfjobs", "ann tfjobs mine", "ann tfjobs theirs"]
        assert await names("of-admin") == ["a", "b"]
        assert await names("of-nobody") == []


async def test_a_token_gets_past_a_proxy_that_keeps_authorization_to_itself() -> None:
    found, own = gate(Server()), gate_module.TOKEN_HEADER
    assert (await found.asker({own: "of-ann"}, "peer")).user == "ann"
    assert (await found.asker({own: "of-ann", **bearer("of-bob")}, "peer")).user == "bob"
    for headers in ({own: ""}, {own: "wrong"}, {own: "x" * 9000}, {own: "of-ann", "Authorization": "Basic eA=="}):
        with pytest.raises(QueryRefused) as refused:
            await found.asker(headers, "peer")
        assert refused.value.status == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Basic dXNlcjpwdw=="}, 401),
        ({"Authorization": "Bearer"}, 401),
        (bearer("wrong"), 401),
        (bearer("x" * 8193), 401),
        (bearer("wörter"), 401),
        (bearer("a\x00b"), 401),
    ],
)
async def test_an_unknown_user_is_asked_for_a_token(headers: dict[str, str], status: int) -> None:
    with pytest.raises(QueryRefused) as refused:
        await gate(Server()).asker(headers, "peer")
    assert (refused.value.status, refused.value.where) == (status, "Authorization")


async def test_a_right_that_is_taken_away_holds_for_as_long_as_is_said() -> None:
    server = Server(ann=["mine"])
    for allow_s, expected in ((3600.0, {"mine"}), (0.0, set[str]())):
        server.rights = {"ann": ["mine"]}
        found = gate(server, allow_cache_s=allow_s)
        assert await found.namespaces(Asker("ann"), ["mine"]) == {"mine"}
        server.rights = {}
        assert await found.namespaces(Asker("ann"), ["mine"]) == expected


async def test_nodes_are_for_who_may_list_them() -> None:
    found = gate(Server(admin=[""]))
    await found.nodes(Asker("admin"))
    with pytest.raises(QueryRefused, match="you may not list nodes"):
        await found.nodes(Asker("ann"))


async def test_a_question_about_too_many_namespaces_has_to_name_one() -> None:
    found, many = gate(Server(ann=["n1"])), [f"n{i}" for i in range(257)]
    with pytest.raises(QueryRefused) as refused:
        await found.namespaces(Asker("ann"), many)
    assert (refused.value.status, refused.value.where) == (400, "namespace")
    assert await found.namespaces(Asker("ann"), ["n1"]) == {"n1"}
    assert await gate(Server(admin=[""])).namespaces(Asker("admin"), many) is None


@pytest.mark.parametrize(("status", "said"), [(403, "components/query-api"), (500, "does not answer"), (0, "")])
async def test_without_the_api_server_nobody_is_let_in(status: int, said: str) -> None:
    server = Server()
    server.status = status
    if status:
        with pytest.raises(QueryRefused, match=said) as refused:
            await gate(server).asker(bearer("of-ann"), "peer")
        assert refused.value.status == 503
    else:
        assert (await gate(server).asker(bearer("of-ann"), "peer")).extra == {"k": ("v",)}


async def test_answers_are_shared_bounded_and_expire() -> None:
    now, asked = 0.0, 0
    memory: Remembered[int, int] = Remembered(3, lambda answer: 60.0 if answer else 5.0, clock=lambda: now)

    async def ask() -> int:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        return 1

    assert await asyncio.gather(*(memory.get(1, ask) for _ in range(5))) == [1] * 5
    assert asked == 1
    for question in range(2, 10):
        await memory.get(question, ask)
    assert len(memory) == 3
    before = asked
    await memory.get(9, ask)
    assert asked == before
    now = 60.0
    await memory.get(9, ask)
    assert asked == before + 1


async def test_an_error_is_not_remembered_and_who_hangs_up_stops_nobody() -> None:
    memory: Remembered[str, int] = Remembered(3, lambda _: 60.0)
    go_on = asyncio.Event()

    async def fail() -> int:
        raise ValueError("once")

    async def slow() -> int:
        await go_on.wait()
        return 2

    with pytest.raises(ValueError, match="once"):
        await memory.get("q", fail)
    first, second = (asyncio.create_task(memory.get("q", slow)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    go_on.set()
    assert await second == 2


@pytest.mark.parametrize("user", ["", "system:admin", "x" * 254, "a\nb"])
async def test_a_header_without_a_persons_name_is_refused(user: str) -> None:
    found = HeaderGate(Server(), QueryLimits, "kubeflow-userid")
    with pytest.raises(QueryRefused):
        await found.asker({"kubeflow-userid": user}, "peer")


async def test_a_header_names_the_user() -> None:
    found = HeaderGate(Server(**{"ann@example.org": ["mine"]}), QueryLimits, "kubeflow-userid")
    asker = await found.asker({"kubeflow-userid": "ann@example.org"}, "peer")
    assert await found.namespaces(asker, ["mine", "theirs"]) == {"mine"}


async def test_a_header_that_is_there_twice_is_nobodys() -> None:
    """A proxy that adds it, and leaves what the client sent, would let anybody be anybody."""
    found = HeaderGate(Server(), QueryLimits, "kubeflow-userid")
    headers = CIMultiDict([("kubeflow-userid", "admin"), ("Kubeflow-Userid", "ann")])
    with pytest.raises(QueryRefused, match="twice"):
        await found.asker(headers, "peer")


async def test_invented_names_evict_no_cached_right() -> None:
    memory: Remembered[int, bool] = Remembered(3, lambda _: 60.0)
    asked = 0

    async def answer(yes: bool) -> bool:
        nonlocal asked
        asked += 1
        return yes

    await memory.get(0, lambda: answer(True))
    for question in range(1, 100):
        await memory.get(question, lambda: answer(False))
    assert len(memory) == 4
    before = asked
    assert await memory.get(0, lambda: answer(False))
    assert asked == before


async def test_a_yes_that_becomes_a_no_is_one() -> None:
    now = 0.0
    memory: Remembered[str, bool] = Remembered(3, lambda _: 1.0, clock=lambda: now)

    async def answer(yes: bool) -> bool:
        return yes

    for yes in (True, False, True):
        now += 2.0
        assert await memory.get("q", lambda yes=yes: answer(yes)) is yes  # type: ignore[misc]
        assert memory.last("q") is (True if yes else None)
        assert len(memory) == 1
