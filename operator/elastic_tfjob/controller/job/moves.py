"""Moves replicas to other nodes while the job trains: which ones, and the job's pods afterwards. Pure.

A move is a rescale to the same replicas. The task that moves gets a pod with a new index on the new node, which is
prepared beside the running generation like an added replica. Its old pod is deleted after the switch, like a removed
one. A move therefore pauses the job for as long as a rescale does, and loses no step.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count as numbers
from types import MappingProxyType
from typing import Final

from elastic_tfjob.api.reading import MAX_REPLICAS
from elastic_tfjob.api.tfjob import nameable
from elastic_tfjob.controller.job.pods import Role
from elastic_tfjob.controller.model.annotations import simplest, spans
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.state import Next, StoredState
from elastic_tfjob.controller.model.target import Counts, Cpu, Target, words
from elastic_tfjob.scheduling.plan import substitutes

__all__ = ["Move", "coming_indexes", "described", "moves", "replicas_moved", "switched_with_moves"]

_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Move:
    """A replica that has to leave a node: its type, its task, the index of its present pod, and both nodes."""

    name: str
    task: int
    index: int
    before: str
    after: str

    @property
    def role(self) -> Role:
        """The replica's present pod."""
        return self.name, self.index


def moves(state: StoredState, target: Target, pods: Mapping[Role, Pod]) -> tuple[Move, ...]:
    """Returns the replicas whose pod runs on a node other than its target's. A pod that is not bound, or is ending,
    gets the node when it is recreated. A task that another pod takes over needs none."""
    found, replaced = [], taken_over(state, target, pods)
    for name, nodes in target.nodes.items():
        for task, (index, node) in enumerate(zip(state.pods(name), nodes, strict=False)):
            pod = pods.get((name, index))
            if pod is None or pod.terminating or pod.stopped_by_us or pod.ended:
                continue
            if (name, task) in replaced:
                continue
            if task < target.replicas.get(name, 0) and pod.node and pod.node != node:
                found.append(Move(name, task, index, pod.node, node))
    return tuple(found)


def taken_over(state: StoredState, target: Target, pods: Mapping[Role, Pod]) -> dict[tuple[str, int], int]:
    """By type and task, the index of the pod that takes the task over: a pod that the target's size would drop is on
    the node already, and the task's own pod is not."""
    bound = {
        name: [
            pod.node if pod is not None and not (pod.terminating or pod.stopped_by_us or pod.ended) else ""
            for pod in (pods.get((name, index)) for index in state.pods(name))
        ]
        for name in target.nodes
    }
    return {(name, task): state.pods(name)[j] for (name, task), j in substitutes(bound, target.nodes).items()}


def coming_indexes(
    job: str,
    state: StoredState,
    replicas: Counts,
    moving: Collection[Move],
    replaced: Mapping[tuple[str, int], int] = MappingProxyType({}),
    *,
    pods: Collection[Role] = (),
) -> dict[str, tuple[int, ...]] | None:
    """Returns the pod indexes, by type, of a size that is prepared beside the running one: each added or moving task
    gets the lowest index that no pod has now (`pods`: also one that is ending, perhaps on a lost node), a task that
    another pod takes over (`replaced`) the index of that. None if an index is beyond what an annotation may have, or a
    name would be too long."""
    tasks = {(each.name, each.task) for each in moving}
    indexes: dict[str, tuple[int, ...]] = {}
    for name, count in replicas.items():
        before = state.pods(name)
        if name not in state.indexes and not any(kind == name for kind, _ in (*tasks, *replaced)):
            continue
        used = {*before, *(index for kind, index in pods if kind == name)}
        free = (index for index in numbers() if index not in used)
        kept = {task: index for task, index in enumerate(before[:count]) if (name, task) not in tasks}
        kept |= {task: index for (kind, task), index in replaced.items() if kind == name}
        indexes[name] = tuple(kept[task] if task in kept else next(free) for task in range(count))
    indexes = simplest(indexes)
    highest = spans(replicas, indexes)
    named = all(highest[name] <= nameable(job, name) for name in indexes)
    return indexes if named and sum(highest.values()) <= MAX_REPLICAS else None


def replicas_moved(before: StoredState, coming: Next) -> int:
    """Returns how many replicas have a new pod in the coming size, or a pod of the same index on a different node."""
    moved = 0
    for name in coming.replicas:
        pods = zip(before.pods(name), coming.pods(name), strict=False)
        there, then = before.nodes.get(name, ()), coming.nodes.get(name, ())
        for task, (old, new) in enumerate(pods):
            known = task < len(there) and task < len(then)
            moved += (there[task] != then[task]) if known else old != new and coming.mode != "recreate"
    return moved


def switched_with_moves(before: StoredState, after: StoredState) -> bool:
    """Whether the job has switched, between these two states, to a generation with replicas on other nodes."""
    coming = before.next
    if coming is None or not before.generation < coming.generation == after.generation:
        return False
    return replicas_moved(before, coming) > 0


def described(moving: Collection[Move]) -> str:
    """Returns `worker-1 from node-a to node-b`, for the first _NAMED moves."""
    listed = [f"{each.name.lower()}-{each.index} from {each.before} to {each.after}" for each in moving][:_NAMED]
    more = f" and {len(moving) - _NAMED} more" if len(moving) > _NAMED else ""
    return ", ".join(listed) + more


# -- A rescale in words, for events and conditions ---------------------------------------------------------------------

# Characters of a program's last output in an event, which has space for 1,024.
_LAST_WORDS: Final = 700


def describe_change(before: Counts, after: Counts, moving: Sequence[Move] = ()) -> str:
    """Returns a change of size or nodes in words."""
    if before == after:
        return f"Moves {described(moving)}" if moving else "Moved to other nodes"
    also = f", and moves {described(moving)}" if moving else ""
    return f"From {words(before)} to {words(after)}{also}"


def describe_stay(before: Counts, wanted: Counts, why: str) -> str:
    """Returns the message that a job keeps its size, which size (or nodes) it does not get, and why."""
    instead = words(wanted) if wanted != before else "other nodes"
    return f"Stays at {words(before)} instead of {instead}: {why}"


def describe_role(role: Role) -> str:
    """Returns a replica's name, as in `worker-0`."""
    return f"{role[0].lower()}-{role[1]}"


def on_one_line(text: str) -> str:
    """Returns foreign text on one line. If it is long, its end is kept, as a program's last output says why it
    ended."""
    line = " | ".join(filter(None, (" ".join(each.split()) for each in text.splitlines())))
    line = "".join(char if char.isprintable() else "?" for char in line)
    return line if len(line) <= _LAST_WORDS else f"... {line[-_LAST_WORDS:]}"


def describe_cpu(cpu: Cpu) -> str:
    """Returns CPU in words, as in `Worker 300m + 500m, PS 100m`."""

    def values(millicores: tuple[int, ...]) -> Iterator[str]:
        if len(set(millicores)) == 1:
            yield f"{millicores[0]}m"
        else:
            yield from (f"{each}m" for each in millicores)

    return ", ".join(f"{name} {' + '.join(values(found))}" for name, found in cpu.items() if found)
