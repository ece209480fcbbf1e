"""Links work on the site as they do in the repository."""

import re
import textwrap
from pathlib import Path

import pytest
import yaml

from harness.site import _TARGET, DOCS, INDEX, ROOT, foreign_hosts, links_of_site

REPOSITORY = "https://example.com/you/elastic-tfjob"


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("index.md", "docs/elastic.md", "elastic.md"),
        ("index.md", "docs/images/page-job.png", "images/page-job.png"),
        ("index.md", "SECURITY.md", f"{REPOSITORY}/blob/main/SECURITY.md"),
        ("index.md", "docs/designs/", f"{REPOSITORY}/blob/main/docs/designs"),
        ("compatibility.md", "../README.md#on-your-own-cluster", "index.md#on-your-own-cluster"),
        ("profiles/hull.md", "../simulation.md", "../simulation.md"),
        ("limits.md", "../manifests/base/crd.yaml", f"{REPOSITORY}/blob/main/manifests/base/crd.yaml"),
        ("elastic.md", "#events", "#events"),
        ("elastic.md", "https://example.org/a.md", "https://example.org/a.md"),
    ],
)
def test_a_link_leads_to_the_page_or_to_the_repository(page: str, link: str, expected: str) -> None:
    assert links_of_site(f"a [b]({link}) c", page, REPOSITORY) == f"a [b]({expected}) c"


def test_a_link_to_nothing_is_left_for_the_strict_build_to_find() -> None:
    assert links_of_site("[b](docs/missing.md)", "index.md", REPOSITORY) == "[b](docs/missing.md)"


@pytest.mark.parametrize("page", [INDEX, *sorted(str(path.relative_to(DOCS)) for path in DOCS.glob("**/*.md"))])
def test_each_relative_link_leads_somewhere(page: str) -> None:
    """`make docs` looks at anchors, too."""
    source = ROOT / "README.md" if page == INDEX else DOCS / page
    text = re.sub(r"^    .*", "", source.read_text(), flags=re.MULTILINE)  # code
    targets = [source.parent / target for target in _TARGET.findall(text)]
    assert [str(target) for target in targets if not target.exists()] == []


def test_each_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    named = {line.rpartition(": ")[2] for line in navigation.splitlines() if line.endswith(".md")}
    assert named == {INDEX, *(str(path.relative_to(DOCS)) for path in DOCS.glob("**/*.md"))}


PAGES = [ROOT / "README.md", *sorted(DOCS.glob("**/*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_in_a_list_are_indented_so_that_its_numbers_go_on(page: Path) -> None:
    """Python-Markdown takes a block with fewer than 4 spaces out of the list, which then begins with 1 again."""
    item, blank, wrong = False, False, []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        block = blank or re.match(r" +(```|[-*] |\d+\. )", line)
        if re.match(r"(\d+\.|[-*]) ", line):
            item = True
        elif line and not line.startswith(" "):
            item = item and not blank
        elif item and block and re.match(r" {1,3}\S", line):
            wrong.append(f"{number}: {line}")
        blank = not line
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_example_in_yaml_and_json_can_be_read(page: Path) -> None:
    """Readers copy them."""
    blocks = re.findall(r"^( *)```(?:yaml|json)\n(.*?)^\1```", page.read_text(), re.DOTALL | re.MULTILINE)
    for _, text in blocks:
        assert [document for document in yaml.safe_load_all(textwrap.dedent(text)) if document is None] == []


@pytest.mark.parametrize(
    ("html", "fetched"),
    [
        ('<script src="https://unpkg.com/a.js"></script>', ["index.html: https://unpkg.com/a.js"]),
        ('<link rel="stylesheet" href="//fonts.example/a.css">', ["index.html: //fonts.example/a.css"]),
        ('<pre class="mermaid"></pre>', ["index.html: mermaid, which the theme takes from a CDN"]),
        ('<script src="../javascripts/mermaid.min.js"></script><pre class="mermaid"></pre>', []),
        ('<link rel="canonical" href="https://example.com/"><a href="https://example.com/"></a>', []),
    ],
)
def test_a_page_that_fetches_from_another_host_fails_the_build(tmp_path: Path, html: str, fetched: list[str]) -> None:
    (tmp_path / "index.html").write_text(html)
    assert foreign_hosts(tmp_path) == fetched
