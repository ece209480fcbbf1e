"""An error in the code of a profile, in words: which profile of which package, what it raised, and in which line."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Final

from elastic_tfjob.api.words import error_in_words
from elastic_tfjob.scheduling.profiles import all_profiles, installed_profiles

__all__ = ["ProfileError", "blamed_on"]

_OURS: Final = "elastic_tfjob"


class ProfileError(Exception):
    """A profile failed. `what`: the error's type and message; `place`: its file and line, empty if unknown."""

    def __init__(self, profile: str, what: str, place: str) -> None:
        super().__init__(profile, what, place)  # all arguments, so that it can be pickled
        self.profile = profile
        self.what = what
        self.place = place

    @classmethod
    def of(cls, profile: str, error: BaseException) -> "ProfileError":
        """The error that the profile's code has raised."""
        # Some messages name the profile, which is said anyway.
        return cls(profile, error_in_words(error).replace(f": profile {profile}: ", ": ", 1), _place(profile, error))

    @property
    def subject(self) -> str:
        """`profile NAME of package PACKAGE VERSION`; a profile of this repository has no package."""
        package = installed_profiles().packages.get(self.profile)
        return f"profile {self.profile}" + (f" of package {package}" if package else "")

    @property
    def problem(self) -> str:
        """`KeyError: 'boom' (mine.py:9)`."""
        return f"{self.what} ({self.place})" if self.place else self.what

    @property
    def for_owner(self) -> str:
        """The words for a job's owner, who does not see the profile's code."""
        return f"profile {self.profile}: {self.what}"

    def __str__(self) -> str:
        return f"{self.subject} fails: {self.problem}"


@contextmanager
def blamed_on(profile: str) -> Iterator[None]:
    """Raises each error of the block as a ProfileError of this profile. SystemExit counts as an error: a profile must
    not end the operator."""
    try:
        yield
    except ProfileError:
        raise
    except (Exception, SystemExit) as error:
        raise ProfileError.of(profile, error) from error


def _place(profile: str, error: BaseException) -> str:
    """The innermost line of the profile's own package; else the innermost line of all, since the error may be in code
    that the profile composes."""
    model = all_profiles().get(profile)
    package = model.__module__.partition(".")[0] if model is not None else _OURS
    found = own = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        found = f"{PurePath(frame.f_code.co_filename).name}:{line}"
        if str(frame.f_globals.get("__name__")).partition(".")[0] == package:
            own = found
    return own or found
