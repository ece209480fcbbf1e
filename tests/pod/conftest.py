"""Pods that are gone when a test ends, and this process as it was."""

import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from .pods import PYTHON, Pod


@pytest.fixture
def make_pod(tmp_path: Path) -> Iterator[Callable[..., Pod]]:
    """`make_pod(source)` writes a program and gives a pod that runs it; further arguments are the Pod's."""
    pods: list[Pod] = []

    def make(
        source: str,
        *arguments: str,
        name: str = "pod",
        environment: Mapping[str, str] | None = None,
        python: str = PYTHON,
    ) -> Pod:
        program = tmp_path / f"{name}.py"
        program.write_text(source)
        pod = Pod(tmp_path / name, [python, program, *arguments], environment, python)
        pods.append(pod)
        return pod

    yield make
    for pod in pods:
        pod.stop()


@pytest.fixture
def sigterm_handler() -> Iterator[None]:
    """Puts this process's SIGTERM handler back: `resume()` replaces the one that a program has."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
