"""A pytest plugin: a failure is told when it happens, not at the end of a run that may be cut off before."""

import os
import sys

import pytest


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """One line for each, in the process that the terminal belongs to."""
    if not report.failed or "PYTEST_XDIST_WORKER" in os.environ or report.longrepr is None:
        return
    crash = getattr(report.longrepr, "reprcrash", None)
    words = crash.message if crash is not None else str(report.longrepr)
    first = next(iter(words.splitlines()), "")
    print(f"\n✗ {report.nodeid} ({report.when}, {report.duration:.0f} s): {first[:500]}", file=sys.stderr, flush=True)
