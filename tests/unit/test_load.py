"""The load generator against a real server of HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from harness import load
from harness.load import Request, due, generate, parse, rate


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes long to answer, and is no failure."""
    monkeypatch.setattr(load, "TIMEOUT_S", 60.0)


@asynccontextmanager
async def server(
    answer: web.Response | None, after_s: float = 0.0, hold: Callable[[], Awaitable[object]] | None = None
) -> AsyncIterator[str]:
    """The address of one that answers so, or not at all; after it has waited for `hold`."""

    async def handle(request: web.Request) -> web.Response:
        await request.json()
        if hold is not None:
            await hold()
        await asyncio.sleep(after_s if answer is not None else 60)
        return web.Response(status=answer.status, text=answer.text) if answer is not None else web.Response()

    app = web.Application()
    app.router.add_post("/predict", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/predict"
    finally:
        await runner.cleanup()


async def asked(url: str, curve: load.Curve) -> list[Request]:
    found: list[Request] = []
    await generate(url, curve, found.append)
    return found


GOOD = web.Response(text='{"predictions": [1]}')


def test_the_rate_changes_evenly_between_points() -> None:
    curve = [[0, 2], [10, 4], [20, 0]]
    assert [rate(curve, at) for at in (-1, 0, 5, 10, 15, 20, 99)] == [2, 2, 3, 4, 2, 0, 0]


def test_requests_are_as_many_as_the_curve_encloses() -> None:
    times = list(due([[0, 0], [10, 0], [20, 20], [30, 20]]))
    assert len(times) == pytest.approx(300, abs=1)
    assert min(times) > 10
    assert sum(at < 20 for at in times) == pytest.approx(100, abs=1)


async def test_answers_are_counted_once_each() -> None:
    async with server(GOOD) as url:
        found = await asked(url, [[0, 20], [0.5, 20]])
    assert [each.error for each in found] == [""] * len(list(due([[0, 20], [0.5, 20]])))


async def test_a_slow_server_gets_no_fewer_requests() -> None:
    """Open loop: the last is sent before the first is answered."""
    curve = [[0.0, 20.0], [0.5, 20.0]]
    all_of_them = len(list(due(curve)))
    async with server(GOOD, after_s=1.0, hold=asyncio.Barrier(all_of_them).wait) as url:
        found = await asked(url, curve)
    assert [each.error for each in found] == [""] * all_of_them
    assert min(each.s for each in found) >= 1.0
    assert max(each.at for each in found) < min(each.at + each.s for each in found)


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (web.Response(status=503, text='{"error": "ends"}'), "answer 503"),
        (web.Response(text="no json"), "JSONDecodeError"),
        (web.Response(text="{}"), "answer 200"),
        (web.Response(text="[]"), "answer 200"),
        (None, "no answer within"),
    ],
    ids=["refused", "words", "nothing", "list", "silent"],
)
async def test_failed_requests_are_reported(
    answer: web.Response | None, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "TIMEOUT_S", 0.5 if answer is None else 60)
    async with server(answer) as url:
        found = await asked(url, [[0, 10], [0.2, 10]])
    assert found
    assert all(what in each.error for each in found)


async def test_a_server_that_does_not_listen_is_a_failure() -> None:
    async with server(GOOD) as url:
        pass
    assert all("ClientConnector" in each.error for each in await asked(url, [[0, 10], [0.2, 10]]))


async def test_waiting_requests_are_bounded_and_unsent_ones_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "MAX_WAITING", 2)
    curve, found, told = [[0.0, 20.0], [0.5, 20.0]], list[Request](), asyncio.Event()

    def take(each: Request) -> None:
        found.append(each)
        if len(found) == len(list(due(curve))) - 2:
            told.set()

    async with server(GOOD, hold=told.wait) as url:
        await generate(url, curve, take)
    assert sum(not each.error for each in found) == 2
    assert sum("not sent" in each.error for each in found) == len(found) - 2


def test_printed_requests_are_parsed_except_a_line_that_is_cut_off() -> None:
    lines = [json.dumps(each) for each in ({"begin": 5.5}, {"at": 6, "s": 0.1, "error": ""})]
    assert parse("\n".join([*lines, '{"at": 7, "s'])) == (5.5, [Request(6.0, 0.1)])
    assert parse("") == (0.0, [])
