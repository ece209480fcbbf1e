"""Whether parameter servers share the checkpoint directory with the chief. If they do, each writes and reads its own
part of a checkpoint, and a large model does not pass through the chief."""

from __future__ import annotations

import contextlib
import os
from typing import Any

__all__ = ["chief_device", "options"]


def chief_device(tf: Any) -> str | None:
    """The device of the chief, if variables are on parameter servers; else None."""
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    remote = any("/job:ps/" in name for name in names)
    return next((name for name in names if remote and "/job:chief/" in name), None)


def options(tf: Any, directory: str, sharded: bool | None) -> list[Any]:
    """The tf.train.CheckpointOptions to try, in order: each process writes and reads its own variables, or the chief
    all of them. `sharded`: whether to use the former; None to probe the directory."""
    chief = chief_device(tf)
    if chief is None or sharded:
        devices: list[str | None] = [None]
    elif sharded is None and _is_shared(tf, directory):
        devices = [None, chief]
    else:
        devices = [chief]
    return [tf.train.CheckpointOptions(experimental_io_device=device) for device in devices]


def _is_shared(tf: Any, directory: str) -> bool:
    """Whether each parameter server reads what this program writes to `directory`, and the reverse."""
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
                # Read first: a write would create missing folders on the server.
                if tf.io.read_file(own).numpy().decode() != nonce:
                    return False
                tf.io.write_file(theirs, server)
                tf.io.read_file(theirs).numpy()  # waits until it is written
            with files.GFile(theirs, "r") as file:
                if file.read() != server:
                    return False
    except Exception:  # not found, not allowed, unknown URL scheme: the chief does all
        return False
    finally:
        for path in (own, theirs):
            with contextlib.suppress(Exception):
                files.remove(path)
    return True
