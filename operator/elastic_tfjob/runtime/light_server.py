"""`serve_replica`: runs a parameter server or worker without `import tensorflow`.

    from elastic_tfjob.runtime import ElasticCheckpoint, serve_replica

    serve_replica()  # parameter servers and workers serve here until they are ended

    import tensorflow as tf

Such a replica only runs a server, which is native code; the Python of TensorFlow is most of its start (with TensorFlow
2.21, 3.4 of 3.9 CPU seconds, and 170 of 500 MB).

What else the program would load is missing in this server: custom ops, devices of plug-ins, GPUs, and code before its
own `serve`. What can be found of it is named, and then the replica starts as without this call.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NoReturn

from elastic_tfjob.runtime import preload, protocol, variable_server
from elastic_tfjob.runtime.serving import Sigterm, serve_until_ended

__all__ = ["needs_tensorflow", "serve_replica"]

FULL = "ELASTIC_TFJOB_FULL_SERVER"
"""Why this process is to import TensorFlow: it has replaced one whose light server failed."""
_LIBRARIES = re.compile(
    rb"\b(load_op_library|load_library|load_pluggable_device_library|horovod"
    rb"|tensorflow_(?:text|io|addons|recommenders_addons|decision_forests))\b"
)
"""What loads custom ops or devices."""
_FILES, _FILE_BYTES = 200, 1 << 20
"""Most files of the program that are looked at, and most bytes of each."""


def serve_replica() -> None:
    """In a parameter server, and in a worker beside parameter servers: run its TensorFlow server until SIGTERM; does
    not return. In the chief, in other replicas and without TF_CONFIG, return at once. To be called before
    `import tensorflow`, with the TF_CONFIG that the operator sets.

    It also returns where the light server cannot replace the program's own: then it prints why, and the program goes on
    to its own `serve`.
    """
    text = os.environ.get("TF_CONFIG")
    if not protocol.Task.of(text).serves:
        return
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    why = os.environ.pop(FULL, "") or needs_tensorflow(main)
    if not why and "tensorflow" in sys.modules and preload.LIGHT not in sys.modules:
        why = "the program has imported it before serve_replica()"
    if why:
        if preload.LIGHT in sys.modules:
            _start_anew(why)
        print(f"this replica imports TensorFlow: {why}", file=sys.stderr, flush=True)
        return
    cluster, kind, index = protocol.cluster_of(json.loads(text or ""))
    try:
        from elastic_tfjob.runtime import light_native  # noqa: PLC0415

        server, target = light_native.start_server(cluster, kind, index)
    except Exception as error:
        _start_anew(f"the light server failed: {protocol.brief(error)}")
    sigterm = Sigterm()
    if kind == "ps":
        try:
            light_native.register(variable_server.functions())
        except Exception as error:  # values are then handed over in files
            print(f"WARNING: no values are handed over in memory: {protocol.brief(error)}", file=sys.stderr, flush=True)
    preload.report_imports()
    protocol.restore_stderr()
    print(f"{kind} {index} serves at {target}, without the Python of TensorFlow", flush=True)
    serve_until_ended(sigterm, cluster["chief"][0])
    del server


def needs_tensorflow(script: str | None) -> str:
    """Why a server of this program needs more than the native library; empty if nothing is found. `script`: the
    program's file, if it has one."""
    from elastic_tfjob.runtime.programs import has_gpu  # noqa: PLC0415

    if has_gpu():
        return "the container has a GPU"
    try:
        spec = None if "tensorflow" in sys.modules else importlib.util.find_spec("tensorflow")
    except (ImportError, ValueError):
        spec = None
    if spec is not None and spec.origin is not None:
        plugins = Path(spec.origin).parent.parent / "tensorflow-plugins"
        if plugins.is_dir() and any(plugins.iterdir()):
            return f"it has plug-ins in {plugins}"
    for path in _sources(script):
        try:
            with path.open("rb") as file:
                found = _LIBRARIES.search(file.read(_FILE_BYTES))
        except OSError:
            continue
        if found:
            return f"{path.name} has {found[1].decode()}, which may load custom ops or devices"
    return ""


def _sources(script: str | None) -> Iterator[Path]:
    """The program's file, and the modules beside it."""
    if not script:
        return
    yield Path(script)
    yield from islice(Path(script).resolve().parent.glob("*.py"), _FILES)


def _start_anew(why: str) -> NoReturn:
    """Replace this process by the same program, which is to import TensorFlow: what was loaded cannot be unloaded."""
    command = Path("/proc/self/cmdline").read_bytes().split(b"\0")[:-1]  # sys.orig_argv is newer than Python 3.9
    os.environ[FULL] = why.replace("\n", " ")[:300]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [os.fsencode(sys.executable), *command[1:]])
