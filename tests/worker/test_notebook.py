"""Notebook: each metric once, and for the rules of trainings only what they can judge."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy
import pytest
import torch

from pytest_distbench.errors import RecordingError
from pytest_distbench.launch.reduce import merge, recorded
from pytest_distbench.records.launch import RankReport
from pytest_distbench.records.metric import Bound
from pytest_distbench.worker.notebook import Notebook


def note(notebook: Notebook, value: object, better: str = "info", **options: object) -> None:
    arguments = {"unit": "", "reduce": None, "at": {}, **options}
    notebook.note("m", value, better=better, **arguments)  # type: ignore[arg-type]


def test_a_metric_is_noted_once_at_each_point_and_not_where_it_is_refused() -> None:
    notebook = Notebook()
    note(notebook, 1, at={"size": 1})
    note(notebook, 1, at={"size": 2})

    with pytest.raises(RecordingError, match=r"'m\[size=2\]' is recorded twice: give each its own name or point"):
        note(notebook, 1, at={"size": 2})

    notebook = Notebook()
    with pytest.raises(RecordingError):
        note(notebook, "fast")
    note(notebook, 1)
    assert [o.values for o in notebook.observations] == [[1.0]]

    with pytest.raises(RecordingError, match="no time"):
        note(Notebook(), -1.0, unit="s", bounds=[Bound(side="most", value=1.0, where="here")])


@pytest.mark.parametrize(
    ("better", "reduce"), [("lower", "max"), ("higher", "min"), ("exact", "all"), ("info", "rank0"), ("same", "mean")]
)
def test_the_kind_says_how_ranks_are_reduced_unless_told(better: str, reduce: str) -> None:
    notebook = Notebook()
    note(notebook, 1, better)
    note(notebook, 1, better, reduce="sum", at={"b": 1})

    assert [o.reduce for o in notebook.observations] == [reduce, "sum"]


EVERY_0, NO_SAMPLES = {"every": 0}, {"evaluation_samples": 0}
SECONDS, BYTES = {"unit": "s"}, {"unit": "B"}


@pytest.mark.parametrize(
    ("value", "better", "options", "message"),
    [
        (1.0, "curve", {}, "wanted a series, one value per step, got one number"),
        ([1.0], "same", {}, "wanted one number, got a series"),
        (97.0, "floor", {"identity": {"evaluation_samples": 10}}, "97 is no share of 10 samples; wanted 0 to 1"),
        (0.9, "floor", {"identity": NO_SAMPLES}, "wanted evaluation_samples in identity to be a whole number, at lea"),
        (-3, "steps", {}, r"record\('m', better='steps'\): wanted whole steps, 0 or more, found -3"),
        (2.5, "steps", {}, "wanted whole steps, 0 or more, found 2.5"),
        (5, "steps", {"identity": EVERY_0}, "wanted every in identity to be the steps between evaluations, above 0"),
        (0.0, "lower", SECONDS, r"record\('m'\): 0 s is no time that anything takes"),
        (-5.0, "lower", {"unit": "ms"}, r"record\('m'\): -5 ms is no time that anything takes"),
        (-1.0, "higher", SECONDS, r"record\('m'\): -1 s is no time that anything takes"),
        (-1, "lower", BYTES, r"record\('m'\): -1 B is no size"),
        ([3.0, -1.0, 3.0], "lower", SECONDS, r"record\('m'\): -1 s is no time"),
        ([0.0, 0.0, 3.0], "lower", SECONDS, r"record\('m'\): 0 s is no time"),
    ],
)
def test_what_no_rule_could_judge_and_a_time_or_a_size_that_cannot_be_are_refused(
    value: object, better: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecordingError, match=message):
        note(Notebook(), value, better, **options)


@pytest.mark.parametrize("value", [2**60 + 1, -(2**63), 2**64 - 1, numpy.int64(2**60 + 1), torch.tensor(2**60 + 1)])
def test_a_large_integer_keeps_all_its_digits_on_the_way(value: Any) -> None:
    notebook = Notebook()
    notebook.note("checksum", value, unit="", better="exact", reduce=None, at={})
    report = RankReport(rank=0, outcome="passed", phase="body", phases={}, observations=notebook.observations)
    [measurement] = merge(recorded([msgspec.json.decode(msgspec.json.encode(report), type=RankReport)]))

    assert measurement.value == int(value)
    assert isinstance(measurement.value, int)


@pytest.mark.parametrize(
    ("value", "options"),
    [
        (0, {"better": "steps"}),
        (5.0, {"better": "steps"}),
        (None, {"better": "steps"}),
        (0.0, {"unit": "s", "better": "info"}),
        ([0.0, 3.0, 3.0, 3.0, 3.0], {"unit": "s", "better": "lower"}),
        (0, {"unit": "B", "better": "lower"}),
        (-3.0, {"unit": "points", "better": "higher"}),
        (0.0, {"unit": "s", "better": "lower", "companions": {"cpu_s": [0.1]}}),
    ],
)
def test_what_is_not_judged_and_what_a_clock_of_ours_says_is_noted(value: object, options: dict[str, Any]) -> None:
    notebook = Notebook()
    note(notebook, value, **options)

    assert len(notebook.observations) == 1
