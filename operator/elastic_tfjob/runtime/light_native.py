"""TensorFlow's native library and the messages of its servers, without the Python of TensorFlow. Importing this module
loads them, from packages that are only folders; from then on this process cannot `import tensorflow`.

Raises whatever a version of TensorFlow raises whose files are arranged in another way.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import sys
import types
from collections.abc import Sequence
from typing import Any, Callable

__all__ = ["register", "start_server"]

_FOLDERS = (
    "tensorflow",
    "tensorflow.python",
    "tensorflow.python.client",
    "tensorflow.core",
    "tensorflow.core.protobuf",
    "tensorflow.python.lib",
    "tensorflow.python.lib.core",
)
_KERNELS = ("core/kernels/*.so", "lite/experimental/microfrontend/python/ops/*.so")
"""The libraries beside the native one that `import tensorflow` loads ops and kernels from. Before 2.19, one of them has
SobolSample."""


def _make_packages() -> str:
    """The folder of TensorFlow."""
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or spec.origin is None:
        raise ImportError("tensorflow is not installed as a package")
    root = os.path.dirname(spec.origin)
    for name in _FOLDERS:
        module = types.ModuleType(name)
        module.__path__ = [os.path.join(root, *name.split(".")[1:])]
        module.__spec__ = importlib.util.spec_from_loader(name, None, is_package=True)
        sys.modules[name] = module
    return root


_root = _make_packages()

from tensorflow.core.protobuf import tensorflow_server_pb2  # noqa: E402
from tensorflow.python.client import pywrap_tf_session  # noqa: E402

for _pattern in _KERNELS:
    for _library in sorted(glob.glob(os.path.join(glob.escape(_root), _pattern))):
        pywrap_tf_session.TF_LoadLibrary(_library)


def start_server(cluster: dict[str, list[str]], kind: str, index: int) -> tuple[Any, str]:
    """A server of this cluster (addresses by job name), which runs as long as the result is held, and its address. The
    same as `tf.distribute.Server(cluster, kind, index)`."""
    definition = tensorflow_server_pb2.ServerDef(job_name=kind, task_index=index, protocol="grpc")
    for name, tasks in cluster.items():
        job = definition.cluster.job.add(name=name)
        for k, address in enumerate(tasks):
            job.tasks[k] = address
    os.environ.setdefault("TF2_BEHAVIOR", "1")  # as `import tensorflow` does; native code reads it
    server = pywrap_tf_session.TF_NewServer(definition.SerializeToString())
    pywrap_tf_session.TF_ServerStart(server)
    target = pywrap_tf_session.TF_ServerTarget(server)
    return server, target.decode() if isinstance(target, bytes) else str(target)


def register(functions: dict[str, Callable[..., list[Any]]]) -> None:
    """Let the op PyFunc call these functions in this process, by their tokens. Raises ImportError."""
    from tensorflow.python.lib.core import _pywrap_py_func  # noqa: PLC0415

    def call(token: str | bytes, device: object, arguments: Sequence[Any]) -> list[Any]:
        return functions[token.decode() if isinstance(token, bytes) else token](*arguments)

    _pywrap_py_func.initialize_py_trampoline(call)
