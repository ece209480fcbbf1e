"""What a Python program imports first and is long about, so that an interpreter can do it before the program begins.

Two sources. The beginning of its source: as far as that only imports packages and sets environment variables, it can
be done earlier and nothing is different. And what the generation before had imported when it was ready, with the
variables that TensorFlow reads when it is imported.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from elastic_tfjob.runtime import protocol

READ_EARLY = ("TF_", "GRPC_", "XLA_", "KERAS_", "OMP_", "MKL_", "KMP_", "CUDA_")
"""So begin the names of variables that libraries read when they are imported."""
LARGE = 20
"""A package of so many modules took long to import."""
MAX_PACKAGES, MAX_VARIABLES, MAX_SOURCE = 32, 64, 1 << 20
_AST = 0x400  # ast.PyCF_ONLY_AST, without importing ast
_INSTALLED = ("site-packages", "dist-packages")


class Step(NamedTuple):
    """`import`: the module `name`, and of it the names of `value`. `set`, `default`: the variable `name` to `value`,
    the latter if it has none."""

    kind: str
    name: str
    value: Any = ()


class Program(NamedTuple):
    """What a command line of Python runs: `kind` is script, module or code, `name` its path, name or text."""

    kind: str
    name: str

    @property
    def folder(self) -> str:
        """Where its own modules are."""
        return os.path.dirname(os.path.realpath(self.name)) if self.kind == "script" else os.getcwd()


_FLAGS = "bBdOqsSuvEIPix"
_WITH_VALUE = ("-X", "-W")


def program_of(command: Sequence[str]) -> tuple[Program | None, str]:
    """What a command runs, if that is a Python program to which variables of the environment count; else why not."""
    if not command or not os.path.basename(command[0]).startswith("python"):
        return None, "the command is not python"
    rest = list(command[1:])
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
        flag = rest.pop(0)
        if flag in _WITH_VALUE and rest:
            rest.pop(0)
        elif flag[:2] in _WITH_VALUE:
            continue
        elif flag.startswith("--") or not set(flag[1:]) <= set(_FLAGS):
            return None, f"python's option {flag[:40]} is not known"
        elif set(flag[1:]) & set("EIS"):
            return None, f"python's option {flag[:40]} hides the launcher's module from it"
    if len(rest) > 1 and rest[0] in ("-m", "-c"):
        return Program("module" if rest[0] == "-m" else "code", rest[1]), ""
    if rest and not rest[0].startswith("-"):
        return Program("script", rest[0]), ""
    return None, "the command names no script"


# -- the beginning of a program's source ---------------------------------------------------------------------------


def steps(program: Program) -> list[Step]:
    """What the program's source begins with, in order. Ends at the first statement that does anything else."""
    try:
        source = _source(program)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = compile(source, "program", "exec", _AST, True)
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return []
    found: list[Step] = []
    end = 0
    for statement in tree.body:
        done = _steps_of(statement, program.folder)
        if done is None:
            break
        found += done
        if done and done[-1].kind == "import":
            end = len(found)
    return found[:end] if end <= MAX_PACKAGES + MAX_VARIABLES else []


def _source(program: Program) -> bytes:
    """Raises OSError."""
    if program.kind == "code":
        return program.name.encode("utf-8", "surrogateescape")
    path = program.name
    if program.kind == "module":
        path = _module_file(program.name)
    with open(path, "rb") as file:
        return file.read(MAX_SOURCE)


def _module_file(name: str) -> str:
    """Without importing the packages that it is in, so only if these have nothing to run. Raises OSError."""
    *packages, last = name.split(".")
    for folder in [os.getcwd(), *sys.path]:
        at, begins = folder, True
        for package in packages:
            at = os.path.join(at, package)
            begin = os.path.join(at, "__init__.py")
            begins = begins and os.path.isfile(begin) and not os.path.getsize(begin)
        if begins and os.path.isfile(found := os.path.join(at, last + ".py")):
            return found
        if begins and os.path.isfile(found := os.path.join(at, last, "__main__.py")):
            raise OSError("a package")
    raise OSError("no such module")


def _steps_of(node: Any, folder: str) -> list[Step] | None:
    """None: a statement that does anything else."""
    kind = type(node).__name__
    if kind == "Expr":
        call = node.value
        if type(call).__name__ == "Constant":
            return []
        if type(call).__name__ != "Call" or call.keywords or not _is(call.func, "os.environ.setdefault"):
            return None
        given = [_text(each) for each in call.args]
        return [Step("default", given[0], given[1])] if len(given) == 2 and None not in given else None
    if kind == "Assign" and len(node.targets) == 1:
        target = node.targets[0]
        if type(target).__name__ == "Subscript" and _is(target.value, "os.environ"):
            index = target.slice
            name, value = _text(getattr(index, "value", None) if _is_index(index) else index), _text(node.value)
            return [Step("set", name, value)] if name is not None and value is not None else None
        return [] if type(target).__name__ == "Name" and _literal(node.value) else None
    if kind == "Import":
        return _imports([(each.name, ()) for each in node.names], folder)
    if kind == "ImportFrom" and not node.level:
        if node.module == "__future__":
            return []
        return _imports([(node.module, tuple(each.name for each in node.names))], folder)
    return None


