"""What this machine has, and what is installed where something is missing."""

import os
import shutil
from pathlib import Path

from harness.progress import Problem, run, step

GIB = 1 << 30
LEAST_MEMORY, LEAST_DISK = 3 * GIB, 8 * GIB
"""With less a kind cluster of three nodes and its images cannot work. More is better: 6 and 15."""

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


def need_room(disk: Path, *, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
    """Make sure that this machine can hold a kind cluster, whose images go to the folder `disk`: memory, disk, and
    control groups that limit CPU and memory. Raises Problem with all that is missing. What cannot be looked at (an
    engine in a virtual machine, say) is as if it were enough."""
    problems = []
    free = _available_memory(proc, cgroups)
    if free is not None and free < LEAST_MEMORY:
        problems.append(f"memory: {free / GIB:.1f} GiB are free, a cluster needs {LEAST_MEMORY // GIB}")
    if disk.exists() and (left := shutil.disk_usage(disk).free) < LEAST_DISK:
        problems.append(f"disk: {left / GIB:.1f} GiB are free at {disk}, images need {LEAST_DISK // GIB}")
    if lacking := _lacking_controllers(cgroups):
        problems.append(
            f"control groups: no {', '.join(lacking)} below {cgroups}, by which nodes limit what pods use; in a "
            "container, run that with --privileged and --cgroupns=host"
        )
    if problems and os.environ.get("ELASTIC_TFJOB_ROOM") != "any":
        raise Problem(
            f"this machine cannot hold a kind cluster. {'; '.join(problems)}. ELASTIC_TFJOB_ROOM=any tries all the same"
        )


def _available_memory(proc: Path, cgroups: Path) -> int | None:
    """Bytes that can be had, also within the limit of a container that this runs in; None: not known."""
    try:
        lines = (proc / "meminfo").read_text().splitlines()
        known = {name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in lines)}
        free = known["MemAvailable"]
    except (OSError, KeyError, ValueError, IndexError):
        return None
    try:
        limit, used, stat = ((cgroups / f"memory.{what}").read_text() for what in ("max", "current", "stat"))
        cached = next((int(line.split()[1]) for line in stat.splitlines() if line.startswith("inactive_file ")), 0)
        return free if limit.strip() == "max" else min(free, int(limit) - int(used) + cached)
    except (OSError, ValueError, IndexError):
        return free


def _lacking_controllers(cgroups: Path) -> list[str]:
    """Those that nodes need and the kernel does not offer here; none where there are no control groups to look at."""
    wanted = ["cpu", "memory", "pids"]
    if not cgroups.exists():
        return []
    unified = cgroups / "cgroup.controllers"
    there = unified.read_text().split() if unified.exists() else []
    return [name for name in wanted if name not in there and not (cgroups / name).is_dir()]
