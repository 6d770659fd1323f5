"""The reports of ranks: whatever is in the file, a whole report or none."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.documents import documents
from support.plans import make_plan

from pytest_distbench.launch.reports import read_reports
from pytest_distbench.records.rank import RankReport

REPORT = RankReport(rank=0, outcome="passed", phase="body", phases={"begin": 1.0})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


def test_a_report_is_read_and_a_missing_one_left_out(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    plan.files.report(0).write_bytes(msgspec.json.encode(REPORT))

    assert read_reports(plan) == {0: REPORT}


@given(st.one_of(st.binary(max_size=200), documents.map(msgspec.json.encode)))
def test_a_damaged_report_is_none(folder: Path, data: bytes) -> None:
    plan = make_plan(folder)
    plan.files.report(0).write_bytes(data)

    assert read_reports(plan) == {}


def test_a_truncated_report_is_none(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    whole = msgspec.json.encode(REPORT)
    for length in range(len(whole)):
        plan.files.report(0).write_bytes(whole[:length])
        assert read_reports(plan) == {}


def test_a_report_of_another_rank_is_none(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    plan.files.report(1).write_bytes(msgspec.json.encode(REPORT))

    assert read_reports(plan) == {}
