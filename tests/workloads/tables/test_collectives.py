"""The tables of sweeps: one as nccl-tests prints it, and several side by side."""

from __future__ import annotations

from typing import Any

import pytest
from support.results import point, result, verdict

from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import LINK_PEAK, metric_key
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import STATISTICS, CaseResult, Finding
from pytest_distbench.report.verdicts import case_table, telling_verdicts
from pytest_distbench.workloads.tables import collectives
from pytest_distbench.workloads.tables.collectives import BACKENDS, collective_rows, footer, is_sweep, sweep_points


def test_a_sweep_has_its_sizes_in_order_with_rates_and_verdicts() -> None:
    assert is_sweep(result(verdict(), point(8)))
    assert not is_sweep(result(verdict()))

    assert [p.message_bytes for p in sweep_points(result(point(4096), point(8)))] == [8, 4096]

    [found] = sweep_points(result(point(1_000_000, current=0.001)))
    assert (found.algbw, found.busbw) == (pytest.approx(1.0), pytest.approx(1.5))

    measured = point(1_000_000, current=0.001)
    [unknown], [known] = (
        sweep_points(result(replace(measured, facts={**measured.facts, **more}))) for more in ({}, {LINK_PEAK: 3.0})
    )
    assert (unknown.busbw_share, known.busbw_share) == (None, pytest.approx(0.5))

    [found] = sweep_points(result(replace(point(8), facts={})))
    assert found.busbw is None

    at = {"message_bytes": 8}
    wrong = verdict("beyond-threshold", metric=metric_key("wrong_elements", at), at=at, current=3.0)
    [found] = sweep_points(result(point(8), wrong))
    assert (found.most_severe, found.wrong_elements, found.time.kind) == ("beyond-threshold", 3.0, "unchanged")

    assert list(sweep_points(result(point(8, current=None)))) == []


FACTS = {"collective": "all_reduce", "dtype": "float32", "redop": "sum", "count": 16, "mode": "per-iteration"}


def swept(backend: str, *verdicts: Finding, world_size: int = 2) -> CaseResult:
    made = result(*verdicts)
    conditions = replace(made.case.conditions, backend=backend, world_size=world_size)
    return replace(made, case=replace(made.case, id=f"ws{world_size}-{backend}", conditions=conditions))


def timed(size: int, seconds: float, *, in_place: bool = True) -> Finding:
    return replace(point(size, current=seconds), facts={**FACTS, "in_place": in_place})


def refused(size: int) -> Finding:
    made = verdict("no-baseline", metric="supported", better="exact", unit="", current=0.0, baseline=None)
    return replace(made, facts={**FACTS, "reason": "Invalid scalar type", "message_bytes": size})


def test_backends_are_compared_if_all_else_is_equal() -> None:
    section = BACKENDS.table([swept("mpi", timed(64, 3e-6), timed(128, 4e-6)), swept("gloo", timed(64, 1e-6))])
    assert section.header[-2:] == ["gloo time(us)", "mpi time(us)"]
    assert [row[4:6] + row[-2:] for row in section.texts] == [["64", "16", "1.00", "3.00"], ["128", "16", "-", "4.00"]]
    assert section.rows[0][-1] == 3e-6

    both = [timed(64, 1e-6), timed(64, 2e-6, in_place=False)]
    section = BACKENDS.table([swept("gloo", *both[:1]), swept("gloo", *both[1:]), swept("mpi", timed(64, 3e-6))])
    assert [row[-2:] for row in section.texts] == [["1.00", "3.00"], ["2.00", "-"]]

    section = BACKENDS.table([swept("gloo", timed(64, 1e-6)), swept("mpi", refused(64))])
    assert [row[-2:] for row in section.texts] == [["1.00", "unsupported"]]

    assert not BACKENDS.table([swept("gloo", timed(64, 1e-6))]).rows
    assert not BACKENDS.table([swept("gloo", timed(64, 1e-6)), swept("mpi", timed(64, 1e-6), world_size=4)]).rows

    assert not BACKENDS.table([swept("gloo", timed(64, 1e-6)), sent_by("ring", 64, 1e-6)]).rows


def over(network: str, *verdicts: Finding) -> CaseResult:
    made = swept("gloo", *verdicts)
    around = {"network": network} if network else {}
    return replace(made, case=replace(made.case, conditions=replace(made.case.conditions, around=around)))


