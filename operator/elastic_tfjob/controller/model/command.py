"""The command to a pod's launcher, in an annotation of the pod. Pure."""

from collections.abc import MutableMapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Literal

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.controller.model.annotations import without_empty
from elastic_tfjob.controller.model.target import Mode

# The operator's mailbox to a pod. Written also before the operator deletes a running pod, so that whoever looks at the
# terminating pod later (another replica, the operator after a restart) knows that it did not fail.
COMMAND_ANNOTATION: Final = f"{PREFIX}command"
STOP_COMMAND: Final = '{"action":"stop"}'
# Characters of a command that is kept as it is. One of a large job names all of its replicas.
_KEPT: Final = 1024
_DIGEST: Final = "blake2b:"


@dataclass(frozen=True, slots=True)
class Command:
    """What a pod's launcher shall do: see runtime/ for the meaning of each action. `tf_config`: None for a program that
    gets none. `request`: which stop a `save` is for."""

    generation: int
    action: Literal["prepare", "switch", "run", "save"]
    tf_config: str | None
    mode: Mode = "overlap"
    timeout_s: float = 120.0
    request: int | None = None

    def to_json(self) -> str:
        """The annotation's text; equal commands have equal texts."""
        return without_empty(self, "request", *(("tf_config",) if self.tf_config is None else ()))


def abridged(command: str, begin: str = "", hashes: MutableMapping[str, blake2b] | None = None) -> str:
    """A pod's command as it is kept: one of more than 1,024 characters as its digest, and with two spaces at its end at
    most. Two commands that differ in more than further spaces are kept as two. `begin` is a first part of it that it
    has in common with others, of which `hashes` remembers the hash: a thousand long commands are soon compared then.
    """
    bare = command.rstrip()
    spaces = command[len(bare) : len(bare) + 2]
    if len(begin) + len(bare) <= _KEPT:
        short = begin + bare
        if not short.startswith(_DIGEST):  # else somebody could write what looks like another's digest
            return short + spaces
    hashed = hashes.get(begin) if hashes is not None else None
    if hashed is None:
        hashed = blake2b(begin.encode("utf-8", "surrogatepass"), digest_size=16)
        if hashes is not None:
            hashes[begin] = hashed
    hashed = hashed.copy()
    hashed.update(bare.encode("utf-8", "surrogatepass"))
    return f"{_DIGEST}{hashed.hexdigest()}{spaces}"
