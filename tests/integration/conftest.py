"""A control plane that a test may break."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harness.controlplane import ControlPlane


@pytest.fixture
async def own_plane(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ControlPlane]:
    """One of the test's own, without any CRD; indirect parameters are those of ControlPlane."""
    plane = ControlPlane(tmp_path / "plane", **getattr(request, "param", {}))
    try:
        await asyncio.to_thread(plane.start)
        yield plane
    finally:
        await asyncio.to_thread(plane.stop)