def test_networks_are_compared_with_the_first() -> None:
    section = collectives.NETWORKS.table(
        [
            over("", timed(64, 9e-6)),
            over("1gbit", timed(64, 2e-6)),
            over("1gbit,overlay", timed(64, 3e-6), timed(128, 4e-6)),
        ]
    )
    assert section.header[-3:] == ["1gbit time(us)", "1gbit,overlay time(us)", "x 1gbit,overlay"]
    assert [row[-3:] for row in section.texts] == [["2.00", "3.00", "1.500"], ["-", "4.00", "-"]]

    assert not collectives.NETWORKS.table([over("", timed(64, 1e-6)), over("1gbit", timed(64, 1e-6))]).rows


def sent_by(transport: str, size: int, seconds: float) -> CaseResult:
    made = swept("nccl", timed(size, seconds))
    return replace(made, case=replace(made.case, params={"transport": transport} if transport else {}))


def test_a_transport_has_a_column_and_so_has_what_the_backend_would_have_taken() -> None:
    section = collectives.TRANSPORTS.table(
        [sent_by("tree", 64, 3e-6), sent_by("ring", 64, 1e-6), sent_by("", 64, 2e-6)]
    )

    assert section.header[-3:] == ["ring time(us)", "tree time(us)", "usual time(us)"]
    assert [row[-3:] for row in section.texts] == [["1.00", "3.00", "2.00"]]
    assert "backend" in section.header
    assert "transport" not in section.header


GATHERED = {
    "collective": "all_gather", "dtype": "float32", "count": 8, "busbw_factor": 0.5, "mode": "batch", "cache": "hot",
}  # fmt: skip


def gathered(size: int, *, in_place: bool = False, current: float = 1e-3, **facts: Any) -> Finding:
    return replace(point(size, current=current), facts={**GATHERED, "in_place": in_place, **facts})


def unsupported(**changes: Any) -> Finding:
    made = verdict("no-baseline", metric="supported", better="exact", unit="", current=0.0, baseline=None)
    return replace(made, facts={**GATHERED, "reason": "Invalid scalar type", "message_bytes": 64}, **changes)


def failed() -> CaseResult:
    launch = LaunchRecord(index=0, outcome="failed", wall_s=1.0, reason="all_reduce: 3 wrong elements\nmore")
    made = result(launches=[launch])
    return replace(made, case=replace(made.case, params={"collective": "all_reduce", "dtype": "int8", "sizes": [4]}))


def test_placements_of_one_message_are_one_row_and_other_calls_another() -> None:
    rows = collective_rows([result(gathered(64), gathered(128)), result(gathered(64, in_place=True, current=2e-3))])
    assert [(row.message_bytes, [*row.sides]) for row in rows] == [(64, [False, True]), (128, [False])]
    assert rows[0].sides[True].time_s == 2e-3
    assert rows[0].count == 8

    # nccl-tests' all_reduce has two buffers; torch's has one
    copied, in_place = result(gathered(64, copies=True)), result(gathered(64, in_place=True))
    [row] = collective_rows([copied, in_place])
    [turned] = collective_rows([in_place, copied])
    [plain] = collective_rows([result(gathered(64)), in_place])
    assert row.note == turned.note == "out of place: in place on a copy, made outside the timed part"
    assert plain.note == ""

    assert len(collective_rows([result(gathered(64)), result(gathered(64))])) == 2


def test_what_was_called_in_another_way_is_a_row_of_its_own() -> None:
    rows = collective_rows(
        [result(gathered(64)), result(gathered(64, in_place=True, group="half", parts=4, together="async"))]
    )

    assert [(row.sent.mode, row.sent.how) for row in rows] == [
        ("batch", "hot"),
        ("batch", "hot group=half async parts=4"),
    ]


def test_a_pair_without_times_is_a_row_with_its_reason() -> None:
    first, second = collective_rows([result(unsupported()), result(unsupported(baseline=1.0))])
    assert (first.verdict, first.note, first.message_bytes) == ("unsupported", "gloo: Invalid scalar type", 64)
    assert second.note.endswith("(the baseline has it)")

    lost = replace(gathered(64), current=None, baseline=1e-3, code="other-workload")
    [row] = collective_rows([result(lost, unsupported())])
    assert row.note == "gloo: Invalid scalar type (the baseline has it)"

    rows = collective_rows([failed(), result(gathered(64))])
    assert (rows[0].verdict, rows[0].note, rows[0].sent.dtype) == ("failed", "all_reduce: 3 wrong elements", "int8")
    assert footer(rows)[0] == "# Out of bounds values : 0 FAILED, and 1 sweep without numbers"

    at = {"message_bytes": 64}
    wrong = verdict("beyond-threshold", metric=metric_key("wrong_elements", at), at=at, current=3.0)
    assert footer(collective_rows([result(gathered(64), wrong)]))[0] == "# Out of bounds values : 3 FAILED"


