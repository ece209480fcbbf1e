"""A campaign that was stopped goes on where it was, and not with what another source did."""

from pathlib import Path
from typing import Any

from campaign.record import Kind, Record


def known(path: Path, source: str, kind: Kind, name: str) -> Any:
    with Record(path, resume=True, source=source) as record:
        return record.get(kind, name)


def test_recorded_results_count_unless_the_source_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "new" / "state.jsonl"
    with Record(path, resume=False, source="a") as first:
        first.add("schedule", "grow/lost/1", [[], 0.1])
        first.add("mutant", "two-leaders", "two leaders")
    assert known(path, "b", "schedule", "grow/lost/1") is None
    assert known(path, "a", "schedule", "grow/lost/1") == [[], 0.1]
    assert known(path, "a", "mutant", "grow/lost/1") is None
    with Record(path, resume=False, source="a") as anew:
        assert anew.get("mutant", "two-leaders") is None


def test_half_a_line_is_passed_over_and_the_next_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    path.write_text('{"source": "a", "kind": "schedule", "na')
    with Record(path, resume=True, source="a") as second:
        second.add("schedule", "grow/lost/2", [["gone"], 0.2])
    assert known(path, "a", "schedule", "grow/lost/2") == [["gone"], 0.2]
