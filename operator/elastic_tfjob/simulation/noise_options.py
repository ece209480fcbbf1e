"""The options of `simulate` for what a policy does not know exactly: true speeds, estimates, and neighbours."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import click

from elastic_tfjob.api.reading import MAX_DURATION_S
from elastic_tfjob.param_types import Amount
from elastic_tfjob.simulation.live_job import Noise

__all__ = ["noise_options"]

SIGMA: Final = Amount(10)
MOST_HIDDEN: Final = 0.9
LEAST_EVERY_S: Final = 1.0

OPTIONS: Final = (
    click.option("--speed-noise", type=SIGMA, default=0, help="Sigma of the lognormal factor on the true speeds."),
    click.option(
        "--hidden-neighbours",
        type=Amount(MOST_HIDDEN),
        default=0,
        help="Largest part of a node's CPU that other programs use, unseen. Half of the nodes have such neighbours.",
    ),
    click.option(
        "--speed-noise-every",
        type=Amount(MAX_DURATION_S),
        default=0,
        help="Seconds after which each job's speed factor, and each node's neighbours, are drawn again, at least 1. "
        "0: once.",
    ),
    click.option(
        "--estimate-noise",
        type=SIGMA,
        default=0,
        help="Sigma of the lognormal factor on the numbers of steps and durations that the profile reads.",
    ),
    click.option("--silent", type=Amount(1), default=0, help="Share of the jobs that report no progress."),
)


def noise_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, which gets them as `noise`."""

    @wraps(command)
    def with_noise(
        *,
        speed_noise: float,
        hidden_neighbours: float,
        speed_noise_every: float,
        estimate_noise: float,
        silent: float,
        **others: Any,
    ) -> None:
        if speed_noise_every and not (speed_noise or hidden_neighbours):
            raise click.UsageError("--speed-noise-every needs --speed-noise or --hidden-neighbours")
        if 0 < speed_noise_every < LEAST_EVERY_S:
            wrong = f"{speed_noise_every:g}: it must be 0 or at least {LEAST_EVERY_S:g}"
            raise click.BadParameter(wrong, param_hint="--speed-noise-every")
        noise = Noise(
            speed=speed_noise,
            speed_every_s=speed_noise_every,
            estimate=estimate_noise,
            silent=silent,
            neighbours=hidden_neighbours,
        )
        command(noise=noise, **others)

    for option in reversed(OPTIONS):
        with_noise = option(with_noise)
    return with_noise
