"""What the operator tells Prometheus and the kubelet: `/metrics`, `/healthz` and `/readyz`."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

__all__ = ["serve_probes"]


@asynccontextmanager
async def serve_probes(
    metrics_address: str, health_address: str, *, alive: Callable[[], str], ready: Callable[[], str]
) -> AsyncIterator[None]:
    """Serve while the context is open. Addresses are those of Options. `alive` and `ready` say what is wrong, or
    nothing: the answer is then 503 with these words. Raises OSError where an address is taken."""

    async def show_metrics(_: web.Request) -> web.Response:
        # In a thread: with many namespaces it takes longer than others should wait for.
        text = await asyncio.to_thread(generate_latest)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def show_alive(_: web.Request) -> web.Response:
        return _answer(alive())

    async def show_ready(_: web.Request) -> web.Response:
        return _answer(ready())

    async with (
        _server(metrics_address, [web.get("/metrics", show_metrics)]),
        _server(health_address, [web.get("/healthz", show_alive), web.get("/readyz", show_ready)]),
    ):
        yield


def _answer(problem: str) -> web.Response:
    return web.Response(status=503, text=problem) if problem else web.Response(text="ok")


@asynccontextmanager
async def _server(address: str, routes: list[web.RouteDef]) -> AsyncIterator[None]:
    host, _, port = address.rpartition(":")
    if not int(port):
        yield
        return
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        # Without a host asyncio listens on all addresses of both families, or of the one that there is.
        await web.TCPSite(runner, host.strip("[]") or None, int(port)).start()
        yield
    finally:
        await runner.cleanup()
