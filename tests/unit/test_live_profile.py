"""The operator beside a policy that learns: a weights file that changes is read again, and rounds are written down."""

import asyncio
import os
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from elastic_tfjob.controller.model.settings import Configuration
from elastic_tfjob.controller.schedule import experience_log, profile_reload
from elastic_tfjob.controller.schedule.experience_log import ExperienceLog
from elastic_tfjob.controller.schedule.profile_reload import ProfileReload
from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.experience import of_line
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profiles.dl2.network import as_bytes, flat, greedy, of_flat
from elastic_tfjob.scheduling.reasons import as_reason

from .scheduling.build import job, node, plan, rates, sizes, snapshot, workers

GREEDY = greedy(16)
NOTHING = of_flat(np.zeros(len(flat(GREEDY))), 16)
"""Adds nothing to any job."""


def hand_over(path: Path, content: bytes) -> None:
    new = path.with_name("new")
    new.write_bytes(content)
    os.replace(new, path)


def decided(live: ProfileReload, configuration: Configuration) -> Plan:
    j = job("j", workers(1, 1, 4), steps=100, speed=rates(1.0, 1.9, 2.7, 3.4))
    return schedule(snapshot([node("n", gpus=8)], [j]), live.of(configuration))


async def test_weights_that_are_handed_over_decide_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile_reload, "CHECK_INTERVAL_S", 0.0)
    path = tmp_path / "w.npz"
    configuration = Configuration(profile="dl2", profiles={"dl2": {"weights": str(path)}})
    live = ProfileReload()
    await live.follow(configuration)
    found = decided(live, configuration)
    assert "the learned policy cannot be used" in str(as_reason(found.changes["j"].reason))
    for content, size in ((as_bytes(NOTHING, {}), 1), (as_bytes(GREEDY, {}), 4)):
        hand_over(path, content)
        assert await live.follow(configuration)
        assert not await live.follow(configuration), "it is another file no longer"
        found = decided(live, configuration)
        assert (as_reason(found.changes["j"].reason).code, sizes(found)) == ("learned", {"j": size})
    hand_over(path, b"PK")
    assert await live.follow(configuration)
    assert as_reason(decided(live, configuration).changes["j"].reason).code == "gain-per-replica"


async def test_a_profile_that_reads_nothing_is_made_once() -> None:
    configuration, live = Configuration(profile="kips"), ProfileReload()
    made = live.of(configuration)
    assert not await live.follow(configuration)
    assert live.of(configuration) is made
    assert live.of(Configuration(profile="fifo")).name == "fifo"


async def noted(log: ExperienceLog, decided: Plan | None, interval_s: float) -> None:
    """And written."""
    log.note(decided, interval_s)
    while log._writing:
        await asyncio.sleep(0)


def contents(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in directory.iterdir()}


def rounds(*names: str) -> Plan:
    return plan("fifo", [node("n", gpus=8)], [job(name, steps=10) for name in names])


async def test_a_line_is_due_each_slot_and_when_a_job_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("elastic_tfjob.controller.schedule.experience_log.time.monotonic", lambda: now[0])
    log = ExperienceLog(str(tmp_path))
    for at, names in ((0, "a"), (6, "a"), (8, "ab"), (12, "ab"), (13, "abc"), (40, "abc")):
        now[0] = float(at)
        await noted(log, rounds(*names), 20.0)
    await noted(log, None, 20.0)
    lines = [of_line(line) for line in (tmp_path / "experience.jsonl").read_text().splitlines()]
    assert ["".join(sorted(seen.job for seen in line.jobs)) for line in lines] == ["a", "ab", "abc", "abc"]


async def test_files_are_closed_and_few_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experience_log, "MOST_BYTES", 100)
    monkeypatch.setattr(experience_log, "SPACING_S", 0.0)
    log = ExperienceLog(str(tmp_path))
    for k in range(6):
        await noted(log, rounds(f"job-{k}"), 0.0)
    found = {name: of_line(text).jobs[0].job for name, text in contents(tmp_path).items()}
    assert found == {
        "experience.jsonl": "job-5",
        "experience.1.jsonl": "job-4",
        "experience.2.jsonl": "job-3",
        "experience.3.jsonl": "job-2",
    }


async def test_a_volume_that_takes_nothing_is_told_once_and_harms_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experience_log, "SPACING_S", 0.0)
    (tmp_path / "file").touch()
    with capture_logs() as entries:
        log: Any = ExperienceLog(str(tmp_path / "file"))
        for k in range(3):
            await noted(log, rounds(f"job-{k}"), 0.0)
    assert [entry["event"] for entry in entries] == ["experience not written"]


async def test_a_line_after_a_half_written_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experience_log, "SPACING_S", 0.0)
    (tmp_path / "experience.jsonl").write_text('{"version":1,"at"')
    log = ExperienceLog(str(tmp_path))
    await noted(log, rounds("a"), 0.0)
    await noted(log, rounds("b"), 0.0)
    _, *lines = (tmp_path / "experience.jsonl").read_text().splitlines()
    assert [of_line(line).jobs[0].job for line in lines] == ["a", "b"]


async def test_a_volume_that_hangs_holds_up_no_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what is written nor what is read; until the weights are there it decides as `hull` does, and then by
    them."""
    goes_on, path = Event(), tmp_path / "w.npz"
    works = profile_reload._stamp
    monkeypatch.setattr(experience_log, "SPACING_S", 0.0)
    monkeypatch.setattr(profile_reload, "WAIT_S", 0.01)
    monkeypatch.setattr(profile_reload, "CHECK_INTERVAL_S", 0.0)
    monkeypatch.setattr(experience_log, "_append", lambda *_: goes_on.wait(300))
    monkeypatch.setattr(profile_reload, "_stamp", lambda file: goes_on.wait(300) and works(file))
    path.write_bytes(as_bytes(GREEDY, {}))
    configuration = Configuration(profile="dl2", profiles={"dl2": {"weights": str(path)}})
    log, live = ExperienceLog(str(tmp_path)), ProfileReload()
    try:
        for name in "ab":
            log.note(rounds(name), 0.0)
            assert not await live.follow(configuration)
            reason = as_reason(decided(live, configuration).changes["j"].reason)
            assert "is still being read" in str(reason)
    finally:
        goes_on.set()
    async with asyncio.timeout(60):
        while as_reason(decided(live, configuration).changes["j"].reason).code != "learned":
            await live.follow(configuration)
            await asyncio.sleep(0.01)


async def test_a_configuration_that_changes_while_files_are_read_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile_reload, "CHECK_INTERVAL_S", 0.0)
    (tmp_path / "w.npz").write_bytes(as_bytes(GREEDY, {}))
    said = {"dl2": {"weights": str(tmp_path / "w.npz")}}
    first, second = (Configuration(profile="dl2", profiles=said) for _ in range(2))
    live = ProfileReload()
    await live.follow(first)
    monkeypatch.setattr(profile_reload, "WAIT_S", 0.0)
    hand_over(tmp_path / "w.npz", as_bytes(NOTHING, {}))
    await live.follow(first)  # begins to read
    async with asyncio.timeout(60):
        while sizes(decided(live, second)) != {"j": 1}:
            await live.follow(second)
            await asyncio.sleep(0.01)
    for _ in range(10):
        await live.follow(second)
        await asyncio.sleep(0.01)
    assert sizes(decided(live, second)) == {"j": 1}


async def test_without_a_directory_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    await noted(ExperienceLog(""), rounds("a"), 0.0)
    assert not contents(tmp_path)
