"""Results of cases as a run would record them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_distbench.judging.remarks import remarks
from pytest_distbench.records.case import Case
from pytest_distbench.records.environment import Environment
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import metric_key
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, Finding, OtherSideRecord, RunRecord
from pytest_distbench.report import Line
from pytest_distbench.report.terminal import summary_lines
from pytest_distbench.store.files import SCHEMA
from support.cases import ON_TWO

STORED = OtherSideRecord(kind="stored", path="baselines/x.json", software={"torch": "2.13.0"})
PAIRED = OtherSideRecord(kind="paired", name="main (123)", software={"torch": "2.13.0"})


def verdict(code: str = "within-threshold", *, ratio: float | None = None, **changes: Any) -> Finding:
    """A verdict on a timing; ``ratio`` gives the number of this run."""
    made = Finding(
        metric="step",
        code=code,
        unit="s",
        better="lower",
        current=0.03,
        baseline=0.02,
        threshold=0.1,
        launches=5,
    )
    made = replace(made, **changes)
    return made if ratio is None or made.baseline is None else replace(made, current=ratio * made.baseline)


def point(size: int, code: str = "within-threshold", **changes: Any) -> Finding:
    at = {"message_bytes": size}
    return verdict(code, metric=metric_key("latency", at), at=at, facts={"busbw_factor": 1.5}, **changes)


def result(*verdicts: Finding, reference: OtherSideRecord = STORED, **changes: Any) -> CaseResult:
    made = CaseResult(
        nodeid="suites/test_a.py::test_a[ws2]",
        case=Case(
            test="suites/test_a.py::test_a",
            id="ws2",
            conditions=ON_TWO,
            device="cpu",
        ),
        environment=Environment(platform="cpu-x", device="X", cores=2, software={"torch": "2.14.0"}),
        launches=[LaunchRecord(index=0, outcome="passed", wall_s=1.5, software={"torch": "2.14.0"})],
        verdicts=list(verdicts),
        reference=reference,
    )
    return replace(made, **changes)


def run(*results: CaseResult, **changes: Any) -> RunRecord:
    made = RunRecord(
        schema=SCHEMA, distbench="0", started="2026-01-02T03:04:05+00:00", duration_s=1.5, world_sizes=[2], gpu=False,
        results=list(results), remarks=remarks(results),
    )  # fmt: skip
    return replace(made, **changes)


def end_of(results: Sequence[CaseResult], *, verbosity: int = 0, record: str = "") -> list[Line]:
    """What a terminal shows at the end of a run; ``record`` is the command that records baselines."""
    return summary_lines(results, remarks(results), verbosity=verbosity, commands={"record": record}, folder=Path("b"))
