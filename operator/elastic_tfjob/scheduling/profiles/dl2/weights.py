"""Weights of the network in a file: a .npz of its arrays, with JSON that says what they are. Read in one place.

Whatever stands in a file, reading it ends with a network or with words that say why there is none.
"""

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

import numpy as np

from elastic_tfjob.api.fields import cut
from elastic_tfjob.scheduling.profiles.dl2.network import ACTIONS, JOB_FEATURES, SIZE_FEATURES, Floats, Network, shapes

__all__ = ["FORMAT", "SHIPPED", "WeightsError", "as_bytes", "parse", "read"]

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
