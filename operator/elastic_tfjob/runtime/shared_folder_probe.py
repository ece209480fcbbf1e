"""Whether parameter servers see the folder of the checkpoints. If they do, each writes and reads the part that it has,
and a large model does not have to go through the chief."""

from __future__ import annotations

import contextlib
import os
from typing import Any

__all__ = ["chief_device", "options"]


def chief_device(tf: Any) -> str | None:
    """Where a coordinator runs, if variables live in other processes."""
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    remote = any("/job:ps/" in name for name in names)
    return next((name for name in names if remote and "/job:chief/" in name), None)


def options(tf: Any, directory: str, sharded: bool | None) -> list[Any]:
    """tf.train.CheckpointOptions, which say that the chief writes and reads all, or that whoever has variables does:
    what is tried first, and what if that fails. `sharded`: None where that is to be found out."""
    chief = chief_device(tf)
    if chief is None or sharded:
        devices: list[str | None] = [None]
    elif sharded is None and _all_see(tf, directory):
        devices = [None, chief]
    else:
        devices = [chief]
    return [tf.train.CheckpointOptions(experimental_io_device=device) for device in devices]


def _all_see(tf: Any, directory: str) -> bool:
    """Whether each parameter server reads in `directory` what this program writes there, and the other way round."""
    servers = [each.name for each in tf.config.list_logical_devices("CPU") if "/job:ps/" in each.name]
    nonce = os.urandom(16).hex()
    own, theirs = f"{directory}/.elastic-{nonce}", f"{directory}/.elastic-{nonce}-ps"
    files = tf.io.gfile
    try:
        files.makedirs(directory)
        with files.GFile(own, "w") as file:
            file.write(nonce)
        for server in servers:
            with tf.device(server):
                # Reading comes first: to write, a server makes folders that it has not.
                if tf.io.read_file(own).numpy().decode() != nonce:
                    return False
                tf.io.write_file(theirs, server)
                tf.io.read_file(theirs).numpy()  # it has been written
            with files.GFile(theirs, "r") as file:
                if file.read() != server:
                    return False
    except Exception:  # not found, not allowed, no such scheme there: then the chief does all, as it can
        return False
    finally:
        for path in (own, theirs):
            with contextlib.suppress(Exception):
                files.remove(path)
    return True
