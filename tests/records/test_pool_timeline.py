"""The timeline of a pool is read as that of a job is."""

from __future__ import annotations

from pathlib import Path

from pytest_distbench.records.pool_timeline import POOL_LINES, Granted, ServerReady
from pytest_distbench.records.timeline import LineReader, append


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
