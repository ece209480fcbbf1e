"""A pod's small files in memory, and the names of the operating system that the launcher uses, bound to them.

The launcher is the product's own. It is given paths of this module, and `virtual_machine` replaces what it calls of the
operating system while the block lasts: processes are Programs of `campaign.pod`, which the pod that is being driven
(`machine.current`) keeps.
"""

import contextlib
import os as real_os
import signal as real_signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Protocol

from elastic_tfjob.exporter import status as exporter_status
from elastic_tfjob.runtime import forkserver as forkserver_module
from elastic_tfjob.runtime import launcher as launcher_module
from elastic_tfjob.runtime import launcher_report as launcher_report_module
from elastic_tfjob.runtime import live_switch as live_switch_module
from elastic_tfjob.runtime import moved_chief as moved_chief_module
from elastic_tfjob.runtime import programs as programs_module
from elastic_tfjob.runtime import protocol as real_protocol
from elastic_tfjob.runtime.cgroup import Cores
from elastic_tfjob.runtime.processes import Process

__all__ = ["Files", "Machine", "VirtualPath", "machine", "virtual_machine"]


_NO_HOOK_S: Final = 25.0


class Files:
    """Contents by name; `changed` is called with the name of each file that is written or goes."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        self.contents: dict[str, Any] = {}
        self._stamps: dict[str, int] = {}
        self._changed = changed
        self._stamp = 0

    def write(self, name: str, content: Any) -> None:
        self._stamp += 1
        self.contents[name] = content
        self._stamps[name] = self._stamp
        self._changed(name)

    def remove(self, name: str) -> None:
        if self.contents.pop(name, None) is None:
            raise FileNotFoundError(name)
        self._changed(name)

    def remove_under(self, folder: str) -> None:
        for name in [name for name in self.contents if name.startswith(folder + "/")]:
            self.remove(name)

    def stamp(self, name: str) -> int:
        if name not in self.contents:
            raise FileNotFoundError(name)
        return self._stamps[name]


class _Status:
    __slots__ = ("st_ino", "st_mtime_ns", "st_size")

    def __init__(self, stamp: int, size: int) -> None:
        self.st_mtime_ns = self.st_ino = stamp
        self.st_size = size


class VirtualPath:
    """What the launcher does with a `pathlib.Path`."""

    __slots__ = ("files", "name")

    def __init__(self, files: Files, name: str) -> None:
        self.files = files
        self.name = name

    def __truediv__(self, part: str) -> "VirtualPath":
        return VirtualPath(self.files, f"{self.name}/{part}")

    def __str__(self) -> str:
        return self.name

    @property
    def parent(self) -> "VirtualPath":
        return VirtualPath(self.files, self.name.rpartition("/")[0])

    def exists(self) -> bool:
        return self.name in self.files.contents

    def read_text(self) -> str:
        self.files.stamp(self.name)
        return str(self.files.contents[self.name])

    def stat(self) -> _Status:
        return _Status(self.files.stamp(self.name), len(str(self.files.contents[self.name])))

    def unlink(self, missing_ok: bool = False) -> None:
        with contextlib.suppress(*([FileNotFoundError] if missing_ok else [])):
            self.files.remove(self.name)

    def mkdir(self, **_: Any) -> None:
        """Folders are there."""

    def chmod(self, mode: int) -> None:
        """Everybody reads everything."""


class Host(Protocol):
    """What the operating system asks of the pod that runs."""

    @property
    def programs(self) -> Mapping[int, object]: ...
    def spawn(self, command: Sequence[str], environment: Mapping[str, str]) -> int: ...
    def reap(self) -> tuple[int, int]: ...
    def signal(self, pid: int, number: int) -> None: ...
    def ask(self, address: str) -> dict[str, Any] | None: ...
    def listens(self, port: int) -> bool: ...
    def usage(self) -> dict[str, Any]: ...


class Machine:
    """The operating system below the launcher that is being driven."""

    current: Host

    @contextlib.contextmanager
    def of(self, host: Host) -> Iterator[None]:
        """Have that pod run."""
        before = getattr(self, "current", None)
        self.current = host
        try:
            yield
        finally:
            if before is not None:
                self.current = before


machine: Final = Machine()


class _Staged:
    """What is to replace a file, and is not there yet."""

    __slots__ = ("content",)

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content


class _Os:
    """The module `os`, with processes of the current pod."""

    environ: Final[dict[str, str]] = {}

    @staticmethod
    def posix_spawnp(program: str, command: Sequence[str], environment: Mapping[str, str], **_: Any) -> int:
        return machine.current.spawn(command, environment)

    @staticmethod
    def waitpid(pid: int, options: int) -> tuple[int, int]:
        return machine.current.reap()

    @staticmethod
    def kill(pid: int, number: int) -> None:
        machine.current.signal(pid, number)

    killpg = kill

    @staticmethod
    def replace(staged: _Staged, path: VirtualPath) -> None:
        path.files.write(path.name, staged.content)

    @staticmethod
    def unlink(staged: _Staged) -> None:
        """Nobody has seen it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(real_os, name)


