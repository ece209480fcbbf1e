"""How long a job waits under kips before others give what they have declared, on a real control plane.

Two nodes of four cores. `large` has seven replicas of one core each and could do with two; `late` needs three cores.
No test waits for a time to be over and then hopes: how long a job had waited is read off the reason of the plan.
"""

import asyncio
import contextlib
import itertools
import re
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import pytest

from elastic_tfjob.controller.model.status import parse_time
from harness.api import Api, Object, pods, tfjobs
from harness.controlplane import ControlPlane
from harness.operators import Operator
from harness.reasons import reason_of

from .fake_nodes import PREFIX, configure, job, operator_with_its_rights, state_of, target_of, target_when

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("scheduled"),
]


@pytest.fixture
def api(two_nodes: Api) -> Api:
    return two_nodes


NEVER_S: Final = 3600
WITHIN_S: Final = 150
"""A busy machine takes its time; what is awaited comes within seconds on an idle one."""
ELASTIC: Final = {
    "min-workers": "1",
    "max-workers": "6",
    "checkpoint-dir": "/ckpt",
    "rescale": "recreate",
    # One of unknown length that has only begun gives nothing: it seems to have less left than a rescale costs.
    "estimated-duration": "10h",
}


async def patience(api: Api, seconds: float) -> None:
    """Have kips look every second, and jobs wait for so long. It lends no CPU, which would blur who holds what."""
    await configure(
        api,
        profile="kips",
        profiles={"kips": {"patience_s": seconds, "interval_s": 1, "cooldown_s": 0, "min_idle": 1}},
    )


async def seen(api: Api, name: str, what: Callable[[Object], bool]) -> Object:
    """The job once `what` holds for it."""
    return await api.seen(tfjobs("default"), what, name=name, within_s=WITHIN_S)


async def bound(api: Api, name: str, count: int) -> None:
    """Wait until so many pods of a job are on nodes."""
    there: set[str] = set()
    async with asyncio.timeout(WITHIN_S):
        async for kind, pod in api.watch(pods("default"), labelSelector=f"training.kubeflow.org/job-name={name}"):
            known = there.discard if kind == "DELETED" or not pod["spec"].get("nodeName") else there.add
            known(pod["metadata"]["uid"])
            if len(there) == count:
                return


async def large(api: Api, workers: int = 6) -> None:
    """Start the job that fills the cluster but for a core, or with fewer workers; it runs when this returns."""
    await api.create(tfjobs("default"), job("large", annotations=ELASTIC, PS=1, Worker=workers))
    await bound(api, "large", 1 + workers)
    await seen(api, "large", lambda found: state_of(found).get("phase") == "Stable")


async def waiting(api: Api) -> Object:
    """Create the job that finds too little room; it waits, and has been told so, when this returns."""
    await api.create(tfjobs("default"), job("late", Worker=3))
    return await seen(
        api,
        "late",
        lambda found: (target_of(found) or {}).get("replicas") == {} and state_of(found).get("phase") == "Waiting",
    )


async def given(api: Api, workers: int) -> float:
    """Wait until `large` has so many workers left and `late` runs; seconds that it had waited when that was decided."""
    smaller = await target_when(api, "large", lambda found: found["replicas"].get("Worker") == workers, WITHIN_S)
    waited = re.search(r"makes room for default/late, which has waited for (\d+) s", reason_of(smaller))
    assert waited is not None, reason_of(smaller)
    started = await target_when(api, "late", lambda found: bool(found["replicas"]), WITHIN_S)
    assert started["replicas"] == {"Worker": 3}
    await bound(api, "late", 3)
    return float(waited[1])


