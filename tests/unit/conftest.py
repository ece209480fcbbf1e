"""A folder for packages with profiles."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_tfjob.scheduling.profiles import installed_profiles


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that this process imports from, as site-packages."""
    monkeypatch.syspath_prepend(tmp_path)
    known = set(sys.modules)
    installed_profiles.cache_clear()
    yield tmp_path
    installed_profiles.cache_clear()
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
