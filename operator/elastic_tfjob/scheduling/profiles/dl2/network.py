"""The network shared by all jobs, and the file with its weights. It scores three actions for a job at a size: one more
worker, one more PS, or both.

The features of a size pass through one hidden layer and through a skip connection; the features of the job and of the
round pass through a skip connection only. So a size's part of the scores is cached until the job's speed changes, and a
round adds three numbers per job.
"""

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elastic_tfjob.api.reading import cut

__all__ = [
    "ACTIONS",
    "ENDS",
    "FORMAT",
    "JOB_FEATURES",
    "SHIPPED",
    "SIZE_FEATURES",
    "Floats",
    "Network",
    "WeightsError",
    "as_bytes",
    "flat",
    "greedy",
    "of_flat",
    "parse",
    "read",
    "shapes",
]

Floats = NDArray[np.float64]

ACTIONS: Final = ("worker", "ps", "both")
SIZE_FEATURES: Final = (
    "best",  # logarithm of the best gain in sqrt(speed) per replica over all larger sizes
    "best by worker",  # over sizes with more workers: the difference to the best
    "best by ps",
    "best by both",
    "best gain",  # the best gain itself, not its logarithm
    "gain of worker",  # the gain of one more worker alone
    "gain of ps",
    "gain of both",
    "workers",  # logarithm
    "ps",
    "workers and ps",  # their product
    "speed",  # sqrt(speed)
    "share of worker",  # logarithm of its dominant share
    "share of ps",
)
JOB_FEATURES: Final = (
    "left",  # logarithm of the remaining time with one PS and one worker
    "left beside others",  # the difference of `left` to its mean over jobs
    "unknown",  # whether the remaining work is unknown
    "done",  # fraction of the job's steps
    "age",  # logarithm of the time since the job's arrival
    "crowd",  # logarithm of the minimum demand of all jobs as a fraction of the cluster
    "crowd and left",  # their product
    "ends",  # logarithm of the time left at the present size as a part of the slot, if the job ends within it; else 0
)
ENDS: Final = JOB_FEATURES.index("ends")
"""The one job feature that changes with the size."""


@dataclass(frozen=True, eq=False)
class Network:
    """The weights: `hidden` (size features x units), `hidden_bias` (units), `output` (units x actions), `output_bias`
    (actions), `size_skip` (size features x actions), `job_skip` (job features x actions)."""

    hidden: Floats
    hidden_bias: Floats
    output: Floats
    output_bias: Floats
    size_skip: Floats
    job_skip: Floats

    @property
    def arrays(self) -> tuple[Floats, ...]:
        return (self.hidden, self.hidden_bias, self.output, self.output_bias, self.size_skip, self.job_skip)

    def of_sizes(self, features: Floats) -> Floats:
        """The part of the scores that depends on the sizes: n x 3."""
        inner = np.tanh(features @ self.hidden + self.hidden_bias)
        values: Floats = inner @ self.output + self.output_bias + features @ self.size_skip
        return values

    def of_jobs(self, features: Floats) -> Floats:
        """The part of the scores that depends on the jobs and the round: n x 3. That of the feature `ends` is 0 if the
        feature is."""
        values: Floats = features @ self.job_skip
        return values


def shapes(units: int) -> tuple[tuple[int, ...], ...]:
    sizes, jobs, actions = len(SIZE_FEATURES), len(JOB_FEATURES), len(ACTIONS)
    return (sizes, units), (units,), (units, actions), (actions,), (sizes, actions), (jobs, actions)


def flat(network: Network) -> Floats:
    """All weights as one vector."""
    return np.concatenate([array.ravel() for array in network.arrays])


def of_flat(weights: Floats, units: int) -> Network:
    """The network with these weights. Raises ValueError for a wrong number of weights."""
    parts: list[Floats] = []
    at = 0
    for shape in shapes(units):
        parts.append(weights[at : at + int(np.prod(shape))].reshape(shape))
        at += int(np.prod(shape))
    if at != len(weights):
        raise ValueError(f"{len(weights)} weights instead of {at}")
    return Network(*parts)


def greedy(units: int, spread: float = 0.0, seed: int = 0) -> Network:
    """The network from which training starts. It takes the action that leads to the best gain over all larger sizes,
    and adds both replica types together if that helps at once. `spread`: the standard deviation of the weights into the
    hidden units, which contribute nothing to the scores yet.

    A job that ends within the slot gains less from a larger size, in proportion to its time left: it trains only so
    long with it, and what it held stays unused until the slot ends."""
    sizes, jobs, actions = len(SIZE_FEATURES), len(JOB_FEATURES), len(ACTIONS)
    skip = np.zeros((sizes, actions))
    skip[SIZE_FEATURES.index("best")] = 1.0
    for k, action in enumerate(ACTIONS):
        skip[SIZE_FEATURES.index(f"best by {action}"), k] = 1.0
        skip[SIZE_FEATURES.index(f"gain of {action}"), k] = 0.3
    job_skip = np.zeros((jobs, actions))
    job_skip[ENDS] = 1.0
    return Network(
        np.random.default_rng(seed).normal(0.0, spread, (sizes, units)),
        np.zeros(units),
        np.zeros((units, actions)),
        np.full(actions, 2.5),
        skip,
        job_skip,
    )


