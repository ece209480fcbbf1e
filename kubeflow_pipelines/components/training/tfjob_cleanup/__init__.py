"""Loads the component `tfjob_cleanup` from its compiled form."""

from pathlib import Path
from typing import Any

__all__ = ["load"]


def load(image: str) -> Any:
    """The component, for use in a pipeline, with this image of the operator."""
    import kfp.components
    import yaml

    raw = yaml.safe_load(Path(__file__).with_name("component.yaml").read_text())
    for executor in raw["deploymentSpec"]["executors"].values():
        executor["container"]["image"] = image
    return kfp.components.load_component_from_text(yaml.safe_dump(raw))
