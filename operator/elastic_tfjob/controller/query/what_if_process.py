"""The process that answers one what-if question. Its parent sends the question pickled on standard input, and it
answers in JSON on standard output."""

import asyncio
import os
import pickle
import resource
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import orjson
import structlog

from elastic_tfjob.controller.kube.supervise import excerpt
from elastic_tfjob.controller.query.gate import Asker, Turns
from elastic_tfjob.controller.query.rows.listing import BadQuery, QueryRefused
from elastic_tfjob.controller.query.rows.question import ClusterCopy, Question, tell

__all__ = ["MAX_BODY", "WALL_S", "WhatIfWorker"]

# CPU seconds for each of the two simulations, without and with the change.
_CPU_S: Final = 8.0
_ALL_CPU_S: Final = 60
_MEMORY_BYTES: Final = 512 << 20
_NICE: Final = 5  # still gets a quarter of a core that the operator uses fully, enough to start in time


def main() -> None:
    """Read a question and answer it, with limits and at low priority for CPU and memory."""
    os.nice(_NICE)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_ALL_CPU_S, _ALL_CPU_S))
    taken, question, allowed, nodes_shown = pickle.loads(sys.stdin.buffer.read())  # trusted: from the parent process
    try:
        found: dict[str, Any] = {"answer": tell(taken, question, _CPU_S, allowed=allowed, nodes_shown=nodes_shown)}
    except QueryRefused as error:
        words = {"where": error.where, "allowed": error.allowed}
        found = {"refused": {"status": error.status, "message": error.message, **words}}
    except BadQuery as error:
        found = {"refused": {"status": 400, "message": error.problem, "where": error.where, "allowed": error.allowed}}
    sys.stdout.buffer.write(orjson.dumps(found))


if __name__ == "__main__":
    main()


# -- The parent's side -------------------------------------------------------------------------------------------------
# A separate process protects the operator from expensive questions. Questions are answered one at a time, and users
# take turns. CPU time, memory and elapsed time are limited; exceeding a limit ends only that process.

log = structlog.get_logger(__name__)

MAX_BODY: Final = 256 * 1024
"""Most bytes of a question; a TFJob has a few KiB."""
_PER_S: Final = 1.0
_WAITING: Final = 16
WALL_S: Final = 50.0
"""Elapsed seconds for one question: less than the 60 s after which the API server's proxy gives up."""


class WhatIfWorker:
    """Answers questions, one at a time."""

    def __init__(self, wall_s: float | None = None) -> None:
        self._wall_s = WALL_S if wall_s is None else wall_s
        self._turns = Turns(lambda: _PER_S, 1, _WAITING, "what-if questions")

    async def answer(
        self,
        asker: Asker,
        taken: ClusterCopy,
        question: Question,
        allowed: Collection[str] | None,
        *,
        nodes_shown: bool,
    ) -> bytes:
        """The answer as JSON. Raises QueryRefused."""
        shown = None if allowed is None else frozenset(allowed)
        async with self._turns.turn(asker.user):
            asked = await asyncio.to_thread(pickle.dumps, (taken, question, shown, nodes_shown))
            found = orjson.loads(await _computed(asked, self._wall_s))
        if "refused" in found:
            raise QueryRefused(**found["refused"])
        return orjson.dumps(found["answer"])


async def _computed(asked: bytes, wall_s: float) -> bytes:
    """The process's answer. The process never outlives this call."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "elastic_tfjob.controller.query.what_if_process",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    try:
        async with asyncio.timeout(wall_s):
            answer, errors = await child.communicate(asked)
    except TimeoutError:
        raise QueryRefused(
            503, f"no forecast within {wall_s:.0f} s, because this machine is busy", again_s=10
        ) from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode:
        log.error(
            "what-if failed",
            code=child.returncode,
            error=excerpt(RuntimeError(errors[-2000:].decode(errors="replace"))),
        )
        raise QueryRefused(503, "no forecast within the limits of memory and CPU time, or because of an internal error")
    return answer
