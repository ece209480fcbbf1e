"""An installation without extras works as far as it goes, and says what to install for more."""

import itertools
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from elastic_tfjob import cli, entry, extras
from elastic_tfjob.api.words import JOB_SORTS
from elastic_tfjob.commands import usage
from elastic_tfjob.controller.query.rows.listing import SORTED_BY

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


MODULES = {"pyyaml": "yaml"}
"""Of distributions that are imported under another name."""


def test_the_extras_are_those_of_pyproject() -> None:
    written = PROJECT["optional-dependencies"]
    for extra, modules in extras.EXTRAS.items():
        wanted = [each for one in written[extra] for each in (written["cli"] if one == "elastic-tfjob[cli]" else [one])]
        names = [re.split(r"[^\w-]", each)[0] for each in wanted]
        assert {MODULES.get(name, name.replace("-", "_")) for name in names} == set(modules)


def test_without_extras_nothing_is_installed_beside_it() -> None:
    """A trainer's image keeps the NumPy that its TensorFlow wants."""
    assert PROJECT["dependencies"] == []


def test_old_pythons_get_no_requirements() -> None:
    """An image with Python 3.9 gets nothing that could move its TensorFlow's own requirements."""
    all_of_them = [*itertools.chain(*PROJECT["optional-dependencies"].values())]
    newest = ".".join(map(str, entry.COMMANDS_NEED))
    assert [
        each
        for each in all_of_them
        if not each.startswith("elastic-tfjob") and not each.endswith(f"; python_version >= '{newest}'")
    ] == []


@pytest.fixture
def without_aiohttp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda module: None if module == "aiohttp" else object())


@pytest.mark.usefixtures("without_aiohttp")
@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["jobs"], "cli"),
        (["jobs", "--help"], "cli"),
        (["scale", "a", "--workers", "3"], "cli"),
        (["operator"], "operator"),
        (["crd"], "operator"),
    ],
)
def test_a_command_without_its_packages_names_the_extra(arguments: list[str], extra: str) -> None:
    told = CliRunner().invoke(cli.main, arguments)
    assert (told.exit_code, told.stderr) == (
        1,
        f"Error: Needs pip install 'elastic-tfjob[{extra}]' (aiohttp is missing).\n",
    )


@pytest.mark.usefixtures("without_aiohttp")
def test_the_help_lists_it_with_the_extra() -> None:
    told = CliRunner().invoke(cli.main, ["--help"])
    assert told.exit_code == 0
    assert re.search(r"jobs +Needs pip install 'elastic-tfjob\[cli\]'", told.stdout)
    assert re.search(r"simulate +Simulate", told.stdout)


def test_a_command_whose_package_is_too_old_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """kubernetes 28 has no kubernetes.aio."""

    def late(**_: object) -> None:
        raise ModuleNotFoundError("No module named 'kubernetes.aio'", name="kubernetes.aio")

    monkeypatch.setattr(usage.jobs, "callback", late)
    told = CliRunner().invoke(cli.main, ["jobs"])
    assert (told.exit_code, told.stderr) == (
        1,
        "Error: Needs pip install 'elastic-tfjob[cli]' (kubernetes.aio is missing).\n",
    )


def test_a_module_that_no_extra_has_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(**_: object) -> None:
        raise ModuleNotFoundError("No module named 'yarl'", name="yarl")

    monkeypatch.setattr(usage.jobs, "callback", missing)
    told = CliRunner().invoke(cli.main, ["jobs"])
    assert isinstance(told.exception, ModuleNotFoundError)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["jobs", "-A"], r"Needs pip install 'elastic-tfjob\[cli\]' \(click is missing\)"),
        (["simulate"], r"Needs pip install 'elastic-tfjob\[simulation\]'"),
        (["operator"], r"Needs pip install 'elastic-tfjob\[operator\]'"),
        ([], r"elastic-tfjob\[cli\] .*elastic-tfjob\[simulation\] .*elastic-tfjob\[operator\] "),
        (["--help"], r"elastic-tfjob\[cli\] .*elastic-tfjob\[simulation\] .*elastic-tfjob\[operator\] "),
    ],
)
def test_without_any_extra_one_sentence_says_which_to_install(
    monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["elastic-tfjob", *words])
    with pytest.raises(SystemExit, match=said):
        entry.elastic_tfjob()


HEAVY = ("aiohttp", "asyncio", "kubernetes", "numpy", "orjson", "prometheus_client", "pydantic", "rich", "structlog")
LOADED = f"""
import atexit, sys
atexit.register(lambda: print([each for each in {HEAVY} if each in sys.modules], file=sys.stderr))
from elastic_tfjob import entry
"""


@pytest.mark.parametrize(
    ("call", "words", "environment", "answer"),
    [
        ("elastic_tfjob", ["--help"], {}, "train-policy"),
        ("elastic_tfjob", ["jobs", "--help"], {}, "Usage"),
        ("kubectl_tfjob", ["what-if", "--help"], {}, "Usage"),
        ("elastic_tfjob", ["jbos"], {}, "Did you mean jobs?"),
        ("elastic_tfjob", [], {"COMP_WORDS": "elastic-tfjob jobs --st", "COMP_CWORD": "2"}, "--state"),
        ("elastic_tfjob", [], {"COMP_WORDS": "elastic-tfjob jobs --sort ste", "COMP_CWORD": "3"}, "steps_per_s"),
        ("kubectl_complete_tfjob", ["jo"], {}, "jobs"),
        ("kubectl_complete_tfjob", ["scale", "dig"], {}, "digits"),
    ],
)
def test_help_and_completion_import_little(
    tmp_path: Path, call: str, words: list[str], environment: dict[str, str], answer: str
) -> None:
    """A shell waits for each of them. Names of jobs come from kubectl, here one that knows a single job."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/sh\necho tfjob.kubeflow.org/digits\n")
    kubectl.chmod(0o755)
    if environment:
        environment = {**environment, "_ELASTIC_TFJOB_COMPLETE": "bash_complete"}
    ended = subprocess.run(
        [sys.executable, "-c", f"{LOADED}sys.argv[:] = ['elastic-tfjob', *{words}]\nentry.{call}()"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer in ended.stdout + ended.stderr
    assert ended.stderr.splitlines()[-1] == "[]"


def test_the_list_of_commands_says_what_each_of_them_says() -> None:
    context = click.Context(cli.main)
    for name, lazy in cli.LAZY.items():
        command = cli.main.get_command(context, name)
        assert command is not None
        assert " ".join((command.help or "").split()).startswith(lazy.help), name
        assert len(lazy.help) > 5, name


def test_the_sort_options_of_help_are_those_of_the_rows() -> None:
    assert list(SORTED_BY) == list(JOB_SORTS)


def test_an_older_python_is_told_which_one_the_commands_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 18))
    for command in (entry.elastic_tfjob, entry.kubectl_tfjob, entry.kubectl_complete_tfjob):
        with pytest.raises(SystemExit, match=r"need Python 3\.11 or newer; this is 3\.9"):
            command()
