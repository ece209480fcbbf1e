"""Numbers as training programs have them (NumPy's, TensorFlow's, Keras') made plain, where they enter."""

from __future__ import annotations

import operator
from typing import Any


def whole(name: str, value: Any) -> int:
    """`value` as an int. Raises TypeError, which names it, for what is not a whole number, ValueError below 0."""
    number: int = value
    if type(value) is not int:
        try:
            if isinstance(value, bool):
                raise TypeError
            number = operator.index(value.numpy() if hasattr(value, "numpy") else value)
        except Exception:
            raise TypeError(
                f"{name} is {_brief(value)}; it may be a whole number: an int, a NumPy integer, or a tensor or variable"
                " of an integer type with one value"
            ) from None
    if number < 0:
        raise ValueError(f"{name} is {number}; it must be at least 0")
    return number


def scalar(name: str, value: Any) -> Any:
    """`value` itself, if it can be made a float later: a tensor is not copied from its device here. Raises TypeError,
    which names it, for what is no single number."""
    if value is None or type(value) is float:
        return value
    shape = getattr(value, "shape", ())
    if isinstance(value, (str, bytes)) or not (hasattr(value, "__float__") or hasattr(value, "numpy")) or _many(shape):
        raise TypeError(
            f"{name} is {_brief(value)}; it may be a number: a float, an int, one of NumPy's, or an eager tensor or "
            "variable with one value (fetch() what a ClusterCoordinator's schedule() gave)"
        )
    return value


def _many(shape: Any) -> bool:
    try:
        return any(size != 1 for size in shape)
    except (TypeError, ValueError):  # of unknown rank
        return True


def _brief(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        text = "?"
    return f"{text[:100]} ({type(value).__name__})"