def _is_index(node: Any) -> bool:
    return type(node).__name__ == "Index"  # Python 3.8's, kept by some tools


def _is(node: Any, dotted: str) -> bool:
    *rest, last = dotted.split(".")
    if not rest:
        return type(node).__name__ == "Name" and node.id == last
    return type(node).__name__ == "Attribute" and node.attr == last and _is(node.value, ".".join(rest))


def _text(node: Any) -> Any:
    value = getattr(node, "value", None) if type(node).__name__ == "Constant" else None
    return value if isinstance(value, str) and "\0" not in value else None


def _literal(node: Any) -> bool:
    kind = type(node).__name__
    return kind == "Constant" or (kind in ("Tuple", "List", "Set") and all(map(_literal, node.elts)))


def _imports(modules: Iterable[tuple[str, tuple[str, ...]]], folder: str) -> list[Step] | None:
    found = []
    for name, of_it in modules:
        top = name.partition(".")[0]
        where = "local" if has_module(folder, top) else _where(top)
        if where == "local" or "*" in of_it:
            return None
        if where == "installed":
            found.append(Step("import", name, of_it))
    return found


def has_module(folder: str, name: str, other_than: str = "") -> bool:
    """Whether `import name` would find something in this directory, other than this file."""
    with contextlib.suppress(Exception):  # of other finders' making
        spec = importlib.machinery.PathFinder.find_spec(name, [folder])
        if spec is None or spec.loader is None or spec.origin is None:
            return False
        return not other_than or os.path.realpath(spec.origin) != os.path.realpath(other_than)
    return True


def has_custom(name: str) -> bool:
    """Whether the image has a module by this name (`sitecustomize`), other than the one of Python's own directory: it
    may watch what is imported, and so has to be there before."""
    with contextlib.suppress(Exception):
        spec = importlib.machinery.PathFinder.find_spec(name)
        return spec is not None and spec.origin is not None and _place(spec.origin) != "standard"
    return True


def _where(name: str) -> str:
    """installed: a package that was installed beside the interpreter; standard: it comes with Python; else local."""
    if name in sys.builtin_module_names or name == "elastic_tfjob":
        return "standard"
    with contextlib.suppress(Exception):
        spec = importlib.machinery.PathFinder.find_spec(name)
        if spec is not None and spec.origin is not None:
            return _place(spec.origin)
    return "local"


def _place(path: str) -> str:
    if any(f"{os.sep}{each}{os.sep}" in path for each in _INSTALLED):
        return "installed"
    standard = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
    return "standard" if path == "frozen" or os.path.abspath(path).startswith(standard) else "local"


# -- what the generation before had imported -----------------------------------------------------------------------


def large_packages() -> list[str]:
    """Installed packages of many modules that this process has imported, in that order."""
    counts: dict[str, int] = {}
    for name in list(sys.modules):
        counts[name.partition(".")[0]] = counts.get(name.partition(".")[0], 0) + 1
    found = []
    for name, count in counts.items():
        path = getattr(sys.modules.get(name), "__file__", None)
        if count >= LARGE and isinstance(path, str) and _place(path) == "installed":
            found.append(name)
    return found[:MAX_PACKAGES]


def tell() -> None:
    """In a program that is ready: tell the launcher what it has imported, for the next generation."""
    shared = os.environ.get(protocol.DIRECTORY)
    if shared:
        with contextlib.suppress(OSError):
            imported = {"packages": large_packages(), "environment": read_early(os.environ)}
            protocol.write(Path(shared) / protocol.IMPORTS, imported)


def read_early(environment: Mapping[str, str]) -> dict[str, str]:
    """Of these variables, those that libraries read when they are imported; not TF_CONFIG."""
    found = {name: value for name, value in environment.items() if name.startswith(READ_EARLY) and name != "TF_CONFIG"}
    return dict(sorted(found.items())[:MAX_VARIABLES])


def packages(told: Any) -> list[str]:
    """Names of packages in what a program wrote; anything else is passed over."""
    if not isinstance(told, list):
        return []
    return [name for name in told[:MAX_PACKAGES] if isinstance(name, str) and name.isidentifier()]


def variables(told: Any) -> dict[str, str]:
    """Variables in what a program wrote; anything else is passed over."""
    if not isinstance(told, dict):
        return {}
    found = {str(name): value for name, value in told.items() if isinstance(value, str) and "\0" not in value}
    return read_early({name: value for name, value in found.items() if "=" not in name and "\0" not in name})


def run(todo: Iterable[Step]) -> None:
    """Do these steps. Raises whatever an import raises."""
    for step in todo:
        if step.kind == "set":
            os.environ[step.name] = step.value
        elif step.kind == "default":
            os.environ.setdefault(step.name, step.value)
        else:
            module = __import__(step.name, {}, {}, list(step.value))
            for name in step.value:  # some make them when they are asked for
                getattr(module, name)
