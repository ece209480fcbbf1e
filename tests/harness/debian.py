"""Programs that tests take from Debian packages without installing these: unpacked into the cache, nothing is started.

    PYTHONPATH=tests python3 -m harness.debian promtool prometheus    # fetches what is missing, prints the paths

What the machine has in PATH comes first. Else a Debian (or Ubuntu) with apt is needed; root only where apt's lists are
missing or old. Elsewhere an error names the package.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from harness.binaries import CACHE, lock
from harness.machine import MissingPackages
from harness.progress import CommandFailed, Problem, main, run, step

PACKAGE_OF = {"prometheus": "prometheus", "promtool": "prometheus"}


def path(program: str) -> Path:
    """The executable `program`, fetched first where the machine has none. Raises MissingPackages without apt."""
    if found := shutil.which(program):
        return Path(found)
    package = PACKAGE_OF[program]
    folder = CACHE / f"debian-{package}"
    with lock(folder.name):
        if not folder.exists():
            if not (shutil.which("apt-get") and shutil.which("dpkg")):
                raise MissingPackages(f"this needs {program} (Debian package {package}): install it and try again")
            with (
                step(f"fetching the package {package} (apt)", "10 s"),
                tempfile.TemporaryDirectory(prefix="unfinished-", dir=CACHE) as temporary,
            ):
                _unpack(package, Path(temporary))
                (Path(temporary) / "files").rename(folder)
    return folder / "usr" / "bin" / program


def _unpack(package: str, folder: Path) -> None:
    download = ["apt-get", "download", "-qq", package]
    try:
        run(download, cwd=folder)
    except CommandFailed:  # no lists yet, or the package of old ones is gone
        run(["apt-get", "update", "-qq"])
        run(download, cwd=folder)
    (archive,) = folder.glob("*.deb")
    run(["dpkg", "-x", archive, folder / "files"])


@main
def _main() -> None:
    if unknown := [name for name in sys.argv[1:] if name not in PACKAGE_OF]:
        raise Problem(f"unknown program {', '.join(unknown)}: choose from {', '.join(PACKAGE_OF)}")
    for wanted in sys.argv[1:] or PACKAGE_OF:
        print(path(wanted))


if __name__ == "__main__":
    _main()
