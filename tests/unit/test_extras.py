"""An installation without extras works as far as it goes, and says what to install for more."""

import importlib
import itertools
import re
import sys
import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from elastic_tfjob import cli, entry

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def test_the_extras_are_those_of_pyproject() -> None:
    written = {
        extra: tuple(re.split(r"[^\w-]", each)[0].replace("-", "_") for each in requirements)
        for extra, requirements in PROJECT["optional-dependencies"].items()
    }
    assert written == cli.EXTRAS


def test_no_requirement_is_there_where_only_the_hook_works() -> None:
    """An image with Python 3.9 gets nothing that could move its TensorFlow's own requirements."""
    all_of_them = [*PROJECT["dependencies"], *itertools.chain(*PROJECT["optional-dependencies"].values())]
    newest = ".".join(map(str, entry.COMMANDS_NEED))
    assert [each for each in all_of_them if not each.endswith(f"; python_version >= '{newest}'")] == []


@pytest.fixture
def without_aiohttp(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(module: str) -> None:
        raise ModuleNotFoundError("No module named 'aiohttp'", name="aiohttp.web")

    monkeypatch.setattr(importlib, "import_module", missing)


@pytest.mark.usefixtures("without_aiohttp")
@pytest.mark.parametrize("arguments", [["jobs"], ["jobs", "--help"], ["scale", "a", "--workers", "3"]])
def test_a_command_without_its_packages_names_the_extra(arguments: list[str]) -> None:
    told = CliRunner().invoke(cli.main, arguments)
    assert (told.exit_code, told.stderr) == (
        1,
        "Error: Needs pip install 'elastic-tfjob[operator]' (aiohttp is missing).\n",
    )


@pytest.mark.usefixtures("without_aiohttp")
def test_the_help_lists_it_with_the_extra() -> None:
    told = CliRunner().invoke(cli.main, ["--help"])
    assert told.exit_code == 0
    assert re.search(r"jobs +Needs pip install 'elastic-tfjob\[operator\]'", told.stdout)


def test_a_command_that_imports_late_names_the_extra() -> None:
    @click.group(cls=cli.LazyGroup)
    def group() -> None: ...

    @group.command()
    def late() -> None:
        raise ModuleNotFoundError("No module named 'structlog'", name="structlog")

    told = CliRunner().invoke(group, ["late"])
    assert (told.exit_code, told.stderr) == (
        1,
        "Error: Needs pip install 'elastic-tfjob[operator]' (structlog is missing).\n",
    )


def test_a_module_that_no_extra_has_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(module: str) -> None:
        raise ModuleNotFoundError("No module named 'yarl'", name="yarl")

    monkeypatch.setattr(importlib, "import_module", missing)
    told = CliRunner().invoke(cli.main, ["jobs"])
    assert isinstance(told.exception, ModuleNotFoundError)


def test_an_older_python_is_told_which_one_the_commands_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 18))
    for command in (entry.elastic_tfjob, entry.kubectl_tfjob, entry.kubectl_complete_tfjob):
        with pytest.raises(SystemExit, match=r"need Python 3\.11 or newer; this is 3\.9"):
            command()
