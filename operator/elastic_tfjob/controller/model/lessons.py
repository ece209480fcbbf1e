"""The history of finished jobs, as the text of a ConfigMap. Pure.

Values in the ConfigMap are accepted if their types and bounds are valid; invalid ones are left out, and never raise.
"""

from contextlib import suppress
from itertools import zip_longest
from typing import Any, Final

import orjson

from elastic_tfjob.api.reading import MAX_DURATION_S, MAX_RATE, MAX_REPLICAS, MAX_STEPS, MAX_UID, Fields, describe
from elastic_tfjob.controller.model.speed_conditions import conditions_of, written_conditions
from elastic_tfjob.speed.history import LESSONS, NAMES, SCOPES_NAMES, SIZES, Conditions, History, Lesson, Size

__all__ = ["MAX_HISTORY_BYTES", "read_history", "write_history"]

MAX_HISTORY_BYTES: Final = 768 * 1024
"""Bytes of the text at most; a ConfigMap may have 1 MiB."""


def write_history(history: History) -> str:
    """Returns the history's text. If it would be too long, only the last lessons of each name are kept, then only the
    last names of each scope."""
    for kept in (LESSONS, 4, 2, 1):
        found: dict[str, dict[str, list[Any]]] = {}
        for scope, name, past in history.items():
            found.setdefault(scope, {})[name] = [_lesson(lesson) for lesson in past.lessons[-kept:]]
        text = orjson.dumps(found).decode()
        if len(text) <= MAX_HISTORY_BYTES:
            return text
    return _newest_names(history)


def _newest_names(history: History) -> str:
    """Returns the text with the last lesson of as many names as fit: first the last name of each scope, then each
    scope's next-to-last, and so on."""
    scopes: dict[str, list[tuple[str, list[Any]]]] = {}
    for scope, name, past in history.items():
        scopes.setdefault(scope, []).append((name, [_lesson(lesson) for lesson in past.lessons[-1:]]))
    found: dict[str, dict[str, list[Any]]] = {}
    room = MAX_HISTORY_BYTES - 2
    for names in zip_longest(*(reversed(names) for names in scopes.values())):
        for scope, each in zip(scopes, names, strict=True):
            if each is not None:
                name, lessons = each
                room -= len(orjson.dumps({scope: {name: lessons}})) + 1
                if room < 0:
                    return orjson.dumps(found).decode()
                found[scope] = {
                    name: lessons,
                    **found.get(scope, {}),
                }  # oldest first, as they were learned
    return orjson.dumps(found).decode()


def _lesson(lesson: Lesson) -> dict[str, Any]:
    return {
        "id": lesson.id,
        "steps": lesson.steps,
        "duration_s": lesson.duration_s,
        "sizes": {
            f"{ps}/{workers}": [
                float(f"{rate:.4g}"),
                *written_conditions(lesson.conditions.get((ps, workers), Conditions())),
            ]
            for (ps, workers), rate in lesson.rates.items()
        },
    }


def read_history(text: str) -> History:
    """Reads the text of `write_history`; invalid parts are left out."""
    history = History()
    with suppress(ValueError):
        scopes = Fields(orjson.loads(text)) if len(text) <= MAX_HISTORY_BYTES else Fields({})
        for scope in scopes.names(SCOPES_NAMES):
            with suppress(ValueError):
                names = scopes.within(scope) or Fields({})
                for name in names.names(NAMES):
                    with suppress(ValueError):
                        for raw in names.objects(name, LESSONS):
                            history = history.learned(scope, name, _read(raw))
    return history


def _read(raw: Fields) -> Lesson:
    sizes = _sizes(raw.within("sizes"))
    return Lesson(
        raw.text("id", MAX_UID),
        raw.number("steps", float(MAX_STEPS)),
        raw.number("duration_s", float(MAX_DURATION_S)),
        {size: rate for size, (rate, _) in sizes.items()},
        {size: found for size, (_, found) in sizes.items() if found != Conditions()},
    ).bounded()


def _sizes(raw: Fields | None) -> dict[Size, tuple[float, Conditions]]:
    """Reads the speed at each size, and its conditions: [steps/s, worker millicores, PS millicores, spread]."""
    found: dict[Size, tuple[float, Conditions]] = {}
    for text in raw.names(SIZES) if raw is not None else ():
        ps, _, workers = text.partition("/")
        if not (ps.isdecimal() and workers.isdecimal() and max(len(ps), len(workers)) < 5):
            continue
        assert raw is not None
        values = raw.items(text, 4)
        if not values or type(values[0]) not in (int, float) or not 0 < values[0] <= MAX_RATE:
            raise ValueError(f"{raw.place(text)}: {describe(values)} does not begin with steps/s")
        if int(ps) + int(workers) <= MAX_REPLICAS:
            under = conditions_of(values[1:], raw.place(text))
            found[int(ps), int(workers)] = float(values[0]), under
    return found
