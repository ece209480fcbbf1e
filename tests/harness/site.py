"""A hook of MkDocs: README.md is the site's first page, and links out of docs/ lead to the repository.

So the same pages work in the repository and on the site. A link to what does not exist is left as it is, for MkDocs to
find (`make docs` is strict).
"""

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
INDEX = "index.md"
# A relative target of a link or an image, without what follows #.
_TARGET = re.compile(r"(?<=\]\()(?![a-z]+:|#)[^)\s#]+")


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File  # type: ignore[import-not-found] # noqa: PLC0415 - in the group docs alone

    files.append(File.generated(config, INDEX, content=(ROOT / "README.md").read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    return links_of_site(markdown, page.file.src_uri, config.repo_url)


def links_of_site(markdown: str, page: str, repository: str) -> str:
    """The text of `page`, a path in docs/, with links as they are on the site."""
    source = ROOT / "README.md" if page == INDEX else DOCS / page

    def moved(match: re.Match[str]) -> str:
        target = (source.parent / match[0]).resolve()
        if not target.exists():
            return match[0]
        if target == ROOT / "README.md":
            target = DOCS / INDEX
        if target.is_relative_to(DOCS) and not target.is_dir():
            return os.path.relpath(target, (DOCS / page).parent)
        return f"{repository.rstrip('/')}/blob/main/{target.relative_to(ROOT)}"

    return _TARGET.sub(moved, markdown)
