"""The names of released images, in all files that a user may apply or copy from: one registry, this version; and where
the source is.

    PYTHONPATH=tests python3 -m harness.names                        # what the images are
    PYTHONPATH=tests python3 -m harness.names ghcr.io/you            # writes this registry and pyproject.toml's version
    PYTHONPATH=tests python3 -m harness.names https://host/you/repo  # writes this repository
    PYTHONPATH=tests python3 -m harness.names --check                # ends with 1 where a file names another

manifests/components/images says which registry it is now, pyproject.toml which repository. Standard library only.
"""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from harness.progress import Problem, main

ROOT = Path(__file__).resolve().parents[2]
COMPONENT = ROOT / "manifests" / "components" / "images" / "kustomization.yaml"
PROJECT = ROOT / "pyproject.toml"
SITE = ROOT / "mkdocs.yml"
CHART = ROOT / "manifests" / "helm" / "elastic-tfjob"
LOCAL = ("localhost", "dev")
"""Registry and tag of what is built here. `localhost` keeps anybody from looking for it in a public registry."""

_FILES = (
    "README.md",
    "docs/**/*.md",
    "kubeflow_pipelines/**/*.py",
    "kubeflow_pipelines/**/*.yaml",
    "manifests/**/*.md",
    "manifests/**/*.yaml",
)
# Without a slash before: in a URL such words are no image.
_IMAGE = re.compile(r"(?<![\w./:-])([\w.-]+(?::\d+)?(?:/[\w.-]+)*?)/elastic-tfjob/(operator|trainer):([\w.-]+)")
_REGISTRY = re.compile(r"[a-z0-9.-]+(:\d+)?(/[a-z0-9._-]+)*")
_REPOSITORY = re.compile(r"https://[\w.-]+(:\d+)?(/[\w.-]+)+")
_NEW_NAME = re.compile(r"(?<=newName: )\S+(?=/elastic-tfjob/operator$)", re.MULTILINE)
# Where registry, name and tag stand apart: the component, the chart's values, and its Chart.yaml.
_APART: dict[Path, tuple[re.Pattern[str] | None, re.Pattern[str] | None]] = {
    COMPONENT: (_NEW_NAME, re.compile(r"(?<=newTag: )\S+$", re.MULTILINE)),
    CHART / "values.yaml": (re.compile(r"(?<=^  registry: )\S+$", re.MULTILINE), None),
    CHART / "Chart.yaml": (None, re.compile(r"(?:(?<=^version: )|(?<=^appVersion: ))\S+$", re.MULTILINE)),
}


def registry() -> str:
    """Where released images are, as the manifests say: `ghcr.io/you` for `ghcr.io/you/elastic-tfjob/operator`."""
    if not (match := _NEW_NAME.search(COMPONENT.read_text())):
        raise Problem(f"{COMPONENT.relative_to(ROOT)} has no line `newName: REGISTRY/elastic-tfjob/operator`")
    return match[0]


def version() -> str:
    return str(_project()["version"])


def repository() -> str:
    """Where the source is, as pyproject.toml says."""
    return str(_project()["urls"]["Repository"])


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads(PROJECT.read_text())["project"]
    return project


def renamed(text: str, registry: str, tag: str) -> str:
    """`text` with all images of this project from `registry` and with `tag`."""
    return _IMAGE.sub(lambda match: f"{registry}/elastic-tfjob/{match[2]}:{tag}", text)


def local(path: Path) -> str:
    """A manifest with the images that are built here in place of the released ones."""
    return renamed(path.read_text(), *LOCAL)


def outdated(registry: str, tag: str) -> dict[Path, str]:
    """What each file that names other images, or no version, should hold."""
    files = sorted({path for pattern in _FILES for path in ROOT.glob(pattern)} | _APART.keys())
    wanted = {path: _wanted(path, registry, tag) for path in files if path.exists()}
    return {path: text for path, text in wanted.items() if text != path.read_text()}


def moved(to: str) -> dict[Path, str]:
    """What each file that names the repository should hold when that is at `to`."""
    return {path: path.read_text().replace(repository(), to) for path in (PROJECT, SITE)}


def _wanted(path: Path, registry: str, tag: str) -> str:
    text = renamed(path.read_text(), registry, tag)
    for pattern, word in zip(_APART.get(path, ()), (registry, tag), strict=False):
        text = pattern.sub(word, text) if pattern else text
    return text


@main
def _main() -> None:
    match sys.argv[1:]:
        case []:
            print(f"{registry()}/elastic-tfjob/operator:{version()}")
        case ["--check"]:
            if old := outdated(registry(), version()):
                raise Problem(
                    f"not the images of {COMPONENT.relative_to(ROOT)} and pyproject.toml's version: "
                    f"{', '.join(str(path.relative_to(ROOT)) for path in old)}; `make names` writes them"
                )
            if repository() not in SITE.read_text():
                raise Problem(
                    f"{SITE.relative_to(ROOT)} does not name the repository of pyproject.toml, {repository()}"
                )
        case words:
            for word in words:
                if not (_REGISTRY.fullmatch(word) or _REPOSITORY.fullmatch(word)):
                    raise Problem(
                        f"{word} is no registry (HOST[:PORT][/PATH], as in ghcr.io/you) and no repository "
                        "(https://HOST/PATH)"
                    )
            for word in words:
                written = moved(word) if _REPOSITORY.fullmatch(word) else outdated(word, version())
                for path, text in written.items():
                    path.write_text(text)
                    print(path.relative_to(ROOT))


if __name__ == "__main__":
    _main()
