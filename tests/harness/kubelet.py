"""A kubelet for tests without nodes: pods 'run' and end as a program in the test says, through their /status."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp

from harness.api import Api, ApiError, Object, pods

Program = Callable[[Object], Awaitable[int | None]]
"""Given the pod that has just started: waits as long as its `tensorflow` container runs, returns the exit code.

None: it never ends by itself.
"""


async def runs_forever(_: Object) -> int | None:
    """A program that ends only with its pod."""
    await asyncio.Event().wait()
    return None


@contextlib.asynccontextmanager
async def kubelet(api: Api, namespace: str, program: Program) -> AsyncIterator[None]:
    """Run every pod of the namespace while the block lasts; a pod is started once, whoever restarts around it.

    Also does the pod garbage collector's part: whoever deletes a pod without a node and breaks off the connection can
    leave it marked as deleted, for somebody else to finish.
    """
    running: dict[str, asyncio.Task[None]] = {}
    removing: set[asyncio.Task[None]] = set()

    async def follow() -> None:
        async for kind, pod in api.follow(pods(namespace)):
            uid = pod["metadata"]["uid"]
            if kind == "DELETED":
                if task := running.get(uid):
                    task.cancel()
            elif uid not in running and pod["status"].get("phase") == "Pending":
                running[uid] = asyncio.create_task(_run(api, pod, program))
            if pod["metadata"].get("deletionTimestamp") and not pod["metadata"].get("finalizers"):
                task = asyncio.create_task(_remove(api, pod))
                removing.add(task)
                task.add_done_callback(removing.discard)

    follower = asyncio.create_task(follow())
    try:
        yield
        if follower.done():
            follower.result()
    finally:
        tasks = [follower, *running.values(), *removing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run(api: Api, pod: Object, program: Program) -> None:
    await set_phase(api, pod, "Running")
    code = await program(pod)
    if code is not None:
        await set_phase(api, pod, "Failed" if code else "Succeeded", code)


async def set_phase(api: Api, pod: Object, phase: str, exit_code: int | None = None) -> None:
    """Write a pod's phase and its container's state; the uid is a precondition."""
    meta = pod["metadata"]
    state: Object = {"running": {"startedAt": meta["creationTimestamp"]}}
    if exit_code is not None:
        state = {"terminated": {"exitCode": exit_code, "reason": "Error" if exit_code else "Completed"}}
    containers = [
        {
            "name": c["name"],
            "image": c["image"],
            "imageID": "",
            "ready": exit_code is None,
            "restartCount": 0,
            "state": state,
        }
        for c in pod["spec"]["containers"]
    ]
    patch = {"metadata": {"uid": meta["uid"]}, "status": {"phase": phase, "containerStatuses": containers}}
    await _insist(lambda: api.merge(f"{pods(meta['namespace'])}/{meta['name']}/status", patch))


async def _remove(api: Api, pod: Object) -> None:
    await asyncio.sleep(1.0)  # nearly always the API server does it itself
    meta = pod["metadata"]
    body = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
    await _insist(lambda: api.request("DELETE", f"{pods(meta['namespace'])}/{meta['name']}", body))


async def _insist(call: Callable[[], Awaitable[Object]]) -> None:
    """Write for as long as it takes the API server to answer. 404, 409: the pod is gone, or is another one by now."""
    while True:
        try:
            await call()
            return
        except ApiError as error:
            if error.status in {404, 409}:
                return
            if error.status < 500 and error.status not in {401, 403, 429}:
                raise
        except (aiohttp.ClientError, TimeoutError, ConnectionError):
            pass
        await asyncio.sleep(0.2)
