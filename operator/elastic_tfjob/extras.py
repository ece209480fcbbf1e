"""Which packages each command needs. Runs on Python 3.9 without any package, because it reports missing ones."""

from __future__ import annotations

from importlib.util import find_spec

__all__ = ["EXTRAS", "advice", "extra_of", "missing_module"]

_SIMULATION = ("click", "numpy", "propcache", "pydantic", "yaml", "rich", "scipy")
_CLI = (
    *("aiohttp", "aiolimiter", "click", "kubernetes", "numpy", "orjson", "prometheus_client", "propcache"),
    *("pydantic", "yaml", "rich", "structlog", "tenacity"),
)
EXTRAS = {"cli": _CLI, "operator": _CLI, "simulation": _SIMULATION}
"""The modules that each extra of pyproject.toml installs."""

_EXTRA_OF = {"crd": "operator", "operator": "operator", "simulate": "simulation", "train-policy": "simulation"}
_NONE = ("completion",)
"""Commands that need only click, which every extra installs."""
_LATE = ("scipy",)
"""Needed by one speed model only. The operator's image, which trains policies, does not have it."""


def extra_of(command: str) -> str:
    """The extra that this command needs."""
    return _EXTRA_OF.get(command, "cli")


def missing_module(command: str) -> str | None:
    """A module that this command needs and that is not installed; None: all are installed."""
    needed = ("click",) if command in _NONE else EXTRAS[extra_of(command)]
    return next((module for module in needed if module not in _LATE and find_spec(module) is None), None)


def advice(command: str, module: str) -> str:
    """What to install for this command if `module` is missing."""
    return f"Needs pip install 'elastic-tfjob[{extra_of(command)}]' ({module} is missing)."
