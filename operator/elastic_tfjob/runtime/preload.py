"""Imports ahead of a program: what it will import, and the spare that waits with TensorFlow imported.

What a Python program imports is known from two sources. The top of its file: as far as it only imports packages and
sets environment variables, that can be done earlier with the same result. And the imports that the previous generation
reported when it was ready, with the environment variables that its libraries had read.
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
"""Prefixes of the variables that libraries read when they are imported."""
LARGE = 20
"""A package with this many modules takes long to import."""
LIGHT = "elastic_tfjob.runtime.light_native"
"""What a replica imports that only serves (light_server.py)."""
MAX_PACKAGES, MAX_VARIABLES, MAX_SOURCE = 32, 64, 1 << 20
_AST = 0x400  # ast.PyCF_ONLY_AST, without importing ast
_INSTALLED = ("site-packages", "dist-packages")


class Step(NamedTuple):
    """One step of a program's start. `import`: import the module `name`, and from it the names in `value`. `set`: set
    the environment variable `name` to `value`. `default`: the same, if it is not set."""

    kind: str
    name: str
    value: Any = ()


class Program(NamedTuple):
    """A Python program. `kind`: script, module or code. `name`: its path, module name or source text."""

    kind: str
    name: str

    @property
    def folder(self) -> str:
        """The folder of its own modules."""
        return os.path.dirname(os.path.realpath(self.name)) if self.kind == "script" else os.getcwd()


_FLAGS = "bBdOqsSuvEIPix"
_WITH_VALUE = ("-X", "-W")


def _split(command: Sequence[str]) -> tuple[list[str], str, list[str], str]:
    """Python's options in a command line, the letters of those without a value, what follows them, and why the command
    line cannot be split (empty if it can)."""
    if not command or not os.path.basename(command[0]).startswith("python"):
        return [], "", [], "the command is not python"
    options: list[str] = []
    letters, rest = "", list(command[1:])
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
        option = rest.pop(0)
        options.append(option)
        if option in _WITH_VALUE and rest:
            options.append(rest.pop(0))
        elif option[:2] not in _WITH_VALUE:
            if option.startswith("--") or not set(option[1:]) <= set(_FLAGS):
                return [], "", [], f"the python option {option[:40]} is not supported"
            letters += option[1:]
    return options, letters, rest, ""


def program_of(command: Sequence[str]) -> tuple[Program | None, str]:
    """The program that a command line runs, if it is a Python program that reads PYTHON variables of the environment;
    else the reason why not."""
    _, letters, rest, why = _split(command)
    if why:
        return None, why
    if hiding := [letter for letter in letters if letter in "EIS"]:
        return None, f"the python option -{hiding[0]} keeps the launcher's module from being loaded"
    if len(rest) > 1 and rest[0] in ("-m", "-c"):
        return Program("module" if rest[0] == "-m" else "code", rest[1]), ""
    if rest and not rest[0].startswith("-"):
        return Program("script", rest[0]), ""
    return None, "the command has no script"


# -- The top of a program's source -------------------------------------------------------------------------------------


def steps(program: Program) -> list[Step]:
    """The steps at the top of the program's source, in order, up to the first statement that does anything else."""
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
        if _serves_here(statement, program):
            return [*found, Step("import", LIGHT)]
        done = _steps_of(statement, program.folder)
        if done is None:
            break
        found += done
        if done and done[-1].kind == "import":
            end = len(found)
    return found[:end] if end <= MAX_PACKAGES + MAX_VARIABLES else []


def _serves_here(node: Any, program: Program) -> bool:
    """Whether a statement is a call of serve_replica() that does not return in this replica."""
    if not _calls_serve_replica(node) or not protocol.Task.of(os.environ.get("TF_CONFIG")).serves:
        return False
    from elastic_tfjob.runtime.light_server import needs_tensorflow  # noqa: PLC0415

    return not needs_tensorflow(program.name if program.kind == "script" else None)


def _calls_serve_replica(node: Any) -> bool:
    call: Any = node.value if type(node).__name__ == "Expr" else None
    if type(call).__name__ != "Call" or call.args or call.keywords:
        return False
    return _is(call.func, "serve_replica") or _is(call.func, "elastic_tfjob.runtime.serve_replica")


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
    """The file of a module, found without importing its packages, and so only where these contain no code. Raises
    OSError."""
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
    """The steps of a statement; None for a statement that does anything else."""
    kind = type(node).__name__
    if _calls_serve_replica(node):
        return []
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
    return type(node).__name__ == "Index"  # of Python 3.8, still made by some tools


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
    """Whether `import name` would find a module in this folder, other than the file `other_than`."""
    with contextlib.suppress(Exception):  # finders of other packages raise anything
        spec = importlib.machinery.PathFinder.find_spec(name, [folder])
        if spec is None or spec.loader is None or spec.origin is None:
            return False
        return not other_than or os.path.realpath(spec.origin) != os.path.realpath(other_than)
    return True


