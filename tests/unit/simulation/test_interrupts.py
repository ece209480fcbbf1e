"""Ctrl-C in a terminal, and a time limit's SIGTERM, as the kernel delivers them: real processes, a real pty."""

import json
import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

LIMIT_S = 60.0
PROGRAM = "from elastic_tfjob.entry import elastic_tfjob; elastic_tfjob()"
CTRL_C = b"\x03"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Minutes of computing: half a thousand jobs wait and are looked at in each round."""
    path = tmp_path_factory.mktemp("trace") / "slow.csv"
    rows = [f"e{k},{k},30,1,1,1,1" for k in range(50)]
    rows += [f"j{k},{50 + k},{50_000 + 100 * k},4,4,1,64" for k in range(550)]
    path.write_text("job_id,submit_s,duration_s,num_gpus,num_workers,min_workers,max_workers\n" + "\n".join(rows))
    return path


class Terminal:
    """A program in the foreground of a terminal of its own."""

    def __init__(self, *words: object) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:  # pragma: no cover
            os.execv(sys.executable, [sys.executable, "-c", PROGRAM, *map(str, words)])
        self.shown = b""

    def until(self, seen: Callable[[bytes], object]) -> None:
        """Read what it prints until `seen`."""
        end = time.monotonic() + LIMIT_S
        while not seen(self.shown):
            assert time.monotonic() < end, self.shown.decode()
            if select.select([self._fd], [], [], 0.1)[0] and not self._read():
                raise AssertionError(f"it ended early: {self.shown.decode()}")

    def type(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    def close(self) -> int:
        """Close the terminal; the exit status."""
        os.close(self._fd)
        end = time.monotonic() + LIMIT_S
        while not (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            if time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.05)
        return _status(ended[1])

    def ends(self) -> int:
        """The exit status, as a shell has it."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            if select.select([self._fd], [], [], 0.1)[0] and not self._read():
                break
        else:
            os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        os.close(self._fd)
        return _status(status)

    def _read(self) -> bytes:
        try:
            found = os.read(self._fd, 65536)
        except OSError:  # the other side is closed
            return b""
        self.shown += found
        return found


def _status(status: int) -> int:
    """As a shell has it."""
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def simulate(trace: Path, *words: object) -> Terminal:
    sizes = ("--nodes", 25, "--gpus-per-node", 8, "--speed-model", "linear")
    return Terminal("simulate", trace, *sizes, *words)


def begun(*profiles: str) -> Callable[[bytes], bool]:
    """The progress bars of all of these show jobs that are done. What follows the last one on its line, after a
    carriage return, is the first one again."""
    bars = [re.compile(profile.encode() + rb" seed 0 [^\r\n]* [1-9][\d,]*/600 jobs") for profile in profiles]
    return lambda shown: all(bar.search(shown) for bar in bars)


def test_ctrl_c_keeps_what_several_runs_know(trace: Path, tmp_path: Path) -> None:
    files = ("--json", tmp_path / "o.json", "--html", tmp_path / "o.html", "--jobs-csv", tmp_path / "o.csv")
    terminal = simulate(trace, "--profile", "las", "--profile", "optimus", "--jobs", 2, *files)
    terminal.until(begun("las", "optimus"))
    terminal.type(CTRL_C)
    assert terminal.ends() == 130, terminal.shown.decode()
    assert b"the results are incomplete" in terminal.shown
    assert b"Traceback" not in terminal.shown
    assert b"Error" not in terminal.shown
    found = json.loads((tmp_path / "o.json").read_text())["runs"]
    assert [run["profile"] for run in found] == ["las", "optimus"]
    assert all(run["partial"] and run["finished"] > 0 for run in found)
    assert "las" in (tmp_path / "o.html").read_text()
    assert len((tmp_path / "o.csv").read_text().splitlines()) > 100


