"""`python -m elastic_tfjob.runtime.install DIRECTORY`: write DIRECTORY/launcher.pyz, this package in one file."""

from __future__ import annotations

import os
import sys
import tempfile
import zipapp
from pathlib import Path


def install(directory: Path) -> Path:
    """Write launcher.pyz, readable by every user; returns its path. Raises OSError."""
    package = Path(__file__).resolve().parent
    target = directory / "launcher.pyz"
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        staged = Path(folder) / "package"
        runtime = staged / "elastic_tfjob" / "runtime"
        runtime.mkdir(parents=True)
        (staged / "__main__.py").write_bytes((package / "__main__.py").read_bytes())
        (staged / "elastic_tfjob" / "__init__.py").write_text('"""The part of elastic-tfjob for a training pod."""\n')
        for source in [*package.glob("*.py"), *package.glob("*/*.py")]:
            copy = runtime / source.relative_to(package)
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(source.read_bytes())
        archive = Path(folder) / "launcher.pyz"
        zipapp.create_archive(staged, archive, interpreter="/usr/bin/env python3", compressed=True)
        archive.chmod(0o755)
        os.replace(archive, target)
    return target


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(install(Path(sys.argv[1])))
