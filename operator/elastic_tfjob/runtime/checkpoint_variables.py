"""Which of a checkpoint's values belong to which of the program's variables."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, Callable

from elastic_tfjob.runtime.protocol import some

__all__ = ["SLOT", "VALUE", "all_of", "is_variable", "matched", "missing", "paths", "shape_differences", "values"]

SLOT = "/.OPTIMIZER_SLOT/"
"""In the name of an optimizer's slot, between those of the variable and the optimizer."""
VALUE = "VARIABLE_VALUE"
"""The attribute of a key that has a variable's value."""


def values(tf: Any, checkpoint: Any, path: str) -> Iterator[tuple[str, str, Any, Any, Any]]:
    """Each value of the checkpoint at `path`, in the order of their keys: the name of its object, the attribute of that
    object, its shape and type, and the object of the program; None if the program has none. `checkpoint`: the
    tf.train.Checkpoint of the program. Raises what TensorFlow raises."""
    view = tf.train.CheckpointView(path)
    found = matched(tf, checkpoint, view)
    held = {name: found[node] for name, node in paths(0, view.children) if node in found}
    reader = tf.train.load_checkpoint(path)
    types = reader.get_variable_to_dtype_map()
    for key, shape in sorted(reader.get_variable_to_shape_map().items()):
        name, _, attribute = key.partition("/.ATTRIBUTES/")
        yield name, attribute, shape, types[key], _slot(held, name) if SLOT in name else held.get(name)


def shape_differences(tf: Any, checkpoint: Any, path: str) -> list[str]:
    """The program's variables that a checkpoint has in another shape or type. A variable in parts has the shape of the
    whole, whatever the number of parts."""
    if not hasattr(tf.train, "CheckpointView"):  # TensorFlow before 2.11
        return []
    found = []
    for name, attribute, shape, dtype, variable in values(tf, checkpoint, path):
        if attribute != VALUE or variable is None or not is_variable(variable):
            continue
        own_name = getattr(variable, "path", None) or getattr(variable, "name", None)
        text = f"{name} ({own_name})" if isinstance(own_name, str) else name
        own_shape, own_type = variable.shape, tf.as_dtype(variable.dtype).base_dtype
        if not tf.TensorShape(shape).is_compatible_with(own_shape):
            found.append(f"{text} has shape {tuple(shape)} in the checkpoint and {tuple(own_shape)} in the program")
        elif dtype.base_dtype != own_type:
            found.append(f"{text} has type {dtype.name} in the checkpoint and {own_type.name} in the program")
    return found


def missing(tf: Any, checkpoint: Any, path: str) -> str:
    """A message about the program's variables that a checkpoint lacks; empty if it has all."""
    train = tf.train
    if not hasattr(train, "CheckpointView"):  # TensorFlow before 2.11
        return ""
    view = train.CheckpointView(path)
    found = matched(tf, checkpoint, view)
    held = {id(each) for each in found.values()}
    lacks = [
        name
        for name, each in paths(*_program(tf, checkpoint))
        if id(each) not in held and is_variable(each) and name != "save_counter"
    ]
    if not lacks:
        return ""
    unused = {name for name, node in paths(0, view.children) if node not in found}
    known = (key.partition("/.ATTRIBUTES/")[0] for key, _ in train.list_variables(path))
    unknown = [name for name in known if name in unused and name != "save_counter"]
    return (
        f"{path} has no value for {some(lacks)} of this program"
        + (f"; it has {some(unknown)}, which the program lacks" if unknown else "")
        + ". Was something renamed?"
    )


def all_of(tf: Any, checkpoint: Any) -> dict[str, int]:
    """The ids of all variables that a new checkpoint of the program has, by name; 0 for an optimizer's slots, which are
    not among an object's children."""
    objects = paths(*_program(tf, checkpoint))
    found = {name: id(each) for name, each in objects if is_variable(each)}
    for name, optimizer in objects:
        for slot in optimizer.get_slot_names() if hasattr(type(optimizer), "get_slot_names") else ():
            for path, each in objects:
                key = f"{path}{SLOT}{name}/{slot}"
                if _slot({name: optimizer, path: each}, key) is not None:
                    found[key] = 0
    return found


def matched(tf: Any, checkpoint: Any, view: Any) -> dict[int, Any]:
    """The program's objects by their number in a tf.train.CheckpointView, as its method `match` has them. That one does
    not know a tf.train.Checkpoint with a root."""
    root, children = _program(tf, checkpoint)
    found, todo = {0: root}, deque([0])
    while todo:
        number = todo.popleft()
        here = children(found[number])
        for name, child in view.children(number).items():
            if name in here and child not in found:
                found[child] = here[name]
                todo.append(child)
    return found


def _program(tf: Any, checkpoint: Any) -> tuple[Any, Callable[[Any], dict[str, Any]]]:
    """The root of what `checkpoint` saves, and a function that returns an object's children by name. The names of
    `tf.train.Checkpoint(model, optimizer=o)` are those of `model`, and `optimizer` beside them."""
    root = _object(getattr(checkpoint, "_root", None))
    beside = getattr(checkpoint, "_attached_dependencies", None) if root is not None else None
    root = checkpoint if root is None else root
    view = tf.train.TrackableView(root)

    def children(each: Any) -> dict[str, Any]:
        found = dict(view.children(each))
        if each is root:
            found |= {reference.name: _object(reference.ref) for reference in beside or ()}
        return found

    return root, children


def _object(reference: Any) -> Any:
    return reference() if isinstance(reference, weakref.ref) else reference


def is_variable(each: Any) -> bool:
    return hasattr(each, "shape") and hasattr(each, "assign")


def _slot(held: dict[str, Any], name: str) -> Any:
    """An optimizer's slot variable by the name of its value: `w/.OPTIMIZER_SLOT/opt/m`."""
    variable, _, rest = name.partition(SLOT)
    optimizer, _, slot = rest.rpartition("/")
    try:
        return held[optimizer].get_slot(held[variable], slot)
    except Exception:  # the program lacks one of them, or the slot does not exist yet
        return None


def paths(root: Any, children: Callable[[Any], dict[str, Any]]) -> list[tuple[str, Any]]:
    """Each object below `root` once, with the shortest path to it, as in the keys of a checkpoint."""
    found, seen, todo = [], {_key(root)}, [("", root)]
    for path, each in todo:  # the list grows meanwhile
        for name, child in children(each).items():
            if _key(child) not in seen:
                seen.add(_key(child))
                todo.append((f"{path}/{name}" if path else name, child))
                found.append(todo[-1])
    return found


def _key(each: Any) -> int:
    return each if isinstance(each, int) else id(each)
