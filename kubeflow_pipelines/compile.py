# /// script
# requires-python = ">=3.11"
# dependencies = ["kfp==2.17.0", "kfp-kubernetes==2.17.0"]
# ///
"""Compiles the components and the example to the IR YAML beside their sources.

    uv run --locked --script kubeflow_pipelines/compile.py [--check]

--check writes nothing and ends with 1 where a file is not what its source compiles to. A script with its own locked
environment (compile.py.lock): kfp needs an older `kubernetes` than the operator.
"""

import importlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kfp import compiler

ROOT = Path(__file__).parent
COMPONENTS = {
    "tfjob": "components/training/tfjob/component",
    "tfjob_cleanup": "components/training/tfjob_cleanup/component",
}
IMAGES = "registry.example.com/elastic-tfjob/operator:0.1.0", "registry.example.com/elastic-tfjob/trainer:0.1.0"


def sources() -> Iterator[tuple[str, Any]]:
    """What is compiled, and the name that it is written to."""
    for function, source in COMPONENTS.items():
        yield f"{source}.yaml", getattr(importlib.import_module(source.replace("/", ".")), function)
    yield "examples/digits.yaml", importlib.import_module("examples.digits").pipeline(*IMAGES)


def main() -> None:
    sys.path.insert(0, str(ROOT))
    old = []
    for name, source in sources():
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "made.yaml"
            compiler.Compiler().compile(source, str(made))
            text = made.read_text()
        if "--check" not in sys.argv[1:]:
            (ROOT / name).write_text(text)
        elif not (ROOT / name).exists() or (ROOT / name).read_text() != text:
            old.append(name)
    if old:
        sys.exit(f"out of date: {', '.join(old)}; run `make pipelines`")


if __name__ == "__main__":
    main()