# -- The weights file: a .npz of the network's arrays, with a JSON description -----------------------------------------
# This is the only place where it is read.
#
# For any content of the file, the result is a network or the reason why there is none.

FORMAT: Final = 1
SHIPPED: Final = "weights.npz"
MOST_BYTES: Final = 1 << 20
"""The maximum size of a file in bytes, both packed and unpacked."""
MOST_UNITS: Final = 256
LARGEST: Final = 1e3
"""The maximum absolute value of a weight."""
NAMES: Final = ("hidden", "hidden_bias", "output", "output_bias", "size_skip", "job_skip")
INTERFACE: Final[Mapping[str, Any]] = {
    "format": FORMAT,
    "actions": list(ACTIONS),
    "size_features": list(SIZE_FEATURES),
    "job_features": list(JOB_FEATURES),
}
"""The interface that weights belong to. Weights for different features cannot be used."""


class WeightsError(ValueError):
    """A file has no usable network. The message is the reason."""


def as_bytes(network: Network, trained: Mapping[str, Any]) -> bytes:
    """The content of a file with these weights. `trained` describes the training, for people."""
    file = io.BytesIO()
    arrays: dict[str, Any] = {
        name: values.astype(np.float32) for name, values in zip(NAMES, network.arrays, strict=True)
    }
    np.savez(file, metadata=np.array(json.dumps({**INTERFACE, "trained": dict(trained)})), **arrays)
    return file.getvalue()


def read(path: str) -> Network | str:
    """The network in this file (empty: the shipped network), or the reason why there is none."""
    try:
        if not path:
            return _shipped()
        if Path(path).exists() and not Path(path).is_file():
            raise WeightsError("is not a file")
        with Path(path).open("rb") as file:
            return parse(file.read(MOST_BYTES + 1))
    except WeightsError as error:
        return cut(f"{path or SHIPPED}: {error}")
    except OSError as error:
        return cut(f"{path or SHIPPED} cannot be read: {error.strerror or type(error).__name__}")
    except ValueError as error:  # an invalid path
        return cut(f"{path!r} is not a valid path ({error})")


@cache
def _shipped() -> Network:
    return parse(resources.files(__package__).joinpath(SHIPPED).read_bytes())


def parse(content: bytes) -> Network:
    """The network in this content. Raises WeightsError unless it is a network of this interface with finite weights."""
    if len(content) > MOST_BYTES:
        raise WeightsError(f"more than {MOST_BYTES} bytes")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            if sum(member.file_size for member in packed.infolist()) > MOST_BYTES:
                raise WeightsError(f"more than {MOST_BYTES} bytes when unpacked")
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = {name: file[name] for name in (*NAMES, "metadata") if name in file.files}
    except WeightsError:
        raise
    except (OSError, ValueError, KeyError, EOFError, SyntaxError, TypeError, RuntimeError, MemoryError) as error:
        raise WeightsError(f"not a valid .npz file ({type(error).__name__})") from error
    except (zipfile.BadZipFile, zlib.error, OverflowError, AttributeError, IndexError) as error:
        raise WeightsError(f"not a valid .npz file ({type(error).__name__})") from error
    missing = [name for name in (*NAMES, "metadata") if not isinstance(arrays.get(name), np.ndarray)]
    if missing:
        raise WeightsError(f"lacks {', '.join(missing)}")
    _check_interface(arrays["metadata"])
    units = arrays["hidden_bias"].shape[0] if arrays["hidden_bias"].ndim == 1 else 0
    if not 1 <= units <= MOST_UNITS:
        raise WeightsError(f"{units} hidden units; allowed: 1 to {MOST_UNITS}")
    return Network(*(_checked(name, arrays[name], shape) for name, shape in zip(NAMES, shapes(units), strict=True)))


def _check_interface(metadata: np.ndarray[Any, Any]) -> None:
    if metadata.dtype.kind != "U" or metadata.ndim:
        raise WeightsError("its metadata are not text")
    try:
        said = json.loads(str(metadata))
    except (ValueError, RecursionError) as error:
        raise WeightsError("its metadata are not JSON") from error
    if not isinstance(said, dict):
        raise WeightsError("its metadata are not a JSON object")
    for name, ours in INTERFACE.items():
        if said.get(name) != ours:
            raise WeightsError(f"was made for a version with different {name.replace('_', ' ')}")


def _checked(name: str, array: np.ndarray[Any, Any], shape: tuple[int, ...]) -> Floats:
    if array.shape != shape:
        raise WeightsError(f"{name} has the shape {array.shape} instead of {shape}")
    if array.dtype.kind != "f":
        raise WeightsError(f"{name} does not have floating-point numbers")
    if not np.isfinite(array).all():
        raise WeightsError(f"{name} has a number that is not finite")
    if np.abs(array).max() > LARGEST:
        raise WeightsError(f"{name} has a number above {LARGEST:g}")
    return array.astype(np.float64)
