"""Profiles of other packages: the package of docs/add-a-profile.md, installed outside of the repository, and broken
ones beside it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_tfjob.controller.model.settings import parse_configuration
from elastic_tfjob.controller.query.rows import openapi
from elastic_tfjob.scheduling.contract import refusals
from elastic_tfjob.scheduling.installed_profiles import InstalledProfiles, load_installed_profiles
from elastic_tfjob.scheduling.profiles import PROFILES, all_profiles, build, installed_profiles, parse_profile
from elastic_tfjob.simulation.summary import print_catalogue
from harness.packages import install, install_small_first

from .build import job, node, plan, sizes, workers

CLASS = """
from elastic_tfjob.scheduling.core import ProfileParameters, Stages, needs
from elastic_tfjob.scheduling.orders import Fifo
from elastic_tfjob.scheduling.steps.declared_size import FixedSize

class Parameters(ProfileParameters):
    def stages(self):
        {stages}
"""


def test_an_installed_profile_decides_like_any_other(site: Path) -> None:
    install_small_first(site)
    jobs = [job("wide", workers(4), at=0), job("large", workers(9), at=2, on={"Worker": ("n",) * 9})]
    decided = plan("small-first", [node("n", gpus=10)], jobs)
    assert sizes(decided) == {"wide": 4}
    assert str(decided.changes["large"].why) == "has more than 8 replicas, and others wait"
    assert list(all_profiles()) == [*PROFILES, "small-first"]
    assert "small-first" not in PROFILES


def test_a_config_map_may_choose_it(site: Path) -> None:
    install_small_first(site)
    found = parse_configuration("profile: small-first\nprofiles: {small-first: {most: 3}}")
    assert found.parameters.model_dump()["most"] == 3
    assert refusals("small-first", {"most": 3}) == []
    with pytest.raises(ValueError, match=r"small-first\.most.*greater than or equal to 1"):
        parse_configuration("profiles: {small-first: {most: 0}}")
    with pytest.raises(ValueError, match=r"allowed: fixed, .*, small-first\. Did you mean small-first"):
        parse_configuration("profile: small-fist")


def test_the_query_api_may_ask_for_it(site: Path) -> None:
    install_small_first(site)
    question = openapi.document()["paths"][openapi.WHAT_IF]["post"]["requestBody"]
    profile = question["content"]["application/json"]["schema"]["properties"]["profile"]
    assert profile["enum"] == [*PROFILES, "small-first"]


GOOD = CLASS.format(stages="return Stages(Fifo(), (FixedSize(),), needs())")


@pytest.mark.parametrize(
    ("source", "entry", "why"),
    [
        ("import no_such_module", "mine = mine:Parameters", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit(3)", "mine = mine:Parameters", "SystemExit: 3"),
        ("raise RuntimeError('\\x1b[2J' + 'x' * 1000)", "mine = mine:Parameters", "RuntimeError:  [2Jxxx"),
        (GOOD, "mine = mine:Missing", "AttributeError: module 'mine' has no attribute 'Missing'"),
        (GOOD, "mine = mine:needs", "TypeError: mine:needs is not a subclass of ProfileParameters"),
        (GOOD, "mine = mine:Fifo", "TypeError: mine:Fifo is not a subclass of ProfileParameters"),
        (GOOD, "mine = mine:ProfileParameters", "TypeError: mine:ProfileParameters has no method `stages`"),
        (GOOD, "fifo = mine:Parameters", "ValueError: elastic-tfjob already has a profile of this name"),
        (GOOD, "Mine = mine:Parameters", "ValueError: a profile's name has at most 32 lower-case letters"),
        (GOOD, "a/b = mine:Parameters", "ValueError: a profile's name has"),
        (GOOD, f"{'m' * 33} = mine:Parameters", "ValueError: a profile's name has"),
        (GOOD, "no equals sign", ""),
    ],
)
def test_a_broken_package_is_named_and_stops_no_other(site: Path, source: str, entry: str, why: str) -> None:
    install_small_first(site)
    install(site, "broken", "mine", source, entry)
    found = load_installed_profiles(PROFILES)
    assert list(found.profiles) == ["small-first"]
    (problem,) = found.problems
    assert problem.package == "broken 1.0"
    assert why in problem.why
    assert len(str(problem)) < 500
    assert str(problem).isprintable()
    assert plan("fifo", [node("n", gpus=1)], [job("a", workers(1))]).changes


def test_the_first_package_by_name_gets_a_profile_name_that_two_have(site: Path) -> None:
    install(site, "b", "b", GOOD, "mine = b:Parameters")
    install(site, "a", "a", GOOD, "mine = a:Parameters")
    found = load_installed_profiles(PROFILES)
    assert found.packages == {"mine": "a 1.0"}
    assert [str(problem) for problem in found.problems] == [
        "profile 'mine' of package b 1.0 is not available: ValueError: package a 1.0 already has a profile of this name"
    ]


def test_choosing_a_broken_profile_is_refused_with_the_cause(site: Path) -> None:
    install(site, "broken", "mine", "import no_such_module", "mine = mine:Parameters")
    words = "profile 'mine' of package broken 1.0 is not available: ModuleNotFoundError"
    for text in ("profile: mine", "profiles: {mine: {}}"):
        with pytest.raises(ValueError, match=words):
            parse_configuration(text)


@pytest.mark.parametrize(
    ("stages", "why"),
    [
        ("raise KeyError('no-such-key')", "profile mine of package mine 1.0 fails: KeyError: 'no-such-key'"),
        ("return Stages(Fifo(), (), frozenset({'magic'}))", "profile mine: unknown needs 'magic'"),
        ("return None", "profile mine of package mine 1.0 fails: AttributeError"),
        ("return Stages(Fifo(), (), frozenset())", "TypeError: stages\\(\\) gives no steps"),
        ("return Stages(Fifo(), (Fifo,), frozenset())", "TypeError: the step .* a class needs to be instantiated"),
        ("return Stages(Fifo, (print,), frozenset())", "TypeError: the order is .* no instance"),
    ],
)
def test_a_profile_that_cannot_be_built_is_refused(site: Path, stages: str, why: str) -> None:
    install(site, "mine", "mine", CLASS.format(stages=stages), "mine = mine:Parameters")
    for refused in (
        lambda: parse_configuration("profile: mine"),
        lambda: build("mine", parse_profile("mine", {})),
        lambda: refusals("mine", {}),
    ):
        with pytest.raises(ValueError, match=why):
            refused()


def test_the_packages_are_imported_once(site: Path) -> None:
    install(site, "mine", "mine", f"print('imported')\n{GOOD}", "mine = mine:Parameters")
    first: InstalledProfiles = installed_profiles()
    assert installed_profiles() is first
    assert list(first.profiles) == ["mine"]


def simulate(site: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """The command in a process of its own, in which the packages of `site` are installed: two jobs on one node."""
    jobs = site / "jobs.csv"
    jobs.write_text("job_id,submit_s,duration_s,num_gpus\nwide,0,10,2\nsmall,0,5,1\n")
    program = [sys.executable, "-c", "from elastic_tfjob.entry import elastic_tfjob; elastic_tfjob()"]
    words = [*program, "simulate", str(jobs), "--nodes", "1", "--gpus-per-node", "2"]
    folders = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "COLUMNS": "200"}
    return subprocess.run([*words, *options], env=variables, capture_output=True, text=True, check=False)


def test_simulate_runs_it_beside_a_broken_one(tmp_path: Path) -> None:
    """In processes of their own, too: two runs, two processes."""
    install_small_first(tmp_path)
    install(tmp_path, "broken", "mine", "import no_such_module", "mine = mine:Parameters")
    profiles = ("--profile", "small-first", "--profile", "fifo")
    ran = simulate(tmp_path, *profiles, "--jobs", "2", "--set", "small-first.most=3")
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"small-first .*2/2", ran.stdout), ran.stdout
    assert "Warning: profile 'mine' of package broken 1.0 is not available: ModuleNotFoundError" in ran.stderr
    refused = simulate(tmp_path, "--profile", "mine")
    assert refused.returncode == 2
    assert "package broken 1.0 is not available" in refused.stderr
    listed = simulate(tmp_path, "--list")
    assert "replicas above which a running job makes room for others" in listed.stdout
    assert "Profile small-first is from package small-first 1.0." in listed.stdout


RAISES = """
from elastic_tfjob.scheduling.core import ProfileParameters, Stages, needs
from elastic_tfjob.scheduling.orders import Fifo
from elastic_tfjob.scheduling.steps.declared_size import FixedSize

