"""The launcher's request to change workers, where its volume is full for a while."""

import errno
from pathlib import Path

import pytest

from elastic_tfjob.runtime import protocol
from elastic_tfjob.runtime.live_switch import ANSWER_S, BACK_S, MOST_S, LiveSwitch


@pytest.fixture
def switch(tmp_path: Path) -> LiveSwitch:
    content = {"generation": 1, "tf_config": None, "switch": None}
    return LiveSwitch(
        tmp_path,
        tmp_path / protocol.COMMITTED,
        content,
        ["a:1", "b:1"],
        before=(0, ["a:1"]),
        limit_s=MOST_S,
        now_s=0.0,
    )


def _answer(folder: Path, request: object) -> None:
    protocol.write(folder / protocol.CHANGED, {"id": request, "ok": True, "why": ""})


def _request(folder: Path) -> dict[str, object]:
    return protocol.read(folder / protocol.WORKERS) or {}


def test_a_change_that_cannot_be_called_off_may_still_be_made(
    switch: LiveSwitch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program knows only the first request. Its answer counts: else it would have workers that are to end."""
    first = _request(tmp_path)["id"]

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(protocol, "write", full)
        switch.give_up("the operator cancelled it", 1.0)
        late = MOST_S + ANSWER_S + BACK_S + 1.0
        assert switch.poll(late) is None
        assert switch.poll(2 * late) is None
    _answer(tmp_path, first)
    assert switch.poll(2 * late) == ""


def test_it_is_called_off_once_there_is_space_again(
    switch: LiveSwitch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(protocol, "write", full)
        switch.give_up("the operator cancelled it", 1.0)
    switch.give_up("the operator cancelled it", 2.0)
    assert _request(tmp_path)["workers"] == ["a:1"]
    _answer(tmp_path, _request(tmp_path)["id"])
    assert switch.poll(3.0) == "the operator cancelled it"
