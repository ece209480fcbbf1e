"""What a pipeline's step is asked for: KFP's executor input, read in one place. Pure."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from elastic_tfjob.api.annotations import PREFIX, Elasticity, duration
from elastic_tfjob.api.fields import describe
from elastic_tfjob.api.tfjob import TFJobSpec

__all__ = ["RUN_LABEL", "Executor", "Request", "run_id_of"]

RUN_LABEL: Final = "elastic-tfjob.kubeflow.org/pipeline-run"
"""Label of the TFJobs of a pipeline's run; its value is the run's id."""

_RUN: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Executor:
    """The executor input that KFP puts in place of `{{$}}`: values of the inputs, and where outputs go."""

    values: Mapping[str, Any]
    parameters: Mapping[str, str]
    artifacts: Mapping[str, Mapping[str, Any]]
    output_file: str

    @classmethod
    def parse(cls, text: str) -> "Executor":
        """Read it. Raises ValueError for what KFP does not write."""
        try:
            raw = orjson.loads(text)
            outputs = raw.get("outputs") or {}
            return cls(
                values=dict((raw.get("inputs") or {}).get("parameterValues") or {}),
                parameters={
                    name: str(found["outputFile"]) for name, found in (outputs.get("parameters") or {}).items()
                },
                artifacts={name: found["artifacts"][0] for name, found in (outputs.get("artifacts") or {}).items()},
                output_file=str(outputs.get("outputFile") or ""),
            )
        except (ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
            raise ValueError("the executor input is not what KFP writes in place of {{$}}") from error

    def text(self, name: str) -> str:
        """An input that is a text; empty where it is not given."""
        value = self.values.get(name)
        if value is None or isinstance(value, str):
            return (value or "").strip()
        raise ValueError(f"{name}: {describe(value)} is no text")

    def struct(self, name: str) -> dict[str, Any]:
        """An input that is an object; empty where it is not given."""
        value = self.values.get(name)
        if value is None or isinstance(value, dict):
            return dict(value or {})
        raise ValueError(f"{name}: {describe(value)} is no object")


@dataclass(frozen=True, slots=True)
class Request:
    """The TFJob that a step shall run. `timeout_s` counts from its creation; None: none."""

    manifest: Mapping[str, Any]
    name: str
    namespace: str
    run_id: str
    timeout_s: float | None
    delete: bool
    model_dir: str

    @classmethod
    def parse(cls, executor: Executor) -> "Request":
        """Read the inputs. Raises ValueError with what is wrong: nothing of it is ignored."""
        run_id = run_id_of(executor)
        manifest = _manifest(executor)
        spec = TFJobSpec.parse(manifest["spec"])
        annotations = manifest["metadata"]["annotations"]
        elasticity = Elasticity.parse(annotations, spec)
        if elasticity.problems:
            raise ValueError("; ".join(elasticity.problems))
        when_done = executor.text("when_done") or "keep"
        if when_done not in ("keep", "delete"):
            raise ValueError(f"when_done: {describe(when_done)}; allowed is keep or delete")
        timeout = executor.text("timeout")
        try:
            timeout_s = duration(timeout).total_seconds() if timeout else None
        except ValueError:
            raise ValueError(f"timeout: {describe(timeout)}; allowed is a duration (1d12h, 90m, 30s)") from None
        base = executor.text("name") or str(manifest["metadata"].get("name") or "") or "tfjob"
        if not _NAME.fullmatch(base):
            raise ValueError(f"name: {describe(base)}; allowed are up to 40 of a-z, 0-9 and -, a letter first")
        # A retry has the same inputs and so the same name; another step or turn of a loop has others.
        asked = orjson.dumps([run_id, manifest], option=orjson.OPT_SORT_KEYS)
        name = f"{base}-{hashlib.sha256(asked).hexdigest()[:8]}"
        labels = {**(manifest["metadata"].get("labels") or {}), RUN_LABEL: run_id}
        namespace = str(manifest["metadata"].get("namespace") or "")
        metadata = {"name": name, "labels": labels, "annotations": annotations}
        return cls(
            manifest={**manifest, "metadata": metadata},
            name=name,
            namespace=namespace,
            run_id=run_id,
            timeout_s=timeout_s,
            delete=when_done == "delete",
            model_dir=executor.text("model_path") or elasticity.checkpoint_dir or "",
        )


def run_id_of(executor: Executor) -> str:
    """The id of the run. Raises ValueError where it could not be a label."""
    run_id = executor.text("run_id")
    if not _RUN.fullmatch(run_id):
        hint = "give dsl.PIPELINE_JOB_ID_PLACEHOLDER"
        raise ValueError(f"run_id: {describe(run_id)} cannot be the value of a label; {hint}")
    return run_id


def _manifest(executor: Executor) -> dict[str, Any]:
    """The TFJob as asked for, with annotations that are texts."""
    given, replicas = executor.struct("manifest"), executor.struct("replicas")
    if bool(given) == bool(replicas):
        raise ValueError("give either manifest, a whole TFJob, or replicas, a ReplicaSpec for each type")
    api = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob"}
    if replicas:
        given = {**api, "metadata": {}, "spec": {"tfReplicaSpecs": replicas}}
    if any(given.get(key) != text for key, text in api.items()):
        raise ValueError("manifest: its apiVersion is not kubeflow.org/v1, or its kind is not TFJob")
    metadata = given.get("metadata") or {}
    if not isinstance(metadata, dict) or not isinstance(given.get("spec"), dict):
        raise ValueError("manifest: metadata or spec is no object")
    for key in ("annotations", "labels"):
        if not isinstance(metadata.get(key) or {}, dict):
            raise ValueError(f"manifest: metadata.{key} is no object")
    left = sorted(metadata.keys() - {"name", "namespace", "labels", "annotations"})
    if left:
        raise ValueError(f"manifest: a step does not set metadata.{', metadata.'.join(left)}")
    annotations = {**(metadata.get("annotations") or {})}
    annotations |= {PREFIX + name: _word(value) for name, value in executor.struct("elastic").items()}
    for name in ("checkpoint-dir", "deadline"):
        if text := executor.text(name.replace("-", "_")):
            annotations[PREFIX + name] = text
    if wrong := sorted(name for name, value in annotations.items() if not isinstance(value, str)):
        raise ValueError(f"manifest: the annotation {wrong[0]} is no text")
    return {**api, "metadata": {**metadata, "annotations": annotations}, "spec": given["spec"]}


def _word(value: object) -> str:
    """A value as an annotation. KFP's numbers are all floats on their way."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
