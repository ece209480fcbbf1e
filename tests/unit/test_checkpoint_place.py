"""Two jobs whose checkpoints are in one place."""

import copy
from typing import Any

import pytest

from elastic_tfjob.api.tfjob import TFJobSpec
from elastic_tfjob.controller.job.checkpoint_place import place_of

CLAIM = {"persistentVolumeClaim": {"claimName": "data"}}


def place(directory: str | None, volume: dict[str, Any] | None, kind: str = "Worker", **mount: str) -> str | None:
    container: dict[str, Any] = {"name": "tensorflow", "image": "i", "command": ["train"]}
    spec: dict[str, Any] = {"containers": [container]}
    if volume is not None:
        container["volumeMounts"] = [{"name": "v", "mountPath": "/ck", **mount}]
        spec["volumes"] = [{"name": "v", **copy.deepcopy(volume)}]
    return place_of(TFJobSpec.parse({"tfReplicaSpecs": {kind: {"template": {"spec": spec}}}}), directory)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (place("/ck/a", CLAIM), place("/ck/a/", CLAIM, kind="Chief")),
        (place("/ck/a", CLAIM), place("file:///ck/x/../a", CLAIM)),
        (place("/ck/a", CLAIM), place("/ck", CLAIM, subPath="a")),
        (place("/ck/a", CLAIM), place("/other/a", CLAIM, mountPath="/other")),
        (
            place("/ck/a", {"hostPath": {"path": "/srv"}}),
            place("/ck", {"hostPath": {"path": "/srv/a", "type": "Directory"}}),
        ),
        (
            place("/ck/a", {"nfs": {"server": "s", "path": "/x"}}),
            place("/ck/a", {"nfs": {"path": "/x", "server": "s"}}),
        ),
        (
            place("/ck/a", {"nfs": {"server": "s", "path": "/x/"}}),
            place("/ck", {"nfs": {"server": "s", "path": "/x/a", "readOnly": False}}),
        ),
        (place("/ck/a", {"hostPath": {"path": "/srv"}}), place("/ck/srv/a", {"hostPath": {"path": "/"}})),
        (place("/ck/a", CLAIM), place("//ck//a", CLAIM)),
        (place("/ck/a", CLAIM), place("file:////ck/./a", CLAIM)),
        (place("/ck/a", CLAIM), place("/ck/a", CLAIM, mountPath="//ck/.")),
        (place("gs://b/a", None), place("gs://b/a/", CLAIM)),
    ],
)
def test_the_same(one: str | None, other: str | None) -> None:
    assert one is not None
    assert one == other


@pytest.mark.parametrize(
    "other",
    [
        place("/ck/b", CLAIM),
        place("/ck/a", {"persistentVolumeClaim": {"claimName": "other"}}),
        place("/ck/a", CLAIM, subPath="mine"),
        place("/ck/a", {"hostPath": {"path": "/srv"}}),
        place("gs://b/a", CLAIM),
        place("/ck/a", {"nfs": {"server": "s", "path": "/x"}}),
    ],
)
def test_not_the_same(other: str | None) -> None:
    assert other is not None
    assert place("/ck/a", CLAIM) != other


@pytest.mark.parametrize(
    "none",
    [
        place(None, CLAIM),
        place("/ck/a", None),
        place("/elsewhere", CLAIM),
        place("/ck/a", {"emptyDir": {}}),
        place("/ck/a", {}),
        place("/ck/a", {"persistentVolumeClaim": None}),
        place("/ck/a", {"hostPath": "/srv"}),
        place("/ck/a", CLAIM, mountPath=""),
        place("ck/a", CLAIM),
        place("/ck/a", CLAIM, subPathExpr="$(POD_NAME)"),
    ],
)
def test_a_place_that_no_other_job_has_or_that_is_not_known(none: str | None) -> None:
    assert none is None
