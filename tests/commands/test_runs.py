"""Commands that read the record of a run: compare and report."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pandas as pd
import pytest
from support.stores import HUNG, named, record, result

from pytest_distbench.commands.cli import main
from pytest_distbench.records.iteration import Collective, Fingerprint
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.formats import FORMATS, Format
from pytest_distbench.report.tables import TABLES
from pytest_distbench.report.tables.table import Column


def sends(count: int) -> CaseResult:
    prints = {"step": Fingerprint(collectives={"all": [Collective("all_reduce", "float32", 8, "default", count)]})}
    made = result(*[0.01, 0.0101] * 3)
    return replace(made, launches=[replace(launch, fingerprints=prints) for launch in made.launches])


Cases = list[CaseResult]
FAST = result(0.0100, 0.0101, 0.0099, 0.0100, 0.0101)
SLOW = result(0.0150, 0.0151, 0.0149, 0.0150, 0.0151)
GOOD = result(*[0.01, 0.0101] * 3)
OTHER = result(*[0.01, 0.0101] * 3, case=named("ws4"))
BROKEN = replace(GOOD, launches=[HUNG])


@pytest.mark.parametrize(
    ("old", "new", "code", "text"),
    [
        ([FAST], [SLOW], 1, "!  step    15.02 ms  10.02 ms  +49.9 %"),
        ([SLOW], [SLOW], 0, ""),
        ([sends(2)], [sends(64)], 1, "62 all_reduce of 8 B float32 were added"),
        ([sends(2)], [sends(2)], 0, ""),
        ([GOOD, OTHER], [GOOD], 1, "only in "),
        ([GOOD, OTHER], [BROKEN, OTHER], 1, "failed in "),
        ([GOOD], [GOOD, OTHER], 0, ""),
        ([result(0.01)], [result(0.02)], 1, "measure both runs with --distbench-launches 5"),
        ([GOOD], [result(*[0.01, -0.01] * 3)], 2, "step: -10 ms is no time that anything takes; it cannot be judged"),
    ],
)
def test_a_run_that_is_worse_lacks_a_case_or_cannot_be_judged_fails_a_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: Cases, new: Cases, code: int, text: str
) -> None:
    files = record(tmp_path / "a.json", *old), record(tmp_path / "b.json", *new)

    assert main(["compare", *files, "--fail"]) == code
    assert text in capsys.readouterr()[code == 2]


def test_report_prints_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = record(tmp_path / "run.json", result(0.01), replace(result(0.01), launches=[HUNG], verdicts=[]))

    assert main(["report", path]) == 0
    text = capsys.readouterr().out
    assert "test_a[ws2]  2 ranks forked with torch loaded, gloo, 1 launch" in text
    assert "suites/test_a.py::test_a[ws2]: launch 1 failed: hung in body" in text


def test_stderr_says_which_numbers_a_format_cannot_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = result(0.01)
    step = replace(measured.verdicts[0], current=0.01)
    curve = replace(step, metric="loss_curve", better="curve")
    path = record(tmp_path / "run.json", replace(measured, verdicts=[step, curve]))
    assert main(["report", path, "--format", "github-action-benchmark-smaller"]) == 0
    told = capsys.readouterr()

    assert [row["value"] for row in json.loads(told.out)] == [0.01]
    assert told.err.startswith("not in github-action-benchmark-smaller: ")
    assert told.err.endswith(" loss_curve (a series)\n")


def test_report_writes_a_table_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = record(tmp_path / "run.json", result(0.01, 0.02))

    assert main(["report", path, "--table", "launches", "--format", "csv"]) == 0
    assert capsys.readouterr().out.startswith("test,launch,outcome,wall_s,")
    assert main(["report", path, "--format", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("| verdict | reason | test | metric |")
    assert main(["report", path, "--format", "parquet", "-o", str(tmp_path / "v.parquet")]) == 0
    assert capsys.readouterr().out == f"1 row written to {tmp_path / 'v.parquet'}\n"
    assert pd.read_parquet(tmp_path / "v.parquet").verdict.tolist() == ["regressed"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--table", "collectives"], "has no table 'collectives'; it has verdicts, record, environment, launches"),
        (["--table", "control"], "no table 'control', which needs a run with --distbench-control; it has verdicts"),
        (["--format", "parquet"], "is no text: give -o FILE"),
        (["--format", "html", "--table", "verdicts"], "--format html is for the whole run: leave out --table"),
    ],
)
def test_report_says_what_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["report", record(tmp_path / "run.json", result(0.01)), *arguments]) == 2
    assert message in capsys.readouterr().err


class TestPage:
    def test_the_html_report_compares_two_runs(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run, page = record(tmp_path / "run.json", result(0.01)), tmp_path / "page.html"

        assert main(["report", run, "--html", str(page)]) == 0
        assert capsys.readouterr().out == f"HTML report written to {page}: open it in a browser\n"
        alone = page.read_bytes()
        assert main(["report", run, "--html", str(page), "--against", run]) == 0
        assert len(page.read_bytes()) > len(alone)
        assert main(["report", run, "--format", "html", "-o", str(page)]) == 0
        assert page.read_bytes() == alone

    @pytest.mark.parametrize(
        "arguments", [["--against", "a.json"], ["--html", "a", "--table", "cost"], ["--html", "a", "-o", "b"]]
    )
    def test_it_is_of_whole_runs(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
    ) -> None:
        assert main(["report", record(tmp_path / "run.json", result(0.01)), *arguments]) == 2
        assert "report --html FILE writes the HTML report of the whole run" in capsys.readouterr().err


def test_a_table_is_made_without_those_that_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = record(tmp_path / "run.json", result(0.01))
    broken = Column("ratio", float, "ratio", lambda row: 1 / 0)
    monkeypatch.setitem(TABLES, "launches", dataclasses.replace(TABLES["launches"], columns=[broken]))
    monkeypatch.setitem(
        FORMATS, "names", Format(write=lambda _, tables, out: out.writelines(map(str.encode, tables)), is_whole=True)
    )
    text = f"the table 'launches' cannot be made: column 'ratio' of {__name__}: ZeroDivisionError: division by zero\n"

    assert main(["report", run, "--table", "verdicts"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["report", run, "--table", "launches"]) == 2
    assert capsys.readouterr() == ("", f"distbench: {text}")
    assert main(["report", run, "--table", "control"]) == 2
    assert capsys.readouterr().err.endswith(f"it has verdicts, record, environment; {text}")
    assert main(["report", run, "--format", "names", "-o", str(tmp_path / "names")]) == 2
    assert (tmp_path / "names").read_text() == "verdictsrecordenvironment"
    assert capsys.readouterr().err == f"distbench: written without the parts that failed: {text}"
