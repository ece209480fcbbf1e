"""Checkpoints after a power loss: a share of what `make test-power-loss` tries."""

import subprocess
from pathlib import Path

import pytest

from harness import power_loss
from harness.lossy_disk import Recording, lossy_disk, missing, mounted

pytestmark = [pytest.mark.xdist_group("tensorflow-1"), pytest.mark.skipif(bool(missing()), reason=missing())]

SIZE = 48 << 20


def test_a_power_loss_costs_no_more_than_the_last_interval(tmp_path: Path) -> None:
    run = power_loss.Run(every_s=0.4, values=256 << 10, seconds=2.5)
    with lossy_disk(tmp_path, SIZE) as (volume, log):
        events = power_loss.train(volume, run)
    found = power_loss.try_instants(Recording(log, SIZE), run, events, tmp_path, count=10, seed=1)
    assert found["tried"] == 10
    assert found["wrong"] == 0
    assert found["behind"] <= 5, "flushes keep up with saves, or little is tried"


def test_the_disk_loses_what_was_not_flushed(tmp_path: Path) -> None:
    """Else the test above could not fail."""
    with lossy_disk(tmp_path, SIZE) as (volume, log):
        (volume / "kept").write_bytes(b"k" * 100_000)
        subprocess.run(["sync", volume / "kept"], check=True)
        (volume / "lost").write_bytes(b"l" * 100_000)
        at = max(record.at for record in Recording(log, SIZE).records)
    recording = Recording(log, SIZE)
    for seed in range(3):
        image = tmp_path / f"image-{seed}"
        recording.image(at, image, seed)
        with mounted(image, tmp_path / "after"):
            assert (tmp_path / "after" / "kept").read_bytes() == b"k" * 100_000
            assert not (tmp_path / "after" / "lost").exists()
