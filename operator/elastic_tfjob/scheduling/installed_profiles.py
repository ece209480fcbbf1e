"""Profiles that other Python packages bring.

A package offers a profile by an entry point of the group `elastic_tfjob.profiles`: the profile's name, and its class of
ProfileParameters. A broken one is a problem that names its package; it never affects another profile.
"""

import inspect
import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, distributions
from typing import Final

from elastic_tfjob.api.reading import cut
from elastic_tfjob.api.words import printable
from elastic_tfjob.scheduling.core import ProfileParameters

GROUP: Final = "elastic_tfjob.profiles"
MAX_NAME: Final = 32

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_MAX_TEXT: Final = 300


@dataclass(frozen=True, slots=True)
class ProfileProblem:
    """Why an entry point is not used. `package` is the distribution's name and version."""

    profile: str
    package: str
    why: str

    def __str__(self) -> str:
        return f"profile {self.profile!r} of package {self.package} is not available: {self.why}"


@dataclass(frozen=True, slots=True)
class InstalledProfiles:
    """`packages`: by profile, the distribution that brings it."""

    profiles: Mapping[str, type[ProfileParameters]]
    packages: Mapping[str, str]
    problems: tuple[ProfileProblem, ...]


def load_installed_profiles(taken: Container[str]) -> InstalledProfiles:
    """Import the profiles of all installed packages. `taken`: names that a package cannot use."""
    profiles: dict[str, type[ProfileParameters]] = {}
    packages: dict[str, str] = {}
    problems: list[ProfileProblem] = []
    for package, offered in sorted(_offers(), key=lambda offer: offer[0]):
        if isinstance(offered, Exception):
            problems.append(ProfileProblem("", package, _words(offered)))
            continue
        for entry_point in sorted(offered, key=lambda each: each.name):
            name = entry_point.name
            try:
                if name in packages:
                    raise ValueError(f"package {packages[name]} already has a profile of this name")
                _check_name(name, taken)
                profiles[name] = _load(entry_point)
            except (Exception, SystemExit) as error:  # an import may raise anything
                problems.append(ProfileProblem(printable(name), package, _words(error)))
            else:
                packages[name] = package
    return InstalledProfiles(profiles, packages, tuple(problems))


def _offers() -> Iterator[tuple[str, list[EntryPoint] | Exception]]:
    """Each package with entry points of the group; of two versions on the path, the first."""
    seen: set[str] = set()
    for distribution in distributions():
        try:
            text = distribution.read_text("entry_points.txt") or ""
        except (OSError, ValueError):  # unreadable, or not a text: the package declares no profiles
            continue
        if GROUP not in text:
            continue
        package = printable(_package(distribution))
        name = package.partition(" ")[0].lower().replace("_", "-")
        if name in seen:
            continue
        seen.add(name)
        try:
            yield package, list(distribution.entry_points.select(group=GROUP))
        except Exception as error:  # entry_points.txt that cannot be parsed
            yield package, error


def _package(distribution: Distribution) -> str:
    try:
        return f"{distribution.metadata['Name']} {distribution.version}"
    except Exception:  # metadata that is missing or broken
        return "(unknown)"


def _check_name(name: str, taken: Container[str]) -> None:
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise ValueError(
            f"a profile's name has at most {MAX_NAME} lower-case letters, digits and single hyphens, and begins with a "
            "letter"
        )
    if name in taken:
        raise ValueError("elastic-tfjob already has a profile of this name")


def _load(entry_point: EntryPoint) -> type[ProfileParameters]:
    found = entry_point.load()
    if not isinstance(found, type) or not issubclass(found, ProfileParameters):
        raise TypeError(f"{entry_point.value} is not a subclass of ProfileParameters")
    if inspect.isabstract(found):
        raise TypeError(f"{entry_point.value} has no method `stages`")
    return found


def _words(error: BaseException) -> str:
    return cut(printable(f"{type(error).__name__}: {error}"), _MAX_TEXT)
