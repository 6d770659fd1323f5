"""Histories for Otava: whole rows, a test for each case."""

from __future__ import annotations

import csv
import io
import json

from support.trends import steps, trend

from pytest_distbench.report.formats.otava import otava_files


def test_the_metrics_of_a_case_are_columns() -> None:
    step, memory = trend([1.0, 2.0]), trend([3.0, 4.0], metric="peak[rank=0,a=b]")
    files = otava_files([step, memory])
    [name] = (name for name in files if name.endswith(".csv"))
    head, first, second = csv.reader(io.StringIO(files[name]))

    assert head == ["time", "commit", "step", "peak[rank=0,a=b]"]
    assert first[0] == "2026-01-01T00:00:00+00:00"
    assert (first[2:], second[2:]) == (["1.0", "3.0"], ["2.0", "4.0"])
    [test] = json.loads(files["otava.yaml"])["tests"].values()
    assert (test["file"], test["attributes"]) == (name, ["commit"])
    assert test["metrics"]["step"] == {"column": "step", "scale": 1, "direction": -1}


def test_metrics_of_other_runs_are_a_test_of_their_own_for_a_row_has_no_hole() -> None:
    files = otava_files(
        [trend(steps(3, 1.0)), trend(steps(2, 1.0), metric="later"), trend(steps(3, 1.0), case="other")]
    )

    assert sorted(files) == [
        "otava.yaml", "test_a_other_-cpu-x.csv", "test_a_ws2.gloo.warm_-cpu-x-2.csv", "test_a_ws2.gloo.warm_-cpu-x.csv",
    ]  # fmt: skip
