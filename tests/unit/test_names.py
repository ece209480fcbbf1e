"""Released images have one registry and one version, wherever they are named."""

import json
import tomllib

import pytest
import yaml

from harness import names


def test_all_files_name_the_same_registry_and_this_version() -> None:
    assert names.outdated(names.registry(), names.version()) == {}


def test_another_registry_is_written_wherever_an_image_is_named() -> None:
    changed = names.outdated("ghcr.io/you", "9.9.9")
    texts = {str(path.relative_to(names.ROOT)): text for path, text in changed.items()}
    assert {
        "README.md",
        "manifests/components/images/kustomization.yaml",
        "manifests/helm/elastic-tfjob/Chart.yaml",
        "manifests/helm/elastic-tfjob/values.yaml",
        "manifests/samples/digits.yaml",
        "manifests/samples/program.yaml",
        "manifests/samples/second.yaml",
        "kubeflow_pipelines/components/training/tfjob/component.yaml",
        "kubeflow_pipelines/components/training/tfjob_cleanup/component.py",
    } <= texts.keys()
    assert not [path for path, text in texts.items() if names.registry() in text]


def test_the_overlays_take_their_image_from_the_component() -> None:
    for overlay in (names.ROOT / "manifests" / "overlays").iterdir():
        kustomization = yaml.safe_load((overlay / "kustomization.yaml").read_text())
        assert kustomization["components"] == ["../../components/images"]
        assert "images" not in kustomization


def test_no_file_for_users_names_a_local_image() -> None:
    files = {path for pattern in names._FILES for path in names.ROOT.glob(pattern)}
    naming = {str(path.relative_to(names.ROOT)) for path in files if "localhost/" in path.read_text()}
    assert naming == {"docs/development.md"}, "which tells where the harness puts them"


def test_the_samples_of_the_demo_have_the_images_that_are_built_here() -> None:
    sample = names.ROOT / "manifests" / "samples" / "digits.yaml"
    job = yaml.safe_load(names.local(sample))
    images = [
        container["image"]
        for replica in job["spec"]["tfReplicaSpecs"].values()
        for container in replica["template"]["spec"]["containers"]
    ]
    assert images == ["localhost/elastic-tfjob/trainer:dev"] * 3
    assert json.dumps(job).replace("localhost", names.registry()).replace(":dev", f":{names.version()}") == json.dumps(
        yaml.safe_load(sample.read_text())
    )


def test_another_repository_is_written_wherever_it_is_named() -> None:
    texts = names.moved("https://host/you/repo")
    assert tomllib.loads(texts[names.PROJECT])["project"]["urls"] == {
        "Repository": "https://host/you/repo",
        "Issues": "https://host/you/repo/issues",
        "Changelog": "https://host/you/repo/blob/main/CHANGELOG.md",
    }
    assert "https://host/you/repo" in texts[names.SITE]


@pytest.mark.parametrize(
    "text",
    [
        "https://github.com/you/elastic-tfjob/operator",
        "localhost/elastic-tfjob/operator:<hash>",
        "from elastic-tfjob/operator:1",
    ],
)
def test_text_without_an_image_is_left_alone(text: str) -> None:
    assert names.renamed(text, "ghcr.io/you", "1") == text


def test_a_registry_may_have_a_port_and_a_path() -> None:
    assert names.renamed("image: a:5000/b/c/elastic-tfjob/operator:1", "r", "2") == "image: r/elastic-tfjob/operator:2"
