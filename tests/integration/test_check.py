"""`check` and `convert` held to the real kubectl and API server: the same files, refused and read alike."""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from conformance.manifest import tfjob
from elastic_tfjob.api.manifests import as_text, manifests
from elastic_tfjob.cli import main
from elastic_tfjob.commands.job_findings import schema_of_v1
from harness import binaries
from harness.api import Api, ApiError, Object, tfjobs

pytestmark = pytest.mark.timeout(300)

HEAD = "apiVersion: v1\nkind: X\nmetadata: {name: a}\n"
VALUES = """
2026-01-31|2026-01-31T18:00:00Z|2026-01-31 18:00:00|!!timestamp 2026-01-31|12:30|190:20:30|20-01-01
yes|No|on|OFF|y|N|True|tRUE|~|Null|nULL|null|
1|+5|-0|010|0o17|0b101|-0b1|0x1F|0xFFFFFFFFFFFFFFFF|1_000|1__2|08|0.5|.5|+.5|1.|1e3|-.5e-3|685.230_15e+03|1e400|.1_0
9223372036854775807|9223372036854775808|123456789012345678901234567890|1:20|1,000|0x|0_x1|1e|e3|=|..|-.
'a''b'|"a\\tb\\x41\\u00e9"|"1"|!!str 3|!!int "3"|!!float 3|!!bool yes|!!binary aGVsbG8=|!x y|!!set {a, b}|!!omap [a: 1]
[a, b,]|{a, b}|{a: }|{a:1}|{a: http://x}|[a: b]|[http://x]|{1: a, 01: b}|{1.5: a}|{yes: 1}|{1e-7: a}|{2026-01-31: a}
{a: 1, a: 2}|{a: 1, <<: {a: 2}}|{<<: [{y: 1}, {y: 2, z: 3}]}|{'<<': 3}|{<<: {q: 1}, q: 2}
a\tb|\tx|[1,\t2]|a#b|a #b|a::b|\u00a0|\U0001f600|\u0663
"""
BLOCKS = [
    "v: |\n  a\n  b\n",
    "v: >-\n  a\n  b\n\n  c\n",
    "v: |+\n  a\n\n",
    "v: |2\n   a\n",
    "v:\n- 1\n-  - 2\n   - 3\n",
    "v: &a {x: 1}\nw: {<<: *a, x: 2}\nz: *a\n",
    "v: a\r\nw: b\r\n",
    "? v\n: 1\n",
    "v: a\n  b\n",
    "v: a\n...\nw: 1\n",
]
REFUSED = [
    "v: {<<: 3}",
    "v: {[1]: 2}",
    "v: {~: 2}",
    "v: .inf",
    "v: !!int x",
    "v: !!timestamp 9",
    "v: !!binary '$$'",
    "v: &a [*a]",
    "v: *nope",
    "v: [1",
    "\tv: 1",
    "v: @a",
    "v: 1\n--- x",
    "v: 1\n w: 2",
    "v: a\u2028b",
]


def _int64(text: str) -> int | float:
    return int(text) if -(2**63) <= int(text) < 2**63 else float(text)


def kubectl_reads(text: str) -> list[Any] | None:
    """What kubectl sends for these documents, without asking a server; None where it refuses them."""
    words = [str(binaries.path("kube")), "kubectl", "label", "--local", "-f", "-", "seen=1", "-o", "json"]
    ended = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    if ended.returncode:
        return None
    decoder, rest, found = json.JSONDecoder(parse_int=_int64), ended.stdout.strip(), []
    while rest:
        value, end = decoder.raw_decode(rest)
        del value["metadata"]["labels"]
        found.append(value)
        rest = rest[end:].strip()
    return found


def test_yaml_that_kubectl_accepts_is_read_with_the_same_meaning() -> None:
    snippets = [f"v: {value}\n" for line in VALUES.strip("\n").split("\n") for value in line.split("|")] + BLOCKS
    parts = [f"{HEAD.replace('name: a', f'name: a{k}')}{snippet}" for k, snippet in enumerate(snippets)]
    text = "--- # a comment\n".join(parts)
    read, mine = kubectl_reads(text), [each.value for each in manifests(text)]
    assert read is not None
    assert len(read) == len(mine) == len(snippets)
    wrong = {snippet: (a, b) for snippet, a, b in zip(snippets, read, mine, strict=True) if a != b}
    assert wrong == {}
    written = kubectl_reads("---\n".join(as_text(each) for each in mine))
    assert written == mine


def test_yaml_that_kubectl_refuses_is_refused() -> None:
    for snippet in REFUSED:
        assert kubectl_reads(f"{HEAD}{snippet}\n") is None, snippet
        with pytest.raises(ValueError, match=r"not YAML|too large"):
            manifests(f"{HEAD}{snippet}\n")


def test_lists_json_and_a_byte_order_mark() -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [yaml.safe_load(HEAD)]}
    for text in (json.dumps(yaml.safe_load(HEAD)), f"\ufeff{HEAD}", f"{HEAD}v: 1.0\n"):
        assert kubectl_reads(text) == [each.value for each in manifests(text)]
    assert kubectl_reads(json.dumps(listed)) == listed["items"]


