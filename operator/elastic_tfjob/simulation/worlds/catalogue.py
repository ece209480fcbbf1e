"""Worlds by name."""

from elastic_tfjob.simulation.worlds.base import World
from elastic_tfjob.simulation.worlds.cpu_share import CpuShareWorld
from elastic_tfjob.simulation.worlds.elasticflow import ElasticFlowWorld
from elastic_tfjob.simulation.worlds.fixed import FixedWorld
from elastic_tfjob.simulation.worlds.linear import LinearWorld
from elastic_tfjob.simulation.worlds.pollux import PolluxWorld
from elastic_tfjob.simulation.worlds.ps import PsWorld
from elastic_tfjob.simulation.worlds.ps_cpu import PsCpuWorld

WORLDS: dict[str, World] = {
    "fixed": FixedWorld(),
    "linear": LinearWorld(),
    "ps": PsWorld(),
    "ps-cpu": PsCpuWorld(),
    "pollux": PolluxWorld(),
    "elasticflow": ElasticFlowWorld(),
    "cpu-share": CpuShareWorld(),
}

DEFAULT_WORLD = {
    "jobs": "fixed",
    "gavel": "fixed",
    "elasticflow": "elasticflow",
    "pollux": "pollux",
    "dl2": "ps",
    "scenario": "linear",
}
"""By the workload's format."""


def world_named(name: str) -> World:
    if name not in WORLDS:
        raise ValueError(f"no world {name!r}, only {', '.join(WORLDS)}")
    return WORLDS[name]
