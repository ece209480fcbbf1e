"""The speed models by name, and the default one for each workload format."""

from elastic_tfjob.simulation.speed_models.base import FIXED, LINEAR, SpeedModel
from elastic_tfjob.simulation.speed_models.cpu import CPU_SHARE, PS_CPU
from elastic_tfjob.simulation.speed_models.elasticflow import elasticflow
from elastic_tfjob.simulation.speed_models.pollux import POLLUX, POLLUX_TUNED
from elastic_tfjob.simulation.speed_models.ps import PS_FORMULA, ps_measured

SPEED_MODELS: dict[str, SpeedModel] = {
    model.name: model
    for model in (FIXED, LINEAR, PS_FORMULA, ps_measured(), PS_CPU, POLLUX, POLLUX_TUNED, elasticflow(), CPU_SHARE)
}

DEFAULT_SPEED_MODEL = {
    "jobs": "fixed",
    "gavel": "fixed",
    "chronus": "fixed",
    "elasticflow": "elasticflow",
    "pollux": "pollux",
    "dl2": "ps",
    "scenario": "linear",
}
"""The default speed model by workload format."""


def speed_model_named(name: str) -> SpeedModel:
    if name not in SPEED_MODELS:
        raise ValueError(f"unknown speed model {name!r}; allowed: {', '.join(SPEED_MODELS)}")
    return SPEED_MODELS[name]
