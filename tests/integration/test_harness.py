"""What the tests themselves rely on, where a mistake would show as the failure of some other test."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from harness.api import Api, pods
from harness.controlplane import ControlPlane, free_port


def open_sockets() -> int:
    return sum(link.is_socket() for link in Path("/proc/self/fd").iterdir())


async def test_a_closed_client_has_no_socket_left(own_plane: ControlPlane) -> None:
    """Not even that of a watch which the server, being slow, has not yet seen end."""
    apiserver = own_plane.pids()["kube-apiserver"]
    before = open_sockets()
    try:
        async with Api(own_plane.kubeconfig) as api:
            await api.items(pods())
            watching = asyncio.create_task(anext(api.watch(pods())))
            await asyncio.sleep(1)
            assert open_sockets() > before
            os.kill(apiserver, signal.SIGSTOP)
            watching.cancel()
            await asyncio.wait({watching})
        assert open_sockets() == before
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
