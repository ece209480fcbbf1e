"""What the tests themselves rely on, where a mistake would show as the failure of some other test."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.api import Api, pods
from harness.controlplane import ControlPlane, free_port


def open_sockets() -> int:
    return sum(link.is_socket() for link in Path("/proc/self/fd").iterdir())


async def test_a_closed_client_has_no_socket_left(own_plane: ControlPlane) -> None:
    """Not even that of a watch which the server, being slow, has not yet seen end."""
    apiserver = own_plane.pids()["kube-apiserver"]
    gc.collect()  # sockets that earlier tests left would be closed meanwhile
    before = open_sockets()
    try:
        async with Api(own_plane.kubeconfig) as api:
            changes = api.watch(pods())
            first = asyncio.ensure_future(anext(changes))
            spec = {"containers": [{"name": "c", "image": "i"}]}
            await api.create(pods("default"), {"metadata": {"name": "p"}, "spec": spec})
            await first  # so the watch is there
            watching = asyncio.ensure_future(anext(changes))
            await asyncio.sleep(0.1)
            assert open_sockets() > before
            os.kill(apiserver, signal.SIGSTOP)
            watching.cancel()
            await asyncio.wait({watching})
        assert open_sockets() <= before
    finally:
        os.kill(apiserver, signal.SIGCONT)


def test_a_port_is_not_given_to_two_processes() -> None:
    """Not even while nobody listens there yet."""
    mine = [free_port() for _ in range(5)]
    another = f"import random, harness.controlplane as c; random.sample = lambda *_: {mine}; print(c.free_port())"
    asked = subprocess.run([sys.executable, "-c", another], capture_output=True, text=True, check=False)
    assert len(set(mine)) == 5
    assert "no free port" in asked.stderr
    assert asked.stdout == ""


USER = """
import contextlib, pathlib, sys, time
from harness.shared import Shared

things = Shared(pathlib.Path(sys.argv[1]))

def make(name):
    @contextlib.contextmanager
    def made(folder):
        print("made", name, flush=True)
        yield {"by": sys.argv[2]}
        print("unmade", name, flush=True)
    return made

for line in sys.stdin:
    name, *on = line.split()
    if name == "close":
        break
    print(things.get(name, make(name), on)["by"], flush=True)
things.close()
"""


class User:
    """A process that shares things, told by its standard input."""

    def __init__(self, folder: Path, name: str) -> None:
        command = [sys.executable, "-c", USER, str(folder), name]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def get(self, *names: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(*names, file=self._process.stdin, flush=True)
        while (said := self._process.stdout.readline().strip()).startswith("made"):
            pass
        return said

    def close(self) -> None:
        assert self._process.stdin is not None
        print("close", file=self._process.stdin, flush=True)

    def end(self) -> list[str]:
        """What was unmade, in that order."""
        said, _ = self._process.communicate(timeout=120)
        assert self._process.returncode == 0
        return [line.removeprefix("unmade ") for line in said.splitlines()]


@pytest.fixture
def users(tmp_path: Path) -> Iterator[tuple[User, User]]:
    found = User(tmp_path, "a"), User(tmp_path, "b")
    yield found
    for each in found:
        each._process.kill()
        each._process.communicate()


class TestShared:
    def test_each_uses_what_the_other_has_made(self, users: tuple[User, User]) -> None:
        """In the order in which neither would be the first to leave."""
        a, b = users
        assert (b.get("y"), a.get("y"), a.get("x"), b.get("x")) == ("b", "b", "a", "a")
        a.close()
        b.close()
        assert (a.end(), b.end()) == (["x"], ["y"])

    def test_a_shared_thing_ends_before_the_one_it_rests_on(self, users: tuple[User, User]) -> None:
        a, b = users
        assert (b.get("x"), a.get("x"), a.get("y", "x"), b.get("y", "x")) == ("b", "b", "a", "a")
        b.close()
        time.sleep(0.5)
        assert a.get("x") == "b", "x went although y rests on it"
        a.close()
        assert (a.end(), b.end()) == (["y"], ["x"])

    def test_a_late_user_makes_its_own_thing(self, users: tuple[User, User]) -> None:
        a, b = users
        assert a.get("x") == "a"
        a.close()
        assert a.end() == ["x"]
        assert b.get("x") == "b"
        b.close()
        assert b.end() == ["x"]
