"""A campaign that was stopped goes on where it was, and not with what another source did."""

from pathlib import Path

from campaign.record import Record


def test_what_was_done_is_known_again_unless_the_source_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "new" / "state.jsonl"
    first = Record(path, resume=False, source="a")
    first.add("schedule", "grow/lost/1", [[], 0.1])
    first.add("mutant", "two-leaders", "two leaders")
    first.close()
    assert Record(path, resume=True, source="b").get("schedule", "grow/lost/1") is None
    again = Record(path, resume=True, source="a")
    assert again.get("schedule", "grow/lost/1") == [[], 0.1]
    assert again.get("mutant", "grow/lost/1") is None
    assert Record(path, resume=False, source="a").get("mutant", "two-leaders") is None


def test_half_a_line_is_passed_over_and_the_next_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    path.write_text('{"source": "a", "kind": "schedule", "na')
    second = Record(path, resume=True, source="a")
    second.add("schedule", "grow/lost/2", [["gone"], 0.2])
    second.close()
    assert Record(path, resume=True, source="a").get("schedule", "grow/lost/2") == [["gone"], 0.2]
