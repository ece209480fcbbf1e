# /// script
# requires-python = ">=3.11"
# dependencies = ["kfp==2.17.0", "kfp-kubernetes==2.17.0", "docker>=7.1"]
# ///
"""Runs a component or the example pipeline in containers of this machine, by kfp.local's DockerRunner.

    uv run --locked --script e2e/pipeline_client.py < request.json

The request: {"run": "tfjob" | "tfjob_cleanup" | "digits", "images": [operator, trainer], "arguments": {}, "root": where
outputs go, "mounts": {target: source}, "environment": {}, "volume": {}, "steps": 0}. The last line is JSON: {"outputs":
{name: a value, or {"uri", "metadata", "path"} of an artifact}}, none where a step failed.

A script with its own locked environment (pipeline_client.py.lock): kfp needs an older `kubernetes` than the operator.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import docker  # type: ignore[import-untyped]  # of the script's own environment
from kfp import local  # type: ignore[import-not-found]

sys.path.insert(0, str(Path(__file__).parents[1] / "kubeflow_pipelines"))

from components.training import tfjob, tfjob_cleanup  # type: ignore[import-not-found]
from examples import digits  # type: ignore[import-not-found]


def told(value: Any) -> Any:
    """An output as JSON."""
    if hasattr(value, "uri"):
        return {"uri": value.uri, "metadata": dict(value.metadata), "path": value.path}
    return value


def main() -> None:
    asked = json.load(sys.stdin)
    operator, trainer = asked["images"]
    runner = local.DockerRunner(
        # As on Kubernetes, where a step's command stands in place of its image's.
        entrypoint=[""],
        network_mode="host",
        user=str(os.getuid()),
        environment=asked["environment"],
        mounts=[docker.types.Mount(target, source, "bind") for target, source in asked["mounts"].items()],
    )
    local.init(runner, pipeline_root=asked["root"], raise_on_error=False)
    if asked["run"] == "digits":
        step = digits.pipeline(operator, trainer, asked["steps"], asked["volume"])
    else:
        step = {"tfjob": tfjob, "tfjob_cleanup": tfjob_cleanup}[asked["run"]].load(operator)
    task = step(**asked["arguments"])
    print(json.dumps({"outputs": {name: told(value) for name, value in task.outputs.items()}}))


if __name__ == "__main__":
    main()
