"""Lines of a timeline: whole, or passed over."""

from __future__ import annotations

from pathlib import Path

from pytest_distbench.records.timeline import Finished, Saved, TimelineReader, append, read_timeline

LATER = Saved(t=2.0, slot=0, generation=1, step=20, seconds=0.1)
EARLIER = Finished(t=1.0, slot=1, generation=0)


def test_lines_come_back_by_time(tmp_path: Path) -> None:
    for line in (LATER, EARLIER):
        append(tmp_path / "timeline", line)

    assert read_timeline(tmp_path / "timeline") == [EARLIER, LATER]


def test_a_reader_gives_each_line_once_and_waits_for_the_rest_of_one(tmp_path: Path) -> None:
    path = tmp_path / "timeline"
    reader = TimelineReader(path)
    assert reader.read() == []
    append(path, LATER)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:10])
    assert reader.read() == [LATER]
    path.write_bytes(whole + whole)

    assert reader.read() == [LATER]
    assert reader.read() == []


def test_what_is_no_line_is_passed_over(tmp_path: Path) -> None:
    """A worker that is killed while it writes leaves a part of a line, behind which another one may write."""
    path = tmp_path / "timeline"
    path.write_bytes(b'{"what":"sav\n')
    append(path, LATER)

    assert read_timeline(path) == [LATER]
