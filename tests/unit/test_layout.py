"""What the package's layout promises: which modules are pure, which talk, and that none grows beyond one idea."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MODULES = {
    ".".join(path.relative_to(ROOT / "operator").with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "operator" / "elastic_tfjob").glob("**/*.py"))
}
TALKS = {"aiohttp", "asyncio", "kubernetes", "prometheus_client", "structlog"}
"""What no pure module imports, itself or by others."""
SCHEDULE = "elastic_tfjob.controller.schedule."


def contracts() -> list[dict[str, Any]]:
    """Those of import-linter, which `make lint` checks."""
    found: list[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    return found


def packages(module: str) -> Iterator[str]:
    """The module and those that it is in."""
    parts = module.split(".")
    return (".".join(parts[:k]) for k in range(1, len(parts) + 1))


def says_pure(path: Path) -> bool:
    """Whether the module's docstring has the sentence `Pure.`"""
    text = path.read_text()
    if "Pure." not in text:  # every process asks this of every file when it collects the tests; to parse takes long
        return False
    return re.search(r"\bPure\.", ast.get_docstring(ast.parse(text)) or "") is not None


def imported(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    named = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return named | {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}


@pytest.mark.parametrize("module", [module for module, path in MODULES.items() if says_pure(path)])
def test_modules_called_pure_have_an_import_contract(module: str) -> None:
    held = {
        source
        for contract in contracts()
        if contract["type"] == "forbidden" and set(contract["forbidden_modules"]) >= TALKS
        for source in contract["source_modules"]
    }
    assert held & set(packages(module)), f"put {module} in a contract of pyproject.toml that forbids {sorted(TALKS)}"


def test_the_architecture_names_what_talks_in_the_schedule() -> None:
    """The row of the package, beside what it imports."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    (row,) = [line for line in text.splitlines() if line.startswith("| `controller.schedule` |")]
    talk = {
        path.name
        for module, path in MODULES.items()
        if module.startswith(SCHEDULE) and any("elastic_tfjob.controller.kube" in each for each in imported(path))
    }
    assert set(re.findall(r"`(\w+\.py)`", row)) == talk


def test_a_file_with_more_than_600_lines_is_looked_at() -> None:
    """One idea per file. A limit of 400 lines had spread single classes over several files."""
    assert {module: n for module, path in MODULES.items() if (n := len(path.read_text().splitlines())) > 600} == {}
