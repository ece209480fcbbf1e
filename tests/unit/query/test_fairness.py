"""What one asker can take from others, over HTTP, with a function in place of the API server."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from yarl import URL

from elastic_tfjob.controller.model.settings import QueryLimits, parse_configuration
from elastic_tfjob.controller.query.gate import Asker, Room, TokenGate, Turns
from elastic_tfjob.controller.query.rows.listing import QueryRefused
from elastic_tfjob.controller.query.server import QueryServer

from .build import World, bearer, running, world

JOBS = "/api/v1/jobs"
SOON_S = 2.0
"""Others wait for no more questions than the API server is asked in this time."""


class ApiServer:
    """Takes tokens `of-USER` and `of-USER~ID`, whose askers differ in `extra`, as those of a ServiceAccount do.
    Everybody may list the TFJobs of `mine`. What is asked about a user in `held` waits for the event."""

    def __init__(self) -> None:
        self.tokens = 0
        self.reviews = 0
        self.questions = list[tuple[str, str]]()
        """Kind and user, in the order in which they came; ("came", user): a request came to the gate."""
        self.held: dict[str, asyncio.Event] = {}

    async def once(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, timeout_s: float = 5.0
    ) -> dict[str, Any]:
        assert body is not None
        spec = body["spec"]
        if body["kind"] == "TokenReview":
            self.tokens += 1
            user, _, number = spec["token"].removeprefix("of-").partition("~")
            self.questions.append(("token", user))
            if not spec["token"].startswith("of-"):
                return {"status": {"authenticated": False}}
            return {"status": {"authenticated": True, "user": {"username": user, "extra": {"id": [number]}}}}
        self.reviews += 1
        self.questions.append(("access", spec["user"]))
        if spec["user"] in self.held:
            await self.held[spec["user"]].wait()
        return {"status": {"allowed": spec["resourceAttributes"]["namespace"] == "mine"}}


class Gate(TokenGate):
    """Notes when a token comes, before anything is asked about it."""

    def __init__(self, api: ApiServer, limits: Callable[[], QueryLimits]) -> None:
        super().__init__(api, limits)
        self._questions = api.questions

    async def asker(self, headers: Mapping[str, str], peer: str) -> Asker:
        self._questions.append(("came", headers.get("Authorization", "").removeprefix("Bearer of-")))
        return await super().asker(headers, peer)


class Asked:
    """A query server on this machine. Clients may come from any address of 127.0.0.0/8."""

    def __init__(self, api: ApiServer, root: URL, stack: AsyncExitStack) -> None:
        self.api = api
        self.root = root
        self._stack = stack

    async def at(self, address: str = "127.0.0.1") -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=0, local_addr=(address, 0))
        return await self._stack.enter_async_context(aiohttp.ClientSession(self.root, connector=connector))


@asynccontextmanager
async def serving(found: World | None = None, **limits: Any) -> AsyncIterator[Asked]:
    api, found = ApiServer(), found or world(running("a", "mine"))
    settings = QueryLimits(**limits)
    found.configuration = parse_configuration(f"query: {settings.model_dump()}")
    app = QueryServer(found.source(), Gate(api, lambda: settings)).application()
    async with TestServer(app) as server, AsyncExitStack() as stack:
        yield Asked(api, server.make_url("/"), stack)


async def status(client: aiohttp.ClientSession, token: str, path: str = JOBS) -> int:
    async with client.get(path, headers=bearer(token)) as response:
        await response.read()
        return response.status


@asynccontextmanager
async def meanwhile(*asking: Any) -> AsyncIterator[None]:
    """Endless tasks, while the context is open."""
    tasks = [asyncio.create_task(each) for each in asking]
    await asyncio.sleep(0.3)
    try:
        yield
    finally:
        for task in tasks:
            assert not task.done(), task
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_invented_namespaces_ask_the_api_server_no_more_than_is_said() -> None:
    async with serving(max_access_reviews_per_s=10) as asked:
        client, begun = await asked.at(), time.monotonic()

        async def invent(part: int) -> None:
            for i in range(1_000_000):
                statuses.add(await status(client, "of-flood", f"{JOBS}?namespace=n{part}-{i}"))

        statuses = set[int]()
        async with meanwhile(*map(invent, range(50))):
            async with asyncio.timeout(60):
                while asked.api.reviews < 3 * 10 or len(statuses) < 2:
                    await asyncio.sleep(0.05)
            assert asked.api.reviews <= 2 * 10 + 10 * (time.monotonic() - begun) + 1
        assert statuses == {403, 429}


async def test_a_flood_of_invented_namespaces_starves_nobody_else() -> None:
    """Also where each request has a token of its own, which the API server takes, of one ServiceAccount. It is counted,
    not timed: how many of the flood's questions go before that about somebody else."""
    async with serving(max_access_reviews_per_s=2, max_reviews_per_s=1000) as asked:
        client, questions, refused = await asked.at(), asked.api.questions, asyncio.Event()

        async def invent(part: int) -> None:
            for i in range(1_000_000):
                found = await status(client, f"of-flood~{part}", f"{JOBS}?namespace=n{part}-{i}")
                if found == 429:
                    refused.set()
                    await asyncio.sleep(0.05)

        async with meanwhile(*map(invent, range(100))):
            async with asyncio.timeout(60):
                await refused.wait()  # then half of the requests that may be open, 32, are the flood's, and wait
            for name in ("ann", "bob", "eve"):
                assert await status(client, f"of-{name}") == 200
                known, answered = questions.index(("token", name)), questions.index(("access", name))
                before = questions[known:answered].count(("access", "flood"))
                assert before < 32 / 2, "the flood has one turn, and no more than the rate leaves meanwhile"


