"""A process that has imported TensorFlow and waits to become the user's program (rescale mode `spare`)."""

from __future__ import annotations

import os
import runpy
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from elastic_tfjob.runtime import protocol

_BOOT = "import sys; sys.path.insert(0, {archive!r}); from elastic_tfjob.runtime.spare import main; main()"
_FLAGS = "bBdOqsSuv"
_WITH_VALUE = ("-X", "-W")


def command(program: Sequence[str], archive: str) -> list[str] | None:
    """The command of a spare for `program`; None unless that is `python script args` or `python -m module args`."""
    if not program or not os.path.basename(program[0]).startswith("python"):
        return None
    rest = list(program[1:])
    flags: list[str] = []
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
        flag = rest.pop(0)
        if flag in _WITH_VALUE and rest:
            flags += [flag, rest.pop(0)]
        elif flag[:2] in _WITH_VALUE or (not flag.startswith("--") and set(flag[1:]) <= set(_FLAGS)):
            flags.append(flag)
        else:
            return None
    runnable = (rest and not rest[0].startswith("-")) or (len(rest) > 1 and rest[0] == "-m")
    return [program[0], *flags, "-c", _BOOT.format(archive=archive), *rest] if runnable else None


def main() -> None:
    """Import TensorFlow, say so, wait for TF_CONFIG, become the program."""
    directory = Path(os.environ[protocol.DIRECTORY])
    mine = protocol.generation_directory(directory, int(os.environ[protocol.GENERATION]))
    parent = os.getppid()
    # What the running program set for TensorFlow before it imported it: some of it is only read then.
    for name, value in ((protocol.read(directory / protocol.HELLO) or {}).get("environment") or {}).items():
        os.environ.setdefault(name, value)
    import tensorflow  # noqa: F401, PLC0415

    protocol.write(mine / protocol.READY, {"spare": True})
    while (start := protocol.read(mine / protocol.START)) is None:
        if os.getppid() != parent:  # nobody is left to start this
            os._exit(1)
        time.sleep(0.005)
    if start.get("tf_config") is not None:
        os.environ["TF_CONFIG"] = start["tf_config"]
    (mine / protocol.READY).unlink()  # from now on it means: waits in resume()
    sys.path.pop(0)  # what _BOOT inserted; PYTHONPATH has it too
    if sys.argv[1] == "-m":
        sys.path[0] = os.getcwd()
        sys.argv[:2] = []
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv.pop(0)
        sys.path[0] = os.path.dirname(os.path.realpath(sys.argv[0]))
        runpy.run_path(sys.argv[0], run_name="__main__")
