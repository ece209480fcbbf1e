from dataclasses import replace
from typing import Any

from elastic_tfjob.learning.episodes import Episode
from elastic_tfjob.simulation.speed_models.base import FIXED


def facts(episode: Episode) -> tuple[Any, ...]:
    """All that an episode says, with its speed model as the speeds that it gives to its jobs."""
    model = episode.inputs.speed_model
    sizes = [{"PS": ps, "Worker": workers} for ps in (1, 2, 4) for workers in (1, 2, 3, 8)]
    speeds = [
        (
            speed.total_steps,
            [(speed.steps_per_s(size), speed.rate({t: ("n",) * n for t, n in size.items()})) for size in sizes],
        )
        for speed in map(model.true_speed, episode.inputs.jobs)
    ]
    return replace(episode, inputs=replace(episode.inputs, speed_model=FIXED)), model.name, speeds
