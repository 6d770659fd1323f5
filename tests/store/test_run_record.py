"""The file that ``--distbench-json`` writes."""

from __future__ import annotations

from pathlib import Path

from pytest_distbench.store.files import read_run_record, write_run_record

STORED = Path(__file__).with_name("run_record.json")
"""A regression, an expected one in A/B with another revision, a failed launch."""


def test_a_stored_record_that_is_written_again_is_the_same(tmp_path: Path) -> None:
    write_run_record(tmp_path / "run.json", read_run_record(STORED))

    assert (tmp_path / "run.json").read_bytes() == STORED.read_bytes()
