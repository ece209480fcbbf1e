"""What the operator reports to Prometheus (`/metrics`), the kubelet (`/healthz`, `/readyz`) and people (`/status`)."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from elastic_tfjob.controller.kube.listening import listening
from elastic_tfjob.controller.kube.metrics import name_failed_pods
from elastic_tfjob.controller.objects.job import Job
from elastic_tfjob.controller.objects.pod import Pod

__all__ = ["serve_probes"]


@asynccontextmanager
async def serve_probes(
    metrics_address: str,
    health_address: str,
    *,
    alive: Callable[[], str],
    ready: Callable[[], str],
    failed: Callable[[], Sequence[tuple[Job, Pod]]],
    status: Callable[[], dict[str, Any]],
) -> AsyncIterator[None]:
    """Serve while the context is open. Addresses are those of Options. `alive` and `ready` say what is wrong, or
    nothing: the answer is then 503 with these words. `failed` gives the failed pods, of which some are named at
    `/metrics`; it is called in a thread. `status` is what `/status`
    answers, beside the probes. Raises OSError where an address is taken."""

    one = asyncio.Lock()

    async def show_metrics(_: web.Request) -> web.Response:
        # In a thread: with many namespaces it takes longer than others should wait for. One at a time: the scheduling
        # loop computes in threads of the same pool.
        async with one:
            text = await asyncio.to_thread(_metrics, failed)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def show_alive(_: web.Request) -> web.Response:
        return _answer(alive())

    async def show_ready(_: web.Request) -> web.Response:
        return _answer(ready())

    async def show_status(_: web.Request) -> web.Response:
        return web.json_response(status(), dumps=partial(json.dumps, indent=2))

    probes = _routes(web.get("/healthz", show_alive), web.get("/readyz", show_ready), web.get("/status", show_status))
    async with (
        listening(metrics_address, _routes(web.get("/metrics", show_metrics))),
        listening(health_address, probes),
    ):
        yield


def _metrics(failed: Callable[[], Sequence[tuple[Job, Pod]]]) -> bytes:
    name_failed_pods(failed())
    return generate_latest()


def _answer(problem: str) -> web.Response:
    return web.Response(status=503, text=problem) if problem else web.Response(text="ok")


def _routes(*routes: web.RouteDef) -> web.Application:
    app = web.Application()
    app.add_routes(routes)
    return app
