"""Have a replica of a job that trains go to another node, by a target as a profile writes it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from harness.jobs import Jobs, until
from harness.training import PREFIX, said

__all__ = ["ONE_SIZE", "arrived", "elsewhere", "move", "move_target"]

ONE_SIZE = {"min-workers": "1", "max-workers": "1", "min-ps": "1", "max-ps": "1"}
"""A job that is never rescaled can be moved all the same."""
ARRIVES_S = 300.0


def elsewhere(nodes: Sequence[str], node: str) -> str:
    """The node that comes after this one, round and round."""
    at = nodes.index(node) if node in nodes else -1
    found = nodes[(at + 1) % len(nodes)]
    if found == node:
        raise ValueError(f"there is no other node than {node}")
    return found


def move_target(before: Mapping[str, Any], generation: int, kind: str, node: str) -> dict[str, Any]:
    """A target that has the first replica of a type on another node. `generation`: of the job's state."""
    names = before["nodes"][kind]
    return {
        **before,
        "generation": max(before["generation"], generation) + 1,
        "nodes": {**before["nodes"], kind: [node, *names[1:]]},
        "reason": "moved by the scenario",
    }


def move(jobs: Jobs, name: str, kind: str, node: str) -> dict[str, Any]:
    """Ask for it; returns the target that was written, and waits for nothing. Under `fixed`, which places nobody, all
    replicas but this one stay where they are."""
    state, before = said(jobs, name, "state"), said(jobs, name, "target")
    if not before.get("nodes"):
        size = state["replicas"]
        at = {pod: each["spec"].get("nodeName", "") for pod, each in jobs.pods(name).items()}
        nodes = {type_: [at[f"{name}-{type_.lower()}-{k}"] for k in range(size[type_])] for type_ in size}
        before = {"generation": 0, "declared": size, **before, "replicas": size, "nodes": nodes}
    target = move_target(before, state["generation"], kind, node)
    jobs.kubectl("annotate", "tfjob", name, "--overwrite", f"{PREFIX}target={json.dumps(target)}")
    return target


def arrived(jobs: Jobs, name: str, kind: str, nodes: Sequence[str], generation: int) -> None:
    """Wait until a type's pods are on these nodes and nowhere else, and the job is at rest there."""

    def reached() -> bool:
        now = said(jobs, name, "state")
        pods = [pod for pod in jobs.pods(name).values() if f"-{kind.lower()}-" in pod["metadata"]["name"]]
        there = [pod["spec"].get("nodeName", "") for pod in pods]
        return sorted(there) == sorted(nodes) and now.get("phase") == "Stable" and now["generation"] >= generation

    where = ", ".join(nodes)
    until(reached, ARRIVES_S, lambda: f"{kind} of {name} is not on {where} alone:\n{jobs.describe(name)}")
