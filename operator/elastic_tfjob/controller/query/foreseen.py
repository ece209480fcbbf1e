"""The process that answers one what-if question: pickled on standard input by its parent, answered there in JSON."""

import os
import pickle
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import orjson

from elastic_tfjob.controller.query.gate import Refused
from elastic_tfjob.controller.query.question import tell
from elastic_tfjob.controller.query.rows.listing import BadQuery

# Of each of the two courses, without and with the change.
_CPU_S: Final = 8.0
_ALL_CPU_S: Final = 60
_MEMORY_BYTES: Final = 512 << 20
_NICE: Final = 5  # a quarter of a core that the operator wants all of: enough to start within its time


def main() -> None:
    """Read a question and answer it, with bounds, and behind whoever else wants CPU or memory."""
    os.nice(_NICE)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_ALL_CPU_S, _ALL_CPU_S))
    taken, question, allowed, nodes_shown = pickle.loads(sys.stdin.buffer.read())  # its parent's, who has more rights
    try:
        found: dict[str, Any] = {"answer": tell(taken, question, _CPU_S, allowed=allowed, nodes_shown=nodes_shown)}
    except Refused as error:
        words = {"where": error.where, "allowed": error.allowed}
        found = {"refused": {"status": error.status, "message": error.message, **words}}
    except BadQuery as error:
        found = {"refused": {"status": 400, "message": error.problem, "where": error.where, "allowed": error.allowed}}
    sys.stdout.buffer.write(orjson.dumps(found))


if __name__ == "__main__":
    main()
