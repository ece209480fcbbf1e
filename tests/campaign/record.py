"""What a campaign has done so far, line by line, so that one that was stopped goes on where it was.

A line holds of the source that it was played with: after any change of the operator or of the campaign it is passed
over, and what it says is done again.
"""

import json
from pathlib import Path
from typing import Any, Final, Literal

from harness.binaries import digest

__all__ = ["Kind", "Record", "source_digest"]

Kind = Literal["schedule", "mutant", "hostile"]
_ROOT: Final = Path(__file__).parents[2]
_SOURCES: Final = ("operator/elastic_tfjob", "tests/campaign")


def source_digest() -> str:
    """Of all that a campaign runs."""
    return digest(*(_ROOT / place for place in _SOURCES))


class Record:
    """Lines of `path`, a context manager. Without `resume` it begins anew."""

    def __init__(self, path: Path, *, resume: bool, source: str) -> None:
        self._source = source
        self._known: dict[tuple[str, str], Any] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if resume and path.exists():
            for line in path.read_text().splitlines():
                self._take(line)
        self._file = path.open("a" if resume else "w")

    def _take(self, line: str) -> None:
        try:
            said = json.loads(line)
            if said["source"] == self._source:
                self._known[said["kind"], said["name"]] = said["found"]
        except (ValueError, KeyError, TypeError):
            return  # half a line, of a campaign that was killed while it wrote

    def get(self, kind: Kind, name: str) -> Any:
        """What was found; None for what was not done yet."""
        return self._known.get((kind, name))

    def add(self, kind: Kind, name: str, found: Any) -> None:
        """Something is done."""
        self._known[kind, name] = found
        said = {"source": self._source, "kind": kind, "name": name, "found": found}
        # A line of its own even behind half a line.
        self._file.write("\n" + json.dumps(said))
        self._file.flush()

    def __enter__(self) -> "Record":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