def has_custom_module(name: str) -> bool:
    """Whether the image has a module by this name (`sitecustomize`) outside the standard library. It may watch imports,
    and so must be imported first."""
    with contextlib.suppress(Exception):
        spec = importlib.machinery.PathFinder.find_spec(name)
        return spec is not None and spec.origin is not None and _place(spec.origin) != "standard"
    return True


def _where(name: str) -> str:
    """`installed`: a package installed beside the interpreter. `standard`: it comes with Python. Otherwise `local`."""
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


# -- What the previous generation imported -----------------------------------------------------------------------------


def large_packages() -> list[str]:
    """Installed packages with many modules that this process has imported, in the order of import."""
    counts: dict[str, int] = {}
    for name in list(sys.modules):
        counts[name.partition(".")[0]] = counts.get(name.partition(".")[0], 0) + 1
    found = []
    for name, count in counts.items():
        path = getattr(sys.modules.get(name), "__file__", None)
        if count >= LARGE and isinstance(path, str) and _place(path) == "installed":
            found.append(name)
    return found[:MAX_PACKAGES]


def report_imports() -> None:
    """Called in a program that is ready: write what it has imported to imports.json, for the next generation."""
    shared = os.environ.get(protocol.DIRECTORY)
    if shared:
        with contextlib.suppress(OSError):
            imported = {"packages": large_packages(), "environment": library_variables(os.environ)}
            protocol.write(Path(shared) / protocol.IMPORTS, imported)


def library_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that libraries read when they are imported; not TF_CONFIG."""
    found = {name: value for name, value in environment.items() if name.startswith(READ_EARLY) and name != "TF_CONFIG"}
    return dict(sorted(found.items())[:MAX_VARIABLES])


def valid_packages(reported: Any) -> list[str]:
    """The package names in what a program wrote; anything else is ignored."""
    if not isinstance(reported, list):
        return []
    return [name for name in reported[:MAX_PACKAGES] if isinstance(name, str) and name.isidentifier()]


def valid_variables(reported: Any) -> dict[str, str]:
    """The library variables in what a program wrote; anything else is ignored."""
    if not isinstance(reported, dict):
        return {}
    found = {str(name): value for name, value in reported.items() if isinstance(value, str) and "\0" not in value}
    return library_variables({name: value for name, value in found.items() if "=" not in name and "\0" not in name})


def run(todo: Iterable[Step]) -> None:
    """Carry out the steps. Raises whatever an import raises."""
    for step in todo:
        if step.kind == "set":
            os.environ[step.name] = step.value
        elif step.kind == "default":
            os.environ.setdefault(step.name, step.value)
        else:
            module = __import__(step.name, {}, {}, list(step.value))
            for name in step.value:  # some modules create names on access
                getattr(module, name)


# -- The spare: a process that has imported TensorFlow and waits for the user's program (rescale mode `spare`) ---------

_SPARE = "import sys; sys.path.insert(0, {archive!r}); from elastic_tfjob.runtime.preload import run_spare; run_spare()"


def spare_command(command: Sequence[str], archive: str) -> list[str] | None:
    """The command line of a spare for a program; None unless the program's is `python SCRIPT ARGUMENTS` or
    `python -m MODULE ARGUMENTS`. `archive`: the path of launcher.pyz."""
    options, letters, rest, why = _split(command)
    runnable = (rest and not rest[0].startswith("-")) or (len(rest) > 1 and rest[0] == "-m")
    if why or not runnable or set(letters) & set("EIPix"):
        return None
    return [command[0], *options, "-c", _SPARE.format(archive=archive), *rest]


def run_spare() -> None:
    """Import TensorFlow, report that, wait for the TF_CONFIG, and become the program."""
    import runpy  # noqa: PLC0415
    import time  # noqa: PLC0415

    directory = Path(os.environ[protocol.DIRECTORY])
    folder = protocol.generation_directory(directory, int(os.environ[protocol.GENERATION]))
    parent = os.getppid()
    # The variables that the running program set before it imported TensorFlow: some are read only then.
    for name, value in ((protocol.read(directory / protocol.HELLO) or {}).get("environment") or {}).items():
        os.environ.setdefault(name, value)
    import tensorflow  # noqa: F401, PLC0415

    protocol.write(folder / protocol.READY, {"spare": True})
    while (start := protocol.read(folder / protocol.START)) is None:
        if os.getppid() != parent:  # the launcher has ended
            os._exit(1)
        time.sleep(0.005)
    if start.get("tf_config") is not None:
        os.environ["TF_CONFIG"] = start["tf_config"]
    (folder / protocol.READY).unlink()  # from now on the file means: the program waits in resume()
    sys.path.pop(0)  # what _SPARE inserted; PYTHONPATH has it too
    if sys.argv[1] == "-m":
        sys.path[0] = os.getcwd()
        sys.argv[:2] = []
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv.pop(0)
        sys.path[0] = os.path.dirname(os.path.realpath(sys.argv[0]))
        runpy.run_path(sys.argv[0], run_name="__main__")
