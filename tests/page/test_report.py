"""The report of `simulate` in a real Chromium: `make test-page`."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .test_page import browser, opened, pytestmark

__all__ = ["browser", "pytestmark"]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    written = tmp_path_factory.mktemp("report") / "report.html"
    command = [str(Path(sys.executable).with_name("elastic-tfjob")), "simulate", "docs/scenarios/ps-mix.yaml"]
    command += ["--nodes=6", "--gpus-per-node=4", "--cpus-per-node=16", "--profile=las", "--profile=elastic"]
    subprocess.run([*command, f"--html={written}"], cwd=ROOT, check=True, capture_output=True)
    return written


@pytest.mark.parametrize("wide", [390, 1280])
def test_the_report_of_a_simulation_is_not_cut(browser: Any, report: Path, wide: int) -> None:
    """What is wider than the window scrolls inside of its own frame."""
    with opened(browser, report.as_uri(), wide=wide) as page:
        page.wait_for_selector("table")
        assert page.evaluate("document.documentElement.scrollWidth") <= wide
        cut = """[...document.querySelectorAll('body *')].filter(each => {
            const box = each.getBoundingClientRect();
            if (box.right <= innerWidth + 1) return false;
            for (let up = each.parentElement; up; up = up.parentElement)
                if (['auto', 'scroll'].includes(getComputedStyle(up).overflowX)) return false;
            return box.width > 0;
        }).map(each => each.tagName + '.' + each.getAttribute('class')).slice(0, 5)"""
        assert page.evaluate(cut) == []
