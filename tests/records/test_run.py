"""Everything a run measured and said: verdicts, planted slowdowns, trends."""

from __future__ import annotations

import pytest
from support.results import point, result, verdict

from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, Control, told_apart


def test_cases_and_kinds_are_named_as_short_as_they_are_told_apart() -> None:
    assert (point(4096).metric, point(4096).name) == ("latency[message_bytes=4096]", "latency")

    with pytest.raises(ValueError, match=r"'worse'.*beyond-threshold"):
        verdict("worse")

    codes = ["beyond-threshold", "bound", "noise", "low-power", "within-threshold", "no-baseline"]
    control = Control(verdicts=[verdict(code, metric=code) for code in codes])
    assert [v.metric for v in control.found] == ["beyond-threshold", "bound"]

    told = told_apart([of("a.py::test_it", "ws2"), of("a.py::test_it", "ws4"), of("a.py::test_it", "ws2")])
    assert [r.case.title for r in told] == ["test_it[ws2]", "test_it[ws4]", "test_it[ws2]"]

    told = told_apart([of("a.py::test_it"), of("b.py::test_it", "x-ws4")])
    assert [r.case.series for r in told] == ["a.py::test_it[x]", "b.py::test_it[x]"]


def of(test: str, case_id: str = "ws2") -> CaseResult:
    made = result(nodeid=f"{test}[{case_id}]")
    return replace(made, case=replace(made.case, test=test, id=case_id, family="x"))


@pytest.mark.parametrize(
    ("tests", "titles"),
    [
        (["a/test_x.py::test_it", "a/test_y.py::test_other"], ["test_it[ws2]", "test_other[ws2]"]),
        (["test_x.py::test_it", "test_y.py::test_it"], ["test_x.py::test_it[ws2]", "test_y.py::test_it[ws2]"]),
        (["a/test_x.py::test_it", "b/test_x.py::test_it"], ["a/test_x.py::test_it[ws2]", "b/test_x.py::test_it[ws2]"]),
        (["test_x.py::test_it", "b/test_x.py::test_it"], ["test_x.py::test_it[ws2]", "b/test_x.py::test_it[ws2]"]),
        (
            ["p/q/test_x.py::A::test_it", "p/r/test_x.py::A::test_it", "p/r/test_z.py::A::test_it", "z.py::test_it"],
            ["q/test_x.py::A::test_it[ws2]", "r/test_x.py::A::test_it[ws2]", "test_z.py::A::test_it[ws2]",
             "test_it[ws2]"],
        ),
    ],
)  # fmt: skip
def test_as_much_of_a_path_is_told_as_it_takes(tests: list[str], titles: list[str]) -> None:
    told = told_apart([of(test) for test in tests])

    assert [r.case.title for r in told] == titles
    assert [r.case.test for r in told] == tests
