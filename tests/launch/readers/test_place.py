"""Files that lay there before a launch, and were appended to."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.plans import make_plan

from pytest_distbench.errors import ReadingError
from pytest_distbench.launch.readers.place import Place, note_before
from pytest_distbench.read import jsonl
from pytest_distbench.records.record import replace


def test_a_file_that_a_launch_appends_to_is_an_earlier_runs_too(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"loss": 1}\n')
    plan = replace(make_plan(tmp_path), read={"loss": jsonl("log.jsonl", "loss")})
    note_before(plan)
    with log.open("a") as file:
        file.write('{"loss": 9}\n')

    with pytest.raises(ReadingError, match="before this launch, which has appended to it: its first 12 bytes"):
        Place(plan, 0).path("log.jsonl")


def test_a_file_that_is_written_anew_is_the_launchs(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"loss": 1}\n')
    plan = replace(make_plan(tmp_path), read={"loss": jsonl("log.jsonl", "loss")})
    note_before(plan)
    log.write_text('{"loss": 2}\n{"loss": 3}\n')

    assert Place(plan, 0).path("log.jsonl") == log


def test_where_nothing_lay_nothing_is_noted(tmp_path: Path) -> None:
    plan = replace(make_plan(tmp_path), read={"loss": jsonl("log.jsonl", "loss")})
    note_before(plan)

    assert not plan.files.before.exists()