@pytest.mark.parametrize(
    "profiles",
    [("las",), pytest.param(("las", "optimus", "fifo"), marks=pytest.mark.thorough)],  # Ctrl-C has several
)
def test_a_time_limit_keeps_what_is_known(trace: Path, tmp_path: Path, profiles: tuple[str, ...]) -> None:
    """SIGTERM to the program alone, as `timeout --foreground` and systemd's first signal send it."""
    named = [word for profile in profiles for word in ("--profile", profile)]
    terminal = simulate(trace, *named, "--jobs", 2, "--json", tmp_path / "o.json")
    terminal.until(begun(*profiles[:2]))
    os.kill(terminal.pid, signal.SIGTERM)
    assert terminal.ends() == 143, terminal.shown.decode()
    found = json.loads((tmp_path / "o.json").read_text())["runs"]
    assert found[0]["profile"] == "las"
    assert found[0]["partial"]
    assert b"Traceback" not in terminal.shown


@pytest.mark.parametrize(
    "profiles",
    [("las",), pytest.param(("las", "optimus"), marks=pytest.mark.thorough)],  # Ctrl-C has several
)
def test_a_closed_terminal_keeps_what_is_known(trace: Path, tmp_path: Path, profiles: tuple[str, ...]) -> None:
    """Nothing can be printed any more; the files are written all the same."""
    files = ("--json", tmp_path / "o.json", "--html", tmp_path / "o.html", "--jobs-csv", tmp_path / "o.csv")
    named = [word for profile in profiles for word in ("--profile", profile)]
    terminal = simulate(trace, *named, "--jobs", 2, *files)
    terminal.until(begun(*profiles))
    assert terminal.close() == 129
    found = json.loads((tmp_path / "o.json").read_text())["runs"]
    assert [run["profile"] for run in found] == list(profiles)
    assert all(run["partial"] and run["finished"] > 0 for run in found)
    assert "las" in (tmp_path / "o.html").read_text()
    assert len((tmp_path / "o.csv").read_text().splitlines()) > 50


@pytest.mark.parametrize("times", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_ctrl_c_while_processes_start(trace: Path, tmp_path: Path, times: int) -> None:
    """They still import, and have no handler of their own yet. The second one ends what has not answered."""
    terminal = simulate(trace, "--profile", "las", "--profile", "fifo", "--jobs", 2, "--json", tmp_path / "o.json")
    terminal.until(lambda shown: b"waiting" in shown)
    for _ in range(times):
        terminal.type(CTRL_C)
    assert terminal.ends() == 130, terminal.shown.decode()
    assert b"Traceback" not in terminal.shown
    assert b"the results are incomplete" in terminal.shown
    assert all(run["partial"] for run in json.loads((tmp_path / "o.json").read_text())["runs"])


def test_ctrl_c_while_tuning_keeps_what_was_tried(trace: Path, tmp_path: Path) -> None:
    small = tmp_path / "small.csv"
    small.write_text("".join(trace.read_text().splitlines(keepends=True)[:30]))
    terminal = simulate(small, "--profile", "elastic", "--tune", "--jobs", 1, "--json", tmp_path / "o.json")
    terminal.until(lambda shown: b"  elastic." in shown)
    terminal.type(CTRL_C)
    assert terminal.ends() == 130, terminal.shown.decode()
    assert b"the comparison on the second part was not run" in terminal.shown
    found = json.loads((tmp_path / "o.json").read_text())
    assert found["trials"]
    assert found["held_out"] == []


def test_a_time_limit_keeps_a_training(tmp_path: Path) -> None:
    short = ("--train-seeds", 4, "--select-seeds", 1, "--pairs", 1, "--episodes", 1, "--iterations", 10_000)
    terminal = Terminal("train-policy", tmp_path / "w.npz", *short)
    terminal.until(lambda _: (tmp_path / "w.npz.state").exists())
    os.kill(terminal.pid, signal.SIGTERM)
    assert terminal.ends() == 143, terminal.shown.decode()
    assert b"Use --resume to continue" in terminal.shown
    assert (tmp_path / "w.npz").stat().st_size > 0
