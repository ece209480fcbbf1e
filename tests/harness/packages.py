"""Python packages with profiles, as pip installs them: the one of docs/add-a-profile.md, and any other."""

import re
from pathlib import Path

__all__ = ["install", "install_small_first"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "add-a-profile.md"


def install(site: Path, package: str, module: str, source: str, *entries: str) -> None:
    """Write into the folder `site` what pip writes of version 1.0 of a package with one module."""
    (site / f"{module}.py").write_text(source)
    info = site / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(("[elastic_tfjob.profiles]", *entries, "")))


def install_small_first(site: Path) -> None:
    """The package of the page."""
    text = PAGE.read_text()
    source = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    (pyproject,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    group = re.search(r'^\[project\.entry-points\."(.+)"\]\n(.+?) = "(.+)"$', pyproject, re.MULTILINE)
    assert group is not None
    assert group[1] == "elastic_tfjob.profiles"
    install(site, "small-first", "small_first", source, f"{group[2]} = {group[3]}")
