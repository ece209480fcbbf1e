"""What an operator with `--experience` writes down on a real control plane."""

import asyncio
from pathlib import Path

import pytest

from elastic_tfjob.scheduling.experience import ExperienceRound, of_line
from harness import kwok, operators
from harness.api import Api, tfjobs
from harness.controlplane import ControlPlane
from harness.reasons import reason_of

from .fake_nodes import HOME, NAME, configure, job, target_when
from .running import running


@pytest.mark.timeout(300)
@pytest.mark.xdist_group("scheduled")
async def test_rounds_are_written_down_and_weights_that_are_missing_are_said(
    plane: ControlPlane, tmp_path: Path
) -> None:
    """First what a job gets, then what it has; and a policy without weights does what `hull` does."""
    experience, weights = tmp_path / "experience", tmp_path / "w.npz"
    experience.mkdir()
    identity = await asyncio.to_thread(operators.service_account, "ours", plane.kubeconfig)
    arguments = [f"--config-map={HOME}/{NAME}", f"--experience={experience}"]

    def moments() -> list[ExperienceRound]:
        file = experience / "experience.jsonl"
        if not file.exists():
            return []
        whole, _, _ = file.read_text().rpartition("\n")  # the last line may be half written
        return [of_line(line) for line in whole.splitlines()]

    def has() -> list[object]:
        return [seen.has for moment in moments()[-1:] for seen in moment.jobs if seen.job == "default/j"]

    async with (
        Api(plane.kubeconfig) as api,
        kwok.nodes(api, plane.kubeconfig, tmp_path, 2, cpu=4),
    ):
        await configure(api, profile="dl2", profiles={"dl2": {"weights": str(weights), "interval_s": 6}})
        async with running("ours", plane.kubeconfig, tmp_path, arguments=arguments, identity=identity):
            await api.create(tfjobs("default"), job("j", PS=1, Worker=2))
            target = await target_when(api, "j", lambda target: target["replicas"])
            assert "the learned policy cannot be used" in reason_of(target)
            async with asyncio.timeout(120):
                while has() != [{"PS": 1, "Worker": 2}]:
                    await asyncio.sleep(0.5)
    found = [seen for moment in moments() for seen in moment.jobs if seen.job == "default/j"]
    assert found[0].gets == {"PS": 1, "Worker": 2}
    assert found[-1].has == {"PS": 1, "Worker": 2}
    assert [number for _, number in moments()[-1].nodes] == [2]
