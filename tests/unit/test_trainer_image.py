"""The trainer image installs what its programs import, without asking pip for what those need in turn, and its programs
run on the oldest Python that the hook runs on."""

import ast
import re
import sys
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

FOLDER = Path(__file__).parents[2] / "trainer_images" / "digits"
INSTALLED = {
    name.lower().replace("_", "-")
    for name in re.findall(r"^([A-Za-z0-9_.-]+)==", (FOLDER / "requirements.txt").read_text(), re.MULTILINE)
}
SAME = {"tensorflow": "tensorflow-cpu"}
PROGRAMS = [pytest.param(path, id=path.name) for path in sorted(FOLDER.glob("*.py"))]


def imported(path: Path) -> set[str]:
    """Packages that a program imports anywhere, but Python's own, ours, and programs beside it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found - sys.stdlib_module_names - {"elastic_tfjob"} - {each.stem for each in FOLDER.glob("*.py")}


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_import_of_a_program_is_installed(program: Path) -> None:
    packages = packages_distributions()
    names = imported(program)
    assert "tensorflow" in names
    for name in names:
        assert {each.lower().replace("_", "-") for each in packages[name]} & INSTALLED, (
            f"{name} is not in requirements.txt"
        )


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_runs_on_python_3_9(program: Path) -> None:
    """As far as its text shows: `make test-versions` runs some of them."""
    for node in ast.walk(ast.parse(program.read_text(), feature_version=(3, 9))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "zip":
            assert not node.keywords, f"line {node.lineno}: zip has no `strict` there"


@pytest.mark.parametrize("package", ["tensorflow-cpu", "keras", "tf-keras"])
def test_every_requirement_of_a_package_is_installed(package: str) -> None:
    """`tf.keras` is Keras 3, a package of its own, or tf-keras: without them the first use of it fails."""
    assert package in INSTALLED
    for text in requires(package) or ():
        needed = Requirement(text)
        if needed.marker is None or needed.marker.evaluate({"extra": ""}):
            name = needed.name.lower().replace("_", "-")
            assert SAME.get(name, name) in INSTALLED, f"{package} needs {name}"


def test_nothing_is_installed_that_every_replica_would_import_in_vain() -> None:
    """Keras imports it where it is installed: a sixth of what TensorFlow's import costs."""
    assert "scikit-learn" not in INSTALLED