@pytest.mark.parametrize(
    ("path", "where"),
    [
        (f"{JOBS}/{'n' * 7900}/j", "namespace"),
        (f"{JOBS}/{'n' * 64}/j", "namespace"),
        (f"{JOBS}/Mine/j", "namespace"),
        (f"{JOBS}/a.b/j", "namespace"),
        (f"{JOBS}/-a/j", "namespace"),
        (f"{JOBS}/%0a/j", "namespace"),
        (f"{JOBS}/mine%0A/j", "namespace"),
        (f"{JOBS}/%D9%A3/j", "namespace"),
        (f"{JOBS}/mine/{'j' * 254}", "name"),
        (f"{JOBS}/mine/a..b", "name"),
        (f"{JOBS}/mine/a_b", "name"),
        (f"/api/v1/stream/jobs/{'n' * 64}/j", "namespace"),
        (f"{JOBS}?namespace={'n' * 64}", "namespace"),
        (f"{JOBS}?namespace=a%20b", "namespace"),
        ("/api/v1/queue?namespace=A", "namespace"),
    ],
    ids=lambda text: str(text)[-40:],
)
async def test_an_invalid_name_is_refused_without_an_access_review(path: str, where: str) -> None:
    async with serving() as asked:
        client = await asked.at()
        for headers in (bearer("of-ann"), {}):
            async with client.get(URL(path, encoded=True), headers=headers) as response:
                problem = (await response.json())["error"]
                assert (response.status, problem["where"]) == (400, where)
                assert "DNS" in problem["allowed"]
        assert (asked.api.tokens, asked.api.reviews) == (0, 0)


@pytest.mark.parametrize(("namespace", "name"), [("mine", "a" * 253), ("n" * 63, "a.b-c.0"), ("0", "a")])
async def test_a_valid_name_is_looked_up(namespace: str, name: str) -> None:
    async with serving() as asked:
        found = await status(await asked.at(), "of-ann", f"{JOBS}/{namespace}/{name}")
        assert found == (404 if namespace == "mine" else 403)
        assert await status(await asked.at(), "of-ann", f"{JOBS}?namespace=") == 200


