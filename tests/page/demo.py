"""A cluster as it may be at some moment, for the tests of the live page and its pictures."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import ClientSession, ClientTimeout, web

from elastic_tfjob.controller.model.cluster import NodeLoan
from elastic_tfjob.controller.model.reports import Checkpoint, CpuUse, Report
from elastic_tfjob.controller.query.gate import Gate, NoGate
from elastic_tfjob.controller.query.server import QueryServer
from unit.query import build
from unit.query.build import Held, World

NOW = datetime.now(UTC)
SHOWN = "resnet-cifar"
MOUNT = "/api/v1/namespaces/kubeflow/services/elastic-tfjob-query:http/proxy"


def ago(minutes: float) -> str:
    return (NOW - timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")


def workers(count: int, servers: int = 1) -> dict[str, int]:
    return {"Chief": 1, "PS": servers, "Worker": count}


def aged(raw: dict[str, Any], minutes: float) -> dict[str, Any]:
    raw["metadata"]["creationTimestamp"] = ago(minutes)
    if "startTime" in raw["status"]:
        raw["status"]["startTime"] = ago(minutes - 1)
    for i, condition in enumerate(raw["status"]["conditions"]):
        condition["lastTransitionTime"] = ago(minutes - i)
    return raw


def trained(
    name: str, namespace: str = "vision", *, step: int = 61_200, version: int = 7, deadline: str = "3h"
) -> dict[str, Any]:
    """One that grew, shrank for another and grew again."""
    steps = [
        (78, workers(2), workers(4), "idle CPU: 2 workers more", 0.4, "overlap"),
        (55, workers(4), workers(6, 2), "speed: another PS helps 6 workers", 6.1, "recreate"),
        (31, workers(6, 2), workers(3, 2), "room for job speech/asr-large", 0.5, "overlap"),
        (12, workers(3, 2), workers(8, 2), "deadline: needs 8 workers to end by then", 0.7, "overlap"),
    ]
    history = [
        {
            "generation": i + 1,
            "at": ago(at),
            "before": before,
            "after": after,
            "mode": mode,
            "downtime_s": pause,
            "lost_steps": 0,
            "reason": why,
        }
        for i, (at, before, after, why, pause, mode) in enumerate(steps)
    ]
    state = {
        "phase": "Stable",
        "generation": 4,
        "replicas": workers(8, 2),
        "rescales": 4,
        "last_downtime_s": 0.7,
        "history": history,
        "step": step,
        "total_steps": 100_000,
        "steps_per_s": 14.2,
        "speeds": {"2/8": 14.2},
        "eta": ago(-45),
        "metrics_at": ago(0),
        "since": ago(12),
    }
    target = {"generation": 4, "replicas": workers(8, 2), "reason": steps[-1][3]}
    given = {"max-workers": "12", "min-workers": "1", "max-ps": "3", "checkpoint-dir": "/c", "deadline": deadline}
    raw = build.tfjob(
        name,
        namespace,
        target=target,
        state=state,
        annotations=given,
        conditions=dict.fromkeys(("Created", "Running"), ""),
        version=version,
    )
    return aged(raw, 96)


def small(i: int) -> dict[str, Any]:
    """The i-th of many: most run, some wait."""
    namespace, name = ("speech", "vision", "ads", "ranking")[i % 4], f"train-{i:05d}"
    if i % 5 == 4:
        why = (
            "no room for 2 workers of 4 CPU each",
            "quota of team ads is used up",
            "behind more urgent jobs",
        )
        return aged(build.waiting(name, namespace, why=why[i % 3]), 3 + i % 50)
    raw = build.running(name, namespace, annotations={"max-workers": "8", "checkpoint-dir": "/c"})
    key = f"{build.PREFIX}state"
    state = json.loads(raw["metadata"]["annotations"][key])
    state |= {"step": 30 + (i * 37) % 900, "steps_per_s": 2 + i % 17, "eta": ago(-2 - i % 90), "metrics_at": ago(0)}
    raw["metadata"]["annotations"][key] = json.dumps(state)
    return aged(raw, 20 + i % 300)


def demo(count: int = 40) -> World:
    """Nine nodes, one job in detail and `count` others. Two of three nodes of the pool `inference` are lent."""
    nodes = [build.node(f"node-{i}", "16") for i in range(5)] + [build.node("node-5", "16", unschedulable=True)]
    loans = (
        NodeLoan("loaned", "inference", ago(14), "1 waiting jobs can use it"),
        NodeLoan("recalled", "inference", ago(1), "its pool wants nodes back"),
        None,
    )
    nodes += [build.node(f"pool-{i}", "16", pool="inference", loan=loan) for i, loan in enumerate(loans)]
    pods, reports = [], {}
    for i in range(11):
        pod = build.pod(f"{SHOWN}-worker-{i}", f"node-{i % 5}", of=SHOWN, cpu=f"{2 + i % 3}")
        pods.append(pod)
        use = CpuUse(use_cores=1.1 + 0.3 * (i % 4))
        reports[pod.name] = Report(
            at=NOW.timestamp(),
            step=61_200,
            steps_per_s=14.2,
            loss=0.342,
            last_step_at=NOW.timestamp(),
            checkpoint=Checkpoint(step=60_000, at=NOW.timestamp() - 85),
            cpu=use,
        )
    others = [build.foreign(f"other-{i}", f"node-{i}", f"{1 + i % 3}") for i in range(6)]
    key = pods[0].key
    return World(
        jobs=Held(build.job(trained(SHOWN, "ns")), *(build.job(small(i)) for i in range(count))),
        nodes=Held(*nodes),
        pods=Held(*pods),
        foreign=Held(*others),
        reports={key: reports},
    )


class Serving:
    """A query server in a thread, and a proxy that strips a path, as the API server's does. It can be stopped and
    started again at the same address."""

    def __init__(self, world: World, gate: Gate) -> None:
        self.world, self.gate, self.port = world, gate, 0
        self.loop = asyncio.new_event_loop()
        self.server: QueryServer | None = None
        self._runner: web.AppRunner | None = None
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def do(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(120)

    async def start(self) -> None:
        self.server = QueryServer(self.world.source(), self.gate)
        app = web.Application()
        inner = self.server.application()
        self._inner = web.AppRunner(inner, shutdown_timeout=1)
        await self._inner.setup()
        site = web.TCPSite(self._inner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._inner.addresses[0][1]
        app.router.add_get(MOUNT + "/{path:.*}", self._pass_on)
        self._runner = web.AppRunner(app, shutdown_timeout=1)
        await self._runner.setup()
        outer = web.TCPSite(self._runner, "127.0.0.1", 0)
        await outer.start()
        self.proxy_port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        assert self._runner is not None
        await self._inner.cleanup()
        await self._runner.cleanup()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        kept = {k: v for k, v in request.headers.items() if k.lower() not in ("host", "authorization")}
        url = f"http://127.0.0.1:{self.port}/{request.match_info['path']}"
        async with (
            ClientSession(timeout=ClientTimeout(total=None), auto_decompress=False) as session,
            session.get(url, params=request.query, headers=kept) as answer,
        ):
            response = web.StreamResponse(status=answer.status)
            for k in ("Content-Type", "Content-Security-Policy", "Retry-After"):
                if k in answer.headers:
                    response.headers[k] = answer.headers[k]
            await response.prepare(request)
            with suppress(ConnectionError):  # the page has gone
                async for part in answer.content.iter_any():
                    await response.write(part)
            return response

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    @property
    def behind_proxy(self) -> str:
        return f"http://127.0.0.1:{self.proxy_port}{MOUNT}/"


@contextmanager
def serving(world: World, gate: Gate | None = None) -> Iterator[Serving]:
    """Serve a world while the context is open."""
    found = Serving(world, gate or NoGate())
    try:
        found.do(found.start())
        yield found
        found.do(found.stop())
    finally:
        found.loop.call_soon_threadsafe(found.loop.stop)
        found._thread.join(30)
        found.loop.close()
