"""What the tests themselves rely on, where a mistake would show as the failure of some other test."""

import asyncio
import os
import signal
from pathlib import Path

from harness.api import Api, pods
from harness.controlplane import ControlPlane


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