def test_means_are_of_all_messages_of_each_collective() -> None:
    rows = collective_rows([result(gathered(2_000_000)), result(gathered(2_000_000, in_place=True, current=5e-4))])
    assert footer(rows) == ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 1.5"]

    rows = collective_rows(
        [result(gathered(2_000_000), gathered(4_000_000)), result(gathered(64, collective="barrier", busbw_factor=0.0))]
    )
    more = collective_rows([result(gathered(2_000_000, collective="all_reduce"))])
    assert footer(rows + more)[1:] == [
        "# Avg bus bandwidth    : 1.5  all_gather, gloo, 2 ranks",
        "# Avg bus bandwidth    : 1  all_reduce, gloo, 2 ranks",
    ]


def test_collectives_have_the_columns_of_nccl_tests() -> None:
    facts = {"collective": "all_reduce", "dtype": "float32", "busbw_factor": 1.5, "count": 250_000, "redop": "sum"}
    measured = replace(point(1_000_000, current=0.001), facts=facts)
    section = collectives.COLLECTIVES.table([result(measured, point(64))])

    side = ["algbw(GB/s)", "busbw(GB/s)", "#wrong"]
    assert section.header == [
        "collective", "backend", "mode", "ranks", "size(B)", "count", "type", "redop", "root",
        "in-place time(us)", *side, "verdict"
    ]  # fmt: skip
    assert section.texts == [
        [
            *("all_reduce", "gloo", "per-iteration", "2", "1000000", "250000", "float32", "sum", "-1"),
            *("1000.00", "1.000", "1.500", "N/A"),
            "unchanged",
        ]
    ]
    assert section.footer == ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 1.5"]
    assert len(section.rows[0]) == len(section.columns) == 25


def test_a_sweep_has_a_table_of_its_sizes() -> None:
    at = {"message_bytes": 8}
    wrong = verdict(
        "beyond-threshold", metric="wrong_elements[message_bytes=8]", at=at, unit="", better="exact", current=3.0
    )
    time = point(8, current=1e-5, baseline=1e-5)
    assert [line.text for line in case_table(result(time, point(16), wrong), show_all=False)] == [
        "   size  time us  algbw GB/s  busbw GB/s  #wrong  baseline us  change  threshold  n",
        "!   8 B     10.0       0.001       0.001       3         10.0  +0.0 %       +10%  5",
        f"  this run, baseline: {STATISTICS['median'].means}",
        "  1 size within their thresholds not shown (-v shows all)",
    ]


def test_a_sweep_is_represented_by_its_ends_and_what_changed() -> None:
    lines = case_table(result(point(1_000_000, "beyond-threshold", current=0.001), point(8)), show_all=False)
    assert lines[0].text.split()[:4] == ["size", "time", "us", "algbw"]
    assert lines[1].severity == "failure"
    assert lines[1].text.split()[:6] == ["!", "976.6", "KiB", "1000.0", "1.000", "1.500"]
    assert lines[3].text == "  1 size within their thresholds not shown (-v shows all)"

    sizes = [point(size, ratio=ratio) for size, ratio in [(8, 1.0), (16, 1.1), (32, 1.3), (64, 1.0)]]
    assert [v.at["message_bytes"] for v in telling_verdicts(result(*sizes))] == [8, 32, 64]


def test_unsupported_calls_are_grouped_by_the_backends_reasons() -> None:
    pairs = [
        verdict(
            metric=f"supported[dtype={dtype}]", better="exact", current=0.0, facts={"dtype": dtype, "reason": reason}
        )
        for dtype, reason in [("int16", "Invalid scalar type"), ("uint16", "Invalid scalar type"), ("bool", "no")]
    ]

    lines = case_table(result(*pairs), show_all=False)
    found = [line.text for line in lines[-2:]]

    assert found == ["  gloo has not int16, uint16: Invalid scalar type", "  gloo has not bool: no"]
