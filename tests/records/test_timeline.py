"""The timelines of elastic jobs and pools: lines of JSON, each whole."""

from __future__ import annotations

from pathlib import Path

from pytest_distbench.records.timeline import (
    POOL_LINES,
    Granted,
    LineReader,
    Saved,
    ServerReady,
    TimelineReader,
    append,
    read_timeline,
)

LATER = Saved(t=2.0, slot=0, generation=1, step=20, seconds=0.1)


def test_a_reader_gives_each_line_once_and_passes_over_what_is_none(tmp_path: Path) -> None:
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

    # A worker that is killed while it writes leaves a part of a line, behind which another one may write
    path = tmp_path / "timeline"
    path.write_bytes(b'{"what":"sav\n')
    append(path, LATER)
    assert read_timeline(path) == [LATER]


def test_lines_are_read_as_they_come_and_a_torn_one_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    reader = LineReader(path, POOL_LINES)
    granted = Granted(t=1.0, owner="A", slot=0)
    ready = ServerReady(t=2.0, slot=1)
    append(path, granted)
    first = reader.read()
    path.write_bytes(path.read_bytes() + b'{"what":"granted","t":\n')
    append(path, ready)

    assert (first, reader.read(), reader.read()) == ([granted], [ready], [])
