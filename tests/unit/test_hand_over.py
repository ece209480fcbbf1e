"""Values go through memory: the old pods stay as they are until the chief's previous program has saved them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.runtime import checkpoint_variables, hand_over
from elastic_tfjob.runtime.leaving import ENDED_S, LIMIT_S, LeavingProgram
from elastic_tfjob.runtime.programs import Child
from elastic_tfjob.runtime.protocol import LauncherCommand, read, write
from unit.pretend import Cluster, started


def _handing(ps: int, **options: object) -> Cluster:
    """A job whose chief has committed a size and still saves for it."""
    cluster = started(**options)
    cluster.launchers["j-chief-0"].gives = True
    cluster.target(1, PS=ps)
    cluster.until("Switching")
    cluster.run(20)
    return cluster


@pytest.mark.parametrize("ps", [1, 3])
def test_servers_keep_their_program_until_the_values_are_saved(ps: int) -> None:
    cluster = _handing(ps, types={"Chief": 1, "PS": 2, "Worker": 2})
    assert cluster.state.phase == "Switching"
    generations = {name: each.generation for name, each in cluster.launchers.items()}
    assert generations.pop("j-chief-0") == 1
    assert not any(generations.values()), "added pods only prepare, and the others run what they ran"
    assert {"j-ps-0", "j-ps-1", *(f"j-ps-{k}" for k in range(ps))} <= cluster.pods.keys(), "no server has ended"
    true = [each["type"] for each in cluster.status["conditions"] if each["status"] == "True"]
    assert "Running" in true, "training goes on meanwhile"
    cluster.launchers["j-chief-0"].handing_over = False
    cluster.run(20)
    assert (cluster.state.phase, cluster.state.replicas["PS"]) == ("Stable", ps)
    assert set(cluster.running.values()) == {1}
    assert sum("ps" in name for name in cluster.pods) == ps
    [message] = [message for reason, message in cluster.events if reason == "Rescaled"]
    assert "(overlap, in memory)" in message


def test_an_operator_that_comes_back_asks_the_chief_first() -> None:
    cluster = _handing(1, types={"Chief": 1, "PS": 2, "Worker": 2})
    cluster.back_after(5)
    cluster.deaf = True
    cluster.run(5)
    assert "j-ps-1" in cluster.pods
    cluster.deaf = False
    cluster.run(5)
    assert (cluster.state.phase, "j-ps-1" in cluster.pods) == ("Switching", True)


def test_the_wait_has_a_limit() -> None:
    cluster = _handing(2)
    cluster.run(40, seconds=10.0)
    assert set(cluster.running.values()) != {1}, "as long as a job that is recreated has"
    cluster.run(30, seconds=10.0)
    assert cluster.state.phase == "Stable"
    assert set(cluster.running.values()) == {1}


@pytest.mark.parametrize(("text", "durable"), [("true", True), ("false", False), (None, False)])
def test_the_user_may_have_a_switch_wait_for_its_checkpoint(text: str | None, durable: bool) -> None:
    cluster = started()
    if text is not None:
        cluster.annotations[f"{PREFIX}durable-switch"] = text
    cluster.target(1, PS=2)
    cluster.until("Preparing")
    cluster.run(2)
    command = cluster.pods["j-ps-0"].command
    assert LauncherCommand.parse(command).durable is durable
    assert ("durable" in orjson.loads(command)) is durable


def test_the_word_of_an_earlier_switch_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program saved what it gave, and then the switch was withdrawn."""
    monkeypatch.setattr(checkpoint_variables, "all_of", lambda *_: {})
    giver = hand_over._Giver(None, SimpleNamespace(checkpoint=None), tmp_path, [])
    giver._offer = {"id": "2"}
    write(tmp_path / "kept.json", {"ok": True})
    assert giver.give(7, None)["id"] == "2"
    assert not (tmp_path / "kept.json").exists()


def test_values_are_taken_where_nobody_can_be_told(tmp_path: Path) -> None:
    """The launcher's volume is full."""
    taker = hand_over._Taker(None, None, tmp_path / "missing", tmp_path)
    taker._offer = {"id": "1"}
    (tmp_path / "on-chief.json").write_text("[]")
    assert taker.take({"id": "1"}) == ""


class TestLeavingProgram:
    """The launcher's part."""

    def _leaving(self, tmp_path: Path, **child: Any) -> LeavingProgram:
        for name in ("old", "new"):
            (tmp_path / name).mkdir()
        return LeavingProgram(Child(0, None, **child), tmp_path / "old", tmp_path / "new", 100.0)

    def test_it_is_done_when_it_has_saved(self, tmp_path: Path) -> None:
        leaving = self._leaving(tmp_path)
        assert not leaving.is_done(100.0, None)
        write(tmp_path / "old" / "kept.json", {"ok": True})
        assert leaving.is_done(101.0, None)
        assert read(tmp_path / "old" / "kept.json") == {"ok": True}

    @pytest.mark.parametrize(("exited", "at", "why"), [(True, 101.0, "it ended"), (False, 100 + LIMIT_S, "too long")])
    def test_the_launcher_speaks_for_it(self, tmp_path: Path, exited: bool, at: float, why: str) -> None:
        leaving = self._leaving(tmp_path, exited=exited)
        assert leaving.is_done(at, None)
        said = read(tmp_path / "old" / "kept.json")
        assert said is not None
        assert (said["ok"], why in said["why"]) == (False, True)

    def test_the_container_waits_for_it_when_the_next_program_fails(self, tmp_path: Path) -> None:
        leaving = self._leaving(tmp_path)
        assert not leaving.is_done(100.0, 1)
        said = read(tmp_path / "new" / "taken.json")
        assert said == {"ok": False, "why": "the program ended with exit code 1"}, "so it saves at once"
        assert not leaving.is_done(100.0 + ENDED_S - 1, 1)
        assert leaving.is_done(100.0 + ENDED_S, 1)

    def test_it_is_not_needed_when_all_steps_are_done(self, tmp_path: Path) -> None:
        assert self._leaving(tmp_path).is_done(100.0, 0)

    @pytest.mark.parametrize(("saved", "done"), [(None, False), ({"generation": 0}, False), ({"generation": 1}, True)])
    def test_it_is_not_needed_where_the_next_one_has_saved(self, tmp_path: Path, saved: object, done: bool) -> None:
        """A program that is told to end while it takes the values ends without a checkpoint."""
        leaving = self._leaving(tmp_path)
        write(tmp_path / "progress.json", {"checkpoint": saved})
        assert leaving.is_done(100.0, 143) is done
        assert (tmp_path / "new" / "taken.json").exists() is not done
