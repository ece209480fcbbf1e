"""What a step of a pipeline is asked for and what it tells; that its compiled form is what the source compiles to."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from conformance.manifest import replica
from elastic_tfjob.api.tfjob import TFJobSpec
from elastic_tfjob.commands.pipeline import RUN_LABEL, KfpExecutor, Request, metrics, model_uri, page
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.query.rows.jobs import ReadJob, see
from harness.hostile_text import NO_JSON_OBJECT, named
from unit.query.build import running

ROOT = Path(__file__).parents[3]
PIPELINES = ROOT / "kubeflow_pipelines"
TYPES = {"Chief": replica(1), "Worker": replica(2)}


def asked(**values: Any) -> Request:
    given = {"run_id": "run-1", "replicas": TYPES, **values}
    return Request.parse(KfpExecutor.parse(json.dumps({"inputs": {"parameterValues": given}})))


def test_a_retry_asks_for_the_same_job_and_another_run_or_step_for_another() -> None:
    first = asked()
    assert asked().name == first.name
    assert first.name.startswith("tfjob-")
    assert first.manifest["metadata"]["labels"] == {RUN_LABEL: "run-1"}
    others = {
        asked(run_id="run-2").name,
        asked(name="b").name,
        asked(elastic={"max-workers": 3}, checkpoint_dir="/c").name,
    }
    assert len(others | {first.name}) == 4


def test_inputs_become_annotations() -> None:
    manifest = asked(elastic={"max-workers": 4.0}, checkpoint_dir="/c", deadline="2h").manifest
    prefix = "elastic.kubeflow.org/"
    expected = {f"{prefix}max-workers": "4", f"{prefix}checkpoint-dir": "/c", f"{prefix}deadline": "2h"}
    assert manifest["metadata"]["annotations"] == expected


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"run_id": ""}, "PIPELINE_JOB_ID_PLACEHOLDER"),
        ({"replicas": {}}, "exactly one of manifest"),
        ({"replicas": {"Chief": []}}, "Chief"),
        ({"elastic": {"max-wrokers": 4}}, "max-wrokers is not known"),
        ({"deadline": "soon"}, "deadline"),
        ({"timeout": "soon"}, "timeout"),
        ({"when_done": "perhaps"}, "allowed: keep, delete"),
        ({"name": "No"}, "name"),
        ({"model_path": 5}, "is not a string"),
        ({"replicas": {}, "manifest": {"kind": "Job"}}, "kubeflow.org/v1"),
    ],
)
def test_invalid_arguments_are_refused_with_a_message(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        asked(**values)


@pytest.mark.parametrize("text", [*NO_JSON_OBJECT, '{"outputs": {"artifacts": {"model": {}}}}', "[" * 2000], ids=named)
def test_an_executor_input_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="executor input is invalid"):
        KfpExecutor.parse(text)


def ended(at: str) -> ReadJob:
    raw = running(annotations={"max-workers": "4", "checkpoint-dir": "/c", "deadline": "30m"})
    done = {"type": "Succeeded", "status": "True", "reason": "x", "message": "<b>", "lastTransitionTime": at}
    raw["status"] = {**raw["status"], "completionTime": at, "conditions": [done]}
    return see(TFJob.parse(raw))


@pytest.mark.parametrize(("at", "met"), [("2026-01-02T03:10:00Z", 1.0), ("2027-01-02T03:10:00Z", 0.0)])
def test_metrics_are_those_of_the_end(at: str, met: float) -> None:
    expected = {"steps": 500.0, "steps_per_s": 5.0, "rescales": 1.0, "downtime_s": 0.2, "deadline_met": met}
    assert metrics(ended(at)) == expected


def test_the_page_draws_sizes_and_holds_no_markup_of_others() -> None:
    text = page(ended("2026-01-02T03:10:00Z"), "Succeeded")
    assert text.count("<path") == 3
    assert "to 1 chief + 1 PS + 4 workers" in text
    assert "<b>" not in text
    assert "&lt;b&gt;" in text


@pytest.mark.parametrize(
    ("model_dir", "uri"),
    [
        ("/m/out/x", "pvc://models/a/out/x"),
        ("/m", "pvc://models/a"),
        ("/m/scratch/x", ""),
        ("/other", ""),
        ("gs://b/x", "gs://b/x"),
        ("", ""),
    ],
)
def test_a_model_is_where_others_find_it(model_dir: str, uri: str) -> None:
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "models"}}, {"name": "s", "emptyDir": {}}]
    chief = replica(1, volumes=volumes)
    chief["template"]["spec"]["containers"][0]["volumeMounts"] = [
        {"name": "v", "mountPath": "/m", "subPath": "a"},
        {"name": "s", "mountPath": "/m/scratch"},
    ]
    assert model_uri(TFJobSpec.parse({"tfReplicaSpecs": {"Chief": chief}}), model_dir) == uri


@pytest.mark.parametrize("component", ["tfjob", "tfjob_cleanup"])
def test_each_input_is_described_where_kfp_shows_it(component: str) -> None:
    compiled = yaml.safe_load(next(PIPELINES.rglob(f"{component}/component.yaml")).read_text())
    found = compiled["root"]["dag"]["tasks"][component.replace("_", "-")]["componentRef"]["name"]
    inputs = compiled["components"][found]["inputDefinitions"]["parameters"]
    assert inputs
    assert [name for name, field in inputs.items() if not field.get("description")] == []


@pytest.mark.thorough  # it changes with the folder kubeflow_pipelines alone; kfp takes long to import
def test_the_compiled_components_are_what_the_source_compiles_to() -> None:
    """In kfp's own locked environment."""
    uv = subprocess.run([ROOT / "e2e" / "bootstrap"], capture_output=True, text=True, check=True).stdout.strip()
    command: list[str | Path] = [uv, "run", "--quiet", "--locked", "--script", PIPELINES / "compile.py", "--check"]
    variables = {name: text for name, text in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    made = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert made.returncode == 0, made.stderr
