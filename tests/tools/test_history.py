"""distbench history: what many runs say together."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from support.results import result, run

from pytest_distbench.commands.cli import main
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample
from pytest_distbench.store.run_record import write_run_record

AT = 25
"""The first run after the change."""
VERDICT = "distbench verdict --metric 'step' 'suites/test_a.py::test_a[ws2]' --world-size 2"


def write(folder: Path, runs: int, change: float = 1.0, other: float = 1.0) -> None:
    """Records of runs a day apart: a step of 20 ms and another number, which change at run 25, and a shown rate."""
    dice = random.Random(7)
    for i in range(runs):
        step = 0.02 * math.exp(0.02 * dice.gauss(0, 1)) * (change if i >= AT else 1)
        measured = [
            Sample(name="step", unit="s", better="lower", value=step),
            Sample(name="rate", unit="1/s", better="info", value=1 / step),
        ]
        if other != 1.0:
            value = 0.5 * math.exp(0.02 * dice.gauss(0, 1)) * (other if i >= AT else 1)
            measured.append(Sample(name="load", unit="s", better="lower", value=value))
        launch = LaunchRecord(index=0, outcome="passed", wall_s=1.0, measurements=measured)
        started = f"2026-{1 + i // 28:02}-{1 + i % 28:02}T00:00:00+00:00"
        write_run_record(folder / f"{i}.json", run(result(launches=[launch]), started=started, commit=f"{i:02}" * 20))


def history(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> Sequence[str]:
    """What it prints; of an error that."""
    assert main(["history", *map(str, arguments)]) == code
    told = capsys.readouterr()
    return (told.err if code else told.out).splitlines()


def test_a_change_is_a_row_and_a_command_that_finds_its_commit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, 50, change=1.2)
    head, _, header, row, *rest = history(capsys, tmp_path)

    assert head == "50 runs, 2026-01-01 to 2026-02-22: 1 metric, 1 changed"
    assert header.split()[:3] == ["test", "metric", "runs"]
    assert row.split()[:3] == ["test_a[ws2]", "step", "50"]
    assert row.split()[-4:] == ["worse", "2026-01-26", "2424242424", "2525252525"]
    assert rest == [
        "",
        "find the commit:",
        f"  git bisect start 2525252525 2424242424 && git bisect run {VERDICT} --distbench-against 2424242424",
    ]


def test_all_shows_what_did_not_change_and_what_is_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, 6)
    lines = history(capsys, tmp_path, "--all")

    assert lines[0] == "6 runs, 2026-01-01 to 2026-01-06: 2 metrics, not enough runs (6 of 18)"
    assert [line.split()[1] for line in lines[-2:]] == ["rate", "step"]
    assert all(line.endswith("not enough runs (6 of 18)") for line in lines[-2:])
    assert len(history(capsys, tmp_path, "--all", "-k", "rat")) == len(lines) - 1
    (tmp_path / "x.json").write_text("no record")
    head, *problems = history(capsys, tmp_path, "--format", "markdown")
    assert head.endswith("1 metric, not enough runs (6 of 18)")
    assert len(problems) == 1
    assert problems[0].startswith("1 file not read, such as ")


def test_points_and_changes_are_tables_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, 50, change=1.2)
    out = tmp_path / "out.parquet"
    [told] = history(capsys, tmp_path, "--points", "--format", "parquet", "-o", out)
    points = pd.read_parquet(out)
    header, line = history(capsys, tmp_path, "--format", "csv")

    assert told == f"50 rows written to {out}"
    assert list(points["commit"])[:2] == ["00" * 20, "01" * 20]
    assert points["value"].between(0.018, 0.028).all()
    assert header.startswith("platform,test,metric,unit,runs,before,after,change,kind,since,last_before,first_after")
    assert line.startswith("cpu-x,suites/test_a.py::test_a[ws2],step,s,50,0.02")


def test_runs_that_did_not_change_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, 50)

    assert history(capsys, tmp_path) == ["50 runs, 2026-01-01 to 2026-02-22: 1 metric, 0 changed"]


def test_metrics_that_changed_together_have_one_command_the_worst_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, 50, change=1.2, other=1.6)
    lines = history(capsys, tmp_path)

    assert lines[0].endswith("2 metrics, 2 changed")
    [command] = [line for line in lines if "git bisect" in line]
    assert "--metric 'load'" in command
