"""A baseline directory with one file, and run records to compare with it, as the commands meet them.

The fixtures are those of a conftest.py that imports them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_distbench.commands.cli import main
from pytest_distbench.judging.case import compare
from pytest_distbench.judging.screening import screen
from pytest_distbench.judging.terms import Terms
from pytest_distbench.records.case import BaselineEntry, Case
from pytest_distbench.records.environment import Environment
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.reasons import ReasonCode
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, Finding, OtherSideRecord, RunRecord
from pytest_distbench.store.baselines import Baselines
from pytest_distbench.store.files import SCHEMA, write_run_record
from support.cases import ON_TWO
from support.metrics import baseline_of

TEST = "suites/test_a.py::test_a"

KEY = "ws2.gloo.warm"

PLATFORM = "cpu-x-2c"

SOFTWARE = {"torch": "2.13.0"}

CASE = Case(test=TEST, id="ws2", conditions=ON_TWO, device="cpu")

HUNG = LaunchRecord(index=0, outcome="failed", wall_s=1.0, reason="hung in body")

Run = Callable[..., tuple[int, str]]


def named(case_id: str) -> Case:
    return replace(CASE, id=case_id)


def environment(platform: str, *, shares_gpu: bool = False) -> Environment:
    return Environment(platform=platform, device="X", cores=2, software={"torch": "2.14.0"}, shares_gpu=shares_gpu)


def entry(*values: float, **changes: object) -> BaselineEntry:
    made = BaselineEntry(
        workload=CASE.workload,
        conditions=ON_TWO,
        software=SOFTWARE,
        metrics={"step": baseline_of(values, name="step")},
    )
    return replace(made, **changes)


def launches(*values: float | None, software: Mapping[str, str] | None = None, **changes: Any) -> list[LaunchRecord]:
    """One launch per value of one metric."""
    metric = {"name": "step", "unit": "s", "better": "lower"} | changes
    return [
        LaunchRecord(
            index=i,
            outcome="passed",
            wall_s=1.0,
            measurements=[Sample(value=value, **metric)],
            software=dict(software or {}),
        )
        for i, value in enumerate(values)
    ]


def result(
    *values: float | None, code: ReasonCode = "beyond-threshold", case: Case = CASE, **changes: object
) -> CaseResult:
    made = CaseResult(
        nodeid=f"{case.test}[{case.name}]",
        case=case,
        environment=environment(PLATFORM),
        launches=launches(*values),
        verdicts=[Finding(metric="step", code=code, unit="s", better="lower")],
        reference=OtherSideRecord(kind="stored", path="b"),
    )
    return replace(made, **changes)


def record(path: Path, *results: CaseResult) -> str:
    run = RunRecord(
        schema=SCHEMA,
        distbench="0",
        started="2026-01-02T03:04:05+00:00",
        duration_s=1.0,
        world_sizes=[2],
        gpu=False,
        results=list(results),
    )
    write_run_record(path, run)
    return str(path)


def screened(
    terms: Terms, launches: list[LaunchRecord], entry: BaselineEntry, *, comparisons: int
) -> tuple[list[Finding], float]:
    """What is found of launches that can be followed by interleaved ones, and how suspicious that is."""
    screening = screen(terms, CASE, launches, entry, comparisons=comparisons)
    found = compare(terms, CASE, launches, entry, comparisons=comparisons, screening=screening)
    return found, screening.suspicion_after(found)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Baselines(tmp_path / "b", PLATFORM).write(TEST, KEY, entry(0.001, 0.002, 0.003))
    return tmp_path / "b"


@pytest.fixture
def store(folder: Path) -> Baselines:
    return Baselines(folder, PLATFORM)


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``distbench baseline`` on the store: exit code and everything printed."""

    def call(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["baseline", *arguments, "--baselines", str(folder)])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return call
