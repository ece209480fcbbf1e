"""What long steps say while they go on (harness.progress)."""

import io
import sys
from threading import Event, Thread

import pytest

from harness import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_steps_side_by_side_share_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    monkeypatch.setenv("COLUMNS", "60")
    began, end = Event(), Event()

    def other() -> None:
        with progress.step("building the image"):
            began.set()
            assert end.wait(60)

    with progress.step("compiling", "4 min"):
        thread = Thread(target=other)
        thread.start()
        assert began.wait(60)
        assert "\r\033[K… compiling (usually 4 min) · building the image" in shown.getvalue()
        end.set()
        thread.join(60)
    lines = shown.getvalue().split("\n")
    assert [line.rsplit("\r\033[K", 1)[1].rpartition(":")[0] for line in lines[:-1]] == [
        "✓ building the image",
        "✓ compiling",
    ]
    assert all(len(each) < 60 for line in lines for each in line.split("\r\033[K"))


def test_a_line_ends_where_the_terminal_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    monkeypatch.setenv("COLUMNS", "20")
    with progress.step("x" * 50):
        assert shown.getvalue() == "\r\033[K… " + "x" * 17


def test_a_step_that_fails_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="broken"), progress.step("compiling"):
        raise ValueError("broken")
    began, ended = capsys.readouterr().err.splitlines()
    assert began == "▸ compiling"
    assert ended.startswith("✗ compiling: ")
