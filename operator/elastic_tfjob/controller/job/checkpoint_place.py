"""Determines where a job's checkpoints are: the volume, and the folder in it. Pure.

Two jobs may use one path on two volumes, or two paths to one folder.
"""

import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Any, Final

from elastic_tfjob.api.tfjob import TFJobSpec
from elastic_tfjob.controller.job.inject import trainer_of
from elastic_tfjob.controller.job.pods import chief_of

__all__ = ["clean", "mount_of", "place_of"]

_OWN: Final = frozenset(("emptyDir", "ephemeral", "configMap", "secret", "downwardAPI", "projected", "image"))
"""Kinds of volumes that are separate for each pod, or read-only."""


def place_of(spec: TFJobSpec, directory: str | None) -> str | None:
    """Returns the volume and the directory in it where the chief writes its checkpoints: within a namespace, equal
    texts are the same place. A `hostPath` is assumed to be the same on each node. None for a job without checkpoints,
    for a place that no other job can have, and for one that is known only when its pods run (`subPathExpr`)."""
    try:
        return _place(spec, directory) if directory is not None else None
    except (AttributeError, KeyError, TypeError, ValueError):  # a template that the API server would refuse
        return None


def _place(spec: TFJobSpec, directory: str) -> str | None:
    if "://" in (path := directory.removeprefix("file://")):
        return path.rstrip("/")
    chief = spec.tf_replica_specs.get(chief_of(spec)[0])
    where = clean(path)
    mount = mount_of(chief.template, where) if chief is not None else None
    if chief is None or mount is None or mount.get("subPathExpr"):
        return None
    volumes = (chief.template.get("spec") or {}).get("volumes") or ()
    volume: dict[str, Any] = next((each for each in volumes if each.get("name") == mount.get("name")), {})
    kinds = {kind: source for kind, source in volume.items() if kind != "name"}
    if len(kinds) != 1 or kinds.keys() & _OWN:
        return None
    ((kind, source),) = kinds.items()
    if not isinstance(source, dict):
        return None
    folder = clean(f"/{mount.get('subPath') or ''}/{where.relative_to(_at(mount))}")
    match kind, source:
        case "persistentVolumeClaim", {"claimName": str(claim)}:
            return f"claim {claim}, folder {folder}"
        case "hostPath", {"path": str(root)}:
            return f"host path {clean(f'{root}/{folder}')}"
        case _:
            # A file server's path may be a folder that another volume reaches through its own path.
            root = source.get("path") or ""
            rest = {key: value for key, value in source.items() if key not in ("path", "readOnly")}
            return f"{kind} {json.dumps(rest, sort_keys=True)}, folder {clean(f'/{root}/{folder}')}"


def mount_of(template: Mapping[str, Any], path: PurePosixPath) -> Mapping[str, Any] | None:
    """Returns the mount that holds `path` in the training container: the one with the longest mount path above it."""
    mounts = trainer_of(template).get("volumeMounts") or ()
    above = [mount for mount in mounts if path.is_relative_to(_at(mount))]
    return max(above, key=lambda mount: len(_at(mount).parts), default=None)


def clean(path: str) -> PurePosixPath:
    """Returns a path without `.`, `..` and repeated slashes; `normpath` alone would keep two leading slashes."""
    return PurePosixPath(normpath(f"//{path}" if path.startswith("/") else path))


def _at(mount: Mapping[str, Any]) -> PurePosixPath:
    return clean(str(mount.get("mountPath")))
