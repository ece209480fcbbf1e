"""Whatever is asked, the answer is what the OpenAPI document says: schemathesis asks, from the document itself."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from aiohttp.test_utils import TestServer
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import positive_data_acceptance

from elastic_tfjob.controller.query import server, what_if_process
from elastic_tfjob.controller.query.gate import NoGate
from elastic_tfjob.controller.query.rows import openapi
from elastic_tfjob.controller.query.server import QueryServer
from harness.effort import effort
from harness.hostile_text import MARKUP, NO_INDEXES, TEXTS

from .build import Held, foreign, node, pod, running, tfjob, waiting, world

SCHEMA = schemathesis.openapi.from_dict(openapi.document())
FOUND = [each for each in SCHEMA.get_all_operations() if isinstance(each, Ok)]
# Answers that go on for ever are read by test_streams.py.
NAMES = {id(each): each.ok().definition.raw["operationId"] for each in FOUND}
OPERATIONS = {NAMES[id(each)]: each.ok() for each in FOUND if not NAMES[id(each)].startswith("stream")}
assert OPERATIONS.keys() == {*(route.name for route in openapi.ROUTES), "whatIf"}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server with some jobs, in a thread: schemathesis is synchronous."""
    loop, ready, found = asyncio.new_event_loop(), threading.Event(), list[str]()
    odd = tfjob("odd", "a", annotations={"max-workers": "-1", "deadline": "soon"}, state={"phase": "Lost"})
    known = world(
        running("a", "a", annotations={"max-workers": "4", "checkpoint-dir": "/c", "deadline": "1h"}),
        waiting("b", "a"),
        odd,
        pods=Held(pod("a-worker-0", "n1")),
        nodes=Held(node("n1")),
        foreign=Held(foreign("f", "n1")),
    )

    ended = asyncio.Event()

    async def serve() -> None:
        async with TestServer(QueryServer(known.source(), NoGate()).application()) as server:
            found.append(str(server.make_url("")).rstrip("/"))
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    with pytest.MonkeyPatch.context() as patch:  # a process answers what-if, and other tests need this machine, too
        patch.setattr(server, "_TIMEOUT_S", 600.0)
        patch.setattr(what_if_process, "WALL_S", 500.0)
        thread.start()
        assert ready.wait(120)
        try:
            yield found[0]
        finally:
            loop.call_soon_threadsafe(ended.set)
            thread.join(120)
            loop.close()


CASES = [(name, mode) for name in OPERATIONS for mode in GenerationMode]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("operation", "mode"), CASES)
def test_every_answer_is_as_the_document_says(address: str, operation: str, mode: GenerationMode) -> None:
    """What the document allows is answered 200 or, for a job that is not there, 404; what it does not, 400 or 404. Of a
    what-if question no schema says whether it makes sense."""
    statuses: set[int] = set()

    @settings(
        max_examples=effort(2, 5) if operation == "whatIf" else effort(6, 15),
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(OPERATIONS[operation].as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        answer = case.call(base_url=address, timeout=600)
        case.validate_response(answer, excluded_checks=[positive_data_acceptance] if operation == "whatIf" else [])
        statuses.add(answer.status_code)

    ask()
    allowed = {200, 404} if mode is GenerationMode.POSITIVE else {200, 400, 401, 404, 405}
    if operation == "whatIf":
        allowed = {200, 400, 405, 409, 415, 422, 429}
    assert statuses <= allowed


@given(st.text(max_size=300), st.text(max_size=300) | st.sampled_from([*TEXTS, *NO_INDEXES[:-1], MARKUP]))
@settings(max_examples=effort(12, 50), deadline=None, suppress_health_check=list(HealthCheck))
def test_any_parameter_is_answered_or_refused(address: str, name: str, value: str) -> None:
    """Names and values of any characters: answered, or refused, and never a failure."""
    import requests  # noqa: PLC0415

    for parameters in ({name: value}, {"name": value}, {"limit": value}, {"state": value}, {"sort": value}):
        asked = {key.encode("utf-8", "replace"): text.encode("utf-8", "replace") for key, text in parameters.items()}
        answer = requests.get(f"{address}/api/v1/jobs", params=asked, timeout=600)
        assert answer.status_code in (200, 400)
        assert answer.headers["Content-Type"].startswith("application/json")
