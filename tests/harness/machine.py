"""What this machine has, and what is installed where something is missing."""

import os
import shutil
from pathlib import Path

from harness.progress import Problem, run, step

DEBIAN_PACKAGE_OF = {
    "podman": "podman",
    "runc": "runc",
    "netavark": "netavark",
    "aardvark-dns": "aardvark-dns",
    "mmdebstrap": "mmdebstrap",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
}
"""Commands that the harness may need, by the Debian package that brings them."""

# podman's helpers are not in PATH; administrators' tools may not be in an ordinary user's.
_PLACES = ("/usr/sbin", "/sbin", "/usr/lib/podman", "/usr/libexec/podman", "/usr/local/libexec/podman")


class MissingPackages(Problem):
    """Commands are missing, and this machine is not one where we may install them."""


def need(*commands: str) -> None:
    """Make sure that `commands` exist: install their packages on Debian as root, else raise MissingPackages."""
    search = os.pathsep.join((os.environ.get("PATH", ""), *_PLACES))
    packages = sorted({DEBIAN_PACKAGE_OF[c] for c in commands if not shutil.which(c, path=search)})
    if not packages:
        return
    if os.geteuid() or not Path("/etc/debian_version").exists():
        raise MissingPackages(
            f"this needs {', '.join(packages)} (names of Debian packages). Install them and try again; "
            "on Debian or Ubuntu, run as root, this is done for you."
        )
    with step(f"installing {', '.join(packages)} (apt)"):
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        run(["apt-get", "update", "-qq"], env=quiet)
        run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages], env=quiet)