async def questions_before(asked: Asked, client: aiohttp.ClientSession, token: str) -> int:
    """How many questions of others go before that about a token: counted, not timed, for a machine may be busy. From
    when it comes to the gate, since a busy machine takes long until then, too."""
    user, before = token.removeprefix("of-"), len(asked.api.questions)
    assert await status(client, token) == 200
    found = asked.api.questions[asked.api.questions.index(("came", user), before) :]
    if ("token", user) not in found:
        return 0
    return sum(kind != "came" for kind, _ in found[: found.index(("token", user))])


async def test_junk_tokens_from_two_addresses_starve_no_third_and_no_known_token() -> None:
    # A busy machine pauses, and twice as many are allowed after a pause; 160 guesses wait.
    most = 20 * SOON_S + 2 * 20
    async with serving(max_reviews_per_s=20, allow_cache_s=0.5) as asked:
        junk, third = [await asked.at("127.0.0.2"), await asked.at("127.0.0.3")], await asked.at("127.0.0.4")
        assert await status(third, "of-known") == 200

        async def guess(client: aiohttp.ClientSession, part: int) -> None:
            for i in range(1_000_000):
                if await status(client, f"junk-{part}-{i}") != 401:
                    await asyncio.sleep(0.05)

        async with meanwhile(*(guess(client, part) for client in junk for part in range(80))):
            for i in range(3):
                assert await questions_before(asked, third, f"of-new{i}") < most
            # Also from an address that sends junk, and when it has to be reviewed again.
            for client in (third, junk[0]):
                await asyncio.sleep(0.6)
                assert await questions_before(asked, client, "of-known") < most


async def test_more_junk_than_is_remembered_makes_no_known_token_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_tfjob.controller.query.gate._TOKENS", 10)
    async with serving(max_reviews_per_s=1000) as asked:
        client = await asked.at()
        assert await status(client, "of-known") == 200
        assert {await status(client, f"junk-{i}") for i in range(30)} == {401}
        before = asked.api.tokens
        assert await status(client, "of-known") == 200
        assert asked.api.tokens == before


async def test_a_user_of_many_tokens_makes_no_other_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_tfjob.controller.query.gate._TOKENS", 16)
    async with serving(max_reviews_per_s=1000) as asked:
        client = await asked.at()
        assert await status(client, "of-known") == 200
        assert {await status(client, f"of-many~{i}") for i in range(30)} == {200}
        before = asked.api.tokens
        assert [await status(client, token) for token in ("of-known", "of-many~29", "of-many~28")] == [200] * 3
        assert asked.api.tokens == before


async def test_a_user_has_a_limited_number_of_streams_whatever_the_tokens() -> None:
    async with serving(max_reviews_per_s=1000) as asked, AsyncExitStack() as opened:
        client = await asked.at()

        async def stream(token: str) -> aiohttp.ClientResponse:
            return await opened.enter_async_context(client.get("/api/v1/stream/jobs", headers=bearer(token)))

        found = [await stream(f"of-ann~{i}") for i in range(12)]
        assert [each.status for each in found] == [200] * 10 + [429] * 2
        assert (await found[-1].json())["error"]["message"] == "you have 10 open streams, the limit per user"
        assert found[-1].headers["Retry-After"] == "10"
        assert (await stream("of-bob")).status == 200
        found[0].close()
        async with asyncio.timeout(60):
            while (await stream("of-ann")).status != 200:
                await asyncio.sleep(0.1)


