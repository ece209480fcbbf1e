"""The names of released images, in all files that a user may apply or copy from: one registry, this version.

    PYTHONPATH=tests python3 -m harness.names                 # what they are
    PYTHONPATH=tests python3 -m harness.names ghcr.io/you     # writes this registry, and the version of pyproject.toml
    PYTHONPATH=tests python3 -m harness.names --check         # ends with 1 where a file names another image

manifests/components/images says which registry it is now. Standard library only.
"""

import re
import sys
import tomllib
from pathlib import Path

from harness.progress import Problem, main

ROOT = Path(__file__).resolve().parents[2]
COMPONENT = ROOT / "manifests" / "components" / "images" / "kustomization.yaml"
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
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return str(project["version"])


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
        case [name] if _REGISTRY.fullmatch(name):
            for path, text in outdated(name, version()).items():
                path.write_text(text)
                print(path.relative_to(ROOT))
        case words:
            raise Problem(f"{' '.join(words)} is no registry: HOST[:PORT][/PATH], as in ghcr.io/you")


if __name__ == "__main__":
    _main()
