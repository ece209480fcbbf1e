"""A hook of MkDocs: README.md is the site's first page, and links out of docs/ lead to the repository.

So the same pages work in the repository and on the site. A link to what does not exist is left as it is, for MkDocs to
find (`make docs` is strict). Mermaid, which draws the diagrams, is part of the site: npm brings it when the site is
built, by a hash, and the build fails where a page would fetch anything from another host.
"""

import base64
import hashlib
import os
import re
import subprocess
import tarfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
INDEX = "index.md"
MERMAID: Final = "11.12.0"
MERMAID_SHA512: Final = "ZudVx73BwrMJfCFmSSJT84y6u5brEoV8DOItdHomNLz32uBjNrelm7mg95X7g+C6UoQH/W6mBLGDEDv73JdxBg=="
_URL: Final = re.compile(r"url\(['\"]?(?:https?:)?//[^)]*\)|@import [^;]*//[^;]*")
# A relative target of a link or an image, without what follows #.
_TARGET = re.compile(r"(?<=\]\()(?![a-z]+:|#)[^)\s#]+")


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File  # type: ignore[import-not-found] # noqa: PLC0415 - in the group docs alone

    files.append(File.generated(config, INDEX, content=(ROOT / "README.md").read_text()))
    for name, content in mermaid().items():
        files.append(File.generated(config, f"javascripts/{name}", content=content))
    return files


def on_post_build(config: Any) -> None:
    if foreign := foreign_hosts(Path(config.site_dir)):
        raise SystemExit("pages would fetch from other hosts:\n" + "\n".join(foreign))


def mermaid() -> dict[str, str]:
    """Mermaid for browsers, and its licence. Raises SystemExit where npm gives another file than the one with this
    hash."""
    work = ROOT / "build" / "mermaid"
    archive = work / f"mermaid-{MERMAID}.tgz"
    if not archive.exists():
        work.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["npm", "pack", "--silent", f"mermaid@{MERMAID}"], cwd=work, check=True, stdout=subprocess.DEVNULL
        )
    found = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if found != MERMAID_SHA512:
        raise SystemExit(f"{archive} has the hash {found}, not that of mermaid {MERMAID}")
    with tarfile.open(archive) as tar:
        return {
            name.rpartition("/")[2]: member.read().decode()
            for name in ("package/dist/mermaid.min.js", "package/LICENSE")
            if (member := tar.extractfile(name)) is not None
        }


class _Fetched(HTMLParser):
    """What a browser fetches when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found = list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        link = named.get("href") if tag == "link" and named.get("rel") not in ("canonical", "prev", "next") else None
        for target in (named.get("src"), link):
            if target and re.match(r"([a-z]+:)?//", target):
                self.found.append(target)


def foreign_hosts(site: Path) -> list[str]:
    """Scripts, styles, fonts and images that pages of this site fetch from other hosts."""
    found = []
    for page in sorted(site.glob("**/*.html")):
        parser = _Fetched()
        parser.feed(page.read_text())
        found += [f"{page.relative_to(site)}: {target}" for target in parser.found]
        if 'class="mermaid"' in page.read_text() and "javascripts/mermaid.min.js" not in page.read_text():
            found.append(f"{page.relative_to(site)}: mermaid, which the theme takes from a CDN")
    styles = ((each, each.read_text()) for each in sorted(site.glob("**/*.css")))
    return found + [f"{each.relative_to(site)}: {url}" for each, text in styles for url in _URL.findall(text)]


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
