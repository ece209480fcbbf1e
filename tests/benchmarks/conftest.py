"""A pretended job in the place of one on a cluster."""

from pathlib import Path

import pytest

import trainee

from .pretended_job import Clock, Said, Seen


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Clock:
    """The time of a Pretended job, which has saved: in the way of one launcher or of another."""
    for name in ("1.complete", "checkpoint"):
        (tmp_path / name).touch()
    monkeypatch.setattr("harness.cluster.shared_folder", lambda _: tmp_path)
    monkeypatch.setattr(trainee, "Lines", Seen)
    monkeypatch.setattr(trainee, "Annotations", Said)
    return Clock(monkeypatch)
