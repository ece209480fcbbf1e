"""The foreign files of the live page, from npm by the lock file beside this: `make page-vendor` writes them anew, and
with --check says whether those in the package are the same. npm compares what it gets with the hashes of the lock file.

A browser without a bundler does not know `import "preact"`, so such names become relative ones;
nothing else is changed.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WORK = ROOT / "build" / "page"
VENDOR = ROOT / "operator" / "elastic_tfjob" / "controller" / "query" / "page" / "vendor"

FILES: Final = {
    "preact.js": "preact/dist/preact.mjs",
    "hooks.js": "preact/hooks/dist/hooks.mjs",
    "signals-core.js": "@preact/signals-core/dist/signals-core.mjs",
    "signals.js": "@preact/signals/dist/signals.mjs",
    "htm.js": "htm/dist/htm.mjs",
    "uplot.js": "uplot/dist/uPlot.iife.min.js",
    "uplot.css": "uplot/dist/uPlot.min.css",
}
NAMES: Final = {
    "preact": "./preact.js",
    "preact/hooks": "./hooks.js",
    "@preact/signals-core": "./signals-core.js",
}
PACKAGES: Final = ("preact", "@preact/signals-core", "@preact/signals", "htm", "uplot")


def install() -> Path:
    """node_modules by the lock file. Raises SystemExit where npm is missing."""
    if shutil.which("npm") is None:
        raise SystemExit("npm is missing: Debian's packages nodejs and npm have it")
    WORK.mkdir(parents=True, exist_ok=True)
    lock = (HERE / "package-lock.json").read_bytes()
    stamp = WORK / "installed"
    if not stamp.exists() or stamp.read_bytes() != lock:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, WORK / name)
        subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"], cwd=WORK, check=True)
        stamp.write_bytes(lock)
    return WORK / "node_modules"


def vendored(modules: Path) -> dict[str, str]:
    """Text by name in the folder `vendor`."""
    found = {name: _relative((modules / path).read_text()) for name, path in FILES.items()}
    licences = [f"# {name}\n\n{(modules / name / 'LICENSE').read_text().strip()}\n" for name in PACKAGES]
    return {**found, "LICENSES.md": "\n".join(licences)}


def _relative(text: str) -> str:
    text = re.sub(r"^//# sourceMappingURL=.*$", "", text, flags=re.M).strip() + "\n"
    return re.sub(r'from\s*"([^".][^"]*)"', lambda found: f'from"{NAMES[found[1]]}"', text)


def main() -> None:
    expected = vendored(install())
    if "--check" in sys.argv:
        there = {file.name: file.read_text() for file in VENDOR.iterdir()}
        wrong = sorted(name for name in expected.keys() | there.keys() if expected.get(name) != there.get(name))
        if wrong:
            raise SystemExit(f"not what the lock file gives: {', '.join(wrong)}; `make page-vendor` writes them")
        return
    VENDOR.mkdir(parents=True, exist_ok=True)
    for name, text in expected.items():
        (VENDOR / name).write_text(text)


if __name__ == "__main__":
    main()
