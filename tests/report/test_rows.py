"""One verdict as a row of texts."""

from __future__ import annotations

from typing import Any

import pytest
from support.results import PAIRED, point, result, verdict

from pytest_distbench.report.rows import cells, make_row, name_in_file, words_for


def test_every_cell_is_a_text_with_its_unit() -> None:
    row = make_row(verdict("regressed", detectable=0.2))

    assert (row.mark, row.metric, row.current, row.reference) == ("!", "step", "30 ms", "20 ms")
    assert (row.change, row.limit, row.finds, row.launches) == ("+50.0 %", "+10%", "+20.0%", "5")


def test_a_point_is_named_as_people_say_it() -> None:
    assert make_row(point(4096)).metric == "latency at 4 KiB"


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
        ({"launches": 0}, "launches", ""),
        ({"kind": "changed"}, "change", "changed"),
    ],
)
def test_where_there_is_nothing_to_say_a_cell_says_so(changes: dict[str, Any], cell: str, text: str) -> None:
    assert getattr(make_row(verdict(**changes)), cell) == text


def test_the_columns_are_those_of_the_reference() -> None:
    stored, paired = (words_for(made).columns for made in (result(), result(reference=PAIRED)))

    assert [*stored] == ["", "metric", "this run", "baseline", "change", "limit", "n"]
    assert cells(make_row(verdict()), stored)[1:4] == ("step", "30 ms", "20 ms")
    assert [*paired][2:4] == ["this tree", "reference"]


@pytest.mark.parametrize(
    ("nodeid", "name"),
    [("a/test_a.py::TestA::test_b[x::y-ws2]", "TestA::test_b[x::y-ws2]"), ("docs/a.md", "docs/a.md")],
)
def test_a_test_is_named_with_its_class_whatever_its_id_holds(nodeid: str, name: str) -> None:
    assert name_in_file(nodeid) == name
