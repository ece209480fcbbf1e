"""The network that all jobs share: scores of one more worker, one more PS, or both, for a job at a size.

What is known of a size goes through one hidden layer and past it; what is known of the job and of the moment goes past
it only. So a size's part of the scores is kept as long as the job's speed is, and a round adds three numbers a job.
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
    "best by worker",  # of those with more workers, how far that is below the best
    "best by ps",
    "best by both",
    "best gain",  # the best, not its logarithm
    "gain of worker",  # of the next worker alone
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
    "left",  # logarithm of what it would take with one PS and one worker
    "left beside others",  # how far that is above the mean
    "unknown",  # whether how much is left is not known
    "done",  # part of its steps
    "age",  # logarithm of the time since it came
    "crowd",  # logarithm of what all jobs ask for at least, as a part of what there is
    "crowd and left",  # their product
)


@dataclass(frozen=True, eq=False)
class Network:
    """`hidden` (size features x units), `hidden_bias` (units), `output` (units x actions), `output_bias` (actions),
    `size_skip` (size features x actions), `job_skip` (job features x actions)."""

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
        """The sizes' part of the scores: n x 3."""
        inner = np.tanh(features @ self.hidden + self.hidden_bias)
        values: Floats = inner @ self.output + self.output_bias + features @ self.size_skip
        return values

    def of_jobs(self, features: Floats) -> Floats:
        """The part of jobs and moment: n x 3."""
        values: Floats = features @ self.job_skip
        return values


def shapes(units: int) -> tuple[tuple[int, ...], ...]:
    sizes, jobs, actions = len(SIZE_FEATURES), len(JOB_FEATURES), len(ACTIONS)
    return (sizes, units), (units,), (units, actions), (actions,), (sizes, actions), (jobs, actions)


def flat(network: Network) -> Floats:
    """All weights, one after the other."""
    return np.concatenate([array.ravel() for array in network.arrays])


def of_flat(weights: Floats, units: int) -> Network:
    """The network with these weights. Raises ValueError where they are not as many as it has."""
    parts: list[Floats] = []
    at = 0
    for shape in shapes(units):
        parts.append(weights[at : at + int(np.prod(shape))].reshape(shape))
        at += int(np.prod(shape))
    if at != len(weights):
        raise ValueError(f"{len(weights)} weights, not {at}")
    return Network(*parts)


def greedy(units: int, spread: float = 0.0, seed: int = 0) -> Network:
    """One that goes for the best gain over all larger sizes, by what leads there, and adds at once what helps at once.
    `spread`: the standard deviation of the weights into hidden units, which add nothing yet. Where learning begins."""
    sizes, jobs, actions = len(SIZE_FEATURES), len(JOB_FEATURES), len(ACTIONS)
    skip = np.zeros((sizes, actions))
    skip[SIZE_FEATURES.index("best")] = 1.0
    for k, action in enumerate(ACTIONS):
        skip[SIZE_FEATURES.index(f"best by {action}"), k] = 1.0
        skip[SIZE_FEATURES.index(f"gain of {action}"), k] = 0.3
    return Network(
        np.random.default_rng(seed).normal(0.0, spread, (sizes, units)),
        np.zeros(units),
        np.zeros((units, actions)),
        np.full(actions, 2.5),
        skip,
        np.zeros((jobs, actions)),
    )


# -- Weights of the network in a file: a .npz of its arrays, with JSON that says what they are -------------------------
# Read in one place.
#
# Whatever stands in a file, reading it ends with a network or with words that say why there is none.

FORMAT: Final = 1
SHIPPED: Final = "weights.npz"
MOST_BYTES: Final = 1 << 20
"""Of a file, and of what is packed in it."""
MOST_UNITS: Final = 256
LARGEST: Final = 1e3
"""No weight is larger."""
NAMES: Final = ("hidden", "hidden_bias", "output", "output_bias", "size_skip", "job_skip")
INTERFACE: Final[Mapping[str, Any]] = {
    "format": FORMAT,
    "actions": list(ACTIONS),
    "size_features": list(SIZE_FEATURES),
    "job_features": list(JOB_FEATURES),
}
"""What weights belong to: those of other features mean nothing here."""


class WeightsError(ValueError):
    """Why there is no network, in words."""


def as_bytes(network: Network, trained: Mapping[str, Any]) -> bytes:
    """A file with these weights; `trained` says how they came about, for people."""
    file = io.BytesIO()
    arrays: dict[str, Any] = {
        name: values.astype(np.float32) for name, values in zip(NAMES, network.arrays, strict=True)
    }
    np.savez(file, metadata=np.array(json.dumps({**INTERFACE, "trained": dict(trained)})), **arrays)
    return file.getvalue()


def read(path: str) -> Network | str:
    """The network of this file (empty: the one that is shipped), or why there is none."""
    try:
        if not path:
            return _shipped()
        if Path(path).exists() and not Path(path).is_file():
            raise WeightsError("is no file")
        with Path(path).open("rb") as file:
            return parse(file.read(MOST_BYTES + 1))
    except WeightsError as error:
        return cut(f"{path or SHIPPED}: {error}")
    except OSError as error:
        return cut(f"{path or SHIPPED} cannot be read: {error.strerror or type(error).__name__}")
    except ValueError as error:  # a path that no file can have
        return cut(f"no file has the path {path!r} ({error})")


@cache
def _shipped() -> Network:
    return parse(resources.files(__package__).joinpath(SHIPPED).read_bytes())


def parse(content: bytes) -> Network:
    """Raises WeightsError for whatever is not a network of this interface with finite weights."""
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
        raise WeightsError(f"no .npz file, or a broken one ({type(error).__name__})") from error
    except (zipfile.BadZipFile, zlib.error, OverflowError, AttributeError, IndexError) as error:
        raise WeightsError(f"no .npz file, or a broken one ({type(error).__name__})") from error
    missing = [name for name in (*NAMES, "metadata") if not isinstance(arrays.get(name), np.ndarray)]
    if missing:
        raise WeightsError(f"lacks {', '.join(missing)}")
    _check_interface(arrays["metadata"])
    units = arrays["hidden_bias"].shape[0] if arrays["hidden_bias"].ndim == 1 else 0
    if not 1 <= units <= MOST_UNITS:
        raise WeightsError(f"{units} hidden units, not 1 to {MOST_UNITS}")
    return Network(*(_checked(name, arrays[name], shape) for name, shape in zip(NAMES, shapes(units), strict=True)))


def _check_interface(metadata: np.ndarray[Any, Any]) -> None:
    if metadata.dtype.kind != "U" or metadata.ndim:
        raise WeightsError("its metadata are no text")
    try:
        said = json.loads(str(metadata))
    except (ValueError, RecursionError) as error:
        raise WeightsError("its metadata are no JSON") from error
    if not isinstance(said, dict):
        raise WeightsError("its metadata are no JSON object")
    for name, ours in INTERFACE.items():
        if said.get(name) != ours:
            raise WeightsError(f"was made for another {name.replace('_', ' ')}")


def _checked(name: str, array: np.ndarray[Any, Any], shape: tuple[int, ...]) -> Floats:
    if array.shape != shape:
        raise WeightsError(f"{name} has the shape {array.shape}, not {shape}")
    if array.dtype.kind != "f":
        raise WeightsError(f"{name} has no floating-point numbers")
    if not np.isfinite(array).all():
        raise WeightsError(f"{name} has a number that is not finite")
    if np.abs(array).max() > LARGEST:
        raise WeightsError(f"{name} has a number above {LARGEST:g}")
    return array.astype(np.float64)
