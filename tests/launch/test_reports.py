"""The reports of ranks: whatever is in the file, a whole report or none."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.documents import documents
from support.fingerprints import BARRIER
from support.plans import make_plan

from pytest_distbench.launch.reports import read_reports, report_host
from pytest_distbench.records.fingerprint import RankFingerprint
from pytest_distbench.records.host_report import CommonPrint, HostReport
from pytest_distbench.records.metric import Observation
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.rank import RankReport
from pytest_distbench.records.record import replace

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


def observed(rank: int, **ended: object) -> RankReport:
    step = Observation(name="step", unit="s", better="lower", reduce="max", values=[1.0 + rank], is_series=True)
    mine = RankFingerprint(collectives=[BARRIER], entered=[0.0, 0.5 + rank], began=9.0)
    own = replace(REPORT, rank=rank, observations=[step], fingerprints={"step": mine}, gpu=f"GPU-{rank}")
    return replace(own, **ended)


def left(plan: LaunchPlan, *reports: RankReport) -> LaunchPlan:
    for each in reports:
        plan.files.report(each.rank).write_bytes(msgspec.json.encode(each))
    return replace(plan, world_size=4)


def test_of_the_ranks_of_a_host_what_they_recorded_is_told_once(tmp_path: Path) -> None:
    found = report_host(left(make_plan(tmp_path), observed(2), observed(3)), [2, 3])

    assert [(end.rank, end.gpu, end.observations, end.fingerprints) for end in found.ranks] == [
        (2, "GPU-2", [], {}),
        (3, "GPU-3", [], {}),
    ]
    assert [(part.ranks, part.values, part.slowest) for part in found.observations] == [([2, 3], [4.0], [3])]
    assert found.fingerprints == {
        "step": [CommonPrint(ranks=[2, 3], fingerprint=RankFingerprint(collectives=[BARRIER]))]
    }
    assert found.entered["step"].latest == [(0, 0.0), (1, 1.0)]


@pytest.mark.parametrize(
    "others", [pytest.param([], id="left no report"), pytest.param([observed(1, outcome="failed")], id="failed")]
)
def test_where_a_rank_of_the_host_did_not_pass_each_says_how_it_ended_alone(
    others: list[RankReport], tmp_path: Path
) -> None:
    found = report_host(left(make_plan(tmp_path), observed(0), *others), [0, 1])

    assert [end.outcome for end in found.ranks] == ["passed", *(other.outcome for other in others)]
    assert found == HostReport(ranks=found.ranks)
