# /// script
# requires-python = ">=3.11"
# dependencies = ["kfp==2.17.0"]
# ///
"""Compiles the components to the IR YAML beside their sources.

    uv run --locked --script kubeflow_pipelines/compile.py [--check]

--check writes nothing and ends with 1 where a file is not what its source compiles to. A script with its own locked
environment (compile.py.lock): kfp needs an older `kubernetes` than the operator.
"""

import importlib
import sys
import tempfile
from pathlib import Path

from kfp import compiler

ROOT = Path(__file__).parent
FOLDERS = {
    "tfjob": "components/training/tfjob/component",
    "tfjob_cleanup": "components/training/tfjob_cleanup/component",
}


def main() -> None:
    sys.path.insert(0, str(ROOT))
    old = []
    for function, source in FOLDERS.items():
        module, name = source.replace("/", "."), f"{source}.yaml"
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "made.yaml"
            compiler.Compiler().compile(getattr(importlib.import_module(module), function), str(made))
            text = made.read_text()
        if "--check" not in sys.argv[1:]:
            (ROOT / name).write_text(text)
        elif not (ROOT / name).exists() or (ROOT / name).read_text() != text:
            old.append(name)
    if old:
        sys.exit(f"not what the source compiles to: {', '.join(old)}; `make pipelines` writes them")


if __name__ == "__main__":
    main()
