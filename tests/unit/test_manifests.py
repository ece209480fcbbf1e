"""Files as kubectl reads them, within bounds. integration/test_check.py holds the same to kubectl itself."""

import pytest
import yaml

from elastic_tfjob.api.manifests import as_text, manifests
from harness.hostile_text import ALIASES, DEEP_OBJECT, LONG_NUMBER, MERGE_KEYS, NO_YAML, named


def test_json_yaml_and_both() -> None:
    assert [each.value for each in manifests('{"a": 1.0}\n{"a": "2"}')] == [{"a": 1}, {"a": "2"}]
    assert [each.value for each in manifests('{"a": 1}\n---\na: 2\n')] == [{"a": 1}, {"a": 2}]
    assert [each.value for each in manifests("{a: 1}")] == [{"a": 1}]
    assert [each.value for each in manifests("\ufeffa: 1\r\n--- # next\r\n\r\n---\r\nb: 2\r\n")] == [{"a": 1}, {"b": 2}]
    assert manifests("# nothing\n---\n") == []


def test_each_document_keeps_its_text() -> None:
    assert [each.text for each in manifests("a: 1 # one\n---\nb: 2\n")] == ["a: 1 # one\n", "b: 2\n"]


def test_a_likely_mistake_is_noted() -> None:
    (twice,) = manifests("a: 1\na: 2\n")
    assert (twice.value, twice.notes) == ({"a": 2}, ("line 2: the key 'a' is given twice; the last value is used",))
    (merged,) = manifests("b: &b {a: 1}\nc: {a: 2, <<: *b}\nd: {<<: *b, a: 3}\n")
    assert merged.value == {"b": {"a": 1}, "c": {"a": 1}, "d": {"a": 3}}
    assert merged.notes == ("the merge key (<<) replaces the key 'a' before it; put << first",)
    (of_json,) = manifests('{"a": 1, "a": 2}')
    assert of_json.notes == ("the key 'a' is given twice; the last value is used",)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (ALIASES, "too large"),
        (MERGE_KEYS, "too large"),
        ("a: &a [*a]", "too large"),
        ("a: &a {<<: *a}", "too large"),
        ("[" * 100 + "]" * 100, "too large"),
        ("[" * 5000, "nested too deeply"),
        (DEEP_OBJECT, "nested too deeply"),
        ("a: [" + "1," * 100_001 + "]", "too large"),
        ("a: .nan", "put it in quotes"),
        (f"a: {LONG_NUMBER}", ""),
        ("a: {<<: 3}", "a merge key"),
        ("a: {[1]: 2}", "cannot be a key"),
        ("a: {null: 2}", "cannot be a key"),
        *((text, "not YAML|is not a !!") for text in NO_YAML),
        ("a: !!int x", "'x' is not a !!int"),
        ("a: !!timestamp 9", "is not a !!timestamp"),
        ("a: !!binary '$'", "is not base64"),
        ("a: 1\n--- b: 2", "line 2: only a comment may follow ---"),
        *((text, "not YAML") for text in ("a: [1", "\ta: 1", "a: \x07")),
        ('{"a": 1}{"b": 2}{"c"', "not JSON"),
    ],
    ids=named,
)
def test_hostile_texts_are_refused_and_nothing_else_happens(text: str, says: str) -> None:
    if not says:
        assert isinstance(manifests(text)[0].value["a"], str | float)
        return
    with pytest.raises(ValueError, match=says):
        manifests(text)


def test_written_yaml_is_read_the_same_by_every_reader() -> None:
    words = [
        "y",
        "n",
        "on",
        "No",
        "true",
        "~",
        "null",
        "1",
        "010",
        "0o17",
        "1e3",
        ".5",
        "1_0",
        "0x1f",
        "08",
        ".inf",
        "2026-01-31",
        "12:30:45",
        "<<",
        "=",
        "-",
        "!",
        "#",
        ":",
        "&",
        "*",
        "%",
        "@",
        "`",
        "'",
        '"',
    ]
    value = {
        "texts": [
            "",
            " ",
            "a: b",
            "a #b",
            " a ",
            "a\nb\n",
            "\n",
            "a\tb",
            "é",
            "\u2028",
            "[a",
            "{a",
            "- a",
            "? a",
            *words,
        ],
        "others": [1, -1, 0.5, 1e300, True, False, None, {}, [], {"y": 1, "1": 2, "": 3}],
    }
    text = as_text(value)
    assert manifests(text)[0].value == value
    assert yaml.safe_load(text) == value
