"""The speed models by name, and the default one for each workload format."""

from elastic_tfjob.simulation.speed_models.base import FixedSpeedModel, LinearSpeedModel, SpeedModel
from elastic_tfjob.simulation.speed_models.cpu import CpuShareSpeedModel, PsCpuSpeedModel
from elastic_tfjob.simulation.speed_models.elasticflow import ElasticFlowSpeedModel
from elastic_tfjob.simulation.speed_models.pollux import PolluxSpeedModel
from elastic_tfjob.simulation.speed_models.ps import PsMeasuredSpeedModel, PsSpeedModel

SPEED_MODELS: dict[str, SpeedModel] = {
    "fixed": FixedSpeedModel(),
    "linear": LinearSpeedModel(),
    "ps": PsSpeedModel(),
    "ps-measured": PsMeasuredSpeedModel(),
    "ps-cpu": PsCpuSpeedModel(),
    "pollux": PolluxSpeedModel(),
    "elasticflow": ElasticFlowSpeedModel(),
    "cpu-share": CpuShareSpeedModel(),
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