WORKER = ("spec", "tfReplicaSpecs", "Worker")
POD = (*WORKER, "template", "spec")
TRAINER = (*POD, "containers", 0)
# Where something is set, and to what.
EDITS: list[tuple[tuple[str | int, ...], Any]] = [
    (("spec", "cleanPodPolicy"), "All"),
    (("spec", "runPolicy"), {"cleanPodpolicy": "All"}),
    (("spec", "runPolicy"), {"suspend": None}),
    (("spec", "runPolicy"), {"suspend": "true"}),
    (("spec", "runPolicy"), {"managedBy": "x"}),
    ((*WORKER, "replicas"), "2"),
    ((*WORKER, "replicas"), None),
    ((*WORKER, "nodeSelector"), {}),
    ((*WORKER, "template", "metadata"), {"creationTimestamp": None}),
    ((*WORKER, "template", "metadata"), {"labels": {"a": 1}}),
    ((*POD, "containers"), None),
    ((*POD, "nodeSelector"), {"a": None}),
    ((*POD, "volumes"), [{"name": "a"}, {"name": "a"}]),
    ((*POD, "volumes"), [{"name": "a", "emptyDir": {"sizeLimit": 1.5}}]),
    ((*POD, "tolerations"), [{"operatr": "x"}]),
    ((*TRAINER, "imagePullpolicy"), "x"),
    ((*TRAINER, "env"), [{"name": "A", "value": 1}]),
    ((*TRAINER, "env"), [{"value": "x"}]),
    ((*TRAINER, "args"), [None]),
    ((*TRAINER, "command"), None),
    ((*TRAINER, "ports"), [{"containerPort": "80"}]),
    ((*TRAINER, "resources"), {"limits": {"cpu": 0.5}}),
    ((*TRAINER, "resources"), {"limits": {"cpu": "x"}}),
    ((*TRAINER, "resources"), {"limits": {"cpu": 1}}),
    ((*TRAINER, "livenessProbe"), {"httpGet": {"port": True}}),
    (("metadata", "annotations"), {"a": 1}),
    (("metadata", "annotations"), {"a": None}),
    (("metadata", "foo"), 1),
    (("metadata", "creationTimestamp"), None),
    (("metadata", "name"), "1a"),
    (("status",), {"conditions": []}),
    (("foo",), 1),
]


def edited(path: tuple[str | int, ...], value: Any) -> Object:
    job = tfjob(Worker=2)
    found: Any = job
    for part in path[:-1]:
        found = found.setdefault(part, {}) if isinstance(found, dict) else found[part]
    found[path[-1]] = value
    return job


async def test_offline_the_api_servers_strict_verdict_is_known_and_a_namespaces_is_asked(
    api: Api, kubeconfig: Path, namespace: str, tmp_path: Path
) -> None:
    wrong = []
    for path, value in EDITS:
        job, said = edited(path, value), ""
        try:
            await api.request("POST", f"{tfjobs(namespace)}?dryRun=All&fieldValidation=Strict", job)
        except ApiError as error:
            said = str(error)
        found = list(schema_of_v1().misfits(job))
        if bool(said) != bool(found) or ("strict decoding" in said) != any(each.unknown for each in found):
            wrong.append((path, value, said, found))
    assert wrong == []

    plain = tfjob("train", metadata={"namespace": namespace}, Worker=2)
    for name, job, says in (
        ("fits", plain, "ok:      pod of Worker: the API server accepts it (dry run)"),
        (
            "restart",
            {
                **plain,
                "spec": {
                    "tfReplicaSpecs": {
                        "Worker": {**plain["spec"]["tfReplicaSpecs"]["Worker"], "restartPolicy": "Onfailure"}
                    }
                },
            },
            'error:   pod of Worker: the API server refuses it in this namespace: Pod "train-worker-1" is invalid: '
            "spec.restartPolicy",
        ),
    ):
        path_of_file = tmp_path / f"{name}.yaml"
        path_of_file.write_text(yaml.safe_dump(job))
        assert says in await check(kubeconfig, path_of_file)
    least: Object = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "least"}}
    least["spec"] = {"limits": [{"type": "Pod", "min": {"cpu": "1"}}]}
    await api.create(f"/api/v1/namespaces/{namespace}/limitranges", least)
    async with asyncio.timeout(60):  # the API server's own copy of it is late
        while "minimum cpu usage per Pod is 1" not in (out := await check(kubeconfig, tmp_path / "fits.yaml")):
            await asyncio.sleep(1)
    assert "error:   pod of Worker: the API server refuses it in this namespace: " in out
    assert "ok:      Service of Worker: the API server accepts it (dry run)" in out
    assert (await api.get(tfjobs(namespace)))["items"] == []


async def check(kubeconfig: Path, file: Path) -> str:
    words = ["check", "-f", str(file), "--kubeconfig", str(kubeconfig)]
    result = await asyncio.to_thread(CliRunner().invoke, main, words)
    return result.output
