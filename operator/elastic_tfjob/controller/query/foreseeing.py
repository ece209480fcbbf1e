"""What-if questions are answered in a process of their own: the operator goes on, whatever a question costs.

A question has a turn (one is answered at a time, users one after the other), CPU time, memory and time by the clock;
whatever goes beyond ends that process (foreseen.py) alone.
"""

import asyncio
import os
import pickle
import sys
from collections.abc import Collection
from typing import Final

import orjson
import structlog

from elastic_tfjob.controller.kube.supervise import excerpt
from elastic_tfjob.controller.query.fair import Turns
from elastic_tfjob.controller.query.gate import Asker, Refused
from elastic_tfjob.controller.query.question import Question, Taken

__all__ = ["MAX_BODY", "WALL_S", "Foreseeing"]

log = structlog.get_logger(__name__)

MAX_BODY: Final = 256 * 1024
"""Bytes of a question: a TFJob has some KiB."""
_PER_S: Final = 1.0
_WAITING: Final = 16
WALL_S: Final = 50.0
"""By the clock, for one question: less than the 60 s after which the API server's proxy gives up."""


class Foreseeing:
    """Answers questions, one at a time."""

    def __init__(self, wall_s: float | None = None) -> None:
        self._wall_s = WALL_S if wall_s is None else wall_s
        self._turns = Turns(lambda: _PER_S, 1, _WAITING, "what-if questions")

    async def answer(
        self, asker: Asker, taken: Taken, question: Question, allowed: Collection[str] | None, *, nodes_shown: bool
    ) -> bytes:
        """The answer as JSON. Raises Refused."""
        shown = None if allowed is None else frozenset(allowed)
        async with self._turns.turn(asker.user):
            asked = await asyncio.to_thread(pickle.dumps, (taken, question, shown, nodes_shown))
            found = orjson.loads(await _computed(asked, self._wall_s))
        if "refused" in found:
            raise Refused(**found["refused"])
        return orjson.dumps(found["answer"])


async def _computed(asked: bytes, wall_s: float) -> bytes:
    """What the process says. It ends with this, whatever happens here."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "elastic_tfjob.controller.query.foreseen",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    try:
        async with asyncio.timeout(wall_s):
            answer, said = await child.communicate(asked)
    except TimeoutError:
        raise Refused(
            503, f"it could not be foreseen within {wall_s:.0f} s: this machine is busy", again_s=10
        ) from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode:
        log.error(
            "what-if failed", code=child.returncode, error=excerpt(RuntimeError(said[-2000:].decode(errors="replace")))
        )
        raise Refused(
            503, "it could not be foreseen with the memory and CPU time that a question has, or by a bug here"
        )
    return answer