def look(round_):
    if round_.now >= 5:
        raise KeyError("boom")

class Parameters(ProfileParameters):
    def stages(self):
        return Stages(Fifo(), (look, FixedSize()), needs())
"""


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_profile_that_raises_ends_only_its_own_run(tmp_path: Path, processes: str) -> None:
    install(tmp_path, "acme", "mine", RAISES, "mine = mine:Parameters")
    results = tmp_path / "results.json"
    options = ("--replications", "2", "--jobs", processes, "--json", str(results))
    ran = simulate(tmp_path, "--profile", "mine", "--profile", "fifo", *options)
    error = "profile mine of package acme 1.0 failed at 10 s: KeyError: 'boom' (mine.py:8)"
    assert ran.stderr.splitlines()[-1] == f"Error: {error}; 1 other run(s) of it failed, too"
    assert "Traceback" not in ran.stderr
    assert ran.returncode == 1
    assert re.search(r"fifo #1 .*2/2", ran.stdout), ran.stdout
    runs = json.loads(results.read_text())["runs"]
    assert [(run["profile"], run["finished"]) for run in runs] == [("fifo", 2), ("fifo", 2)]


def test_simulate_refuses_a_profile_that_cannot_be_built_before_the_first_run(tmp_path: Path) -> None:
    source = CLASS.format(stages="return Stages(Fifo(), (), frozenset({'magic'}))")
    install(tmp_path, "acme", "mine", source, "mine = mine:Parameters")
    refused = simulate(tmp_path, "--profile", "fifo", "--profile", "mine")
    assert (refused.returncode, refused.stdout) == (1, "")
    (line,) = refused.stderr.splitlines()
    assert line.startswith("Error: profile mine: unknown needs 'magic'")


DEFAULTS = f"""
from pydantic import Field
{GOOD}
    given: list[int] = Field(default_factory=lambda: [1, 2], description="from a factory")
    asked: int = Field(description="without a default")
    broken: int = Field(default_factory=lambda: 1 // 0, description="from a factory that fails")
"""


def test_the_list_has_the_defaults_of_factories(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(site, "acme", "mine", DEFAULTS, "mine = mine:Parameters")
    print_catalogue()
    shown = capsys.readouterr().out
    for parameter, default in (
        ("given", r"\[1, 2\]"),
        ("asked", r"\(required\)"),
        ("broken", r"\(ZeroDivisionError\)"),
    ):
        assert re.search(rf" {parameter} +{default} ", shown), shown
