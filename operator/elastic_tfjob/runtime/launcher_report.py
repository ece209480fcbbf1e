"""What a launcher reports about its programs: whether they use the hook, the rescale modes, what is prepared, and the
decisions."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from elastic_tfjob.runtime import preload, protocol
from elastic_tfjob.runtime.programs import ARCHIVE, Child, Programs, has_gpu
from elastic_tfjob.runtime.protocol import LauncherCommand


def uses_hook(programs: Programs) -> bool | None:
    """Whether the running program, if it trains, has constructed ElasticCheckpoint: see docs/elastic.md."""
    child = programs.running
    if child is None or child.hook is None or not child.task.trains:
        return None
    imported = (programs.folder(child) / protocol.IMPORTED).exists()
    return child.hook.uses_hook(programs.said_hello(child), imported)


def modes(programs: Programs, live: Mapping[str, Any]) -> list[str]:
    """The rescale modes that this pod can do now; the operator knows whether it has the memory. A program that trains
    must use ElasticCheckpoint: otherwise its next generation would train beside it instead of waiting. `live`: what it
    reports about mode `live`."""
    running, gpu = programs.running, has_gpu()
    if running is not None and running.task.trains and not programs.said_hello(running):
        return []
    found = []
    if running is not None and not gpu and (not running.task.trains or live.get("able") is True):
        found.append("live")
    if not gpu:
        found.append("overlap")
    if preload.spare_command(programs.command, ARCHIVE):
        found.append("spare")
    if running is not None and running.task.chief:
        found.append("leave")
    return found


def prepared_for(
    command: LauncherCommand | None, running: Child | None, prepared: Child | None
) -> dict[str, Any] | None:
    """What the launcher publishes as the program of the coming generation. Where none is prepared in the chief's pod
    (it changes its workers, or leaves), it is the running one, until its launcher is told to stay: the operator then
    knows that no switch follows."""
    told = (
        command if command and command.mode in ("live", "leave") and command.action in ("prepare", "switch") else None
    )
    if told and running and running.task.chief and running.generation != told.generation:
        return {"generation": told.generation, "mode": told.mode, "state": "ready", "why": ""}
    if prepared is None:
        return None
    return {name: getattr(prepared, name) for name in ("generation", "mode", "state", "why", "checkpoint")}


def committed(child: Child, switch: dict[str, Any] | None) -> dict[str, Any]:
    """The content of `committed.json`: what a restarted container continues with."""
    content = {"generation": child.generation, "tf_config": child.tf_config, "switch": switch}
    return {**content, "old_chief": child.old_chief} if child.old_chief else content


def decision(generation: int, state: str, why: str = "") -> dict[str, Any]:
    """What is decided about the switch to a generation."""
    return {"generation": generation, "state": state, "why": why, "at": time.time()}