class _Task:
    """`protocol.Task`: what is read from a TF_CONFIG once need not be read again each time that a launcher looks."""

    of = staticmethod(lru_cache(maxsize=4096)(real_protocol.Task.of))


class _Protocol:
    """`runtime.protocol` on virtual paths."""

    Task = _Task

    @staticmethod
    def write(path: VirtualPath, content: dict[str, Any]) -> None:
        path.files.write(path.name, content)

    @staticmethod
    def stage(path: VirtualPath, content: dict[str, Any]) -> _Staged:
        return _Staged(content)

    @staticmethod
    def read(path: VirtualPath, limit: int = 0) -> dict[str, Any] | None:
        found = path.files.contents.get(path.name)
        return found if isinstance(found, dict) else None

    @staticmethod
    def generation_directory(directory: VirtualPath, generation: int) -> VirtualPath:
        return directory / f"generation-{generation}"

    def __getattr__(self, name: str) -> Any:
        return getattr(real_protocol, name)


class _Shutil:
    @staticmethod
    def rmtree(path: VirtualPath, ignore_errors: bool = False) -> None:
        path.files.remove_under(path.name)


class _Cgroup:
    Cores = Cores

    @staticmethod
    def held_bytes() -> int | None:
        found = machine.current.usage().get("held_bytes")
        return found if isinstance(found, int) else None

    @staticmethod
    def usage() -> dict[str, Any]:
        return machine.current.usage()


class _Processes:
    """`runtime.processes`: each program is one process, of a Python that handles what ends it. All have the same
    priority."""

    @staticmethod
    def of_program(pid: int, generation: int, others: Collection[int]) -> list[Process]:
        return [Process(pid, 1, pid, 0)] if pid in machine.current.programs else []

    @staticmethod
    def reached(members: Iterable[Process], roots: Collection[int], number: int) -> list[Process]:
        return list(members)

    @staticmethod
    def handles(pid: int, number: int) -> bool:
        return True

    @staticmethod
    def ignores(pid: int, number: int) -> bool:
        return False

    @staticmethod
    def is_python(pid: int) -> bool:
        return True

    @staticmethod
    def cpu_s(pid: int) -> float:
        return 0.5

    @staticmethod
    def lower_priority(pid: int) -> str:
        return ""


def _ask(address: str) -> dict[str, Any] | None:
    return machine.current.ask(address)


def _listens(port: int) -> bool:
    return machine.current.listens(port)


class _HookDetection:
    """`runtime.hook_detection` without a look into /proc: a program that has not said hello for so long has no hook."""

    def __init__(self, pid: int, started_at_s: float) -> None:
        self._started_at_s = self._now_s = started_at_s

    def sample(self, now_s: float, tensorflow_imported: bool) -> None:
        self._now_s = now_s

    def uses_hook(self, hello: bool, imported: bool) -> bool | None:
        if hello:
            return True
        return False if self._now_s - self._started_at_s >= _NO_HOOK_S else None


@contextlib.contextmanager
def virtual_machine() -> Iterator[None]:
    """The launcher's and the exporter's modules use the machine of this module."""
    protocol = _Protocol()
    of_launcher = {
        "os": _Os(),
        "protocol": protocol,
        "shutil": _Shutil(),
        "cgroup": _Cgroup(),
        "processes": _Processes,
        "listens": _listens,
        "ask": _ask,
        "HookDetection": _HookDetection,
        "has_gpu": lambda: False,
    }
    names: list[tuple[Any, str, Any]] = [
        *(
            (module, name, virtual)
            for module in (
                launcher_module,
                launcher_report_module,
                live_switch_module,
                moved_chief_module,
                programs_module,
            )
            for name, virtual in of_launcher.items()
            if hasattr(module, name)
        ),
        (forkserver_module, "os", _Os()),
        (exporter_status, "protocol", protocol),
    ]
    assert {name for _, name, _ in names} >= of_launcher.keys(), "the launcher has no such name"
    before = [(module, name, getattr(module, name)) for module, name, _ in names]
    for module, name, virtual in names:
        setattr(module, name, virtual)
    try:
        yield
    finally:
        for module, name, original in before:
            setattr(module, name, original)


SIGTERM: Final = int(real_signal.SIGTERM)
SIGKILL: Final = int(real_signal.SIGKILL)
