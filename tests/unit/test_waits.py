"""docs/reliability.md lists what waits, for how long, and what happens then: each phase, each limit that can be set,
and each function of the pod's code and of the operator that blocks. A wait without a row fails here."""

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

import elastic_tfjob
from elastic_tfjob.controller.job.decision import Timeouts
from elastic_tfjob.controller.model.settings import RescaleLimits
from elastic_tfjob.controller.model.state import Phase

PACKAGE = Path(elastic_tfjob.__file__).parent
PAGE = PACKAGE.parents[1] / "docs" / "reliability.md"
SECTION = PAGE.read_text().partition("\n## What waits, and for how long\n")[2].partition("\n## ")[0]
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in SECTION.splitlines()
    if line.startswith("| ") and not line.startswith("| waits")
]
BLOCKS = {"sleep", "wait", "wait_for", "join", "select", "recv", "acquire", "waitpid", "sigtimedwait", "serve_forever"}
"""Calls that wait, by the last part of their names; `sum` of an agreement waits for all workers."""
FOLDERS = ("runtime", "exporter", "controller/job", "controller/kube", "controller/schedule", "controller/jobset")


def blocking(source: str) -> Iterator[str]:
    """The functions of a module that call what waits, as Class.function."""

    def visit(node: ast.AST, names: tuple[str, ...]) -> Iterator[str]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = (*names, node.name)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _waits(node):
            yield ".".join(names)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, names)

    return visit(ast.parse(source), ())


def _waits(call: ast.Call) -> bool:
    assert isinstance(call.func, ast.Attribute)
    name, of = call.func.attr, ast.unparse(call.func.value)
    if name == "sum":
        return of.endswith("agreement")
    if name not in BLOCKS:
        return False
    if name == "join":  # of a text, or a path
        return not (isinstance(call.func.value, ast.Constant) or of.endswith("path"))
    if name == "sleep" and of == "asyncio":  # a turn for others
        return ast.unparse(call.args[0]) != "0"
    return True


def _found() -> set[str]:
    return {
        f"{path.relative_to(PACKAGE).with_suffix('').as_posix().replace('/', '.')}:{name}"
        for folder in FOLDERS
        for path in sorted((PACKAGE / folder).glob("*.py")) or [PACKAGE / f"{folder}.py"]
        for name in blocking(path.read_text())
    }


def test_each_wait_has_a_row() -> None:
    """And each row its wait, what bounds it, and what happens then."""
    told = {name for row in ROWS for name in re.findall(r"`([a-z_.]+:[A-Za-z_.]+)`", row[0])}
    assert told == _found()


def test_rows_are_whole() -> None:
    assert len(ROWS) > 20
    assert [row for row in ROWS if len(row) != 4 or not all(row)] == []


@pytest.mark.parametrize("phase", get_args(Phase))
def test_each_phase_has_a_row(phase: str) -> None:
    assert any(f"`{phase}`" in row[0] for row in ROWS)


def test_each_limit_of_a_change_has_its_default_there() -> None:
    limits = {f"rescale.{name}": field.default for name, field in RescaleLimits.model_fields.items()}
    limits |= {f"Timeouts.{field.name}": field.default for field in fields(Timeouts)}
    set_by = {f"Timeouts.{name.removesuffix('_timeout_s')}_s" for name in RescaleLimits.model_fields}
    for name, default in limits.items():
        if name not in set_by:
            assert any(f"`{name}` ({default:g} s)" in row[2] for row in ROWS), name


def _constant(name: str) -> object:
    module, _, constant = name.rpartition(".")
    tree = ast.parse(PACKAGE.joinpath(*module.split(".")).with_suffix(".py").read_text())
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Tuple) and isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
                for each, value in zip(target.elts, node.value.elts, strict=True):
                    if isinstance(each, ast.Name) and each.id == constant:
                        return ast.literal_eval(value)
            if isinstance(target, ast.Name) and target.id == constant:
                assert isinstance(node, ast.Assign | ast.AnnAssign)
                assert node.value is not None
                return ast.literal_eval(node.value)
    raise AssertionError(f"there is no {name}")


def test_figures_are_those_of_the_code() -> None:
    """`runtime.elastic._KILLED_S` (60 s)."""
    named = re.findall(r"`([a-z_]+(?:\.[a-z_]+)+\.[A-Z_0-9]+)` \(([0-9.]+) s\)", SECTION)
    assert len(named) > 10
    assert {name: float(told) for name, told in named} == {name: _constant(name) for name, _ in named}


def test_a_wait_that_is_added_is_found() -> None:
    source = "class A:\n    def f(self):\n        time.sleep(1)\n    def g(self):\n        ', '.join(x)"
    assert set(blocking(source)) == {"A.f"}
    assert set(blocking("def f():\n    self._agreement.sum(0)\n    sum([1])")) == {"f"}
    assert set(blocking("async def f():\n    await asyncio.sleep(0)\nasync def g():\n    await done.wait()")) == {"g"}
