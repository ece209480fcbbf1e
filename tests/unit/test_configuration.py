"""The operator's configuration: what may be said, and what is answered to the rest."""

import pytest

from elastic_tfjob.api.configuration import Configuration, parse_configuration


@pytest.mark.parametrize("text", ["", "# nothing\n", "profiles:\nrescale:\n", "profile: fixed"])
def test_defaults(text: str) -> None:
    assert parse_configuration(text) == Configuration()


def test_parameters_are_those_of_the_chosen_profile() -> None:
    found = parse_configuration("profile: optimus\nprofiles: {optimus: {cooldown_s: 60}, las: {promote_knob: 2}}")
    assert found.parameters.model_dump()["cooldown_s"] == 60


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("profile: kipz", ("profile", "'kipz'", "fixed", "optimus")),
        ("scope: some", ("scope", "'annotated' or 'all'", "'some'")),
        ("cooldown: 3", ("cooldown is not known", "profile, scope, profiles, rescale, status")),
        ("rescale: {prepare: 3}", ("rescale.prepare is not known", "prepare_timeout_s")),
        ("rescale: {prepare_timeout_s: -1}", ("rescale.prepare_timeout_s", "greater than 0", "-1")),
        ("status: {interval_s: fast}", ("status.interval_s", "'fast'")),
        ("profiles: {optimus: {cooldown: 1}}", ("optimus.cooldown", "cooldown_s")),
        ("profiles: {nobody: {}}", ("profiles.nobody", "optimus")),
        ("profiles: {drf: {place: count}}", ("profiles.drf.place", "simulations")),
        ("- profile", ("not a mapping",)),
        ("a: [", ("not YAML", "line 1")),
    ],
)
def test_says_what_is_wrong_where_and_what_is_allowed(text: str, said: tuple[str, ...]) -> None:
    with pytest.raises(ValueError) as error:
        parse_configuration(text)
    for words in said:
        assert words in str(error.value)
