"""A verdict in words."""

from __future__ import annotations

from typing import Any

import pytest
from support.results import PAIRED, point, result, verdict

from pytest_distbench.records.metric import Scalar
from pytest_distbench.report.texts import AXES, REFERENCE_WORDS, cells, metric_text, name_in_file, point_text, words_for


def told(**changes: Any) -> dict[str, str]:
    """A verdict under all columns there are."""
    columns = {**REFERENCE_WORDS["stored"].columns, **REFERENCE_WORDS["paired"].columns}
    return dict(zip(columns, cells(verdict(**changes), columns), strict=True))


def test_cells_and_points_are_named_as_people_say_them() -> None:
    assert told(code="beyond-threshold", detectable=0.2) == {
        "": "!", "metric": "step", "this run": "30 ms", "baseline": "20 ms", "this tree": "30 ms", "reference": "20 ms",
        "change": "+50.0 %", "limit": "+10%", "finds": "+20.0%", "n": "5", "pairs": "5",
    }  # fmt: skip

    assert metric_text(point(4096)) == "latency at 4 KiB"

    stored, paired = (words_for(made).columns for made in (result(), result(reference=PAIRED)))
    assert [*stored] == ["", "metric", "this run", "baseline", "change", "limit", "n"]
    assert cells(verdict(), stored)[1:4] == ("step", "30 ms", "20 ms")
    assert [*paired][2:4] == ["this tree", "reference"]


@pytest.mark.parametrize(
    ("changes", "cell", "text"),
    [
        ({"baseline": None, "ratio": None}, "reference", "-"),
        ({"baseline": None, "ratio": None}, "change", ""),
        ({"better": "info"}, "reference", ""),
        ({"better": "info"}, "change", ""),
        ({"better": "info"}, "limit", ""),
        ({"better": "higher"}, "limit", "-9%"),
        ({"better": "exact", "limit": 0.0}, "limit", "exact"),
        ({"limit": None}, "limit", ""),
        ({"better": "memory", "unit": "B", "limit": 2.0, "baseline": 1024.0}, "limit", "+200%"),
        ({"better": "memory", "unit": "B", "limit": 16384.0, "baseline": 1024.0}, "limit", "+16 MiB"),
        ({"detectable": 1.5}, "finds", "> +100%"),
        ({"launches": 0}, "n", ""),
        ({"code": "communication"}, "change", "changed"),
    ],
)
def test_where_there_is_nothing_to_say_a_cell_says_so(changes: dict[str, Any], cell: str, text: str) -> None:
    assert told(**changes)[cell] == text


@pytest.mark.parametrize(
    ("nodeid", "name"),
    [("a/test_a.py::TestA::test_b[x::y-ws2]", "TestA::test_b[x::y-ws2]"), ("docs/a.md", "docs/a.md")],
)
def test_a_test_is_named_with_its_class_whatever_its_id_holds(nodeid: str, name: str) -> None:
    assert name_in_file(nodeid) == name


@pytest.mark.parametrize(
    ("at", "text"),
    [
        ({}, "latency"),
        ({"message_bytes": 4096}, "latency at 4 KiB"),
        ({"world_size": 4}, "latency at 4 ranks"),
        ({"seed": 3}, "latency of seed 3"),
        ({"seed": 3, "message_bytes": 8}, "latency at 8 B of seed 3"),
        ({"from": 1, "to": 3}, "latency from rank 1 to rank 3"),
        ({"calls": "each", "tensors": 214}, "latency with one call each in 214 tensors"),
        ({"calls": "coalesced", "tensors": 1}, "latency coalesced in 1 tensor"),
        ({"hook": "fp16"}, "latency with the hook fp16"),
        ({"level": 2}, "latency[level=2]"),
        ({"level": 2, "message_bytes": 8}, "latency[level=2] at 8 B"),
    ],
)
def test_a_point_is_told_by_its_axes(at: dict[str, Scalar], text: str) -> None:
    assert point_text("latency", at) == text


def test_an_axis_from_outside_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(AXES, "level", lambda level: f"on level {level}")

    assert point_text("loss", {"level": 2}) == "loss on level 2"
