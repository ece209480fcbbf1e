"""A rescale in words, for events and conditions. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final

from elastic_tfjob.controller.job.moves import Move, described
from elastic_tfjob.controller.job.pods import Role
from elastic_tfjob.controller.objects.size import Counts, Cpu, words

# Characters of a program's last words in an event, which has room for 1,024.
_LAST_WORDS: Final = 700


def describe_change(before: Counts, after: Counts, moving: Sequence[Move] = ()) -> str:
    """A change of size or nodes, in words."""
    if before == after:
        return f"Moves {described(moving)}" if moving else "Moved to other nodes"
    also = f", and moves {described(moving)}" if moving else ""
    return f"From {words(before)} to {words(after)}{also}"


def describe_stay(before: Counts, wanted: Counts, why: str) -> str:
    """That a job keeps its size, which other one (or which other nodes) it does not get, and why."""
    instead = words(wanted) if wanted != before else "other nodes"
    return f"Stays at {words(before)} instead of {instead}: {why}"


def describe_role(role: Role) -> str:
    """`worker-0`."""
    return f"{role[0].lower()}-{role[1]}"


def on_one_line(text: str) -> str:
    """Somebody's words on one line. Where they are long, their end: what a program says last is what it ended with."""
    line = " | ".join(filter(None, (" ".join(each.split()) for each in text.splitlines())))
    line = "".join(char if char.isprintable() else "?" for char in line)
    return line if len(line) <= _LAST_WORDS else f"... {line[-_LAST_WORDS:]}"


def describe_cpu(cpu: Cpu) -> str:
    """`Worker 300m + 500m, PS 100m`."""

    def values(millicores: tuple[int, ...]) -> Iterator[str]:
        if len(set(millicores)) == 1:
            yield f"{millicores[0]}m"
        else:
            yield from (f"{each}m" for each in millicores)

    return ", ".join(f"{name} {' + '.join(values(found))}" for name, found in cpu.items() if found)