async def test_a_user_about_whom_the_api_server_does_not_answer_keeps_no_other_waiting() -> None:
    """Neither their requests nor their streams."""
    async with serving(max_open_requests=8) as asked:
        client, go_on = await asked.at(), asyncio.Event()
        asked.api.held["slow"] = go_on

        async def wait(path: str) -> int:
            return await status(client, "of-slow", path)

        held = [asyncio.create_task(wait(f"{JOBS}?namespace=n{i}")) for i in range(12)]
        held += [asyncio.create_task(wait("/api/v1/stream/jobs?namespace=mine"))]

        def ended() -> list[int]:
            return [task.result() for task in held if task.done()]

        async with asyncio.timeout(60):
            while len(ended()) < 8:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        assert ended() == [429] * 8  # half of the requests that may be open
        assert await status(client, "of-ann") == 200
        async with client.get("/api/v1/stream/jobs", headers=bearer("of-ann")) as response:
            assert response.status == 200
        assert len(ended()) == 8, "and the others wait still"
        go_on.set()
        asyncio.get_running_loop().call_later(0.5, held[-1].cancel)
        await asyncio.gather(*held, return_exceptions=True)


def test_no_user_holds_more_places_than_are_free() -> None:
    room = Room(lambda: 9, "places")
    with room.hold("a"), room.hold("a"), room.hold("a"), room.hold("b"), room.hold("b"):
        with room.hold("b"):
            for name in "ab":
                with pytest.raises(QueryRefused, match=r"you have 3 open places") as refused, room.hold(name):
                    pass
                assert refused.value.status == 429
            with room.hold("c"), room.hold("d"), room.hold("e"):
                with (
                    pytest.raises(QueryRefused, match=r"the limit of 9 open places is reached") as refused,
                    room.hold("f"),
                ):
                    pass
                assert refused.value.status == 503
        with room.hold("b"):
            pass
    assert not room._held
    with room.hold("a", alone=True):
        pass


async def test_sources_have_their_turns_one_after_the_other() -> None:
    served, turns = list[str](), Turns(lambda: 1000.0, 1, 100, "questions")

    async def ask(source: str) -> None:
        async with turns.turn(source):
            served.append(source)
            await asyncio.sleep(0)

    async with asyncio.timeout(60):
        await asyncio.gather(*(ask(each) for each in "aaaaabbc"))
    assert "".join(served) == "aabcabaa"


async def test_turns_come_as_fast_as_is_said_and_one_that_is_given_up_takes_none() -> None:
    now, given = 0.0, 0
    turns = Turns(lambda: 10.0, 100, 1000, "questions", clock=lambda: now)

    async def ask() -> None:
        nonlocal given
        async with turns.turn("a"):
            given += 1

    async def reach(count: int) -> None:
        async with asyncio.timeout(60):
            while given < count:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        assert given == count

    tasks = [asyncio.create_task(ask()) for _ in range(40)]
    await reach(20)
    for task in tasks[20:25]:
        task.cancel()
    now = 1.0
    await reach(30)
    assert [task.done() for task in tasks] == [True] * 35 + [False] * 5
    now = 100.0
    async with asyncio.timeout(60):
        await asyncio.gather(*tasks, return_exceptions=True)
    assert given == 35


async def test_a_turn_that_fails_or_is_cancelled_is_free_again() -> None:
    turns, held = Turns(lambda: 1000.0, 1, 100, "questions"), asyncio.Event()

    async def ask(fail: bool) -> None:
        async with turns.turn("a"):
            if fail:
                raise ValueError("no")
            await held.wait()

    with pytest.raises(ValueError, match="no"):
        await ask(True)
    first, second, third = (asyncio.create_task(ask(False)) for _ in range(3))
    await asyncio.sleep(0)
    first.cancel()
    second.cancel()
    await asyncio.sleep(0)
    held.set()
    async with asyncio.timeout(60):
        await third


def test_whom_an_address_is_counted_for() -> None:
    from elastic_tfjob.controller.query.gate import _source  # noqa: PLC0415

    assert _source("10.0.0.7") == _source("::ffff:10.0.0.7") == "10.0.0.7"
    assert _source("fd00:1:2:3::7") == _source("fd00:1:2:3:ffff::1%eth0") == "fd00:1:2:3::"
    assert _source("fd00:1:2:4::7") != _source("fd00:1:2:3::7")
    assert _source("") == ""