@contextlib.asynccontextmanager
async def touched(api: Api, name: str) -> AsyncIterator[None]:
    """Somebody changes a label of the job every other second, so that it is described anew again and again. More often,
    and the operator's own writes would find another version than they know."""

    async def touch() -> None:
        for number in itertools.count():
            await api.merge(f"{tfjobs('default')}/{name}", {"metadata": {"labels": {"touched": str(number)}}})
            await asyncio.sleep(2)

    task = asyncio.create_task(touch())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def rounds(operator: Operator, count: int) -> None:
    """Wait for so many whole rounds of the scheduling loop from now on."""

    async def done() -> int:
        text = await asyncio.to_thread(operator.metrics)
        found = re.search(r"^elastic_tfjob_scheduling_seconds_count (\S+)", text, re.MULTILINE)
        assert found is not None, "there is no such metric any more"
        return int(float(found[1]))

    # One more: a round may be half over.
    end = await done() + 1 + count
    async with asyncio.timeout(WITHIN_S):
        while await done() < end:
            await asyncio.sleep(0.2)


@pytest.mark.thorough  # the last test waits longer, over a restart
async def test_a_job_that_has_waited_long_gets_the_replicas_of_others_above_their_minimum(
    plane: ControlPlane, api: Api, tmp_path: Path
) -> None:
    """From its creation on, whatever changes about it meanwhile."""
    await patience(api, 10)
    async with operator_with_its_rights(plane, tmp_path):
        await large(api)
        made = await api.create(tfjobs("default"), job("late", Worker=3))
        async with touched(api, "late"):
            assert await given(api, workers=4) >= 10
        assert time.time() - parse_time(made["metadata"]["creationTimestamp"]).timestamp() >= 10


@pytest.mark.thorough  # unit/test_patience.py; the last test asks for the time that it took
async def test_before_that_nobody_gives(plane: ControlPlane, api: Api, tmp_path: Path) -> None:
    """Round after round; and the same jobs at once, when their patience is over."""
    await patience(api, NEVER_S)
    async with operator_with_its_rights(plane, tmp_path) as operator:
        await large(api)
        assert reason_of(target_of(await waiting(api))) == "needs 3 CPU, 1 free"
        await rounds(operator, 3)
        kept = target_of(await api.get(f"{tfjobs('default')}/large"))
        assert (kept["generation"], kept["replicas"]) == (0, {"PS": 1, "Worker": 6})
        assert target_of(await api.get(f"{tfjobs('default')}/late"))["replicas"] == {}
        await patience(api, 1)
        assert await given(api, workers=4) < NEVER_S


@pytest.mark.thorough  # unit/scheduling has it for each profile
async def test_replicas_beyond_the_declared_size_are_given_up_at_once(
    plane: ControlPlane, api: Api, tmp_path: Path
) -> None:
    await patience(api, NEVER_S)
    async with operator_with_its_rights(plane, tmp_path):
        await large(api, workers=2)
        path = f"{tfjobs('default')}/large"
        await api.merge(path, {"metadata": {"annotations": {f"{PREFIX}target-workers": "6"}}})
        await seen(api, "large", lambda found: _rests_with(found, workers=6))
        await bound(api, "large", 7)
        # It keeps the size that nobody asks for any more, until somebody needs the room.
        await api.merge(path, {"metadata": {"annotations": {f"{PREFIX}target-workers": None}}})
        await api.create(tfjobs("default"), job("late", Worker=3))
        assert await given(api, workers=4) < NEVER_S


def _rests_with(found: Object, workers: int) -> bool:
    state = state_of(found)
    return state.get("phase") == "Stable" and state["replicas"].get("Worker") == workers


async def test_an_operator_that_starts_again_does_not_begin_the_wait_anew(
    plane: ControlPlane, api: Api, tmp_path: Path
) -> None:
    """The patience is shorter than the time without an operator, so a wait that began anew would show: the reason would
    tell of a shorter one."""
    gone_s, short_s = 8.0, 3.0
    await patience(api, NEVER_S)
    async with operator_with_its_rights(plane, tmp_path) as operator:
        await large(api)
        since_s = parse_time(state_of(await waiting(api))["since"]).timestamp()
        await asyncio.to_thread(operator.kill)
    await asyncio.sleep(gone_s)
    await patience(api, short_s)
    again_s = time.time()
    async with operator_with_its_rights(plane, tmp_path):
        # A reason has whole seconds.
        assert await given(api, workers=4) >= again_s - since_s - 1 >= gone_s - 1
