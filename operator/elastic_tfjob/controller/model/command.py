"""The command to a pod's launcher, in an annotation of the pod. Pure."""

from collections.abc import MutableMapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Literal

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.controller.model.annotations import without_empty
from elastic_tfjob.controller.model.target import Mode

# The operator's command to a pod. It is also written before the operator deletes a running pod, so that any later
# reader of the terminating pod (another replica, the operator after a restart) knows that it did not fail.
COMMAND_ANNOTATION: Final = f"{PREFIX}command"
STOP_COMMAND: Final = '{"action":"stop"}'
# Characters up to which a command is kept unchanged. The command of a large job names all of its replicas.
_KEPT: Final = 1024
_DIGEST: Final = "blake2b:"


@dataclass(frozen=True, slots=True)
class Command:
    """A command to a pod's launcher; see runtime/ for the meaning of each action. `tf_config` is None for a program
    that gets none. `request` is the stop that a `save` belongs to, or the number of a
    save that a `run` asks for. `durable`: the switch waits for a checkpoint.
    `leave` is the mode of a chief whose next program is in another pod; `old_chief` is the address at which that pod
    asks for its status, and `saved` the step of its last checkpoint."""

    generation: int
    action: Literal["prepare", "switch", "run", "save"]
    tf_config: str | None
    mode: Mode | Literal["leave"] = "overlap"
    timeout_s: float = 120.0
    request: int | None = None
    durable: bool | None = None
    old_chief: str | None = None
    saved: int | None = None

    def to_json(self) -> str:
        """Returns the annotation's text; equal commands have equal texts."""
        no_config = ("tf_config",) if self.tf_config is None else ()
        return without_empty(self, "request", "durable", "old_chief", "saved", *no_config)


def abridged(command: str, begin: str = "", hashes: MutableMapping[str, blake2b] | None = None) -> str:
    """Returns a pod's command as it is stored: a command of more than 1,024 characters as its digest, with at most two
    trailing spaces. Commands that differ in more than additional trailing spaces have different results. `begin` is a
    first part that many commands share, whose hash is cached in `hashes`, so that a thousand long commands can be
    compared quickly.
    """
    bare = command.rstrip()
    spaces = command[len(bare) : len(bare) + 2]
    if len(begin) + len(bare) <= _KEPT:
        short = begin + bare
        if not short.startswith(_DIGEST):  # otherwise a user could imitate another command's digest
            return short + spaces
    hashed = hashes.get(begin) if hashes is not None else None
    if hashed is None:
        hashed = blake2b(begin.encode("utf-8", "surrogatepass"), digest_size=16)
        if hashes is not None:
            hashes[begin] = hashed
    hashed = hashed.copy()
    hashed.update(bare.encode("utf-8", "surrogatepass"))
    return f"{_DIGEST}{hashed.hexdigest()}{spaces}"
