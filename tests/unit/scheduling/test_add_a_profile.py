"""What docs/add-a-profile.md says works as it stands there."""

import re
from pathlib import Path
from typing import Any

import pytest

from elastic_tfjob.scheduling.profiles import PROFILES, build, parse_profile

from ..simulation.build import finishes, simulate, work
from .build import job, node, plan, sizes, workers
from .invariants import violations

PAGE = Path(__file__).resolve().parents[3] / "docs" / "add-a-profile.md"


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's module, and its line in the registry."""
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    module: dict[str, Any] = {"__name__": "small_first"}
    exec(found[1], module)
    monkeypatch.setitem(PROFILES, "small-first", module["SmallFirstParameters"])


def test_it_decides() -> None:
    jobs = [
        job("wide", workers(4), at=0),
        job("small", workers(1), at=1),
        job("large", workers(9), at=2, on={"Worker": ("n",) * 9}),
    ]
    decided = plan("small-first", [node("n", gpus=10)], jobs)
    assert violations(decided) == []
    assert sizes(decided) == {"small": 1, "wide": 4}
    assert sizes(plan("small-first", [node("n", gpus=10)], jobs, most=9)) == {"small": 1, "large": 9}


def test_its_parameters_have_bounds_and_its_needs_follow() -> None:
    with pytest.raises(ValueError, match=r"small-first\.most.*greater than or equal to 1"):
        parse_profile("small-first", {"most": 0})
    assert build("small-first", parse_profile("small-first", {"oracle": True})).needs == {"stop", "oracle"}


def test_it_runs_in_the_simulator() -> None:
    outcome = simulate("small-first", [work("wide", 0, 10, gpus=2), work("small", 0, 5)], gpus=2)
    assert finishes(outcome) == {"small": 5, "wide": 15}


def test_all_modules_that_the_page_names_are_there() -> None:
    root = PAGE.parents[1] / "operator" / "elastic_tfjob" / "scheduling"
    for name in re.findall(r"`((?:stages|toolkit)/[a-z_/]+(?:\.py)?)`", PAGE.read_text()):
        assert (root / name).exists(), name
