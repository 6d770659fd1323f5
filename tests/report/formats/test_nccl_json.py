"""The JSON of nccl-tests: what reads theirs reads ours."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from support.results import point, result, run

from pytest_distbench.errors import DistbenchError
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.formats.nccl_json import write_nccl_json
from pytest_distbench.store.perf_output import read_perf_json

FACTS = {"collective": "all_reduce", "dtype": "float32", "redop": "product", "count": 250_000, "busbw_factor": 1.0}


def measured(*, in_place: bool) -> CaseResult:
    return result(replace(point(1_000_000, current=1e-3), facts={**FACTS, "in_place": in_place}))


def written(*results: CaseResult) -> str:
    out = io.BytesIO()
    write_nccl_json(run(*results, command="pytest suites"), out)
    return out.getvalue().decode()


def test_our_reader_of_their_files_reads_it() -> None:
    output = read_perf_json(written(measured(in_place=False), measured(in_place=True)), Path("x.json"))

    assert (output.program, output.ranks, output.is_whole) == ("all_reduce", 2, True)
    assert [(row.in_place, row.size, row.dtype, row.redop) for row in output.rows] == [
        (False, 1_000_000, "float", "prod"),
        (True, 1_000_000, "float", "prod"),
    ]
    assert output.rows[0].time_s == pytest.approx(1e-3)
    assert output.rows[0].busbw == pytest.approx(1.0)


def test_it_has_the_fields_of_theirs_and_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SECRET", "swordfish")
    text = written(measured(in_place=True))
    found: dict[str, Any] = json.loads(text)
    theirs = json.loads((Path(__file__).parents[2] / "data" / "nccl-tests.json").read_text())

    assert "swordfish" not in text
    assert found["env"] == []
    assert set(theirs) - {"nccl_version"} <= set(found)
    assert set(theirs["config"]) <= set(found["config"])
    assert set(theirs["results"][0]) - {"actual_iterations"} <= set(found["results"][0])
    assert found["out_of_bounds"] == {"count": 0, "okay": "true"}
    assert found["results"][0]["out_of_place"] is None


def test_a_run_of_several_world_sizes_does_not_fit_and_is_told() -> None:
    other = measured(in_place=True)
    other = replace(other, case=replace(other.case, conditions=replace(other.case.conditions, world_size=4)))

    with pytest.raises(DistbenchError, match="this run has gloo on 2 ranks, gloo on 4 ranks; measure with one"):
        written(measured(in_place=True), other)
    with pytest.raises(DistbenchError, match="no sweep with numbers"):
        written()
