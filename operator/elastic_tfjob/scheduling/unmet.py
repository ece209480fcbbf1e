"""What a live cluster cannot give a profile, by what the profile says it needs and the contract's table.

A parameter is refused where it asks for such a need and another value of it does not. A default that asks for one is
passed over, which the operator's log says: profiles have defaults that only a simulation can follow. What a profile
needs whatever its parameters say, it cannot do without.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

from elastic_tfjob.scheduling.contract import NEEDS
from elastic_tfjob.scheduling.profile import Need
from elastic_tfjob.scheduling.profiles import PROFILES, ProfileParameters, build, parse_profile

__all__ = ["passed_over", "refusals", "refused_values"]


def refusals(name: str, settings: Mapping[str, Any]) -> list[str]:
    """Why a live cluster cannot follow profile `name` with these settings, one line for each. Raises ValueError for
    settings that the profile does not have."""
    problems = []
    for parameter, said in settings.items():
        # Beside the others, and alone: where two ask for the same need, another value of one would not spare it.
        for beside in (settings, {parameter: said}):
            if unmet := _unmet_by(name, beside, parameter):
                value, why = unmet
                problems.append(f"profiles.{name}.{parameter}: {why}; allowed is {value}")
                break
    always = parse_profile(name, settings).stages().needs
    lacks = sorted(need for need in always if not NEEDS[need].live)
    return problems + [f"profiles.{name}: {NEEDS[need].why}" for need in lacks]


def passed_over(name: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """The parameters whose defaults a live cluster cannot follow, where these settings do not say them, and why."""
    unsaid = (parameter for parameter in PROFILES[name].model_fields if parameter not in settings)
    answers = ((parameter, _unmet_by(name, settings, parameter)) for parameter in unsaid)
    return {parameter: unmet[1] for parameter, unmet in answers if unmet is not None}


def _unmet_by(name: str, settings: Mapping[str, Any], parameter: str) -> tuple[Any, str] | None:
    """Where this parameter cannot have the value that it has here: another value of it that would do, and why."""
    asked = _tried(name, settings)
    if asked is None:
        return None
    for value in _values(PROFILES[name], parameter):
        unmet = _tried(name, {**settings, parameter: value})
        if unmet is not None and (without := asked - unmet):
            why = "; ".join(NEEDS[need].why for need in sorted(without))
            return value, why
    return None


def refused_values() -> Iterator[tuple[str, str, str]]:
    """Each parameter, its values that are refused, and why."""
    lacking: dict[str, tuple[dict[str, None], str]] = {}
    for name, model in PROFILES.items():
        for parameter in model.model_fields:
            tried = ((value, _tried(name, {parameter: value})) for value in _values(model, parameter))
            needs = {value: unmet for value, unmet in tried if unmet is not None}
            least = frozenset.intersection(*needs.values()) if needs else frozenset[Need]()
            for value, unmet in needs.items():
                if more := sorted(unmet - least):
                    shown = "above 0" if type(value) is int else f"`{value}`"
                    values, _ = lacking.setdefault(parameter, ({}, "; ".join(NEEDS[need].why for need in more)))
                    values[shown] = None
    yield from ((parameter, ", ".join(values), why) for parameter, (values, why) in lacking.items())


def _unmet(name: str, settings: Mapping[str, Any]) -> frozenset[Need]:
    needs = build(name, parse_profile(name, settings)).needs
    return frozenset(need for need in needs if not NEEDS[need].live)


def _tried(name: str, settings: Mapping[str, Any]) -> frozenset[Need] | None:
    """The same; None for settings that are not allowed."""
    try:
        return _unmet(name, settings)
    except ValueError:
        return None


def _values(model: type[ProfileParameters], parameter: str) -> tuple[Any, ...]:
    """Values that a parameter may have: the one that asks for nothing first. Of a number, none and some."""
    field = model.model_fields.get(parameter)
    kind = field.annotation if field is not None else None
    if kind is bool:
        return False, True
    if get_origin(kind) is Literal:
        return get_args(kind)
    if kind is int or kind is float:
        return 0, 1
    return ()
