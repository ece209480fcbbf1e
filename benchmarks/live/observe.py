"""A watch over jobs, a service and nodes of the cluster while a run goes on: what `live.lending` makes figures of."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from harness.api import CORE, NODES, Api, Object, pods, tfjobs
from harness.cluster import Cluster
from harness.training import Lines
from live.lending import Seen

__all__ = ["observing"]


@asynccontextmanager
async def observing(cluster: Cluster, api: Api, serving: str) -> AsyncIterator[Seen]:
    """What happens from now on; complete when the block ends, with what each chief reported."""
    seen = Seen(serving, time.time())
    logs: dict[str, Lines] = {}

    async def follow(collection: str, take: Callable[[str, Object], None]) -> None:
        async for kind, item in api.follow(collection):
            take(kind, item)

    def pod(kind: str, item: Object) -> None:
        gone = kind == "DELETED"
        seen.pod(item, time.time(), gone=gone)
        uid = item["metadata"]["uid"]
        if gone and uid in logs:
            logs[uid].stop()
        for new in seen.chiefs.keys() - logs.keys():
            chief = seen.chiefs[new]
            logs[new] = Lines(cluster, chief.namespace, chief.pod)
            logs[new].__enter__()

    def tfjob(kind: str, item: Object) -> None:
        if kind != "DELETED":
            seen.tfjob(item, time.time())

    def node(kind: str, item: Object) -> None:
        if kind != "DELETED":
            seen.node(item, time.time())

    def event(kind: str, item: Object) -> None:
        if kind != "DELETED":
            seen.event(item)

    tasks = [
        asyncio.create_task(follow(collection, take))
        for collection, take in (
            (tfjobs(), tfjob),
            (pods(), pod),
            (NODES, node),
            (f"{CORE}/events", event),
        )
    ]
    try:
        yield seen
        for task in tasks:
            if task.done():
                task.result()  # a watch has failed: what came of it is not all
    finally:
        for task in tasks:
            task.cancel()
        for uid, lines in logs.items():
            await asyncio.to_thread(lines.__exit__)
            seen.chiefs[uid].lines = [(line.at, line.step, line.resumed_at) for line in lines.seen]
