"""The sweeps of a run as nccl-tests tells them."""

from __future__ import annotations

from typing import Any

from support.results import point, result, verdict

from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import LINK_PEAK, metric_key
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.report.tables.collectives import COLLECTIVES, collective_rows, footer

FACTS = {
    "collective": "all_gather", "dtype": "float32", "count": 8, "busbw_factor": 0.5, "mode": "batch", "cache": "hot",
}  # fmt: skip


def told(size: int, *, in_place: bool = False, current: float = 1e-3, **facts: Any) -> Verdict:
    return replace(point(size, current=current), facts={**FACTS, "in_place": in_place, **facts})


def refused(**changes: Any) -> Verdict:
    made = verdict("missing", metric="supported", better="exact", unit="", current=0.0, baseline=None)
    return replace(made, facts={**FACTS, "reason": "Invalid scalar type", "message_bytes": 64}, **changes)


def failed() -> CaseResult:
    launch = LaunchRecord(index=0, outcome="failed", wall_s=1.0, reason="all_reduce: 3 wrong elements\nmore")
    made = result(launches=[launch])
    return replace(made, case=replace(made.case, params={"collective": "all_reduce", "dtype": "int8", "sizes": [4]}))


def test_out_of_place_and_in_place_of_one_message_are_one_row() -> None:
    rows = collective_rows([result(told(64), told(128)), result(told(64, in_place=True, current=2e-3))])

    assert [(row.message_bytes, [*row.sides]) for row in rows] == [(64, [False, True]), (128, [False])]
    assert rows[0].sides[True].time_s == 2e-3
    assert rows[0].count == 8


def test_a_call_out_of_place_that_was_one_in_place_on_a_copy_says_so() -> None:
    """nccl-tests' all_reduce has two buffers; torch's has one."""
    copied, in_place = result(told(64, copies=True)), result(told(64, in_place=True))
    [row] = collective_rows([copied, in_place])
    [turned] = collective_rows([in_place, copied])
    [plain] = collective_rows([result(told(64)), in_place])

    assert row.note == turned.note == "out of place: in place on a copy, made outside the clock"
    assert plain.note == ""


def test_what_was_called_in_another_way_is_a_row_of_its_own() -> None:
    rows = collective_rows([result(told(64)), result(told(64, in_place=True, group="half", parts=4, together="async"))])

    assert [(row.kind.mode, row.kind.how) for row in rows] == [
        ("batch", "hot"),
        ("batch", "hot group=half async parts=4"),
    ]


def test_the_same_side_twice_is_two_rows() -> None:
    assert len(collective_rows([result(told(64)), result(told(64))])) == 2


def test_a_pair_that_the_backend_has_not_is_a_row_with_its_reason() -> None:
    first, second = collective_rows([result(refused()), result(refused(baseline=1.0))])

    assert (first.verdict, first.note, first.message_bytes) == ("unsupported", "gloo: Invalid scalar type", 64)
    assert second.note.endswith("(the baseline has it)")


def test_a_pair_whose_times_the_baseline_has_says_so() -> None:
    lost = replace(told(64), current=None, baseline=1e-3, kind="incomparable")
    [row] = collective_rows([result(lost, refused())])

    assert row.note == "gloo: Invalid scalar type (the baseline has it)"


def test_a_sweep_that_failed_is_a_row_and_its_values_are_not_called_right() -> None:
    rows = collective_rows([failed(), result(told(64))])

    assert (rows[0].verdict, rows[0].note, rows[0].kind.dtype) == ("failed", "all_reduce: 3 wrong elements", "int8")
    assert footer(rows)[0] == "# Out of bounds values : 0 FAILED, and 1 sweep without numbers"


def test_wrong_elements_are_added_up() -> None:
    at = {"message_bytes": 64}
    wrong = verdict("regressed", metric=metric_key("wrong_elements", at), at=at, current=3.0)

    assert footer(collective_rows([result(told(64), wrong)]))[0] == "# Out of bounds values : 3 FAILED"


def test_the_mean_is_that_of_all_messages_in_and_out_of_place() -> None:
    rows = collective_rows([result(told(2_000_000)), result(told(2_000_000, in_place=True, current=5e-4))])

    assert footer(rows) == ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 1.5"]


def test_of_several_collectives_there_is_a_mean_of_each() -> None:
    rows = collective_rows(
        [result(told(2_000_000), told(4_000_000)), result(told(64, collective="barrier", busbw_factor=0.0))]
    )
    more = collective_rows([result(told(2_000_000, collective="all_reduce"))])

    assert footer(rows + more)[1:] == [
        "# Avg bus bandwidth    : 1.5  all_gather, gloo, 2 ranks",
        "# Avg bus bandwidth    : 1  all_reduce, gloo, 2 ranks",
    ]


def test_collectives_have_the_columns_of_nccl_tests() -> None:
    facts = {"collective": "all_reduce", "dtype": "float32", "busbw_factor": 1.5, "count": 250_000, "redop": "sum"}
    measured = replace(point(1_000_000, current=0.001), facts=facts)
    section = COLLECTIVES.section([result(measured, point(64))])

    side = ["algbw(GB/s)", "busbw(GB/s)", "#wrong"]
    assert section.header == [
        "collective", "backend", "mode", "ranks", "size(B)", "count", "type", "redop", "root",
        "in-place time(us)", *side, "verdict",
    ]  # fmt: skip
    assert section.texts == [
        [
            *("all_reduce", "gloo", "per-iteration", "2", "1000000", "250000", "float32", "sum", "-1"),
            *("1000.00", "1.000", "1.500", "N/A"),
            "unchanged",
        ]
    ]
    assert section.footer == ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 1.5"]
    assert len(section.table.rows[0]) == len(section.columns) == 25


def test_where_the_peak_of_the_links_is_known_its_share_has_a_column() -> None:
    facts = {"collective": "all_reduce", "busbw_factor": 1.5, LINK_PEAK: 3.0}
    section = COLLECTIVES.section([result(replace(point(1_000_000, current=0.001), facts=facts))])

    assert section.header[section.header.index("busbw(GB/s)") + 1] == "of peak"
    assert "50.0%" in section.texts[0]


def test_both_placements_have_columns_where_both_ran() -> None:
    sides = [
        replace(point(64, current=0.001), facts={"collective": "all_gather", "in_place": in_place})
        for in_place in (False, True)
    ]
    section = COLLECTIVES.section([result(side) for side in sides])

    assert [heading for heading in section.header if "time" in heading] == [
        "out-of-place time(us)",
        "in-place time(us)",
    ]
    assert len(section.texts) == 1
